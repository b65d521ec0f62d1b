"""`instrument`: calls become steps inside a recording, and nothing else changes."""

from __future__ import annotations

import json
import threading
import weakref
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest

import traceflow
from traceflow import recording
from traceflow.capture import Capture, Manifest

jax = pytest.importorskip("jax", reason="recording needs JAX")
record = partial(recording.record, framework="jax")  # other tests may have imported PyTorch, too


def manifest_of(path: Path) -> Manifest:
    manifest = Capture.open(path).manifest
    assert manifest is not None
    return manifest


def _double(x: Any) -> Any:
    """Twice as much."""
    return x + x


double: Any = traceflow.instrument(jax.jit(_double))


def test_each_call_in_a_recording_is_a_step_that_ends_when_its_result_is_ready(tmp_path: Path) -> None:
    with record(tmp_path / "a", warmup=2, steps=3):
        results = [double(float(k)).item() for k in range(7)]
    manifest = manifest_of(tmp_path / "a")
    assert results == [0, 2, 4, 6, 8, 10, 12]
    assert [step.step for step in manifest.warmup] == [0, 1]
    assert [step.step for step in manifest.steps] == [2, 3, 4]
    assert all(step.ready_ns is not None and step.ready_ns >= step.returned_ns for step in manifest.steps)


def test_a_function_that_is_not_jitted_works_too(tmp_path: Path) -> None:
    @traceflow.instrument(name="train")
    def train(x: Any, *, by: int) -> Any:
        return {"loss": x * by}

    with record(tmp_path / "a", steps=2):
        losses = [train(jax.numpy.ones(2), by=k)["loss"].sum().item() for k in range(3)]
    assert losses == [0, 2, 4]
    assert len(manifest_of(tmp_path / "a").steps) == 2


def test_it_is_transparent(tmp_path: Path) -> None:
    assert (double.__name__, double.__doc__) == ("_double", "Twice as much.")
    assert double.__wrapped__(3) == 6
    assert double.lower(1.0).compile()(1.0) == 2
    with pytest.raises(AttributeError, match="nothing"):
        _ = double.nothing
    with pytest.raises(ZeroDivisionError), record(tmp_path / "a", warmup=0):
        traceflow.instrument(lambda: 1 / 0)()


def test_a_method_is_bound(tmp_path: Path) -> None:
    class Trainer:
        rate = 3

        @traceflow.instrument
        def step(self, x: Any) -> Any:
            return self.rate * x

    with record(tmp_path / "a", warmup=0):
        assert Trainer().step(jax.numpy.ones(())).item() == 3
    assert len(manifest_of(tmp_path / "a").steps) == 1


def test_within_a_step_a_call_is_part_of_it(tmp_path: Path) -> None:
    outer: Any = traceflow.instrument(lambda x: double(double(x)))
    with record(tmp_path / "a", warmup=1) as recorder:
        for _ in range(3):
            with recorder.step() as step:
                step.ready(outer(1.0))
        assert outer(1.0).item() == 4
    assert [step.step for step in manifest_of(tmp_path / "a").steps] == [1, 2, 3]


def test_within_a_step_the_program_of_a_call_is_kept_as_it_is_when_recorded(tmp_path: Path) -> None:
    triple: Any = traceflow.instrument(jax.jit(lambda x: x * 3), name="triple")
    with record(tmp_path / "a", warmup=1) as recorder:
        for size in (5, 2, 2):
            with recorder.step() as step:
                step.ready(triple(jax.numpy.ones(size)))
    assert [value["shape"] for value in program_of(tmp_path / "a", "triple")["inputs"]] == [[2]]


def test_a_call_that_jax_traces_is_no_step(tmp_path: Path) -> None:
    @traceflow.instrument
    def plain(x: Any) -> Any:
        return x * x

    with record(tmp_path / "a", warmup=0) as recorder:
        assert jax.grad(plain)(3.0).item() == 6
        with recorder.step():
            pass
    assert [step.step for step in manifest_of(tmp_path / "a").steps] == [0]


def test_another_thread_takes_no_steps(tmp_path: Path) -> None:
    with record(tmp_path / "a", warmup=0):
        double(1.0)
        thread = threading.Thread(target=double, args=(1.0,))
        thread.start()
        thread.join()
    assert len(manifest_of(tmp_path / "a").steps) == 1


def test_after_a_recording_within_another_the_outer_one_goes_on(tmp_path: Path) -> None:
    with record(tmp_path / "a", warmup=9) as outer:
        with record(tmp_path / "b", warmup=0):
            double(1.0)
        assert recording.recording_here() is outer
        double(1.0)
    assert recording.recording_here() is None
    assert len(manifest_of(tmp_path / "b").steps) == 1


def program_of(capture: Path, name: str) -> Any:
    return json.loads((capture / "program" / f"{name}.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A capture of a step on a mesh of 2 x 4: y = x @ w with x over data, w over model, and w donated."""
    capture = tmp_path_factory.mktemp("sharded") / "a"
    mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    place = partial(jax.sharding.NamedSharding, mesh)

    def step(state: Any, times: int, x: Any, _unused: Any, *, rate: float) -> Any:
        y = jax.lax.with_sharding_constraint(x @ state["w"], place(jax.P("data", "model")))
        return {"w": state["w"] * rate * times}, y

    train: Any = traceflow.instrument(jax.jit(step, static_argnums=1, donate_argnums=0), name="train/one")
    state = {"w": jax.device_put(jax.numpy.ones((8, 12)), place(jax.P(None, "model")))}
    x = jax.device_put(jax.numpy.ones((6, 8)), place(jax.P("data")))
    with record(capture, steps=2):
        for _ in range(3):
            state, _ = train(state, 2, x, np.ones((3, 5)), rate=0.5)
    return capture


def test_the_program_says_how_each_argument_is_placed(sharded: Path) -> None:
    program = program_of(sharded, "train_one")
    assert (program["name"], program["problem"]) == ("train/one", None)
    inputs = {value["path"]: value for value in program["inputs"]}
    assert list(inputs) == ["state['w']", "x", "_unused", "rate"]
    weight = inputs["state['w']"]
    assert (weight["shape"], weight["dtype"], weight["donated"]) == ([8, 12], "float32", True)
    assert weight["intended"]["spec"] == weight["compiled"]["spec"] == [None, "model"]
    assert weight["intended"]["mesh"] == {"data": 2, "model": 4}
    assert weight["intended"]["local_shape"] == [8, 3]
    assert inputs["x"]["intended"]["spec"] == ["data", None]
    assert (inputs["_unused"]["intended"], inputs["_unused"]["compiled"]) == (None, None)
    assert [value["shape"] for value in program["outputs"]] == [[8, 12], [6, 12]]
    assert program["outputs"][1]["compiled"]["spec"] == ["data", "model"]


def test_the_compilers_figures_are_kept(sharded: Path) -> None:
    program = program_of(sharded, "train_one")
    memory, cost = program["memory"], program["cost"]
    assert memory["argument_bytes"] == 4 * (8 * 3 + 3 * 8 + 1)  # the local w, the local x, and the rate
    assert memory["alias_bytes"] == 4 * 8 * 3  # w is donated
    assert memory["output_bytes"] >= 4 * (8 * 3 + 3 * 3)
    assert cost["lowered_all_devices"]["flops"] >= 2 * 6 * 8 * 12
    assert 2 * 3 * 8 * 3 <= cost["compiled_per_device"]["flops"] < 2 * 6 * 8 * 12


def test_the_texts_are_what_was_written_and_what_was_compiled(sharded: Path) -> None:
    written = (sharded / "program" / "train_one.stablehlo.txt").read_text(encoding="utf-8")
    compiled = (sharded / "program" / "train_one.hlo.txt").read_text(encoding="utf-8")
    assert '["data"=2, "model"=4]' in written
    assert "tensor<8x12xf32>" in written
    assert compiled.startswith("HloModule jit_step")
    assert "f32[8,3]" in compiled  # the part of one device


def test_a_capture_opens_with_the_program_once_and_its_buffers(sharded: Path) -> None:
    run = traceflow.open(sharded)
    assert len(run.trace.ranks) == 1
    executed = [run.programs[key] for key in np.unique(run.trace.hlo.program).tolist()]
    (program,) = [one for one in executed if one.name == "jit_step"]
    assert program.buffers is not None
    donated = program.buffers.allocations
    assert donated.size_bytes[donated.donated].sum() == 4 * 8 * 3  # the local w
    assert sorted(shape for shape, op in zip(program.shape, program.opcode, strict=True) if op == "dot") == ["f32[3,3]"]


def test_the_program_opens_without_the_trace(sharded: Path) -> None:
    (alone,) = traceflow.open(sharded / "program" / "train_one.hlo.pb").programs.values()
    (text,) = traceflow.open(sharded / "program" / "train_one.hlo.txt").programs.values()
    assert alone.buffers is not None
    assert set(text.instruction_name) == set(alone.instruction_name)


def test_keeping_the_program_compiles_nothing_and_keeps_no_array(tmp_path: Path) -> None:
    compiled: list[str] = []

    def note(event: str, _: float, **__: str | int) -> None:
        compiled.extend([event] if event == "/jax/core/compile/backend_compile_duration" else [])

    step: Any = traceflow.instrument(jax.jit(lambda x: x * 3), name="triple")
    x, y = jax.numpy.ones(5), jax.numpy.ones(5)
    alive = weakref.ref(x)
    with record(tmp_path / "a", steps=2):
        step(x)
        step(x)
        del x
        assert alive() is None
        jax.monitoring.register_event_duration_secs_listener(note)
        step(y)
    jax.monitoring.unregister_event_duration_listener(note)
    assert program_of(tmp_path / "a", "triple")["inputs"][0]["shape"] == [5]
    assert compiled == []


def test_a_program_that_cannot_be_had_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> NoReturn:
        message = "no text\nat all"
        raise RuntimeError(message)

    monkeypatch.setattr(jax.stages.Lowered, "as_text", fail)
    with record(tmp_path / "a", warmup=0):
        assert double(1.0).item() == 2
    assert program_of(tmp_path / "a", "_double")["problem"] == "RuntimeError: no text"


def test_functions_of_one_name_are_told_apart_and_others_have_no_program(tmp_path: Path) -> None:
    functions: list[Any] = [traceflow.instrument(jax.jit(lambda x, k=k: x + k), name="add") for k in range(2)]
    with record(tmp_path / "a", warmup=0):
        for function in (*functions, traceflow.instrument(lambda x: x), *functions):
            function(1.0)
    assert sorted(file.name for file in (tmp_path / "a" / "program").glob("*.json")) == ["add-2.json", "add.json"]


def test_programs_are_left_out_where_they_are_declined(tmp_path: Path) -> None:
    with record(tmp_path / "a", warmup=0, hlo=False):
        double(1.0)
    assert not (tmp_path / "a" / "program").exists()
