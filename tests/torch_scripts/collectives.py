"""A distributed PyTorch program on gloo that records itself: every collective in it is known beforehand.

    python collectives.py FOLDER PROCESSES [SCENARIO]

Step k: all processes reduce 64 numbers; pairs of processes exchange rows, reduce, and broadcast from their second
member; bursts of equal reductions go to three groups at once; a ring passes 5 numbers on; the gradients of a model are reduced.
"""

from __future__ import annotations

import os
import signal
import sys
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing

from traceflow.recording import Recorder, record

WARMUP, STEPS, BURST, TAG = 1, 2, 4, 7


def main() -> None:
    folder, processes, scenario = Path(sys.argv[1]), int(sys.argv[2]), (*sys.argv[3:], "plain")[0]
    # A fork has everything imported. Nothing of PyTorch has run yet that would not survive it.
    torch.multiprocessing.start_processes(process, (processes, folder, scenario), nprocs=processes, start_method="fork")


def process(rank: int, processes: int, folder: Path, scenario: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=processes)
    with record(folder / "capture", warmup=WARMUP, steps=STEPS) as recorder:
        train(recorder, rank, processes, scenario)
    dist.barrier()
    dist.destroy_process_group()


def train(recorder: Recorder, rank: int, processes: int, scenario: str) -> None:
    """Run one more step than is recorded."""
    pair = own([[first, first + 1] for first in range(0, processes, 2)], rank, "pair")
    data = own([list(range(processes))], rank, "data")
    model = recorder.model(torch.nn.Linear(8, 4))
    for k in range(WARMUP + STEPS + 1):
        with recorder.step() as step:
            if k == WARMUP + 1 and rank == 1:
                fail(scenario)
            dist.all_reduce(torch.ones(64))
            exchange(rank, k, pair)
            dist.all_reduce(torch.ones(16), group=pair)
            dist.broadcast(torch.ones(8), group_src=1, group=pair)
            works = [
                dist.all_reduce(torch.ones(1000), group=group, async_op=True) for group in BURST * [pair, data, None]
            ]
            for work in works:
                work.wait()
            ring(rank, processes)
            loss = model(torch.ones(2, 8)).sum()
            loss.backward()
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
            step.fetch(loss)


def own(groups: list[list[int]], rank: int, name: str) -> dist.ProcessGroup:
    """Make groups, which all processes have to, and return that of this one."""
    made = [(members, dist.new_group(members, group_desc=name)) for members in groups]
    return next(group for members, group in made if rank in members)


def exchange(rank: int, k: int, pair: dist.ProcessGroup) -> None:
    """The first of a pair keeps k + 1 rows and sends 2, the second sends 3 and keeps k + 2."""
    into, out = ([k + 1, 2], [k + 1, 3]) if rank % 2 == 0 else ([3, k + 2], [2, k + 2])
    dist.all_to_all_single(torch.empty(sum(out), 4), torch.ones(sum(into), 4), out, into, group=pair)


def ring(rank: int, processes: int) -> None:
    """Pass 5 numbers to the next process. The barrier tells the flight recorder that somebody did."""
    sent = dist.isend(torch.ones(5), (rank + 1) % processes, tag=TAG)
    dist.recv(torch.empty(5), (rank - 1) % processes, tag=TAG)
    sent.wait()
    dist.barrier()


def fail(scenario: str) -> None:
    """End as the scenario says."""
    if scenario == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if scenario == "raise":
        raise ZeroDivisionError("not ours")


if __name__ == "__main__":
    warnings.simplefilter("ignore")  # of PyTorch, about names that it would rather have
    main()
