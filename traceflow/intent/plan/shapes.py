"""Shapes of what one rank holds at each stage of a layer of experts, for one micro-batch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from traceflow.intent.plan.model import Batch, Model, Training
from traceflow.intent.plan.parallel import ParallelPlan
from traceflow.intent.plan.tokens import Tokens, count_tokens

if TYPE_CHECKING:
    from traceflow.result import Json


@dataclass(frozen=True, slots=True)
class Shape:
    """One array on one rank; a dimension is None where a balanced router would give no whole number."""

    stage: str
    name: str
    shape: tuple[int | None, ...]
    dtype: str
    expected: bool = False  # rows depend on the router, and are those of a balanced one

    def to_dict(self) -> dict[str, Json]:
        """A row of `shapes`."""
        return {
            "stage": self.stage,
            "name": self.name,
            "shape": list(self.shape),
            "dtype": self.dtype,
            "expected": self.expected,
        }


def local_shapes(parallel: ParallelPlan, model: Model, batch: Batch, training: Training) -> tuple[Shape, ...]:
    """Shapes of one layer in order of execution, forward; gradients have the shapes of what they are of.

    Args:
        parallel: A plan whose sizes divide those of the model and the batch.
        model: Sizes of the model.
        batch: S and b.
        training: Which dispatcher moves the tokens.

    Example:
        >>> plan = ParallelPlan(world=4, ep=4)
        >>> model = Model(hidden=64, experts=8, topk=2, expert_hidden=128)
        >>> [s.shape for s in local_shapes(plan, model, Batch(sequence=256), Training()) if s.stage == "permute"]
        [(512, 64)]
    """
    tokens = count_tokens(parallel, model, batch)
    whole = (tokens.sequence_rows, batch.micro_batch, model.hidden)
    moved = {"alltoall": _alltoall, "allgather": _allgather, "flex": _flex}[training.dispatcher]
    return (
        Shape("input", "hidden", whole, model.dtype),
        Shape("route", "tokens", (tokens.per_rank, model.hidden), model.dtype),
        Shape("route", "router_logits", (tokens.per_rank, model.experts), model.router_dtype),
        *_projected(model, tokens),
        *_shared(parallel, model, tokens),
        *moved(parallel, model, tokens),
        Shape("output", "output", whole, model.dtype),
        *_boundary(parallel, model, whole),
    )


def _projected(model: Model, tokens: Tokens) -> Iterator[Shape]:
    if model.latent:
        yield Shape("latent_projection", "latent", (tokens.per_rank, model.latent), model.dtype)


def _shared(parallel: ParallelPlan, model: Model, tokens: Tokens) -> Iterator[Shape]:
    """With sequence parallelism, the tokens of all ranks of TP are gathered for the parts of the matrices."""
    if model.shared_experts:
        rows = tokens.per_rank * (parallel.tp if parallel.sp else 1)
        width = model.shared_width // parallel.tp
        yield Shape("shared_expert", "shared_fc1", (rows, 2 * width), model.dtype)
        yield Shape("shared_expert", "shared_activation", (rows, width), model.dtype)
        yield Shape("shared_expert", "shared_fc2", (rows, model.hidden), model.dtype)


def _boundary(parallel: ParallelPlan, model: Model, whole: tuple[int, int, int]) -> Iterator[Shape]:
    if parallel.pp > 1:
        yield Shape("pp_boundary", "pp_boundary", (*whole[:2], whole[2] * model.residual_streams), model.dtype)


def _alltoall(parallel: ParallelPlan, model: Model, tokens: Tokens) -> Iterator[Shape]:
    width, sent, etp = model.routed_width, tokens.sent_rows, parallel.etp
    estimated = not tokens.exact
    yield Shape("permute", "permuted", (sent, width), model.dtype)
    yield Shape("dispatch", "received", (sent, width), model.dtype, estimated)
    if etp > 1:
        yield Shape("etp_gather", "gathered", (sent * etp, width), model.dtype, estimated)
    yield from _experts(parallel, model, tokens)
    yield Shape("unsort", "unsorted", (sent * etp, width), model.dtype, estimated)
    if etp > 1:
        yield Shape("etp_scatter", "scattered", (sent, width), model.dtype, estimated)
    yield Shape("combine", "returned", (sent, width), model.dtype)
    yield Shape("unpermute", "combined", (tokens.per_rank, width), model.dtype)


def _allgather(parallel: ParallelPlan, model: Model, tokens: Tokens) -> Iterator[Shape]:
    """Every rank has the tokens of all before it picks those of its experts."""
    all_tokens = (tokens.in_expert_group, model.routed_width)
    yield Shape("dispatch", "gathered", all_tokens, model.dtype)
    yield from _experts(parallel, model, tokens)
    yield Shape("unpermute", "partial", all_tokens, model.dtype)
    yield Shape("combine", "combined", (tokens.per_rank, model.routed_width), model.dtype)


def _flex(parallel: ParallelPlan, model: Model, tokens: Tokens) -> Iterator[Shape]:
    """Every part of an expert's matrices is a destination of its own."""
    rows = (tokens.sent_rows * parallel.etp, model.routed_width)
    yield Shape("dispatch", "received", rows, model.dtype, not tokens.exact)
    yield from _experts(parallel, model, tokens)
    yield Shape("combine", "combined", (tokens.per_rank, model.routed_width), model.dtype)


def _experts(parallel: ParallelPlan, model: Model, tokens: Tokens) -> Iterator[Shape]:
    """Rows by expert, and what one expert makes of its own on one rank of ETP."""
    rows, width = _whole(tokens.rows_per_expert), model.expert_hidden // parallel.etp
    estimated = not tokens.exact
    yield Shape("sort", "tokens_per_expert", (model.experts // parallel.ep,), "s64")
    yield Shape("sort", "expert_input", (rows, model.routed_width), model.dtype, estimated)
    yield Shape("experts", "expert_fc1", (rows, 2 * width), model.dtype, estimated)
    yield Shape("experts", "expert_activation", (rows, width), model.dtype, estimated)
    yield Shape("experts", "expert_fc2", (rows, model.routed_width), model.dtype, estimated)


def _whole(rows: Fraction) -> int | None:
    return rows.numerator if rows.denominator == 1 else None
