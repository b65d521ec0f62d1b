"""CPU seconds from a serialised program to its columns: a generated one, and those of files that are named.

Usage: python benchmarks/programs.py [FILE.hlo.pb | FILE.hlo.pb.xz] ...
"""

from __future__ import annotations

import lzma
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from traceflow.program.executable import lowered_proto
from traceflow.program.hlo_proto import read_hlo_proto

INSTRUCTIONS = 30_000
PER_ROUND = 14  # instructions of one round of `unrolled`, those of the functions that it calls included
RUNS = 5


def main(files: list[str]) -> None:
    """Measure and print a table."""
    print(f"{'instructions':>12}  {'MB':>6}  {'CPU s':>6}  {'per 30,000':>10}")
    for name, content in [("generated", generated()), *((Path(file).name, unpacked(Path(file))) for file in files)]:
        seconds, instructions = measured(content)
        scaled = seconds * INSTRUCTIONS / instructions
        print(f"{instructions:12,}  {len(content) / 1e6:6.1f}  {seconds:6.2f}  {scaled:10.2f}  {name}")


def measured(content: bytes) -> tuple[float, int]:
    """Median CPU seconds, and how many instructions were read."""
    seconds = []
    for _ in range(RUNS):
        begun = time.process_time()
        instructions = len(read_hlo_proto(content))
        seconds.append(time.process_time() - begun)
    return statistics.median(seconds), instructions


def generated() -> bytes:
    """A program of that many instructions, as JAX writes it before optimisation."""
    import jax

    def unrolled(x: Any, w: Any) -> Any:
        for _ in range(INSTRUCTIONS // PER_ROUND):
            x = jax.numpy.tanh(x @ w) + x * 2.0
            x = x - x.mean(axis=0)
        return x

    square = jax.ShapeDtypeStruct((8, 8), jax.numpy.float32)
    return lowered_proto(jax.jit(unrolled).lower(square, square))


def unpacked(file: Path) -> bytes:
    """The content of a program's file."""
    content = file.read_bytes()
    return lzma.decompress(content) if file.suffix == ".xz" else content


if __name__ == "__main__":
    main(sys.argv[1:])
