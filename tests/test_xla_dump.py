"""What XLA dumps: in the capture where it can be had, named as missing where not, and nowhere else."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from textwrap import dedent

import pytest

import traceflow
from traceflow.capture import Manifest, read_manifest
from traceflow.cli import main
from traceflow.collectors.xla_dump import SCRATCH, begin_dump, end_dump, keep_dump

if find_spec("jax") is None:
    pytest.skip("XLA comes with JAX", allow_module_level=True)

STEP = """
    import functools, os, sys, jax
    def multiply(x, y):
        return x @ y
    @functools.cache
    def compiled():
        mesh = jax.make_mesh((2, 2), ("rows", "columns"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
        place = lambda *axes: jax.sharding.NamedSharding(mesh, jax.P(*axes))
        placed = place("rows"), place(None, "columns")
        return jax.jit(multiply, in_shardings=placed, out_shardings=place())
    def product():
        return compiled()(jax.numpy.ones((8, 6)), jax.numpy.ones((6, 4)))
"""
RECORDED = f"""{STEP}
    import traceflow as tf
    exec(sys.argv[1])
    with tf.record("a", framework="jax", xla_dump=True, steps=1) as recorder:
        for _ in range(2):
            with recorder.step() as step:
                step.ready(product())
    jax.jit(lambda x: x + 7)(jax.numpy.ones(3))
    print(os.environ.get("XLA_FLAGS"))
"""
INSTRUMENTED = f"""{STEP}
    import traceflow as tf
    with tf.record("a", framework="jax", xla_dump=True, steps=1):
        step = tf.instrument(compiled())
        for _ in range(2):
            step(jax.numpy.ones((8, 6)), jax.numpy.ones((6, 4)))
"""
ANNOTATED = f"""{STEP}
    exec(sys.argv[1])
    for number in range(4):
        with jax.profiler.StepTraceAnnotation("train", step_num=number):
            product()
    print(os.environ.get("XLA_FLAGS"))
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where programs run, on four devices."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", "4")
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    return tmp_path


def run(program: str, before: str = "", *, flags: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run a program by itself, with a statement to execute before it records."""
    environment = os.environ if flags is None else {**os.environ, "XLA_FLAGS": flags}
    command = [sys.executable, "-c", dedent(program), before]
    return subprocess.run(command, check=True, capture_output=True, text=True, env=environment)


def manifest_of(path: Path) -> Manifest:
    manifest = read_manifest(path)
    assert manifest is not None
    assert manifest.complete
    return manifest


def stages_in(capture: Path) -> set[str]:
    """Which stages of the step's program were dumped; nothing but programs was."""
    dumped = [file.name for file in (capture / "xla" / "rank00000").iterdir()]
    assert {name.rpartition(".")[2] for name in dumped} == {"pb", "txt"}
    stages = ("before_optimizations", "before_shardy-xla", "before_spmd-partitioning", "after_spmd-partitioning")
    texts = [name for name in dumped if ".jit_multiply." in name and name.endswith(".txt")]
    protos = [name for name in dumped if ".jit_multiply." in name and name.endswith(".hlo.pb")]
    found = {stage for stage in stages if any(f"{stage}." in name for name in texts)}
    assert found == {stage for stage in stages if any(f"{stage}." in name for name in protos)}
    (optimized,) = (name for name in texts if name.endswith("cpu_after_optimizations.txt"))
    assert "all-gather" in (capture / "xla" / "rank00000" / optimized).read_text()
    return found


TOO_LATE = "JAX had initialised XLA before"
EVERY_STAGE = {"before_optimizations", "before_shardy-xla", "before_spmd-partitioning", "after_spmd-partitioning"}


def test_a_recording_keeps_what_xla_dumps_until_it_ends(folder: Path) -> None:
    done = run(RECORDED, flags="--xla_cpu_enable_fast_min_max=false")
    assert done.stderr == ""
    assert done.stdout == "--xla_cpu_enable_fast_min_max=false\n"
    assert stages_in(folder / "a") == EVERY_STAGE
    manifest = manifest_of(folder / "a")
    assert manifest.options.xla_dump is True
    assert manifest.missing == ()
    assert [entry.name for entry in folder.iterdir()] == ["a"]
    assert traceflow.open(folder / "a").summary().ranks == (0,)


def test_an_instrumented_program_that_was_dumped_is_one_program(folder: Path) -> None:
    run(INSTRUMENTED)
    (kept,) = (one for one in traceflow.open(folder / "a").compilations if "multiply" in one.name)
    assert (folder / "a" / "program").is_dir()
    assert kept.written is not None
    assert kept.propagated is not None


@pytest.mark.parametrize(
    ("before", "flags", "why"),
    [
        (
            "jax.devices()",
            None,
            f"{TOO_LATE}: enter tf.record before any array is made, or leave recording to traceflow run",
        ),
        ("", "--xla_dump_to=mine", "XLA_FLAGS has an xla_dump_to of its own"),
    ],
)
def test_what_cannot_be_dumped_is_missing_and_told(folder: Path, before: str, flags: str | None, why: str) -> None:
    done = run(RECORDED, before, flags=flags)
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("TF119: cannot keep the dump of XLA in ")
    assert f": {why};" in done.stderr
    assert done.stdout == f"{flags}\n"
    assert manifest_of(folder / "a").missing == (f"the dump of XLA: {why}",)
    assert not (folder / "a" / "xla").exists()
    assert (folder / "mine").exists() is (flags is not None)


def launched(before: str) -> int:
    command = [sys.executable, "-c", dedent(ANNOTATED), before]
    return main(["run", "-o", "a", "--xla-dump", "--steps", "1", "--", *command])


def test_of_a_program_as_it_is_everything_that_was_dumped_is_kept(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert launched("") == 0
    assert capfd.readouterr() == ("None\n", "traceflow: recorded 1 step of 1 process in a\n")
    assert stages_in(folder / "a") == EVERY_STAGE
    assert manifest_of(folder / "a").options.xla_dump is True
    assert traceflow.open(folder / "a").trace.marks.step.tolist() == [2]


def test_a_program_that_sets_its_own_flags_keeps_them(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert launched("os.environ['XLA_FLAGS'] = '--xla_cpu_enable_fast_min_max=false'") == 0
    out, err = capfd.readouterr()
    assert out == "--xla_cpu_enable_fast_min_max=false\n"
    assert err.startswith("warning: TF119: cannot keep the dump of XLA in a: XLA wrote nothing")
    assert err.endswith("traceflow: recorded 1 step of 1 process in a\n")
    (missing,) = manifest_of(folder / "a").missing
    assert missing.startswith("the dump of XLA: XLA wrote nothing")


@pytest.mark.parametrize("own", [None, "--xla_cpu_enable_fast_min_max=false"])
def test_flags_are_added_once_and_taken_back(folder: Path, own: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    from jax._src import xla_bridge

    monkeypatch.setattr(xla_bridge, "backends_are_initialized", lambda: False)
    if own is not None:
        monkeypatch.setenv("XLA_FLAGS", own)
    assert begin_dump(folder / "of a parent" / SCRATCH) is None
    assert begin_dump(folder / SCRATCH) is None
    flags = os.environ["XLA_FLAGS"]
    assert flags.startswith(own or "")
    assert flags.count("--xla_dump_to=") == 1
    assert f"--xla_dump_to='{folder / SCRATCH}'" in flags
    end_dump()
    assert os.environ.get("XLA_FLAGS") == own


def test_only_programs_are_kept(folder: Path) -> None:
    (folder / SCRATCH / "module_0001.jit_f").mkdir(parents=True)
    for name in (
        "f.hlo.pb",
        "f.txt",
        "f.ir-with-opt.ll",
        "obj-file.f.o",
        "f.debug_options",
        "f-memory-usage-report.pb",
    ):
        (folder / SCRATCH / name).write_text(name)
    assert keep_dump(folder / SCRATCH, folder / "kept") is None
    assert sorted(file.name for file in (folder / "kept").iterdir()) == ["f.hlo.pb", "f.txt"]
    assert keep_dump(folder / "nothing", folder / "kept") is not None
