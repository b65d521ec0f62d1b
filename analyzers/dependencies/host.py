"""Edges between host slices: program order, hand-off between threads, and data passed along."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from traceflow.analyzers.dependencies.slices import Cut
from traceflow.graph import EdgeKind, Edges, SliceKind
from traceflow.trace.model import Bool, Int64, LaneKind, Rows, Trace


def program_order(trace: Trace, cut: Cut) -> Edges:
    """On a host thread, the end of a slice binds the start of the next."""
    lane, threads = cut.lane, trace.lanes.kind == LaneKind.THREAD
    before = np.flatnonzero((lane[1:] == lane[:-1]) & threads[lane[1:]]).astype(np.int32)
    return Edges(2 * before + 1, 2 * before + 2, EdgeKind.PROGRAM_ORDER)


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
    engine = np.array([text.startswith("autograd::engine::") for text in trace.strings] or [False])
    by_engine = engine[trace.events.name]
    works = np.zeros(len(trace.lanes), bool)
    works[trace.events.lane[by_engine]] = True
    found = [_Filled.none()]
    for rank in np.unique(trace.lanes.rank):
        threads = (trace.lanes.rank == rank) & (trace.lanes.kind == LaneKind.THREAD)
        gaps, calls = _filled(cut, threads, threads), _filled(cut, threads, threads & works, calls=True)
        found += gaps, calls.of(by_engine[cut.slices.event[calls.first >> 1]])
    filled = _Filled(*map(np.concatenate, zip(*found, strict=True)))
    start, first, last, end, spare_ns = filled.of(_agrees_with_data(trace, cut, filled))
    source, target = np.concatenate((start, last)), np.concatenate((first, end))
    engines = by_engine[cut.slices.event[first >> 1]]
    worst_first = np.lexsort((-np.tile(spare_ns, 2), np.tile(engines, 2)))
    place = np.unique(target, return_inverse=True)[1]
    likeliest = np.empty(len(target), np.int64)
    likeliest[place[worst_first]] = source[worst_first]  # the last one written stays
    likely = likeliest[place] == source
    chosen = likely[: len(start)] & likely[len(start) :]
    source, target = source[np.tile(chosen, 2)], target[np.tile(chosen, 2)]
    waits = start[chosen & (start >> 1 == end >> 1)] >> 1
    return Edges(source.astype(np.int32), target.astype(np.int32), EdgeKind.HAND_OFF), waits


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


def _filled(cut: Cut, threads: Bool, workers: Bool, *, calls: bool = False) -> _Filled:
    """Gaps of the threads of one rank, or calls, that the work of another thread, one of the workers, fills."""
    from traceflow.analyzers.dependencies._sweep import fillings

    if not workers.any():
        return _Filled.none()
    own = np.flatnonzero(threads).astype(np.int32)
    part = slice(np.searchsorted(cut.lane, own[0]), np.searchsorted(cut.lane, own[-1], side="right"))
    lane, time_ns = cut.lane[part], cut.slices.time_ns[2 * part.start : 2 * part.stop]
    start_ns, end_ns = time_ns[0::2], time_ns[1::2]
    may_wait = (threads & (workers.sum() > workers))[lane]  # no thread waits for itself
    if calls:
        waits = np.flatnonzero((cut.slices.kind[part] == SliceKind.HOST) & may_wait)
    else:
        waits = 1 + np.flatnonzero((start_ns[1:] > end_ns[:-1]) & (lane[1:] == lane[:-1]) & may_wait[1:])
    wait, first, last = fillings(time_ns, lane, workers, waits, gaps=not calls)
    length_ns = end_ns[wait] - start_ns[wait] if calls else start_ns[wait] - end_ns[wait - 1]
    spare_ns = length_ns - (end_ns[last] - start_ns[first])
    wait, first, last = wait + part.start, first + part.start, last + part.start
    return _Filled(2 * wait - (not calls), 2 * first, 2 * last + 1, 2 * wait + calls, spare_ns)


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
