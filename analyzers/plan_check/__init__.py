"""A parallel plan against a trace: groups, payloads, how often, and shapes; what agrees, and what differs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from traceflow.analyzers.attribution import Attributed, Attribution
from traceflow.analyzers.plan_check.amounts import amounts
from traceflow.analyzers.plan_check.groups import groups, ranks
from traceflow.analyzers.plan_check.result import PlanCheck, Row, Subject
from traceflow.analyzers.plan_check.shapes import products
from traceflow.analyzers.window import NO_STEP
from traceflow.result import Finding, Json, Provenance, Severity, Skipped
from traceflow.trace.model import Trace

if TYPE_CHECKING:
    from traceflow.intent.plan import Plan

__all__ = ["PlanCheck", "Row", "Subject", "plan_check"]

_CODES = {
    Subject.RANKS: "TF254",
    Subject.GROUPS: "TF254",
    Subject.PAYLOAD: "TF255",
    Subject.COUNT: "TF256",
    Subject.SHAPE: "TF257",
}
_SUGGESTIONS = {
    "TF254": "compare sizes and order of ranks with what the program was started with",
    "TF255": "compare batch, widths, number types and the dispatcher",
    "TF256": "look for recomputation, layers that are left out, and collectives that nobody meant",
    "TF257": "compare batch and widths",
}


def plan_check(trace: Trace, attributed: Attribution, plan: Plan) -> PlanCheck:
    """Compare what a plan leads one to expect with what the marked steps of a trace hold.

    - Ranks: as many as the plan has.
    - Groups: whoever communicates for a purpose is one of the groups that the plan has for it.
    - Payload: bytes that a rank puts into each collective; where the router decides, the mean over all ranks, which is
      that of a balanced router where no row is added or dropped; of gradients and parameters, the sum of a step.
    - Count: how often a rank takes part in a step: layers of its stage times micro-batches.
    - Shapes: rows of the products whose matrix the plan knows.

    Without a model, groups alone can be compared. Without marks of steps, nothing is counted per step.

    Args:
        trace: The evidence.
        attributed: What its collectives are for, by the same plan.
        plan: The plan.
    """
    calls = [call for call in attributed.calls if call.call.step != NO_STEP] or list(attributed.calls)
    rows = tuple(
        row
        for part in (
            ranks(trace, plan),
            groups(calls, plan),
            amounts(calls, plan, _steps(trace, calls)),
            products(trace, plan),
        )
        for row in part
    )
    return PlanCheck(rows=rows, findings=tuple(_findings(rows)), skipped=tuple(_skipped(rows, plan)))


def _steps(trace: Trace, calls: Sequence[Attributed]) -> frozenset[tuple[int, int]]:
    """Rank and number of every step that is marked."""
    marked = set(zip(trace.marks.rank.tolist(), trace.marks.step.tolist(), strict=True))
    return frozenset(marked & {(call.call.participant[0], call.call.step) for call in calls} if marked else set())


def _findings(rows: Iterable[Row]) -> Iterable[Finding]:
    for row in rows:
        if row.agrees is False:
            code = _CODES[row.subject]
            evidence: dict[str, Json] = {"name": row.name, "planned": row.planned, "observed": row.observed}
            yield Finding(
                code=code,
                severity=Severity.WARNING,
                title=f"{row.label}: planned {row.planned_text}, observed {row.observed_text}",
                provenance=Provenance.DERIVED,
                suggestion=_SUGGESTIONS[code],
                evidence=evidence,
            )


def _skipped(rows: Sequence[Row], plan: Plan) -> Iterable[Skipped]:
    if not plan.payload:
        reason = next(
            (s.reason for s in plan.skipped if s.what == "/result/payload"), "no collective follows from the plan"
        )
        yield Skipped("/result/rows", f"payloads, counts and shapes were not compared: {reason}")
    for reason, count in Counter(row.reason for row in rows if row.agrees is None).items():
        yield Skipped("/result/rows/*/agrees", f"of {count} of {len(rows)} rows: {reason}")
