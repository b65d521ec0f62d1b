"""What recording costs: CPU time of a step outside the recorded window, and inside it over the profiler alone.

Outside, one `with recorder.step(): pass` after the window has ended; switched off, the same with `TRACEFLOW=0`. Inside, under one profiler, a train step is taken
in turn as `recorder.step()` and as users of the profiler would: annotated with its number, and awaited. CPU time is
that of all threads of the process. Computation keeps to one thread, because threads that wait for each other burn a
time that nobody can repeat. Differences and shares are medians over pairs of neighbours, with bootstrap intervals of
95 %.

    python benchmarks/recording.py
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

import traceflow as tf
from traceflow.recording import Recorder

CALLS, REPEATS, PAIRS = 20_000, 7, 600
ONE_THREAD = {"XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false", "JAX_PLATFORMS": "cpu", "OMP_NUM_THREADS": "1"}
Framework = Literal["jax", "torch"]
Workload = tuple[Callable[[], Any], Callable[[int], None]]


def main(frameworks: list[Framework]) -> None:
    """Measure those that are named, or each that is installed in a process of its own, and print rows of a table."""
    if frameworks:
        for framework in frameworks:
            measure(framework)
        return
    print("| | switched off: ns per step | outside: ns per step | profiler alone: us per step ", end="")
    print("| inside: us more per step | inside: share more |")
    print("|---|---|---|---|---|---|", flush=True)
    for framework in WORKLOADS:
        if find_spec(framework) is not None:
            subprocess.run([sys.executable, __file__, framework], check=True, env={**os.environ, **ONE_THREAD})


def measure(framework: Framework) -> None:
    """Print the row of one framework."""
    with TemporaryDirectory() as folder:
        outside_ns = min(outside(framework, Path(folder, str(i))) for i in range(REPEATS))
        off_ns = min(switched_off(framework, Path(folder, "off")) for _ in range(REPEATS))
        ours_ns, alone_ns = inside(framework, Path(folder, "inside"))
    more, share = told((ours_ns - alone_ns) / 1_000), told(100 * (ours_ns / alone_ns - 1), " %")
    alone = f"{np.median(alone_ns) / 1_000:,.0f}"
    print(f"| {framework} | {off_ns:,.0f} | {outside_ns:,.0f} | {alone} | {more} | {share} |", flush=True)


def outside(framework: Framework, path: Path) -> float:
    """CPU time of one step that is not recorded, in ns."""
    with tf.record(path, framework=framework, warmup=0, steps=1) as recorder:
        for _ in range(2):
            with recorder.step():
                pass
        return of_one(recorder)


def switched_off(framework: Framework, path: Path) -> float:
    """The same where nothing is ever recorded."""
    with patch.dict(os.environ, {"TRACEFLOW": "0"}), tf.record(path, framework=framework) as recorder:
        return of_one(recorder)


def of_one(recorder: Recorder) -> float:
    """CPU time of one step of many, in ns."""
    start_ns = time.process_time_ns()
    for _ in range(CALLS):
        with recorder.step():
            pass
    return (time.process_time_ns() - start_ns) / CALLS


def inside(framework: Framework, path: Path) -> NDArray[np.float64]:
    """CPU time of steps with `tf.record` and with the profiler alone, in ns, [2, PAIRS]."""
    train, alone = WORKLOADS[framework]()
    with tf.record(path, framework=framework, warmup=0) as recorder:

        def ours(_number: int) -> None:
            with recorder.step() as step:
                step.ready(train())

        ours(0)  # starts the profiler
        found = np.empty((2, PAIRS))
        for number in range(PAIRS):
            for which in (0, 1) if number % 2 else (1, 0):
                found[which, number] = cost((ours, alone)[which], number)
    return found


def cost(step: Callable[[int], None], number: int) -> int:
    """CPU time of one step, in ns."""
    start_ns = time.process_time_ns()
    step(number)
    return time.process_time_ns() - start_ns


def told(differences: NDArray[np.float64], unit: str = "") -> str:
    """The median with the bounds of its bootstrap interval of 95 %."""
    drawn = np.random.default_rng(0).choice(differences, (4_000, len(differences)))
    low, high = np.quantile(np.median(drawn, axis=1), (0.025, 0.975))
    return f"{np.median(differences):+.1f}{unit} ({low:+.1f} to {high:+.1f})"


def with_jax() -> Workload:
    """A dense train step, compiled, and how to take it without traceflow."""
    import jax
    from jax import numpy as jnp

    @jax.jit
    def update(weights: list[Any], x: Any) -> Any:
        def loss(weights: list[Any]) -> Any:
            hidden = x
            for weight in weights:
                hidden = jnp.tanh(hidden @ weight)
            return jnp.mean(jnp.square(hidden))

        return jax.tree.map(lambda weight, slope: weight - 0.1 * slope, weights, jax.grad(loss)(weights))

    weights, x = [jnp.eye(256)] * 4, jnp.ones((256, 256))
    jax.block_until_ready(update(weights, x))

    def alone(number: int) -> None:
        with jax.profiler.StepTraceAnnotation("step", step_num=number):
            jax.block_until_ready(update(weights, x))

    return lambda: update(weights, x), alone


def with_torch() -> Workload:
    """The same in PyTorch."""
    import torch

    layers = [part for _ in range(4) for part in (torch.nn.Linear(256, 256), torch.nn.Tanh())]
    model, x = torch.nn.Sequential(*layers), torch.ones(128, 256)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)

    def train() -> torch.Tensor:
        optimiser.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimiser.step()
        return loss

    def alone(number: int) -> None:
        with torch.profiler.record_function(f"ProfilerStep#{number}"):
            train()

    return train, alone


WORKLOADS: dict[Framework, Callable[[], Workload]] = {"jax": with_jax, "torch": with_torch}

if __name__ == "__main__":
    main([framework for framework in WORKLOADS if framework in sys.argv[1:]])
