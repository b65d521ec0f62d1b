"""What a report needs of a run and of its critical path: their shape, so that drawing knows no analyzer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from traceflow.report.names import printable
from traceflow.result import Result

if TYPE_CHECKING:
    from traceflow.graph import DependencyGraph
    from traceflow.intent.mesh import Mesh
    from traceflow.intent.plan import Plan
    from traceflow.trace.model import Int32, Int64, Rows, Text, Trace


@dataclass(frozen=True, slots=True)
class Asked:
    """What a page is to explain: one step, what an annotation names, or the whole capture; and the plan it followed.

    Example:
        >>> Asked().what, Asked(3).what, Asked(window="forward#2").what
        ('The whole capture', 'Step 3', 'The window forward#2')
    """

    step: int | None = None
    window: str | None = None
    plan: Plan | None = None

    @property
    def what(self) -> str:
        """The window in words."""
        if self.window is not None:
            return f"The window {printable(self.window, 80)}"
        return "The whole capture" if self.step is None else f"Step {self.step}"

    @property
    def whole(self) -> bool:
        """Whether it is the whole capture."""
        return self.step is None and self.window is None

    @property
    def about(self) -> dict[str, Any]:
        """The same as arguments of the questions."""
        return {"step": self.step, "window": self.window}

    @property
    def options(self) -> list[str]:
        """The same as options of the command line."""
        step = [] if self.step is None else ["--step", str(self.step)]
        return step if self.window is None else ["--window", self.window]


WHOLE = Asked()
"""The whole capture."""


class Written(Protocol):
    """What the programs tell of events, one row per event; None where they tell nothing."""

    @property
    def operation(self) -> Text:
        """What a compiled instruction does."""

    @property
    def scope(self) -> Text:
        """Named scopes that it was written in."""

    @property
    def source(self) -> Text:
        """The line that it was written in."""


class Segments(Written, Protocol):
    """Columns of a critical path in time order, one row per segment."""

    @property
    def start_ns(self) -> Int64:
        """Start of each segment."""

    @property
    def duration_ns(self) -> Int64:
        """Duration of each; together they tile the window."""

    @property
    def kind(self) -> Text:
        """What each segment is."""

    @property
    def rank(self) -> Int32:
        """Where it was."""

    @property
    def device(self) -> Int32:
        """On which device, -1 for the host."""

    @property
    def lane(self) -> Text:
        """On which thread or stream."""

    @property
    def name(self) -> Text:
        """Name of the event behind it."""

    @property
    def reason(self) -> Text:
        """Of idle segments, why their cause is unknown; None elsewhere."""

    @property
    def edge(self) -> Text:
        """How it was reached, None for the first."""

    @property
    def waiting_for(self) -> Text:
        """Who ended the wait before it, as (rank, device or None); None where nobody did."""

    def __len__(self) -> int: ...


class CriticalPath(Result, Protocol):
    """A critical path."""

    @property
    def segments(self) -> Segments:
        """Its segments."""

    @property
    def makespan_ns(self) -> int:
        """Length of the window."""

    @property
    def by_kind_ns(self) -> Mapping[str, int]:
        """Time on the path per kind."""

    @property
    def by_rank_ns(self) -> Mapping[int, int]:
        """Time on the path per rank."""

    @property
    def error_ns(self) -> int | None:
        """How far a moment on one rank may be off against another's; None where nothing bounds it."""


class Sharding(Result, Protocol):
    """An audit of sharding."""

    @property
    def mesh(self) -> Mesh | None:
        """What the programs run on."""


class Subject(Protocol):
    """A run that can be asked for everything that a report shows."""

    @property
    def inputs(self) -> tuple[str, ...]:
        """What was opened."""

    @property
    def trace(self) -> Trace:
        """The evidence."""

    def written(self, event: Rows) -> Written:
        """What the programs tell of some events."""

    def graph(self, *, step: int | None = None, window: str | None = None) -> DependencyGraph:
        """The dependency graph of the window."""

    def summary(self) -> Result:
        """What the capture holds."""

    def critical_path(self, *, step: int | None = None, window: str | None = None) -> CriticalPath:
        """The critical path of the window."""

    def communication(self, *, step: int | None = None, window: str | None = None, plan: Plan | None = None) -> Result:
        """Communication in the window."""

    def budget(self, *, step: int | None = None, window: str | None = None) -> Result:
        """How far operations are from what hardware allows."""

    def memory(self) -> Result:
        """What is in memory at the peak, and when."""

    def moe(self, *, step: int | None = None) -> Result:
        """How tokens went to experts in the window."""

    def padding(self) -> Result:
        """What is stored beyond the values themselves."""

    def sharding(self, *, step: int | None = None, window: str | None = None) -> Sharding:
        """Intended against compiled sharding, with what ran in the window."""

    def savings(self, *, step: int | None = None, window: str | None = None, top: int = 3) -> Result:
        """What would shorten the window most."""

    def stragglers(self, *, step: int | None = None, window: str | None = None) -> Result:
        """Who was late by their own doing."""

    def collective_matmul(self, *, step: int | None = None, window: str | None = None) -> Result:
        """Products that are cut into rounds, and those that could be."""

    def plan_check(self, plan: Plan) -> Result:
        """A plan against what ran."""
