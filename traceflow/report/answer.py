"""The answer to a query, for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from rich.text import Text

from traceflow.report.names import printable
from traceflow.report.tables import left_out, printed, ruled

if TYPE_CHECKING:
    from rich.console import RenderableType

_NARROWEST, _GAP = 12, 2


class Answer(Protocol):
    """Rows that were found."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns."""

    @property
    def is_number(self) -> tuple[bool, ...]:
        """Which of them hold numbers."""

    @property
    def rows(self) -> tuple[tuple[Any, ...], ...]:
        """Their values."""


def answer_text(answer: Answer, *, top: int, width: int, color: bool) -> str:
    """The first rows as a table: numbers stand to the right and are never cut, other columns give way.

    Columns for which there is no room are named below.

    Args:
        answer: The rows.
        top: Most rows.
        width: Characters of a line.
        color: Whether to use terminal escapes.
    """
    return printed(_parts(answer, top, width), width=width, color=color)


def _parts(answer: Answer, top: int, width: int) -> Iterator[RenderableType]:
    cells = [answer.columns, *(tuple(map(_cell, row)) for row in answer.rows[:top])]
    widths = _widths([max(map(len, column)) for column in zip(*cells, strict=True)], answer.is_number, width)
    table = ruled()
    for name, number, limit in zip(answer.columns, answer.is_number, widths, strict=False):
        table.add_column(Text(printable(name, limit)), justify="right" if number else "left", no_wrap=True)
    for row in cells[1:]:
        table.add_row(*(Text(printable(cell, limit)) for cell, limit in zip(row, widths, strict=False)))
    yield table
    yield from left_out(answer.rows, top, "more rows")
    if len(widths) < len(answer.columns):
        yield Text(f"without {', '.join(map(printable, answer.columns[len(widths) :]))}: the line is too short")


def _cell(value: object) -> str:
    return "" if value is None else str(value)


def _widths(needed: Sequence[int], is_number: Sequence[bool], width: int) -> list[int]:
    """Characters of each column from the left, of as many as fit; the longest texts give way first.

    Example:
        >>> _widths([30, 10, 6], [False, False, True], 40), _widths([10, 20, 20], [True] * 3, 40)
        ([20, 10, 6], [10, 20])
    """
    widths = list(needed)
    while sum(widths) + _GAP * (len(widths) - 1) > width and len(widths) > 1:
        longest = max((i for i in range(len(widths)) if not is_number[i]), key=widths.__getitem__, default=0)
        if is_number[longest] or widths[longest] <= _NARROWEST:
            widths.pop()
        else:
            widths[longest] -= 1
    return widths
