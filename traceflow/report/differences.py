"""Two runs side by side, for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, TypeAlias

from rich.padding import Padding
from rich.text import Text

from traceflow.report.names import printable
from traceflow.report.tables import Rows, heading, left_out
from traceflow.report.units import UNKNOWN, duration_text, size_text, unit_for

if TYPE_CHECKING:
    from rich.console import RenderableType

Row: TypeAlias = Mapping[str, Any]

_VERDICTS = {
    "faster": "B is faster",
    "slower": "B is slower",
    "no difference": "No difference in step time shows",
    "different results": "B computes something else",
    "unknown": "Whether B is faster is not known",
}


def difference_parts(result: Row, top: int) -> Iterator[RenderableType]:
    """The verdict, then results, plan, figures and claims.

    Args:
        result: The `result` of `traceflow diff`.
        top: Longest tables, in rows.
    """
    yield Text("A and B are in the order of the command line.")
    yield Text(f"\n{_VERDICTS[result['verdict']]}: {_step(result['step_ns'])}", style="bold")
    yield from _claims(result["claims"])
    yield from _numerics(result["numerics"])
    yield from _plan(result["plan_changes"], result["compared_aspects"], top)
    yield from _path(result["by_kind_ns"])
    yield from _quantities(result["quantities"], top)


def _step(step: Row) -> str:
    a, b = (UNKNOWN if step[side] is None else duration_text(step[side]) for side in ("a", "b"))
    per = "from one step to the next" if step["measure"] == "period" else "a step"
    told = f"{a} against {b} {per}, median"
    if step["change_ratio"] is None:
        return told
    count = " and ".join(str(step["spread"][side]["steps"]) for side in ("a", "b"))
    told += f" of {count} steps: {step['change_ratio']:+.1%}, spread {step['spread_ratio']:.1%}"
    if step["interval_ratio"] is not None:
        low, high = step["interval_ratio"]
        told += f"; between {low:+.1%} and {high:+.1%} by ranks"
    return told


def _claims(claims: Sequence[Row]) -> Iterator[RenderableType]:
    if claims:
        yield heading("Claims")
    for claim in claims:
        yield Text(f"{claim['verdict']}: {printable(claim['claim'])}")
        for name, figures in claim["evidence"].items():
            yield Padding(Text(_evidence(name, figures)), (0, 0, 0, 4))


def _evidence(name: str, figures: Any) -> str:
    if isinstance(figures, str):
        return printable(figures, 500)
    if "median" not in figures:
        return f"{name}: {'the same' if figures['same'] else 'not the same'}"
    low, middle, high = (_text(name, figures[which]) for which in ("low", "median", "high"))
    spread = "" if low == high else f" ({low} to {high})"
    return f"{name} {middle}{spread} in {figures['steps']} steps"


def _numerics(numerics: Row | None) -> Iterator[RenderableType]:
    if numerics is None:
        return
    outputs = numerics["outputs"]
    differ = [output for output in outputs if not output["same"]]
    tolerance = f"atol {numerics['atol']:g}, rtol {numerics['rtol']:g}"
    yield heading(
        f"Results: {len(outputs) - len(differ)} of {len(outputs)} recorded outputs are the same ({tolerance})"
    )
    for output in differ:
        largest = output["largest_absolute"]
        by = "" if largest is None else f", by up to {largest:.3g}"
        yield Text(f"{printable(output['name'])}: {output['difference']}{by}")


def _plan(changes: Sequence[Row], aspects: Sequence[str], top: int) -> Iterator[RenderableType]:
    if aspects and not changes:
        yield heading(f"Plan: the same {', '.join(aspects)}")
    for aspect, rows in groupby(changes, key=lambda row: row["aspect"]):
        listed = list(rows)
        yield heading(f"Plan: {aspect}")
        cells = [(str(row["a"]), str(row["b"]), row["what"]) for row in listed[:top]]
        yield Rows(("A", "B", "name"), cells)
        yield from left_out(listed, top, "more")


def _path(by_kind: Mapping[str, Row]) -> Iterator[RenderableType]:
    rows = {kind: (row["a"], row["b"]) for kind, row in by_kind.items() if row["a"] or row["b"]}
    if not rows:
        return
    unit = unit_for(ns for row in rows.values() for ns in row)
    yield heading(f"Critical path by kind, median of steps ({unit.name})")
    yield Rows(("kind", "A", "B"), [(kind, unit.text(a), unit.text(b)) for kind, (a, b) in rows.items()])


def _quantities(quantities: Sequence[Row], top: int) -> Iterator[RenderableType]:
    """What differs by more than its spread; the path has its own table."""
    beyond = [row for row in quantities if row["significant"] and not row["name"].startswith(("path_", "window_"))]
    if not beyond:
        yield heading("No quantity differs by more than its spread")
        return
    yield heading("Differences beyond the spread")
    cells = [
        (
            *(UNKNOWN if row[side] is None else _text(row["name"], row[side]["median"]) for side in ("a", "b")),
            "" if row["change_ratio"] is None else f"{row['change_ratio']:+.1%}",
            row["name"],
        )
        for row in beyond[:top]
    ]
    yield Rows(("A", "B", "change", "name"), cells)
    yield from left_out(beyond, top, "more")


def _text(name: str, value: float) -> str:
    """A value in the unit that its name tells."""
    if name.endswith("_ns"):
        return duration_text(round(value))
    if name.endswith("_bytes"):
        return size_text(round(value))
    return f"{value:.1%}" if name.endswith("_share") else f"{value:,.6g}"
