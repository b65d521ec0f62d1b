"""The JAX mixture of experts: its reference, three variants that agree with it, and what their recordings hold."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from dataclasses import asdict, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from record_processes import launch
from recorded import executed, manifest_of, operations_of

import traceflow
from traceflow import evidence
from traceflow.analyzers.moe.rows import complete_calls, count_rows
from traceflow.collectors.workloads import moe_jax, moe_reference
from traceflow.collectors.workloads.line_mesh import line_mesh
from traceflow.collectors.workloads.moe_jax_layers import (
    AXIS,
    PARAMETER_GATHER,
    VARIANTS,
    Size,
    executed_rows,
    grouped,
    slots,
)
from traceflow.errors import TraceflowError
from traceflow.program.module import COLLECTIVES
from traceflow.trace.model import ABSENT

jax = pytest.importorskip("jax", reason="the workload needs JAX")

Weights = moe_reference.Weights[NDArray[Any]]

each_variant = pytest.mark.parametrize("variant", VARIANTS)

SMALL = Size(tokens=16, model=16, hidden=4, experts=8, choices=2, capacity_factor=4.0)  # room for every assignment
RECORDED = Size(tokens=64, model=16, hidden=8, experts=8, choices=2, capacity_factor=1.0)


@cache
def program(variant: str, devices: int, size: Size) -> Any:
    return moe_jax.evaluate(variant, line_mesh(devices, AXIS), size)


def evaluated(variant: str, devices: int, size: Size, weights: Weights, *batch: NDArray[Any]) -> tuple[Any, ...]:
    """Predictions, loss, gradients and routing, on the host."""
    mesh = line_mesh(devices, AXIS)
    placed = moe_jax.place_weights(mesh, moe_reference.Weights(*(array.astype(np.float32) for array in weights)))
    rows = moe_jax.place_rows(mesh, *(array.astype(np.float32) for array in batch))
    outcome: tuple[Any, ...] = jax.device_get(program(variant, devices, size)(placed, *rows))
    return outcome


def doubles(size: Size) -> tuple[Weights, NDArray[np.float64], NDArray[np.float64]]:
    """The weights and the first batch of the workload, in double precision."""
    x, y = moe_jax.batch(size, 0)
    weights = moe_reference.Weights(*(array.astype(np.float64) for array in moe_jax.initial_weights(size)))
    return weights, x.astype(np.float64), y.astype(np.float64)


def chosen(size: Size, weights: Weights, x: NDArray[np.float64]) -> list[list[int]]:
    """The experts of each token, the best first."""
    logits = (x @ weights.stem @ weights.router).tolist()
    return [sorted(range(size.experts), key=lambda e: -row[e])[: size.choices] for row in logits]


def counted(experts: list[list[int]], devices: int, size: Size) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Assignments of each device's tokens to each expert: all, and those that come after the first few."""
    assigned, dropped = np.zeros((2, devices, size.experts), np.int64)
    for token, choices in enumerate(experts):
        device = token * devices // size.tokens
        for expert in choices:
            assigned[device, expert] += 1
            dropped[device, expert] += assigned[device, expert] > size.capacity(devices)
    return assigned, dropped


def whole_numbers() -> tuple[Weights, NDArray[np.float64], NDArray[np.float64]]:
    """Weights and a batch of `SMALL` for which every quantity but the loss is exact in single precision.

    The first half of a token names its two experts, whose logits are equal: both gates are one half. What enters a
    silu is 40 or more, where it is the identity.
    """
    draw = np.random.default_rng(7)
    half, experts = SMALL.model // 2, SMALL.experts
    stem, router = np.zeros((SMALL.model, SMALL.model)), np.zeros((SMALL.model, experts))
    stem[:half, :half] = np.eye(half)[draw.permutation(half)]
    stem[half:, half:] = np.eye(half)[draw.permutation(half)] * draw.choice([-1, 1], half)
    router[:half] = np.eye(half)[draw.permutation(half)]
    few = [0, 0, 0, 0, 1, -1]
    gate = draw.integers(-1, 2, (experts, SMALL.model, SMALL.hidden)).astype(np.float64)
    gate[:, :half] = draw.integers(24, 28, (experts, half, SMALL.hidden))
    up = draw.choice(few, gate.shape).astype(np.float64)
    down = draw.choice(few, (experts, SMALL.hidden, SMALL.model)).astype(np.float64)
    head = np.eye(SMALL.model)[draw.permutation(SMALL.model)] * draw.choice([-1, 1], SMALL.model)
    x = draw.integers(-1, 2, (SMALL.tokens, SMALL.model)).astype(np.float64)
    for token in x:
        token[:half] = 0
        token[draw.choice(half, 2, replace=False)] = 1
    y = draw.integers(-2, 3, x.shape).astype(np.float64)
    return moe_reference.Weights(stem, router, gate, up, down, head), x, y


# The reference.


def test_the_gradients_of_the_reference_are_differences_of_its_loss() -> None:
    size = Size(tokens=6, model=3, hidden=2, experts=4, choices=2)
    weights, x, y = doubles(size)
    room = np.random.default_rng(5).random((6, 2)) < 0.8
    gradients = moe_reference.evaluate(weights, x, y, 2, room).gradients

    def loss() -> float:
        return moe_reference.evaluate(weights, x, y, 2, room).loss

    for array, gradient in zip(weights, gradients, strict=True):
        assert np.any(gradient)
        for index in np.ndindex(array.shape):
            value = array[index]
            array[index] = value + 1e-6
            above = loss()
            array[index] = value - 1e-6
            below = loss()
            array[index] = value
            np.testing.assert_allclose(gradient[index], (above - below) / 2e-6, rtol=1e-5, atol=1e-8)


def test_capacity_reserves_rows_by_source() -> None:
    rows = moe_reference.capacity(tokens=4096, choices=6, experts=384, factor=1.25)
    assert rows == 80
    assert 384 * rows == 30_720
    assert 4096 * 6 == 24_576
    assert Size(tokens=8 * 4096, experts=384, choices=6).capacity(8) == 80


def test_only_room_for_all_tokens_never_overflows() -> None:
    routings = [np.array(experts)[:, None] for experts in itertools.product([0, 1], repeat=4)]
    assert all(moe_reference.kept(routing, 1, rows=4).all() for routing in routings)
    assert sum(not moe_reference.kept(routing, 1, rows=3).all() for routing in routings) == 2  # all to one expert


# How tokens are arranged.


def test_tokens_are_grouped_by_expert() -> None:
    order, sizes = grouped(jax.numpy.array([1, 0, 1, 1]), 2)
    assert order.tolist() == [1, 0, 2, 3]  # a1 | a0 a2 a3
    assert sizes.tolist() == [1, 3]


def test_three_rows_per_expert_leave_two_of_six_empty() -> None:
    assert slots(jax.numpy.array([1, 0, 1, 1]), 2, room=3).tolist() == [3, 0, 4, 5]
    assert slots(jax.numpy.array([0, 0, 0, 0]), 2, room=3).tolist() == [0, 1, 2, 6]  # 6 is past the end


def assigned_by_table(table: list[list[float]], choices: int) -> NDArray[np.int64]:
    """What two devices count whose tokens are given by the logits of each."""
    logits = np.array(table)
    tokens, experts = logits.shape
    size = Size(tokens, model=tokens, hidden=1, experts=experts, choices=choices)
    one = np.eye(tokens)
    inner = np.ones((experts, tokens, 1))
    weights = moe_reference.Weights(one, logits, inner, inner, inner.transpose(0, 2, 1), one)
    assigned: NDArray[np.int64] = evaluated("masked", 2, size, weights, one, one)[3].assigned
    return assigned


def test_two_of_four_tokens_cross_to_the_other_device() -> None:
    assigned = assigned_by_table([[0, 1], [1, 0], [1, 0], [0, 1]], choices=1)  # experts 1 0 0 1
    assert assigned.tolist() == [[1, 1], [1, 1]]  # off the diagonal: h0 to device 1, h2 to device 0


def test_devices_that_send_equally_may_receive_unequally() -> None:
    table = [[2, 0, 1, 0], [0, 2, 1, 0], [2, 0, 0, 1], [0, 0, 2, 1]]  # a:{0,2} b:{1,2} c:{0,3} d:{2,3}
    assigned = assigned_by_table([[float(logit) for logit in row] for row in table], choices=2)
    assert assigned.reshape(2, 2, 2).sum(axis=2).tolist() == [[2, 2], [1, 3]]
    size = Size(tokens=4, experts=4, choices=2)
    assert executed_rows("ragged", size, assigned).tolist() == [3, 5]


@each_variant
def test_results_return_to_their_tokens_weighted_by_the_gates(variant: str) -> None:
    size = Size(tokens=2, model=2, hidden=1, experts=2, choices=2, capacity_factor=1.0)
    one = np.eye(2)
    gates = np.array([[0.7, 0.3], [0.2, 0.8]])
    gate = np.full((2, 2, 1), 40.0)  # silu(40) is 40
    up = np.array([[[1.0], [2.0]], [[3.0], [4.0]]]) / 40
    down = np.array([[[1.0, 0.0]], [[0.0, 1.0]]])
    weights = moe_reference.Weights(one, np.log(gates), gate, up, down, one)
    predictions = evaluated(variant, 2, size, weights, one, one)[0]
    # v = E0(h0) = (1, 0), w = E1(h0) = (0, 3), z = E0(h1) = (2, 0), u = E1(h1) = (0, 4)
    np.testing.assert_allclose(predictions - one, [[0.7 * 1, 0.3 * 3], [0.2 * 2, 0.8 * 4]], rtol=1e-6)


def test_experts_of_the_ragged_variant_do_k_of_e_parts_of_the_masked_work() -> None:
    assigned = np.random.default_rng(3).multinomial(SMALL.tokens // 4 * SMALL.choices, [1 / 8] * 8, size=(5, 4))
    rows = {variant: executed_rows(variant, SMALL, assigned) for variant in VARIANTS}
    assert {array.shape for array in rows.values()} == {(5, 4)}
    assert rows["ragged"].sum() * SMALL.experts == rows["masked"].sum() * SMALL.choices
    assert set(rows["capacity"].ravel().tolist()) == {SMALL.experts * 4}  # room for all 4 tokens of a device


# The variants agree with the reference.


@each_variant
@pytest.mark.parametrize("devices", [1, 2, 4, 8])
def test_whole_numbers_are_computed_exactly(variant: str, devices: int) -> None:
    weights, x, y = whole_numbers()
    expected = moe_reference.evaluate(weights, x, y, SMALL.choices)
    predictions, loss, gradients, routing = evaluated(variant, devices, SMALL, weights, x, y)
    np.testing.assert_array_equal(predictions, expected.predictions)
    for name, gradient in expected.gradients._asdict().items():
        assert np.any(gradient)
        np.testing.assert_array_equal(getattr(gradients, name), gradient, err_msg=name)
    np.testing.assert_allclose(loss, expected.loss, rtol=1e-6)
    np.testing.assert_array_equal(routing.assigned, counted(chosen(SMALL, weights, x), devices, SMALL)[0])
    assert not routing.dropped.any()


@each_variant
@pytest.mark.parametrize("devices", [2, 8])
def test_real_numbers_agree_to_single_precision(variant: str, devices: int) -> None:
    weights, x, y = doubles(SMALL)
    expected = moe_reference.evaluate(weights, x, y, SMALL.choices)
    predictions, loss, gradients, _ = evaluated(variant, devices, SMALL, weights, x, y)
    pairs = [(predictions, expected.predictions), (loss, np.array(expected.loss))]
    for found, wanted in [*pairs, *zip(gradients, expected.gradients, strict=True)]:
        np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-6 * np.abs(wanted).max())


@pytest.mark.parametrize("devices", [2, 8])
def test_what_exceeds_the_capacity_is_dropped_and_counted(devices: int) -> None:
    size = replace(SMALL, tokens=64, capacity_factor=1.0)
    weights, x, y = doubles(size)
    experts = chosen(size, weights, x)
    assigned, dropped = counted(experts, devices, size)
    assert 0 < dropped.sum() < assigned.sum() / 2
    room = moe_reference.kept(np.array(experts), devices, size.capacity(devices))
    assert np.sum(~room) == dropped.sum()
    expected = moe_reference.evaluate(weights, x, y, size.choices, room)
    predictions, _, gradients, routing = evaluated("capacity", devices, size, weights, x, y)
    np.testing.assert_array_equal(routing.assigned, assigned)
    np.testing.assert_array_equal(routing.dropped, dropped)
    for found, wanted in zip([predictions, *gradients], [expected.predictions, *expected.gradients], strict=True):
        np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-6 * np.abs(wanted).max())


def test_a_step_descends_and_takes_over_the_memory_of_its_weights() -> None:
    mesh, (weights, x, y) = line_mesh(2, AXIS), doubles(SMALL)
    given = moe_jax.place_weights(mesh, moe_jax.initial_weights(SMALL))
    step = moe_jax.train_step("ragged", mesh, SMALL)
    after, _, _ = step(given, *moe_jax.place_rows(mesh, *moe_jax.batch(SMALL, 0)))
    assert all(array.is_deleted() for array in given)
    gradients = moe_reference.evaluate(weights, x, y, SMALL.choices).gradients
    for found, weight, slope in zip(after, weights, gradients, strict=True):
        np.testing.assert_allclose(np.asarray(found), weight - moe_jax.RATE * slope, rtol=0, atol=1e-6)


# What is recorded.


@pytest.fixture(scope="module")
def captures(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two steps of each variant on eight devices, as the command records them."""
    folder = tmp_path_factory.mktemp("moe") / "runs"
    shape = itertools.chain.from_iterable(
        (f"--{name.replace('_', '-')}", f"{value}") for name, value in asdict(RECORDED).items()
    )
    moe_jax.main(["--output", str(folder), "--devices", "8", "--steps", "2", *shape])
    return {variant: folder / variant for variant in VARIANTS}


def stage_of(name: str) -> tuple[str, str] | None:
    """The stage that an operation belongs to, and whether it is part of the way forward or back."""
    stages = [*moe_jax.STAGES, *moe_jax.FINAL_STAGES, PARAMETER_GATHER]
    found = next((word for word in re.findall(r"\w+", name) if word in stages), None)
    return found and (found, "back" if "transpose(" in name else "forward")


@each_variant
def test_each_variant_is_recorded_without_compilation(captures: dict[str, Path], variant: str) -> None:
    manifest = manifest_of(captures[variant])
    assert manifest.complete
    assert [step.step for step in manifest.steps] == [2, 3]
    assert sum(step.compilations for step in manifest.steps) == 0
    assert all(step.fetched_ns is not None for step in manifest.steps)


@each_variant
def test_every_stage_is_found_by_name_forward_and_back(captures: dict[str, Path], variant: str) -> None:
    both = {*moe_jax.STAGES, *([PARAMETER_GATHER] if variant == "masked" else [])}
    expected = set(itertools.product(both, ["forward", "back"])) | {
        (stage, "forward") for stage in moe_jax.FINAL_STAGES
    }
    names = itertools.chain.from_iterable(itertools.starmap(operations_of, executed(captures[variant])))
    assert {stage for name in names if (stage := stage_of(name))} == expected


@pytest.mark.parametrize(
    ("variant", "expected"),
    [
        (
            "capacity",
            {
                ("all-to-all", "dispatch", "forward"): 1,
                ("all-to-all", "combine", "forward"): 1,
                ("all-to-all", "combine", "back"): 1,
                ("all-to-all", "dispatch", "back"): 1,
            },
        ),
        (
            "ragged",
            {
                ("all-gather", "dispatch", "forward"): 3,  # tokens, gates, experts
                ("reduce-scatter", "combine", "forward"): 1,
                ("all-gather", "combine", "back"): 1,
                ("reduce-scatter", "dispatch", "back"): 2,  # tokens, gates
            },
        ),
        (
            "masked",
            {
                ("all-gather", PARAMETER_GATHER, "forward"): 3,  # gate, up, down
                ("reduce-scatter", PARAMETER_GATHER, "back"): 3,
            },
        ),
    ],
)
def test_each_variant_communicates_as_described(
    captures: dict[str, Path], variant: str, expected: dict[tuple[str, str, str], int]
) -> None:
    found = Counter(
        (module.opcode[row], *(stage_of(module.operation_name[row]) or ()))
        for module, row in executed(captures[variant])
        if module.opcode[row] in COLLECTIVES
    )
    assert found == {**expected, ("all-reduce", "gradient_reduction", "forward"): 1}


@each_variant
def test_the_routing_lies_beside_the_trace(captures: dict[str, Path], variant: str) -> None:
    weights, x, _ = doubles(RECORDED)
    assigned, dropped = counted(chosen(RECORDED, weights, x), 8, RECORDED)
    with np.load(captures[variant] / moe_jax.ROUTING) as file:
        routing = dict(file)
    assert routing["step"].tolist() == [0, 1, 2, 3]
    np.testing.assert_array_equal(routing["assigned"][0], assigned)
    np.testing.assert_array_equal(routing["dropped"][0], dropped if variant == "capacity" else 0)
    assert routing["assigned"].sum(axis=(1, 2)).tolist() == [RECORDED.tokens * RECORDED.choices] * 4
    np.testing.assert_array_equal(routing["rows"], executed_rows(variant, RECORDED, routing["assigned"]))
    assert {name: routing[name] for name in asdict(RECORDED)} == asdict(RECORDED)
    assert routing.get("capacity") == (2 if variant == "capacity" else None)  # ceil(1.0 * 8 * 2 / 8)


@each_variant
def test_the_record_of_the_recording_is_the_workload_s_own(captures: dict[str, Path], variant: str) -> None:
    with np.load(captures[variant] / moe_jax.ROUTING) as file:
        wanted = dict(file)
    run = traceflow.open(captures[variant])
    assert run.evidence.routing is not None
    (record,) = run.evidence.routing.layers
    np.testing.assert_array_equal(record.assigned, wanted["assigned"])
    rows = count_rows(record, complete_calls(record))
    np.testing.assert_array_equal(rows.dropped, wanted["dropped"])
    np.testing.assert_array_equal(rows.executed.sum(axis=2), wanted["rows"])
    found = run.moe(step=2)
    (layer,) = found.layers
    kept = int(wanted["assigned"][2].sum() - wanted["dropped"][2].sum())
    unused = layer.executed_rows - kept
    empty = {"capacity": (unused, 0), "ragged": (0, 0), "masked": (0, unused)}
    assert (layer.capacity_padding_rows, layer.masked_rows) == empty[variant]
    stages = {(stage.stage, stage.direction, stage.device) for stage in found.stages}
    assert {("experts", way, device) for way in ("forward", "backward") for device in range(8)} <= stages
    assert found.balance is not None


@each_variant
def test_a_step_fetches_once_and_on_the_way_sends_nothing_to_the_host(captures: dict[str, Path], variant: str) -> None:
    found = evidence.read(captures[variant])
    names = [found.trace.strings[code] for code in found.trace.events.name]
    assert names.count("traceflow.fetch") == 2  # the loss of each step
    opcodes = {opcode for module in found.programs.values() for opcode in module.opcode}
    assert not opcodes & {"infeed", "outfeed", "send", "recv"}


def test_two_processes_of_four_devices_train_together(tmp_path: Path) -> None:
    launch(tmp_path, "moe")
    devices, keys, routings = [], [], []
    for rank in range(2):
        capture = tmp_path / f"rank{rank}" / "capacity"
        found = evidence.read(capture).trace
        assert [one.rank for one in found.ranks] == [rank]  # each lies in a capture of its own
        devices.append(set(found.lanes.device.tolist()) - {ABSENT})
        keys.append(set(found.communications.key.tolist()))
        with np.load(capture / moe_jax.ROUTING) as file:
            routings.append(dict(file))
        (record,) = evidence.read(capture).routing.layers  # type: ignore[union-attr]  # it has one
        assert record.assigned.shape[1] == 8
        assert ((record.assigned[0, :, 0] >= 0) == (np.arange(8) // 4 == rank)).all()
    assert len(devices[0]) == len(devices[1]) == 4
    assert not devices[0] & devices[1]
    assert keys[0] == keys[1]
    assert len(keys[0]) == 2 * 5  # four all-to-alls and one all-reduce in each of two steps
    weights, x, _ = doubles(RECORDED)
    for routing in routings:
        np.testing.assert_array_equal(routing["assigned"][0], counted(chosen(RECORDED, weights, x), 8, RECORDED)[0])


@each_variant
def test_device_time_is_joined_to_instructions_and_lines(captures: dict[str, Path], variant: str) -> None:
    found = traceflow.open(captures[variant]).summary().join
    assert found is not None
    assert found.joined_ns >= 0.98 * found.device_ns > 0
    assert found.sourced_ns >= 0.95 * found.joined_ns


def test_a_wrong_loss_leaves_no_capture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(VARIANTS, "masked", lambda _size, _devices, _weights, x, _route: 0 * x)
    with pytest.raises(TraceflowError, match=r"TF115.*the reference's"):
        moe_jax.record_moe(tmp_path, variants=["masked"], devices=1, steps=1, size=SMALL)
    assert not (tmp_path / "masked").exists()


def test_what_was_not_recorded_now_gets_no_routing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = partial(moe_jax.record_moe, tmp_path, variants=["masked"], devices=1, size=SMALL)
    (capture,) = record(steps=1)
    before = (capture / moe_jax.ROUTING).read_bytes()
    with pytest.raises(TraceflowError, match="TF110"):
        record(steps=1)
    monkeypatch.setenv("TRACEFLOW", "0")
    assert record(steps=2) == (capture,)
    assert (capture / moe_jax.ROUTING).read_bytes() == before
