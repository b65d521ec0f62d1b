"""Presets against what they are presets of."""

from __future__ import annotations

import json

import pytest

from traceflow.collectors.workloads import moe_jax_layers, moe_torch_layers
from traceflow.intent.plan import PRESETS, ParallelPlan, plan_step

LAYOUTS = {"ep2_edp2", "ep4", "etp2_ep2"}


@pytest.mark.parametrize("layout", sorted(LAYOUTS))
def test_the_workloads_of_pytorch(layout: str) -> None:
    preset, size = PRESETS[f"moe-torch-{layout.replace('_', '-')}"], moe_torch_layers.Size()
    grid = moe_torch_layers.LAYOUTS[layout]
    model, parallel = preset.model, preset.parallel
    assert parallel is not None
    assert (model.hidden, model.expert_hidden, model.experts, model.topk) == (
        size.model,
        size.hidden,
        size.experts,
        size.choices,
    )
    assert (parallel.world, parallel.etp, parallel.ep) == (grid.processes, grid.etp, grid.ep)
    assert parallel.expert_data_parallel == grid.edp
    for name, groups in grid.groups().items():
        assert sorted(map(list, parallel.groups(name))) == sorted(groups)
    plan = plan_step(parallel, model, preset.batch, preset.training)
    assert plan.tokens is not None
    assert plan.tokens.per_rank == size.tokens // grid.processes
    assert (plan.micro_batches, plan.problems) == (1, ())


def test_the_workload_of_jax() -> None:
    preset, size = PRESETS["moe-jax"], moe_jax_layers.Size()
    model = preset.model
    assert (model.hidden, model.expert_hidden, model.experts, model.topk, model.capacity_factor) == (
        size.model,
        size.hidden,
        size.experts,
        size.choices,
        size.capacity_factor,
    )
    assert preset.parallel == ParallelPlan(world=8, ep=8)
    plan = plan_step(preset.parallel, model, preset.batch, preset.training)
    assert plan.tokens is not None
    assert (plan.tokens.per_rank, plan.tokens.capacity) == (size.tokens // 8, size.capacity(8))
    assert (plan.micro_batches, plan.problems) == (1, ())


def test_a_published_model() -> None:
    model = PRESETS["deepseek-v4-pro"].model
    stated = {"hidden": 7168, "experts": 384, "topk": 6, "expert_hidden": 3072, "layers": 61}
    stated |= {"shared_experts": 1, "hash_layers": 3}
    assert {name: getattr(model, name) for name in stated} == stated


def test_every_preset_can_be_worked_out_and_written() -> None:
    for preset in PRESETS.values():
        plan = plan_step(preset.parallel or ParallelPlan(world=8, ep=8), preset.model, preset.batch, preset.training)
        assert json.loads(json.dumps(plan.to_dict()))["shapes"]
