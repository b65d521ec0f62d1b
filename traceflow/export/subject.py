"""What an export needs of a run: its shape, so that exporting does not depend on how a run was opened."""

from __future__ import annotations

from typing import Protocol

from traceflow.analyzers.communication import Communication
from traceflow.analyzers.critical_path import CriticalPath
from traceflow.analyzers.dependencies import Dependencies
from traceflow.analyzers.memory import Memory
from traceflow.analyzers.summary import Summary
from traceflow.graph import DependencyGraph
from traceflow.program.module import Programs
from traceflow.trace.model import Trace


class Subject(Protocol):
    """A run that can be asked."""

    @property
    def inputs(self) -> tuple[str, ...]:
        """What was read, as the user named it."""

    @property
    def trace(self) -> Trace:
        """What the devices and the host did, all ranks on one clock."""

    @property
    def programs(self) -> Programs:
        """What the compiler arranged."""

    @property
    def dependencies(self) -> Dependencies:
        """The dependency graph of the whole capture."""

    def graph(self, *, step: int | None = None) -> DependencyGraph:
        """The dependency graph of a window."""

    def summary(self) -> Summary:
        """Ranks, devices and steps."""

    def critical_path(self, *, step: int | None = None) -> CriticalPath:
        """The chain of work that decided the length of a window."""

    def communication(self, *, step: int | None = None) -> Communication:
        """Communication of a window."""

    def memory(self) -> Memory:
        """What is in memory at the peak."""
