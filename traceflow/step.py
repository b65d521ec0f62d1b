"""A step of a recording, and its three endpoints.

These are three different times: the calls of a step *returned* to Python, its results were *ready* on the devices, and
they were *fetched* to the host. Frameworks that dispatch asynchronously return long before the work is done, so a step
waits for its results before it ends, and says in the trace where it did.
"""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

from traceflow.capture import StepRecord

if TYPE_CHECKING:
    from traceflow.collectors.collector import Collector

CALL = "traceflow.call"  # from the start of the step until the user's calls have returned
READY = "traceflow.ready"  # the host waits for the devices
FETCH = "traceflow.fetch"  # results are copied to the host
_NOT_AWAITED = "the results of a step could not be awaited"

_Tree = TypeVar("_Tree")


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


FREE_STEP = Step()


class Owner(Protocol):
    """The recording that a step belongs to."""

    in_step: bool  # whether one of its steps is open

    def decide(self, tree: object) -> None:
        """Record the framework of `tree`, where it was not known before."""
        ...

    def settle(self, trees: tuple[object, ...]) -> None:
        """Wait for the arrays of `trees`, so that none of their work runs into what is measured."""
        ...

    def survive(self, what: str) -> AbstractContextManager[None]:
        """Run a piece of our own work, whose failure never reaches the program."""
        ...

    def spoil(self, problem: str) -> None:
        """Keep the capture from being called complete."""
        ...

    def finish(self, record: StepRecord) -> None:
        """Take in the record of a step that ended well."""
        ...


class UndecidedStep(Step):
    """A step of the warm-up before the framework is known; what it is told decides, and is awaited like any other."""

    __slots__ = ("_recording", "_trees")

    def __init__(self, recording: Owner) -> None:
        self._recording = recording
        self._trees: tuple[object, ...] = ()

    def __enter__(self) -> Self:
        self._recording.in_step = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._recording.settle(self._trees)
        self._recording.in_step = False
        self._trees = ()

    def ready(self, tree: _Tree) -> _Tree:
        """Let the arrays of `tree` tell the framework, and name what the step waits for at its end."""
        self._recording.decide(tree)
        self._trees += (tree,)
        return tree

    def fetch(self, tree: Any) -> Any:
        """Fetch as ever; the arrays tell the framework, too."""
        return super().fetch(self.ready(tree))


class MeasuredStep(Step):
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

    def __init__(self, recording: Owner, collector: Collector, number: int) -> None:
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
        """Name what the step waits for at its end."""
        self._trees += (tree,)
        return tree

    def fetch(self, tree: Any) -> Any:
        """Wait, copy, and note when either was done."""
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
