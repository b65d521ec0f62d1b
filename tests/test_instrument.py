"""`instrument`: calls become steps inside a recording, and nothing else changes."""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path
from typing import Any

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
