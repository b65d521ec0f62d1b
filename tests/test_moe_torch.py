"""The PyTorch mixture of experts: its reference, its layouts that agree with it, and what its recordings hold."""

from __future__ import annotations

import gzip
import itertools
import json
from collections import Counter
from dataclasses import asdict, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from moe_torch_cases import REAL, counted, doubles, expected, first_batch, real_case, whole_case
from recorded import manifest_of
from torch_programs import Case, Outcome, learn, learn_on

import traceflow
from traceflow.analyzers.moe.rows import complete_calls, count_rows
from traceflow.collectors.workloads import moe_reference, moe_torch, torch_processes
from traceflow.collectors.workloads.moe_torch_layers import (
    EDP,
    EP,
    ETP,
    ETP_STAGES,
    EXCHANGE,
    FORWARD_STAGES,
    LAYOUTS,
    MIX_STAGES,
    Grid,
    Layout,
    Size,
    plan,
)
from traceflow.collectors.workloads.moe_torch_reference import Rule, evaluate
from traceflow.collectors.workloads.torch_stages import backward
from traceflow.errors import TraceflowError
from traceflow.intent.routing import Routing
from traceflow.run import Run
from traceflow.trace.flight_recorder import with_recording_beside
from traceflow.trace.kineto import read_kineto
from traceflow.trace.model import Trace

if find_spec("torch") is None:
    pytest.skip("the workload needs PyTorch", allow_module_level=True)

PROCESSES = 4
FOUR = {name: layout for name, layout in LAYOUTS.items() if layout.processes == PROCESSES}
ALONE = Grid(LAYOUTS["single"], 0, dict.fromkeys((ETP, EP, EDP, EXCHANGE)))
RECORDED = {  # what each layout is recorded with
    "ep2_edp2": ["--capacity-factor", "1.0"],
    "ep4": ["--routing", "top_k"],
    "etp2_ep2": ["--routing", "hash", "--optimiser", "sgd"],
}

each_layout = pytest.mark.parametrize("layout", FOUR)


# The reference.


@pytest.mark.parametrize("routing", ["top_k", "hash"])
def test_the_gradients_of_the_reference_are_differences_of_its_loss(routing: str) -> None:
    size = Size(tokens=6, model=3, hidden=2, experts=4, choices=2)
    weights = doubles(dict(moe_torch.initial_weights(size)))
    x, y, names = first_batch(size)
    table = moe_torch.hashed(names, 2, 4) if routing == "hash" else None
    rule = Rule(2, table, sources=2, capacity=2)
    gradients = evaluate(weights, x, y, rule).gradients
    assert gradients.keys() == weights.keys()
    for name, array in weights.items():
        assert np.any(gradients[name])
        for index in np.ndindex(array.shape):
            value, losses = array[index], []
            for change in (1e-4, -1e-4):  # what raises logits takes six digits from them
                array[index] = value + change
                losses.append(evaluate(weights, x, y, rule).loss)
            array[index] = value
            difference = (losses[0] - losses[1]) / 2e-4
            np.testing.assert_allclose(gradients[name][index], difference, rtol=1e-4, atol=1e-6)


def test_a_table_that_agrees_with_the_router_changes_nothing() -> None:
    weights = doubles(dict(moe_torch.initial_weights(REAL)))
    x, y, _ = first_batch(REAL)
    table, _ = moe_reference.choose(x @ weights["stem"] @ weights["router"], 2)
    free, told = (evaluate(weights, x, y, Rule(2, each)) for each in (None, table))
    np.testing.assert_allclose(told.predictions, free.predictions, rtol=0, atol=1e-9)
    np.testing.assert_allclose(told.loss, free.loss, rtol=1e-9)
    for name, gradient in free.gradients.items():
        np.testing.assert_allclose(told.gradients[name], gradient, rtol=0, atol=1e-9)


# Groups and splits, without processes.


def test_etp2_ep2_groups() -> None:
    groups = Layout(etp=2, ep=2).groups()
    assert groups[ETP] == [[0, 1], [2, 3]]
    assert groups[EP] == [[0, 2], [1, 3]]
    assert groups[EDP] == [[0], [1], [2], [3]]
    assert groups[EXCHANGE] == [[0, 1, 2, 3]]


def test_a_stage_of_the_1024_gpu_example() -> None:
    layout = Layout(ep=64, edp=2)
    groups = layout.groups()
    assert layout.processes == 128
    assert groups[EP][0] == list(range(64))
    assert groups[EDP][0] == [0, 64]
    weight = np.arange(384)[:, None, None]
    held = [moe_torch.shard(layout, rank, "gate", weight).ravel().tolist() for rank in (0, 1, 64)]
    assert held == [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 10, 11], [0, 1, 2, 3, 4, 5]]


@each_layout
def test_every_process_is_once_in_a_group_of_each_kind(layout: str) -> None:
    for members in FOUR[layout].groups().values():
        assert sorted(itertools.chain.from_iterable(members)) == list(range(PROCESSES))
    places = [FOUR[layout].position(rank) for rank in range(PROCESSES)]
    for axis, name in enumerate((ETP, EP, EDP)):
        (own,) = {tuple(places[rank][axis] for rank in group) for group in FOUR[layout].groups()[name]}
        assert own == tuple(range(len(own)))


def test_processes_that_send_equally_may_receive_unequally() -> None:
    counts = np.array([[[1, 1, 2, 0]], [[1, 0, 1, 2]]])  # a:{0,2} b:{1,2} | c:{0,3} d:{2,3}
    first, second = (plan(counts, ep, 0) for ep in range(2))
    assert (first.sent, second.sent) == ([2, 2], [1, 3])
    assert (first.received, second.received) == ([2, 1], [2, 3])
    assert (sum(first.rows), sum(second.rows)) == (3, 5)
    assert first.order.tolist() == [0, 2, 1]  # e0 of a, e1 of b | e0 of c
    assert second.order.tolist() == [0, 1, 2, 3, 4]  # e2 of a and b | e2 of d, e3 of c and d


def test_rows_of_both_processes_of_etp_are_sorted_and_padding_is_left_out() -> None:
    counts = np.array([[[1, 0], [2, 1]], [[0, 1], [1, 0]]])  # [EP, ETP, E], one expert on each
    first = plan(counts, ep=0, etp=0)
    assert first.sent == [1, 0]
    assert first.received == [1, 0]  # from ranks 0 and 2
    assert first.longest == 3  # its neighbour receives 2 + 1
    assert first.order.tolist() == [0, 3, 4, 5]  # rows 1 and 2 are padding
    assert first.rows == [4]
    assert plan(counts, ep=1, etp=1).order.tolist() == [0, 1]


def test_known_gates_weigh_known_results() -> None:
    one, gates = np.eye(2, dtype=np.float32), np.array([[0.7, 0.3], [0.2, 0.8]])
    gate = np.full((2, 2, 1), 40.0)  # silu(40) is 40
    up = np.array([[[1.0], [2.0]], [[3.0], [4.0]]]) / 40
    down = np.array([[[1.0, 0.0]], [[0.0, 1.0]]])
    none = np.zeros((2, 1))
    weights = {"stem": one, "router": np.log(gates), "gate": gate, "up": up, "down": down, "head": one}
    weights |= {"shared_gate": none, "shared_up": none, "shared_down": none.T}
    size = Size(tokens=2, model=2, hidden=1, experts=2, choices=2)
    case = Case(ALONE.layout, size, {n: w.astype(np.float32) for n, w in weights.items()}, one, one, None)
    predictions = learn_on(ALONE, case).predictions
    # v = E0(h0) = (1, 0), w = E1(h0) = (0, 3), z = E0(h1) = (2, 0), u = E1(h1) = (0, 4)
    np.testing.assert_allclose(predictions - one, [[0.7 * 1, 0.3 * 3], [0.2 * 2, 0.8 * 4]], rtol=1e-6)


# All layouts agree with the reference.


WHOLE = list(itertools.product(FOUR, ("top_k", "hash", "capacity")))
REALS = list(itertools.product(FOUR, ("top_k", "hash", "lonely"), (None, 1.0)))


@pytest.fixture(scope="module")
def outcomes() -> list[tuple[Case, list[Outcome]]]:
    """All cases, and what each of four processes found: those of `WHOLE`, then those of `REALS`."""
    cases = [whole_case(FOUR[layout], routing) for layout, routing in WHOLE]
    cases += [real_case(FOUR[layout], routing, factor) for layout, routing, factor in REALS]
    return list(zip(cases, zip(*torch_processes.run(learn, PROCESSES, cases), strict=True), strict=True))


@pytest.mark.parametrize("case", range(len(WHOLE)), ids=map("-".join, WHOLE))
def test_whole_numbers_are_computed_exactly(outcomes: list[tuple[Case, list[Outcome]]], case: int) -> None:
    given, found = outcomes[case]
    wanted = expected(given)
    np.testing.assert_array_equal(np.concatenate([one.predictions for one in found]), wanted.predictions)
    for rank, one in enumerate(found):
        np.testing.assert_allclose(one.loss, wanted.loss, rtol=1e-6)
        for name, gradient in wanted.gradients.items():
            assert np.any(gradient)
            np.testing.assert_array_equal(
                one.gradients[name], moe_torch.shard(given.layout, rank, name, gradient), err_msg=name
            )


@pytest.mark.parametrize("case", range(len(REALS)), ids=["-".join(map(str, how)) for how in REALS])
def test_real_numbers_agree_to_single_precision(outcomes: list[tuple[Case, list[Outcome]]], case: int) -> None:
    given, found = outcomes[len(WHOLE) + case]
    wanted = expected(given)
    predictions = np.concatenate([one.predictions for one in found])
    np.testing.assert_allclose(predictions, wanted.predictions, rtol=0, atol=2e-6 * np.abs(wanted.predictions).max())
    for rank, one in enumerate(found):
        np.testing.assert_allclose(one.loss, wanted.loss, rtol=1e-6)
        for name, gradient in wanted.gradients.items():
            held = moe_torch.shard(given.layout, rank, name, gradient)
            np.testing.assert_allclose(
                one.gradients[name], held, rtol=0, atol=2e-6 * np.abs(gradient).max(), err_msg=name
            )


def test_every_case_routes_as_counted_and_plans_the_rows_that_arrive(
    outcomes: list[tuple[Case, list[Outcome]]],
) -> None:
    dropped_anything = []
    for case, found in outcomes:
        assigned, dropped = counted(case)
        np.testing.assert_array_equal([one.routing.assigned for one in found], assigned)
        np.testing.assert_array_equal([one.routing.dropped for one in found], dropped)
        dropped_anything.append(bool(dropped.any()))
        assert dropped.any() == (case.size.capacity_factor is not None)
        room = case.size.capacity(PROCESSES)
        sent = assigned if room is None else np.full_like(assigned, room)
        for rank, one in enumerate(found):
            etp, ep, edp = case.layout.position(rank)
            here = np.array_split(np.arange(case.size.experts), case.layout.ep)
            peers = [r for r in range(PROCESSES) if case.layout.position(r)[::2] == (etp, edp)]
            sharers = [r for r in range(PROCESSES) if case.layout.position(r)[2] == edp]
            assert one.routing.sent == [sent[rank, experts].sum() for experts in here]
            assert one.routing.received == [sent[peer, here[ep]].sum() for peer in peers]
            assert one.routing.rows == sent[sharers][:, here[ep]].sum(axis=0).tolist()
    assert sum(dropped_anything) == 3 + 3 * 3


def test_processes_without_a_row_take_part(outcomes: list[tuple[Case, list[Outcome]]]) -> None:
    index = len(WHOLE) + REALS.index(("ep4", "lonely", None))
    _, found = outcomes[index]
    assert [sum(one.routing.rows) for one in found] == [REAL.tokens * REAL.choices, 0, 0, 0]
    assert np.any(found[0].gradients["down"])
    assert not any(np.any(one.gradients["down"]) for one in found[1:])


def test_loads_and_probabilities_are_those_of_all_processes(outcomes: list[tuple[Case, list[Outcome]]]) -> None:
    case, found = outcomes[len(WHOLE)]
    logits = case.x.astype(np.float64) @ case.weights["stem"] @ case.weights["router"]
    probability = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    for one in found:
        np.testing.assert_allclose(one.routing.load, counted(case)[0].sum(axis=0) / 128, rtol=1e-6)
        np.testing.assert_allclose(one.routing.probability, probability.mean(axis=0), rtol=1e-5)


# What is recorded.


@pytest.fixture(scope="module")
def captures(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two steps of each layout, as the command records them."""
    folder = tmp_path_factory.mktemp("moe")
    shape = [f"--{name}={value}" for name, value in asdict(REAL).items() if value is not None]
    for layout, options in RECORDED.items():
        moe_torch.main(["--output", str(folder / layout), "--layout", layout, "--steps", "2", *options, *shape])
    return {layout: folder / layout for layout in RECORDED}


def recorded_case(layout: str, number: int) -> Case:
    """The batch of a recorded step; its weights are the right ones for the first step only."""
    options = RECORDED[layout]
    x, y, names = moe_torch.batch(REAL, number)
    table = moe_torch.hashed(names, 2, REAL.experts) if "hash" in options else None
    size = replace(REAL, capacity_factor=1.0 if "--capacity-factor" in options else None)
    return Case(FOUR[layout], size, dict(moe_torch.initial_weights(REAL)), x, y, table)


def trace_file(path: Path, rank: int) -> Path:
    return path / "torch" / f"rank{rank:05d}.pt.trace.json.gz"


def trace_of(path: Path, rank: int) -> Trace:
    return with_recording_beside(read_kineto(trace_file(path, rank)), trace_file(path, rank))


def calls_of(path: Path, rank: int) -> list[tuple[int, int, str]]:
    """Start, end and name of what the main thread of a process did in the first recorded step, by start."""
    events = json.loads(gzip.decompress(trace_file(path, rank).read_bytes()))["traceEvents"]
    spans = [event for event in events if event.get("ph") == "X" and event.get("cat") in {"cpu_op", "user_annotation"}]
    (step,) = (span for span in spans if span["name"] == f"ProfilerStep#{moe_torch.WARMUP}")
    inside = (span for span in spans if span["tid"] == step["tid"] and 0 <= span["ts"] - step["ts"] < step["dur"])
    return sorted((span["ts"], span["ts"] + span["dur"], span["name"]) for span in inside)


@each_layout
def test_four_processes_record_two_steps_each(captures: dict[str, Path], layout: str) -> None:
    manifest = manifest_of(captures[layout])
    assert manifest.complete
    everybody = (manifest, *manifest.peers)
    assert [one.process.rank for one in everybody] == list(range(PROCESSES))
    assert {tuple(step.step for step in one.steps) for one in everybody} == {(2, 3)}
    assert all(step.fetched_ns is not None for one in everybody for step in one.steps)


@each_layout
def test_every_stage_is_found_by_name_forward_and_back_in_order(captures: dict[str, Path], layout: str) -> None:
    mixed = list(MIX_STAGES)
    if layout == "etp2_ep2":
        mixed.insert(mixed.index("sort"), ETP_STAGES[0])
        mixed.insert(mixed.index("combine"), ETP_STAGES[1])
    both = ["stem", "router", "shared_expert", *mixed, "head", "loss"]
    forward = ["stem", "router", "shared_expert", *FORWARD_STAGES, *mixed, "head", "loss"]
    wanted = [*forward, *map(backward, reversed(both)), *moe_torch.FINAL_STAGES]
    for rank in range(PROCESSES):
        found = [name for _, _, name in calls_of(captures[layout], rank)]
        assert [name for name in found if name in {*wanted}] == wanted


EXCHANGES = {
    ("dispatch", "alltoall_base_"): 2,  # rows and gates
    ("combine", "alltoall_base_"): 1,
    ("combine backward", "alltoall_base_"): 1,
    ("dispatch backward", "alltoall_base_"): 2,
    ("load_balancing", "allreduce_"): 1,
    ("dense_gradients", "allreduce_"): 1,
}
COUNTS = {("preprocess", "_allgather_base_"): 1}
OVER_ETP = {
    ("etp_gather", "_allgather_base_"): 2,
    ("etp_scatter", "_reduce_scatter_base_"): 1,
    ("etp_scatter backward", "_allgather_base_"): 1,
    ("etp_gather backward", "_reduce_scatter_base_"): 2,
}


@pytest.mark.parametrize(
    ("layout", "wanted"),
    [
        ("ep2_edp2", {**EXCHANGES, ("expert_gradients", "allreduce_"): 1}),  # with a capacity nothing is counted
        ("ep4", {**EXCHANGES, **COUNTS}),
        ("etp2_ep2", {**EXCHANGES, **COUNTS, **OVER_ETP}),
    ],
)
def test_each_layout_communicates_as_described(
    captures: dict[str, Path], layout: str, wanted: dict[tuple[str, str], int]
) -> None:
    scopes = {name for name, _ in wanted}
    for rank in range(PROCESSES):
        calls = calls_of(captures[layout], rank)
        around = [call for call in calls if call[2] in scopes]
        found = Counter(
            (
                next((scope for first, last, scope in around if first <= start < last), "none"),
                name.removeprefix("c10d::"),
            )
            for start, _, name in calls
            if name.startswith("c10d::")
        )
        assert found == wanted


@each_layout
def test_splits_in_the_trace_are_those_that_the_workload_counted(captures: dict[str, Path], layout: str) -> None:
    with np.load(captures[layout] / moe_torch.ROUTING) as file:
        routing = dict(file)
    for rank in range(PROCESSES):
        trace = trace_of(captures[layout], rank)
        c = trace.communications
        exchanges = [row for row in range(len(c.event)) if trace.strings[c.operation[row]] == "all_to_all"]
        exchanges.sort(key=lambda row: c.sequence[row])
        splits = [[trace.strings[code[row]] for code in (c.in_splits, c.out_splits)] for row in exchanges]
        sent, received = (routing[name][moe_torch.WARMUP :, rank].tolist() for name in ("sent", "received"))
        wanted = []
        for there, back in zip(sent, received, strict=True):
            out, home = [str(there), str(back)], [str(back), str(there)]
            wanted += [out, out, home, out, home, home]  # rows, gates, results; and the slopes of these
        assert splits == wanted


@each_layout
def test_collectives_are_joined_with_the_groups_of_the_layout(captures: dict[str, Path], layout: str) -> None:
    groups = FOUR[layout].groups()
    for rank in range(PROCESSES):
        trace = trace_of(captures[layout], rank)
        assert (trace.communications.group >= 0).all()
        assert (trace.communications.sequence >= 0).all()
        members = {trace.groups[row].members for row in np.unique(trace.communications.group)}
        used = ["EP", *(["EDP"] if layout == "ep2_edp2" else []), *(["ETP"] if layout == "etp2_ep2" else [])]
        own = {next(tuple(group) for group in groups[name] if rank in group) for name in used}
        assert members == own | {tuple(range(PROCESSES))}


@each_layout
def test_the_routing_lies_beside_the_trace(captures: dict[str, Path], layout: str) -> None:
    with np.load(captures[layout] / moe_torch.ROUTING) as file:
        routing = dict(file)
    assert routing["step"].tolist() == [0, 1, 2, 3]
    assigned, dropped = counted(recorded_case(layout, 0))
    np.testing.assert_array_equal(routing["assigned"][0], assigned)
    np.testing.assert_array_equal(routing["dropped"][0], dropped)
    np.testing.assert_allclose(routing["load"][0], assigned.sum(axis=0) / assigned.sum(), rtol=1e-6)
    assert routing["assigned"].sum(axis=(1, 2)).tolist() == [REAL.tokens * REAL.choices] * 4
    room = 4 if layout == "ep2_edp2" else None  # ceil(1.0 * 16 * 2 / 8)
    assert routing.get("capacity") == room
    sent = routing["assigned"] if room is None else np.full_like(routing["assigned"], room)
    np.testing.assert_array_equal(routing["sent"].sum(axis=2), sent.sum(axis=2))
    assert (routing["rows"].sum(axis=1) == FOUR[layout].etp * sent.sum(axis=(1, 2))).all()
    np.testing.assert_array_equal(routing["rows"], routing["expert_rows"].sum(axis=2))
    assert {name: routing[name] for name in asdict(FOUR[layout])} == asdict(FOUR[layout])
    fields = {**asdict(REAL), "capacity_factor": None if room is None else 1.0}
    assert {name: routing.get(name) for name in fields} == fields


@each_layout
def test_the_record_of_the_recording_is_the_workload_s_own(captures: dict[str, Path], layout: str) -> None:
    with np.load(captures[layout] / moe_torch.ROUTING) as file:
        counted = dict(file)
    run = traceflow.open(captures[layout])
    routing = run.evidence.routing
    assert routing is not None
    (record,) = routing.layers
    np.testing.assert_array_equal(record.assigned, counted["assigned"])
    rows = count_rows(record, complete_calls(record))
    np.testing.assert_array_equal(rows.dropped, counted["dropped"])
    np.testing.assert_array_equal(rows.executed, counted["expert_rows"])
    np.testing.assert_array_equal(rows.sent, counted["sent"])
    for rank in range(PROCESSES):
        mine = rows.sent[:, list(record.ep_groups[rank]), rows.own[rank]]
        np.testing.assert_array_equal(mine, counted["received"][:, rank])
    found = run.moe(step=3)
    (layer,) = found.layers
    assert layer.dropped == counted["dropped"][3].sum()
    assert list(layer.rows_per_rank) == counted["rows"][3].tolist()
    kept = counted["assigned"][3].sum() - layer.dropped
    assert layer.capacity_padding_rows == counted["rows"][3].sum() // FOUR[layout].etp - kept
    assert layer.alignment_padding_rows == layer.masked_rows == 0
    assert found.agreement is not None
    assert found.agreement.compared == PROCESSES * 6  # rows, gates and results, both ways
    assert found.agreement.differences == ()
    assert found.balance is not None
    assert {stage.stage for stage in found.stages} >= {"route", *MIX_STAGES}


@each_layout
def test_another_routing_than_the_recorded_one_is_noticed(captures: dict[str, Path], layout: str) -> None:
    run = traceflow.open(captures[layout])
    routing = run.evidence.routing
    assert routing is not None
    record = replace(routing.layers[0], assigned=routing.layers[0].assigned[:, ::-1])  # as if ranks were mixed up
    if layout == "ep2_edp2":  # a capacity sends as many rows whatever was chosen
        record = replace(record, shape=replace(record.shape, capacity=5))
    mistaken = replace(run.evidence, routing=Routing((record,)))
    findings = [finding.code for finding in Run(mistaken, ("a",)).moe(step=3).findings]
    assert "TF222" in findings


def test_experts_by_name_do_not_change_from_step_to_step(captures: dict[str, Path]) -> None:
    with np.load(captures["etp2_ep2"] / moe_torch.ROUTING) as file:
        assigned = file["assigned"]
    for number in range(4):
        np.testing.assert_array_equal(assigned[number], counted(recorded_case("etp2_ep2", number))[0])


def test_a_wrong_loss_leaves_no_capture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moe_torch, "_reference_losses", lambda *_: [0.0, 0.0, 0.0])
    with pytest.raises(TraceflowError, match=r"TF115.*the reference's 0"):
        moe_torch.record_moe(tmp_path / "a", layout="single", steps=1, size=REAL)
    assert not (tmp_path / "a").exists()


def test_what_was_not_recorded_now_gets_no_routing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = partial(moe_torch.record_moe, tmp_path / "a", layout="single", size=REAL)
    before = (record(steps=1) / moe_torch.ROUTING).read_bytes()
    with pytest.raises(TraceflowError, match="TF110"):
        record(steps=1)
    monkeypatch.setenv("TRACEFLOW", "0")
    assert record(steps=2) == tmp_path / "a"
    assert (tmp_path / "a" / moe_torch.ROUTING).read_bytes() == before
