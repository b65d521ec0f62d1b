"""Budgets: for a terminal, and as tables of a page with bars of measured time beside the bound."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, TypeAlias

from rich.text import Text

from traceflow.report.definitions import DEFINITIONS
from traceflow.report.grid import Column, Grid, Piece, bar, bars, durations, names, sizes, words
from traceflow.report.tables import Rows
from traceflow.report.units import UNKNOWN, duration_text, share_text, size_text, unit_for
from traceflow.result import Provenance

if TYPE_CHECKING:
    from rich.console import RenderableType

Row: TypeAlias = Mapping[str, Any]

MOST_OPERATIONS = 40
_PREFIXES = ((10**15, "P"), (10**12, "T"), (10**9, "G"), (10**6, "M"), (10**3, "k"))
_ONE_LINE = 60
_BOUNDS = ("compute", "memory", "link")


def budget_parts(result: Row, top: int) -> Iterator[RenderableType]:
    """The hardware, what all operations need and took, and the longest of them.

    Args:
        result: The `result` of `traceflow show budget`.
        top: Longest table, in rows.
    """
    yield Text(hardware_text(result["hardware"]))
    yield Text(total_text(result))
    operations = result["operations"]
    if not operations:
        return
    unit = unit_for(one["measured_ns"] for one in operations)
    yield Text(f"\nLongest operations ({unit.name}; a bound is the least time at peak rates)", style="bold")
    rows = [
        (
            unit.text(one["measured_ns"]),
            unit.text(largest_ns(one) if one["bound_by"] else None),
            one["bound_by"] or "",
            ratio_text(one["measured_over_bound_ratio"]),
            amount_text(one["flops"]),
            UNKNOWN if one["bytes"] is None else size_text(one["bytes"]),
            _named(one),
        )
        for one in operations[:top]
    ]
    yield Rows(("took", "bound", "by", "ratio", "FLOPs", "bytes", "name"), rows)
    if len(operations) > top:
        yield Text(f"and {len(operations) - top:,} shorter ones")


def hardware_text(hardware: Row | None) -> str:
    """What the bounds suppose, in a line."""
    if hardware is None:
        return "no hardware: what it ran on is not known, so there are no bounds"
    rates = ", ".join(f"{kind} {amount_text(rate)}FLOP/s" for kind, rate in hardware["flops_per_s"].items())
    moves = _rate("memory", hardware["memory_bytes_per_s"]), _rate("links", hardware["link_bytes_per_s"])
    return f"{hardware['name']}, {hardware['unit']}: {rates}{''.join(moves)} ({hardware['source']})"


def _rate(what: str, bytes_per_s: float | None) -> str:
    return "" if bytes_per_s is None else f"; {what} {amount_text(bytes_per_s)}B/s"


def total_text(result: Row) -> str:
    """What all operations need and took, in a line."""
    total = result["total"]
    said = [f"{duration_text(total['measured_ns'])} of work on all devices"]
    if total["bound_ns"] is not None:
        said.append(f"at least {duration_text(total['bound_ns'])} by what is known of it")
    said.append(f"{amount_text(total['counted_flops'])}FLOPs and {size_text(total['counted_bytes'])} counted")
    if total["recomputed_flops"]:
        said.append(f"{share_text(total['recomputed_flops'], total['counted_flops'])} of the FLOPs computed again")
    return ", ".join(said)


def amount_text(amount: float | None) -> str:
    """An amount with a decimal prefix.

    Example:
        >>> amount_text(2_199_023_255_552), amount_text(12), amount_text(None)
        ('2.20 T', '12 ', 'n/a')
    """
    if amount is None:
        return UNKNOWN
    factor, prefix = next(((f, p) for f, p in _PREFIXES if amount >= f), (1, ""))
    return f"{amount:.0f} " if factor == 1 else f"{amount / factor:.2f} {prefix}"


def ratio_text(ratio: float | None) -> str:
    """Measured time over its bound."""
    return UNKNOWN if ratio is None else f"{ratio:,.2f}" if ratio < 1_000 else f"{ratio:,.0f}"


def largest_ns(one: Row) -> int | None:
    """The largest of the bounds that are known."""
    known = (one[f"{which}_bound_ns"] for which in _BOUNDS)
    return max((ns for ns in known if ns is not None), default=None)


def _named(one: Row) -> str:
    again = "again: " if one["recomputed"] else ""
    return f"{again}{one['name']} {one['detail']}".rstrip()


def budget_grid(result: Row) -> Grid | None:
    """The longest operations with their bounds; None where nothing worked.

    Args:
        result: The `result` of `traceflow show budget`.
    """
    rows: Sequence[Row] = result["operations"][:MOST_OPERATIONS]
    if not rows:
        return None
    unknown = "shapes or rates are not known: see data quality"
    sent = [one["payload_bytes"] for one in rows]
    which = _BOUNDS if any(sent) else _BOUNDS[:2]
    bounds = {f"{name} bound": [one[f"{name}_bound_ns"] for one in rows] for name in which}
    took, *others = durations({"took": [one["measured_ns"] for one in rows], **bounds}, absent=unknown)
    longest = max(one["measured_ns"] for one in rows)
    left = len(result["operations"]) - len(rows)
    return Grid(
        "Operations",
        (
            names("name", [_named(one)[:_ONE_LINE] for one in rows]),
            took,
            bars("measured and bound", [_drawn(one, longest) for one in rows]),
            *(_derived(column) for column in others),
            _figures("ratio", [ratio_text(one["measured_over_bound_ratio"]) for one in rows], unknown),
            _figures("FLOPs", [amount_text(one["flops"]).strip() for one in rows], unknown),
            _derived(sizes("bytes moved", [one["bytes"] for one in rows], absent=unknown)),
            *([_derived(sizes("bytes sent", sent, absent=unknown))] if any(sent) else []),
            words("source line", [PurePosixPath(one["source"] or "").name for one in rows]),
        ),
        f"{left:,} more operations are not shown." if left > 0 else "",
    )


def _drawn(one: Row, longest_ns: int) -> tuple[Piece, ...]:
    """The bound, and what the measured time has beyond it."""
    bound_ns = min(largest_ns(one) or 0, one["measured_ns"])
    return bar([("bound", bound_ns), ("beyond", one["measured_ns"] - bound_ns)], longest_ns)


def _derived(column: Column) -> Column:
    return Column(
        column.head, column.cells, column.definition, column.form, column.unit, Provenance.DERIVED, column.absent
    )


def _figures(head: str, texts: Sequence[str], absent: str) -> Column:
    cells = tuple(None if text == UNKNOWN else text for text in texts)
    return Column(head, cells, DEFINITIONS[head], "number", "", Provenance.DERIVED, absent)
