"""Kill programs that record, or read, at any moment, and judge what they leave: `python -m kills torch --kills 100`.

A capture that bears its name is whole: it opens, has all its steps, and their paths tile. Whatever else is left opens and
says that it is not complete, or is refused in one line. And however the making of a cache ended, whoever reads next
reads what is in the trace. To be run from `tests`.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from kineto_builder import KinetoTrace

import traceflow
from traceflow.capture import read_manifest
from traceflow.errors import TraceflowError
from traceflow.run import Run
from traceflow.trace.kineto import read_kineto
from traceflow.user_cache import VARIABLE

STEPS, WARMUP = 3, 1
EXPECTED = list(range(WARMUP, WARMUP + STEPS))


class Wrong(Exception):  # noqa: N818  # reads as what it is
    """Something that was left is not what it says."""


def torch_program(path: Path) -> None:
    """A loop that PyTorch computes, recorded."""
    import torch

    torch.set_num_threads(1)
    weights = torch.ones(32, 32) / 32
    with traceflow.record(path, framework="torch", warmup=WARMUP, steps=STEPS) as recorder:
        for _ in range(WARMUP + STEPS + 1):
            with recorder.step() as step:
                weights = torch.tanh(weights @ weights)
                step.ready(weights)


def jax_program(path: Path) -> None:
    """A loop that JAX computes, recorded."""
    import jax

    weights = jax.numpy.ones((32, 32)) / 32
    square = jax.jit(lambda w: jax.numpy.tanh(w @ w))
    with traceflow.record(path, framework="jax", warmup=WARMUP, steps=STEPS) as recorder:
        for _ in range(WARMUP + STEPS + 1):
            with recorder.step() as step:
                weights = step.ready(square(weights))


PROGRAMS: dict[str, Callable[[Path], None]] = {"torch": torch_program, "jax": jax_program}


def killed(program: Callable[[Path], None], path: Path, after_s: float) -> float:
    """Run a program in a fork, kill it after some time, and return how long it ran."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # JAX warns of forks; it has not started anything here
        process = multiprocessing.get_context("fork").Process(target=_silently, args=(program, path))
        began = time.monotonic()
        process.start()
    process.join(after_s)
    if process.is_alive() and process.pid is not None:
        os.kill(process.pid, signal.SIGKILL)
        process.join()
    return time.monotonic() - began


def _silently(program: Callable[[Path], None], path: Path) -> None:
    sink = os.open(os.devnull, os.O_WRONLY)
    os.dup2(sink, 1)
    os.dup2(sink, 2)
    program(path)


def judged(path: Path) -> list[str]:
    """What a recording to `path` left, each thing in a word or two.

    Raises:
        Wrong: where something is not what it says.
    """
    left = [found for found in path.parent.glob(f"{path.name}*") if found.is_dir()]
    return sorted(_judged(one, named=one == path) for one in left if ".scratch-" not in one.name) or ["nothing"]


def _judged(folder: Path, *, named: bool) -> str:
    try:
        run, manifest = traceflow.open(folder), read_manifest(folder)
    except TraceflowError as error:
        if named:
            raise Wrong(f"what bears the name of the capture does not open: {error}") from error
        if "\n" in str(error):
            raise Wrong(f"a refusal of several lines: {error}") from error
        return f"refused with {error.code}"
    _check_paths(run)
    steps = run.trace.marks.step.tolist()
    if manifest is not None and manifest.complete:
        if steps != EXPECTED or [record.step for record in manifest.steps] != EXPECTED:
            raise Wrong(f"it is called complete and has the steps {steps}")
        return "complete" if named else "complete, without its name yet"
    if named:
        raise Wrong("it bears the name of the capture and is not complete")
    if not any(note.code == "TF319" for note in run.trace.tally.notes):
        raise Wrong("it does not say that it is not complete")
    return "not complete, and says so"


def _check_paths(run: Run) -> None:
    """See that the critical path of each step tiles it."""
    for step in run.trace.marks.step.tolist() if len(run.trace.events) else []:
        path = run.critical_path(step=step)
        starts = [*path.segments.start_ns.tolist(), path.window.end_ns]
        ends = [path.window.start_ns, *(path.segments.start_ns + path.segments.duration_ns).tolist()]
        if starts != ends or any(one > other for one, other in pairwise(starts)):
            raise Wrong(f"the path of step {step} does not tile it")


def kills(framework: str, count: int, seed: int) -> Counter[str]:
    """Kill a recording program so many times, at moments that are spread over its life."""
    program, dice, outcomes = PROGRAMS[framework], random.Random(seed), Counter[str]()
    with tempfile.TemporaryDirectory() as scratch:
        __import__(framework)  # once, before the forks
        life_s = 0.0
        for number in range(count):
            path = Path(scratch, f"{number}", "a")
            if number % 20 == 0:  # the machine may have become faster or slower
                life_s = _life_s(program, Path(scratch, f"whole{number}"))
            killed(program, path, dice.triangular(0, life_s, life_s))  # most is written near the end
            outcomes[" and ".join(judged(path))] += 1
            shutil.rmtree(path.parent, ignore_errors=True)
    return outcomes


def _life_s(program: Callable[[Path], None], folder: Path) -> float:
    """How long a program lives that nobody kills: the second time, when all its files have been read."""
    life_s = 0.0
    for name in ("a", "b"):
        life_s = killed(program, folder / name, 300)
        if judged(folder / name) != ["complete"]:
            raise Wrong(f"a program that nobody killed left no capture but {judged(folder / name)}")
    return life_s


def kills_of_readers(count: int, seed: int) -> Counter[str]:
    """Kill a reader that keeps the columns of a trace so many times, and read again each time."""
    dice, outcomes = random.Random(seed), Counter[str]()
    with tempfile.TemporaryDirectory() as scratch, pytest.MonkeyPatch.context() as patch:
        file = large_trace(Path(scratch))
        patch.setenv(VARIABLE, "off")
        told = fingerprint(read_kineto(file))
        life_s = 0.0
        for number in range(count):
            cache = Path(scratch, f"cache{number}")
            patch.setenv(VARIABLE, str(cache))
            if number % 20 == 0:
                life_s = killed(_read, file, 300)
                shutil.rmtree(cache)
            killed(_read, file, dice.triangular(0, life_s, life_s))
            left = {one.suffix for one in cache.rglob("*") if one.is_file() and "kernels" not in one.parts}
            outcomes["kept" if ".npz" in left else "a draft" if left else "nothing"] += 1
            if fingerprint(read_kineto(file)) != told or fingerprint(read_kineto(file)) != told:
                raise Wrong(f"after kill {number} the trace was read as another")
            shutil.rmtree(cache, ignore_errors=True)
    return outcomes


def _read(file: Path) -> None:
    read_kineto(file)


def large_trace(folder: Path) -> Path:
    """A trace that is worth keeping, changed so long ago that its times tell of any change."""
    trace = KinetoTrace(rank=0)
    for number in range(6_000):
        trace.kernel(
            f"gemm{number % 50}", 1_000 * number + 500, 1_000 * number + 900, call=(1_000 * number, 1_000 * number + 90)
        )
    file = trace.write(folder / "rank0.pt.trace.json")
    file.write_text(file.read_text() + " " * (4 << 20))
    os.utime(file, (1, 1))
    time.sleep(2.1)
    return file


def fingerprint(value: object) -> str:
    """Equal for equal traces."""
    if isinstance(value, np.ndarray):
        return hashlib.sha256(value.tobytes()).hexdigest()
    if dataclasses.is_dataclass(value):
        return repr([(f.name, fingerprint(getattr(value, f.name))) for f in dataclasses.fields(value)])
    return repr(value)


def main(arguments: list[str]) -> None:
    """Kill, and tell what was left."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=[*PROGRAMS, "reader"])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args(arguments)
    if chosen.what == "reader":
        outcomes = kills_of_readers(chosen.kills, chosen.seed)
    else:
        outcomes = kills(chosen.what, chosen.kills, chosen.seed)
    for outcome, count in outcomes.most_common():
        print(f"{count:4d}  {outcome}")


if __name__ == "__main__":
    main(sys.argv[1:])
