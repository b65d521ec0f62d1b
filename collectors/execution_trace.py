"""PyTorch's execution trace: every operator of one step with its tensors, and thus which result went where.

Its observer makes operators several times slower, so that the step is one that is not measured.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

from traceflow.collectors.collector import FAILURES


class ExecutionTrace:
    """The observer of this process, of which PyTorch has one. It writes into `scratch` until all is observed."""

    def __init__(self, scratch: Path) -> None:
        from torch.profiler import ExecutionTraceObserver

        scratch.mkdir(exist_ok=True)
        self._draft = scratch / "execution_trace.json"
        self._observer = ExecutionTraceObserver()
        self._observer.register_callback(str(self._draft))

    @contextmanager
    def observing(self, span: AbstractContextManager[object]) -> Generator[None]:
        """Observe what is done inside of `span`."""
        with suppress(*FAILURES):
            self._observer.start()
        try:
            with span:
                yield
        finally:
            self._observer.stop()

    def write(self, file: Path) -> None:
        """Move what was observed to `file`.

        Raises:
            RuntimeError: when nothing was, such as when somebody else observes this process.
        """
        self.close()
        if not self._draft.is_file():
            raise RuntimeError("another observer was there before")
        self._draft.rename(file)

    def close(self) -> None:
        """Let go of the observer, which completes its file."""
        self._observer.unregister_callback()
