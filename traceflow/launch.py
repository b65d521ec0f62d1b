"""Starting a program with recording switched on in all of its Python processes, and merging what these leave.

The program is not changed. An environment variable says what to record, and a start hook on `PYTHONPATH` waits in
each process for JAX or PyTorch; `launched` is what happens then. Each process records into a folder of its own. When
the program has ended, the captures of its processes become one, with one manifest.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType

import msgspec

from traceflow.capture import Launch, Manifest, Options, gathered, publish, read_manifest, reserve, write_gathered
from traceflow.collectors.torch_profiler import TRACES
from traceflow.collectors.xla_dump import FOLDER, SCRATCH, keep_dump
from traceflow.errors import TraceflowError
from traceflow.launched import OWN, SETTINGS, STEPS, WINDOW, Settings

_PARTS = "processes"  # folder of the captures of single processes, until they are merged
_HOOK = Path(__file__).parent / "start"
_RUNS = Path("plugins", "profile")
_PREFERRED = (STEPS, f"{STEPS}.*", WINDOW, f"{WINDOW}.*")


@dataclass(frozen=True)
class Launched:
    """What came of a program."""

    exit_code: int
    manifest: Manifest | None = None  # of the capture, None where there is none that is complete
    problem: TraceflowError | None = None  # why there is none
    own: Path | None = None  # what the program, which records itself, made instead


def launch(
    command: Sequence[str], path: Path, options: Options, *, after_s: float, seconds: float, force: bool
) -> Launched:
    """Run a program to its end, and leave what its processes recorded as the capture `path`.

    With `TRACEFLOW=0` in the environment the program runs, and that is all.

    Args:
        command: The program and its arguments.
        path: Folder to make. A capture that is incomplete is left beside it, as `record` does.
        options: What to record in each process.
        after_s: JAX without annotated steps: how long after the first compilation the window begins.
        seconds: How long it lasts, counted anew from each further compilation.
        force: Replace the capture at `path`, if there is one.

    Returns:
        The exit code of the program, and what was recorded.

    Raises:
        TraceflowError: TF110 when `path` is taken, TF114 when it cannot be made, TF118 when the program cannot be
            started.
    """
    if os.environ.get("TRACEFLOW") == "0":
        return Launched(_ran(command, os.environ))
    folder = reserve(path.resolve(), force=force)
    settings = Settings(str(folder / _PARTS), options, after_s, seconds)
    try:
        exit_code = _ran(command, _environment(settings))
    except TraceflowError:
        folder.rmdir()
        raise
    try:
        return _collected(folder, path, command, exit_code, force=force)
    except TraceflowError as error:
        return Launched(exit_code, None, error)
    except OSError as error:
        return Launched(exit_code, None, _failure(path, str(error), f"what was recorded lies in {folder.name}"))


def _environment(settings: Settings) -> dict[str, str]:
    """This process's own, with what makes every Python process below it record."""
    searched = [str(_HOOK), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    told = {SETTINGS: msgspec.json.encode(settings).decode(), "PYTHONPATH": os.pathsep.join(dict.fromkeys(searched))}
    # PyTorch's profiler would write to the program's stderr.
    return {"KINETO_LOG_LEVEL": "99", **os.environ, **told}


def _ran(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run a program to its end; its exit code as a shell gives it."""
    with _signals() as passed_on_to:
        try:
            program = subprocess.Popen(command, env=environment)
        except OSError as error:
            why = error.strerror or type(error).__name__
            raise TraceflowError("TF118", f"cannot run {command[0]}", why, "check its name and path") from error
        passed_on_to.append(program)
        code = program.wait()
    return code if code >= 0 else 128 - code


@contextmanager
def _signals() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Leave it to the program what a signal does. A terminal interrupts the program itself; others reach only us."""
    programs: list[subprocess.Popen[bytes]] = []

    def pass_on(number: int, _frame: FrameType | None) -> None:
        for program in programs if number != signal.SIGINT else ():
            program.send_signal(number)

    numbers = [n for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) is not signal.SIG_IGN]
    before = {number: signal.signal(number, pass_on) for number in numbers}
    try:
        yield programs
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@dataclass(frozen=True)
class _Part:
    """What one process recorded."""

    folder: Path
    manifest: Manifest
    problem: str | None  # why it is not complete

    @property
    def rank(self) -> int:
        return self.manifest.process.rank or 0


def _collected(folder: Path, path: Path, command: Sequence[str], exit_code: int, *, force: bool) -> Launched:
    """Merge what the processes left in `folder`, and give it its name if it is complete."""
    own = next(folder.glob(f"{_PARTS}/*/{OWN}"), None)
    if own is not None:
        itself = Path(own.read_text(encoding="utf-8"))
        shutil.rmtree(folder)
        return Launched(exit_code, own=itself)
    parts = sorted(_parts(folder / _PARTS), key=lambda part: part.rank)
    if not parts:
        shutil.rmtree(folder)
        return Launched(exit_code, None, _nothing(path))
    if len({part.rank for part in parts}) < len(parts):
        why = f"its {len(parts)} processes are not the ranks of one program"
        return Launched(exit_code, None, _failure(path, why, f"each has a capture in {folder.name}/{_PARTS}"))
    _merge(parts, folder)
    manifest = _manifest([_with_dump(part, folder) for part in parts], command, exit_code)
    shutil.rmtree(folder / _PARTS)
    write_gathered(folder, manifest)
    if manifest.problem is not None:
        return Launched(exit_code, None, _failure(path, manifest.problem, f"what was recorded lies in {folder.name}"))
    publish(folder, path.resolve(), force=force)
    return Launched(exit_code, manifest, None)


def _nothing(path: Path) -> TraceflowError:
    why = "in none of its processes did JAX compile a program, or an optimizer of PyTorch take a second step"
    return TraceflowError(
        "TF117", f"cannot record {path}", why, "run it where traceflow is installed, or use tf.record"
    )


def _failure(path: Path, why: str, hint: str) -> TraceflowError:
    return TraceflowError("TF115", f"cannot record {path}", why, hint)


def _parts(folder: Path) -> Iterator[_Part]:
    """What each process recorded: its steps where it traced any, else its window."""
    for process in sorted(folder.glob("*")):
        captures = [capture for name in _PREFERRED for capture in sorted(process.glob(name))]
        found = [(capture, said) for capture in captures if (said := read_manifest(capture)) is not None]
        if found:
            capture, said = next((one for one in found if _traced(one[0])), found[0])
            killed = any(not other.complete and other.problem is None for _, other in found)
            ended = f"process {process.name} ended before its recording did"
            yield _Part(capture, said, said.problem or (ended if killed else None))


def _traced(capture: Path) -> bool:
    return any(capture.glob(f"{_RUNS}/*/*")) or any(capture.glob(f"{TRACES}/*"))


def _manifest(parts: Sequence[_Part], command: Sequence[str], exit_code: int) -> Manifest:
    """What all processes say, in order of rank, as the manifest of the first."""
    manifest = gathered([_launched(part, Launch(list(command), exit_code, _steps_are(part))) for part in parts])
    world_size = max(part.manifest.process.world_size or 1 for part in parts)
    absent = sorted({*range(world_size)} - {part.rank for part in parts})
    if manifest.problem is not None or not absent or exit_code == 0:  # of a program that ended well, they ran elsewhere
        return manifest
    return msgspec.structs.replace(manifest, complete=False, problem=f"rank {absent[0]}: it recorded nothing")


def _launched(part: _Part, launch: Launch) -> Manifest:
    return msgspec.structs.replace(part.manifest, complete=part.problem is None, problem=part.problem, launch=launch)


def _steps_are(part: _Part) -> str | None:
    if "torch" in part.manifest.frameworks:
        return "from one call of the first optimizer's step to the next"
    if part.folder.name.startswith(WINDOW):
        return None
    return "what the program annotates with StepTraceAnnotation"


def _merge(parts: Sequence[_Part], folder: Path) -> None:
    """Move all files of all processes into one capture: its log directory has one run, with a file of each rank."""
    run = next((run for part in parts for run in sorted(part.folder.glob(f"{_RUNS}/*"))), None)
    for part in parts:
        prefix = f"rank{part.rank:05d}." if len(parts) > 1 else ""
        for file in part.folder.glob(f"{_RUNS}/*/*"):
            if run is not None:
                _move(file, folder / _RUNS / run.name / f"{prefix}{file.name}")
        for file in (*part.folder.glob(f"{TRACES}/*"), *part.folder.glob("rank*")):
            _move(file, folder / file.relative_to(part.folder))


def _with_dump(part: _Part, folder: Path) -> _Part:
    """Take in what XLA dumped of a process of JAX, where that was asked for."""
    said = part.manifest
    if not said.options.xla_dump or "jax" not in said.frameworks or said.missing:
        return part
    why = keep_dump(part.folder.parent / SCRATCH, folder / FOLDER / f"rank{part.rank:05d}")
    missing = () if why is None else (f"the dump of XLA: {why}",)
    return replace(part, manifest=msgspec.structs.replace(said, missing=missing))


def _move(file: Path, place: Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    file.rename(place)
