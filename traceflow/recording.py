"""Recording: `record` wraps a loop, and leaves a capture of its steps.

All processes of a distributed program that record to one path make one capture together.
"""

from __future__ import annotations

import atexit
import logging
import os
import shutil
import socket
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from traceflow.attachment import check_name, serialized, write_attachment
from traceflow.capture import (
    Clock,
    Manifest,
    Options,
    Process,
    StepRecord,
    join,
    publish_complete,
    reserve,
    wait_until_published,
    write_manifest,
)
from traceflow.collectors.collector import FAILURES, optional, reason
from traceflow.errors import TraceflowError
from traceflow.step import FREE_STEP, MeasuredStep, Step, UndecidedStep

if TYPE_CHECKING:
    from traceflow.collectors.collector import Collector
    from traceflow.collectors.frameworks import Framework
    from traceflow.collectors.jax_program import Call

_log = logging.getLogger("traceflow")
_Tree = TypeVar("_Tree")
_PATIENCE_S = 60  # how long a process that has ended its recording waits for the others
_listeners: list[Callable[[Path], object]] = []


def before_recording(call: Callable[[Path], object]) -> None:
    """Call a function, with the path, before this program begins a recording of its own. It must not raise."""
    _listeners.append(call)


def recording_here() -> Recording | None:
    """The recording this thread is in, None outside one and once it is over."""
    recording = _HERE.get()
    return recording if recording is not None and recording.is_open and recording.is_ours else None


def recording_around() -> Recording | None:
    """The recording this thread is in that takes steps, and has begun its first; None without one."""
    recording = _HERE.get()
    return recording if recording is not None and recording.is_open and recording.step_number >= 0 else None


def record(
    path: str | os.PathLike[str],
    *,
    framework: Framework | None = None,
    force: bool = False,
    warmup: int = 1,
    steps: int | None = None,
    hlo: bool = True,
    xla_dump: bool = False,
    memory: bool = False,
    memory_categories: bool = False,
    execution_trace: bool = False,
) -> Recorder:
    """Record the steps of a JAX or PyTorch program into the capture `path`.

    The first `warmup` steps run before the profiler starts, so that compilation and warm-up stay out of the trace.
    With `TRACEFLOW=0` in the environment nothing is recorded and a step costs next to nothing. A profiler that
    fails is reported once through the logger `traceflow`, and the program goes on; an error of the program itself
    passes through unchanged. Both leave `<path>.incomplete-<pid>` instead of a capture. Of what is recorded besides
    the trace, whatever fails is named in the manifest (`missing`), with one warning, and the capture is complete.

    In a distributed program every process calls this with the same path. The capture is complete when all
    of those that began to trace have ended; a process that ends earlier waits for the others when it leaves.

    Args:
        path: Folder to make; complete only when the recording ended well.
        framework: What computes, `jax` or `torch`. None takes the one that is imported; with both imported, the one
            whose arrays a step of the warm-up gives to `ready` or `fetch`.
        force: Replace the capture at `path`, if there is one.
        warmup: Steps before the profiler starts. PyTorch on a GPU needs one, during which its profiler warms up.
        steps: Steps to record; then the capture is closed and further steps are free. None records until the end.
        hlo: JAX: store the compiled programs with the trace, which explaining it needs.
        xla_dump: JAX: keep what XLA dumps of each program that it compiles, in `xla/`: the text and the protobuf before
            and after optimization, and where it is divided among devices. Enter this before JAX computes anything.
        memory: PyTorch: record every allocation; on a GPU with the history of its allocator.
        memory_categories: PyTorch: tell in addition what memory was used for. Slows the host, whose stacks it takes.
        execution_trace: PyTorch: let one more step pass before the recorded ones, and keep its execution trace.

    Returns:
        A context manager with `step()`.

    Raises:
        TraceflowError: TF110 when `path` is taken (on entering), TF113 when the framework is not installed, TF116
            when it cannot be told without a warm-up.
        ValueError: when no step could be recorded, or the framework is an unknown one.

    Example::

        with record("runs/a", steps=3) as recorder:
            for batch in data:
                with recorder.step() as step:
                    state, loss = train_step(state, batch)
                    print(step.fetch(loss))
    """
    if warmup < 0 or (steps is not None and steps < 1):
        message = f"cannot record {steps} steps after {warmup} of warm-up: use warmup >= 0 and steps >= 1"
        raise ValueError(message)
    if os.environ.get("TRACEFLOW") == "0":
        return Recorder()
    from traceflow.collectors.frameworks import collector_for, framework_in_use, unknown_framework

    options = Options(
        warmup,
        steps,
        hlo,
        memory=memory,
        xla_dump=xla_dump,
        memory_categories=memory_categories,
        execution_trace=execution_trace,
    )
    framework = framework or framework_in_use()
    if framework is None and warmup == 0:
        raise unknown_framework()
    collector = None if framework is None else collector_for(framework, options)
    return Recording(Path(path).resolve(), options, collector, force=force)


def lacks(path: Path, what: str) -> TraceflowError:
    """What to say where something that was asked for besides the trace is missing; it begins `missing: reason`."""
    name, _, why = what.partition(": ")
    return TraceflowError("TF119", f"cannot keep {name} in {path}", why, "everything else was recorded")


class Recorder:
    """What `record` gives. This one records nothing: `TRACEFLOW=0`."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def step(self) -> Step:
        """A context for the next step of the loop; free where nothing is recorded."""
        return FREE_STEP

    def attach(self, name: str, data: Any) -> None:
        """Keep something beside the trace of this process, as `rankNNNNN.<name>` in the capture.

        Args:
            name: What to call it, such as `routing.npz`. A second one of a name takes the place of the first.
            data: Bytes or text; for a name in `.npz` arrays by name; for any other what JSON can hold.

        Raises:
            ValueError: when `name` is none of a file.
        """
        check_name(name)
        del data

    def model(self, model: _Tree) -> _Tree:
        """Tell the model, so that the capture says how its parameters are placed (PyTorch: the DTensors).

        Returns:
            `model`, unchanged.
        """
        return model


class Recording(Recorder):
    """Warm-up, then tracing, then closed; a failure of the profiler closes it early.

    Args:
        path: The capture to make.
        options: What to record.
        collector: Of the framework; None where that is not known yet.
        force: Replace the capture at `path`, if there is one.
        first: The number of the first step.
    """

    def __init__(
        self, path: Path, options: Options, collector: Collector | None, *, force: bool, first: int = 0
    ) -> None:
        self._path = path
        self._options = options
        self._collector = collector
        self._force = force
        self._open = self._warm = self._tracing = self._guest = False
        self._next_step = first
        self._warmup: list[StepRecord] = []
        self._steps: list[StepRecord] = []
        self._problem: str | None = None
        self._missing: list[str] = []
        self._attached: dict[str, bytes] = {}
        self._at_end: dict[str, Callable[[int], Any]] = {}
        self._told, self._told_lacking = False, 0
        self._asked: dict[int, object] = {}  # functions by identity, which holds while they are kept
        self._calls: list[Call] = []
        self._outer: Recording | None = None
        self._process = os.getpid()
        self.in_step = False

    @property
    def is_open(self) -> bool:
        """Whether it takes steps."""
        return self._open

    @property
    def folder(self) -> Path:
        """Where what was recorded lies: the capture, or what takes its place where it is not complete."""
        return self._folder if self._problem is not None or self._open else self._path

    @property
    def step_number(self) -> int:
        """The number of the step that began last."""
        return self._next_step - 1

    def __enter__(self) -> Self:
        for call in _listeners:
            call(self._path)
        self.begin()
        return self

    def begin(self) -> None:
        """Take steps from now on.

        Raises:
            TraceflowError: TF110 when the path is taken, TF114 when nothing can be written there.
        """
        self._folder = reserve(self._path, force=self._force)
        self._scratch = self._folder.with_name(self._folder.name.replace(".incomplete-", ".scratch-"))
        self._created = datetime.now(UTC).isoformat()
        self._clock = Clock(time.time_ns(), time.perf_counter_ns())
        with self.survive("the manifest could not be written"):
            write_manifest(self._folder, self._manifest(complete=False))
        if self._collector is not None:
            self._use(self._collector)
        self._open = True
        self._outer = _HERE.get()
        _HERE.set(self)

    @property
    def is_ours(self) -> bool:
        """Whether this is the process that began to record, and no fork of it, which must leave everything alone."""
        return self._process == os.getpid()

    def awaits_step(self) -> bool:
        """Whether what comes next may be a step."""
        return self._open and self.is_ours and not self.in_step

    def step(self) -> Step:
        """The next step, of the warm-up or measured; free once the recording is over, and in a fork of the process."""
        if not self._open or not self.is_ours:
            return FREE_STEP
        number, self._next_step = self._next_step, self._next_step + 1
        if number >= self._options.lead and not self._tracing and not self._start():
            return FREE_STEP
        if self._collector is None:
            return UndecidedStep(self)
        if number == self._options.lead - 1:
            with self.survive("the profiler could not warm up"):
                self._collector.prepare()
        return MeasuredStep(self, self._collector, number)

    def remember(self, name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Keep the shapes of the first call to record of a function, for its program. To be called before it is."""
        coming = self._next_step - self.in_step  # the step that the call is, or is a part of
        if not self._options.hlo or coming < self._options.lead or id(function) in self._asked:
            return
        from traceflow.collectors.jax_program import remembered

        self._asked[id(function)] = function
        with self.survive("a call could not be remembered"):
            self._calls += remembered(name, function, args, kwargs)

    def model(self, model: _Tree) -> _Tree:
        """Tell the model, whose placements the collector keeps."""
        self.decide(model)
        if self._open and self._collector is not None:
            with self.survive("the placements of the model could not be read"):
                self._collector.model(model)
        return model

    def attach(self, name: str, data: Any) -> None:
        """Keep something beside the trace; it is written when the recording closes, or at once where it has closed."""
        super().attach(name, data)
        with optional(name, self._missing):
            self._attached[name] = serialized(name, data)
            if not self._open:
                self._write_attached()

    def attach_at_end(self, name: str, content: Callable[[int], Any]) -> None:
        """Attach what `content` gives for the rank of this process when the recording closes."""
        check_name(name)
        self._at_end[name] = content

    @contextmanager
    def forgoing(self, name: str) -> Generator[None]:
        """Do what belongs to an attachment; the first failure is named in the manifest, and none reaches the program."""
        lost: list[str] = []
        with optional(name, lost):
            yield
        self._missing += [reason for reason in lost if reason not in self._missing]

    def _write_attached(self) -> None:
        """Write what was attached, into the capture or where it is made."""
        rank = self._rank()[0] or 0
        while self._at_end:
            name, content_of = self._at_end.popitem()
            with optional(name, self._missing):
                self._attached[name] = serialized(name, content_of(rank))
        while self._attached:
            name, content = self._attached.popitem()
            with optional(name, self._missing):
                write_attachment((self._folder, self._path), f"rank{rank:05d}.{name}", content)

    def decide(self, tree: object) -> None:
        """Record the framework of `tree`, where it was not known before."""
        from traceflow.collectors.frameworks import collector_for, framework_of

        framework = framework_of(tree) if self._open and self._collector is None else None
        if framework is not None:
            self._use(collector_for(framework, self._options))

    def settle(self, trees: tuple[object, ...]) -> None:
        """Wait for the arrays of `trees`, so that none of their work runs into what is measured."""
        if self._collector is not None:
            with self.survive("the results of a step of the warm-up could not be awaited"):
                self._collector.wait(self._collector.pending(trees))

    def _use(self, collector: Collector) -> None:
        self._collector = collector
        with self.survive("compilations could not be watched"):
            collector.open(self._scratch)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _HERE.set(self._outer)
        if not self.is_ours:
            return
        if kind is not None:
            self.spoil(f"the program raised {kind.__name__}")
        self._close()
        if self._problem is None:
            with self.survive("the other processes could not be awaited"):
                self._problem = wait_until_published(self._folder, patience_s=_PATIENCE_S)
        self.tell()

    def spoil(self, problem: str) -> None:
        """Keep the capture from being called complete. The first problem is the one that is told."""
        self._problem = self._problem or problem

    @contextmanager
    def survive(self, what: str) -> Generator[None]:
        """Run a piece of our own work; its failure spoils the capture, and never the program."""
        try:
            yield
        except FAILURES as error:
            self.spoil(reason(error) if isinstance(error, TraceflowError) else f"{what}: {reason(error)}")

    def finish(self, record: StepRecord) -> None:
        """Take in the record of a step that ended well."""
        if not self.is_ours:
            return
        (self._steps if self._tracing else self._warmup).append(record)
        if len(self._steps) == self._options.steps:
            self._close()

    def _start(self) -> bool:
        self._warm = True
        with self.survive("the profiler did not start"):
            collector = self._known_collector()
            shared = collector.shared(self._path, self._folder)
            if shared is not None:
                self._guest = shared != self._folder
                self._folder = join(self._folder, shared)
                write_manifest(self._folder, self._manifest(complete=False))
            collector.start(self._folder)
            self._tracing = True
            return True
        self._close()
        return False

    def _known_collector(self) -> Collector:
        from traceflow.collectors.frameworks import unknown_framework

        if self._collector is None:
            raise unknown_framework()
        return self._collector

    def _close(self) -> None:
        if not self._open:
            return
        self._open = False
        if self._collector is not None:
            with self.survive("the profiler did not stop"):
                if self._tracing:
                    self._collector.stop()
            with self.survive("the programs could not be written"):
                if self._tracing and self._calls and not self._guest:  # all have the same
                    from traceflow.collectors.jax_program import write_programs

                    write_programs(self._folder, self._calls)
            with self.survive("the profiler could not be released"):
                self._collector.close()
        self._asked, self._calls = {}, []
        self._clear_scratch()
        with self.survive("what was attached could not be written"):
            self._write_attached()
        if not self._steps:
            self.spoil(f"no step was recorded after {min(self._next_step, self._options.lead)} of warm-up")
        self._complete()
        self.tell()

    def _clear_scratch(self) -> None:
        shutil.rmtree(self._scratch, ignore_errors=True)
        if self._options.xla_dump:  # XLA writes what it compiles as long as the process lives
            atexit.register(self._clear_late)

    def _clear_late(self) -> None:
        if self.is_ours:
            shutil.rmtree(self._scratch, ignore_errors=True)

    def tell(self) -> None:
        """Say what keeps the capture from being complete, and what it lacks, once."""
        if self._problem is not None and not self._told:
            self._told = True
            left = f"what was recorded lies in {self._folder.name}"
            _log.warning("%s", TraceflowError("TF115", f"cannot record {self._path}", self._problem, left))
        for lacking in self._lacking()[self._told_lacking :]:
            self._told_lacking += 1
            _log.warning("%s", lacks(self._path, lacking))

    def _lacking(self) -> list[str]:
        return [*(self._collector.missing if self._collector is not None else ()), *self._missing]

    def _complete(self) -> None:
        if self._problem is None:
            with self.survive("the capture could not be completed"):
                write_manifest(self._folder, self._manifest(complete=True))
                publish_complete(self._folder, self._path, force=self._force)
                return
        with self.survive("the manifest could not be written"):
            write_manifest(self._folder, self._manifest(complete=False))

    def _manifest(self, *, complete: bool) -> Manifest:
        # During warm-up the framework may not have chosen its devices yet, and asking would choose for it.
        known = self._collector if self._warm else None
        rank, world_size = self._rank()
        return Manifest(
            traceflow_version=version("traceflow-ml"),
            created=self._created,
            complete=complete,
            problem=self._problem,
            process=Process(socket.gethostname(), os.getpid(), rank, world_size),
            clock=self._clock,
            frameworks=self._collector.versions() if self._collector is not None else {},
            devices=known.devices() if known is not None else None,
            options=self._options,
            warmup=tuple(self._warmup),
            steps=tuple(self._steps),
            missing=tuple(self._lacking()),
        )

    def _rank(self) -> tuple[int | None, int | None]:
        return self._collector.rank() if self._collector is not None and self._warm else (None, None)


_HERE: ContextVar[Recording | None] = ContextVar("traceflow.recording", default=None)
