"""Edges back from what a host backend executed for a thread: gloo's collectives and their waits."""

from __future__ import annotations

import numpy as np

from traceflow.analyzers.dependencies.slices import Cut
from traceflow.graph import EdgeKind, Edges
from traceflow.trace.model import ABSENT, Bool, Int64, Rows, Trace


def issued(trace: Trace, cut: Cut) -> tuple[Edges, Rows]:
    """The end of a collective binds the thread that issued it and has done nothing since; and its waiting slices.

    `Work.wait()` leaves no event. The thread waits in a gap after the call that issued the collective, or in the
    slice that its enclosing event resumes with, provided that the collective ends inside.
    """
    e, slices = trace.events, cut.slices
    executed = np.zeros(len(e), bool)
    executed[trace.communications.event] = trace.lanes.device[e.lane[trace.communications.event]] == ABSENT
    here = executed[trace.flows.target] & (e.lane[trace.flows.source] != e.lane[trace.flows.target])
    call, work = trace.flows.source[here], trace.flows.target[here]
    last = cut.last[call].astype(np.int64)
    following = np.minimum(last + 1, len(slices) - 1)
    same = (slices.lane[following] == slices.lane[last]) & (following > last)
    done_ns = e.end_ns[work]
    idle = same & (slices.start_ns[following] >= done_ns) & (slices.end_ns[last] <= done_ns)
    resumed = same & (slices.start_ns[following] == slices.end_ns[last]) & _continues(cut, following)
    resumed &= (slices.start_ns[following] <= done_ns) & (slices.end_ns[following] >= done_ns) & ~idle
    source = cut.end_of(np.concatenate((work[idle], work[resumed])))
    target = np.concatenate((2 * following[idle], 2 * following[resumed] + 1))
    return Edges(source, target, EdgeKind.HOST_SYNCHRONISATION), following[resumed]


def _continues(cut: Cut, row: Int64) -> Bool:
    """Slices with which an event goes on after another inside it."""
    event = cut.slices.event[row]
    continues: Bool = (event >= 0) & (cut.first[np.maximum(event, 0)] != row)
    return continues
