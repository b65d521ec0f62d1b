"""Whether those who communicate are the groups of the plan."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from traceflow.analyzers.attribution import Attributed, Kind, Purpose
from traceflow.analyzers.plan_check.result import Row, Subject
from traceflow.trace.model import Trace

if TYPE_CHECKING:
    from traceflow.intent.plan import ParallelPlan, Plan
    from traceflow.result import Json

_GROUPS: Mapping[Purpose, tuple[str, ...]] = {
    Purpose.DISPATCH: ("EP", "ETPxEP"),
    Purpose.COMBINE: ("EP", "ETPxEP"),
    Purpose.ETP_GATHER: ("ETP",),
    Purpose.ETP_SCATTER: ("ETP",),
    Purpose.ROUTER_STATISTICS: ("ETPxEP", "TPxCP", "TPxDPxCP"),
    Purpose.PARAMETER_GATHER: ("DPxCP", "DP", "EDP", "GTP", "EGTP"),
    Purpose.DENSE_GRADIENT: ("DPxCP", "DP", "GTP", "TP"),
    Purpose.EXPERT_GRADIENT: ("EDP", "EGTP"),
    Purpose.MUON: ("DPxCP", "EDP"),
    Purpose.CONTEXT: ("CP",),
    Purpose.ACTIVATION_SUM: ("TP",),
    Purpose.ACTIVATION_GATHER: ("TP",),
    Purpose.ACTIVATION_SCATTER: ("TP",),
}
"""The groups of a plan that may serve each purpose, the usual one first."""


def ranks(trace: Trace, plan: Plan) -> Iterator[Row]:
    """How many ranks there are."""
    told = {rank.world_size for rank in trace.ranks if rank.world_size}
    devices = max((max(group.members, default=-1) + 1 for group in trace.groups), default=0)
    found = max((*told, len(trace.ranks), devices))
    world = plan.parallel.world
    yield Row(Subject.RANKS, "the run", None, None, world, found, found == world)


def groups(calls: Sequence[Attributed], plan: Plan) -> Iterator[Row]:
    """For each purpose that was seen, who took part, against the groups that the plan has for it."""
    for purpose, names in _GROUPS.items():
        own = [call for call in calls if call.purpose is purpose and call.call.kind is not Kind.TRANSFER]
        seen = {call.call.members for call in own if call.call.members}
        if not own:
            continue
        if not seen:
            reason = "the trace does not say who takes part"
            yield Row(Subject.GROUPS, purpose, None, names[0], _planned(plan.parallel, names[0]), None, None, reason)
            continue
        allowed = {name: {frozenset(group) for group in plan.parallel.groups(name)} for name in names}
        fitting = [name for name in names if seen <= allowed[name]]
        among = {group for name in names for group in allowed[name]}
        name = fitting[0] if fitting else names[0]
        observed: list[Json] = [[*sorted(group)] for group in sorted(seen, key=sorted)]
        yield Row(Subject.GROUPS, purpose, None, name, _planned(plan.parallel, name), observed, seen <= among)


def _planned(parallel: ParallelPlan, name: str) -> Json:
    return [[*group] for group in parallel.groups(name)]
