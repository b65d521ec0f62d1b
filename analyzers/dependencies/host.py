"""Edges between host slices: program order, hand-off between threads, and data passed along."""

from __future__ import annotations

from itertools import permutations
from typing import NamedTuple

import numpy as np

from traceflow.analyzers.dependencies.slices import Cut
from traceflow.graph import EdgeKind, Edges, SliceKind
from traceflow.trace.model import Bool, Int64, LaneKind, Rows, Trace


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


def hand_off(trace: Trace, cut: Cut) -> tuple[Edges, Int64]:
    """What a thread waits for while another works for it, and the slices in which it does nothing else.

    A thread waits in a gap between its slices that another thread's work fills, or in a slice of its own that
    work of the autograd engine fills, as in `backward()`: started and finished inside it, and at least half of it.
    The start of the wait binds the first piece of that work; its last piece binds the return. Who is handed work
    has none of its own: a thread that also works next to the gap only happens to be busy inside it. Where data flows
    into that work, it was handed over by a thread that the data comes from. Of several hand-offs that explain the
    same start or the same return by different threads, the engine's is believed, then the one that leaves the least
    time.
    """
    here = _on(trace, cut, LaneKind.THREAD)
    lane = cut.slices.lane[here]
    threads = [here[lane == which] for which in np.unique(lane)]
    rank = [trace.lanes.rank[cut.slices.lane[thread[0]]] for thread in threads]
    engine = np.array([text.startswith("autograd::engine::") for text in trace.strings] or [False])
    by_engine = engine[trace.events.name[cut.slices.event]]
    found = [np.empty((5, 0), np.int64)]
    for i, j in permutations(range(len(threads)), 2):
        if rank[i] == rank[j]:
            own = [_filled(cut, _gaps(cut, threads[i]), threads[j])]
            if by_engine[threads[j]].any():
                inside = _filled(cut, _calls(cut, threads[i]), threads[j])
                own.append(inside[:, by_engine[inside[1] >> 1]])
            found += [some[:, _agrees_with_data(trace, cut, threads[i], some)] for some in own]
    start, first, last, end, spare_ns = np.concatenate(found, axis=1)
    source, target = np.concatenate((start, last)), np.concatenate((first, end))
    worst_first = np.lexsort((-np.tile(spare_ns, 2), np.tile(by_engine[first >> 1], 2)))
    likeliest = np.full(2 * len(cut.slices), -1)
    likeliest[target[worst_first]] = source[worst_first]  # the last one written stays
    likely = likeliest[target] == source
    chosen = likely[: len(start)] & likely[len(start) :]
    source, target = source[np.tile(chosen, 2)], target[np.tile(chosen, 2)]
    waits = start[chosen & (start >> 1 == end >> 1)] >> 1
    return Edges(source.astype(np.int32), target.astype(np.int32), EdgeKind.HAND_OFF), waits


class _Waits(NamedTuple):
    """Intervals of one thread in which it may wait for another, and the time around each in which it works itself."""

    start: Int64  # vertices
    end: Int64
    start_ns: Int64
    end_ns: Int64
    since_ns: Int64
    until_ns: Int64


def _gaps(cut: Cut, thread: Int64) -> _Waits:
    """Between slices; a thread works itself until the gap before, and until the gap after."""
    left, right = cut.slices.end_ns[thread[:-1]], cut.slices.start_ns[thread[1:]]
    gap = (right > left).nonzero()[0]
    left, right = left[gap], right[gap]
    since = np.concatenate((cut.slices.start_ns[thread[:1]], right))[: len(gap)]
    until = np.concatenate((left, cut.slices.end_ns[thread[-1:]]))[1 : len(gap) + 1]
    return _Waits(2 * thread[gap] + 1, 2 * thread[gap + 1], left, right, since, until)


def _calls(cut: Cut, thread: Int64) -> _Waits:
    """Slices; nothing is asked of what is around them."""
    calls = thread[cut.slices.kind[thread] == SliceKind.HOST]
    start_ns, end_ns = cut.slices.start_ns[calls], cut.slices.end_ns[calls]
    return _Waits(2 * calls, 2 * calls + 1, start_ns, end_ns, start_ns, end_ns)


def _filled(cut: Cut, waits: _Waits, worker: Int64) -> Int64:
    """The intervals that a thread's work fills, one per column.

    Rows: the vertices at which the interval starts, its work starts, its work ends, and it ends; and how much of it
    is before and after the work.
    """
    start_ns, end_ns = cut.slices.start_ns[worker], cut.slices.end_ns[worker]
    first = np.searchsorted(start_ns, waits.start_ns, side="left")
    last = np.searchsorted(end_ns, waits.end_ns, side="right") - 1
    busy = np.concatenate(([0], np.cumsum(end_ns - start_ns)))
    before = np.concatenate(([np.iinfo(np.int64).min], end_ns))
    after = np.concatenate((start_ns, [np.iinfo(np.int64).max]))
    fills = (last >= first) & (before[first] <= waits.since_ns) & (after[last + 1] >= waits.until_ns)
    length_ns = waits.end_ns - waits.start_ns
    fills &= 2 * (busy[np.maximum(last + 1, first)] - busy[first]) >= length_ns
    first, last = first[fills], last[fills]
    spare_ns = length_ns[fills] - (end_ns[last] - start_ns[first])
    found = waits.start[fills], 2 * worker[first], 2 * worker[last] + 1, waits.end[fills], spare_ns
    return np.stack(found).astype(np.int64)


def _agrees_with_data(trace: Trace, cut: Cut, caller: Int64, filled: Int64) -> Bool:
    """Whether the caller is among the threads from which data flows into the work, if any does."""
    if not filled.shape[1]:
        return np.zeros(0, bool)
    into = cut.start_of(trace.flows.target) >> 1
    from_caller = trace.events.lane[trace.flows.source] == cut.slices.lane[caller[0]]
    every, own = (_count(rows, filled[1] >> 1, filled[2] >> 1) for rows in (into, into[from_caller]))
    agrees: Bool = (every == 0) | (own > 0)
    return agrees


def _count(rows: Rows, first: Int64, last: Int64) -> Int64:
    """How many of the rows lie in each range, both ends included."""
    ordered = np.sort(rows)
    return np.searchsorted(ordered, last, side="right") - np.searchsorted(ordered, first, side="left")


def _on(trace: Trace, cut: Cut, kind: LaneKind) -> Int64:
    """Rows of the slices on lanes of a kind, in order."""
    of_kind = np.append(trace.lanes.kind == kind, False)  # the last stands for joins, which have no lane
    return of_kind[cut.slices.lane].nonzero()[0]
