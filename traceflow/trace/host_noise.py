"""Leave out what the host does that is no work of the program: idle threads, and the profiler itself."""

from __future__ import annotations

import re

import numpy as np

from traceflow.intervals import union
from traceflow.trace.canonical import without
from traceflow.trace.host_waits import waits_on_host
from traceflow.trace.model import Bool, LaneKind, Trace

_BUSY_AT_LEAST = 100  # one part in so many of its time, or a thread is idle
_PROFILER = re.compile(r"(?:^|[$/])profiler\.py[:(]\d+(?:\):)? (?:start|stop|__enter__|__exit__)(?:_trace)?$")


def without_host_noise(trace: Trace) -> Trace:
    """The trace without host events that are no work of the program.

    A thread is idle when |union of its events - union of its waits| is at most 1 % of |union of its events|, and it
    neither calls the device nor communicates: a monitor that sleeps between two looks. And what the profiler does
    to start and to stop is not what it was asked to measure.

    Args:
        trace: A canonical trace. One in which nothing else happens is returned as it is.

    Returns:
        A canonical trace; what was left out is counted with its reason.
    """
    waits = np.array([waits_on_host(text) for text in trace.strings], bool)
    steers = np.array([_PROFILER.search(text) is not None for text in trace.strings], bool)
    if not (waits.any() or steers.any()):
        return trace
    idle, profiler = _idle_lanes(trace, waits)[trace.events.lane], _inside_profiler(trace, steers)
    if not (idle | profiler).any() or (idle | profiler).all():
        return trace
    reasons = {"on a thread that only waits": int(idle.sum()), "the profiler's own": int((profiler & ~idle).sum())}
    return without(trace, idle | profiler, reasons)


def _inside_profiler(trace: Trace, steers: Bool) -> Bool:
    """Host events that only run while their thread starts or stops the profiler, and call no device.

    Args:
        trace: The evidence.
        steers: Which of its names are those of such starts and stops.
    """
    e = trace.events
    named = steers[e.name]
    inside = np.zeros(len(e), bool)
    for event in np.flatnonzero(named & (trace.lanes.kind[e.lane] == LaneKind.THREAD)).tolist():
        last = np.searchsorted(e.lane, e.lane[event], side="right")
        own = slice(event, last)
        inside[own] |= e.end_ns[own] <= e.end_ns[event]
    inside[e.correlation >= 0] = False
    inside[trace.communications.event] = False
    inside[trace.launches.event] = False
    return inside


def _idle_lanes(trace: Trace, waits: Bool) -> Bool:
    """Threads that wait for all but a hundredth of their time, and neither call the device nor communicate.

    Args:
        trace: The evidence.
        waits: Which of its names are those of waits.
    """
    e = trace.events
    waiting = waits[e.name]
    idle = np.zeros(len(trace.lanes), bool)
    idle[e.lane[waiting]] = True
    idle &= trace.lanes.kind == LaneKind.THREAD
    idle[e.lane[e.correlation >= 0]] = False
    idle[e.lane[trace.communications.event]] = False
    idle[e.lane[trace.launches.event]] = False
    for lane in np.flatnonzero(idle):
        first, last = np.searchsorted(e.lane, (lane, lane + 1))
        own = np.arange(first, last)
        total_ns, waited_ns = (union(e.start_ns[rows], e.end_ns[rows]).total_ns for rows in (own, own[waiting[own]]))
        idle[lane] = _BUSY_AT_LEAST * (total_ns - waited_ns) <= total_ns
    return idle
