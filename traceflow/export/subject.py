"""What an export needs of a run: its shape, so that exporting does not depend on how a run was opened; and its answers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from traceflow.analyzers.budget import Budget
from traceflow.analyzers.communication import Communication
from traceflow.analyzers.critical_path import CriticalPath
from traceflow.analyzers.dependencies import Dependencies
from traceflow.analyzers.memory import Memory
from traceflow.analyzers.moe import Moe
from traceflow.analyzers.sharding import Sharding
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

    def budget(self, *, step: int | None = None) -> Budget:
        """What operations took, and what they need at least."""

    def moe(self, *, step: int | None = None) -> Moe:
        """How tokens went to experts."""

    def sharding(self, *, step: int | None = None) -> Sharding:
        """How arrays lie, and what that sends."""


@dataclass(frozen=True)
class Answers:
    """What a run answers, each question asked once.

    Args:
        run: The run.
        step: Which step is asked about; the whole capture where None.
    """

    run: Subject
    step: int | None = None

    @cached_property
    def traced(self) -> bool:
        """Whether anything is known of when things ran."""
        return len(self.run.trace.events) > 0

    @cached_property
    def works(self) -> bool:
        """Whether there is work to explain."""
        return self.traced and bool(self.run.dependencies.graph.counted.any())

    @cached_property
    def summary(self) -> Summary:
        """Ranks, devices and steps."""
        return self.run.summary()

    @cached_property
    def critical_path(self) -> CriticalPath:
        """The chain of work that decided the length of the window."""
        return self.run.critical_path(step=self.step)

    @cached_property
    def communication(self) -> Communication:
        """Communication of the window."""
        return self.run.communication(step=self.step)

    @cached_property
    def memory(self) -> Memory:
        """What is in memory at the peak."""
        return self.run.memory()

    @cached_property
    def budget(self) -> Budget:
        """What operations of the window took, and what they need at least."""
        return self.run.budget(step=self.step)

    @cached_property
    def moe(self) -> Moe:
        """How tokens went to experts in the window."""
        return self.run.moe(step=self.step)

    @cached_property
    def sharding(self) -> Sharding:
        """How arrays lie, and what that sends."""
        return self.run.sharding(step=self.step)
