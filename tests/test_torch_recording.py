"""`record` on PyTorch: one process, several on gloo, and which framework is recorded."""

from __future__ import annotations

import gzip
import json
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
from sources import ROOT

import traceflow
from traceflow import recording
from traceflow.capture import Capture, Manifest, Options
from traceflow.collectors import frameworks
from traceflow.collectors.collector import Collector
from traceflow.collectors.jax_profiler import JaxProfiler
from traceflow.collectors.torch_memory import History
from traceflow.collectors.torch_profiler import TorchProfiler, placements
from traceflow.errors import TraceflowError
from traceflow.recording import Recorder
from traceflow.trace.flight_recorder import with_recording_beside
from traceflow.trace.kineto import read_kineto
from traceflow.trace.model import Trace

if find_spec("torch") is None:
    pytest.skip("recording PyTorch needs it", allow_module_level=True)

record = partial(recording.record, framework="torch")  # other tests may have imported JAX, too
COLLECTIVES = ROOT / "tests" / "torch_scripts" / "collectives.py"


@pytest.fixture(scope="module")
def torch() -> Any:
    """PyTorch, not imported before a test needs it."""
    return pytest.importorskip("torch")


@pytest.fixture
def matrix(torch: Any) -> Any:
    return torch.eye(32)


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


def trace_of(path: Path, rank: int = 0) -> Trace:
    return read_kineto(path / "torch" / f"rank{rank:05d}.pt.trace.json.gz")


def names_in(trace: Trace) -> Counter[str]:
    return Counter(trace.strings[code] for code in trace.events.name)


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [entry.getMessage() for entry in caplog.records if entry.name == "traceflow"]


def test_a_capture_holds_the_steps_after_the_warm_up(tmp_path: Path, torch: Any, matrix: Any) -> None:
    with record(tmp_path / "a", warmup=2) as recorder:
        run(recorder, 5, lambda _: matrix @ matrix)
    manifest = manifest_of(tmp_path / "a")
    assert manifest.complete is True
    assert [step.step for step in manifest.warmup] == [0, 1]
    assert [step.step for step in manifest.steps] == [2, 3, 4]
    assert (manifest.process.rank, manifest.process.world_size) == (0, 1)
    assert manifest.frameworks["torch"] == torch.__version__
    assert manifest.devices is not None
    assert manifest.peers == ()
    assert sorted(entry.name for entry in tmp_path.rglob("*")) == [
        "a",
        "manifest.json",
        "rank00000.pt.trace.json.gz",
        "torch",
    ]


def test_the_trace_numbers_steps_as_the_program_does(tmp_path: Path, matrix: Any) -> None:
    with record(tmp_path / "a", warmup=2) as recorder:
        for _ in range(5):
            with recorder.step() as step:
                step.fetch(matrix @ matrix)
    trace = trace_of(tmp_path / "a")
    assert trace.marks.step.tolist() == [2, 3, 4]
    names = names_in(trace)
    assert [names[name] for name in ("traceflow.call", "traceflow.ready", "traceflow.fetch", "aten::mm")] == [
        3,
        3,
        3,
        3,
    ]


def test_operators_say_the_shapes_of_their_arguments(tmp_path: Path, matrix: Any) -> None:
    with record(tmp_path / "a") as recorder:
        run(recorder, 2, lambda _: matrix @ matrix)
    events = json.loads(gzip.decompress((tmp_path / "a" / "torch" / "rank00000.pt.trace.json.gz").read_bytes()))
    (product,) = [event for event in events["traceEvents"] if event.get("name") == "aten::mm"]
    assert product["args"]["Input Dims"] == [[32, 32], [32, 32]]


@pytest.mark.parametrize("memory", [False, True])
def test_allocations_are_recorded_where_asked_for(tmp_path: Path, matrix: Any, memory: bool) -> None:  # noqa: FBT001
    with record(tmp_path / "a", memory=memory) as recorder:
        run(recorder, 2, lambda _: matrix @ matrix)
    text = gzip.decompress((tmp_path / "a" / "torch" / "rank00000.pt.trace.json.gz").read_bytes())
    assert (b'"[memory]"' in text) is memory
    assert manifest_of(tmp_path / "a").options.memory is memory


def test_the_manifest_and_the_trace_share_a_clock(tmp_path: Path, matrix: Any) -> None:
    with record(tmp_path / "a") as recorder:
        run(recorder, 3, lambda _: matrix @ matrix)
    trace, tolerance_ns = trace_of(tmp_path / "a"), 1_000_000
    assert trace.epoch_ns is not None
    for step, start, end in zip(
        manifest_of(tmp_path / "a").steps,
        (trace.epoch_ns + trace.marks.start_ns).tolist(),
        (trace.epoch_ns + trace.marks.end_ns).tolist(),
        strict=True,
    ):
        assert step.start_ns - tolerance_ns <= start <= step.returned_ns + tolerance_ns
        assert step.ready_ns is not None
        assert step.start_ns <= step.returned_ns <= step.ready_ns <= end + tolerance_ns


def test_what_is_fetched_is_a_copy_in_numpy(tmp_path: Path, torch: Any, matrix: Any) -> None:
    weights = torch.full((2, 3), 1.5, dtype=torch.bfloat16, requires_grad=True)
    with record(tmp_path / "a") as recorder:
        for _ in range(2):
            with recorder.step() as step:
                fetched = step.fetch({"loss": [matrix.sum(), 7, "text"], "weights": (weights,)})
    assert fetched["loss"] == [32.0, 7, "text"]
    assert isinstance(fetched["loss"][0], np.ndarray)
    np.testing.assert_array_equal(fetched["weights"][0], np.full((2, 3), 1.5, np.float32))
    for step_record in manifest_of(tmp_path / "a").steps:
        assert step_record.ready_ns is not None
        assert step_record.fetched_ns is not None
        assert step_record.returned_ns <= step_record.ready_ns <= step_record.fetched_ns


def test_switched_off_it_records_nothing_and_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, torch: Any, matrix: Any
) -> None:
    monkeypatch.setenv("TRACEFLOW", "0")
    model = torch.nn.Linear(2, 2)
    with record(tmp_path / "a") as recorder:
        assert recorder.model(model) is model
        with recorder.step() as step:
            fetched = step.fetch(step.ready(matrix))
    np.testing.assert_array_equal(fetched, np.eye(32))
    assert list(tmp_path.iterdir()) == []


def test_steps_after_the_last_to_record_are_free(tmp_path: Path, matrix: Any) -> None:
    with record(tmp_path / "a", steps=1) as recorder:
        run(recorder, 2, lambda _: matrix @ matrix)
        assert manifest_of(tmp_path / "a").complete
        assert recorder.step() is recorder.step()
        run(recorder, 2, lambda _: matrix @ matrix)
    assert trace_of(tmp_path / "a").marks.step.tolist() == [1]


@pytest.mark.parametrize("method", ["prepare_trace", "start_trace", "stop_trace", "export_chrome_trace"])
def test_a_profiler_that_fails_is_told_once_and_the_program_goes_on(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, torch: Any
) -> None:
    original = torch.profiler.profiler._KinetoProfile.stop_trace

    def fail(profiler: Any, *_: object) -> NoReturn:
        if method == "stop_trace":
            original(profiler)
        raise AssertionError("no profiler today")

    monkeypatch.setattr(torch.profiler.profiler._KinetoProfile, method, fail)
    ran: list[int] = []
    with record(tmp_path / "a") as recorder:
        run(recorder, 4, ran.append)
    assert ran == [0, 1, 2, 3]
    problem = manifest_of(incomplete(tmp_path / "a")).problem
    assert problem is not None
    assert problem.endswith("AssertionError: no profiler today")
    (warning,) = warnings_in(caplog)
    assert warning.startswith("TF115: ")


def test_a_profile_of_the_program_itself_is_left_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, torch: Any, matrix: Any
) -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        with record(tmp_path / "a") as recorder:
            run(recorder, 3, lambda _: matrix @ matrix)
        matrix @ matrix
    assert [event.name for event in profile.events()].count("aten::mm") == 4
    assert "another PyTorch profiler is active" in str(manifest_of(incomplete(tmp_path / "a")).problem)
    assert len(warnings_in(caplog)) == 1


def test_a_profile_of_the_program_itself_ends_the_recording(tmp_path: Path, torch: Any, matrix: Any) -> None:
    with record(tmp_path / "a") as recorder:
        run(recorder, 2)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            matrix @ matrix
        run(recorder, 1)
    assert [event.name for event in profile.events()].count("aten::mm") == 1
    assert "took over" in str(manifest_of(incomplete(tmp_path / "a")).problem)
    with record(tmp_path / "b") as recorder:  # the profiler is free again
        run(recorder, 2)
    assert manifest_of(tmp_path / "b").complete


def test_an_error_of_the_program_passes_and_what_was_recorded_stays(tmp_path: Path, torch: Any) -> None:
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"), record(tmp_path / "a") as recorder:
        run(recorder, 9, lambda k: torch.ones(2, 3) @ torch.ones(3 - (k == 3), 3))
    left = incomplete(tmp_path / "a")
    assert manifest_of(left).problem == "step 3 raised RuntimeError"
    assert trace_of(left).marks.step.tolist() == [1, 2, 3]


def test_compilation_in_a_step_is_told(tmp_path: Path, torch: Any) -> None:
    double = torch.compile(lambda x: 2 * x, backend="eager", dynamic=False)
    with record(tmp_path / "a") as recorder:
        run(recorder, 4, lambda k: double(torch.ones(3 if k != 2 else 4)))
    steps = manifest_of(tmp_path / "a").steps
    assert {step.step: step.compilations for step in steps} == {1: 0, 2: 1, 3: 0}
    assert {step.step for step in steps if step.compile_ns > 0} == {2}


def test_a_step_that_compiles_again_is_named_and_is_no_steady_state(tmp_path: Path, torch: Any) -> None:
    double = torch.compile(lambda x: 2 * x, backend="eager", dynamic=False)
    with record(tmp_path / "a") as recorder:
        run(recorder, 6, lambda k: double(torch.ones(3 if k != 4 else 5)))
    told = traceflow.open(tmp_path / "a").summary()
    assert [step.step for step in told.steps if step.compiled] == [4]
    assert told.steady_state is not None
    assert told.steady_state.steps == 4
    (finding,) = (finding for finding in told.findings if finding.code == "TF205")
    assert finding.evidence["steps"] == [4]


@pytest.fixture
def training(torch: Any) -> Callable[[int], object]:
    """A step of training whose parameters are 64 x 32 and 32 numbers of float32."""
    model = torch.nn.Linear(64, 32)
    optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)

    def step(_number: int) -> None:
        model(torch.ones(8, 64)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def test_one_more_step_is_kept_as_an_execution_trace(tmp_path: Path, training: Callable[[int], object]) -> None:
    with record(tmp_path / "a", warmup=1, steps=2, execution_trace=True) as recorder:
        run(recorder, 4, training)
    manifest = manifest_of(tmp_path / "a")
    assert [step.step for step in manifest.warmup] == [0, 1]
    assert [step.step for step in manifest.steps] == [2, 3]
    assert manifest.missing == ()
    observed = json.loads((tmp_path / "a" / "rank00000.execution_trace.json").read_text())
    names = Counter(node["name"] for node in observed["nodes"])
    assert (names["aten::addmm"], names["ProfilerStep#1"], names["Optimizer.step#SGD.step"]) == (1, 1, 1)
    assert traceflow.open(tmp_path / "a").trace.marks.step.tolist() == [2, 3]
    assert [entry.name for entry in tmp_path.iterdir()] == ["a"]


def test_an_execution_trace_is_missing_where_somebody_else_observes(
    tmp_path: Path, torch: Any, training: Callable[[int], object], caplog: pytest.LogCaptureFixture
) -> None:
    own = torch.profiler.ExecutionTraceObserver().register_callback(str(tmp_path / "own.json"))
    try:
        with record(tmp_path / "a", steps=1, execution_trace=True) as recorder:
            run(recorder, 3, training)
    finally:
        own.unregister_callback()
    manifest = manifest_of(tmp_path / "a")
    assert manifest.complete
    assert manifest.missing == ("the execution trace: RuntimeError: another observer was there before",)
    (warning,) = warnings_in(caplog)
    assert warning.startswith("TF119: cannot keep the execution trace in ")


def test_an_execution_trace_is_missing_where_the_framework_was_known_too_late(tmp_path: Path, matrix: Any) -> None:
    pytest.importorskip("jax", reason="needs both frameworks")
    with recording.record(tmp_path / "a", warmup=1, steps=1, execution_trace=True) as recorder:
        for k in range(3):
            with recorder.step() as step:
                step.ready(matrix if k else None)
    manifest = manifest_of(tmp_path / "a")
    assert manifest.missing == ("the execution trace: RuntimeError: no step of the warm-up could be observed",)
    assert [step.step for step in manifest.steps] == [2]


def test_it_is_told_what_memory_is_used_for(tmp_path: Path, training: Callable[[int], object]) -> None:
    with record(tmp_path / "a", warmup=1, steps=2, memory_categories=True) as recorder:
        run(recorder, 3, training)
    timeline = json.loads((tmp_path / "a" / "rank00000.memory_timeline.json").read_text())
    highest = dict(zip(timeline["categories"], map(max, zip(*timeline["allocated_bytes"], strict=True)), strict=True))
    parameters = 4 * (64 * 32 + 32)
    assert highest["parameter"] == highest["optimizer_state"] == parameters
    assert highest["gradient"] >= parameters
    assert timeline["device"] == "cpu"
    begin, end = timeline["times_ns"][0], timeline["times_ns"][-1]
    first, last = manifest_of(tmp_path / "a").steps
    assert first.start_ns - 1_000_000 <= begin < end <= (last.ready_ns or 0) + 1_000_000
    assert traceflow.open(tmp_path / "a").trace.marks.step.tolist() == [1, 2]


def test_what_cannot_be_told_of_memory_is_missing(
    tmp_path: Path, torch: Any, monkeypatch: pytest.MonkeyPatch, training: Callable[[int], object]
) -> None:
    def fail(*_: object) -> NoReturn:
        message = "no timeline today"
        raise RuntimeError(message)

    monkeypatch.setattr(torch.profiler._memory_profiler, "MemoryProfileTimeline", fail)
    with record(tmp_path / "a", steps=1, memory_categories=True) as recorder:
        run(recorder, 2, training)
    manifest = manifest_of(tmp_path / "a")
    assert manifest.missing == ("the categories of memory: RuntimeError: no timeline today",)
    assert trace_of(tmp_path / "a").marks.step.tolist() == [1]


def test_on_a_gpu_the_history_of_its_memory_is_kept(
    tmp_path: Path, torch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []
    memory = torch.cuda.memory
    monkeypatch.setattr(memory, "_record_memory_history", lambda enabled="all", **_: asked.append(enabled))
    monkeypatch.setattr(memory, "_dump_snapshot", lambda file: Path(file).write_bytes(b"snapshot"))
    history = History()
    history.write(tmp_path / "rank00000.memory_snapshot.pickle")
    history.close()
    assert asked == ["all", None]
    assert (tmp_path / "rank00000.memory_snapshot.pickle").read_bytes() == b"snapshot"


def test_placements_are_those_of_the_mesh(torch: Any) -> None:
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor, init_device_mesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", store=FakeStore(), rank=5, world_size=6)
    try:
        mesh = init_device_mesh("cpu", (2, 3), mesh_dim_names=("data", "model"))
        model = torch.nn.Linear(4, 7)
        model.weight = torch.nn.Parameter(distribute_tensor(torch.ones(7, 4), mesh, [Replicate(), Shard(0)]))
        weight, bias = placements(model)
    finally:
        torch.distributed.destroy_process_group()
    assert weight == {
        "name": "weight",
        "dtype": "float32",
        "shape": [7, 4],
        "local_shape": [1, 4],  # rows are split 3 + 3 + 1
        "placements": ["Replicate()", "Shard(dim=0)"],
        "mesh": {"names": ["data", "model"], "ranks": [[0, 1, 2], [3, 4, 5]]},
    }
    assert bias == {
        "name": "bias",
        "dtype": "float32",
        "shape": [7],
        "local_shape": [7],
        "placements": None,
        "mesh": None,
    }


def test_a_model_that_is_told_is_in_the_capture(tmp_path: Path, torch: Any) -> None:
    with record(tmp_path / "a") as recorder:
        recorder.model(torch.nn.Linear(2, 3))
        run(recorder, 2)
    rows = json.loads((tmp_path / "a" / "rank00000.placements.json").read_text())
    assert [(row["name"], row["shape"]) for row in rows] == [("weight", [3, 2]), ("bias", [3])]


def test_with_both_imported_the_arrays_of_the_warm_up_tell(tmp_path: Path, matrix: Any) -> None:
    jax = pytest.importorskip("jax", reason="needs both frameworks")
    told: dict[str, Callable[[Any], object]] = {
        "torch": lambda step: step.ready([{"loss": matrix}]),
        "jax": lambda step: step.fetch((1, jax.numpy.ones(2))),
    }
    for framework, tell in told.items():
        with recording.record(tmp_path / framework, warmup=2) as recorder:
            for _ in range(3):
                with recorder.step() as step:
                    tell(step)
        manifest = manifest_of(tmp_path / framework)
        assert framework in manifest.frameworks
        assert [step.step for step in manifest.steps] == [2]


def test_with_both_imported_no_work_of_the_warm_up_runs_into_the_trace(tmp_path: Path) -> None:
    """The first step does not know its framework yet, and its result is dropped while it is still being computed."""
    jax = pytest.importorskip("jax", reason="needs both frameworks")
    long = jax.jit(lambda x: jax.lax.fori_loop(0, 400, lambda _, y: jax.numpy.tanh(y @ y), x))
    matrix = jax.numpy.ones((256, 256))
    jax.block_until_ready(long(matrix))
    with traceflow.record(tmp_path / "run") as recorder:
        for _ in range(3):
            with recorder.step() as step:
                step.ready(long(matrix))
    trace = traceflow.open(tmp_path / "run").trace
    executions = Counter(trace.events.name[trace.hlo.event].tolist())
    assert set(executions.values()) <= {2, 2 * 400}  # of instructions outside the loop and inside
    assert max(executions.values()) == 2 * 400


def test_with_both_imported_a_model_tells_too(tmp_path: Path, torch: Any) -> None:
    pytest.importorskip("jax", reason="needs both frameworks")
    with recording.record(tmp_path / "a") as recorder:
        recorder.model(torch.nn.Linear(2, 3))
        run(recorder, 2)
    assert [file.name for file in (tmp_path / "a").glob("rank*")] == ["rank00000.placements.json"]


def test_with_both_imported_and_nothing_told_it_asks(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, torch: Any
) -> None:
    pytest.importorskip("jax", reason="needs both frameworks")
    ran: list[int] = []
    with recording.record(tmp_path / "a") as recorder:
        run(recorder, 3, ran.append)
    assert ran == [0, 1, 2]
    incomplete(tmp_path / "a")
    (warning,) = warnings_in(caplog)
    assert "TF116" in warning
    assert "framework='torch'" in warning
    with pytest.raises(TraceflowError, match="TF116"):
        recording.record(tmp_path / "b", warmup=0)
    assert torch.__version__


def installed(monkeypatch: pytest.MonkeyPatch, *names: str, imported: tuple[str, ...] = ()) -> None:
    """Let frameworks seem to be installed or imported."""
    monkeypatch.setattr(frameworks, "find_spec", lambda name: name if name in names else None)
    for name in ("jax", "torch"):
        monkeypatch.setitem(sys.modules, name, sys.modules.get(name) if name in imported else None)


def test_the_framework_that_is_imported_is_taken(monkeypatch: pytest.MonkeyPatch, torch: Any) -> None:
    installed(monkeypatch, "jax", "torch", imported=("torch",))
    assert frameworks.framework_in_use() == "torch"
    assert torch is not None


def test_else_the_one_that_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    for names, expected in ((("torch",), "torch"), (("jax",), "jax"), (("jax", "torch"), None)):
        installed(monkeypatch, *names)
        assert frameworks.framework_in_use() == expected


def test_what_is_not_installed_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch)
    with pytest.raises(TraceflowError, match=r"TF113.*traceflow-ml\[torch\]"):
        record(tmp_path / "a")
    with pytest.raises(TraceflowError, match="TF113: cannot record: neither"):
        recording.record(tmp_path / "a")
    with pytest.raises(ValueError, match="'jax' and 'torch'"):
        recording.record(tmp_path / "a", framework="numpy")  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def test_collectors_implement_one_interface() -> None:
    options = Options(warmup=1, steps=None, hlo=True)
    collectors: list[Collector] = [collector(options) for collector in (JaxProfiler, TorchProfiler)]
    wanted = {name for name in vars(Collector) if not name.startswith("_")}
    for collector in collectors:
        assert wanted <= {name for name in dir(collector) if callable(getattr(collector, name))}


def distributed(folder: Path, processes: int, scenario: str = "plain") -> subprocess.CompletedProcess[str]:
    """Run the program with that many processes, until all of them have ended."""
    command = [sys.executable, str(COLLECTIVES), str(folder), str(processes), scenario]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)


@pytest.fixture(scope="module", params=[2, 4])
def together(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """A capture by several processes, and how many these were."""
    folder = tmp_path_factory.mktemp("together")
    done = distributed(folder, request.param)
    assert done.returncode == 0, done.stderr
    assert "TF115" not in done.stderr
    return folder / "capture", request.param


def test_processes_make_one_capture(together: tuple[Path, int]) -> None:
    path, processes = together
    ranks = [f"rank{rank:05d}" for rank in range(processes)]
    assert [entry.name for entry in path.parent.glob("capture*")] == ["capture"]
    assert sorted(entry.name for entry in (path / "torch").iterdir()) == [f"{rank}.pt.trace.json.gz" for rank in ranks]
    beside = [f"{rank}.{what}.json" for rank in ranks for what in ("flight_recorder", "placements")]
    assert {entry.name for entry in path.iterdir()} == {*beside, "manifest.json", "torch"}
    manifest = manifest_of(path)
    assert manifest.complete
    everybody = (manifest, *manifest.peers)
    assert [one.process.rank for one in everybody] == list(range(processes))
    assert len({one.process.pid for one in everybody}) == processes
    assert {tuple(step.step for step in one.steps) for one in everybody} == {(1, 2)}


def test_each_process_traces_the_same_steps(together: tuple[Path, int]) -> None:
    path, processes = together
    for rank in range(processes):
        trace = trace_of(path, rank)
        assert [(one.rank, one.world_size) for one in trace.ranks] == [(rank, processes)]
        assert trace.marks.step.tolist() == [1, 2]


def test_every_call_of_gloo_is_joined_with_its_record(together: tuple[Path, int]) -> None:
    path, processes = together
    for rank in range(processes):
        file = path / "torch" / f"rank{rank:05d}.pt.trace.json.gz"
        trace = with_recording_beside(read_kineto(file), file)
        c = trace.communications
        assert len(c.event) == 2 * (7 + 4 + 10)  # of a pair, of its twin of all processes, of the default group
        assert (c.group >= 0).all()
        assert ((c.sequence >= 0) | (c.source >= 0)).all()
        splits = sorted(trace.strings[code] for code in c.in_splits[c.in_splits >= 0])
        assert splits == (["[2, 2]", "[3, 2]"] if rank % 2 == 0 else ["[3, 3]", "[3, 4]"])


def left_by(folder: Path) -> Path:
    """What processes that failed left, and the exit of the program that ran them.

    One that is killed while it writes leaves what it was writing, too, in a folder that nobody reads.
    """
    left = incomplete(folder / "capture")
    others = [entry.name for entry in folder.glob("capture*") if not entry.name.startswith("capture.scratch-")]
    assert others == [left.name]
    manifest = manifest_of(left)
    assert [one.process.rank for one in (manifest, *manifest.peers)] == [0, 1]
    return left


def test_a_process_that_is_killed_leaves_the_capture_incomplete(tmp_path: Path) -> None:
    done = distributed(tmp_path, 2, "kill")
    assert done.returncode != 0
    assert signal.SIGKILL.name in done.stderr
    left_by(tmp_path)


def test_an_error_in_a_process_passes_and_leaves_the_capture_incomplete(tmp_path: Path) -> None:
    done = distributed(tmp_path, 2, "raise")
    assert "ZeroDivisionError: not ours" in done.stderr
    left = left_by(tmp_path)
    assert manifest_of(left).problem == "rank 1: step 2 raised ZeroDivisionError"
    assert trace_of(left, rank=1).marks.step.tolist() == [1, 2]
