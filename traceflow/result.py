"""What every analyzer returns: a frozen result with findings, gaps and the quality of its evidence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeAlias

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go
    from rich.console import Console, ConsoleOptions, RenderableType

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"


class Provenance(StrEnum):
    """Where a figure comes from."""

    MEASURED = "measured"  # a timestamp or a counter
    COMPILER = "compiler"  # XLA's static cost or buffer assignment
    DERIVED = "derived"  # computed from shapes and intent
    MODELLED = "modelled"  # a what-if


class Severity(StrEnum):
    """How much a finding matters to the person who reads it."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing worth knowing or changing, with its evidence and, where it can be told, its cost."""

    code: str
    severity: Severity
    title: str
    provenance: Provenance
    suggestion: str
    cost_ns: int | None = None
    evidence: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Skipped:
    """A quantity that could not be established: a JSON pointer to it, and the reason."""

    what: str
    reason: str


@dataclass(frozen=True, slots=True)
class Note:
    """A remark on the evidence: a stable code, a sentence, and pointers to the figures it affects."""

    code: str
    text: str
    affects: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Tally:
    """What became of the events of a trace, in counts; `dropped` and `repaired` are by reason.

    read = kept + sum(dropped.values()), and an event may be both kept and repaired.
    """

    read: int = 0
    kept: int = 0
    repaired: Mapping[str, int] = field(default_factory=dict)
    dropped: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[Note, ...] = ()

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            self.read + other.read,
            self.kept + other.kept,
            _added(self.repaired, other.repaired),
            _added(self.dropped, other.dropped),
            self.notes + tuple(note for note in other.notes if note not in self.notes),
        )


def _added(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    return {reason: one.get(reason, 0) + other.get(reason, 0) for reason in [*one, *(o for o in other if o not in one)]}


class Result(Protocol):
    """What a report, the command line and a notebook need of any analyzer's result."""

    kind: ClassVar[str]

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What is worth knowing or changing."""
        ...

    @property
    def skipped(self) -> tuple[Skipped, ...]:
        """What could not be established, and why."""
        ...

    @property
    def notes(self) -> tuple[Note, ...]:
        """Remarks on the evidence."""
        ...

    def to_dict(self) -> dict[str, Json]:
        """The `result` object of the JSON contract."""
        ...

    def to_pandas(self) -> pd.DataFrame:
        """The main table of the result, one row per thing it is about."""
        ...


class Shown:
    """How every result shows itself: in a notebook, in IPython, to rich, as a figure, and in one line.

    How is the report's business, and is loaded when it is asked for.
    """

    __slots__ = ()

    def __init_subclass__(cls) -> None:
        """A dataclass writes a `repr` as long as its columns, unless it has one, and IPython takes it for the text."""
        for name in ("__repr__", "_repr_pretty_"):
            setattr(cls, name, getattr(Shown, name))

    def __repr__(self: Result) -> str:
        """One line, whatever the size of the result."""
        from traceflow.report.shown import in_one_line

        return in_one_line(self)

    def _repr_html_(self: Result) -> str:
        from traceflow.report.shown import as_html

        return as_html(self)

    def _repr_pretty_(self: Result, printer: Any, cycle: bool) -> None:  # noqa: FBT001  # as IPython calls it
        from traceflow.report.shown import as_text

        del cycle  # a result holds none
        printer.text(as_text(self, width=printer.max_width))

    def __rich_console__(self: Result, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        from traceflow.report.shown import as_rich

        del console
        yield as_rich(self, width=options.max_width)

    def figure(self: Result) -> go.Figure:
        """The result as a figure of plotly: a critical path over time, anything else as bars."""
        from traceflow.report.charts import figure_of

        return figure_of(self)
