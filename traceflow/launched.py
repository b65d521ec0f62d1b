"""Recording inside a program that `traceflow run` has started: what happens in each of its Python processes.

Steps come from the program. With PyTorch a step is what lies between two calls of the first optimizer's `step`; with
JAX, what the program annotates with `StepTraceAnnotation`. A JAX program without annotations is recorded as one
window, which begins when its first program has been compiled. Where annotated steps follow, they count instead.

Nothing here may change what the program does. It prints nothing, it leaves the program's own profiles alone, and its
failures end in the manifest.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from traceflow.capture import Options
from traceflow.collectors.jax_profiler import JaxProfiler
from traceflow.collectors.moments import on_annotated_step, on_compilation, on_optimizer_step, on_own_profile
from traceflow.collectors.xla_dump import SCRATCH, begin_dump, end_dump
from traceflow.recording import Recording, before_recording
from traceflow.step import Step

if TYPE_CHECKING:
    from traceflow.collectors.collector import Collector

SETTINGS = "TRACEFLOW_RUN"  # the environment variable that holds them
STEPS, WINDOW = "steps", "window"  # names of the captures of a process
OWN = "own-recording"  # name of the file in which a process says where the program records itself

_OWN_PROFILE = "the program started a profile of its own"
_OWN_RECORDING = "the program records itself"
_PATIENCE_S = 60  # how long the end of a program may wait for the profiler


class Settings(msgspec.Struct, frozen=True):
    """What the launcher asks of every process."""

    folder: str  # where each process makes a folder of its own, named after its number
    options: Options
    after_s: float  # a window begins so long after the first compilation
    seconds: float  # and lasts so long from the last one on


def record_torch() -> None:
    """Record the steps of this process's first optimizer; called when PyTorch has been imported."""
    from traceflow.collectors.torch_profiler import TorchProfiler

    settings = _settings()
    collector = TorchProfiler(settings.options)
    # The first step ends when nothing is known of it yet. The recording begins with the second.
    recording = _Quiet(settings, STEPS, collector, settings.options, first=1)
    steps = _OptimizerSteps(recording)
    before_recording(steps.give_way)
    atexit.register(recording.end)


def record_jax() -> None:
    """Record the annotated steps of this process, or a window; called when JAX has been imported."""
    settings = _settings()
    why = begin_dump(_own_folder(settings) / SCRATCH) if settings.options.xla_dump else None
    steps = _JaxSteps(settings, [] if why is None else [f"the dump of XLA: {why}"])
    on_compilation(steps.window.busy, steps.compiled)
    on_own_profile(steps.profiled)
    before_recording(steps.give_way)
    # JAX has registered how it lets go of its devices; what is registered last is called first.
    atexit.register(steps.end)


def _settings() -> Settings:
    return msgspec.json.decode(os.environ[SETTINGS], type=Settings)


def _own_folder(settings: Settings) -> Path:
    """The folder of this process."""
    return Path(settings.folder, str(os.getpid()))


class _Quiet(Recording):
    """A recording that opens with its first step, and whose problems are told by the launcher."""

    def __init__(
        self, settings: Settings, name: str, collector: Collector, options: Options, *, first: int = 0
    ) -> None:
        self._home = _own_folder(settings)
        super().__init__(self._home / name, options, collector, force=False, first=first)
        self.began = False  # whether there was a step
        self._thread = 0

    @property
    def over(self) -> bool:
        """Whether it has recorded all that it will."""
        return self.began and not self.is_open

    @property
    def here(self) -> bool:
        """Whether the caller is whose steps are recorded: no fork of the process, and no other thread."""
        return self.is_ours and self._thread in {0, threading.get_ident()}

    def awaits_step(self) -> bool:
        """No: what a step is was told to the launcher, so that calls of an instrumented function are none."""
        return False

    def step(self) -> Step:
        if not self.began:
            self.began, self._thread = True, threading.get_ident()
            with self.survive("the recording could not begin"):
                self.begin()
        return super().step()

    def end(self, problem: str | None = None) -> None:
        """End early: with the program, which may have ended with an error of its own, or for another reason."""
        if not self.is_ours or not self.began or self.over:
            return
        if problem is not None:
            self.spoil(problem)
        error = getattr(sys, "last_value", None)
        self.__exit__(None if error is None else type(error), error, None)

    def give_way(self, path: Path) -> None:
        """End because the program is about to record itself, and tell the launcher so."""
        if not self.is_ours:
            return
        self.end(_OWN_RECORDING)
        with self.survive("the program's own recording could not be told"):
            self._home.mkdir(parents=True, exist_ok=True)
            (self._home / OWN).write_text(str(path), encoding="utf-8")

    def tell(self) -> None:
        """Stay silent: the error stream is the program's."""


class _OptimizerSteps:
    """A step ends, and the next begins, when the first optimizer that ever stepped has stepped again."""

    def __init__(self, recording: _Quiet) -> None:
        self._recording = recording
        self._optimizer: object = None
        self._step: Step | None = None
        self._end_watch = on_optimizer_step(self._stepped)

    def _stepped(self, optimizer: object) -> None:
        if not self._recording.here or (self._optimizer is not None and self._optimizer is not optimizer):
            return
        with self._recording.survive("a step could not be recorded"):
            if self._step is not None:
                self._step.__exit__(None, None, None)
            self._optimizer, self._step = optimizer, self._recording.step()
            self._step.__enter__()
        if self._recording.over:
            self._end()

    def give_way(self, path: Path) -> None:
        """Leave the steps to a recording of the program itself; one that is over stays."""
        if not self._recording.over:
            self._recording.give_way(path)
        self._end()

    def _end(self) -> None:
        self._end_watch()
        self._optimizer = self._step = None


class _Unmarked(JaxProfiler):
    """The profiler of a program that goes on while it is recorded: nothing is marked, and arrays may be given away."""

    starter: ClassVar[int | None] = None  # the thread that is starting the profiler

    def __init__(self, options: Options, missing: list[str]) -> None:
        # XLA has been told to dump when JAX was imported, and the launcher takes in what it wrote.
        super().__init__(msgspec.structs.replace(options, xla_dump=False))
        self.missing = missing

    def start(self, folder: Path) -> None:
        """Start tracing, and let it be known that this is not the program's own profile."""
        _Unmarked.starter = threading.get_ident()
        try:
            super().start(folder)
        finally:
            _Unmarked.starter = None

    def shared(self, _path: Path, _folder: Path) -> None:
        """Each process writes a capture of its own, for the launcher to merge."""

    def step(self, _number: int) -> AbstractContextManager[object]:
        """Nothing: there are no steps."""
        return nullcontext()

    def span(self, _name: str) -> AbstractContextManager[object]:
        """Nothing: whoever waits for the end of a window is not the program, and has no place in its trace."""
        return nullcontext()

    def pending(self, trees: tuple[object, ...]) -> list[Any]:
        """What is being computed, where the program gives none of it away in the meantime."""
        with suppress(RuntimeError, ValueError):
            return super().pending(trees)
        return []

    def wait(self, arrays: list[Any]) -> None:
        """Block until `arrays` are complete, or given away."""
        with suppress(RuntimeError, ValueError):
            super().wait(arrays)


class _Annotated(_Unmarked):
    """The profiler of a program that marks its own steps."""

    mark: AbstractContextManager[object] | None = None

    def step(self, _number: int) -> AbstractContextManager[object]:
        """The program's own mark, if there is one that nobody has entered yet."""
        mark, self.mark = self.mark, None
        return mark or nullcontext()

    def span(self, name: str) -> AbstractContextManager[object]:
        """Annotate what the host does inside."""
        return JaxProfiler.span(self, name)


class _JaxSteps:
    """The steps that a JAX program annotates; until it does, a window."""

    def __init__(self, settings: Settings, missing: list[str]) -> None:
        self.window = _Window(settings, missing)
        self._collector = _Annotated(settings.options, missing)
        self._recording = _Quiet(settings, STEPS, self._collector, settings.options)
        self._inside = False
        self._end_watch = on_annotated_step(self._around)

    @contextmanager
    def _around(self, mark: AbstractContextManager[object]) -> Generator[None]:
        """What the program does in a step of its own; a step within another one does not count."""
        if self._inside or self._recording.over or not self._recording.here:
            with mark:
                yield
            return
        self.window.end()
        self._inside, self._collector.mark = True, mark
        try:
            # Outside of the recorded steps, nobody has entered the mark.
            with self._recording.step(), self._collector.step(0):
                yield
        finally:
            self._inside = False
            if self._recording.over:
                self._end_watch()

    def compiled(self) -> None:
        """Hear that a program has been compiled, for which XLA has read its flags."""
        end_dump()
        self.window.idle()

    def give_way(self, path: Path) -> None:
        """Leave the profiler to a recording of the program itself; one that is over stays."""
        over = self._recording.over if self._recording.began else self.window.over  # which ends for annotated steps
        self.window.end(_OWN_RECORDING)
        if not over:
            self._recording.give_way(path)
        self._end_watch()

    def profiled(self) -> None:
        """Leave the profiler to the program, which is about to start it."""
        if _Unmarked.starter != threading.get_ident():
            self.window.end(_OWN_PROFILE)
            self._recording.end(_OWN_PROFILE)

    def end(self) -> None:
        """End with the program."""
        self.window.end()
        self._recording.end()


class _Window:
    """One recording without steps, in a thread of its own, from the first compilation until all is compiled and run."""

    def __init__(self, settings: Settings, missing: list[str]) -> None:
        options = msgspec.structs.replace(settings.options, warmup=0, steps=1, execution_trace=False)
        self._recording = _Quiet(settings, WINDOW, _Unmarked(options, missing), options)
        self._after_s, self._seconds = settings.after_s, settings.seconds
        self._compiling, self._idle_since = False, 0.0
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def over(self) -> bool:
        """Whether it was recorded."""
        return self._recording.over

    def busy(self) -> None:
        """Hear that a program is being compiled: the window stays open that long."""
        self._compiling = True

    def idle(self) -> None:
        """Hear that a program has been compiled; the first one opens the window."""
        self._compiling, self._idle_since = False, time.monotonic()
        if self._thread is None and self._recording.here and not self._ended.is_set():
            self._thread = threading.Thread(target=self._record, name="traceflow", daemon=True)
            self._thread.start()

    def end(self, problem: str | None = None) -> None:
        """Close the window, and never open it again."""
        if problem is not None:
            self._recording.spoil(problem)
        self._ended.set()
        if self._thread is not None:
            self._thread.join(_PATIENCE_S)

    def _record(self) -> None:
        if self._ended.wait(self._after_s):
            return
        with self._recording.survive("the window could not be recorded"), self._recording.step():
            while (remaining_s := self._remaining_s()) > 0 and not self._ended.wait(remaining_s):
                pass

    def _remaining_s(self) -> float:
        return self._seconds if self._compiling else self._idle_since + self._seconds - time.monotonic()
