"""Work on a Dask cluster, whose workers see the files under the same paths."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from traceflow.errors import TraceflowError

if TYPE_CHECKING:
    from distributed import Client

_PATIENCE_S = 10


def connect(address: str) -> Client:
    """A client of the cluster.

    What a worker that is lost had read is read again by another, which changes no result: reading is a function of the
    file alone.

    Args:
        address: Of the scheduler, as `tcp://10.0.0.1:8786`.

    Raises:
        TraceflowError: TF127 where nothing answers there; TF128 where `distributed` is not installed.
    """
    try:
        from distributed import Client
        from distributed.comm import parse_address
        from distributed.comm.registry import backends
    except ImportError as error:
        hint = "install traceflow-ml[cluster]"
        raise TraceflowError("TF128", f"cannot reach {address}", "distributed is not installed", hint) from error
    try:
        if parse_address(address)[0] not in backends:
            raise _unreachable(address, "no cluster has such an address")
        return Client(address, timeout=_PATIENCE_S, set_as_default=False)
    except (OSError, ValueError) as error:
        raise _unreachable(address, "no scheduler answers there") from error


def _unreachable(address: str, why: str) -> TraceflowError:
    return TraceflowError("TF127", f"cannot reach {address}", why, "give that of the scheduler, as tcp://10.0.0.1:8786")


@contextmanager
def losses_told(client: Client) -> Iterator[None]:
    """Say in one line that a cluster was lost while the block ran.

    Raises:
        TraceflowError: TF127 where its workers were lost again and again, or its scheduler was.
    """
    from distributed import CancelledError
    from distributed.comm import CommClosedError
    from distributed.scheduler import KilledWorker, NoValidWorkerError

    try:
        yield
    except (KilledWorker, NoValidWorkerError, CommClosedError, CancelledError) as error:
        why = "its scheduler ended, or workers were lost again and again, as for want of memory"
        address = client.scheduler.address if client.scheduler else "the cluster"
        raise TraceflowError("TF127", f"cannot go on with {address}", why, "look at its logs") from error


@dataclass(frozen=True)
class Held:
    """What a function returned for each rank, where it was computed; one future for some ranks together."""

    futures: tuple[Any, ...]


@dataclass(frozen=True)
class Spread:
    """Tasks for each of many ranks, which stay with the worker that has read them as long as it is there."""

    client: Client
    ranks: int

    def each(self, function: Callable[..., Any], *columns: Sequence[Any] | Held, shared: tuple[Any, ...] = ()) -> Held:
        """Call a function for each rank, with its place in each column, and what all of them share."""
        futures = []
        for at, (first, stop) in enumerate(self._batches()):
            rows = [column.futures[at] if isinstance(column, Held) else list(column[first:stop]) for column in columns]
            futures.append(self.client.submit(_each, function, rows, shared, pure=False))
        return Held(tuple(futures))

    def kept_and_told(self, held: Held) -> tuple[Held, list[Any]]:
        """Of functions that return two things, the first where it is, and the second here."""
        told = self.told(Held(tuple(self.client.submit(_part, one, 1, pure=False) for one in held.futures)))
        return Held(tuple(self.client.submit(_part, one, 0, pure=False) for one in held.futures)), told

    def told(self, held: Held) -> list[Any]:
        """What was returned, here, in the order of ranks."""
        with losses_told(self.client):
            return [one for future in held.futures for one in future.result()]

    def shared(self, value: Any) -> Any:
        """A value that all workers get once."""
        with losses_told(self.client):
            return self.client.scatter(value, broadcast=True, hash=False)

    def _batches(self) -> list[tuple[int, int]]:
        """Ranks that make one task: so many that a task is worth its while, so few that all workers have some."""
        size = min(_MOST_RANKS, -(-self.ranks // _LEAST_TASKS))
        return [(first, min(first + size, self.ranks)) for first in range(0, self.ranks, size)]


_MOST_RANKS, _LEAST_TASKS = 16, 8


def _each(function: Callable[..., Any], columns: Sequence[Sequence[Any]], shared: tuple[Any, ...]) -> list[Any]:
    return [function(*row, *shared) for row in zip(*columns, strict=True)]


def _part(pairs: Sequence[tuple[Any, Any]], which: int) -> list[Any]:
    return [pair[which] for pair in pairs]
