"""Everything that follows from a parallel plan by arithmetic, in one result."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, ClassVar

from traceflow.intent.plan.dispatchers import Dispatcher, dispatchers
from traceflow.intent.plan.experts import Place, experts_held, moves
from traceflow.intent.plan.gradients import GradientScaling, gradient_scaling
from traceflow.intent.plan.model import Batch, Model, Training
from traceflow.intent.plan.parallel import ParallelPlan
from traceflow.intent.plan.payload import Payload, payloads
from traceflow.intent.plan.problems import Problem, problems
from traceflow.intent.plan.shapes import Shape, local_shapes
from traceflow.intent.plan.tokens import Tokens, count_tokens
from traceflow.intent.plan.weights import Weight, weights
from traceflow.result import Finding, Json, Note, Provenance, Shown, Skipped

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(Shown):
    """A parallel plan for a model and a batch, worked out; what cannot be told is None or empty, and in `skipped`."""

    kind: ClassVar[str] = "plan"
    parallel: ParallelPlan
    model: Model | None = None
    batch: Batch | None = None
    training: Training = field(default_factory=Training)
    gradient_scaling: GradientScaling
    problems: tuple[Problem, ...] = ()
    tokens: Tokens | None = None
    shapes: tuple[Shape, ...] = ()
    payload: tuple[Payload, ...] = ()
    weights: tuple[Weight, ...] = ()
    dispatchers: tuple[Dispatcher, ...] = ()
    experts_held: tuple[range, ...] = ()  # by rank of EP
    moves: tuple[tuple[Place, Place], ...] = ()  # by expert, where another EP comes next
    micro_batches: int | None = None
    skipped: tuple[Skipped, ...] = ()
    notes: tuple[Note, ...] = ()

    @property
    def experts_per_rank(self) -> int | None:
        """Routed experts of one layer that a rank holds, or parts of them with ETP."""
        return len(self.experts_held[0]) if self.experts_held else None

    @property
    def expert_flops_ratio(self) -> float | None:
        """FLOPs of a token in routed experts, over those in one dense MLP of the same parameters: k / E."""
        return None if self.model is None else self.model.topk / self.model.experts

    @property
    def findings(self) -> tuple[Finding, ...]:
        """A finding for each problem."""
        return tuple(
            Finding(
                code=problem.code,
                severity=problem.severity,
                title=problem.reason,
                provenance=Provenance.DERIVED,
                suggestion=problem.remedy,
            )
            for problem in self.problems
        )

    def to_dict(self) -> dict[str, Json]:
        """The `result` object of `traceflow plan`."""
        parallel = self.parallel
        return {
            "sizes": _stated(parallel),
            "model": None if self.model is None else _stated(self.model),
            "batch": None if self.batch is None else _stated(self.batch),
            "training": _stated(self.training),
            "ranks_per_stage": parallel.ranks_per_stage,
            "data_parallel": parallel.data_parallel,
            "expert_data_parallel": parallel.expert_data_parallel,
            "context_parallel_runtime": parallel.context_parallel_runtime,
            "batch_parallel": parallel.batch_parallel,
            "strides": {mesh: dict(parallel.strides(mesh)) for mesh in ("dense", "expert")},
            "groups": {name: [list(ranks) for ranks in groups] for name, groups in parallel.all_groups().items()},
            "experts_per_rank": self.experts_per_rank,
            "experts_held": [[*held] for held in self.experts_held],
            "moves": [_move(expert, *places) for expert, places in enumerate(self.moves)],
            "expert_flops_ratio": self.expert_flops_ratio,
            "tokens": None if self.tokens is None else self.tokens.to_dict(),
            "shapes": [row.to_dict() for row in self.shapes],
            "payload": [row.to_dict() for row in self.payload],
            "dispatchers": [row.to_dict() for row in self.dispatchers],
            "weights": [row.to_dict() for row in self.weights],
            "gradient_scaling": self.gradient_scaling.to_dict(),
            "micro_batches": self.micro_batches,
            "problems": [problem.to_dict() for problem in self.problems],
        }

    def to_pandas(self) -> pd.DataFrame:
        """One row per collective."""
        import pandas as pd

        return pd.DataFrame([row.to_dict() for row in self.payload])


def plan_step(
    parallel: ParallelPlan,
    model: Model | None = None,
    batch: Batch | None = None,
    training: Training | None = None,
    *,
    next_ep: int | None = None,
) -> Plan:
    """Work out what one step of training does under a plan.

    Args:
        parallel: How many ranks share which work.
        model: Sizes of the model; without it groups and factors alone follow.
        batch: S, b and B; without it no amounts of tokens follow.
        training: How tokens, weights and gradients are moved; `Training()` where None.
        next_ep: Another EP that the experts go on with, for where each goes.

    Raises:
        TraceflowError: TF148 when experts cannot be dealt out to `next_ep` ranks.

    Example:
        >>> plan = plan_step(ParallelPlan(world=1024, pp=8, cp=2, ep=64), batch=Batch(sequence=8192, global_batch=4096))
        >>> plan.micro_batches
        64
    """
    training = training or Training()
    found = problems(parallel, model, batch, training)
    unknown = {pointer: problem.reason for problem in reversed(found) for pointer in problem.affects}
    unknown = {**_not_stated(model, batch), **unknown}
    has_experts, has_tokens, has_amounts = (
        f"/result/{name}" not in unknown for name in ("experts_per_rank", "tokens", "shapes")
    )
    shapes: tuple[Shape, ...] = ()
    rows: tuple[Payload, ...] = ()
    if model and batch and has_amounts:
        shapes = local_shapes(parallel, model, batch, training)
        rows = payloads(parallel, model, batch, training)
    return Plan(
        parallel=parallel,
        model=model,
        batch=batch,
        training=training,
        gradient_scaling=gradient_scaling(parallel),
        problems=found,
        tokens=count_tokens(parallel, model, batch) if model and batch and has_tokens else None,
        shapes=shapes,
        payload=rows,
        weights=weights(parallel, model, training) if model and "/result/weights" not in unknown else (),
        dispatchers=dispatchers(parallel, model, batch) if model and batch and has_tokens else (),
        experts_held=experts_held(model.experts, parallel.ep) if model and has_experts else (),
        moves=moves(model.experts, parallel.ep, next_ep) if model and next_ep is not None and has_experts else (),
        micro_batches=_micro_batches(parallel, batch, unknown),
        skipped=(*(Skipped(pointer, reason) for pointer, reason in unknown.items()), *_unknown_parts(shapes, rows)),
    )


def _not_stated(model: Model | None, batch: Batch | None) -> dict[str, str]:
    """What nobody asked to be worked out."""
    unknown = {}
    if model is None:
        of_model = ("experts_per_rank", "experts_held", "expert_flops_ratio", "weights", "model")
        unknown = {f"/result/{name}": "no model is given" for name in of_model}
    if batch is None:
        unknown |= {f"/result/{name}": "no batch is given" for name in ("micro_batches", "batch")}
    elif batch.global_batch is None:
        unknown["/result/micro_batches"] = "no global batch is given"
    if model is None or batch is None:
        of_both = ("tokens", "shapes", "payload", "dispatchers")
        reason = "no batch is given" if model else "no model is given"
        unknown |= {f"/result/{name}": reason for name in of_both}
    return unknown


def _unknown_parts(shapes: tuple[Shape, ...], rows: tuple[Payload, ...]) -> Iterator[Skipped]:
    """Numbers of single rows that cannot be told."""
    for at, shape in enumerate(shapes):
        if None in shape.shape:
            pointer = f"/result/shapes/{at}/shape/{shape.shape.index(None)}"
            yield Skipped(pointer, "a balanced router would give each expert no whole number of rows")
    for at, row in enumerate(rows):
        if row.bytes is None:
            reason = "how many parameters attention and norms have is not given"
            yield from (Skipped(f"/result/payload/{at}/{name}", reason) for name in ("bytes", "remote_bytes"))


def _micro_batches(parallel: ParallelPlan, batch: Batch | None, unknown: Mapping[str, str]) -> int | None:
    """B = b x copies of the model x m, solved for m."""
    if batch is None or batch.global_batch is None or "/result/micro_batches" in unknown:
        return None
    return batch.global_batch // (batch.micro_batch * parallel.batch_parallel)


def _stated(given: ParallelPlan | Model | Batch | Training) -> dict[str, Json]:
    return {stated.name: getattr(given, stated.name) for stated in fields(given)}


def _move(expert: int, before: Place, after: Place) -> dict[str, Json]:
    return {
        "expert": expert,
        "ep_rank": before.ep_rank,
        "local": before.local,
        "next_ep_rank": after.ep_rank,
        "next_local": after.local,
    }
