"""What a page says of two runs side by side: the answer, the claims, and what differs in results, plan and figures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from traceflow.report.differences import (
    beyond_spread,
    differing,
    evidence_text,
    numerics_text,
    output_text,
    quantity_text,
    verdict_text,
)
from traceflow.report.grid import Column, Grid, durations, names, prose, words
from traceflow.report.names import figure_called, printable
from traceflow.report.sections import left_out

Row: TypeAlias = Mapping[str, Any]

_MOST_ROWS = 40
_NOT_COMPARED = "Results are not compared, because outputs of both runs were not recorded."


@dataclass(frozen=True, slots=True)
class Claimed:
    """What was said to have changed, what became of it, and why."""

    claim: str
    verdict: str
    evidence: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DifferenceSection:
    """Everything that a page says of two runs together."""

    sentence: str
    evidence: str  # how good it is
    claims: tuple[Claimed, ...]
    results: str
    plan: str
    grids: tuple[Grid, ...]
    findings: tuple[Row, ...]


def difference_section(document: Row) -> DifferenceSection:
    """The section on two runs.

    Args:
        document: What `traceflow diff --format json` prints.
    """
    result = document["result"]
    compared, changes = result["compared_aspects"], result["plan_changes"]
    return DifferenceSection(
        sentence=verdict_text(result),
        evidence=document["data_quality"]["verdict"],
        claims=tuple(_claimed(claim) for claim in result["claims"]),
        results=_NOT_COMPARED if result["numerics"] is None else f"{numerics_text(result['numerics'])}.",
        plan=f"The plan is the same in {', '.join(compared)}." if compared and not changes else "",
        grids=(
            *_outputs(result["numerics"]),
            *_plan(changes),
            *_path(result["by_kind_ns"]),
            *_quantities(result["quantities"]),
            *_missing(document["skipped"]),
        ),
        findings=tuple(document["findings"]),
    )


def _claimed(claim: Row) -> Claimed:
    told = tuple(evidence_text(name, figures) for name, figures in claim["evidence"].items())
    return Claimed(printable(claim["claim"]), claim["verdict"], told)


def _outputs(numerics: Row | None) -> Iterator[Grid]:
    rows = [] if numerics is None else differing(numerics)
    if rows:
        shown = rows[:_MOST_ROWS]
        columns = names("output", [row["name"] for row in shown]), prose("how", [output_text(row) for row in shown])
        yield Grid("Results that differ", columns, left_out(len(rows), len(shown), "outputs"))


def _plan(changes: Sequence[Row]) -> Iterator[Grid]:
    if changes:
        shown = changes[:_MOST_ROWS]
        yield Grid(
            "What changed in the plan",
            (
                words("aspect", [row["aspect"] for row in shown]),
                names("what", [row["what"] for row in shown]),
                words("in A", [str(row["a"]) for row in shown]),
                words("in B", [str(row["b"]) for row in shown]),
            ),
            left_out(len(changes), len(shown), "changes"),
        )


def _path(by_kind: Mapping[str, Row]) -> Iterator[Grid]:
    rows = {kind: row for kind, row in by_kind.items() if row["a"] or row["b"]}
    if rows:
        both = durations({f"in {side.upper()}": [row[side] for row in rows.values()] for side in "ab"}, absent=_ABSENT)
        yield Grid("Critical path by kind, median of steps", (words("kind", list(rows)), *map(_measured, both)))


_ABSENT = "a run has no path, as its own section says"


def _measured(column: Column) -> Column:
    return replace(column, definition="Median of the steps that were looked at, at most 15.")


def _quantities(quantities: Sequence[Row]) -> Iterator[Grid]:
    rows = beyond_spread(quantities)
    if not rows:
        return
    shown = rows[:_MOST_ROWS]
    yield Grid(
        "Differences beyond the spread",
        (
            names("quantity", [row["name"] for row in shown]),
            *(words(f"in {side.upper()}", [_median(row, side) for row in shown]) for side in "ab"),
            words("change", ["" if row["change_ratio"] is None else f"{row['change_ratio']:+.1%}" for row in shown]),
            words("provenance", [row["provenance"] or "" for row in shown]),
        ),
        left_out(len(rows), len(shown), "quantities"),
    )


def _median(row: Row, side: str) -> str:
    return "not available" if row[side] is None else quantity_text(row["name"], row[side]["median"])


def _missing(skipped: Sequence[Row]) -> Iterator[Grid]:
    if skipped:
        columns = (
            prose("figure", [figure_called(gap["what"]) for gap in skipped]),
            prose("reason", [gap["reason"] for gap in skipped]),
        )
        yield Grid("Not available", columns)
