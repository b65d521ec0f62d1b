"""Recording: `record` wraps a loop, and leaves a capture of its steps.

A step has three endpoints, which are three different times: its calls *returned* to Python, its results were
*ready* on the devices, and they were *fetched* to the host. Frameworks that dispatch asynchronously return long
before the work is done, so a step waits for its results before it ends, and says in the trace where it did.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import socket
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from traceflow.capture import Clock, Manifest, Options, Process, StepRecord, publish, reserve, write_manifest
from traceflow.errors import TraceflowError

if TYPE_CHECKING:
    from traceflow.collectors.jax_profiler import JaxProfiler

STEP = "traceflow.step"
CALL = "traceflow.call"  # from the start of the step until the user's calls have returned
READY = "traceflow.ready"  # the host waits for the devices
FETCH = "traceflow.fetch"  # results are copied to the host

_log = logging.getLogger("traceflow")
_Tree = TypeVar("_Tree")

# What profilers raise when they cannot start, wait or write. It must never reach the program that is measured.
_FAILURES = (RuntimeError, ValueError, TypeError, AttributeError, ImportError, OSError, TraceflowError)


def record(
    path: str | os.PathLike[str],
    *,
    force: bool = False,
    warmup: int = 1,
    steps: int | None = None,
    hlo: bool = True,
) -> Recorder:
    """Record the steps of a JAX program into the capture `path`.

    The first `warmup` steps run before the profiler starts, so that compilation and warm-up stay out of the trace.
    With `TRACEFLOW=0` in the environment nothing is recorded and a step costs next to nothing. A profiler that
    fails is reported once through the logger `traceflow`, and the program goes on; an error of the program itself
    passes through unchanged. Both leave `<path>.incomplete-<pid>` instead of a capture.

    Args:
        path: Folder to make; complete only when the recording ended well.
        force: Replace the capture at `path`, if there is one.
        warmup: Steps before the profiler starts.
        steps: Steps to record; then the capture is closed and further steps are free. None records until the end.
        hlo: Store the compiled programs with the trace, which explaining it needs.

    Returns:
        A context manager with `step()`.

    Raises:
        TraceflowError: TF110 when `path` is taken (on entering), TF113 when JAX is not installed.
        ValueError: when no step could be recorded.

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
    if importlib.util.find_spec("jax") is None:
        raise TraceflowError("TF113", "cannot record", "JAX is not installed", "pip install 'traceflow-ml[jax]'")
    from traceflow.collectors.jax_profiler import JaxProfiler

    options = Options(warmup, steps, hlo)
    return _Recording(Path(path).resolve(), options, JaxProfiler(hlo=hlo), force=force)


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
        from traceflow.collectors.jax_profiler import JaxProfiler

        return JaxProfiler.fetch(tree)


_FREE_STEP = Step()


class _Recording(Recorder):
    """Warm-up, then tracing, then closed; a failure of the profiler closes it early."""

    def __init__(self, path: Path, options: Options, collector: JaxProfiler, *, force: bool) -> None:
        self._path = path
        self._options = options
        self._collector = collector
        self._force = force
        self._open = self._tracing = False
        self._next_step = 0
        self._warmup: list[StepRecord] = []
        self._steps: list[StepRecord] = []
        self._problem: str | None = None

    def __enter__(self) -> Self:
        self._folder = reserve(self._path, force=self._force)
        self._created = datetime.now(UTC).isoformat()
        self._clock = Clock(time.time_ns(), time.perf_counter_ns())
        with self.survive("the manifest could not be written"):
            write_manifest(self._folder, self._manifest(complete=False))
        self._collector.watch_compilations()
        self._open = True
        return self

    def step(self) -> Step:
        if not self._open:
            return _FREE_STEP
        number, self._next_step = self._next_step, self._next_step + 1
        if number >= self._options.warmup and not self._tracing and not self._start():
            return _FREE_STEP
        return _MeasuredStep(self, self._collector, number)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.spoil(f"the program raised {kind.__name__}")
        self._close()

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
            self.spoil(f"{what}: {type(error).__name__}: {reason}")

    def finish(self, record: StepRecord) -> None:
        """Take in the record of a step that ended well."""
        (self._steps if self._tracing else self._warmup).append(record)
        if len(self._steps) == self._options.steps:
            self._close()

    def _start(self) -> bool:
        with self.survive("the profiler did not start"):
            self._collector.start(self._folder)
            self._tracing = True
            return True
        self._close()
        return False

    def _close(self) -> None:
        if not self._open:
            return
        self._open = False
        self._collector.ignore_compilations()
        if self._tracing:
            with self.survive("the profiler did not stop"):
                self._collector.stop()
        if not self._steps:
            self.spoil(f"no step was recorded after {len(self._warmup)} of warm-up")
        self._complete()
        if self._problem is not None:
            left = f"what was recorded lies in {self._folder.name}"
            _log.warning("%s", TraceflowError("TF115", f"cannot record {self._path}", self._problem, left))

    def _complete(self) -> None:
        if self._problem is None:
            with self.survive("the capture could not be completed"):
                write_manifest(self._folder, self._manifest(complete=True))
                publish(self._folder, self._path, force=self._force)
                return
        with self.survive("the manifest could not be written"):
            write_manifest(self._folder, self._manifest(complete=False))

    def _manifest(self, *, complete: bool) -> Manifest:
        # Before tracing the framework may not have chosen its devices yet, and asking would choose for it.
        rank, world_size = self._collector.rank() if self._tracing else (None, None)
        return Manifest(
            traceflow_version=version("traceflow-ml"),
            created=self._created,
            complete=complete,
            problem=self._problem,
            process=Process(socket.gethostname(), os.getpid(), rank, world_size),
            clock=self._clock,
            frameworks=self._collector.versions(),
            devices=self._collector.devices() if self._tracing else None,
            options=self._options,
            warmup=tuple(self._warmup),
            steps=tuple(self._steps),
        )


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

    def __init__(self, recording: _Recording, collector: JaxProfiler, number: int) -> None:
        self._recording = recording
        self._collector = collector
        self._number = number
        self._trees: tuple[object, ...] = ()
        self._returned_ns: int | None = None
        self._ready_ns: int | None = None
        self._fetched_ns: int | None = None

    def __enter__(self) -> Self:
        self._compiled = self._collector.compilations()
        self._span, self._call = ExitStack(), ExitStack()
        self._start_ns = time.time_ns()
        self._span.enter_context(self._collector.step(STEP, self._number))
        self._call.enter_context(self._collector.span(CALL))
        return self

    def ready(self, tree: _Tree) -> _Tree:
        self._trees += (tree,)
        return tree

    def fetch(self, tree: Any) -> Any:
        self._end_call()
        self._wait((*self._trees, tree) if self._trees else ())
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
        self._span.close()
        self._trees = ()  # the step may outlive its body, and must not keep the arrays alive
        if kind is None:
            self._recording.finish(self._record())
        else:
            self._recording.spoil(f"step {self._number} raised {kind.__name__}")

    def _end_call(self) -> None:
        self._call.close()
        self._returned_ns = self._returned_ns or time.time_ns()

    def _settle(self) -> None:
        """Wait at the end of the step, unless a fetch has done so and nothing was launched since."""
        with self._recording.survive("the results of a step could not be checked"):
            if self._fetched_ns is None or self._collector.pending(self._trees):
                self._wait(self._trees)

    def _wait(self, trees: tuple[object, ...]) -> None:
        with self._recording.survive("the results of a step could not be awaited"), self._collector.span(READY):
            self._collector.wait(self._collector.pending(trees))
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
