"""Operations of virtual devices that were ready, and waited until a thread of the host ran them.

The devices that XLA simulates on a CPU share the threads of a pool. Which of the operations that are ready a thread
takes next is no dependency, so that no edge explains why one waited; but what its thread did meanwhile is recorded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from traceflow.intervals import union
from traceflow.result import Finding, Provenance, Severity
from traceflow.trace.model import LaneKind, Rows, Trace

if TYPE_CHECKING:
    from traceflow.analyzers.critical_path import Segments

_WORTH_SHARE = 0.1  # of the path


def waits_for_threads(trace: Trace, segments: Segments) -> tuple[Finding, ...]:
    """How much of the idle time of a path passed while the thread, or the device, that it waited for ran other work.

    Args:
        trace: The evidence.
        segments: Of the path.

    Returns:
        One finding where that is a tenth of the path or more, else nothing.
    """
    workers = trace.lanes.kind == LaneKind.WORKER
    idle = np.flatnonzero((segments.kind == "idle") & (segments.device >= 0))
    if not workers.any() or not len(idle):
        return ()
    waited = {(int(segments.rank[i]), int(segments.device[i]), str(segments.lane[i])) for i in idle}
    busy_ns = sum(_busy_ns(trace, segments, idle, *one) for one in waited)
    whole_ns = int(segments.duration_ns.sum())
    return (_finding(trace, busy_ns, whole_ns),) if busy_ns >= _WORTH_SHARE * whole_ns else ()


def _busy_ns(trace: Trace, segments: Segments, idle: Rows, rank: int, device: int, thread: str) -> int:
    """Idle time of one lane of the path during which its thread or its device ran anything."""
    same = (segments.rank[idle] == rank) & (segments.device[idle] == device) & (segments.lane[idle] == thread)
    start = segments.start_ns[idle[same]]
    lanes, events = trace.lanes, trace.events
    of_thread = np.fromiter((name == thread for name in lanes.name), bool, len(lanes))
    shared = (lanes.kind == LaneKind.WORKER) & (lanes.rank == rank) & (of_thread | (lanes.device == device))
    there = shared[events.lane]
    busy = union(events.start_ns[there], events.end_ns[there])
    return int(busy.covered_ns(start, start + segments.duration_ns[idle[same]]).sum())


def _finding(trace: Trace, busy_ns: int, whole_ns: int) -> Finding:
    lanes = trace.lanes
    workers = np.flatnonzero(lanes.kind == LaneKind.WORKER)
    devices = len({(int(lanes.rank[i]), int(lanes.device[i])) for i in workers})
    threads = len({(int(lanes.rank[i]), lanes.name[i]) for i in workers})
    return Finding(
        code="TF216",
        severity=Severity.INFO,
        title=(
            f"{busy_ns / whole_ns:.0%} of the path waits for threads of the host that run other operations:"
            f" {devices} virtual devices share {threads} threads"
        ),
        provenance=Provenance.MEASURED,
        suggestion="Simulate fewer devices, or give the host more cores. An accelerator has no such queue.",
        evidence={"busy_ns": busy_ns, "devices": devices, "threads": threads},
    )
