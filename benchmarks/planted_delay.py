"""Is the late rank named, and what it was late with? Delays planted in a live program, and what traceflow ranks first.

Four processes train a model together over gloo, with one thread each. Every seed makes one capture of three steps, in
which one rank is late in one stage of each step: by 20 % of an undisturbed step, at least 50 ms, asleep or at work.
Seeds take turns in leaving the gradients to DistributedDataParallel, and in issuing an all-reduce per gradient and
waiting for all before the optimiser steps. So that four processes on few cores do not fight over them, the model is
small, and its layers sleep, as if they waited for an accelerator.

A hit is a first row of the ranking that names the rank, and whose name or stage is the place. Controls plant nothing.

    python benchmarks/planted_delay.py [--runs 50] [--first-seed 0] [--controls 10] [--keep FOLDER]
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import median
from typing import TYPE_CHECKING, Any, Literal

from captures import kept

import traceflow as tf
from traceflow.analyzers.stragglers import Straggler, stragglers
from traceflow.collectors.workloads.torch_processes import run

if TYPE_CHECKING:
    import torch

RANKS, STEPS, UNDISTURBED = 4, 3, 4
WIDTH, LAYERS, BATCH = 256, 6, 64
LOADING_S, FORWARD_S, BACKWARD_S = 0.05, 0.01, 0.02  # of a batch, and of a layer
SHARE, LEAST_S = 0.2, 0.05
FIRST_CONTROL = 900

Stage = Literal["data loading", "forward", "backward", "optimiser"]
Gradients = Literal["DDP", "own"]

PLACES: dict[Stage, str] = {
    "data loading": "enumerate(DataLoader)",
    "forward": "forward",
    "backward": "backward",
    "optimiser": "Optimizer.step",
}
"""What the trace calls each stage: annotations of the program, and of PyTorch."""


@dataclass(frozen=True)
class Plan:
    """What one seed does."""

    seed: int
    gradients: Gradients
    rank: int
    stage: Stage
    busy: bool  # at work, not asleep


@dataclass(frozen=True)
class Planted:
    """What came of a plan on the late rank."""

    delay_ns: int  # in all steps
    step_ns: int  # undisturbed


@dataclass(frozen=True)
class Outcome:
    """A plan, and the first row of the ranking."""

    plan: Plan
    planted: Planted
    first: Straggler | None
    window_ns: int

    @property
    def right_rank(self) -> bool:
        """Whether the first row names the late rank."""
        return self.first is not None and self.first.rank == self.plan.rank

    @property
    def right(self) -> bool:
        """Whether it names the place, too."""
        return self.right_rank and self.first is not None and PLACES[self.plan.stage] in self.first.place

    @property
    def cost_ns(self) -> int:
        """What the first row costs."""
        return 0 if self.first is None else self.first.cost_ns


def plan(seed: int) -> Plan:
    """What a seed stands for."""
    drawn = Random(seed)  # noqa: S311  # nothing secret
    stage = drawn.choice(tuple(PLACES))
    return Plan(seed, "own" if seed % 2 else "DDP", drawn.randrange(RANKS), stage, busy=drawn.random() < 0.5)


class Late:
    """Delays a process where and how it is told to."""

    def __init__(self) -> None:
        self.stage: Stage | None = None
        self.busy = False
        self.delay_s = 0.0
        self.spent_ns = 0

    def __call__(self, stage: Stage) -> None:
        """Take the delay, if this stage is the one."""
        if stage == self.stage:
            start_ns = time.perf_counter_ns()
            (work if self.busy else time.sleep)(self.delay_s)
            self.spent_ns += time.perf_counter_ns() - start_ns


def work(seconds: float) -> None:
    """Multiply matrices for a while."""
    import torch

    until, x = time.perf_counter() + seconds, torch.ones(128, 128)
    with torch.no_grad():
        while time.perf_counter() < until:
            x = x @ x / 128


def record_all(folder: Path, plans: Sequence[Plan]) -> list[Planted]:
    """Record a capture per plan, in one of the processes."""
    import torch

    torch.set_num_threads(1)
    late = Late()
    steps: dict[Gradients, Callable[[], None]] = {"DDP": train_step(late, "DDP"), "own": train_step(late, "own")}
    return [recorded(folder, each, steps[each.gradients], late) for each in plans]


def recorded(folder: Path, each: Plan, step: Callable[[], None], late: Late) -> Planted:
    """Record one plan."""
    import torch.distributed as dist

    step_s = undisturbed_s(step)
    if dist.get_rank() == each.rank and each.seed < FIRST_CONTROL:
        late.stage, late.busy, late.delay_s = each.stage, each.busy, max(SHARE * step_s, LEAST_S)
    with tf.record(capture(folder, each), framework="torch", steps=STEPS) as recorder:
        for number in range(1 + STEPS):
            with recorder.step():
                step()
            if number == 0:
                late.spent_ns = 0  # the first is no part of the capture
    late.stage = None
    return Planted(late.spent_ns, round(step_s * 1e9))


def capture(folder: Path, each: Plan) -> Path:
    """Where a plan is recorded."""
    return folder / f"seed{each.seed:03d}"


def undisturbed_s(step: Callable[[], None]) -> float:
    """The median step, of the slowest rank each."""
    import torch
    import torch.distributed as dist

    took = torch.empty(UNDISTURBED)
    for number in range(UNDISTURBED):
        start = time.perf_counter()
        step()
        took[number] = time.perf_counter() - start
    dist.all_reduce(took, dist.ReduceOp.MAX)
    return float(took.median())


def train_step(late: Late, gradients: Gradients) -> Callable[[], None]:
    """A step of training, each stage of which may be late."""
    import torch
    import torch.distributed as dist

    model, batches, pending = network(late), loader(late), []
    if gradients == "DDP":
        model = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.5)
    else:
        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(
                lambda parameter: pending.append(dist.all_reduce(parameter.grad, async_op=True))
            )
    optimiser = torch.optim.Adam(model.parameters(), foreach=False)
    optimiser.register_step_pre_hook(lambda *_: late("optimiser"))

    def step() -> None:
        batch = next(batches)
        with torch.profiler.record_function("forward"):
            loss = model(batch).square().mean()
        with torch.profiler.record_function("backward"):
            loss.backward()
        while pending:
            pending.pop(0).wait()
        optimiser.step()
        optimiser.zero_grad()

    return step


def network(late: Late) -> torch.nn.Module:
    """Layers that wait for an accelerator, which they do not have. The middle one may be late."""
    import torch

    class Waiting(torch.nn.Module):  # type: ignore[misc]  # PyTorch is not looked into
        def __init__(self, number: int) -> None:
            super().__init__()
            self.middle = number == LAYERS // 2

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.take("forward", FORWARD_S)
            if x.requires_grad:
                x.register_hook(lambda _: self.take("backward", BACKWARD_S))
            return x

        def take(self, stage: Stage, seconds: float) -> None:
            time.sleep(seconds)
            if self.middle:
                late(stage)

    layers = [(torch.nn.Linear(WIDTH, WIDTH), Waiting(number), torch.nn.Tanh()) for number in range(LAYERS)]
    return torch.nn.Sequential(*(part for layer in layers for part in layer))


def loader(late: Late) -> Iterator[torch.Tensor]:
    """Batches that take a while to load. Loading may be late."""
    import torch

    class Batches(torch.utils.data.IterableDataset[Any]):  # type: ignore[misc]  # likewise
        def __iter__(self) -> Iterator[torch.Tensor]:
            while True:
                time.sleep(LOADING_S)
                late("data loading")
                yield torch.randn(BATCH, WIDTH)

    return iter(torch.utils.data.DataLoader(Batches(), batch_size=None))


def outcome(folder: Path, each: Plan, planted: Planted) -> Outcome:
    """What traceflow says of a capture."""
    opened = tf.open(capture(folder, each))
    found = stragglers(opened.trace, opened.dependencies)
    return Outcome(each, planted, found.ranking[0] if found.ranking else None, found.window.duration_ns)


def main() -> None:
    """Record, explain, and print tables."""
    asked = arguments()
    seeds = range(asked.first_seed, asked.first_seed + asked.runs)
    plans = [plan(seed) for seed in (*seeds, *range(FIRST_CONTROL, FIRST_CONTROL + asked.controls))]
    os.environ["OMP_NUM_THREADS"] = "1"
    with kept(asked.keep) as folder:
        planted = run(record_all, RANKS, folder, plans)
        load = ", ".join(f"{average:.1f}" for average in os.getloadavg())
        outcomes = [outcome(folder, each, planted[each.rank][place]) for place, each in enumerate(plans)]
    print(f"\n{os.cpu_count()} cores, load averages at the end of the recording {load}\n")
    report([one for one in outcomes if one.plan.seed < FIRST_CONTROL])
    controls([one for one in outcomes if one.plan.seed >= FIRST_CONTROL])


def arguments() -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--controls", type=int, default=10)
    parser.add_argument("--keep", type=Path, help="keep the captures in this folder, which must not exist")
    return parser.parse_args()


def report(outcomes: Sequence[Outcome]) -> None:
    """Print a row per stage, and what was missed."""
    print("| planted in | runs | rank first | rank and stage first | undisturbed step, ms | planted, ms | cost, ms |")
    print("|---|---|---|---|---|---|---|")
    for stage in PLACES:
        row(stage, [one for one in outcomes if one.plan.stage == stage])
    row("all", outcomes)
    for one in outcomes:
        if not one.right:
            print(f"missed: {one}")


def row(name: str, some: Sequence[Outcome]) -> None:
    """Print one row."""
    if some:
        hits = f"{len(some)} | {sum(one.right_rank for one in some)} | {sum(one.right for one in some)}"
        times = (
            [one.planted.step_ns for one in some],
            [one.planted.delay_ns for one in some],
            [one.cost_ns for one in some],
        )
        print(f"| {name} | {hits} | {' | '.join(map(told, times))} |")


def told(times_ns: Sequence[int]) -> str:
    """The median and the range, in ms."""
    return f"{median(times_ns) / 1e6:.0f} ({min(times_ns) / 1e6:.0f} to {max(times_ns) / 1e6:.0f})"


def controls(outcomes: Sequence[Outcome]) -> None:
    """Print what is said where nothing was planted."""
    if outcomes:
        shares = [one.cost_ns / one.window_ns for one in outcomes]
        print(
            f"\nNothing planted, {len(outcomes)} runs: the first row costs {told([one.cost_ns for one in outcomes])} ms,"
        )
        print(f"{median(shares):.1%} ({min(shares):.1%} to {max(shares):.1%}) of the window.")


if __name__ == "__main__":
    main()
