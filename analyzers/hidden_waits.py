"""Idle time of a path that communication on another stream fills, where no record tells what waited for what."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from traceflow.intervals import union
from traceflow.result import Finding, Provenance, Severity
from traceflow.trace.model import Kind, LaneKind, Rows, Trace

if TYPE_CHECKING:
    from traceflow.analyzers.critical_path import Segments

_WORTH_SHARE = 0.1  # of the path


def probable_waits(trace: Trace, segments: Segments) -> tuple[Finding, ...]:
    """How much of the idle time of a path passed while its device communicated on a stream.

    Asked where a trace holds no records of synchronisation: work that waits for communication on another stream then
    shows as idle time before it, and a replay without communication saves nothing.

    Args:
        trace: The evidence.
        segments: Of the path.

    Returns:
        One finding where that is a tenth of the path or more, else nothing.
    """
    idle = np.flatnonzero((segments.kind == "idle") & (segments.device >= 0))
    devices = {(int(segments.rank[i]), int(segments.device[i])) for i in idle}
    covered_ns = sum(_covered_ns(trace, segments, idle, *device) for device in devices)
    whole_ns = int(segments.duration_ns.sum())
    if not covered_ns or covered_ns < _WORTH_SHARE * whole_ns:
        return ()
    return (
        Finding(
            code="TF223",
            severity=Severity.WARNING,
            title=f"{covered_ns / whole_ns:.0%} of the path is idle while its device communicates: it probably waits",
            provenance=Provenance.MEASURED,
            suggestion="Take it for exposed communication; record with synchronisation events to be sure.",
            cost_ns=covered_ns,
            evidence={"covered_ns": covered_ns},
        ),
    )


def _covered_ns(trace: Trace, segments: Segments, idle: Rows, rank: int, device: int) -> int:
    here = idle[(segments.rank[idle] == rank) & (segments.device[idle] == device)]
    lanes, events = trace.lanes, trace.events
    streams = (lanes.kind == LaneKind.STREAM) & (lanes.rank == rank) & (lanes.device == device)
    there = streams[events.lane] & (events.kind == Kind.COMMUNICATION)
    busy = union(events.start_ns[there], events.end_ns[there])
    start = segments.start_ns[here]
    return int(busy.covered_ns(start, start + segments.duration_ns[here]).sum())
