"""The capture: what one recording leaves on disk.

A capture is a folder, and the same folder is an ordinary TensorBoard/XProf log directory: the traces lie in
`plugins/profile/<run>/` (JAX) or in `torch/` (PyTorch), `program/` holds the programs of instrumented functions as
JAX wrote and compiled them, `xla/` what XLA dumped, `rankNNNNN.*` what else a process had to say, and `manifest.json`
says who recorded what, how, and when each step ended. The manifest is optional: any folder of traces opens as a
capture.

While it is being written a capture is called `<path>.incomplete-<pid>`. It takes its own name in one rename, once
everything in it is complete; what a killed or failed run leaves behind therefore never looks like a capture.

Processes that record together write into one such folder, each with a manifest of its own,
`manifest.rankNNNNN.json`. The last of them to complete gathers these in `manifest.json` and publishes the capture.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from pathlib import Path

import msgspec

from traceflow.errors import TraceflowError

SCHEMA_VERSION = 1
MANIFEST = "manifest.json"
_OF_RANK = "manifest.rank*.json"
_siblings: set[Path] = set()  # names this process has used; another one may still wait for such a folder to vanish


class Clock(msgspec.Struct, frozen=True):
    """One instant read on two clocks: time since 1970, and the monotonic performance counter."""

    time_ns: int
    perf_counter_ns: int


class Options(msgspec.Struct, frozen=True):
    """What the recording was asked for."""

    warmup: int  # steps that ran before the profiler started
    steps: int | None  # steps to record; None: all
    hlo: bool  # JAX: whether the compiled programs are stored with the trace
    memory: bool = False  # PyTorch: whether every allocation is recorded
    xla_dump: bool = False  # JAX: whether XLA writes each program as its passes change it
    memory_categories: bool = False  # PyTorch: whether it is told what memory is used for
    execution_trace: bool = False  # PyTorch: whether one more step of the warm-up is recorded as an execution trace

    @property
    def lead(self) -> int:
        """How many steps run before the profiler starts: the warm-up, and that of the execution trace."""
        return self.warmup + self.execution_trace


class Devices(msgspec.Struct, frozen=True):
    """The devices of the process that recorded."""

    platform: str  # cpu, gpu, tpu
    kind: str
    local_count: int
    global_count: int


class Process(msgspec.Struct, frozen=True):
    """Which process recorded; `rank` and `world_size` are None until the framework has told."""

    host: str
    pid: int
    rank: int | None = None
    world_size: int | None = None


class StepRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One step and its three endpoints, in ns since 1970: start <= returned <= ready <= fetched."""

    step: int  # number of the step in the user's loop, from 0, warm-up included
    start_ns: int
    returned_ns: int  # the user's calls had returned; the devices may still be working
    ready_ns: int | None  # the results were complete on the devices; None: waiting failed
    fetched_ns: int | None  # the results were on the host as numpy arrays; None: not fetched
    compilations: int  # programs compiled during the step
    compile_ns: int  # time that took


class Launch(msgspec.Struct, frozen=True):
    """How `traceflow run` started a program, and what came of it."""

    command: list[str]
    exit_code: int  # of the program; 128 + number of the signal that ended it
    steps_are: str | None  # what was taken for a step in this process; None: it had none, and was recorded as a window


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a capture without opening its traces: what one process says, and its peers."""

    schema_version: int = SCHEMA_VERSION
    traceflow_version: str
    created: str  # ISO 8601, UTC
    complete: bool
    problem: str | None  # why the capture is incomplete, where it is known
    process: Process
    clock: Clock  # read when the recording began
    frameworks: dict[str, str]  # name -> version
    devices: Devices | None
    options: Options
    warmup: tuple[StepRecord, ...]  # steps outside the trace
    steps: tuple[StepRecord, ...]  # steps inside the trace
    missing: tuple[str, ...] = ()  # what was asked for besides the trace and could not be had, with the reason
    launch: Launch | None = None  # None: the program recorded itself
    peers: tuple[Manifest, ...] = ()  # of the other processes that recorded, in order of rank


@dataclass(frozen=True)
class Capture:
    """A folder of traces, opened lazily."""

    path: Path

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Capture:
        """Open a folder of traces; nothing in it is read until it is asked for.

        Raises:
            TraceflowError: TF101 when there is no such folder.
        """
        folder = Path(path)
        if not folder.is_dir():
            why = "it is a file" if folder.exists() else "no such folder"
            raise TraceflowError(
                "TF101", f"cannot open {folder} as a capture", why, "give the folder that was recorded"
            )
        return cls(folder)

    @cached_property
    def manifest(self) -> Manifest | None:
        """The manifest; None for a folder of traces that traceflow did not record.

        Raises:
            TraceflowError: as `read_manifest`.
        """
        return read_manifest(self.path)


def read_manifest(folder: Path) -> Manifest | None:
    """Read the manifest of a capture, or None where the folder has none.

    In a folder that several processes still write to, or left incomplete, it is gathered from theirs.

    Raises:
        TraceflowError: TF103 when the manifest is damaged, TF107 when it is of a later schema.
    """
    if (folder / MANIFEST).is_file():
        return _decoded(folder / MANIFEST)
    manifests = [_decoded(file) for file in sorted(folder.glob(_OF_RANK))]
    return gathered(manifests) if manifests else None


def is_manifest(file: Path) -> bool:
    """Whether a file is a manifest, by its name.

    Example:
        >>> [is_manifest(Path(name)) for name in ("manifest.json", "manifest.rank00003.json", "rank0.json")]
        [True, True, False]
    """
    return file.name == MANIFEST or file.match(_OF_RANK)


def incompleteness(folder: Path) -> str | None:
    """Why the recording in a folder is not complete, by its manifest; None where it is, or the manifest is another's."""
    try:
        manifest = read_manifest(folder)
    except OSError:
        return None
    except TraceflowError as error:
        return f"its manifest cannot be used ({error.why})" if _is_ours(folder) else None
    if manifest is None or manifest.complete:
        return None
    return manifest.problem or "the program ended before the recording did"


def _is_ours(folder: Path) -> bool:
    """Whether a manifest that cannot be used was written by traceflow, as far as what is left of it tells."""
    contents = [file.read_bytes() for file in folder.iterdir() if is_manifest(file) and file.is_file()]
    return any(not content or b'"traceflow_version"' in content for content in contents)


def _decoded(file: Path) -> Manifest:
    content = file.read_bytes()
    try:
        schema_version = msgspec.json.decode(content, type=_Versioned).schema_version
        if schema_version <= SCHEMA_VERSION:
            return msgspec.json.decode(content, type=Manifest)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise TraceflowError("TF103", f"cannot read {file}", str(error), "record again, or delete it") from error
    why = f"its schema version {schema_version} is later than {SCHEMA_VERSION}"
    raise TraceflowError("TF107", f"cannot read {file}", why, "update traceflow")


def gathered(manifests: Sequence[Manifest]) -> Manifest:
    """What one or more processes say, in order of rank, as the manifest of the first: complete when all are."""
    problems = [f"rank {manifest.process.rank}: {manifest.problem}" for manifest in manifests if manifest.problem]
    return msgspec.structs.replace(
        manifests[0],
        complete=all(manifest.complete for manifest in manifests),
        problem=problems[0] if problems else None,
        peers=tuple(manifests[1:]),
    )


class _Versioned(msgspec.Struct):
    schema_version: int


def reserve(path: Path, *, force: bool) -> Path:
    """Make the folder in which the capture `path` is written until it is complete.

    Raises:
        TraceflowError: TF110 when `path` is taken; with `force`, only when it is something else than a capture.
            TF114 when the folder cannot be made.
    """
    _refuse_taken(path, force=force)
    folder = _free_sibling(path, "incomplete")
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        why = error.strerror or type(error).__name__
        raise TraceflowError("TF114", f"cannot record to {path}", why, "choose another path") from error
    return folder


def join(folder: Path, shared: Path) -> Path:
    """Give up a folder that was reserved, and holds no more than a manifest, for one that several processes share."""
    if folder != shared:
        (folder / MANIFEST).unlink()
        folder.rmdir()
    return shared


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write what one process says into `folder`, replacing what it said before in one step."""
    process = manifest.process
    if process.rank is None or process.world_size in {None, 1}:
        _write(folder / MANIFEST, manifest)
    else:
        # It was of this process alone, or gathered in vain. Later it may be the one that another process gathers.
        (folder / MANIFEST).unlink(missing_ok=True)
        _write(folder / f"manifest.rank{process.rank:05d}.json", manifest)


def write_gathered(folder: Path, manifest: Manifest) -> None:
    """Write what all processes say into `folder`, as its only manifest."""
    _write(folder / MANIFEST, manifest)


def _write(file: Path, manifest: Manifest) -> None:
    write_whole(file, msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n")


def write_whole(file: Path, content: bytes) -> None:
    """Write a file, replacing what was there in one step; nobody sees a part of it."""
    draft = file.with_name(f".{file.name}")
    try:
        draft.write_bytes(content)
        draft.replace(file)
    except OSError:
        draft.unlink(missing_ok=True)  # on a full disk there is a part of it
        raise


def publish_complete(folder: Path, path: Path, *, force: bool) -> None:
    """Publish the capture in `folder`, once all processes that write to it have completed theirs.

    Each process calls this when its own manifest is complete. The last of them publishes.

    Raises:
        TraceflowError: TF110 when `path` was taken meanwhile.
    """
    manifest, mine = _read_beside_others(folder), _claimed(folder)
    if manifest is None or not manifest.complete:
        return
    try:
        folder.rename(mine)
    except FileNotFoundError:
        return  # several found at once that all is complete, and another one was the first
    try:
        write_gathered(mine, manifest)
        publish(mine, path, force=force)
    except (OSError, TraceflowError):
        mine.rename(folder)
        raise
    for file in path.glob(_OF_RANK):
        file.unlink()


def _claimed(folder: Path) -> Path:
    """The name of a folder while one of the processes publishes it."""
    return folder.with_name(folder.name.replace(".incomplete-", ".publishing-"))


def _read_beside_others(folder: Path) -> Manifest | None:
    """The manifest, None where another process has just published it."""
    try:
        return read_manifest(folder)
    except FileNotFoundError:
        return None


def wait_until_published(folder: Path, *, patience_s: float) -> str | None:
    """Wait for the other processes that write to `folder`.

    Returns:
        None when the capture was published, else what keeps it from that.
    """
    deadline, pause_s = time.monotonic() + patience_s, 0.01
    while folder.exists() or _claimed(folder).exists():
        manifest = _read_beside_others(folder)
        if manifest is not None and manifest.problem is not None:
            return manifest.problem
        if time.monotonic() > deadline:
            return f"not every process has ended its recording within {patience_s:g} s"
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, 1)
    return None


def publish(folder: Path, path: Path, *, force: bool) -> None:
    """Give the complete capture in `folder` its name; with `force`, in place of the capture that bears it.

    Raises:
        TraceflowError: TF110 when `path` was taken meanwhile.
    """
    _refuse_taken(path, force=force)
    if not path.exists():
        folder.rename(path)
        return
    replaced = _free_sibling(path, "replaced")
    path.rename(replaced)
    try:
        folder.rename(path)
    except OSError:
        replaced.rename(path)
        raise
    shutil.rmtree(replaced)


def _free_sibling(path: Path, state: str) -> Path:
    """A name beside `path` that says it is no capture: `a.incomplete-71`, or else `a.incomplete-71-1` and so on."""
    name = f"{path.name}.{state}-{os.getpid()}"
    names = (name if attempt == 0 else f"{name}-{attempt}" for attempt in count())
    free = (sibling for sibling in map(path.with_name, names) if sibling not in _siblings and not sibling.exists())
    sibling = next(free)
    _siblings.add(sibling)
    return sibling


def _refuse_taken(path: Path, *, force: bool) -> None:
    if not path.exists():
        return
    what = f"cannot record to {path}"
    if not force:
        raise TraceflowError(
            "TF110", what, "it exists already", "choose another path, or replace it (-f, in Python force=True)"
        )
    if not _replaceable(path):
        # Replacing means deleting: a mistyped path must not cost anyone a folder of something else.
        raise TraceflowError("TF110", what, "what is there is not a capture", "choose another path")


def _replaceable(path: Path) -> bool:
    if not path.is_dir():
        return False
    return (path / MANIFEST).is_file() or (path / "plugins" / "profile").is_dir() or not any(path.iterdir())
