"""The collective matmul: exact products, the ring's order, the structure that is compiled, and its recording."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from record_processes import launch
from recorded import executed, manifest_of, operations_of

import traceflow
from traceflow import evidence
from traceflow.collectors.workloads.collective_matmul import (
    AXIS,
    LAYOUTS,
    Matrix,
    main,
    matrices,
    place,
    record_collective_matmul,
    route,
)
from traceflow.collectors.workloads.line_mesh import line_mesh
from traceflow.errors import TraceflowError
from traceflow.trace.model import ABSENT

jax = pytest.importorskip("jax", reason="the workload needs JAX")


FORMS = {form: layout for layout in LAYOUTS.values() for form in layout.forms}
RINGS = ["ring", "scatter_ring"]


def product(form: str, devices: int, a: Matrix, w: Matrix) -> Matrix:
    mesh = line_mesh(devices, AXIS)
    return np.asarray(FORMS[form].forms[form](mesh)(*place(mesh, FORMS[form], a, w)))


def compiled(form: str, devices: int) -> str:
    mesh = line_mesh(devices, AXIS)
    operands = place(mesh, FORMS[form], *matrices((16, 64, 64)))
    text: str = FORMS[form].forms[form](mesh).lower(*operands).compile().as_text()  # type: ignore[attr-defined]
    return text


def count(operation: str, hlo: str) -> int:
    return len(re.findall(rf" {operation}\(", hlo))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("devices", [1, 2, 4, 8])
@pytest.mark.parametrize("size", [(2, 8, 8), (5, 16, 24), (33, 64, 40)])
def test_all_forms_equal_numpy_exactly(form: str, devices: int, size: tuple[int, int, int]) -> None:
    a, w = matrices(size)
    result = product(form, devices, a, w)
    assert result.dtype == np.float32
    np.testing.assert_array_equal(result, (a.astype(np.int64) @ w.astype(np.int64)).astype(np.float32))


@pytest.mark.parametrize("form", FORMS)
def test_the_worked_example_on_four_devices(form: str) -> None:
    a = np.arange(16, dtype=np.float32).reshape(2, 8)
    w = np.arange(64, dtype=np.float32).reshape(8, 8)
    result = product(form, 4, a, w)
    # Row 0 of A is 0..7; column 0 of W is 0, 8, .. 56: 8 * (0 + 1 + 4 + 9 + 16 + 25 + 36 + 49).
    assert result[0, 0] == 1120
    np.testing.assert_array_equal(result, a @ w)


def test_the_route_sends_to_the_device_before() -> None:
    assert route(4) == [(0, 3), (1, 0), (2, 1), (3, 2)]


def test_device_j_uses_block_j_plus_t_in_round_t() -> None:
    # Rounding tells the order of a sum: 1e8 swallows a 1 that is added to it, and later cancels.
    contributions = [1e8, -1e8, 1.0, 1.0]
    a = np.zeros((1, 8), np.float32)
    a[0, ::2] = contributions  # one number in each of the four blocks
    w = np.ones((8, 4), np.float32)
    expected = [
        ((1e8 - 1e8) + 1.0) + 1.0,  # device 0: blocks 0 1 2 3
        0.0,  # device 1: blocks 1 2 3 0: both ones are lost in -1e8
        0.0,  # device 2: blocks 2 3 0 1: both are lost in 1e8
        1.0,  # device 3: blocks 3 0 1 2: the first is lost, the last comes after the cancellation
    ]
    assert product("ring", 4, a, w).tolist() == [expected]


def test_the_sum_of_block_j_starts_at_the_device_before_and_ends_at_j() -> None:
    contributions = [1e8, -1e8, 1.0, 1.0]  # as above, but added up by the devices that hold them
    a = np.zeros((1, 8), np.float32)
    a[0, ::2] = contributions
    w = np.ones((8, 4), np.float32)
    expected = [
        0.0,  # block 0: devices 3 2 1 0: both ones are lost in -1e8
        0.0,  # block 1: devices 0 3 2 1: both are lost in 1e8
        2.0,  # block 2: devices 1 0 3 2: both come after the cancellation
        1.0,  # block 3: devices 2 1 0 3: the first is lost, the last is not
    ]
    assert product("scatter_ring", 4, a, w).tolist() == [expected]


@pytest.mark.parametrize("form", RINGS)
@pytest.mark.parametrize("devices", [4, 8])
def test_a_ring_compiles_to_one_permute_less_than_multiplications(form: str, devices: int) -> None:
    hlo = compiled(form, devices)
    assert count("collective-permute", hlo) == devices - 1
    assert count("dot", hlo) == devices
    assert count("all-gather", hlo) == count("all-reduce", hlo) == count("reduce-scatter", hlo) == 0


def test_the_gather_compiles_to_one_all_gather_and_one_multiplication() -> None:
    hlo = compiled("gather", 8)
    assert count("all-gather", hlo) == 1
    assert count("dot", hlo) == 1
    assert count("collective-permute", hlo) == count("all-reduce", hlo) == 0


def test_the_scatter_compiles_to_one_multiplication_and_one_reduce_scatter() -> None:
    hlo = compiled("scatter", 8)
    assert count("reduce-scatter", hlo) == 1
    assert count("dot", hlo) == 1
    assert count("collective-permute", hlo) == count("all-reduce", hlo) == count("all-gather", hlo) == 0


def test_each_device_holds_what_its_layout_says() -> None:
    mesh = line_mesh(4, AXIS)
    a, w = matrices((2, 8, 12))
    for name, shape, block in [("gather", (8, 3), w[:, 6:9]), ("scatter", (2, 12), w[4:6])]:
        columns, part = (operand.addressable_shards[2].data for operand in place(mesh, LAYOUTS[name], a, w))
        assert part.shape == shape
        np.testing.assert_array_equal(part, block)
        np.testing.assert_array_equal(columns, a[:, 4:6])


STAGES = {
    "gather": {"gather", "multiply"},
    "ring": {f"round_{turn}/{stage}" for turn in range(8) for stage in ("select", "multiply")}
    | {f"round_{turn}/permute" for turn in range(7)}
    | {"accumulate"},
    "scatter": {"multiply", "scatter"},
    "scatter_ring": {f"round_{turn}/{stage}" for turn in range(8) for stage in ("select", "multiply")}
    | {f"round_{turn}/{stage}" for turn in range(1, 8) for stage in ("permute", "accumulate")},
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_stage_is_found_by_name_on_each_of_eight_devices(tmp_path: Path, layout: str) -> None:
    record_collective_matmul(tmp_path, layout=layout, devices=8, size=(16, 64, 64), steps=2)
    for form in LAYOUTS[layout].forms:
        for device in range(8):
            instructions = executed(tmp_path / form, device)
            names = {name for module, row in instructions for name in operations_of(module, row)}
            found = {
                match[1] for name in names if (match := re.search(r"jit\(\w+\)/(?:shard_map/)?+([\w/]+)/\w+$", name))
            }
            assert found == STAGES[form]
        joined = traceflow.open(tmp_path / form).summary().join
        assert joined is not None
        assert joined.joined_ns >= 0.98 * joined.device_ns > 0
        assert joined.sourced_ns >= 0.95 * joined.joined_ns


def test_the_matrices_would_show_a_mix_up() -> None:
    a, w = matrices((16, 16, 16))
    assert not np.array_equal(a, w)
    assert not np.array_equal(a, a.T)
    assert not np.array_equal(w, w.T)
    assert len({column.tobytes() for column in a.T}) == 16
    assert len({row.tobytes() for row in w}) == 16
    assert {a.dtype, w.dtype} == {np.dtype(np.float32)}
    np.testing.assert_array_equal(a, np.rint(a))


def test_more_devices_than_jax_has_are_refused() -> None:
    with pytest.raises(TraceflowError, match=r"TF115.*fresh process"):
        line_mesh(len(jax.devices("cpu")) + 1, AXIS)


def test_devices_of_a_platform_that_is_not_there_are_refused() -> None:
    with pytest.raises(TraceflowError, match=r"TF115.*devices of tpu"):
        line_mesh(1, AXIS, platform="tpu")


def test_a_fresh_process_records_both_forms(tmp_path: Path) -> None:
    module = "traceflow.collectors.workloads.collective_matmul"
    output = tmp_path / "runs"
    arguments = ["--output", str(output), "--devices", "4", "--size", "16", "64", "64", "--steps", "3"]
    command = [sys.executable, "-W", "error", "-m", module, *arguments]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("JAX")}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.splitlines() == [str(output / "gather"), str(output / "ring")]
    assert done.stderr == ""
    for form in LAYOUTS["gather"].forms:
        manifest = manifest_of(output / form)
        assert manifest.complete
        assert manifest.devices is not None
        assert manifest.devices.local_count == 4
        assert [step.step for step in manifest.steps] == [2, 3, 4]
        assert sum(step.compilations for step in manifest.steps) == 0
        assert sum(step.compilations for step in manifest.warmup) > 0
        assert all(step.fetched_ns is not None for step in manifest.steps)


def test_the_layout_that_scatters_is_recorded_on_request(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--layout", "scatter", "--devices", "2", "--size", "4", "8", "8", "--steps", "2"]
    main(["--output", str(tmp_path), *options])
    paths = capsys.readouterr().out.splitlines()
    assert paths == [str(tmp_path / "scatter"), str(tmp_path / "scatter_ring")]
    for path in paths:
        assert manifest_of(path).complete


def test_two_processes_of_four_devices_compute_together(tmp_path: Path) -> None:
    launch(tmp_path, "scatter")
    for form, count in [("scatter", 1), ("scatter_ring", 7)]:
        traces = [evidence.read(tmp_path / f"rank{rank}" / form).trace for rank in range(2)]
        devices = [set(trace.lanes.device.tolist()) - {ABSENT} for trace in traces]
        assert len(devices[0]) == len(devices[1]) == 4
        for trace in traces:
            assert [group.members for group in trace.groups] == [tuple(sorted(devices[0] | devices[1]))]
        keys = [set(trace.communications.key.tolist()) for trace in traces]
        assert keys[0] == keys[1]
        assert len(keys[0]) == 2 * count  # of each of two steps


def test_a_recording_is_not_overwritten(tmp_path: Path) -> None:
    record_collective_matmul(tmp_path, devices=2, size=(4, 8, 8), steps=1)
    with pytest.raises(TraceflowError, match="TF110"):
        record_collective_matmul(tmp_path, devices=2, size=(4, 8, 8), steps=1)
    assert record_collective_matmul(tmp_path, devices=2, size=(4, 8, 8), steps=2, force=True) == tmp_path
    for form in LAYOUTS["gather"].forms:
        assert len(manifest_of(tmp_path / form).steps) == 2


def test_a_wrong_product_leaves_no_capture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(_: Any) -> Any:
        return lambda a, w: jax.numpy.zeros((a.shape[0], w.shape[1]))

    monkeypatch.setitem(LAYOUTS["gather"].forms, "ring", wrong)
    with pytest.raises(TraceflowError, match=r"TF115.*differs"):
        record_collective_matmul(tmp_path, devices=2, size=(4, 8, 8), steps=1)
    assert (tmp_path / "gather").is_dir()
    assert not (tmp_path / "ring").exists()
