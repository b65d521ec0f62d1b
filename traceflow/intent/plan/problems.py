"""What does not fit together in a plan, why, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from traceflow.intent.plan.model import Batch, Model, Training
from traceflow.intent.plan.parallel import ParallelPlan
from traceflow.intent.plan.tokens import sequence_parts
from traceflow.result import Severity

if TYPE_CHECKING:
    from traceflow.result import Json

_EXPERTS = ("/result/experts_per_rank", "/result/experts_held", "/result/moves")
_AMOUNTS = ("/result/shapes", "/result/payload")
_TOKENS = ("/result/tokens", "/result/dispatchers")
_WEIGHTS = ("/result/weights",)


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that does not fit; `affects` points to what cannot be told because of it."""

    code: str
    severity: Severity
    reason: str
    remedy: str
    affects: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Json]:
        """A row of `problems`."""
        return {"code": self.code, "severity": str(self.severity), "reason": self.reason, "remedy": self.remedy}


def problems(
    parallel: ParallelPlan, model: Model | None = None, batch: Batch | None = None, training: Training | None = None
) -> tuple[Problem, ...]:
    """Everything that is wrong with a plan (errors), and what deserves a second look (warnings).

    Sizes that make no mesh at all are refused by :class:`~traceflow.intent.plan.parallel.ParallelPlan` itself.

    Example:
        >>> [p.reason for p in problems(ParallelPlan(world=4, tp=2), Model(hidden=8, experts=4, topk=1, expert_hidden=8))]
        ['TP 2 without sequence parallelism: experts would meet every token twice over']
    """
    return (
        *_pipelines(parallel),
        *(_model(parallel, model, training or Training()) if model else ()),
        *(_batch(parallel, batch) if batch else ()),
    )


def _model(parallel: ParallelPlan, model: Model, training: Training) -> Iterator[Problem]:
    yield from _sizes(parallel, model)
    yield from _layers(parallel, model)
    yield from _combinations(parallel, model, training)
    yield from _overlaps(parallel, model, training)


def _indivisible(what: str, size: int, parts: str, count: int, affects: tuple[str, ...]) -> Iterator[Problem]:
    if size % count:
        reason = f"{what} {size} is no multiple of {parts} = {count}"
        yield Problem("TF250", Severity.ERROR, reason, "Choose sizes that divide.", affects)


def _sizes(parallel: ParallelPlan, model: Model) -> Iterator[Problem]:
    everything = (*_AMOUNTS, *_WEIGHTS)
    yield from _indivisible("the number of experts", model.experts, "EP", parallel.ep, (*_EXPERTS, *everything))
    yield from _indivisible("the width inside an expert", model.expert_hidden, "ETP", parallel.etp, everything)
    parameters = model.expert_parameters // parallel.etp
    if model.expert_hidden % parallel.etp == 0:
        what = "the parameters of an expert on a rank of ETP"
        yield from _indivisible(what, parameters, "EGTP", parallel.egtp, everything)
    if model.shared_width % parallel.tp == 0:
        shared = model.shared_parameters // parallel.tp
        yield from _indivisible("the parameters of shared experts", shared, "GTP", parallel.gtp, everything)
    yield from _indivisible("the width inside shared experts", model.shared_width, "TP", parallel.tp, everything)


def _layers(parallel: ParallelPlan, model: Model) -> Iterator[Problem]:
    chunks = parallel.pp * parallel.vpp
    if model.layers % chunks:
        reason = f"{model.layers} layers cannot be dealt out to {chunks} parts of the pipeline alike"
        yield Problem("TF251", Severity.WARNING, reason, "Arrange by hand which stage has which layers.")


def _pipelines(parallel: ParallelPlan) -> Iterator[Problem]:
    strides = {mesh: parallel.strides(mesh)["pp"] for mesh in ("dense", "expert")}
    if parallel.pp > 1 and strides["dense"] != strides["expert"]:
        reason = "the stages of the pipeline hold other ranks on the mesh of experts than on the dense one"
        yield Problem("TF252", Severity.ERROR, reason, "Put pp last in the order of ranks.", ())


def _combinations(parallel: ParallelPlan, model: Model, training: Training) -> Iterator[Problem]:
    if parallel.tp > 1 and not parallel.sp:
        times = "twice" if parallel.tp == 2 else f"{parallel.tp} times"
        reason = f"TP {parallel.tp} without sequence parallelism: experts would meet every token {times} over"
        yield _refused(reason, "Turn sequence parallelism on (--sp), or set TP to 1.")
    if model.attention_tp is not None and parallel.tp > model.attention_tp:
        reason = f"TP {parallel.tp}, and the attention of this model allows {model.attention_tp} at most"
        yield _refused(reason, f"Set TP to {model.attention_tp}.")
    if training.virtual_experts and parallel.etp > 1:
        reason = f"copies of hot experts with ETP {parallel.etp}: only whole experts can be copied"
        yield _refused(reason, "Set ETP to 1, or leave virtual experts out.")
    if model.capacity_factor is not None and training.dispatcher != "alltoall":
        reason = f"a capacity with the dispatcher {training.dispatcher}: only alltoall reserves rows for each expert"
        yield _refused(reason, "Use the dispatcher alltoall, or leave the capacity out.")


def _overlaps(parallel: ParallelPlan, model: Model, training: Training) -> Iterator[Problem]:
    """Of the exchange of one micro-batch with the computation of another."""
    if not training.overlap_batches:
        return
    remedy = "Leave the overlap between micro-batches out."
    if model.hash_layers:
        yield _refused("hash routing with overlap between micro-batches, which does not support it", remedy)
    if model.residual_streams > 1 and parallel.pp > 1:
        yield _refused("several residual streams (mHC) with PP > 1 and overlap between micro-batches", remedy)
    if training.overlap_shared_expert:
        reason = "overlap of the shared expert and overlap between micro-batches exclude each other"
        yield _refused(reason, "Choose one of the two.")


def _batch(parallel: ParallelPlan, batch: Batch) -> Iterator[Problem]:
    parts, view = sequence_parts(parallel), "CP x sequence shards" + (" x TP" if parallel.sp else "")
    yield from _indivisible("the sequence length", batch.sequence, view, parts, (*_TOKENS, *_AMOUNTS))
    if batch.global_batch is None:
        return
    together = batch.micro_batch * parallel.batch_parallel
    view = "the micro-batch x copies of the model"
    yield from _indivisible("the global batch", batch.global_batch, view, together, ("/result/micro_batches",))
    count = batch.global_batch // together
    if batch.global_batch % together == 0 and count < parallel.pp:
        reason = f"{count} micro-batches never keep all {parallel.pp} stages of the pipeline busy"
        yield Problem("TF251", Severity.WARNING, reason, "Use smaller micro-batches or a larger global batch.")


def _refused(reason: str, remedy: str) -> Problem:
    return Problem("TF253", Severity.ERROR, reason, remedy)
