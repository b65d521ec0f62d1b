"""What a parallel plan implies: the known answers, from Python and from the command line."""

from __future__ import annotations

from fractions import Fraction
from typing import Any, TypeAlias

import pytest
from plans import LARGE, asked

from traceflow.intent.plan import (
    PRESETS,
    Batch,
    Model,
    ParallelPlan,
    Training,
    capacity,
    dispatchers,
    gradient_scaling,
    moves,
    place,
    plan_step,
)

Result: TypeAlias = dict[str, Any]

V4_PRO = PRESETS["deepseek-v4-pro"]
WORDS = "--world 1024 --pp 8 --tp 1 --cp 2 --etp 1 --ep 64 --gtp 1 --egtp 1 --order tp-cp-ep-dp-pp --next-ep 32"
WORDS += " --preset deepseek-v4-pro --sequence 8192 --micro-batch 1 --global-batch 4096"


@pytest.fixture(params=["python", "command line"])
def result(request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]) -> Result:
    """The example with 1024 ranks, asked in both ways."""
    if request.param == "command line":
        answer: Result = asked(capsys, *WORDS.split())["result"]
        return answer
    batch = Batch(sequence=8192, micro_batch=1, global_batch=4096)
    return plan_step(LARGE, V4_PRO.model, batch, next_ep=32).to_dict()


def row(rows: list[Result], **known: Any) -> Result:
    """The only row that has these values."""
    (found,) = [row for row in rows if known.items() <= row.items()]
    return found


def test_both_meshes(result: Result) -> None:
    assert result["ranks_per_stage"] == 128
    assert (result["data_parallel"], result["expert_data_parallel"], result["experts_per_rank"]) == (64, 2, 6)
    assert (result["context_parallel_runtime"], result["batch_parallel"]) == (2, 64)


def test_coordinates_within_a_stage(result: Result) -> None:
    dense, expert = result["strides"]["dense"], result["strides"]["expert"]
    assert (dense["cp"], dense["dp"], dense["pp"]) == (1, 2, 128)
    assert (expert["ep"], expert["edp"], expert["pp"]) == (1, 64, 128)


@pytest.mark.parametrize(
    ("name", "members"),
    [
        ("CP", [0, 1]),
        ("DP", [*range(0, 128, 2)]),
        ("DPxCP", [*range(128)]),
        ("EP", [*range(64)]),
        ("EDP", [0, 64]),
        ("PP", [*range(0, 1024, 128)]),
    ],
)
def test_groups_of_rank_0(result: Result, name: str, members: list[int]) -> None:
    assert [group for group in result["groups"][name] if 0 in group] == [members]


def test_experts_held(result: Result) -> None:
    held = result["experts_held"]
    assert (held[0], held[1]) == ([*range(6)], [*range(6, 12)])

    def experts_of(rank: int) -> list[int]:
        (group,) = [group for group in result["groups"]["EP"] if rank in group]
        return list(held[group.index(rank)])

    assert experts_of(0) == experts_of(64) != experts_of(1)
    assert [0, 64] in result["groups"]["EDP"]
    assert not any({0, 1} <= set(group) for group in result["groups"]["EDP"])


def test_parameters_of_one_expert(result: Result) -> None:
    assert row(result["weights"], name="routed_expert")["parameters"] == 66_060_288


def test_tokens(result: Result) -> None:
    tokens = result["tokens"]
    assert (tokens["per_rank"], tokens["in_expert_group"]) == (4096, 262_144)
    assert tokens["assignments_in_expert_group"] == 1_572_864
    assert tokens["expected_assignments_per_expert"] == tokens["rows_per_expert"] == 4096
    assert tokens["sent_rows"] == 24_576


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("tokens", [4096, 7168]),
        ("router_logits", [4096, 384]),
        ("permuted", [24576, 7168]),
        ("received", [24576, 7168]),
        ("tokens_per_expert", [6]),
        ("expert_fc1", [4096, 6144]),
        ("expert_activation", [4096, 3072]),
        ("output", [4096, 1, 7168]),
        ("pp_boundary", [4096, 1, 4 * 7168]),
    ],
)
def test_shapes_on_one_rank(result: Result, name: str, shape: list[int]) -> None:
    assert row(result["shapes"], name=name)["shape"] == shape


def test_what_a_balanced_router_decides_is_marked(result: Result) -> None:
    marked = {shape["name"] for shape in result["shapes"] if shape["expected"]}
    assert "received" in marked
    assert marked.isdisjoint({"tokens", "router_logits", "permuted", "output"})


def test_payload_of_dispatch_and_combine(result: Result) -> None:
    exchanges = [row for row in result["payload"] if row["operation"] in {"dispatch", "combine"}]
    assert {(row["bytes"], row["group"]) for row in exchanges} == {(352_321_536, "EP")}
    mib = 1 << 20
    assert exchanges[0]["remote_bytes"] == 330.75 * mib
    assert sum(row["remote_bytes"] for row in exchanges if row["direction"] == "forward") == 661.5 * mib
    assert sum(row["remote_bytes"] for row in exchanges) == 1323 * mib


def test_backward_comes_in_reverse(result: Result) -> None:
    layer = [(row["operation"], row["direction"]) for row in result["payload"] if row["group"] == "EP"]
    forward = ["dispatch", "probabilities", "combine"]
    assert layer == [(name, "forward") for name in forward] + [(name, "backward") for name in reversed(forward)]


def test_routed_weights(result: Result) -> None:
    layer = row(result["weights"], name="routed_experts", of="a layer")
    stage = row(result["weights"], name="routed_experts", of="a stage of 8 layers")
    assert (layer["parameters"], layer["bytes"]) == (6 * 66_060_288, 792_723_456)
    assert stage["bytes"] == 8 * 792_723_456
    assert round(stage["bytes"] / 2**30, 3) == 5.906


def test_dispatchers_side_by_side(result: Result) -> None:
    alltoall, allgather, flex = result["dispatchers"]
    assert (alltoall["rows"], alltoall["expected"]) == (6 * 4096, True)
    assert (allgather["rows"], allgather["expected"]) == (64 * 4096, False)
    assert (flex["topk"], flex["destinations"]) == (6, 384)


def test_gradient_scaling(result: Result) -> None:
    scaling = result["gradient_scaling"]
    assert scaling["sum"] == {"dense": 1 / 128, "expert": 1 / 128}
    assert scaling["avg"] == {"dense": 1, "expert": 2 / 128}
    assert scaling["per_token"] == {"dense": 1, "expert": 1}


def test_micro_batches(result: Result) -> None:
    assert result["micro_batches"] == 64


def test_experts_after_another_ep(result: Result) -> None:
    assert len(result["moves"]) == 384
    for move in result["moves"]:
        expert = 6 * move["ep_rank"] + move["local"]
        assert move["expert"] == expert
        assert (move["next_ep_rank"], move["next_local"]) == (expert // 12, expert % 12)


def test_experts_compute_k_of_e(result: Result) -> None:
    assert result["expert_flops_ratio"] == 6 / 384


def test_layers_that_do_not_divide_are_the_only_problem(result: Result) -> None:
    (problem,) = result["problems"]
    assert (problem["code"], problem["severity"]) == ("TF251", "warning")
    assert problem["reason"].startswith("61 layers")


def test_experts_and_their_matrices_on_four_ranks(capsys: pytest.CaptureFixture[str]) -> None:
    found = asked(capsys, "--world", "4", "--etp", "2", "--ep", "2")["result"]
    plan = ParallelPlan(world=4, etp=2, ep=2)
    for groups in (plan.all_groups(), found["groups"]):
        assert [list(group) for group in groups["ETP"]] == [[0, 1], [2, 3]]
        assert [list(group) for group in groups["EP"]] == [[0, 2], [1, 3]]


def test_gathered_weights_that_share_a_sequence(capsys: pytest.CaptureFixture[str]) -> None:
    words = "--world 128 --tp 1 --pp 1 --gtp 64 --cp 2 --gtp-sequence-shards 64"
    found = asked(capsys, *words.split())["result"]
    assert (found["context_parallel_runtime"], found["data_parallel"], found["batch_parallel"]) == (128, 1, 1)


def test_physical_destinations(capsys: pytest.CaptureFixture[str]) -> None:
    words = "--world 8 --etp 2 --ep 4 --preset deepseek-v4-pro --dispatcher flex"
    found = asked(capsys, *words.split())["result"]
    flex = row(found["dispatchers"], name="flex")
    assert (flex["topk"], flex["destinations"]) == (12, 768)
    assert (found["model"]["topk"], found["model"]["experts"]) == (6, 384)
    assert (found["expert_flops_ratio"], found["experts_per_rank"]) == (6 / 384, 96)
    api = dispatchers(ParallelPlan(world=8, etp=2, ep=4), V4_PRO.model, V4_PRO.batch)[2]
    assert (api.topk, api.destinations) == (12, 768)


def test_capacity_of_each_source(capsys: pytest.CaptureFixture[str]) -> None:
    assert capacity(4096, 6, 384, 1.25) == 80
    tokens = asked(capsys, *WORDS.split(), "--capacity-factor", "1.25")["result"]["tokens"]
    assert (tokens["capacity"], tokens["sent_rows"], tokens["least_padding_rows"]) == (80, 30_720, 30_720 - 24_576)
    assert tokens["least_padding_rows"] / tokens["sent_rows"] == 0.2
    assert tokens["rows_per_expert"] == 80 * 64


def test_small_capacities() -> None:
    assert capacity(4, 1, 2, 1.5) == 3
    assert capacity(4, 1, 2, 2.0) == 4  # room for every token in one expert
    model = Model(hidden=1, experts=2, topk=1, expert_hidden=1, capacity_factor=1.5)
    tokens = plan_step(ParallelPlan(world=1), model, Batch(sequence=4)).tokens
    assert tokens is not None
    assert (tokens.sent_rows, tokens.assignments, tokens.least_padding_rows) == (6, 4, 2)


def test_the_public_names() -> None:
    scaling = gradient_scaling(LARGE)
    assert (scaling.sum.dense, scaling.sum.expert) == (Fraction(1, 128), Fraction(1, 128))
    assert (scaling.avg.dense, scaling.avg.expert) == (Fraction(1), Fraction(2, 128))
    before, after = moves(384, ep=64, next_ep=32)[383]
    assert (before.ep_rank, before.local, after.ep_rank, after.local) == (63, 5, 31, 11)
    assert place(11, 384, ep=64) == place(6 * 1 + 5, 384, ep=64)
    plan = plan_step(LARGE, V4_PRO.model, V4_PRO.batch)
    assert (plan.kind, plan.experts_per_rank, plan.micro_batches) == ("plan", 6, 64)
    assert len(plan.to_pandas()) == len(plan.payload)


def test_matrices_of_experts_in_parts() -> None:
    """ETP gathers rows and adds up partial results; EGTP gathers weights, and is accounted apart."""
    model = Model(hidden=16, experts=8, topk=2, expert_hidden=32)
    plan = plan_step(ParallelPlan(world=8, etp=2, ep=2, egtp=2), model, Batch(sequence=10))
    shapes = {shape.name: shape.shape for shape in plan.shapes}
    assert shapes["gathered"] == (40, 16)
    assert shapes["expert_fc1"] == (10, 32)  # 2 x 10 x 4 ranks over 8 experts; 2 f / ETP
    assert shapes["expert_activation"] == (10, 16)
    assert shapes["expert_fc2"] == (10, 16)
    assert shapes["scattered"] == (20, 16)
    found = {(p.operation, p.direction): (p.collective, p.group, p.bytes, p.remote_bytes) for p in plan.payload}
    rows, held = 20 * 16 * 2, 4 * 3 * 16 * 32 // 4
    assert found["etp_gather", "forward"] == ("all-gather", "ETP", rows, rows)
    assert found["etp_gather", "backward"] == ("reduce-scatter", "ETP", 2 * rows, rows)
    assert found["etp_scatter", "forward"] == ("reduce-scatter", "ETP", 2 * rows, rows)
    assert found["etp_scatter", "backward"] == ("all-gather", "ETP", rows, rows)
    assert found["egtp_weight_gather", "forward"] == ("all-gather", "EGTP", held * 2, held * 2)
    assert found["egtp_weight_gather", "backward"] == ("all-gather", "EGTP", held * 2, held * 2)
    assert found["egtp_gradient_scatter", "backward"] == ("reduce-scatter", "EGTP", 2 * held * 4, held * 4)


def test_a_latent_width_is_what_travels() -> None:
    model = Model(hidden=64, experts=4, topk=2, expert_hidden=32, latent=16)
    plan = plan_step(ParallelPlan(world=2, ep=2), model, Batch(sequence=8))
    shapes = {shape.name: shape.shape for shape in plan.shapes}
    assert (shapes["latent"], shapes["permuted"], shapes["combined"]) == ((8, 16), (16, 16), (8, 16))
    assert (shapes["router_logits"], shapes["output"]) == ((8, 4), (8, 1, 64))
    assert {p.bytes for p in plan.payload if p.operation == "dispatch"} == {16 * 16 * 2}
    assert {w.name: w.parameters for w in plan.weights}["latent_projections"] == 2 * 64 * 16


def test_all_tokens_are_gathered_where_asked_for() -> None:
    model = Model(hidden=4, experts=8, topk=3, expert_hidden=8)
    plan = plan_step(ParallelPlan(world=4, ep=4), model, Batch(sequence=8), Training(dispatcher="allgather"))
    shapes = {shape.name: shape.shape for shape in plan.shapes}
    assert (shapes["gathered"], shapes["partial"], shapes["combined"]) == ((32, 4), (32, 4), (8, 4))
    forward = [(p.operation, p.collective, p.bytes) for p in plan.payload if p.direction == "forward"]
    assert forward[:4] == [
        ("dispatch", "all-gather", 8 * 4 * 2),
        ("probabilities", "all-gather", 8 * 8 * 4),
        ("routing_map", "all-gather", 8 * 8),
        ("combine", "reduce-scatter", 32 * 4 * 2),
    ]


def test_optimizers_move_gradients_differently() -> None:
    model = Model(hidden=4, experts=4, topk=1, expert_hidden=5, dense_parameters=10)
    held, dense = 2 * 3 * 4 * 5, 10 + 4 * 4
    found = {}
    for name in ("replicated", "distributed", "muon"):
        plan = plan_step(ParallelPlan(world=4, ep=2), model, Batch(sequence=4), Training(optimizer=name))
        found[name] = [(p.operation, p.collective, p.group, p.bytes) for p in plan.payload if p.per == "layer and step"]
    assert found["replicated"] == [
        ("dense_gradient", "all-reduce", "DPxCP", dense * 4),
        ("expert_gradient", "all-reduce", "EDP", held * 4),
    ]
    assert found["distributed"] == [
        ("dense_gradient", "reduce-scatter", "DPxCP", dense * 4),
        ("dense_parameter_gather", "all-gather", "DPxCP", 7 * 2),  # a quarter of 26, filled up
        ("expert_gradient", "reduce-scatter", "EDP", held * 4),
        ("expert_parameter_gather", "all-gather", "EDP", held // 2 * 2),
    ]
    assert found["muon"][2] == ("expert_muon_exchange", "all-to-all", "EDP", held * 2)


@pytest.mark.parametrize(
    ("optimizer", "dtype", "state_bytes"),
    [
        ("replicated", "bf16", 240 * 3 * 4),  # a copy in f32 and two moments
        ("replicated", "f32", 240 * 2 * 4),
        ("distributed", "bf16", 120 * 3 * 4),  # EDP 2 shares it
        ("muon", "bf16", 120 * 2 * 4),
        ("muon", "f32", 120 * 1 * 4),
    ],
)
def test_states_of_optimizers(optimizer: str, dtype: str, state_bytes: int) -> None:
    model = Model(hidden=4, experts=4, topk=1, expert_hidden=5, layers=3, dtype=dtype, mtp_layers=1)
    plan = plan_step(ParallelPlan(world=8, pp=2, ep=2), model, None, Training(optimizer=optimizer))
    rows = {(row.name, row.of): row.parameters for row in plan.weights}
    assert rows["routed_experts", "a layer"] == rows["routed_experts", "1 MTP layers"] == 120
    assert rows["routed_experts", "a stage of 2 layers"] == 240
    assert {row.bytes for row in plan.weights if row.name == "routed_experts_gradients"} == {240 * 4}
    assert {row.bytes for row in plan.weights if row.name == "routed_experts_optimizer"} == {state_bytes}


def test_gathered_weights_leave_samples_apart_unless_they_share_sequences() -> None:
    model, batch = V4_PRO.model, Batch(sequence=64, micro_batch=2, global_batch=128)
    apart, shared = (
        plan_step(ParallelPlan(world=16, gtp=4, cp=2, gtp_sequence_shards=shards), model, batch) for shards in (1, 4)
    )
    assert (apart.parallel.batch_parallel, apart.micro_batches) == (8, 8)
    assert (shared.parallel.batch_parallel, shared.micro_batches) == (2, 32)


def test_copies_of_hot_experts_cost_their_weights() -> None:
    model = Model(hidden=4, experts=4, topk=1, expert_hidden=5)
    plan = plan_step(ParallelPlan(world=2, ep=2), model, Batch(sequence=4), Training(virtual_experts=3))
    found = {(p.operation, p.direction): p.bytes for p in plan.payload if p.collective == "send"}
    assert found == {
        ("virtual_expert_weights", "forward"): 3 * 60 * 2,
        ("virtual_expert_gradients", "backward"): 3 * 60 * 4,
    }


def test_expectations_that_are_no_whole_number_have_no_shape() -> None:
    model = Model(hidden=4, experts=4, topk=1, expert_hidden=8)
    plan = plan_step(ParallelPlan(world=2, ep=2), model, Batch(sequence=5))
    assert plan.tokens is not None
    assert plan.tokens.rows_per_expert == Fraction(5, 2)
    shapes = {s.name: (at, s.shape) for at, s in enumerate(plan.shapes)}
    at, shape = shapes["expert_fc1"]
    assert shape == (None, 16)
    assert f"/result/shapes/{at}/shape/0" in {s.what for s in plan.skipped}


@pytest.mark.parametrize(
    ("model", "batch", "skipped"),
    [
        (None, None, {"/result/tokens", "/result/weights", "/result/micro_batches", "/result/experts_per_rank"}),
        (V4_PRO.model, None, {"/result/tokens", "/result/shapes", "/result/payload", "/result/micro_batches"}),
        (V4_PRO.model, Batch(sequence=64), {"/result/micro_batches"}),
    ],
)
def test_what_was_not_said_is_unknown(model: Model | None, batch: Batch | None, skipped: set[str]) -> None:
    plan = plan_step(ParallelPlan(world=8, ep=8), model, batch)
    assert skipped <= {one.what for one in plan.skipped}
    assert plan.micro_batches is None
