"""Edges between host slices: program order, hand-off between threads, and data passed along."""

from __future__ import annotations

import numpy as np

from traceflow.analyzers.dependencies.slices import Cut
from traceflow.graph import EdgeKind, Edges
from traceflow.trace.model import Int64, LaneKind, Trace


def program_order(trace: Trace, cut: Cut) -> Edges:
    """On a host thread, the end of a slice binds the start of the next."""
    here = _on(trace, cut, LaneKind.THREAD)
    following = (cut.slices.lane[here[1:]] == cut.slices.lane[here[:-1]]).nonzero()[0]
    return Edges(2 * here[following] + 1, 2 * here[following + 1], EdgeKind.PROGRAM_ORDER)


def flows(trace: Trace, cut: Cut) -> list[Edges]:
    """Recorded flows: data where the producer had ended, a hand-off where it was still running."""
    source, target = trace.flows.source, trace.flows.target
    ended = trace.events.end_ns[source] <= trace.events.start_ns[target]
    return [
        Edges(cut.end_of(source[ended]), cut.start_of(target[ended]), EdgeKind.DATA),
        Edges(cut.start_of(source[~ended]), cut.start_of(target[~ended]), EdgeKind.HAND_OFF),
    ]


def hand_off(trace: Trace, cut: Cut) -> Edges:
    """A gap on one thread that another thread's work fills, started and finished inside it.

    The thread before the gap binds the first piece of the other's work; its last piece binds the return.
    Work fills a gap when it covers at least half of it.
    """
    here = _on(trace, cut, LaneKind.THREAD)
    lane = cut.slices.lane[here]
    threads = [here[lane == which] for which in np.unique(lane)]
    pairs = [
        _between(cut, one, two)
        for one in threads
        for two in threads
        if one is not two and trace.lanes.rank[cut.slices.lane[one[0]]] == trace.lanes.rank[cut.slices.lane[two[0]]]
    ]
    source, target = (np.concatenate([pair[i] for pair in pairs] or [np.empty(0, np.int64)]) for i in (0, 1))
    return Edges(source.astype(np.int32), target.astype(np.int32), EdgeKind.HAND_OFF)


def _on(trace: Trace, cut: Cut, kind: LaneKind) -> Int64:
    """Rows of the slices on lanes of a kind, in order."""
    of_kind = np.append(trace.lanes.kind == kind, False)  # the last stands for joins, which have no lane
    return of_kind[cut.slices.lane].nonzero()[0]


def _between(cut: Cut, caller: Int64, worker: Int64) -> tuple[Int64, Int64]:
    """Edges from one thread into another's work inside its gaps, and back."""
    start_ns, end_ns = cut.slices.start_ns, cut.slices.end_ns
    left, right = end_ns[caller[:-1]], start_ns[caller[1:]]
    gap = (right > left).nonzero()[0]
    left, right = left[gap], right[gap]
    first = np.searchsorted(start_ns[worker], left, side="left")
    last = np.searchsorted(end_ns[worker], right, side="right") - 1
    busy = np.concatenate(([0], np.cumsum(end_ns[worker] - start_ns[worker])))
    before = np.concatenate(([np.iinfo(np.int64).min], end_ns[worker]))
    after = np.concatenate((start_ns[worker], [np.iinfo(np.int64).max]))
    fills = (last >= first) & (before[first] <= left) & (after[last + 1] >= right)
    fills &= 2 * (busy[np.maximum(last + 1, first)] - busy[first]) >= right - left
    gap, first, last = gap[fills], first[fills], last[fills]
    source = np.concatenate((2 * caller[gap] + 1, 2 * worker[last] + 1))
    return source, np.concatenate((2 * worker[first], 2 * caller[gap + 1]))
