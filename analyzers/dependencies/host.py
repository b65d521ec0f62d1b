"""Edges between host slices: program order, hand-off between threads, and data passed along."""

from __future__ import annotations

from collections.abc import Callable
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
    rank = trace.lanes.rank[cut.slices.lane[here]]
    engine = np.array([text.startswith("autograd::engine::") for text in trace.strings] or [False])
    by_engine = engine[trace.events.name[cut.slices.event]]
    found = [_Filled.none(), *(_filled(cut, here[rank == which], by_engine) for which in np.unique(rank))]
    filled = _Filled(*map(np.concatenate, zip(*found, strict=True)))
    start, first, last, end, spare_ns = filled.of(_agrees_with_data(trace, cut, filled))
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


class _Filled(NamedTuple):
    """Intervals of one thread that another one's work fills."""

    start: Int64  # vertices at which the interval starts, its work starts, its work ends, and it ends
    first: Int64
    last: Int64
    end: Int64
    spare_ns: Int64  # how much of the interval is before and after the work

    @classmethod
    def none(cls) -> _Filled:
        """No interval."""
        return cls(*(np.empty(0, np.int64) for _ in cls._fields))

    def of(self, chosen: Bool | Int64) -> _Filled:
        """Some of them."""
        return _Filled(*(column[chosen] for column in self))


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


def _filled(cut: Cut, rows: Int64, by_engine: Bool) -> _Filled:
    """Gaps of each thread of a rank that another thread fills, and calls that one of the engine's threads fills.

    Args:
        cut: The slices.
        rows: Those on the rank's threads, thread by thread.
        by_engine: Slices that are the engine's work, shape (slices,).
    """
    lane = cut.slices.lane[rows]
    threads = np.split(rows, np.flatnonzero(np.diff(lane)) + 1)
    works = np.array([bool(by_engine[thread].any()) for thread in threads])
    in_gaps = _search(cut, threads, _gaps, np.ones(len(threads), bool))
    if not works.any():
        return in_gaps
    in_calls = _search(cut, threads, _calls, works)
    in_calls = in_calls.of(by_engine[in_calls.first >> 1])
    return _Filled(*map(np.concatenate, zip(in_gaps, in_calls, strict=True)))


def _search(cut: Cut, threads: list[Int64], intervals: Callable[[Cut, Int64], _Waits], workers: Bool) -> _Filled:
    """The intervals of every thread that the work of another, one of the workers, fills.

    Most hold no start of such work and are left out before anything is sorted.
    """
    from traceflow.analyzers.dependencies._sweep import fillings, within

    starts_ns = [cut.slices.start_ns[thread] for thread in threads]
    working_ns = np.sort(np.concatenate([own for own, works in zip(starts_ns, workers, strict=True) if works]))
    each = []
    for thread, own_ns, works in zip(threads, starts_ns, workers, strict=True):
        waits = intervals(cut, thread)
        others = within(working_ns, waits.start_ns, waits.end_ns)
        if works:
            others -= within(own_ns, waits.start_ns, waits.end_ns)
        each.append(_Waits(*(column[others > 0] for column in waits)))
    rows = np.concatenate(threads)
    waits = _Waits(*map(np.concatenate, zip(*each, strict=True)))
    number = np.arange(len(threads), dtype=np.int64)
    thread = np.repeat(number, [len(own) for own in threads])
    caller = np.repeat(number, [len(own.start) for own in each])
    start_ns, end_ns = cut.slices.start_ns[rows], cut.slices.end_ns[rows]
    wait, first, last = fillings(
        start_ns, end_ns, thread, workers, caller, waits.start_ns, waits.end_ns, waits.since_ns, waits.until_ns
    )
    order = np.lexsort((wait, thread[first], caller[wait]))
    wait, first, last = wait[order], first[order], last[order]
    spare_ns = waits.end_ns[wait] - waits.start_ns[wait] - (end_ns[last] - start_ns[first])
    return _Filled(waits.start[wait], 2 * rows[first], 2 * rows[last] + 1, waits.end[wait], spare_ns)


def _agrees_with_data(trace: Trace, cut: Cut, filled: _Filled) -> Bool:
    """Whether the caller is among the threads from which data flows into the work, if any does."""
    into = cut.start_of(trace.flows.target).astype(np.int64) >> 1
    origin = trace.events.lane[trace.flows.source].astype(np.int64) * len(cut.slices)
    caller = cut.slices.lane[filled.start >> 1].astype(np.int64) * len(cut.slices)
    first, last = filled.first >> 1, filled.last >> 1
    agrees: Bool = (_count(into, first, last) == 0) | (_count(origin + into, caller + first, caller + last) > 0)
    return agrees


def _count(rows: Rows, first: Int64, last: Int64) -> Int64:
    """How many of the rows lie in each range, both ends included."""
    ordered = np.sort(rows)
    return np.searchsorted(ordered, last, side="right") - np.searchsorted(ordered, first, side="left")


def _on(trace: Trace, cut: Cut, kind: LaneKind) -> Int64:
    """Rows of the slices on lanes of a kind, in order."""
    of_kind = np.append(trace.lanes.kind == kind, False)  # the last stands for joins, which have no lane
    return of_kind[cut.slices.lane].nonzero()[0]
