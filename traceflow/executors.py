"""Where the files of many ranks are read: in threads, in processes, or wherever an executor puts the work."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from traceflow.errors import TraceflowError

if TYPE_CHECKING:
    from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

T = TypeVar("T")

# Processes take 0.3 s to start and to load compiled code, and have to hand over what they read: on two cores they read
# 200 MB of JSON in 0.8 s, threads in 0.6 s. With more cores processes gain sooner, as threads take turns in Python.
_WORTH_BYTES = 500_000_000
_SOON_BYTES = 300_000_000  # which a thread has read within the second
_MOST_THREADS = 4  # half of reading is machine code, which they run at the same time, and half is Python, which waits
_PACKED = {".gz": 12}  # how much longer JSON is than its gzip


class Processes(Executor):
    """Processes of this machine, one for each core, for which there has to be enough to do.

    What manages them is loaded with the first task. They are started afresh and not forked, since this one may have
    threads. A script that uses them has to protect its own code with `if __name__ == "__main__":`, as
    `multiprocessing` asks for.
    """

    @cached_property
    def _pool(self) -> ProcessPoolExecutor:
        from concurrent.futures import ProcessPoolExecutor
        from multiprocessing import get_context

        return ProcessPoolExecutor(_cores(), mp_context=get_context("spawn"), initializer=_uninterrupted)

    @cached_property
    def threads(self) -> ThreadPoolExecutor:
        """Threads of this process, for what is too little for others."""
        from concurrent.futures import ThreadPoolExecutor

        return ThreadPoolExecutor(min(_cores(), _MOST_THREADS))

    def submit(self, function: Callable[..., T], /, *arguments: Any, **named: Any) -> Future[T]:
        """Let one of the processes do a task."""
        return self._pool.submit(function, *arguments, **named)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: FBT001, FBT002  # as executors have it
        """End the processes and threads, if there are any."""
        for name in ("_pool", "threads"):
            if name in vars(self):
                vars(self)[name].shutdown(wait, cancel_futures=cancel_futures)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _uninterrupted() -> None:
    """Leave Ctrl-C to the process that waits for this one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def worth(files: Sequence[Path], executor: Executor | None) -> Executor | None:
    """The executor for reading some files; threads where this process has read them before others have started.

    Args:
        files: Files that exist, one task each.
        executor: Whose tasks they may be. Only `Processes` are ever passed over: another was chosen by the user.

    Returns:
        None for a single file, and where one is so large that an interrupt would wait for its thread.
    """
    if not isinstance(executor, Processes):
        return executor
    if len(files) < 2:
        return None
    sizes = [file.stat().st_size * _PACKED.get(file.suffix, 1) for file in files]
    if sum(sizes) - max(sizes) >= _WORTH_BYTES // 2:
        return executor
    return executor.threads if max(sizes) <= _SOON_BYTES else None


def each(function: Callable[..., T], tasks: Sequence[tuple[Any, ...]], executor: Executor | None = None) -> list[T]:
    """What a function returns for each tuple of arguments, in their order, whoever is asked to do it.

    The error of the first task that fails is raised, as a loop would raise it; tasks that have not begun are dropped.

    Args:
        function: Of a module, so that another process can find it; pure, so that it may be done again.
        tasks: Arguments of each call.
        executor: Of the kind of `concurrent.futures`; this process and thread where None.

    Raises:
        TraceflowError: TF127 where what did the work ended.

    Example:
        >>> each(divmod, [(7, 2), (9, 4)])
        [(3, 1), (2, 1)]
    """
    if executor is None:
        return [function(*task) for task in tasks]
    futures: list[Future[T]] = []
    try:
        for task in tasks:
            futures.append(executor.submit(function, *task))  # noqa: PERF401  # those before a failure are cancelled
        return [future.result() for future in futures]
    except BrokenExecutor as error:
        why = "a process that read some of its files ended early, as for want of memory"
        hint = "give it more memory, or hand in an executor with fewer processes"
        raise TraceflowError("TF127", "cannot read the traces", why, hint) from error
    finally:
        for future in futures:
            future.cancel()
