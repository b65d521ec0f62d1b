"""What collectives are for: the parallel dimension and the purpose of every one, by evidence and never by kernel names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from traceflow.analyzers.attribution.calls import Call, Surroundings, calls_of, replicated
from traceflow.analyzers.attribution.dimensions import described, is_expert
from traceflow.analyzers.attribution.expectations import Expectations, expectations
from traceflow.analyzers.attribution.judging import NOTHING, Judgement, axes_of, judge, names_of
from traceflow.analyzers.attribution.overlap import Passes, passes
from traceflow.analyzers.attribution.purposes import (
    GRADIENTS,
    OF_EXPERTS,
    UNKNOWN,
    Kind,
    Phase,
    Purpose,
)
from traceflow.analyzers.dependencies import Dependencies
from traceflow.program.module import Programs
from traceflow.trace.model import ABSENT, Trace

if TYPE_CHECKING:
    from traceflow.intent.mesh import Mesh
    from traceflow.intent.plan import Plan
    from traceflow.intent.routing import Routing

__all__ = ["UNKNOWN", "Attributed", "Attribution", "Kind", "Phase", "Purpose", "attribution"]


@dataclass(frozen=True, slots=True)
class Attributed:
    """One communication call: along which dimension, what for, and what tells."""

    call: Call
    dimension: str  # axes joined by x, `unknown` where nothing tells
    purpose: Purpose
    because: str

    @property
    def phase(self) -> Phase | None:
        """The pass that issued it; None where nothing tells."""
        return self.call.phase


@dataclass(frozen=True, slots=True)
class Attribution:
    """One entry per row of `Trace.communications`, and what kinds of computation the events of the trace are."""

    calls: tuple[Attributed, ...]
    passes: Passes

    @property
    def unknown(self) -> Mapping[str, int]:
        """How many calls have no purpose, by reason."""
        return Counter(call.because for call in self.calls if call.purpose is Purpose.UNKNOWN)


def attribution(
    trace: Trace,
    found: Dependencies,
    plan: Plan | None = None,
    routing: Routing | None = None,
    *,
    programs: Programs | None = None,
    meshes: Mapping[int, Mesh] | None = None,
) -> Attribution:
    """Tell the parallel dimension and the purpose of every communication call.

    Evidence, the strongest first: annotations and scopes around what issued a call; the splits that the routing record
    foretells; whether autograd accumulates gradients there; a payload of a few numbers, or one of the plan; the group,
    on the meshes of the plan, of the record or of the program, or by what the program calls it. Passes are those of
    autograd. All calls of one collective are for the same; where they disagree, nothing is told.

    Args:
        trace: The evidence.
        found: Its dependencies.
        plan: The plan that the run was to follow.
        routing: The routing record of the run.
        programs: Compiled programs of XLA, for the scopes of their instructions.
        meshes: The user's own meshes, by program.

    Example:
        >>> from traceflow.analyzers.attribution.purposes import Kind, kind_of_operation
        >>> kind_of_operation("all-gather") is Kind.ALL_GATHER
        True
    """
    expected = expectations(plan, routing, meshes or {})
    around = Surroundings(trace, found, programs or {})
    calls = calls_of(around)
    judged = _agreed(calls, judge(calls, expected), found)
    dimensions = _dimensions(calls, judged, expected, copies=replicated(trace))
    return Attribution(
        tuple(
            Attributed(call, dimension, one.purpose, one.because)
            for call, one, dimension in zip(calls, judged, dimensions, strict=True)
        ),
        passes(around),
    )


def _agreed(calls: Sequence[Call], judged: Sequence[Judgement], found: Dependencies) -> list[Judgement]:
    """One purpose for all calls of a collective: what some know is so for those that do not."""
    together: dict[int, list[int]] = {}
    for call in calls:
        if (instance := int(found.matches.instance[call.row])) != ABSENT:
            together.setdefault(instance, []).append(call.row)
    agreed = list(judged)
    for rows in together.values():
        known = {judged[row].purpose: judged[row] for row in rows if judged[row].purpose is not Purpose.UNKNOWN}
        if len(known) == 1:
            one = next(iter(known.values()))
            for row in rows:
                agreed[row] = judged[row] if judged[row].purpose is one.purpose else one
        elif known:
            conflict = Judgement(Purpose.UNKNOWN, "its participants disagree: " + ", ".join(sorted(known)))
            for row in rows:
                agreed[row] = conflict
    return agreed


_BY_DEFINITION: Mapping[Purpose, str] = {
    Purpose.DISPATCH: "EP",
    Purpose.COMBINE: "EP",
    Purpose.ETP_GATHER: "ETP",
    Purpose.ETP_SCATTER: "ETP",
    Purpose.EXPERT_GRADIENT: "EDP",
    Purpose.DENSE_GRADIENT: "DP",
    Purpose.PARAMETER_GATHER: "DP",
    Purpose.CONTEXT: "CP",
    Purpose.BOUNDARY: "PP",
}
"""The dimension along which such a collective works, where nothing else names its group."""


_OF_COPIES = GRADIENTS | {Purpose.PARAMETER_GATHER}


def _dimensions(
    calls: Sequence[Call],
    judged: Sequence[Judgement],
    expected: Expectations,
    *,
    copies: bool,
) -> list[str]:
    known: dict[object, str | None] = {}  # calls in which none of this differs are asked about once
    told = []
    for call, one in zip(calls, judged, strict=True):
        key = id(call.group), call.program, call.kind, one.purpose, one.because
        if key not in known:
            known[key] = _named(call, one, expected) or _by_definition(call, one, expected, copies=copies)
        told.append(known[key])
    learned = {
        call.members: name
        for name, call, one in zip(told, calls, judged, strict=True)
        if name and one.purpose in _OF_COPIES and call.members and not is_expert(name)
    }
    return [
        name or (learned.get(call.members) if one.purpose not in OF_EXPERTS else None) or UNKNOWN
        for name, call, one in zip(told, calls, judged, strict=True)
    ]


def _named(call: Call, judged: Judgement, expected: Expectations) -> str | None:
    """What the group is called on the mesh that the purpose is about."""
    if axes := axes_of(call, expected):
        return axes
    names = names_of(call, expected)
    if judged.purpose is Purpose.UNKNOWN or (described(call.group) and not expected.has_plan):
        return next(iter(names)) if len(names) == 1 else None
    if judged.purpose is Purpose.PARAMETER_GATHER:
        names &= {"DP", "DPxCP", "EDP", "GTP", "EGTP"}
        return next(iter(names)) if len(names) == 1 else None
    gathered_counts = judged.purpose is Purpose.ROUTER_STATISTICS and call.kind is Kind.ALL_GATHER
    of_experts = judged.purpose in OF_EXPERTS or gathered_counts
    fitting = [name for name in names if is_expert(name) == of_experts]
    return fitting[0] if fitting else None


def _by_definition(call: Call, judged: Judgement, expected: Expectations, *, copies: bool) -> str | None:
    """The dimension that a purpose implies; none where the group is known and the plan has another name for it."""
    name = _BY_DEFINITION.get(judged.purpose)
    if name is None or (expected.has_plan and call.members):
        return None
    known = name != "DP" or bool(call.members) or copies
    return name if known and judged.because != NOTHING else None
