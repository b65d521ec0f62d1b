"""Tables of a page: every column says what its numbers mean, in which unit, and where they come from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TypeAlias

from traceflow.report.definitions import DEFINITIONS
from traceflow.report.names import printable
from traceflow.report.units import TimeUnit, size_text, unit_for
from traceflow.result import Provenance


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of a bar: position and width in percent of the whole."""

    kind: str
    left: float
    width: float
    label: str


@dataclass(frozen=True, slots=True)
class Jump:
    """A stretch of the timeline that a row speaks of, in ns from the start of the window."""

    start_ns: int
    length_ns: int


_UNITS = ((10**9, "s"), (10**6, "ms"), (10**3, "µs"))

Cell: TypeAlias = "str | Jump | tuple[Piece, ...] | None"


@dataclass(frozen=True, slots=True)
class Column:
    """A column; a None cell is a quantity that could not be established, for the reason in `absent`."""

    head: str
    cells: tuple[Cell, ...]
    definition: str
    form: str = "text"  # text, prose, brief, name, lane, number, bar, jump
    unit: str = ""
    provenance: Provenance | None = None
    absent: str = ""


@dataclass(frozen=True, slots=True)
class Grid:
    """A table with its title; `more` says what was left out."""

    title: str
    columns: tuple[Column, ...]
    more: str = ""

    @property
    def shown(self) -> tuple[Column, ...]:
        """The columns that hold something; of the others only the reason is told."""
        return tuple(column for column in self.columns if any(column.cells))

    @property
    def rows(self) -> list[tuple[Cell, ...]]:
        """The cells of the shown columns by row."""
        return list(zip(*(column.cells for column in self.shown), strict=True))

    @property
    def gaps(self) -> dict[str, list[str]]:
        """The headings of columns with unknown cells, by reason."""
        gaps: dict[str, list[str]] = {}
        for column in self.columns:
            if column.form == "number" and None in column.cells:
                gaps.setdefault(column.absent, []).append(column.head)
        return gaps


def duration(ns: int) -> str:
    r"""One duration in running text, with four significant digits.

    Example:
        >>> duration(12_858_400), duration(850), duration(0)
        ('12.86\xa0ms', '850\xa0ns', '0\xa0ns')
    """
    factor, unit = next(((f, u) for f, u in _UNITS if abs(ns) >= f), (1, "ns"))
    number = f"{ns:d}" if factor == 1 else f"{ns / factor:#.4g}".removesuffix(".")
    return f"{number}\u00a0{unit}"


def percent(part: float) -> str:
    r"""A share in percent, with one decimal; what is small is not rounded to nothing.

    Example:
        >>> percent(0.3349), percent(0.0002)
        ('33.5\xa0%', '< 0.1\xa0%')
    """
    return "< 0.1\u00a0%" if 0 < part < 0.0005 else f"{100 * part:.1f}\u00a0%"


def times(head: str, values_ns: Sequence[int | None], *, unit: TimeUnit | None = None, absent: str = "") -> Column:
    """A column of durations; its definition is that of its heading.

    Args:
        head: Its heading, one of the defined words.
        values_ns: The durations.
        unit: Their unit; one that suits the largest where None.
        absent: Why some are None.
    """
    unit = unit or unit_for(values_ns)
    cells = tuple(None if ns is None else unit.text(ns) for ns in values_ns)
    return Column(head, cells, DEFINITIONS[head], "number", unit.name.replace("us", "µs"), Provenance.MEASURED, absent)


def durations(columns: Mapping[str, Sequence[int | None]], *, absent: str = "") -> list[Column]:
    """Columns of durations that can be compared, because they have one unit."""
    unit = unit_for(chain.from_iterable(columns.values()))
    return [times(head, values_ns, unit=unit, absent=absent) for head, values_ns in columns.items()]


def sizes(head: str, values_bytes: Sequence[int | None], *, absent: str = "") -> Column:
    """A column of amounts of data in one unit."""
    unit = size_text(max((v for v in values_bytes if v is not None), default=0)).split()[1]
    factor = 1024 ** ("B", "KiB", "MiB", "GiB", "TiB").index(unit)
    cells = tuple(None if v is None else f"{v / factor:,.{3 if factor > 1 else 0}f}" for v in values_bytes)
    return Column(head, cells, DEFINITIONS[head], "number", unit, Provenance.MEASURED, absent)


def counts(head: str, values: Sequence[int]) -> Column:
    """A column of whole numbers of things."""
    return Column(head, tuple(f"{v:,}" for v in values), DEFINITIONS[head], "number", "count", Provenance.MEASURED)


def percents(head: str, values_share: Sequence[float | None], *, absent: str = "") -> Column:
    """A column of shares, with one decimal."""
    cells = tuple(None if v is None else percent(v).removesuffix("\u00a0%") for v in values_share)
    return Column(head, cells, DEFINITIONS[head], "number", "%", Provenance.MEASURED, absent)


def words(head: str, values: Sequence[str]) -> Column:
    """A column of text of the report's own."""
    return Column(head, tuple(values), DEFINITIONS[head])


def prose(head: str, values: Sequence[str]) -> Column:
    """A column of sentences, which may take several lines."""
    return Column(head, tuple(printable(v, 2000) for v in values), DEFINITIONS[head], "prose")


def briefly(head: str, values: Sequence[str]) -> Column:
    """A column of long descriptions, of which two lines show."""
    return replace(prose(head, values), form="brief")


def names(head: str, values: Sequence[str]) -> Column:
    """A column of names from the trace."""
    return Column(head, tuple(printable(v, 400) for v in values), DEFINITIONS[head], "name")


def lanes(values: Sequence[str]) -> Column:
    """A column of lanes, which take one line each; lanes often differ only at their ends."""
    return Column("lane", tuple(printable(v, 28) for v in values), DEFINITIONS["lane"], "lane")


def bars(head: str, values: Sequence[tuple[Piece, ...]]) -> Column:
    """A column of bars."""
    return Column(head, tuple(values), DEFINITIONS[head], "bar")


def jumps(values: Sequence[Jump]) -> Column:
    """A column of links into the timeline."""
    return Column("timeline", tuple(values), DEFINITIONS["timeline"], "jump")


def bar(parts: Sequence[tuple[str, int]], whole: int) -> tuple[Piece, ...]:
    """A stacked bar of the given parts of a whole, in order; parts without size are left out.

    Example:
        >>> [(p.kind, p.left, p.width) for p in bar([("compute", 3), ("idle", 0), ("host", 1)], 4)]
        [('compute', 0.0, 75.0), ('host', 75.0, 25.0)]
    """
    pieces, left = [], 0
    for kind, part in parts:
        if part > 0 and whole > 0:
            pieces.append(
                Piece(kind, _percent(left, whole), _percent(part, whole), f"{kind} {100 * part / whole:.1f} %")
            )
        left += part
    return tuple(pieces)


def _percent(part: int, whole: int) -> float:
    return round(100 * part / whole, 3)
