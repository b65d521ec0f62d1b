"""Whether recording will work here: what is installed, whether profilers deliver, and what stands in their way.

Nothing is changed. Profilers are tried in processes of their own, on one small product each, by the recorder that
programs use.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import time
import webbrowser
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from traceflow.capture import Manifest, read_manifest
from traceflow.errors import TraceflowError
from traceflow.result import Json
from traceflow.user_cache import VARIABLE, user_cache

_PATIENCE_S = 180
_LITTLE_BYTES, _NOTHING_BYTES = 2 << 30, 64 << 20  # a capture of a few steps takes tens to hundreds of MiB
_EARLIEST_NS = 1_704_067_200 * 10**9  # the beginning of 2024: a clock before it was never set
_APART_NS, _BETWEEN_S = 1_000_000, 0.05
_DRIVER = Path("/proc/driver/nvidia")
_INJECTION = ("CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH")

_STEPS = """
with tf.record(sys.argv[1], framework=framework, steps=1) as recorder:
    for _ in range(2):
        with recorder.step() as step:
            step.ready(multiplied(x))
"""
_TRIALS = {
    "jax": f"""
import sys, jax, traceflow as tf
framework, x, multiplied = "jax", jax.numpy.ones((64, 64)), jax.jit(lambda x: x @ x)
{_STEPS}""",
    "torch": f"""
import sys, torch, traceflow as tf
framework, x = "torch", torch.ones(64, 64, device="cuda" if torch.cuda.is_available() else "cpu")
multiplied = lambda x: x @ x
{_STEPS}""",
}
_PACKAGES = ("traceflow-ml", "jax", "jaxlib", "torch", "xprof", "tensorboard", "duckdb")
_NAMES = {"jax": "JAX", "torch": "PyTorch"}


class State(StrEnum):
    """What a check came to."""

    GOOD = "good"
    NOTE = "note"  # worth knowing, in the way of nothing
    WARNING = "warning"  # something will be missing
    BLOCKS = "blocks"  # nothing can be recorded


@dataclass(frozen=True, slots=True)
class Checkup:
    """One thing that was looked at: what was found, and how to mend it where it wants mending."""

    name: str
    state: State
    found: str
    fix: str | None = None


def examined(folder: Path, *, trial: bool = True) -> tuple[Checkup, ...]:
    """Look at everything that recording, reading and viewing need.

    Args:
        folder: Where captures would go.
        trial: Whether to record a product with each framework, which takes some seconds.

    Returns:
        The checks, in the order in which they matter.
    """
    checks = [_versions(), *_frameworks(), _switch(), *_dump_flags()]
    if trial:
        checks += [_tried(framework) for framework in _NAMES if find_spec(framework)]
    return (*checks, *_gpu(), *_room(folder), _kept(), _clock(), *_viewers())


def document_of(checks: Sequence[Checkup]) -> dict[str, Json]:
    """What `traceflow doctor --format json` prints; its schema is `traceflow.schemas.schema("doctor")`."""
    return {
        "schema_version": 1,
        "kind": "doctor",
        "blocked": any(check.state is State.BLOCKS for check in checks),
        "versions": {name: _version(name) for name in _PACKAGES},
        "checks": [msgspec.to_builtins(check) for check in checks],
    }


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _versions() -> Checkup:
    found = f"traceflow {_version('traceflow-ml')}, Python {platform.python_version()}, {platform.platform(terse=True)}"
    return Checkup("versions", State.GOOD, found)


def _kept() -> Checkup:
    """Where columns of traces are kept for the next time."""
    chosen = os.environ.get(VARIABLE)
    if chosen == "off":
        return Checkup("cache", State.NOTE, f"{VARIABLE}=off keeps nothing of large traces", f"unset {VARIABLE}")
    where = "" if chosen else "beside them in .traceflow-cache, or else "
    return Checkup("cache", State.GOOD, f"columns of large traces are kept {where}in {user_cache()}")


def _frameworks() -> Iterator[Checkup]:
    """What there is to record with; one framework is enough."""
    there = [name for name in _NAMES if find_spec(name)]
    if not there:
        fix = "pip install 'traceflow-ml[jax]' or 'traceflow-ml[torch]'; reading traces needs neither"
        yield Checkup("frameworks", State.BLOCKS, "neither JAX nor PyTorch is installed", fix)
    for name in there:
        yield Checkup(_NAMES[name], State.GOOD, f"{_NAMES[name]} {_version(name) or 'of unknown version'}")


def _switch() -> Checkup:
    if os.environ.get("TRACEFLOW") == "0":
        return Checkup("switch", State.BLOCKS, "TRACEFLOW=0 switches recording off", "unset TRACEFLOW")
    return Checkup("switch", State.GOOD, "recording is not switched off")


def _dump_flags() -> Iterator[Checkup]:
    """What in the environment takes the place of traceflow's own requests."""
    if "xla_dump_to" in os.environ.get("XLA_FLAGS", ""):
        found = "XLA_FLAGS has an xla_dump_to of its own, so that --xla-dump keeps nothing"
        yield Checkup("dump flags", State.WARNING, found, "take it out of XLA_FLAGS, or read its folder as an input")
    else:
        yield Checkup("dump flags", State.GOOD, "XLA_FLAGS leaves dumps to traceflow")


def _tried(framework: str) -> Checkup:
    """One step recorded with a framework, and read again."""
    name = f"recording with {_NAMES[framework]}"
    environment = {key: value for key, value in os.environ.items() if key != "TRACEFLOW"}
    with TemporaryDirectory(prefix="traceflow-") as scratch:
        folder = Path(scratch, "capture")
        command = [sys.executable, "-c", _TRIALS[framework], str(folder)]
        try:
            ended = subprocess.run(
                command, env=environment, cwd=scratch, capture_output=True, timeout=_PATIENCE_S, check=False
            )
        except subprocess.TimeoutExpired:
            fix = "look for another process that holds the device"
            return Checkup(name, State.BLOCKS, f"a small product took more than {_PATIENCE_S} s", fix)
        try:
            manifest = read_manifest(folder) if folder.exists() else None
        except TraceflowError as error:
            return Checkup(name, State.BLOCKS, error.why, error.hint)
        if manifest is None:
            fix = f"run a small program of {_NAMES[framework]} by itself first"
            return Checkup(name, State.BLOCKS, _last_line(ended.stderr), fix)
        return _delivered(name, manifest, folder)


def _last_line(output: bytes) -> str:
    lines = [line.strip() for line in output.decode(errors="replace").splitlines() if line.strip()]
    return lines[-1] if lines else "nothing was recorded, and nothing says why"


def _delivered(name: str, manifest: Manifest, folder: Path) -> Checkup:
    """What a trial shows: events, and on an accelerator those of the device."""
    from traceflow.run import open_run

    try:
        trace = open_run(folder).trace
    except TraceflowError as error:
        return Checkup(name, State.BLOCKS, f"what was recorded cannot be read: {error}", error.hint)
    of = "cpu" if manifest.devices is None else manifest.devices.platform
    on_devices = int((trace.lanes.device[trace.events.lane] >= 0).sum())
    if of != "cpu" and not on_devices:
        found = f"the profiler delivers nothing from the {of}"
        return Checkup(name, State.BLOCKS, found, "end other profilers; see the checks of the GPU")
    return Checkup(name, State.GOOD, f"{len(trace.events):,} events on {of}, {on_devices:,} of them of devices")


def _gpu() -> Iterator[Checkup]:
    """What the driver of an NVIDIA GPU permits, and who else may hold its profiling interface."""
    if not _DRIVER.exists():
        yield Checkup("GPU", State.NOTE, "no driver of an NVIDIA GPU")
        return
    settings = _settings(_DRIVER / "params")
    if settings.get("RmProfilingAdminOnly") == "1" and os.geteuid():
        found = "CUPTI keeps hardware counters to administrators; kernels are recorded all the same"
        fix = "for counters, load the driver with NVreg_RestrictProfilingToAdminUsers=0"
        yield Checkup("GPU", State.NOTE, found, fix)
    else:
        yield Checkup("GPU", State.GOOD, "CUPTI is open to this user")
    for variable in _INJECTION:
        if os.environ.get(variable):
            found = f"{variable} loads another profiler, and CUPTI serves one at a time"
            yield Checkup("other profilers", State.WARNING, found, f"unset {variable}, or record without nsys")


def _settings(file: Path) -> Mapping[str, str]:
    """`NAME: value` lines of a driver's file; nothing where it may not be read."""
    try:
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return {}
    return {name.strip(): value.strip() for name, colon, value in (line.partition(":") for line in lines) if colon}


def _room(folder: Path) -> Iterator[Checkup]:
    """Whether a capture can be written, and how large it may become."""
    try:
        with TemporaryDirectory(dir=folder, prefix=".traceflow-"):
            free = shutil.disk_usage(folder).free
    except OSError as error:
        why = error.strerror or type(error).__name__
        yield Checkup("disk", State.BLOCKS, f"cannot write to {folder}: {why}", "record into another folder with -o")
        return
    state = State.BLOCKS if free < _NOTHING_BYTES else State.WARNING if free < _LITTLE_BYTES else State.GOOD
    fix = None if state is State.GOOD else "make room, record fewer steps, or record into another folder with -o"
    yield Checkup("disk", state, f"{free / 2**30:,.1f} GiB free in {folder}", fix)


def _clock() -> Checkup:
    """Whether the time since 1970 and the monotonic clock, which captures are dated by, run alike."""
    begun = time.time_ns(), time.perf_counter_ns()
    time.sleep(_BETWEEN_S)
    passed = [now - then for now, then in zip((time.time_ns(), time.perf_counter_ns()), begun, strict=True)]
    resolution_ns = round(time.get_clock_info("perf_counter").resolution * 1e9)
    apart_ns = abs(passed[0] - passed[1])
    if begun[0] < _EARLIEST_NS:
        return Checkup("clock", State.WARNING, "the clock of the system was never set", "set it, by NTP for one")
    if apart_ns > _APART_NS:
        found = f"the clock of the system is being corrected: {apart_ns / 1e6:,.1f} ms within {_BETWEEN_S * 1e3:.0f} ms"
        return Checkup("clock", State.WARNING, found, "wait until NTP has settled, where several hosts record")
    return Checkup(
        "clock", State.GOOD, f"monotonic to {resolution_ns} ns, {apart_ns / 1e3:,.0f} us from the time of the system"
    )


def _viewers() -> Iterator[Checkup]:
    """What `traceflow open` and `traceflow query` need."""
    missing = [name for name in ("xprof", "tensorboard") if not find_spec(name)]
    if missing:
        found = f"report and perfetto; without {' and '.join(missing)}"
        yield Checkup("viewers", State.NOTE, found, "pip install 'traceflow-ml[xprof]'")
    else:
        yield Checkup("viewers", State.GOOD, "report, perfetto, xprof, tensorboard")
    if not find_spec("duckdb"):
        yield Checkup("queries", State.NOTE, "traceflow query needs DuckDB", "pip install 'traceflow-ml[query]'")
    try:
        webbrowser.get()
    except webbrowser.Error:
        yield Checkup(
            "browser", State.NOTE, "none can be started from here", "traceflow open --no-browser prints the page"
        )
