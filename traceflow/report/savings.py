"""What would shorten a window, for a terminal: what one change does, what-ifs by what they save, and the best cases."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from rich.text import Text

from traceflow.report.tables import Rows
from traceflow.report.units import duration_text, share_text, unit_for

if TYPE_CHECKING:
    from rich.console import RenderableType

Row: TypeAlias = Mapping[str, Any]

_LENGTHS = {"would take": "predicted_ns", "at least": "low_ns", "at most": "high_ns", "saves": "saved_ns"}


def savings_parts(result: Row, top: int) -> Iterator[RenderableType]:
    """The what-ifs that save most, and how short the window would be at best.

    Args:
        result: The `result` of `traceflow show savings`.
        top: Longest tables, in rows.
    """
    rows = result["savings"][:top]
    unit = unit_for(row["saved_ns"] for row in rows)
    yield Text(f"\nWhat would shorten it most ({unit.name}, modelled by replay; each stands alone)", style="bold")
    saved = [(row["saved_ns"], _sure(row), row["title"]) for row in rows]
    cells = [(unit.text(ns), share_text(ns, result["baseline_ns"]), sure, f"if {title}") for ns, sure, title in saved]
    yield Rows(("saves", "share", "kind", "name"), cells)
    if result["spread_ns"] is not None:
        yield Text(f"Steps differ by {duration_text(result['spread_ns'])}: a smaller saving may not show")
    yield from _best_cases(result["best_cases"])


def effect_parts(result: Row) -> Iterator[RenderableType]:
    """What was measured, what is predicted, and how sure that is.

    Args:
        result: The `result` of `traceflow what-if`.
    """
    baseline_ns, predicted_ns, saved_ns = (result[key] for key in ("baseline_ns", "predicted_ns", "saved_ns"))
    verb, changed_ns = ("costs", -saved_ns) if saved_ns < 0 else ("saves", saved_ns)
    sure = "exact" if result["exact"] else "a bound: a latency may have been hidden"
    unit = unit_for([baseline_ns, predicted_ns])
    yield Text(f"\nmeasured  {unit.text(baseline_ns):>10} {unit.name}")
    yield Text(f"predicted {unit.text(predicted_ns):>10} {unit.name} by replay, {sure}")
    if not result["exact"] and result["low_ns"] is not None:
        yield Text(f"between   {unit.text(result['low_ns']):>10} and {unit.text(result['high_ns'])} {unit.name}")
    yield Text(
        f"{verb}     {unit.text(changed_ns):>10} {unit.name}, {share_text(changed_ns, baseline_ns)}", style="bold"
    )


def _best_cases(cases: Sequence[Row]) -> Iterator[RenderableType]:
    """How short the window would be, and between which lengths that is certain."""
    unit = unit_for(abs(case[key]) for case in cases for key in _LENGTHS.values() if case[key] is not None)
    yield Text(f"\nAt best ({unit.name}, modelled by replay)", style="bold")
    rows = [
        (*(unit.text(case[key]) for key in _LENGTHS.values()), _sure(case), f"with {case['title']}") for case in cases
    ]
    yield Rows((*_LENGTHS, "kind", "name"), rows)


def _sure(row: Row) -> str:
    return "exact" if row["exact"] else "bound"
