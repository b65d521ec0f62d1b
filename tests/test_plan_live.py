"""What a plan says of payloads, against a live run in which nothing depends on the router."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

from traceflow.intent.plan import PRESETS, ParallelPlan, plan_step
from traceflow.run import open_run

if find_spec("torch") is None:
    pytest.skip("the workload needs PyTorch", allow_module_level=True)

ON_GLOO = {"all-to-all": "all_to_all", "all-gather": "allgather", "all-reduce": "allreduce"}
ON_GLOO["reduce-scatter"] = "allreduce"  # which is how gloo carries it out


@pytest.mark.parametrize("layout", ["ep2_edp2", "etp2_ep2"])
def test_every_collective_of_a_step_is_in_the_plan_with_its_bytes(layout: str, tmp_path: Path) -> None:
    from traceflow.collectors.workloads import moe_torch

    capture = tmp_path / layout
    moe_torch.main(["--output", str(capture), "--layout", layout, "--steps", "1", "--capacity-factor", "1.25"])
    run = open_run(str(capture))
    found = Counter(
        (collective.op, tuple(sorted(call.participant[0] for call in collective.calls)), collective.payload_bytes)
        for collective in run.communication().collectives
    )
    preset = PRESETS[f"moe-torch-{layout.replace('_', '-')}"]
    parallel = preset.parallel or ParallelPlan(world=4)
    plan = plan_step(parallel, replace(preset.model, capacity_factor=1.25), preset.batch, preset.training)
    planned = Counter(
        (ON_GLOO[row.collective], group, row.bytes) for row in plan.payload for group in parallel.groups(row.group)
    )
    assert found == planned
