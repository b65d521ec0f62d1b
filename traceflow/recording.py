"""Recording: `record` wraps a loop, and leaves a capture of its steps.

A step has three endpoints, which are three different times: its calls *returned* to Python, its results were
*ready* on the devices, and they were *fetched* to the host. Frameworks that dispatch asynchronously return long
before the work is done, so a step waits for its results before it ends, and says in the trace where it did.

All processes of a distributed program that record to one path make one capture together.
"""

from __future__ import annotations

import logging
import os
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
from traceflow.errors import TraceflowError

if TYPE_CHECKING:
    from traceflow.collectors.collector import Collector
    from traceflow.collectors.frameworks import Framework
    from traceflow.collectors.jax_program import Call

CALL = "traceflow.call"  # from the start of the step until the user's calls have returned
READY = "traceflow.ready"  # the host waits for the devices
FETCH = "traceflow.fetch"  # results are copied to the host
_NOT_AWAITED = "the results of a step could not be awaited"

_log = logging.getLogger("traceflow")
_Tree = TypeVar("_Tree")
_PATIENCE_S = 60  # how long a process that has ended its recording waits for the others

# What profilers raise when they cannot start, wait or write. It must never reach the program that is measured.
_FAILURES = (
    AssertionError,
    AttributeError,
    ImportError,
    OSError,
    RuntimeError,
    TraceflowError,
    TypeError,
    ValueError,
)


def recording_here() -> _Recording | None:
    """The recording this thread is in, None outside one and while one of its steps is open."""
    recording = _HERE.get()
    return recording if recording is not None and recording.awaits_step() else None


def record(
    path: str | os.PathLike[str],
    *,
    framework: Framework | None = None,
    force: bool = False,
    warmup: int = 1,
    steps: int | None = None,
    hlo: bool = True,
    memory: bool = False,
) -> Recorder:
    """Record the steps of a JAX or PyTorch program into the capture `path`.

    The first `warmup` steps run before the profiler starts, so that compilation and warm-up stay out of the trace.
    With `TRACEFLOW=0` in the environment nothing is recorded and a step costs next to nothing. A profiler that
    fails is reported once through the logger `traceflow`, and the program goes on; an error of the program itself
    passes through unchanged. Both leave `<path>.incomplete-<pid>` instead of a capture.

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
        memory: PyTorch: record every allocation.

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

    options = Options(warmup, steps, hlo, memory)
    framework = framework or framework_in_use()
    if framework is None and warmup == 0:
        raise unknown_framework()
    collector = None if framework is None else collector_for(framework, options)
    return _Recording(Path(path).resolve(), options, collector, force=force)


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
        return _FREE_STEP

    def model(self, model: _Tree) -> _Tree:
        """Tell the model, so that the capture says how its parameters are placed (PyTorch: the DTensors).

        Returns:
            `model`, unchanged.
        """
        return model


class Step:
    """One step. This one lies outside the recording: it measures nothing."""

    __slots__ = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def ready(self, tree: _Tree) -> _Tree:
        """Name what the step has to wait for; without it, that is every array still being computed.

        Returns:
            `tree`, unchanged and not yet waited for: that happens at the end of the step.
        """
        return tree

    def fetch(self, tree: Any) -> Any:
        """Wait for the step's results, and copy those in `tree` to the host.

        Returns:
            `tree` with numpy arrays in place of device arrays.
        """
        from traceflow.collectors.frameworks import fetched

        return fetched(tree)


_FREE_STEP = Step()


class _Recording(Recorder):
    """Warm-up, then tracing, then closed; a failure of the profiler closes it early."""

    def __init__(self, path: Path, options: Options, collector: Collector | None, *, force: bool) -> None:
        self._path = path
        self._options = options
        self._collector = collector
        self._force = force
        self._open = self._warm = self._tracing = self._guest = False
        self._next_step = 0
        self._warmup: list[StepRecord] = []
        self._steps: list[StepRecord] = []
        self._problem: str | None = None
        self._told = False
        self._asked: dict[int, object] = {}  # functions by identity, which holds while they are kept
        self._calls: list[Call] = []
        self._outer: _Recording | None = None
        self.in_step = False

    def __enter__(self) -> Self:
        self._folder = reserve(self._path, force=self._force)
        self._created = datetime.now(UTC).isoformat()
        self._clock = Clock(time.time_ns(), time.perf_counter_ns())
        with self.survive("the manifest could not be written"):
            write_manifest(self._folder, self._manifest(complete=False))
        if self._collector is not None:
            self._use(self._collector)
        self._open = True
        self._outer = _HERE.get()
        _HERE.set(self)
        return self

    def awaits_step(self) -> bool:
        """Whether what comes next may be a step."""
        return self._open and not self.in_step

    def step(self) -> Step:
        if not self._open:
            return _FREE_STEP
        number, self._next_step = self._next_step, self._next_step + 1
        if number >= self._options.warmup and not self._tracing and not self._start():
            return _FREE_STEP
        if self._collector is None:
            return _UndecidedStep(self)
        if number == self._options.warmup - 1:
            with self.survive("the profiler could not warm up"):
                self._collector.prepare()
        return _MeasuredStep(self, self._collector, number)

    def remember(self, name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Keep the shapes of the first call to record of a function, for its program. To be called before the step."""
        if not self._options.hlo or self._next_step < self._options.warmup or id(function) in self._asked:
            return
        from traceflow.collectors.jax_program import remembered

        self._asked[id(function)] = function
        with self.survive("a call could not be remembered"):
            self._calls += remembered(name, function, args, kwargs)

    def model(self, model: _Tree) -> _Tree:
        self.decide(model)
        if self._open and self._collector is not None:
            with self.survive("the placements of the model could not be read"):
                self._collector.model(model)
        return model

    def decide(self, tree: object) -> None:
        """Record the framework of `tree`, where it was not known before."""
        from traceflow.collectors.frameworks import collector_for, framework_of

        framework = framework_of(tree) if self._open and self._collector is None else None
        if framework is not None:
            self._use(collector_for(framework, self._options))

    def _use(self, collector: Collector) -> None:
        self._collector = collector
        with self.survive("compilations could not be watched"):
            collector.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _HERE.set(self._outer)
        if kind is not None:
            self.spoil(f"the program raised {kind.__name__}")
        self._close()
        if self._problem is None:
            with self.survive("the other processes could not be awaited"):
                self._problem = wait_until_published(self._folder, patience_s=_PATIENCE_S)
        self._tell()

    def spoil(self, problem: str) -> None:
        """Keep the capture from being called complete. The first problem is the one that is told."""
        self._problem = self._problem or problem

    @contextmanager
    def survive(self, what: str) -> Generator[None]:
        """Run a piece of our own work; its failure spoils the capture, and never the program."""
        try:
            yield
        except _FAILURES as error:
            reason = str(error).partition("\n")[0]
            self.spoil(reason if isinstance(error, TraceflowError) else f"{what}: {type(error).__name__}: {reason}")

    def finish(self, record: StepRecord) -> None:
        """Take in the record of a step that ended well."""
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
        if not self._steps:
            self.spoil(f"no step was recorded after {min(self._next_step, self._options.warmup)} of warm-up")
        self._complete()
        self._tell()

    def _tell(self) -> None:
        """Say what keeps the capture from being complete, once."""
        if self._problem is None or self._told:
            return
        self._told = True
        left = f"what was recorded lies in {self._folder.name}"
        _log.warning("%s", TraceflowError("TF115", f"cannot record {self._path}", self._problem, left))

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
        rank, world_size = known.rank() if known is not None else (None, None)
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
        )


_HERE: ContextVar[_Recording | None] = ContextVar("traceflow.recording", default=None)


class _UndecidedStep(Step):
    """A step of the warm-up before the framework is known; what it is told decides."""

    __slots__ = ("_recording",)

    def __init__(self, recording: _Recording) -> None:
        self._recording = recording

    def __enter__(self) -> Self:
        self._recording.in_step = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._recording.in_step = False

    def ready(self, tree: _Tree) -> _Tree:
        self._recording.decide(tree)
        return tree

    def fetch(self, tree: Any) -> Any:
        return super().fetch(self.ready(tree))


class _MeasuredStep(Step):
    """A step that marks itself in the trace, waits for its results, and notes its three endpoints."""

    __slots__ = (
        "_call",
        "_collector",
        "_compiled",
        "_fetched_ns",
        "_number",
        "_ready_ns",
        "_recording",
        "_returned_ns",
        "_span",
        "_start_ns",
        "_trees",
    )

    def __init__(self, recording: _Recording, collector: Collector, number: int) -> None:
        self._recording = recording
        self._collector = collector
        self._number = number
        self._trees: tuple[object, ...] = ()
        self._returned_ns: int | None = None
        self._ready_ns: int | None = None
        self._fetched_ns: int | None = None

    def __enter__(self) -> Self:
        self._recording.in_step = True
        self._compiled = self._collector.compilations()
        self._start_ns = time.time_ns()
        self._span = self._collector.step(self._number)
        self._span.__enter__()
        self._call = self._collector.span(CALL)
        self._call.__enter__()
        return self

    def ready(self, tree: _Tree) -> _Tree:
        self._trees += (tree,)
        return tree

    def fetch(self, tree: Any) -> Any:
        self._end_call()
        with self._recording.survive(_NOT_AWAITED):
            self._wait(self._collector.pending((*self._trees, tree) if self._trees else ()))
        with self._collector.span(FETCH):
            fetched = self._collector.fetch(tree)
        self._fetched_ns = time.time_ns()
        return fetched

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end_call()
        if kind is None:
            self._settle()
        self._span.__exit__(None, None, None)
        self._recording.in_step = False
        self._trees = ()  # the step may outlive its body, and must not keep the arrays alive
        if kind is None:
            self._recording.finish(self._record())
        else:
            self._recording.spoil(f"step {self._number} raised {kind.__name__}")

    def _end_call(self) -> None:
        if self._returned_ns is None:
            self._call.__exit__(None, None, None)
            self._returned_ns = time.time_ns()

    def _settle(self) -> None:
        """Wait at the end of the step, unless a fetch has done so and nothing was launched since."""
        with self._recording.survive(_NOT_AWAITED):
            pending = self._collector.pending(self._trees)
            if self._fetched_ns is None or pending:
                self._wait(pending)

    def _wait(self, pending: list[Any]) -> None:
        with self._collector.span(READY):
            self._collector.wait(pending)
            self._ready_ns = self._ready_ns or time.time_ns()

    def _record(self) -> StepRecord:
        compilations, compile_ns = self._collector.compilations()
        return StepRecord(
            step=self._number,
            start_ns=self._start_ns,
            returned_ns=self._returned_ns or self._start_ns,
            ready_ns=self._ready_ns,
            fetched_ns=self._fetched_ns,
            compilations=compilations - self._compiled[0],
            compile_ns=compile_ns - self._compiled[1],
        )
