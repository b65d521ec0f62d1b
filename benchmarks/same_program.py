"""Does a comparison of two runs of one program find nothing? Runs of the ring collective matmul on virtual devices.

A run is a stretch of steps of one recording; neighbours are compared, 21 runs making 20 pairs. With `--separate` each
run is a recording of its own, with what else the machine did in between. A pair passes where `traceflow diff` claims no
difference in step time, results and plan. Which quantities beside differ by more than their spread is told, too.

    JAX_PLATFORMS=cpu JAX_NUM_CPU_DEVICES=4 python benchmarks/same_program.py [--pairs 20] [--steps 20] [--separate]
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import jax
import numpy as np

import traceflow as tf
from traceflow.analyzers.comparison import Diff, diff, observe
from traceflow.analyzers.comparison.observation import Observation
from traceflow.asking import observation
from traceflow.collectors.workloads.collective_matmul import AXIS, LAYOUTS, matrices, place
from traceflow.collectors.workloads.line_mesh import line_mesh
from traceflow.outputs import recorded_outputs

SIZE, DEVICES, WARMUP = (256, 512, 512), 4, 2


def record(folder: Path, form: str, runs: int, steps: int) -> list[Path]:
    layout = next(layout for layout in LAYOUTS.values() if form in layout.forms)
    mesh = line_mesh(DEVICES, AXIS)
    multiply, operands = layout.forms[form](mesh), place(mesh, layout, *matrices(SIZE))
    paths = [folder / f"{form}{number}" for number in range(runs)]
    for path in paths:
        with tf.record(path, warmup=WARMUP, force=True) as recorder:
            for _ in range(WARMUP + steps):
                with recorder.step() as step:
                    product = step.fetch(multiply(*operands))
            recorder.attach("outputs.npz", {"product": np.asarray(product)})
    return paths


def stretches(path: Path, runs: int, steps: int) -> Iterator[Observation]:
    """One recording as several runs, each of so many steps."""
    run = tf.open(path)
    summary, outputs = run.summary(), recorded_outputs(path)
    for number in range(runs):
        mine = tuple(one for one in summary.steps if (one.step - WARMUP) // steps == number)
        part = replace(summary, steps=mine)
        yield observe(run.trace, run.dependencies, run.programs, part, run.memory(), outputs)


def row(number: int, found: Diff) -> str:
    step = found.to_dict()["step_ns"]
    beyond = [one.name for one in found.quantities if one.change.significant]
    verdict = {"no difference": "nothing found", "unknown": "left open"}.get(found.verdict, found.verdict)
    a, b = step["a"] / 1e6, step["b"] / 1e6
    change, spread = 100 * step["change_ratio"], 100 * step["spread_ratio"]
    return (
        f"| {number} | {a:.2f} | {b:.2f} | {change:+.1f} | {spread:.1f} | {found.numerics.same} | "
        f"{len(found.plan_changes)} | {', '.join(beyond) or 'none'} | {verdict} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare runs of one program with each other.")
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--form", default="ring")
    parser.add_argument("--separate", action="store_true", help="Make each run a recording of its own.")
    parser.add_argument("--keep", type=Path, default=None, help="Leave the captures here.")
    given = parser.parse_args()
    runs = given.pairs + 1
    with TemporaryDirectory() as scratch:
        folder = given.keep or Path(scratch)
        if given.separate:
            seen = [observation(tf.open(path)) for path in record(folder, given.form, runs, given.steps)]
        else:
            seen = list(stretches(*record(folder, given.form, 1, runs * given.steps), runs, given.steps))
    found = [diff(a, b) for a, b in pairwise(seen)]
    print(f"{given.form} on {len(jax.devices())} devices, {given.steps} steps for each run")
    print("| pair | a, ms | b, ms | change, % | spread, % | same results | plan changes | beyond the spread | |")
    print("|--:|--:|--:|--:|--:|---|--:|---|---|")
    print("\n".join(row(number, one) for number, one in enumerate(found, start=1)))
    verdicts = Counter(one.verdict for one in found)
    wrong = sum(one.verdict not in {"no difference", "unknown"} or bool(one.plan_changes) for one in found)
    print(f"\n{dict(verdicts)}: a difference is claimed in {wrong} of {len(found)} pairs")


if __name__ == "__main__":
    main()
