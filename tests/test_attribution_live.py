"""Live runs: every collective is told for what it is, by its annotations, and without them by the record and a plan."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

import traceflow
from traceflow.analyzers.attribution import Attribution, attribution
from traceflow.analyzers.plan_check import plan_check
from traceflow.intent.plan import PRESETS, ParallelPlan, Plan, plan_step
from traceflow.run import Run

if find_spec("torch") is None:
    pytest.skip("the workloads need PyTorch", allow_module_level=True)

from traceflow.collectors.workloads import fsdp_tp_torch, moe_torch
from traceflow.collectors.workloads.moe_torch_layers import ETP_STAGES, FORWARD_STAGES
from traceflow.collectors.workloads.torch_stages import backward

Told = tuple[str, str, str | None, str]
PROCESSES = 4
SCOPES = {
    *moe_torch.STAGES,
    *moe_torch.FINAL_STAGES,
    *ETP_STAGES,
    *FORWARD_STAGES,
    "dense_gradients",
    "expert_gradients",
}
SCOPES |= {backward(name) for name in SCOPES}

# What one process does in a step, from the description of the workload in `moe_torch_layers`.
TOKENS: dict[Told, int] = {
    ("EP", "token dispatch", "forward", "all-to-all"): 2,  # rows and gates
    ("EP", "combine", "forward", "all-to-all"): 1,
    ("EP", "combine", "backward", "all-to-all"): 1,
    ("EP", "token dispatch", "backward", "all-to-all"): 2,
}
DENSE: dict[Told, int] = {
    ("DP", "router statistics", "forward", "all-reduce"): 1,  # loads and probabilities
    ("DP", "dense gradient reduction", "update", "all-reduce"): 1,
}
OVER_ETP: dict[Told, int] = {
    ("ETP", "ETP gather", "forward", "all-gather"): 2,
    ("ETP", "ETP scatter", "forward", "reduce-scatter"): 1,
    ("ETP", "ETP scatter", "backward", "all-gather"): 1,
    ("ETP", "ETP gather", "backward", "reduce-scatter"): 2,
}
EXPERTS: dict[Told, int] = {("EDP", "expert gradient reduction", "update", "all-reduce"): 1}
COUNTS = ("router statistics", "forward", "all-gather")
STEP: dict[str, dict[Told, int]] = {
    "ep2_edp2": {**TOKENS, **DENSE, **EXPERTS, ("EP", *COUNTS): 1},
    "capacity": {**TOKENS, **DENSE, **EXPERTS},
    "ep4": {**TOKENS, **DENSE, ("EP", *COUNTS): 1},
    "etp2_ep2": {**TOKENS, **DENSE, **OVER_ETP, ("ETPxEP", *COUNTS): 1},
}
each = pytest.mark.parametrize("name", STEP)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    folder = tmp_path_factory.mktemp("attribution")
    for name in STEP:
        layout, more = ("ep2_edp2", ["--capacity-factor", "1.25"]) if name == "capacity" else (name, [])
        moe_torch.main(["--output", str(folder / name), "--layout", layout, "--steps", "1", *more])
    return {name: traceflow.open(folder / name) for name in STEP}


def plan_of(name: str, parallel: ParallelPlan | None = None) -> Plan:
    preset = PRESETS[f"moe-torch-{'ep2-edp2' if name == 'capacity' else name.replace('_', '-')}"]
    model = replace(preset.model, capacity_factor=1.25 if name == "capacity" else None)
    return plan_step(parallel or preset.parallel or ParallelPlan(world=PROCESSES), model, preset.batch, preset.training)


def told(of: Attribution) -> list[Counter[Told]]:
    """What each process does."""
    found: list[Counter[Told]] = [Counter() for _ in range(PROCESSES)]
    for one in of.calls:
        what = one.dimension, one.purpose.value, one.phase and one.phase.value, one.call.kind.value
        found[one.call.participant[0]][what] += 1
    return found


def unannotated(run: Run, **how: object) -> Attribution:
    """What is told without the names of stages and of groups."""
    trace = run.trace
    strings = tuple("part" if text in SCOPES else text for text in trace.strings)
    groups = tuple(replace(group, description="") for group in trace.groups)
    return attribution(replace(trace, strings=strings, groups=groups), run.dependencies, **how)  # type: ignore[arg-type]


@each
def test_every_collective_is_told_from_the_capture_alone(runs: dict[str, Run], name: str) -> None:
    said = {("ETPxEP", *key[1:]) if key[1:] == COUNTS else key: count for key, count in STEP[name].items()}
    assert told(runs[name].attribution()) == [said] * PROCESSES  # the workload itself calls the groups of counts so


@each
@pytest.mark.parametrize("recorded", [False, True])
def test_every_collective_is_told_without_annotations(runs: dict[str, Run], name: str, *, recorded: bool) -> None:
    routing = runs[name].evidence.routing if recorded else None
    assert told(unannotated(runs[name], plan=plan_of(name), routing=routing)) == [STEP[name]] * PROCESSES


@each
def test_the_record_alone_tells_which_way_tokens_go(runs: dict[str, Run], name: str) -> None:
    found = told(unannotated(runs[name], routing=runs[name].evidence.routing))
    for one in found:
        assert {key: one[key] for key in TOKENS} == TOKENS
        assert {key[1] for key in one} <= {key[1] for key in STEP[name]} | {"unknown"}


@each
def test_communication_is_shared_out_among_purposes(runs: dict[str, Run], name: str) -> None:
    answer = runs[name].communication(plan=plan_of(name))
    assert {(c.to_dict()["dimension"], c.to_dict()["purpose"]) for c in answer.collectives} == {
        key[:2] for key in STEP[name]
    }
    assert sum(share.calls for share in answer.shares) == PROCESSES * sum(STEP[name].values())
    payloads = sum(call.payload_bytes or 0 for c in answer.collectives for call in c.calls)
    assert sum(share.payload_bytes or 0 for share in answer.shares) == payloads
    for share in answer.shares:
        assert share.exposed_ns <= share.busy_ns
        assert 0 <= (share.removable_transfer_ns or 0) <= (share.removable_communication_ns or 0)
        assert (share.removable_communication_ns or 0) <= (answer.removable_communication_ns or 0)


@each
def test_the_plan_of_the_workload_agrees(runs: dict[str, Run], name: str) -> None:
    found = runs[name].plan_check(plan_of(name))
    assert [row for row in found.rows if row.agrees is False] == []
    assert not found.findings
    assert {row.subject.value for row in found.rows if row.agrees} == {"ranks", "groups", "payload", "count", "shape"}
    open_ones = {"shared_fc2"} if name != "etp2_ep2" else set()  # an expert's matrix is as large
    if name == "etp2_ep2":  # what ETP gathers is filled up to the longest
        open_ones |= {"etp_gather", "etp_gather_probabilities", "etp_scatter"}
    assert {row.name for row in found.rows if row.agrees is None} <= open_ones


@pytest.mark.parametrize(
    ("change", "codes"),
    [
        ({"ep": 4}, {"TF254", "TF256"}),
        ({"ep": 2, "order": "ep-tp-cp-dp-pp"}, set()),
        ({"ep": 2, "order": "dp-tp-cp-ep-pp"}, {"TF254"}),
        ({"ep": 2, "tp": 2, "sp": True, "etp": 1}, {"TF254", "TF255", "TF256", "TF257"}),
    ],
)
def test_other_plans_differ(runs: dict[str, Run], change: dict[str, object], codes: set[str]) -> None:
    run, plan = runs["ep2_edp2"], plan_of("ep2_edp2", ParallelPlan(world=PROCESSES, **change))  # type: ignore[arg-type]
    found = plan_check(run.trace, run.attribution(plan), plan)
    assert {finding.code for finding in found.findings} == codes


def test_another_width_is_told(runs: dict[str, Run]) -> None:
    plan = plan_of("ep2_edp2")
    assert plan.model is not None
    wide = plan_step(plan.parallel, replace(plan.model, hidden=128), plan.batch, plan.training)
    found = runs["ep2_edp2"].plan_check(wide)
    rows = {row.name for row in found.rows if row.subject.value == "payload" and row.agrees is False}
    assert rows >= {"dispatch", "combine", "dense_gradient", "expert_gradient"}


def test_full_sharding_with_tensor_parallelism(tmp_path: Path) -> None:
    size = ["--sequences=4", "--length=6", "--model=16", "--heads=4", "--hidden=24", "--blocks=2"]
    fsdp_tp_torch.main(["--output", str(tmp_path / "a"), "--steps", "1", *size])
    blocks = 2
    assert (
        told(traceflow.open(tmp_path / "a").attribution())
        == [
            {
                ("DP", "parameter gather", "forward", "all-gather"): blocks,
                ("DP", "parameter gather", "backward", "all-gather"): blocks,
                ("DP", "dense gradient reduction", "backward", "reduce-scatter"): blocks,
                ("TP", "activation sum", "forward", "all-reduce"): 2 * blocks,  # attention and MLP
                ("TP", "activation sum", "backward", "all-reduce"): 4 * blocks,  # the input of each matrix that enters
                ("DP", "scalar statistics", "update", "all-reduce"): 1,  # the loss
            }
        ]
        * PROCESSES
    )
