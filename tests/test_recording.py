"""`record` on JAX: what is recorded, what is left behind when something fails, and that failures stay ours."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest

import traceflow
from traceflow import recording
from traceflow.attachment import write_attachment
from traceflow.capture import Capture, Manifest
from traceflow.collectors.jax_profiler import JaxProfiler
from traceflow.errors import TraceflowError
from traceflow.recording import Recorder

jax = pytest.importorskip("jax", reason="recording needs JAX")
record = partial(recording.record, framework="jax")  # other tests may have imported PyTorch, too


@pytest.fixture(scope="module")
def matrix() -> Any:
    return jax.block_until_ready(jax.numpy.eye(64))


@pytest.fixture(scope="module")
def square(matrix: Any) -> Callable[[Any], Any]:
    """A compiled function that takes a while."""

    def many(x: Any) -> Any:
        return jax.lax.fori_loop(0, 300, lambda _, y: y @ y, x)

    compiled = jax.jit(many)
    jax.block_until_ready(compiled(matrix))
    return compiled  # type: ignore[no-any-return]


def run(recorder: Recorder, count: int, body: Callable[[int], object] = lambda _: None) -> None:
    for k in range(count):
        with recorder.step():
            body(k)


def manifest_of(path: Path) -> Manifest:
    manifest = Capture.open(path).manifest
    assert manifest is not None
    return manifest


def incomplete(path: Path) -> Path:
    """What a recording that failed left; nothing lies under the name of the capture."""
    assert not path.exists()
    (left,) = path.parent.glob(f"{path.name}.incomplete-*")
    assert manifest_of(left).complete is False
    return left


def xspaces(path: Path) -> list[Path]:
    return sorted(path.glob("plugins/profile/*/*.xplane.pb"))


def marks_in(path: Path) -> list[tuple[str, int, int, int | None]]:
    """(name, start, end, step) of the annotations in the trace, in ns since 1970."""
    (file,) = xspaces(path)
    planes = {plane.name: plane for plane in jax.profiler.ProfileData.from_file(str(file)).planes}
    start_ns = dict(planes["Task Environment"].stats)["profile_start_time"]
    events = [
        event for line in planes["/host:CPU"].lines for event in line.events if event.name.startswith("traceflow")
    ]
    return [
        (e.name, start_ns + round(e.start_ns), start_ns + round(e.end_ns), dict(e.stats).get("step_num"))
        for e in sorted(events, key=lambda event: (event.start_ns, -event.end_ns))
    ]


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [entry.getMessage() for entry in caplog.records if entry.name == "traceflow"]


def test_a_capture_holds_the_steps_after_the_warm_up(tmp_path: Path, square: Callable[[Any], Any], matrix: Any) -> None:
    path = tmp_path / "a"
    with record(path, warmup=2) as recorder:
        run(recorder, 5, lambda _: square(matrix))
    manifest = manifest_of(path)
    assert manifest.complete is True
    assert manifest.problem is None
    assert [step.step for step in manifest.warmup] == [0, 1]
    assert [step.step for step in manifest.steps] == [2, 3, 4]
    assert manifest.process.pid == os.getpid()
    assert (manifest.process.rank, manifest.process.world_size) == (0, 1)
    assert manifest.frameworks["jax"] == jax.__version__
    assert manifest.devices is not None
    assert manifest.devices.local_count == len(jax.local_devices())
    assert (manifest.options.warmup, manifest.options.steps, manifest.options.hlo) == (2, None, True)
    assert len(xspaces(path)) == 1
    assert [entry.name for entry in tmp_path.iterdir()] == ["a"]


def test_the_trace_names_steps_calls_waits_and_copies(
    tmp_path: Path, square: Callable[[Any], Any], matrix: Any
) -> None:
    with record(tmp_path / "a") as recorder:
        for k in range(3):
            with recorder.step() as step:
                product = square(matrix)
                if k == 2:
                    step.fetch(product)
    names = ["traceflow.step", "traceflow.call", "traceflow.ready"]
    found = marks_in(tmp_path / "a")
    assert [name for name, *_ in found] == [*names, *names, "traceflow.fetch"]
    assert [number for *_, number in found if number is not None] == [1, 2]
    for whole, *inner in (found[:3], found[3:]):
        bounds = [time for _, start, end, _ in inner for time in (start, end)]
        assert bounds == sorted(bounds)
        assert whole[1] <= bounds[0]
        assert bounds[-1] <= whole[2]


def test_the_manifest_and_the_trace_share_a_clock(tmp_path: Path, square: Callable[[Any], Any], matrix: Any) -> None:
    with record(tmp_path / "a") as recorder:
        run(recorder, 3, lambda _: square(matrix))
    marks = {number: (start, end) for name, start, end, number in marks_in(tmp_path / "a") if number is not None}
    tolerance_ns = 1_000_000
    for step in manifest_of(tmp_path / "a").steps:
        start_ns, end_ns = marks[step.step]
        assert step.start_ns - tolerance_ns <= start_ns <= step.returned_ns + tolerance_ns
        assert step.ready_ns is not None
        assert step.ready_ns <= end_ns + tolerance_ns


def test_the_three_endpoints_are_in_order(tmp_path: Path, square: Callable[[Any], Any], matrix: Any) -> None:
    with record(tmp_path / "a") as recorder:
        for k in range(4):
            with recorder.step() as step:
                product = square(matrix)
                if k != 2:
                    fetched = step.fetch({"product": product, "count": [product[0, 0]]})
                    assert isinstance(fetched["product"], np.ndarray)
                    np.testing.assert_array_equal(fetched["product"], np.eye(64))
                    assert fetched["count"] == [1.0]
    manifest = manifest_of(tmp_path / "a")
    for record_ in (*manifest.warmup, *manifest.steps):
        assert record_.ready_ns is not None
        assert record_.start_ns <= record_.returned_ns <= record_.ready_ns
        if record_.step == 2:
            assert record_.fetched_ns is None
        else:
            assert record_.fetched_ns is not None
            assert record_.ready_ns <= record_.fetched_ns


def test_a_step_ends_when_its_results_are_ready(tmp_path: Path, square: Callable[[Any], Any], matrix: Any) -> None:
    with record(tmp_path / "a") as recorder:
        for _ in range(4):
            with recorder.step():
                product = square(matrix)
            assert product.is_ready()


def test_what_is_launched_after_a_fetch_is_awaited_too(
    tmp_path: Path, square: Callable[[Any], Any], matrix: Any
) -> None:
    with record(tmp_path / "a") as recorder:
        for _ in range(3):
            with recorder.step() as step:
                step.fetch(matrix)
                product = square(matrix)
            assert product.is_ready()
    for step_record in manifest_of(tmp_path / "a").steps:
        assert step_record.ready_ns is not None
        assert step_record.fetched_ns is not None
        assert step_record.returned_ns <= step_record.ready_ns <= step_record.fetched_ns


def test_a_step_waits_for_what_it_is_told(tmp_path: Path, matrix: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    told = []

    def note(_: JaxProfiler, trees: tuple[object, ...]) -> list[Any]:
        told.append(trees)
        return []

    monkeypatch.setattr(JaxProfiler, "pending", note)
    with record(tmp_path / "a", warmup=0) as recorder:
        with recorder.step() as step:
            assert step.ready({"x": matrix}) == {"x": matrix}
        with recorder.step():
            pass
    begin_of_recording: tuple[object, ...] = ()
    end_of_recording: tuple[object, ...] = ()
    assert told == [begin_of_recording, ({"x": matrix},), (), end_of_recording]


def test_a_step_keeps_no_array_alive(tmp_path: Path, matrix: Any) -> None:
    with record(tmp_path / "a", warmup=0) as recorder:
        with recorder.step() as step:
            step.ready(matrix + 1)
        alive = [array for array in jax.live_arrays() if array.shape == (64, 64) and array[0, 1] == 1]
        assert alive == []


def test_compilation_in_a_step_is_told(tmp_path: Path, square: Callable[[Any], Any]) -> None:
    with record(tmp_path / "a") as recorder:
        run(recorder, 4, lambda k: square(jax.device_put(np.eye(64 if k != 2 else 48, dtype=np.float32))))
    steps = manifest_of(tmp_path / "a").steps
    assert {step.step for step in steps if step.compilations} == {2}
    assert {step.step for step in steps if step.compile_ns > 0} == {2}


def test_the_capture_is_complete_after_the_last_step_to_record(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with record(path, steps=2) as recorder:
        run(recorder, 3)
        assert manifest_of(path).complete
        assert recorder.step() is recorder.step()
        run(recorder, 3)
    assert [step.step for step in manifest_of(path).steps] == [1, 2]
    assert len(marks_in(path)) == 2 * 3


def test_an_error_after_the_last_step_to_record_leaves_the_capture(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), record(tmp_path / "a", steps=1, warmup=0) as recorder:
        run(recorder, 2, lambda k: 1 // (1 - k))
    assert manifest_of(tmp_path / "a").complete


def test_the_programs_are_in_the_trace_unless_declined(
    tmp_path: Path, square: Callable[[Any], Any], matrix: Any
) -> None:
    for hlo in (True, False):
        with record(tmp_path / str(hlo), hlo=hlo) as recorder:
            run(recorder, 2, lambda _: square(matrix))
    with_programs, without = (traceflow.open(tmp_path / str(hlo)).programs for hlo in (True, False))
    assert "jit_many" in {module.name for module in with_programs.values()}
    assert not without


def test_switched_off_it_records_nothing_and_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, square: Callable[[Any], Any], matrix: Any
) -> None:
    monkeypatch.setenv("TRACEFLOW", "0")
    with record(tmp_path / "a") as recorder:
        for _ in range(3):
            with recorder.step() as step:
                product = step.ready(square(matrix))
                fetched = step.fetch(product)
    assert isinstance(fetched, np.ndarray)
    np.testing.assert_array_equal(fetched, np.eye(64))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("function", ["start_trace", "stop_trace"])
def test_a_profiler_that_fails_is_told_once_and_the_program_goes_on(
    function: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    original = jax.profiler.stop_trace

    def fail(*_: object, **__: object) -> NoReturn:
        if function == "stop_trace":
            original()
        raise RuntimeError("no profiler today\nfor a reason that takes\nmany lines")

    monkeypatch.setattr(jax.profiler, function, fail)
    ran: list[int] = []
    with record(tmp_path / "a") as recorder:
        run(recorder, 5, ran.append)
    assert ran == [0, 1, 2, 3, 4]
    problem = manifest_of(incomplete(tmp_path / "a")).problem
    assert problem is not None
    assert problem.endswith("RuntimeError: no profiler today")
    (warning,) = warnings_in(caplog)
    assert warning.startswith("TF115: ")
    assert "no profiler today" in warning
    assert "a.incomplete-" in warning
    assert "\n" not in warning


def test_a_recording_inside_a_recording_gives_way(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with record(tmp_path / "outer") as outer:
        run(outer, 2)
        with record(tmp_path / "inner") as inner:
            run(inner, 3)
        run(outer, 2)
    assert [step.step for step in manifest_of(tmp_path / "outer").steps] == [1, 2, 3]
    incomplete(tmp_path / "inner")
    assert len(warnings_in(caplog)) == 1


def test_a_computation_that_fails_later_does_not_fail_the_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> NoReturn:
        raise RuntimeError("the device gave up")

    with record(tmp_path / "a") as recorder:
        run(recorder, 2)
        with monkeypatch.context() as patched:
            patched.setattr(JaxProfiler, "wait", fail)
            run(recorder, 1)
        run(recorder, 1)
    manifest = manifest_of(incomplete(tmp_path / "a"))
    assert [step.ready_ns is None for step in manifest.steps] == [False, True, False]
    assert len(warnings_in(caplog)) == 1


def test_an_error_of_the_program_passes_and_what_was_recorded_stays(tmp_path: Path) -> None:
    error = ValueError("not ours")

    def body(k: int) -> None:
        if k == 3:
            raise error

    with pytest.raises(ValueError, match="not ours") as raised, record(tmp_path / "a") as recorder:
        run(recorder, 9, body)
    assert raised.value is error
    left = incomplete(tmp_path / "a")
    assert manifest_of(left).problem == "step 3 raised ValueError"
    assert [step.step for step in manifest_of(left).steps] == [1, 2]
    assert len(xspaces(left)) == 1
    with record(tmp_path / "b") as recorder:  # the profiler is free again
        run(recorder, 2)
    assert manifest_of(tmp_path / "b").complete


def test_an_error_that_the_program_catches_makes_the_capture_incomplete(tmp_path: Path) -> None:
    with record(tmp_path / "a") as recorder:
        run(recorder, 2)
        with pytest.raises(ZeroDivisionError):
            run(recorder, 1, lambda k: 1 // k)
        run(recorder, 2)
    manifest = manifest_of(incomplete(tmp_path / "a"))
    assert [step.step for step in manifest.steps] == [1, 3, 4]


def test_a_loop_shorter_than_the_warm_up_leaves_no_capture(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with record(tmp_path / "a", warmup=3) as recorder:
        run(recorder, 2)
    manifest = manifest_of(incomplete(tmp_path / "a"))
    assert manifest.problem == "no step was recorded after 2 of warm-up"
    assert [step.step for step in manifest.warmup] == [0, 1]
    assert len(warnings_in(caplog)) == 1


def test_an_existing_capture_is_refused_before_anything_runs(tmp_path: Path) -> None:
    path = tmp_path / "a"
    for force in (False, True):
        with record(path, force=force) as recorder:
            run(recorder, 2 + force)
    assert len(manifest_of(path).steps) == 2
    with pytest.raises(TraceflowError, match="TF110"), record(path):
        pytest.fail("the program ran")
    assert len(manifest_of(path).steps) == 2
    assert [entry.name for entry in tmp_path.iterdir()] == ["a"]


def test_a_capture_stays_where_it_was_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    with record("a") as recorder:
        run(recorder, 2)
        monkeypatch.chdir(tmp_path / "elsewhere")
    assert manifest_of(tmp_path / "a").complete


def test_without_jax_recording_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jax", None)
    with pytest.raises(TraceflowError, match=r"TF113.*traceflow-ml\[jax\]"):
        record(tmp_path / "a")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("warmup", "steps"), [(-1, None), (1, 0), (1, -2)])
def test_a_recording_of_nothing_is_refused(tmp_path: Path, warmup: int, steps: int | None) -> None:
    with pytest.raises(ValueError, match="warmup >= 0 and steps >= 1"):
        record(tmp_path / "a", warmup=warmup, steps=steps)


def test_listeners_that_the_program_clears_do_not_disturb_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(_: object) -> NoReturn:
        raise AssertionError

    with record(tmp_path / "a") as recorder:
        run(recorder, 2)
        monkeypatch.setattr(jax.monitoring, "unregister_event_duration_listener", gone)
    assert manifest_of(tmp_path / "a").complete


def test_a_killed_program_leaves_nothing_under_the_name(tmp_path: Path) -> None:
    script = (
        "import signal, sys\n"
        "from traceflow.recording import record\n"
        "with record(sys.argv[1], framework='jax') as recorder:\n"
        "    for _ in range(3):\n"
        "        with recorder.step(): pass\n"
        "    print('recording', flush=True)\n"
        "    signal.pause()\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "a")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
        killer = threading.Timer(60, program.kill)
        killer.start()
        assert program.stdout is not None
        assert program.stdout.readline() == "recording\n"
        program.send_signal(signal.SIGKILL)
        program.wait()
        killer.cancel()
    left = incomplete(tmp_path / "a")
    assert manifest_of(left).process.pid == program.pid
    assert left.name == f"a.incomplete-{program.pid}"


def test_a_warning_reaches_stderr_as_one_line(tmp_path: Path) -> None:
    script = (
        "import sys\n"
        "from traceflow.recording import record\n"
        "with record(sys.argv[1], framework='jax') as recorder:\n"
        "    with recorder.step(): pass\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "a")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == ""
    assert done.stderr.startswith("TF115: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("steps", [1, None], ids=["closed", "open"])
def test_what_is_attached_lies_beside_the_trace(tmp_path: Path, steps: int | None) -> None:
    with record(tmp_path / "a", steps=steps) as recorder:
        recorder.attach("notes.txt", "first")
        run(recorder, 2)
        recorder.attach("notes.txt", "second")
        recorder.attach("routing.json", {"dropped": [0, 2]})
        recorder.attach("routing.npz", {"dropped": np.arange(3)})
        recorder.attach("raw", b"\0\1")
    assert {file.name: file.read_bytes() for file in (tmp_path / "a").glob("rank*") if file.suffix != ".npz"} == {
        "rank00000.notes.txt": b"second",
        "rank00000.routing.json": b'{"dropped": [0, 2]}',
        "rank00000.raw": b"\0\1",
    }
    with np.load(tmp_path / "a" / "rank00000.routing.npz") as routing:
        assert routing["dropped"].tolist() == [0, 1, 2]
    assert not list((tmp_path / "a").glob(".*"))
    assert manifest_of(tmp_path / "a").missing == ()
    assert traceflow.open(tmp_path / "a").summary().ranks == (0,)


def test_what_cannot_be_attached_is_missing_and_nothing_else_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with record(tmp_path / "a") as recorder:
        recorder.attach("routing.json", {"dropped": np.arange(3)})
        run(recorder, 2)
    manifest = manifest_of(tmp_path / "a")
    assert manifest.complete
    assert manifest.missing == ("routing.json: TypeError: Object of type ndarray is not JSON serializable",)
    (warning,) = warnings_in(caplog)
    assert warning.startswith("TF119: cannot keep routing.json in ")
    assert list((tmp_path / "a").glob("rank*")) == []


@pytest.mark.parametrize("switched", ["0", "1"])
@pytest.mark.parametrize("name", ["", "../a", ".hidden", "a/b", "two words"])
def test_what_is_no_name_of_a_file_is_refused(
    name: str, switched: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACEFLOW", switched)
    with pytest.raises(ValueError, match="cannot attach"), record(tmp_path / "a") as recorder:
        recorder.attach(name, b"")


def test_an_attachment_follows_a_folder_that_takes_its_name(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    write_attachment((tmp_path / "a.incomplete-7", tmp_path / "a"), "x", b"1")
    assert (tmp_path / "a" / "x").read_bytes() == b"1"
    with pytest.raises(FileNotFoundError):
        write_attachment((tmp_path / "b",), "x", b"1")


def test_a_step_that_compiles_again_is_named_and_is_no_steady_state(tmp_path: Path) -> None:
    update = jax.jit(lambda x: jax.numpy.tanh(x @ x).sum())
    with record(tmp_path / "a", warmup=1) as recorder:
        for k in range(6):
            with recorder.step() as step:
                step.ready(update(jax.device_put(np.eye(64 if k != 3 else 56, dtype=np.float32))))
    told = traceflow.open(tmp_path / "a").summary()
    assert [step.step for step in told.steps if step.compiled] == [3]
    assert [step.step for step in manifest_of(tmp_path / "a").steps if step.compilations] == [3]
    assert told.steady_state is not None
    assert told.steady_state.steps == 4
    (finding,) = (finding for finding in told.findings if finding.code == "TF205")
    assert finding.evidence["steps"] == [3]


def test_the_logger_is_named_after_the_package() -> None:
    assert logging.getLogger("traceflow").handlers == []
