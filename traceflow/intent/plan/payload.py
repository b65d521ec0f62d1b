"""What the collectives of a plan carry: bytes that a rank puts in, and bytes that leave it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from traceflow.intent.plan.model import ITEM_BYTES, Batch, Model, Training
from traceflow.intent.plan.parallel import ParallelPlan
from traceflow.intent.plan.tokens import Tokens, count_tokens

if TYPE_CHECKING:
    from traceflow.result import Json

FORWARD, BACKWARD = "forward", "backward"
LAYER, BOUNDARY, STEP = "layer and micro-batch", "micro-batch", "layer and step"
_COUNT_BYTES = 8  # torch counts in s64
_BALANCING = {"local": "TPxCP", "global": "TPxDPxCP"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Payload:
    """One collective, as often as `per` says. Bytes are those that one rank puts in, what stays there included."""

    operation: str  # what for
    collective: str
    direction: str
    group: str
    size: int  # members of the group
    per: str
    bytes: int | None
    expected: bool = False  # where they go depends on the router, and is that of a balanced one

    @property
    def remote_bytes(self) -> int | None:
        """Bytes that leave a rank, to the whole byte, in the fewest that the collective needs.

        With I bytes put in by each of n members: all-gather (n - 1) I, all-to-all and reduce-scatter (n - 1) / n I,
        all-reduce 2 (n - 1) / n I, send I.
        """
        if self.bytes is None:
            return None
        if self.collective == "send":
            return self.bytes
        if self.collective == "all-gather":
            return (self.size - 1) * self.bytes
        return (2 if self.collective == "all-reduce" else 1) * (self.size - 1) * self.bytes // self.size

    def to_dict(self) -> dict[str, Json]:
        """A row of `payload`."""
        return {
            "operation": self.operation,
            "collective": self.collective,
            "direction": self.direction,
            "group": self.group,
            "per": self.per,
            "bytes": self.bytes,
            "remote_bytes": self.remote_bytes,
            "expected": self.expected,
        }


def payloads(parallel: ParallelPlan, model: Model, batch: Batch, training: Training) -> tuple[Payload, ...]:
    """All collectives that follow from the plan, in order of execution; groups of one rank have none.

    Backward each comes in reverse order, with what was sent and what was received exchanged: an all-gather becomes a
    reduce-scatter and the other way round. Context parallelism inside attention is not part of it.

    Args:
        parallel: A plan whose sizes divide those of the model and the batch.
        model: Sizes of the model.
        batch: S and b.
        training: How tokens, weights and gradients are moved.
    """
    tokens = count_tokens(parallel, model, batch)
    forward = [*_layer(parallel, model, training, tokens), *_boundary(parallel, model, tokens)]
    differentiated = [row for row in forward if row.operation not in _WITHOUT_DERIVATIVE]
    rows = [
        *forward,
        *(mirrored(row) for row in reversed(differentiated)),
        *_weights_back(parallel, model, training),
        *_reductions(parallel, model, training),
    ]
    return tuple(row for row in rows if row.size > 1)


_WITHOUT_DERIVATIVE = frozenset(
    {"counts", "routing_map", "router_statistics", "egtp_weight_gather", "gtp_weight_gather", "virtual_expert_weights"}
)


def mirrored(row: Payload) -> Payload:
    """The collective that takes the gradient of another one's result to that of its operand."""
    row = replace(row, direction=BACKWARD)
    if row.bytes is not None and row.collective == "all-gather":
        return replace(row, collective="reduce-scatter", bytes=row.bytes * row.size)
    if row.bytes is not None and row.collective == "reduce-scatter":
        return replace(row, collective="all-gather", bytes=row.bytes // row.size)
    return row


def _layer(parallel: ParallelPlan, model: Model, training: Training, tokens: Tokens) -> Iterator[Payload]:
    if training.balancing != "none":
        size = training.balancing_vectors * model.experts * 4
        yield _row(parallel, "router_statistics", "all-reduce", _BALANCING[training.balancing], size)
    yield from _shared_forward(parallel, model, tokens)
    yield from _weights_there(parallel, model, training)
    yield from {"alltoall": _alltoall, "allgather": _allgather, "flex": _flex}[training.dispatcher](
        parallel, model, tokens
    )


def _row(
    parallel: ParallelPlan,
    operation: str,
    collective: str,
    group: str,
    size_bytes: int | None,
    *,
    expected: bool = False,
) -> Payload:
    return Payload(
        operation=operation,
        collective=collective,
        direction=FORWARD,
        group=group,
        size=parallel.group_size(group),
        per=LAYER,
        bytes=size_bytes,
        expected=expected,
    )


def _shared_forward(parallel: ParallelPlan, model: Model, tokens: Tokens) -> Iterator[Payload]:
    """Each rank of TP makes a part of the sum; where it holds a part of the tokens, it needs those of the others."""
    if not model.shared_experts:
        return
    rows_bytes = tokens.per_rank * model.hidden * model.item_bytes
    if parallel.sp:
        yield _row(parallel, "shared_expert_gather", "all-gather", "TP", rows_bytes)
        yield _row(parallel, "shared_expert_scatter", "reduce-scatter", "TP", rows_bytes * parallel.tp)
    else:
        yield _row(parallel, "shared_expert_sum", "all-reduce", "TP", rows_bytes)


def _weights_there(parallel: ParallelPlan, model: Model, training: Training) -> Iterator[Payload]:
    """Weights that are needed whole for the time of their use."""
    shared = model.shared_parameters // (parallel.tp * parallel.gtp) * model.item_bytes
    if shared:
        yield _row(parallel, "gtp_weight_gather", "all-gather", "GTP", shared)
    shard = held_parameters(parallel, model) * model.item_bytes
    yield _row(parallel, "egtp_weight_gather", "all-gather", "EGTP", shard)
    if training.virtual_experts:
        copies = training.virtual_experts * model.expert_parameters * model.item_bytes
        yield _row(parallel, "virtual_expert_weights", "send", "EP", copies)


def _weights_back(parallel: ParallelPlan, model: Model, training: Training) -> Iterator[Payload]:
    """Weights are gathered once more, and their gradients go back to where the weights came from."""
    for there in reversed([*_weights_there(parallel, model, training)]):
        items = (there.bytes or 0) // model.item_bytes
        back = replace(there, direction=BACKWARD)
        if there.operation != "virtual_expert_weights":
            yield back
        name = {"gtp_weight_gather": "gtp_gradient_scatter", "egtp_weight_gather": "egtp_gradient_scatter"}
        mirror = mirrored(replace(there, bytes=items * training.gradient_bytes))
        yield replace(mirror, operation=name.get(there.operation, "virtual_expert_gradients"))


def _alltoall(parallel: ParallelPlan, model: Model, tokens: Tokens) -> Iterator[Payload]:
    hidden = tokens.sent_rows * model.routed_width * model.item_bytes
    probabilities = tokens.sent_rows * _router_bytes(model)
    estimated = not tokens.exact
    if estimated:
        yield _row(parallel, "counts", "all-gather", "ETPxEP", model.experts * _COUNT_BYTES)
    yield _row(parallel, "dispatch", "all-to-all", "EP", hidden, expected=estimated)
    yield _row(parallel, "probabilities", "all-to-all", "EP", probabilities, expected=estimated)
    yield _row(parallel, "etp_gather", "all-gather", "ETP", hidden, expected=estimated)
    yield _row(parallel, "etp_gather_probabilities", "all-gather", "ETP", probabilities, expected=estimated)
    yield _row(parallel, "etp_scatter", "reduce-scatter", "ETP", hidden * parallel.etp, expected=estimated)
    yield _row(parallel, "combine", "all-to-all", "EP", hidden, expected=estimated)


def _allgather(parallel: ParallelPlan, model: Model, tokens: Tokens) -> Iterator[Payload]:
    hidden, choices = model.routed_width * model.item_bytes, tokens.per_rank * model.experts
    yield _row(parallel, "dispatch", "all-gather", "ETPxEP", tokens.per_rank * hidden)
    yield _row(parallel, "probabilities", "all-gather", "ETPxEP", choices * _router_bytes(model))
    yield _row(parallel, "routing_map", "all-gather", "ETPxEP", choices)
    yield _row(parallel, "combine", "reduce-scatter", "ETPxEP", tokens.in_expert_group * hidden)


def _flex(parallel: ParallelPlan, model: Model, tokens: Tokens) -> Iterator[Payload]:
    """What a backend is asked for; it may send a token once to a host and copy it there."""
    rows, estimated = tokens.sent_rows * parallel.etp, not tokens.exact
    hidden = rows * model.routed_width * model.item_bytes
    yield _row(parallel, "dispatch", "all-to-all", "ETPxEP", hidden, expected=estimated)
    yield _row(parallel, "probabilities", "all-to-all", "ETPxEP", rows * _router_bytes(model), expected=estimated)
    yield _row(parallel, "combine", "all-to-all", "ETPxEP", hidden, expected=estimated)


def _boundary(parallel: ParallelPlan, model: Model, tokens: Tokens) -> Iterator[Payload]:
    width = model.hidden * model.residual_streams * model.item_bytes
    yield replace(_row(parallel, "pp_boundary", "send", "PP", tokens.per_rank * width), per=BOUNDARY)


def _reductions(parallel: ParallelPlan, model: Model, training: Training) -> Iterator[Payload]:
    """Gradients and updated parameters, once a step."""
    dense, router = dense_parameters(parallel, model), model.hidden * model.experts
    for group, divided in (("TP", parallel.sp), ("GTP", True)):
        size = router * training.gradient_bytes
        if divided:
            yield _once(_row(parallel, f"router_gradient_{group.lower()}", "all-reduce", group, size))
    yield from _replicas(parallel, training, "dense", "DPxCP", dense, model.item_bytes)
    yield from _replicas(parallel, training, "expert", "EDP", held_parameters(parallel, model), model.item_bytes)


def _replicas(
    parallel: ParallelPlan, training: Training, what: str, group: str, parameters: int | None, item_bytes: int
) -> Iterator[Payload]:
    collective = {"replicated": "all-reduce", "distributed": "reduce-scatter", "muon": "all-to-all"}
    gradients = None if parameters is None else parameters * training.gradient_bytes
    name = f"{what}_muon_exchange" if training.optimizer == "muon" else f"{what}_gradient"
    yield _once(_row(parallel, name, collective[training.optimizer], group, gradients))
    if training.optimizer != "replicated":
        share = None if parameters is None else -(-parameters // parallel.group_size(group)) * item_bytes
        gather = _once(_row(parallel, f"{what}_parameter_gather", "all-gather", group, share))
        yield replace(gather, direction=FORWARD)  # before the next step can begin


def _once(row: Payload) -> Payload:
    return replace(row, direction=BACKWARD, per=STEP)


def held_parameters(parallel: ParallelPlan, model: Model) -> int:
    """Parameters of routed experts that a rank keeps of one layer."""
    return model.experts // parallel.ep * model.expert_parameters // (parallel.etp * parallel.egtp)


def dense_parameters(parallel: ParallelPlan, model: Model) -> int | None:
    """All other parameters that a rank keeps of one layer; None where those of attention are not known."""
    if model.dense_parameters is None:
        return None
    projections = 2 * model.hidden * (model.latent or 0)
    shared = model.shared_parameters // (parallel.tp * parallel.gtp)
    return model.dense_parameters + model.hidden * model.experts + projections + shared


def _router_bytes(model: Model) -> int:
    return ITEM_BYTES[model.router_dtype]
