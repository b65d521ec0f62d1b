"""A plan against a trace, for a terminal: what differs first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from rich.text import Text

from traceflow.report.tables import Rows, heading, left_out
from traceflow.report.units import UNKNOWN

if TYPE_CHECKING:
    from rich.console import RenderableType

Row: TypeAlias = Mapping[str, Any]

_VERDICTS = {False: "differs", None: UNKNOWN, True: "agrees"}
_MOST = 34  # characters of a value


def plan_check_parts(result: Row, top: int) -> Iterator[RenderableType]:
    """How much agrees, and every row with both values.

    Args:
        result: The `result` of `traceflow plan check`.
        top: Longest tables, in rows.
    """
    counts = ((result["agreements"], "agree"), (result["differences"], "differ"), (result["unknown"], "cannot be told"))
    yield Text(", ".join(f"{count:,} {what}" for count, what in counts))
    order = list(_VERDICTS)
    rows = sorted(result["rows"], key=lambda row: order.index(row["agrees"]))
    if rows:
        yield heading("Plan against trace (payloads in bytes)")
        yield Rows(("verdict", "subject", "planned", "observed", "name"), [_cells(row) for row in rows[:top]])
        yield from left_out(rows, top, "rows that agree" if result["differences"] <= top else "rows")


def _cells(row: Row) -> tuple[str, ...]:
    return (
        _VERDICTS[row["agrees"]],
        row["subject"],
        value_text(row["planned"]),
        value_text(row["observed"]),
        row_called(row),
    )


def row_called(row: Row) -> str:
    """What a row is about, with direction and dimension.

    Example:
        >>> row_called({"name": "expert_dispatch", "direction": "forward", "dimension": "ep"})
        'expert dispatch forward, ep'
    """
    name = " ".join(filter(None, (row["name"].replace("_", " "), row["direction"])))
    return name + (f", {row['dimension']}" if row["dimension"] else "")


def value_text(value: Any) -> str:
    """A number, or a list without the brackets around a single member, shortened where it is long.

    Example:
        >>> value_text([1024]), value_text([[0, 1], [2, 3]]), value_text(None)
        ('1,024', '[0, 1] [2, 3]', 'n/a')
    """
    if value is None:
        return UNKNOWN
    if isinstance(value, int):
        return f"{value:,}"
    nested = any(isinstance(member, list) for member in value)
    text = (" " if nested else ", ").join(str(member) if nested else f"{member:,}" for member in value) or "none"
    return text if len(text) <= _MOST else f"{text[: _MOST - 3]}..."
