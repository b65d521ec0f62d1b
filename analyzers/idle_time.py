"""What a device, or the thread that it is simulated on, did while the path was idle, where no edge says why.

Two kinds of idle time have a probable cause though no dependency is known. The devices that XLA simulates on a CPU
share the threads of a pool: which of the operations that are ready a thread takes next is no dependency, but what it
did meanwhile is recorded. And where a trace holds no records of synchronisation, work that waits for communication on
another stream shows as idle time before it, and a replay without communication saves nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from traceflow.intervals import union
from traceflow.result import Finding, Provenance, Severity
from traceflow.trace.model import Bool, Kind, LaneKind, Rows, Trace

if TYPE_CHECKING:
    from traceflow.analyzers.critical_path import Segments

_WORTH_SHARE = 0.1  # of the path


def idle_time(trace: Trace, segments: Segments, *, unordered: bool) -> tuple[Finding, ...]:
    """How much of the idle time of a path passed while its thread ran other work, or its device communicated.

    Args:
        trace: The evidence.
        segments: Of the path.
        unordered: Whether what streams waited for on one another is unknown.

    Returns:
        A finding for each that makes up a tenth of the path or more.
    """
    found = [_waits_for_threads(trace, segments)]
    if unordered:
        found.append(_waits_for_communication(trace, segments))
    return tuple(finding for finding in found if finding is not None)


def _waits_for_threads(trace: Trace, segments: Segments) -> Finding | None:
    """Operations that were ready, and waited until a thread of the pool ran them."""
    lanes, workers = trace.lanes, trace.lanes.kind == LaneKind.WORKER
    if not workers.any():
        return None
    idle = _idle(segments)
    busy_ns = 0
    for rank, device, thread in {(segments.rank[i], segments.device[i], segments.lane[i]) for i in idle}:
        of_thread = np.fromiter((name == thread for name in lanes.name), bool, len(lanes))
        shared = workers & (lanes.rank == rank) & (of_thread | (lanes.device == device))
        own = (segments.rank[idle] == rank) & (segments.device[idle] == device) & (segments.lane[idle] == thread)
        busy_ns += _meanwhile_ns(trace, segments, idle[own], shared[trace.events.lane])
    share = busy_ns / max(int(segments.duration_ns.sum()), 1)
    if share < _WORTH_SHARE:
        return None
    devices = len({(int(lanes.rank[i]), int(lanes.device[i])) for i in np.flatnonzero(workers)})
    threads = len({(int(lanes.rank[i]), lanes.name[i]) for i in np.flatnonzero(workers)})
    return Finding(
        code="TF216",
        severity=Severity.INFO,
        title=(
            f"{share:.0%} of the path waits for threads of the host that run other operations:"
            f" {devices} virtual devices share {threads} threads"
        ),
        provenance=Provenance.MEASURED,
        suggestion="Simulate fewer devices, or give the host more cores. An accelerator has no such queue.",
        evidence={"busy_ns": busy_ns, "devices": devices, "threads": threads},
    )


def _waits_for_communication(trace: Trace, segments: Segments) -> Finding | None:
    """Work that probably waits for communication on another stream of its device."""
    lanes, idle = trace.lanes, _idle(segments)
    communicates = trace.events.kind == Kind.COMMUNICATION
    covered_ns = 0
    for rank, device in {(segments.rank[i], segments.device[i]) for i in idle}:
        streams = (lanes.kind == LaneKind.STREAM) & (lanes.rank == rank) & (lanes.device == device)
        own = (segments.rank[idle] == rank) & (segments.device[idle] == device)
        covered_ns += _meanwhile_ns(trace, segments, idle[own], communicates & streams[trace.events.lane])
    share = covered_ns / max(int(segments.duration_ns.sum()), 1)
    if share < _WORTH_SHARE:
        return None
    return Finding(
        code="TF223",
        severity=Severity.WARNING,
        title=f"{share:.0%} of the path is idle while its device communicates: it probably waits",
        provenance=Provenance.MEASURED,
        suggestion="Take it for exposed communication; record with synchronisation events to be sure.",
        cost_ns=covered_ns,
        evidence={"covered_ns": covered_ns},
    )


def _idle(segments: Segments) -> Rows:
    return np.flatnonzero((segments.kind == "idle") & (segments.device >= 0))


def _meanwhile_ns(trace: Trace, segments: Segments, rows: Rows, events: Bool) -> int:
    """How much of some segments the union of some events covers."""
    busy = union(trace.events.start_ns[events], trace.events.end_ns[events])
    start = segments.start_ns[rows]
    return int(busy.covered_ns(start, start + segments.duration_ns[rows]).sum())
