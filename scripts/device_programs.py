"""Programs for the device check that use what only a GPU has, and measure what the capture is then held against.

Each leaves a capture, and what it measured in `told.json` beside it. On a CPU the same loops run without what it lacks.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import traceflow
from traceflow.capture import read_manifest

STEPS, WARMUP = 3, 2
TIMED = 6  # steps that are awaited, but not recorded


def told(path: Path, **measured: object) -> None:
    path.with_name("told.json").write_text(json.dumps(measured))


def timed_ns(step: Callable[[], object]) -> float:
    """The median time of a step that is awaited at its end, after some that warm up."""
    times = []
    for _ in range(WARMUP + TIMED):
        began = time.perf_counter_ns()
        step()
        times.append(time.perf_counter_ns() - began)
    return median(times[WARMUP:])


def recorded_ns(path: Path) -> float:
    """The median time of the steps of a capture."""
    manifest = read_manifest(path)
    assert manifest is not None
    return median((step.ready_ns or step.returned_ns) - step.start_ns for step in manifest.steps)


def product_torch(platform: str, path: Path) -> None:
    """A large product, a CUDA graph of small ones, and a copy on a stream of its own that the next product awaits."""
    import torch

    gpu = platform == "gpu"
    device = torch.device("cuda", 0) if gpu else torch.device("cpu")
    size, kind = (4096, torch.bfloat16) if gpu else (256, torch.float32)
    large = torch.randn(size, size, device=device, dtype=kind) / size
    small = torch.randn(256, 256, device=device) / 256
    replayed = _graph(small) if gpu else lambda: small @ small
    side = torch.cuda.Stream() if gpu else None

    def step() -> Any:
        product = large @ large
        replayed()
        if side is not None:
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                copied = product.to("cpu", non_blocking=True)
            torch.cuda.current_stream().wait_stream(side)
            return (product @ large).sum() + copied.numel()
        return (product @ large).sum()

    def awaited() -> None:
        step()
        if gpu:
            torch.cuda.synchronize()

    plain_ns = timed_ns(awaited)
    with traceflow.record(path, framework="torch", warmup=WARMUP, steps=STEPS, memory=True) as recorder:
        for number in range(WARMUP + STEPS):
            if gpu and number == WARMUP:
                torch.cuda.synchronize()
                torch.cuda.reset_peak_memory_stats()
            with recorder.step() as one:
                one.ready(step())
    counted = torch.cuda.max_memory_allocated() if gpu else None
    told(
        path,
        platform=platform,
        max_memory_allocated=counted,
        plain_step_ns=plain_ns,
        recorded_step_ns=recorded_ns(path),
    )


def _graph(small: Any) -> Callable[[], object]:
    """A graph of four products."""
    import torch

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        small @ small  # so that cuBLAS has its workspace before the graph is captured
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        one = small
        for _ in range(4):
            one = one @ small
    return graph.replay


def product_jax(platform: str, path: Path) -> None:
    """A large product in one program."""
    import jax

    assert jax.default_backend() == platform
    size, kind = (4096, jax.numpy.bfloat16) if platform == "gpu" else (256, jax.numpy.float32)
    weights = jax.random.normal(jax.random.key(0), (size, size), kind)
    step = jax.jit(lambda w: jax.numpy.tanh(w @ w) @ w)
    plain_ns = timed_ns(lambda: step(weights).block_until_ready())
    with traceflow.record(path, framework="jax", warmup=WARMUP, steps=STEPS) as recorder:
        for _ in range(WARMUP + STEPS):
            with recorder.step() as one:
                one.ready(step(weights))
    stats = jax.local_devices()[0].memory_stats() or {}
    held = stats.get("peak_bytes_in_use")
    told(path, platform=platform, peak_bytes_in_use=held, plain_step_ns=plain_ns, recorded_step_ns=recorded_ns(path))


if __name__ == "__main__":
    name, platform, path = sys.argv[1:]
    {"product-torch": product_torch, "product-jax": product_jax}[name](platform, Path(path))
