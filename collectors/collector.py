"""What recording needs of a profiler: the interface that the collector of each framework implements."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Protocol

from traceflow.capture import Devices
from traceflow.errors import TraceflowError

# What profilers raise when they cannot start, wait or write. It must never reach the program that is measured.
FAILURES = (
    AssertionError,
    AttributeError,
    ImportError,
    OSError,
    RuntimeError,
    TraceflowError,
    TypeError,
    ValueError,
)


def reason(error: BaseException) -> str:
    """An error in one line."""
    said = str(error).partition("\n")[0]
    return said if isinstance(error, TraceflowError) else f"{type(error).__name__}: {said}"


@contextmanager
def optional(what: str, missing: list[str]) -> Generator[None]:
    """Do what a capture can do without; its failure adds a line to `missing`."""
    try:
        yield
    except FAILURES as error:
        missing.append(f"{what}: {reason(error)}")


class Collector(Protocol):
    """Starts and stops the profiler of this process, annotates its trace, and waits for results.

    In order: `open`, warm-up steps, `prepare` before the last of them, `start`, measured steps, `stop`, `close`.
    A recording may end after any of them; `close` is always the last.
    """

    missing: list[str]  # what was asked for besides the trace and could not be had, with the reason

    def open(self, scratch: Path) -> None:
        """Watch what happens outside the trace, too, such as compilations.

        `scratch` is a folder to make where something has to be written before `start` tells the folder of the capture.
        It vanishes with the recording.
        """
        ...

    def prepare(self) -> None:
        """Let the profiler warm up during the next step, where it needs that."""
        ...

    def start(self, folder: Path) -> None:
        """Start tracing; `stop` writes into `folder`."""
        ...

    def stop(self) -> None:
        """Stop tracing and write what was recorded."""
        ...

    def close(self) -> None:
        """Let go of everything, whether tracing ever started or not."""
        ...

    def step(self, number: int) -> AbstractContextManager[object]:
        """Annotate what is done inside as the step of this number."""
        ...

    def span(self, name: str) -> AbstractContextManager[object]:
        """Annotate what the host does inside."""
        ...

    def pending(self, trees: tuple[object, ...]) -> list[Any]:
        """What is still being computed for `trees`; without trees, for everything there is."""
        ...

    def wait(self, pending: list[Any]) -> None:
        """Block until what `pending` gave is complete on its devices."""
        ...

    def fetch(self, tree: Any) -> Any:
        """A copy of `tree` on the host, with numpy arrays for its arrays."""
        ...

    def model(self, model: Any) -> None:
        """Keep how the parameters of a model are placed, where the trace itself does not tell."""
        ...

    def compilations(self) -> tuple[int, int]:
        """How many programs were compiled so far, and the nanoseconds it took."""
        ...

    def versions(self) -> dict[str, str]:
        """The versions that decide what a trace contains."""
        ...

    def devices(self) -> Devices | None:
        """The devices of this process, None where they are not known."""
        ...

    def rank(self) -> tuple[int | None, int | None]:
        """The number of this process and how many there are, None where that is not known."""
        ...

    def shared(self, path: Path, folder: Path) -> Path | None:
        """The folder of the processes that record to `path` together: the `folder` of the first to ask.

        None where each process writes a capture of its own.
        """
        ...
