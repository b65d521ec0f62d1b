"""What a plan and a routing record lead one to expect of collectives: splits, payloads, groups."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from traceflow.analyzers.attribution.dimensions import Grids, members_of, planned, recorded
from traceflow.analyzers.attribution.purposes import Kind, Phase, Purpose

if TYPE_CHECKING:
    from traceflow.intent.mesh import Mesh
    from traceflow.intent.plan import Payload, Plan
    from traceflow.intent.routing import LayerRouting, Routing

Splits: TypeAlias = tuple[tuple[int, ...], tuple[int, ...]]
"""Rows to each member of a group, and rows from each."""

OPERATIONS: Mapping[str, Purpose] = {
    "dispatch": Purpose.DISPATCH,
    "probabilities": Purpose.DISPATCH,
    "routing_map": Purpose.DISPATCH,
    "combine": Purpose.COMBINE,
    "counts": Purpose.ROUTER_STATISTICS,
    "router_statistics": Purpose.ROUTER_STATISTICS,
    "etp_gather": Purpose.ETP_GATHER,
    "etp_gather_probabilities": Purpose.ETP_GATHER,
    "etp_scatter": Purpose.ETP_SCATTER,
    "shared_expert_gather": Purpose.ACTIVATION_GATHER,
    "shared_expert_scatter": Purpose.ACTIVATION_SCATTER,
    "shared_expert_sum": Purpose.ACTIVATION_SUM,
    "gtp_weight_gather": Purpose.PARAMETER_GATHER,
    "egtp_weight_gather": Purpose.PARAMETER_GATHER,
    "gtp_gradient_scatter": Purpose.DENSE_GRADIENT,
    "egtp_gradient_scatter": Purpose.EXPERT_GRADIENT,
    "pp_boundary": Purpose.BOUNDARY,
    "router_gradient_tp": Purpose.DENSE_GRADIENT,
    "router_gradient_gtp": Purpose.DENSE_GRADIENT,
    "dense_gradient": Purpose.DENSE_GRADIENT,
    "expert_gradient": Purpose.EXPERT_GRADIENT,
    "dense_muon_exchange": Purpose.MUON,
    "expert_muon_exchange": Purpose.MUON,
    "dense_parameter_gather": Purpose.PARAMETER_GATHER,
    "expert_parameter_gather": Purpose.PARAMETER_GATHER,
}
"""The purpose behind each operation of a plan."""

_COUNT_BYTES = (4, 8)


@dataclass(frozen=True, slots=True)
class Expectations:
    """What collectives of this run may be, apart from what the trace says."""

    grids: Grids = field(default_factory=Grids)
    payloads: tuple[Payload, ...] = ()
    exchanges: Mapping[tuple[int, int], frozenset[Splits]] = field(default_factory=dict)  # by rank and step
    statistics_bytes: frozenset[int] = frozenset()  # of one or two numbers per expert
    has_plan: bool = False
    meshes: Mapping[int, Mesh] = field(default_factory=dict)  # the user's own, by program

    def purpose_by_payload(self, kind: Kind, phase: Phase | None, names: frozenset[str], size: int) -> Purpose | None:
        """The purpose of the only operation of the plan with this payload over such a group; None if not one."""
        direction = Phase.BACKWARD if phase is Phase.UPDATE else phase
        fitting = {
            OPERATIONS[row.operation]
            for row in self.payloads
            if row.operation in OPERATIONS
            and row.collective == kind
            and row.bytes == size
            and (direction is None or row.direction == direction)
            and names & canonical(row.group)
        }
        return fitting.pop() if len(fitting) == 1 else None


def canonical(group: str) -> frozenset[str]:
    """Names under which a group of the plan may show once axes of one rank are left out.

    Example:
        >>> sorted(canonical("DPxCP"))
        ['CP', 'DP', 'DPxCP']
    """
    return frozenset({group, *group.split("x")})


def expectations(plan: Plan | None, routing: Routing | None, meshes: Mapping[int, Mesh]) -> Expectations:
    """What follows from a plan, a routing record and meshes; the plan's groups count before those of the record."""
    layers = [layer for layer in routing.layers if len(layer.rank)] if routing else []
    grids = planned(plan.parallel) if plan else Grids()
    if not plan and layers:
        grids = Grids(expert=recorded(layers[0]))
    experts = {layer.shape.experts for layer in layers} | ({plan.model.experts} if plan and plan.model else set())
    return Expectations(
        grids=grids,
        payloads=plan.payload if plan else (),
        exchanges=_exchanges(layers) if layers else {},
        statistics_bytes=frozenset(
            number * item * count for number in experts for item in _COUNT_BYTES for count in (1, 2)
        ),
        has_plan=plan is not None,
        meshes=meshes,
    )


def _exchanges(layers: list[LayerRouting]) -> dict[tuple[int, int], frozenset[Splits]]:
    """The splits of each dispatch, by rank and step."""
    from traceflow.analyzers.moe.rows import complete_calls, count_rows
    from traceflow.intent.routing import DISPATCHERS

    found: dict[tuple[int, int], set[Splits]] = {}
    for layer in layers:
        calls = complete_calls(layer)
        if DISPATCHERS[layer.shape.dispatcher] != "all-to-all" or not len(calls):
            continue
        rows, members = count_rows(layer, calls), members_of(layer)
        for at, call in enumerate(calls.tolist()):
            for source, group in enumerate(layer.ep_groups):
                there = tuple(rows.sent[at, source].tolist())
                back = tuple(rows.sent[at, list(group), int(rows.own[source])].tolist())
                found.setdefault((members[source], int(layer.step[call])), set()).add((there, back))
    return {key: frozenset(splits) for key, splits in found.items()}
