"""`traceflow run`: programs that know nothing of traceflow, what is recorded of them, and that they do not notice."""

from __future__ import annotations

import importlib
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import msgspec
import pytest

import traceflow
from traceflow.capture import Capture, Launch, Manifest
from traceflow.cli import main
from traceflow.collectors.imports import after_import

needs_jax = pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="the program needs JAX")
needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="the program needs PyTorch")

ANNOTATED = """
    import jax, sys
    update = jax.jit(lambda w: w - 0.5 * w)
    weights = jax.numpy.ones(64)
    for number in range(10, 10 + int(sys.argv[1])):
        with jax.profiler.StepTraceAnnotation("train", step_num=number):
            weights = update(weights)
    print(float(weights[0]))
"""
PLAIN = """
    import jax, time
    update = jax.jit(lambda w: w - 0.5 * w)
    weights = jax.numpy.ones(64)
    for _ in range(20):
        weights = update(weights)
        time.sleep(0.05)
    print(float(weights[0]))
"""
TORCH = """
    import os, torch, torch.distributed as dist
    dist.init_process_group("gloo")
    model = torch.nn.Linear(4, 4)
    other = torch.optim.SGD(torch.nn.Linear(2, 2).parameters())
    optimizer = torch.optim.SGD(model.parameters())
    for _ in range(5):
        model(torch.ones(2, 4)).sum().backward()
        dist.all_reduce(model.weight.grad)
        optimizer.step()
        other.step()
    dist.destroy_process_group()
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the program runs, and what it runs on."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    return tmp_path


def script(text: str, name: str = "program.py") -> str:
    Path(name).write_text(dedent(text))
    return name


def run(*words: str, options: tuple[str, ...] = ()) -> int:
    """The exit code of `traceflow run` on Python with these arguments."""
    return main(["run", "-o", "a", *options, "--", sys.executable, *words])


def manifest_of(path: Path) -> Manifest:
    return msgspec.json.decode((path / "manifest.json").read_bytes(), type=Manifest)


def launch_of(manifest: Manifest) -> Launch:
    assert manifest.launch is not None
    return manifest.launch


def incomplete(folder: Path) -> Path:
    """What is left of a recording that is not complete."""
    assert not (folder / "a").exists()
    (left,) = folder.glob("a.incomplete-*")
    return left


@needs_jax
def test_steps_that_a_jax_program_annotates_are_recorded(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(script(ANNOTATED), "6", options=("--steps", "3")) == 0
    assert capfd.readouterr() == ("0.015625\n", "traceflow: recorded 3 steps of 1 process in a\n")
    assert [entry.name for entry in folder.iterdir() if entry.is_dir()] == ["a"]
    marks = traceflow.open("a").trace.marks
    assert marks.step.tolist() == [12, 13, 14]  # the program's own numbers, after two steps of warm-up
    manifest = manifest_of(Path("a"))
    assert (manifest.complete, manifest.problem, manifest.peers) == (True, None, ())
    assert [step.step for step in manifest.warmup] == [0, 1]
    assert launch_of(manifest).command == [sys.executable, "program.py", "6"]
    assert launch_of(manifest).steps_are == "what the program annotates with StepTraceAnnotation"
    for said, start_ns in zip(manifest.steps, marks.start_ns.tolist(), strict=True):
        epoch_ns = traceflow.open("a").trace.epoch_ns
        assert epoch_ns is not None
        assert said.start_ns - 1_000_000 <= epoch_ns + start_ns <= said.returned_ns + 1_000_000


@needs_jax
def test_without_annotations_a_window_is_recorded(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(script(PLAIN)) == 0
    out, err = capfd.readouterr()
    assert out == f"{0.5**20}\n"
    assert err == "traceflow: recorded a window of 1 process in a\n"
    opened = traceflow.open("a")
    assert "jit__lambda" in {module.name for module in opened.programs.values()}
    assert opened.trace.marks.step.tolist() == []
    assert not [name for name in opened.trace.strings if name.startswith("traceflow")]
    manifest = manifest_of(folder / "a")
    assert manifest.complete
    assert launch_of(manifest).steps_are is None


@needs_jax
def test_a_window_begins_and_ends_when_it_is_told(folder: Path) -> None:
    longer = PLAIN.replace("range(20)", "range(60)")
    assert run(script(longer), options=("--after", "1.5", "--seconds", "0.2")) == 0
    (window,) = manifest_of(folder / "a").steps
    assert window.compilations == 0
    assert window.ready_ns is not None
    assert run(script("import jax\njax.numpy.ones(3).sum()"), options=("-f", "--after", "60")) == 0
    assert [entry.name for entry in folder.iterdir() if entry.is_dir()] == ["a"]  # the one from before


@needs_torch
def test_the_processes_of_torchrun_make_one_capture(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    torchrun = shutil.which("torchrun", path=sysconfig.get_path("scripts"))
    assert torchrun is not None
    command = [torchrun, "--standalone", "--nproc-per-node", "2", script(TORCH)]
    extras = ["--execution-trace", "--memory-categories"]
    assert main(["run", "-o", "a", "--warmup", "1", "--steps", "2", *extras, "--", *command]) == 0
    assert "USDT" not in capfd.readouterr().err
    opened = traceflow.open("a")
    assert [(rank.rank, rank.world_size) for rank in opened.trace.ranks] == [(0, 2), (1, 2)]
    assert sorted(opened.trace.marks.step.tolist()) == [2, 2, 3, 3]
    assert sorted(file.name for file in (folder / "a").iterdir()) == [
        "manifest.json",
        "rank00000.execution_trace.json",
        "rank00000.flight_recorder.json",
        "rank00000.memory_timeline.json",
        "rank00001.execution_trace.json",
        "rank00001.flight_recorder.json",
        "rank00001.memory_timeline.json",
        "torch",
    ]
    manifest = Capture.open("a").manifest
    assert isinstance(manifest, Manifest)
    assert manifest.complete
    assert [one.process.rank for one in (manifest, *manifest.peers)] == [0, 1]
    assert {tuple(step.step for step in one.steps) for one in (manifest, *manifest.peers)} == {(2, 3)}
    assert launch_of(manifest_of(folder / "a")).steps_are == "from one call of the first optimizer's step to the next"


@needs_jax
def test_the_processes_of_a_jax_program_make_one_capture(folder: Path) -> None:
    program = """
        import socket, subprocess, sys
        if len(sys.argv) == 1:
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                port = str(probe.getsockname()[1])
            each = [subprocess.Popen([sys.executable, __file__, port, rank]) for rank in "01"]
            raise SystemExit(max(process.wait() for process in each))
        import jax
        jax.config.update("jax_num_cpu_devices", 1)
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(f"127.0.0.1:{sys.argv[1]}", num_processes=2, process_id=int(sys.argv[2]))
        mesh = jax.make_mesh((2,), ("x",))
        total = jax.jit(jax.shard_map(lambda x: jax.lax.psum(x, "x"), mesh=mesh, in_specs=jax.P("x"), out_specs=jax.P()))
        shards = jax.NamedSharding(mesh, jax.P("x"))
        values = jax.make_array_from_callback((2,), shards, lambda i: jax.numpy.ones(1), dtype="float32")
        for step in range(4):
            with jax.profiler.StepTraceAnnotation("train", step_num=step):
                assert total(values).addressable_shards[0].data == 2
    """
    assert run(script(program), options=("--steps", "2", "--xla-dump")) == 0
    manifest = manifest_of(folder / "a")
    assert manifest.complete
    assert [one.missing for one in (manifest, *manifest.peers)] == [(), ()]
    for rank in range(2):
        dumped = [file.name for file in (folder / "a" / "xla" / f"rank{rank:05d}").glob("*.hlo.pb")]
        assert [name for name in dumped if name.endswith("jit__lambda.cpu_after_optimizations.hlo.pb")]
    assert [one.process.rank for one in (manifest, *manifest.peers)] == [0, 1]
    (log_directory,) = (folder / "a" / "plugins" / "profile").iterdir()
    assert sorted(file.name[:9] for file in log_directory.glob("*.xplane.pb")) == ["rank00000", "rank00001"]
    trace = traceflow.open("a").trace
    assert [rank.rank for rank in trace.ranks] == [0, 1]
    assert sorted(trace.marks.step.tolist()) == [2, 2, 3, 3]


@pytest.mark.parametrize(
    ("ending", "code"),
    [("sys.exit(7)", 7), ("sys.exit('no')", 1), ("os.kill(os.getpid(), 9)", 137), ("os.kill(os.getpid(), 15)", 143)],
)
def test_the_exit_code_is_that_of_the_program(ending: str, code: int) -> None:
    assert run("-c", f"import os, sys; {ending}") == code


def test_a_program_that_computes_nothing_runs_all_the_same(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run("-c", "import sys; print(sys.argv)", "--steps", "-o", "--") == 0
    out, err = capfd.readouterr()
    assert out == "['-c', '--steps', '-o', '--']\n"
    assert err.startswith("warning: TF117: cannot record a: ")
    assert err.count("\n") == 1
    assert list(folder.iterdir()) == []


def test_an_output_that_exists_is_refused_before_the_program_starts(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (folder / "a").mkdir()
    assert run("-c", "open('started', 'w')") == 1
    assert capfd.readouterr().err.startswith("error: TF110: ")
    assert [entry.name for entry in folder.iterdir()] == ["a"]


def test_what_is_no_program_is_refused(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--", "no-such-program"]) == 1
    assert "TF118: cannot run no-such-program: No such file" in capfd.readouterr().err
    assert list(folder.iterdir()) == []
    assert main(["run"]) == 2


def test_switched_off_the_program_runs_and_that_is_all(
    folder: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACEFLOW", "0")
    assert run("-c", "import os; print(os.environ.get('TRACEFLOW_RUN')); exit(4)") == 4
    assert capfd.readouterr() == ("None\n", "")
    assert list(folder.iterdir()) == []


def test_a_program_finds_its_own_start_hook_and_path(
    folder: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "own").mkdir()
    (folder / "own" / "sitecustomize.py").write_text("import sys; sys.greeting = 'hello'")
    monkeypatch.setenv("PYTHONPATH", "own")
    asked = "import sys, sitecustomize; print(sys.greeting, sitecustomize.__file__, sys.path)"
    by_itself = subprocess.run([sys.executable, "-c", asked], check=True, capture_output=True, text=True).stdout
    assert by_itself.startswith("hello ")
    assert run("-c", asked) == 0
    assert capfd.readouterr().out == by_itself


def test_an_error_in_its_own_start_hook_is_told_as_ever(
    folder: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "sitecustomize.py").write_text("1 / 0")
    monkeypatch.setenv("PYTHONPATH", str(folder))
    assert run("-c", "print('here')") == 0
    out, err = capfd.readouterr()
    assert out == "here\n"
    assert "ZeroDivisionError: division by zero" in err


def test_a_framework_that_is_not_understood_is_left_alone(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for name in ("jax", "torch"):
        (folder / f"{name}.py").write_text("ANSWER = 42")
    assert run("-c", "import jax, torch; print(jax.ANSWER, torch.ANSWER)") == 0
    out, err = capfd.readouterr()
    assert out == "42 42\n"
    assert err.startswith("warning: TF117: ")


@pytest.fixture
def started(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A program under `traceflow run`, in a session of its own, that has said it is ready to be interrupted."""
    program = """
        import signal, sys, time
        def end(number, frame):
            print("got", number, flush=True)
            sys.exit(9)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, end)
        print("ready", flush=True)
        time.sleep(60)
    """
    launch = "import sys; from traceflow.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", launch, "run", "--", sys.executable, script(program)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True, cwd=folder
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def test_an_interruption_at_the_terminal_is_the_program_s(started: subprocess.Popen[str]) -> None:
    os.killpg(started.pid, signal.SIGINT)
    out, _ = started.communicate(timeout=30)
    assert (out, started.returncode) == (f"got {signal.SIGINT.value}\n", 9)


def test_a_request_to_end_is_passed_on(started: subprocess.Popen[str]) -> None:
    started.terminate()
    out, _ = started.communicate(timeout=30)
    assert (out, started.returncode) == (f"got {signal.SIGTERM.value}\n", 9)


@needs_jax
def test_a_program_that_is_killed_leaves_what_it_had(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    killed = ANNOTATED.replace(
        "weights = update", "import os; number < 14 or os.kill(os.getpid(), 9); weights = update"
    )
    assert run(script(killed), "9") == 137
    assert "TF115" in capfd.readouterr().err
    manifest = manifest_of(incomplete(folder))
    assert not manifest.complete
    assert manifest.problem is not None
    assert manifest.problem.endswith("ended before its recording did")
    assert launch_of(manifest).exit_code == 137


@needs_jax
def test_an_error_of_the_program_is_told_as_ever_and_in_the_manifest(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    fails = ANNOTATED.replace("weights = update", "1 // (14 - number); weights = update")
    assert run(script(fails), "9") == 1
    assert "ZeroDivisionError: " in capfd.readouterr().err
    left = incomplete(folder)
    assert manifest_of(left).problem == "rank 0: step 4 raised ZeroDivisionError"
    assert traceflow.open(left).trace.marks.step.tolist() == [12, 13, 14]


@needs_jax
def test_a_profile_of_the_program_itself_is_left_alone(folder: Path) -> None:
    profiles = """
        import jax
        double = jax.jit(lambda x: 2 * x)
        double(1.0)
        with jax.profiler.trace("own"):
            double(2.0).block_until_ready()
        double(3.0)
    """
    assert run(script(profiles)) == 0
    assert traceflow.open(folder / "own").trace.events.name.size > 0
    assert manifest_of(incomplete(folder)).problem == "rank 0: the program started a profile of its own"


RECORDS_JAX = """
    import sys, jax, traceflow as tf
    jax.numpy.ones(3)  # a window begins
    double = tf.instrument(jax.jit(lambda x: 2 * x))
    for number in range(int(sys.argv[1])):
        with jax.profiler.StepTraceAnnotation("train", step_num=number):
            double(1.0).block_until_ready()
    with tf.record("own", framework="jax", steps=2):
        for _ in range(4):
            double(1.0)
"""
RECORDS_TORCH = """
    import sys, torch, traceflow as tf
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters())
    def train():
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    for _ in range(int(sys.argv[1])):
        train()
    with tf.record("own", framework="torch", steps=2) as recorder:
        for _ in range(4):
            with recorder.step():
                train()
"""


@pytest.mark.parametrize("before", ["0", "4"], ids=["at once", "while it is recorded"])
@pytest.mark.parametrize(
    "program", [pytest.param(RECORDS_JAX, marks=needs_jax), pytest.param(RECORDS_TORCH, marks=needs_torch)]
)
def test_to_a_recording_of_the_program_itself_it_gives_way(
    folder: Path, capfd: pytest.CaptureFixture[str], program: str, before: str
) -> None:
    assert run(script(program), before, options=("--steps", "9")) == 0
    out, err = capfd.readouterr()
    assert out == ""
    assert err.endswith(f"traceflow: the program records itself, in {folder / 'own'}\n")
    assert "TF1" not in err
    assert [entry.name for entry in folder.iterdir() if entry.is_dir()] == ["own"]
    manifest = manifest_of(folder / "own")
    assert (manifest.complete, manifest.launch, len(manifest.steps)) == (True, None, 2)
    assert traceflow.open(folder / "own").trace.marks.step.tolist() == [1, 2]


@pytest.mark.parametrize(
    "program", [pytest.param(RECORDS_JAX, marks=needs_jax), pytest.param(RECORDS_TORCH, marks=needs_torch)]
)
def test_what_was_recorded_before_the_program_records_itself_stays(
    folder: Path, capfd: pytest.CaptureFixture[str], program: str
) -> None:
    assert run(script(program), "8", options=("--steps", "2")) == 0
    assert capfd.readouterr().err.endswith("traceflow: recorded 2 steps of 1 process in a\n")
    assert sorted(entry.name for entry in folder.iterdir() if entry.is_dir()) == ["a", "own"]
    for name in ("a", "own"):
        assert manifest_of(folder / name).complete
        assert len(traceflow.open(folder / name).trace.marks.step) == 2


@needs_jax
def test_processes_that_are_no_ranks_of_one_program_stay_apart(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    script(PLAIN, "part.py")
    pair = "import subprocess, sys\nfor _ in range(2): subprocess.run([sys.executable, 'part.py'], check=True)"
    assert run(script(pair)) == 0
    assert "its 2 processes are not the ranks of one program" in capfd.readouterr().err
    parts = sorted((incomplete(folder) / "processes").glob("*/window"))
    assert [traceflow.open(part).summary().ranks for part in parts] == [(0,), (0,)]


def test_an_import_is_told_once_and_a_search_is_not(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "a_package_of_nobody.py").write_text("import sys; READY = True")
    monkeypatch.syspath_prepend(folder)
    told: list[bool] = []
    before = list(sys.meta_path)
    after_import("a_package_of_nobody", lambda: told.append(sys.modules["a_package_of_nobody"].READY))
    assert importlib.util.find_spec("a_package_of_nobody") is not None
    assert importlib.util.find_spec("another_package_of_nobody") is None
    assert told == []
    module = importlib.import_module("a_package_of_nobody")
    assert told == [True]
    assert sys.meta_path == before
    importlib.reload(module)
    assert told == [True]
