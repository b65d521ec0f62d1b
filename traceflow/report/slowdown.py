"""What makes a job slow, for a terminal: its slowdown, and the parts that explain it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from heapq import nlargest
from typing import TYPE_CHECKING, Any, TypeAlias

from rich.text import Text

from traceflow.report.tables import Rows
from traceflow.report.units import UNKNOWN, TimeUnit, unit_for

if TYPE_CHECKING:
    from rich.console import RenderableType

Row: TypeAlias = Mapping[str, Any]

_LENGTHS = (
    ("measured", "measured", "from the first start to the last end"),
    ("replayed", "modelled", "without the lags that the schedule does not explain"),
    ("ideal", "modelled", "the same with typical durations"),
)
_PARTS = ("cost", "explained", "slowdown")


def slowdown_parts(result: Row, top: int) -> Iterator[RenderableType]:
    """The slowdown of a job, and what explains it.

    Args:
        result: The `result` of `traceflow show stragglers` for an operation table.
        top: Longest tables, in rows.
    """
    yield Text(f"\n{verdict(result)}", style="bold")
    unit = unit_for(result[f"{which}_ns"] for which, *_ in _LENGTHS)
    lengths = [(which, unit.text(result[f"{which}_ns"]), source, what) for which, source, what in _LENGTHS]
    yield Text(f"\nThe mean step ({unit.name})", style="bold")
    yield Rows(("step", "took", "kind", "name"), lengths)
    yield from _ranking(result["ranking"])
    yield from _nobody(result)
    yield from _table("By stage", ("stage",), result["by_stage"], top)
    yield from _table("By worker", ("rank", "dp_rank", "stage"), result["by_worker"], top)
    yield from _table("By type", (), result["by_type"], top)
    yield from _steps(result["by_step"], top)


def verdict(result: Row) -> str:
    """The slowdown in a sentence.

    Example:
        >>> verdict({"slowdown_ratio": 1.1787})
        'S = 1.179: a step takes 17.9 % longer than if all workers were alike (modelled by replay)'
    """
    ratio = result["slowdown_ratio"]
    if ratio is None:
        return f"S = {UNKNOWN}: the ideal step takes no time"
    longer = f"takes {ratio - 1:.1%}".replace("%", " %") + " longer than" if ratio > 1 else "is no longer than"
    return f"S = {ratio:.3f}: a step {longer} if all workers were alike (modelled by replay)"


def _ranking(ranking: Sequence[Row]) -> Iterator[RenderableType]:
    if not ranking:
        return
    unit = unit_for([ranking[0]["cost_ns"]])
    rows = [
        (unit.text(row["cost_ns"]), _number(row["evidence"]["explained_ratio"]), _who(row), row["cause"], row["name"])
        for row in ranking
    ]
    yield Text(f"\nTo blame ({unit.name} of a step, modelled by replay; explained = cost / excess)", style="bold")
    yield Rows(("cost", "explained", "who", "cause", "name"), rows)


def _nobody(result: Row) -> Iterator[RenderableType]:
    """Say so where workers are told and none of them is to blame."""
    told = [part for part in result["by_worker"] if part["explained_ratio"] is not None]
    if told and all(row["rank"] is None for row in result["ranking"]):
        most = max(told, key=lambda part: float(part["explained_ratio"]))
        costliest = f"the costliest, rank {most['rank']}, explains {_number(most['explained_ratio'])} of the excess"
        yield Text(f"No single worker is to blame: {costliest}.")


def _who(row: Row) -> str:
    return f"stage {row['stage']}" if row["rank"] is None else f"rank {row['rank']}"


def _table(title: str, places: tuple[str, ...], parts: Sequence[Row], top: int) -> Iterator[RenderableType]:
    """The costliest workers, stages or types."""
    shown = parts if len(parts) <= top else nlargest(top, parts, key=lambda part: int(part["cost_ns"]))
    if not shown:
        return
    typed = "type" in shown[0]
    unit = unit_for(part[key] for part in shown for key in ("cost_ns", *(("typical_ns",) if typed else ())))
    yield Text(f"\n{title} ({unit.name} of a step, modelled by replay)", style="bold")
    headings = (*places, *(("typical",) if typed else ()), *_PARTS, *(("name",) if typed else ()))
    yield Rows(headings, [_part(part, places, unit) for part in shown])
    yield from _left_out(len(parts) - len(shown), "that cost less")


def _part(part: Row, places: tuple[str, ...], unit: TimeUnit) -> tuple[str, ...]:
    where = [UNKNOWN if part[place] is None else str(part[place]) for place in places]
    figures = unit.text(part["cost_ns"]), _number(part["explained_ratio"]), _number(part["slowdown_ratio"], 3)
    return (*where, unit.text(part["typical_ns"]), *figures, part["type"]) if "type" in part else (*where, *figures)


def _steps(steps: Sequence[Row], top: int) -> Iterator[RenderableType]:
    shown = nlargest(top, steps, key=lambda step: float(step["slowdown_ratio"] or 0))
    unit = unit_for(step["measured_ns"] for step in shown)
    rows = [
        (
            str(step["step"]),
            *(unit.text(step[f"{which}_ns"]) for which, *_ in _LENGTHS),
            _number(step["slowdown_ratio"], 3),
        )
        for step in shown
    ]
    yield Text(f"\nSteps, slowest against their ideal first ({unit.name})", style="bold")
    yield Rows(("step", *(which for which, *_ in _LENGTHS), "slowdown"), rows)
    yield from _left_out(len(steps) - len(shown), "less slow")


def _left_out(count: int, which: str) -> Iterator[RenderableType]:
    if count:
        yield Text(f"and {count:,} {which}")


def _number(ratio: float | None, decimals: int = 2) -> str:
    return UNKNOWN if ratio is None else f"{ratio:.{decimals}f}"
