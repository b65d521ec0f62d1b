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
    yield Text(f"\n{verdict_text(result)}", style="bold")
    yield from _claims(result["claims"])
    yield from _numerics(result["numerics"])
    yield from _plan(result["plan_changes"], result["compared_aspects"], top)
    yield from _path(result["by_kind_ns"])
    yield from _quantities(result["quantities"], top)


def verdict_text(result: Row) -> str:
    """The answer in one line: which is faster, and by how much.

    Args:
        result: The `result` of `traceflow diff`.
    """
    return f"{_VERDICTS[result['verdict']]}: {_step(result['step_ns'])}"


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
            yield Padding(Text(evidence_text(name, figures)), (0, 0, 0, 4))


def evidence_text(name: str, figures: Any) -> str:
    """One piece of the evidence for what became of a claim.

    Args:
        name: What was looked at.
        figures: Its figures, or words.
    """
    if isinstance(figures, str):
        return printable(figures, 500)
    if "median" not in figures:
        return f"{name}: {'the same' if figures['same'] else 'not the same'}"
    low, middle, high = (quantity_text(name, figures[which]) for which in ("low", "median", "high"))
    spread = "" if low == high else f" ({low} to {high})"
    return f"{name} {middle}{spread} in {figures['steps']} steps"


def _numerics(numerics: Row | None) -> Iterator[RenderableType]:
    if numerics is None:
        return
    yield heading(f"Results: {numerics_text(numerics)}")
    for output in differing(numerics):
        yield Text(f"{printable(output['name'])}: {output_text(output)}")


def numerics_text(numerics: Row) -> str:
    """How many of the recorded outputs are the same.

    Args:
        numerics: The `numerics` of the result.
    """
    outputs = numerics["outputs"]
    same = len(outputs) - len(differing(numerics))
    tolerance = f"atol {numerics['atol']:g}, rtol {numerics['rtol']:g}"
    return f"{same} of {len(outputs)} recorded outputs are the same ({tolerance})"


def differing(numerics: Row) -> list[Row]:
    """The outputs that are not the same.

    Args:
        numerics: The `numerics` of the result.
    """
    return [output for output in numerics["outputs"] if not output["same"]]


def output_text(output: Row) -> str:
    """How an output differs.

    Args:
        output: One of those that do.
    """
    largest = output["largest_absolute"]
    by = "" if largest is None else f", by up to {largest:.3g}"
    return f"{output['difference']}{by}"


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
    beyond = beyond_spread(quantities)
    if not beyond:
        yield heading("No quantity differs by more than its spread")
        return
    yield heading("Differences beyond the spread")
    cells = [
        (
            *(UNKNOWN if row[side] is None else quantity_text(row["name"], row[side]["median"]) for side in ("a", "b")),
            "" if row["change_ratio"] is None else f"{row['change_ratio']:+.1%}",
            row["name"],
        )
        for row in beyond[:top]
    ]
    yield Rows(("A", "B", "change", "name"), cells)
    yield from left_out(beyond, top, "more")


def beyond_spread(quantities: Sequence[Row]) -> list[Row]:
    """The quantities that differ by more than their spread; the path has its own table.

    Args:
        quantities: The `quantities` of the result.
    """
    return [row for row in quantities if row["significant"] and not row["name"].startswith(("path_", "window_"))]


def quantity_text(name: str, value: float) -> str:
    """A value in the unit that its name tells.

    Example:
        >>> quantity_text("live_peak_bytes", 2048), quantity_text("exposed_share", 0.125)
        ('2.0 KiB', '12.5%')
    """
    if name.endswith("_ns"):
        return duration_text(round(value))
    if name.endswith("_bytes"):
        return size_text(round(value))
    return f"{value:.1%}" if name.endswith("_share") else f"{value:,.6g}"
