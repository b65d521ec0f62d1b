"""Work on a Dask cluster, whose workers see the files under the same paths."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from typing import TYPE_CHECKING

from traceflow.errors import TraceflowError

if TYPE_CHECKING:
    from distributed import Client

_PATIENCE_S = 10


@contextmanager
def connected(address: str) -> Iterator[Client]:
    """A client of the cluster as long as the block runs.

    What a worker that is lost had read is read again by another, which changes no result: reading is a function of the
    file alone.

    Args:
        address: Of the scheduler, as `tcp://10.0.0.1:8786`.

    Raises:
        TraceflowError: TF127 where nothing answers there, or where its workers were lost again and again; TF128
            where `distributed` is not installed.
    """
    try:
        from distributed import CancelledError, Client
        from distributed.comm import CommClosedError, parse_address
        from distributed.comm.registry import backends
        from distributed.scheduler import KilledWorker, NoValidWorkerError
    except ImportError as error:
        hint = "install traceflow-ml[cluster]"
        raise TraceflowError("TF128", f"cannot reach {address}", "distributed is not installed", hint) from error
    try:
        if parse_address(address)[0] not in backends:
            raise _unreachable(address, "no cluster has such an address")
        client = Client(address, timeout=_PATIENCE_S, set_as_default=False)
    except (OSError, ValueError) as error:
        raise _unreachable(address, "no scheduler answers there") from error
    try:
        with client:
            yield client
    except (KilledWorker, NoValidWorkerError, CommClosedError, CancelledError) as error:
        why = "its scheduler ended, or workers were lost again and again, as for want of memory"
        raise TraceflowError("TF127", f"cannot go on with {address}", why, "look at its logs") from error


def _unreachable(address: str, why: str) -> TraceflowError:
    return TraceflowError("TF127", f"cannot reach {address}", why, "give that of the scheduler, as tcp://10.0.0.1:8786")


def executor_of(client: Client) -> Executor:
    """The cluster as an executor of the kind of `concurrent.futures`."""
    executor: Executor = client.get_executor()
    return executor
