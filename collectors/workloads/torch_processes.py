"""The processes of a PyTorch workload: as many as are asked for, on this host, joined over loopback."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import torch

Outcome = TypeVar("Outcome")

BACKENDS = {"cpu": "gloo", "gpu": "nccl"}
_PRELOADED = ["torch.distributed", "torch._dynamo", "traceflow.recording"]  # optimisers import the second
_PATIENCE = timedelta(minutes=2)  # of a collective that waits for the others


def run(program: Callable[..., Outcome], processes: int, *arguments: Any, platform: str = "cpu") -> list[Outcome]:
    """Run `program(*arguments)` in each of several new processes that form the default group.

    Args:
        program: A function of a module, so that another process finds it.
        processes: How many.
        arguments: What each of them is given.
        platform: "cpu", or "gpu" for one GPU each.

    Returns:
        What the program returned, by rank.

    Raises:
        Exception: what the program raised; of several the one that is no RuntimeError, which they get who wait for
            a process that has failed.
    """
    context = multiprocessing.get_context("forkserver")  # a fork of a fresh process, which imports PyTorch once for all
    context.set_forkserver_preload(_PRELOADED)
    with TemporaryDirectory() as folder, ProcessPoolExecutor(processes, mp_context=context) as pool:
        place = Path(folder, "store").as_uri(), processes, platform, dict(os.environ)
        running = [pool.submit(_process, rank, place, program, arguments) for rank in range(processes)]
        errors = [error for process in running if (error := process.exception()) is not None]
    if errors:
        raise min(errors, key=lambda error: isinstance(error, RuntimeError))  # what waits for the others raises that
    return [process.result() for process in running]


def device() -> torch.device:
    """What this process computes on: a GPU where its group is one of GPUs."""
    import torch
    import torch.distributed as dist

    return torch.device("cuda" if dist.is_initialized() and dist.get_backend() == BACKENDS["gpu"] else "cpu")


def _process(
    rank: int, place: tuple[str, int, str, dict[str, str]], program: Callable[..., Outcome], arguments: tuple[Any, ...]
) -> Outcome:
    import torch
    import torch.distributed as dist

    store, processes, platform, environment = place
    os.environ.update(environment)  # what was set after the first run, which started the process that forks
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else its profiler reports each start and end on stderr
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // processes))
    if sys.platform == "linux":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # the name of the host need not resolve
    if platform == "gpu":
        torch.cuda.set_device(rank)
    dist.init_process_group(BACKENDS[platform], init_method=store, rank=rank, world_size=processes, timeout=_PATIENCE)
    try:
        return program(*arguments)
    finally:
        dist.destroy_process_group()  # after an error, whoever waits for this process fails, too
