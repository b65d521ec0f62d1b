"""What does not fit together in a plan: said with a reason, and never guessed around."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from plans import LARGE

from traceflow.errors import TraceflowError
from traceflow.intent.plan import PRESETS, Batch, Model, ParallelPlan, Training, experts_held, plan_step, problems

MODEL = Model(hidden=8, experts=8, topk=2, expert_hidden=8, layers=4)


def told(
    parallel: ParallelPlan, model: Model | None = MODEL, batch: Batch | None = None, training: Training | None = None
) -> list[tuple[str, str]]:
    """Code and severity of each problem."""
    return [(problem.code, str(problem.severity)) for problem in problems(parallel, model, batch, training)]


def test_a_plan_that_fits_has_no_problem() -> None:
    assert told(ParallelPlan(world=8, pp=2, ep=4), batch=Batch(sequence=16, global_batch=8)) == []


@pytest.mark.parametrize(
    ("parallel", "model", "batch", "reason"),
    [
        (ParallelPlan(world=3, ep=3), MODEL, None, "the number of experts 8 is no multiple of EP = 3"),
        (ParallelPlan(world=3, etp=3), MODEL, None, "the width inside an expert 8 is no multiple of ETP = 3"),
        (
            ParallelPlan(world=5, egtp=5),
            MODEL,
            None,
            "the parameters of an expert on a rank of ETP 192 is no multiple of EGTP = 5",
        ),
        (
            ParallelPlan(world=3, tp=3, sp=True),
            replace(MODEL, shared_experts=1),
            None,
            "the width inside shared experts 8 is no multiple of TP = 3",
        ),
        (
            ParallelPlan(world=5, gtp=5),
            replace(MODEL, shared_experts=1),
            None,
            "the parameters of shared experts 192 is no multiple of GTP = 5",
        ),
        (
            ParallelPlan(world=6, cp=3, tp=2, sp=True),
            MODEL,
            Batch(sequence=9),
            "the sequence length 9 is no multiple of CP x sequence shards x TP = 6",
        ),
        (
            ParallelPlan(world=4),
            MODEL,
            Batch(sequence=8, micro_batch=2, global_batch=12),
            "the global batch 12 is no multiple of the micro-batch x copies of the model = 8",
        ),
    ],
)
def test_sizes_that_do_not_divide(parallel: ParallelPlan, model: Model, batch: Batch | None, reason: str) -> None:
    (problem,) = problems(parallel, model, batch)
    assert (problem.code, problem.severity, problem.reason) == ("TF250", "error", reason)
    plan = plan_step(parallel, model, batch)
    assert {(one.what, one.reason) for one in plan.skipped} >= {(pointer, reason) for pointer in problem.affects}
    assert plan.findings[0].title == reason
    empty = {pointer.removeprefix("/result/"): plan.to_dict() for pointer in problem.affects}
    assert all(not result[name] for name, result in empty.items())


@pytest.mark.parametrize(
    ("parallel", "model", "training", "words"),
    [
        (ParallelPlan(world=2, tp=2), MODEL, Training(), "without sequence parallelism"),
        (ParallelPlan(world=2, tp=2, sp=True), replace(MODEL, attention_tp=1), Training(), "allows 1 at most"),
        (ParallelPlan(world=2), replace(MODEL, hash_layers=3), Training(overlap_batches=True), "hash routing"),
        (ParallelPlan(world=2, pp=2), replace(MODEL, residual_streams=4), Training(overlap_batches=True), "mHC"),
        (
            ParallelPlan(world=2),
            MODEL,
            Training(overlap_batches=True, overlap_shared_expert=True),
            "exclude each other",
        ),
        (ParallelPlan(world=2, etp=2), MODEL, Training(virtual_experts=1), "only whole experts can be copied"),
        (ParallelPlan(world=2), replace(MODEL, capacity_factor=1.0), Training(dispatcher="flex"), "only alltoall"),
    ],
)
def test_what_excludes_each_other(parallel: ParallelPlan, model: Model, training: Training, words: str) -> None:
    (problem,) = problems(parallel, model, None, training)
    assert (problem.code, problem.severity) == ("TF253", "error")
    assert words in problem.reason
    assert problem.remedy


def test_what_goes_together() -> None:
    assert told(ParallelPlan(world=2, tp=2, sp=True)) == []
    assert (
        told(ParallelPlan(world=2), replace(MODEL, hash_layers=3), training=Training(overlap_shared_expert=True)) == []
    )
    assert (
        told(ParallelPlan(world=2), replace(MODEL, residual_streams=4), training=Training(overlap_batches=True)) == []
    )
    assert told(ParallelPlan(world=2, ep=2), training=Training(virtual_experts=1)) == []


def test_uneven_pipelines_are_warned_of() -> None:
    assert told(ParallelPlan(world=3, pp=3)) == [("TF251", "warning")]
    assert told(ParallelPlan(world=4, pp=2, vpp=4)) == [("TF251", "warning")]  # four layers in eight parts
    assert told(ParallelPlan(world=4, pp=4), batch=Batch(sequence=8, global_batch=3)) == [("TF251", "warning")]


def test_stages_must_hold_the_same_ranks_on_both_meshes() -> None:
    apart = ParallelPlan(world=8, pp=2, tp=2, sp=True, ep=2, order="tp-pp-cp-ep-dp")
    assert told(apart) == [("TF252", "error")]
    assert apart.groups("PP")[0] == (0, 2)
    together = replace(apart, order="tp-cp-ep-dp-pp")
    assert told(together) == []
    assert told(replace(apart, tp=1, order="pp-tp-cp-ep-dp")) == []
    assert told(replace(apart, pp=1)) == []  # of one stage all ranks are


def test_the_plan_of_a_published_model_is_refused_the_overlap_that_it_does_not_support() -> None:
    known = PRESETS["deepseek-v4-pro"]
    found = problems(LARGE, known.model, known.batch, Training(overlap_batches=True))
    assert [problem.code for problem in found] == ["TF251", "TF253", "TF253"]


@pytest.mark.parametrize(
    ("made", "sizes"),
    [
        (Model, {"hidden": 0, "experts": 8, "topk": 2, "expert_hidden": 8}),
        (Model, {"hidden": 8, "experts": 2, "topk": 3, "expert_hidden": 8}),
        (Model, {"hidden": 8, "experts": 8, "topk": 2, "expert_hidden": 8, "dtype": "f3"}),
        (Model, {"hidden": 8, "experts": 8, "topk": 2, "expert_hidden": 8, "capacity_factor": 0.0}),
        (Model, {"hidden": 8, "experts": 8, "topk": 2, "expert_hidden": 8, "capacity_factor": float("nan")}),
        (Model, {"hidden": 8, "experts": 8, "topk": 2, "expert_hidden": 8, "shared_experts": -1}),
        (Batch, {"sequence": 0}),
        (Training, {"dispatcher": "pigeon"}),
        (Training, {"optimizer": "none"}),
        (Training, {"balancing": "some"}),
        (Training, {"virtual_experts": -1}),
    ],
)
def test_what_is_no_model_is_refused(made: Any, sizes: dict[str, Any]) -> None:
    with pytest.raises(TraceflowError, match="TF149"):
        made(**sizes)


@pytest.mark.parametrize("ep", [0, 3])
def test_experts_that_cannot_be_dealt_out_are_refused(ep: int) -> None:
    with pytest.raises(TraceflowError, match="TF148"):
        experts_held(8, ep)
