"""Write traces of many simulated ranks: one Kineto file each, packed, with as many collectives as wanted.

Ranks compute for about the same time, one of them longer, meet in a collective, and go on: now all of them, now those
of one host. All work of a device is on one stream, and hosts have clocks of their own, off by up to a millisecond. The truth that was simulated is written beside the traces.
"""

from __future__ import annotations

import argparse
import gzip
import json
from pathlib import Path

import numpy as np

HOST, STREAM, BASE_NS = 8, 7, 1_790_000_000_000_000_000
LATE_NS, COMPUTE_NS, TRANSFER_NS, STEP = 30_000, 100_000, 20_000, 100


def simulate(ranks: int, collectives: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Start of each computation, arrival at each collective, and its end, each of shape (collectives, ranks), in ns."""
    rng = np.random.default_rng(seed)
    ready = np.zeros(ranks)
    starts, arrivals, ends = (np.zeros((collectives, ranks)) for _ in range(3))
    late = ranks // 3
    for k in range(collectives):
        took = rng.normal(COMPUTE_NS, COMPUTE_NS / 50, ranks)
        took[late] += LATE_NS if k % STEP == 7 else 0
        starts[k], arrivals[k] = ready + 1500, ready + 1500 + took
        last = arrivals[k].max() if is_for_all(k) else np.repeat(arrivals[k].reshape(-1, HOST).max(axis=1), HOST)
        ends[k] = last + TRANSFER_NS + 5
        ready = ends[k]
    return starts.astype(np.int64), arrivals.astype(np.int64), ends.astype(np.int64)


def is_for_all(k: int) -> bool:
    """Whether collective k is of all ranks, and not of those of each host."""
    return k % 4 == 3


def main() -> None:
    """Write the traces."""
    given = argparse.ArgumentParser(description=__doc__)
    given.add_argument("--ranks", type=int, default=64)
    given.add_argument("--collectives", type=int, default=2000)
    given.add_argument("--seed", type=int, default=1)
    given.add_argument("--out", type=Path, required=True)
    asked = given.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    times = simulate(asked.ranks, asked.collectives, asked.seed)
    offset_ns = np.random.default_rng(asked.seed + 1).integers(-1_000_000, 1_000_000, asked.ranks // HOST + 1)
    offset_ns[0] = 0
    for rank in range(asked.ranks):
        text = document(
            rank, asked.ranks, *(column[:, rank] + 10_000_000 + offset_ns[rank // HOST] for column in times)
        )
        (asked.out / f"rank{rank:06}.json.gz").write_bytes(gzip.compress(text.encode(), 1, mtime=0))
    truth = {"offset_ns": offset_ns.tolist(), "late_rank": asked.ranks // 3, "end_ns": int(times[2].max())}
    (asked.out / "truth.txt").write_text(json.dumps(truth))


def called(k: int, world: int, host: int) -> dict[str, object]:
    """What the trace says of collective k."""
    near = list(range(host * HOST, host * HOST + HOST))
    shown = f"[0, 1, ..., {world - 1}]" if is_for_all(k) else str(near)
    return {
        "Collective name": "allreduce",
        "In msg nelems": 1 << 20,
        "dtype": "BFloat16",
        "Group size": world if is_for_all(k) else HOST,
        "Process Group Name": "0" if is_for_all(k) else f"{host + 1}",
        "Process Group Ranks": shown,
        "Seq": k,
    }


def document(rank: int, world: int, starts: np.ndarray, arrivals: np.ndarray, ends: np.ndarray) -> str:
    """The trace of one rank as the profiler writes it."""
    host = rank // HOST
    near = list(range(host * HOST, host * HOST + HOST))
    groups = [("0", list(range(world))), (f"{host + 1}", near)]
    events, correlation, begun = [], 0, 0
    at = [starts, arrivals, ends]
    call = int(starts[0]) - 5_000

    def event(cat: str, name: str, pid: int, tid: int, start: int, end: int, **args: object) -> None:
        shown = f'"ts":{start / 1000:.3f},"dur":{(end - start) / 1000:.3f}'
        events.append(
            f'{{"ph":"X","cat":"{cat}","name":"{name}","pid":{pid},"tid":{tid},{shown},"args":{json.dumps(args)}}}'
        )

    for k in range(len(starts)):
        start, arrival, end = (int(column[k]) for column in at)
        if k % STEP == 0:
            if k:
                step = f"ProfilerStep#{k // STEP - 1}"
                event("user_annotation", step, 4242, 4242, begun, call + 200)
            begun = call + 300
            call += 500
        for what, first, last in (("gemm", start, arrival), ("ncclDevKernel_AllReduce", arrival, end)):
            correlation += 1
            event("cuda_runtime", "cudaLaunchKernel", 4242, 4242, call, call + 900, correlation=correlation)
            more: dict[str, object] = {"device": rank % HOST, "stream": STREAM, "correlation": correlation}
            if what != "gemm":
                more |= called(k, world, host)
            event("kernel", what, rank % HOST, STREAM, first, last, **more)
            call += 1_000
        call = max(call, start + 2_000)
    event("user_annotation", f"ProfilerStep#{len(starts) // STEP - 1}", 4242, 4242, begun, call + 100)
    configured = [{"pg_name": name, "pg_size": len(ranks), "ranks": ranks} for name, ranks in groups]
    header = {
        "schemaVersion": 1,
        "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": world, "pg_config": configured},
        "host_name": f"host{host:05}",
        "baseTimeNanoseconds": BASE_NS,
    }
    return json.dumps(header)[:-1] + ', "traceEvents": [\n' + ",\n".join(events) + "\n]}\n"


if __name__ == "__main__":
    main()
