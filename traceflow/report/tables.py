"""Tables for a terminal: figures stand to the right and are never cut, names take what room is left."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass
from io import StringIO
from typing import TYPE_CHECKING

from rich.box import Box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from traceflow.report.names import printable, printable_lines

if TYPE_CHECKING:
    from rich.console import ConsoleOptions, JustifyMethod, RenderableType

_RULED = Box("    \n    \n -- \n    \n    \n    \n    \n    \n", ascii=True)
_GAP = 2  # between columns: one of padding, one that the box adds
_NARROWEST = 12
_WORDS = frozenset({"form", "kind", "name"})


@dataclass(frozen=True, slots=True)
class Rows:
    """A table as wide as the console; the last column is shortened in its middle where a row would not fit.

    Args:
        headings: One per column; those in `_WORDS` stand to the left.
        rows: As many cells each.
    """

    headings: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Table]:
        del console
        cells = [[printable(cell) for cell in row] for row in (self.headings, *self.rows)]
        taken = sum(max(map(len, column)) + _GAP for column in list(zip(*cells, strict=True))[:-1])
        room = max(options.max_width - taken, _NARROWEST)
        table = ruled()
        for heading, limit in zip(self.headings, [*[None] * (len(self.headings) - 1), room], strict=True):
            justify: JustifyMethod = "left" if heading in _WORDS else "right"
            table.add_column(Text(heading), justify=justify, no_wrap=True, max_width=limit)
        for *row, name in cells[1:]:
            table.add_row(*map(Text, row), Text(printable(name, room)))
        yield table


def ruled() -> Table:
    """An empty table with a rule below its headings."""
    return Table(box=_RULED, show_edge=False, pad_edge=False, padding=(0, _GAP - 1, 0, 0), header_style="bold")


def printed(parts: Iterable[RenderableType], *, width: int, color: bool) -> str:
    """What rich makes of some parts, without spaces at the ends of lines.

    Args:
        parts: Texts and tables.
        width: Characters of a line.
        color: Whether styles become terminal escapes.
    """
    # Within Jupyter, rich would show what it is to write to the file.
    console = Console(
        file=(text := StringIO()), width=width, force_terminal=color, force_jupyter=False, highlight=False
    )
    for part in parts:
        console.print(_safe(part))
    return "".join(f"{line.rstrip()}\n" for line in text.getvalue().splitlines())


def _safe(part: RenderableType) -> RenderableType:
    """A part in which no name that somebody else chose can give the terminal a command; tables see to theirs."""
    if isinstance(part, Padding):
        return Padding(_safe(part.renderable), (part.top, part.right, part.bottom, part.left))
    if not isinstance(part, Text) or (shown := printable_lines(part.plain)) == part.plain:
        return part
    return Text(shown, style=part.style)


def heading(text: str) -> Text:
    """What stands above a table."""
    return Text(f"\n{text}", style="bold")


def left_out(rows: Sized, top: int, what: str) -> Iterator[Text]:
    """How many rows a table of `top` rows leaves out, and what they are; nothing where it leaves out none."""
    if len(rows) > top:
        yield Text(f"and {len(rows) - top:,} {what}")
