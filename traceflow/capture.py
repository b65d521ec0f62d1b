"""The capture: what one recording leaves on disk.

A capture is a folder, and the same folder is an ordinary TensorBoard/XProf log directory: the traces lie in
`plugins/profile/<run>/`, and `manifest.json` says who recorded what, how, and when each step ended. The manifest
is optional: any folder of traces opens as a capture.

While it is being written a capture is called `<path>.incomplete-<pid>`. It takes its own name in one rename, once
everything in it is complete; what a killed or failed run leaves behind therefore never looks like a capture.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from pathlib import Path

import msgspec

from traceflow.errors import TraceflowError

SCHEMA_VERSION = 1
MANIFEST = "manifest.json"


class Clock(msgspec.Struct, frozen=True):
    """One instant read on two clocks: time since 1970, and the monotonic performance counter."""

    time_ns: int
    perf_counter_ns: int


class Options(msgspec.Struct, frozen=True):
    """What the recording was asked for."""

    warmup: int  # steps that ran before the profiler started
    steps: int | None  # steps to record; None: all
    hlo: bool  # whether the compiled programs are stored with the trace


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


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a capture without opening its traces."""

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

    Raises:
        TraceflowError: TF103 when the manifest is damaged, TF107 when it is of a later schema.
    """
    file = folder / MANIFEST
    if not file.is_file():
        return None
    content = file.read_bytes()
    try:
        schema_version = msgspec.json.decode(content, type=_Versioned).schema_version
        if schema_version <= SCHEMA_VERSION:
            return msgspec.json.decode(content, type=Manifest)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise TraceflowError("TF103", f"cannot read {file}", str(error), "record again, or delete it") from error
    why = f"its schema version {schema_version} is later than {SCHEMA_VERSION}"
    raise TraceflowError("TF107", f"cannot read {file}", why, "update traceflow")


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


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write the manifest into `folder`, replacing the one there in one step."""
    draft = folder / f".{MANIFEST}"
    draft.write_bytes(msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n")
    draft.replace(folder / MANIFEST)


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
    return next(sibling for sibling in map(path.with_name, names) if not sibling.exists())


def _refuse_taken(path: Path, *, force: bool) -> None:
    if not path.exists():
        return
    what = f"cannot record to {path}"
    if not force:
        raise TraceflowError("TF110", what, "it exists already", "choose another path, or replace it with force")
    if not _replaceable(path):
        # Replacing means deleting: a mistyped path must not cost anyone a folder of something else.
        raise TraceflowError("TF110", what, "what is there is not a capture", "choose another path")


def _replaceable(path: Path) -> bool:
    if not path.is_dir():
        return False
    return (path / MANIFEST).is_file() or (path / "plugins" / "profile").is_dir() or not any(path.iterdir())
