"""Does the replay know what a hot expert costs? Four of five tokens are sent to one, and the same is run in balance.

Two processes with one thread each train the PyTorch mixture of experts over gloo, with two of four experts each. A table
names the expert of every token: of the hot runs, expert 0 for 80 % of the tokens of each process, of the balanced ones
every expert equally often. Hot and balanced captures take turns, in one set of processes. What each hot capture is said
to cost is set against the median difference between the two of a turn.

So that processes on few cores do not fight over them, which makes two busy experts slower than one, the experts are
small, and sleep for each of their rows, as if they waited for an accelerator. With `--busy` they are large and do not:
that needs a core for each process which nobody else uses.

    python benchmarks/hot_expert.py [--rounds 7] [--steps 3] [--busy] [--keep FOLDER]
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import numpy as np
from captures import kept
from numpy.typing import NDArray

import traceflow as tf
from traceflow.collectors.workloads import moe_torch, moe_torch_layers
from traceflow.collectors.workloads.moe_torch_layers import Layout, Size, join
from traceflow.collectors.workloads.torch_processes import run

if TYPE_CHECKING:
    import torch

LAYOUT, SHARE = Layout(ep=2), 0.8
SMALL = Size(tokens=2048, model=32, hidden=32, experts=4, choices=1)
LARGE = Size(tokens=4096, model=256, hidden=768, experts=4, choices=1)
FORWARD_S, BACKWARD_S = 100e-6, 200e-6  # of a row
KINDS = ("hot", "balanced")


@dataclass(frozen=True)
class Outcome:
    """One capture."""

    step_ns: float  # mean
    saved_ns: float  # of a step, by the replay
    expert: int
    named: bool  # whether a finding names the expert


def table(kind: str, size: Size) -> NDArray[np.int64]:
    """The expert of each token, [S, 1]; the shares are those of every process."""
    own = size.tokens // LAYOUT.processes
    experts = np.arange(own) % size.experts
    if kind == "hot":
        others = np.arange(own) % (size.experts - 1) + 1
        experts = np.where(np.arange(own) < SHARE * own, 0, others)
    return np.tile(experts, LAYOUT.processes)[:, None]


def waiting(compute: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Experts that take their time for each row, in both directions."""

    def experts(counts: list[int], *inputs: torch.Tensor) -> torch.Tensor:
        time.sleep(sum(counts) * FORWARD_S)
        results = compute(counts, *inputs)
        results.register_hook(lambda _: time.sleep(sum(counts) * BACKWARD_S))
        return results

    return experts


def record_all(folder: Path, rounds: int, steps: int, busy: bool) -> None:  # noqa: FBT001  # it crosses a process
    """Record captures in turns, in one of the processes."""
    import torch

    torch.set_num_threads(1)
    size = LARGE if busy else SMALL
    if not busy:
        moe_torch_layers._experts = waiting(moe_torch_layers._experts)  # noqa: SLF001  # the stage that is slow
    grid = join(LAYOUT)
    weights = moe_torch.local_weights(grid, moe_torch.initial_weights(size))
    train = moe_torch.train_step(grid, size, weights, moe_torch.optimiser_for("sgd", list(weights.values())))
    x, y, _ = moe_torch.batch(size, 0)
    batches = {kind: moe_torch.local_batch(grid, x, y, table(kind, size)) for kind in KINDS}
    for number in range(rounds):
        for kind in KINDS if number % 2 else KINDS[::-1]:
            with tf.record(folder / f"{kind}{number:02d}", framework="torch", steps=steps) as recorder:
                for _ in range(1 + steps):
                    with recorder.step():
                        train(batches[kind])


def outcome(path: Path, steps: int) -> Outcome:
    """What traceflow says of a capture."""
    found = tf.open(path).moe()
    if found.balance is None:
        raise SystemExit(f"{path.name}: nothing could be replayed")
    layer = found.layers[0]
    named = any(f.code == "TF217" and f.evidence["expert"] == 0 and f.evidence["rank"] == 0 for f in found.findings)
    return Outcome(found.balance.measured_ns / steps, found.balance.saved_ns / steps, layer.hot_expert, named)


def main() -> None:
    """Record, explain, and print a table."""
    asked = arguments()
    os.environ["OMP_NUM_THREADS"] = "1"
    with kept(asked.keep) as folder:
        run(record_all, LAYOUT.processes, folder, asked.rounds, asked.steps, asked.busy)
        load = ", ".join(f"{average:.1f}" for average in os.getloadavg())
        found = {k: [outcome(folder / f"{k}{n:02d}", asked.steps) for n in range(asked.rounds)] for k in KINDS}
    print(f"\n{os.cpu_count()} cores, load averages at the end of the recording {load}\n")
    report(found)


def arguments() -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--busy", action="store_true", help="with experts that compute all the time")
    parser.add_argument("--keep", type=Path, help="keep the captures in this folder, which must not exist")
    return parser.parse_args()


def report(found: dict[str, list[Outcome]]) -> None:
    """Print what was measured beside what was said."""
    print("| runs | captures | step, ms | saved by balance, ms | hot expert named |")
    print("|---|---|---|---|---|")
    for kind, some in found.items():
        times = told([one.step_ns for one in some]), told([one.saved_ns for one in some])
        print(f"| {kind} | {len(some)} | {' | '.join(times)} | {sum(one.named for one in some)} of {len(some)} |")
    hot, balanced = found["hot"], found["balanced"]
    cost = median(one.step_ns - other.step_ns for one, other in zip(hot, balanced, strict=True))
    said = median(one.saved_ns for one in hot)
    print(f"\nMeasured cost {cost / 1e6:.1f} ms, told {said / 1e6:.1f} ms: {said / cost - 1:+.1%}")


def told(times_ns: list[float]) -> str:
    """The median and the range, in ms."""
    return f"{median(times_ns) / 1e6:.1f} ({min(times_ns) / 1e6:.1f} to {max(times_ns) / 1e6:.1f})"


if __name__ == "__main__":
    main()
