"""What collectives are for: the parallel dimension and the purpose of every one, by evidence and never by kernel names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from traceflow.analyzers.attribution.calls import Call, Surroundings, calls_of, replicated
from traceflow.analyzers.attribution.dimensions import described, is_expert
from traceflow.analyzers.attribution.expectations import Expectations, expectations
from traceflow.analyzers.attribution.judging import NOTHING, Answers, Judgement, axes_of, judge, names_of
from traceflow.analyzers.attribution.overlap import Passes, passes
from traceflow.analyzers.attribution.purposes import (
    GRADIENTS,
    OF_EXPERTS,
    UNKNOWN,
    Kind,
    Phase,
    Purpose,
)
from traceflow.trace.model import ABSENT, Int32, Trace

if TYPE_CHECKING:
    from traceflow.analyzers.dependencies import Dependencies
    from traceflow.intent.mesh import Mesh
    from traceflow.intent.plan import Plan
    from traceflow.intent.routing import Routing
    from traceflow.program.module import Programs

__all__ = ["UNKNOWN", "Attributed", "Attribution", "Kind", "Phase", "Purpose", "attribution"]


@dataclass(frozen=True, slots=True)
class Attributed:
    """Communication calls: along which dimension, what for, and what tells."""

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
    """One entry per row of `Trace.communications`, and what kinds of computation the events of the trace are.

    Rows for which everything is the same share one entry.
    """

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
    answers = judge(calls_of(around), expected)
    _agree(answers, found.matches.instance)
    dimensions = _dimensions(answers, expected, copies=replicated(trace))
    each = {
        place: Attributed(answers.calls.each[call], dimensions[place], judged.purpose, judged.because)
        for place, (call, judged) in enumerate(answers.each)
        if place in dimensions
    }
    return Attribution(tuple(each[place] for place in answers.of.tolist()), passes(around))


def _agree(answers: Answers, instance: Int32) -> None:
    """One purpose for all calls of a collective: what some know is so for those that do not."""
    purposes = [judged.purpose for _, judged in answers.each]
    purpose = np.array([purposes.index(one) for one in purposes] or [ABSENT])[answers.of]
    some = np.full(int(instance.max(initial=ABSENT)) + 1, ABSENT)
    some[instance[instance >= 0]] = purpose[instance >= 0]
    differs = (instance >= 0) & (some[instance] != purpose) if len(some) else np.zeros(len(instance), bool)
    together: dict[int, list[int]] = {}
    for row in np.flatnonzero(np.isin(instance, instance[differs])).tolist():
        together.setdefault(int(instance[row]), []).append(row)
    for rows in together.values():
        known = {(one := answers.judged(row)).purpose: one for row in rows}
        known.pop(Purpose.UNKNOWN, None)
        conflict = Judgement(Purpose.UNKNOWN, "its participants disagree: " + ", ".join(sorted(known)))
        one = next(iter(known.values())) if len(known) == 1 else conflict
        for row in rows:
            if len(known) > 1 or answers.judged(row).purpose is not one.purpose:
                answers.change(row, one)


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


def _dimensions(answers: Answers, expected: Expectations, *, copies: bool) -> dict[int, str]:
    """Along which dimension the calls of each answer work, that is given, by its place."""
    known: dict[object, str | None] = {}  # calls in which none of this differs are asked about once
    told: dict[int, str | None] = {}
    learned: dict[frozenset[int], str] = {}
    for place in answers.given():
        call, one = answers.calls.each[answers.each[place][0]], answers.each[place][1]
        key = id(call.group), call.program, call.kind, one.purpose, one.because
        if key not in known:
            known[key] = _named(call, one, expected) or _by_definition(call, one, expected, copies=copies)
        told[place] = name = known[key]
        if name and one.purpose in _OF_COPIES and call.members and not is_expert(name):
            learned[call.members] = name
    return {place: name or _learned(answers, place, learned) or UNKNOWN for place, name in told.items()}


def _learned(answers: Answers, place: int, learned: Mapping[frozenset[int], str]) -> str | None:
    """What other calls tell of the group."""
    call, one = answers.each[place]
    return None if one.purpose in OF_EXPERTS else learned.get(answers.calls.each[call].members)


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
