"""Edges of synchronisation: events between streams, and host calls that wait for the device."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from traceflow.analyzers.dependencies.device import Launched, in_stream_order
from traceflow.analyzers.dependencies.slices import Cut
from traceflow.graph import EdgeKind, Edges, SliceKind
from traceflow.trace.host_waits import waits_on_host
from traceflow.trace.model import ABSENT, Bool, Kind, LaneKind, Rows, SyncKind, Trace

_Stream = tuple[int, int, int]  # rank, device, stream
_Frontier = dict[_Stream, int]
"""How far streams must have come: per stream, the place in launch order of the last work awaited."""


@dataclass(frozen=True, slots=True)
class Queues:
    """Per stream, its work in launch order; the launches' times find what was queued at a moment."""

    work: dict[_Stream, list[int]]
    launch_ns: dict[_Stream, list[int]]

    def last_before(self, stream: _Stream, moment_ns: int) -> _Frontier:
        """The work launched last on a stream before a moment; nothing where there is none."""
        at = bisect_left(self.launch_ns.get(stream, ()), moment_ns) - 1
        return {stream: at} if at >= 0 else {}

    def all_before(self, rank: int, device: int, moment_ns: int) -> _Frontier:
        """The work launched last before a moment on every stream of a device; of all devices of the rank if unknown."""
        streams = [stream for stream in self.work if stream[0] == rank and device in (ABSENT, stream[1])]
        return {s: at for stream in streams for s, at in self.last_before(stream, moment_ns).items()}

    def events(self, frontier: _Frontier) -> list[int]:
        """The work that a frontier ends with, one event per stream."""
        return [self.work[stream][at] for stream, at in frontier.items()]

    def first_after(self, stream: _Stream, moment_ns: int) -> int | None:
        """The event launched first on a stream after a moment."""
        launches = self.launch_ns.get(stream, ())
        at = bisect_right(launches, moment_ns)
        return self.work[stream][at] if at < len(launches) else None


class _Sync(NamedTuple):
    """A row of `Trace.syncs`."""

    kind: int
    rank: int
    device: int
    stream: int
    awaited_stream: int
    correlation: int
    record_correlation: int


def synchronisation(trace: Trace, launch: Launched, cut: Cut, blocking: Bool) -> tuple[list[Edges], int]:
    """Edges from event waits and blocking calls, and how many blocking calls had to be inferred.

    Records say what a call waits for. Without one, a call that launched work itself waits for that work, and one
    that synchronises the device for all that was launched before; any other is taken to wait for the work,
    launched before it, that ended last before it returned.
    """
    queues, blocks = _queues(trace, launch), _blocks(trace, blocking)
    waits, host, explained = _Recorded(trace, queues).replayed()
    own = np.flatnonzero((launch.call >= 0) & blocks[launch.call])
    host += zip(own.tolist(), launch.call[own].tolist(), strict=True)
    host += _device_wide(trace, queues, blocks, known=explained | {call for _, call in host})
    inferred = _inferred(trace, launch, blocks, known=explained | {call for _, call in host})
    return [
        _edges(cut, waits, EdgeKind.EVENT_WAIT, to_start=True),
        _edges(cut, host + inferred, EdgeKind.HOST_SYNCHRONISATION, to_start=False),
    ], len(inferred)


def _blocks(trace: Trace, blocking: Bool) -> Bool:
    """Host events that wait for the device."""
    on_host: Bool = trace.lanes.device[trace.events.lane] == ABSENT
    elsewhere = np.array([waits_on_host(text) for text in trace.strings] or [False])[trace.events.name]
    waits: Bool = on_host & ~elsewhere & ((trace.events.kind == Kind.WAIT) | blocking)
    return waits


def _edges(cut: Cut, pairs: list[tuple[int, int]], kind: EdgeKind, *, to_start: bool) -> Edges:
    work, waiter = np.array(sorted(set(pairs)), np.int64).reshape(-1, 2).T
    ends = cut.end_of(work)
    return Edges(ends, cut.start_of(waiter) if to_start else _returns(cut, ends >> 1, waiter), kind)


def _returns(cut: Cut, done: Rows, call: Rows) -> Rows:
    """The vertex at which each call could go on: the end of its slice, or a nested wait's, in which the work ended.

    A call that waits by calls of its own is in pieces; what comes after the work is over waits for it no more.
    """
    end_ns, kind = cut.slices.end_ns, cut.slices.kind
    pieces = [
        first + int(np.searchsorted(end_ns[first : last + 1], moment))
        for first, last, moment in zip(
            cut.first[call].tolist(), cut.last[call].tolist(), end_ns[done].tolist(), strict=True
        )
    ]
    piece = np.minimum(np.array(pieces, np.int64), cut.last[call])
    return np.where(kind[piece] == SliceKind.BLOCKED, 2 * piece + 1, cut.end_of(call))


def _queues(trace: Trace, launch: Launched) -> Queues:
    """Work whose launch is not in the trace was launched before it."""
    lanes, rows = trace.lanes, in_stream_order(trace)
    order = rows[np.lexsort((launch.call_ns[rows], trace.events.lane[rows]))]
    bounds = np.searchsorted(trace.events.lane[order], np.arange(len(lanes) + 1))
    work = {}
    for lane in np.flatnonzero(lanes.kind == LaneKind.STREAM):
        stream = int(lanes.rank[lane]), int(lanes.device[lane]), int(lanes.stream[lane])
        work[stream] = order[bounds[lane] : bounds[lane + 1]]
    return Queues(
        {stream: queued.tolist() for stream, queued in work.items()},
        {stream: launch.call_ns[queued].tolist() for stream, queued in work.items()},
    )


def _calls(trace: Trace) -> dict[tuple[int, int], int]:
    """The host event of each (rank, correlation) that a synchronisation record refers to."""
    e = trace.events
    wanted = np.union1d(trace.syncs.correlation, trace.syncs.record_correlation)
    rows = np.flatnonzero((e.correlation >= 0) & (trace.lanes.device[e.lane] == ABSENT))
    rows = rows[np.isin(e.correlation[rows], wanted)]
    rows = rows[::-1]  # the first of several stays
    keys = zip(trace.lanes.rank[e.lane[rows]].tolist(), e.correlation[rows].tolist(), strict=True)
    return dict(zip(keys, rows.tolist(), strict=True))


class _Recorded:
    """Replays records and waits in the order in which the host issued them."""

    def __init__(self, trace: Trace, queues: Queues) -> None:
        columns = (getattr(trace.syncs, name).tolist() for name in _Sync._fields)
        self.syncs = [_Sync(*row) for row in zip(*columns, strict=True)]
        self.calls, self.queues = _calls(trace), queues
        rows = list(self.calls.values())
        self.start_ns = dict(zip(rows, trace.events.start_ns[rows].tolist(), strict=True))
        self.pending: dict[_Stream, dict[_Stream, tuple[int, int]]] = {}  # (place awaited, when the wait was issued)
        self.at_record: dict[tuple[int, int], _Frontier] = {}

    def replayed(self) -> tuple[list[tuple[int, int]], list[tuple[int, int]], set[int]]:
        """Pairs (awaited work, waiting work) and (awaited work, blocking call), and the calls that are explained.

        A call that waits for a stream on which nothing was queued waits for nothing, and that explains it.
        """
        waits: list[tuple[int, int]] = []
        host: list[tuple[int, int]] = []
        explained: set[int] = set()
        for moment_ns, waiting, sync in self._in_host_order():
            if not waiting:
                stream = (sync.rank, sync.device, sync.awaited_stream)
                self.at_record[sync.rank, sync.record_correlation] = self._queued(stream, moment_ns)
            elif sync.kind == SyncKind.STREAM_WAIT:
                waits += self._stream_wait(sync, moment_ns)
            else:
                call = self.calls[sync.rank, sync.correlation]
                awaited = self._host_wait(sync, moment_ns)
                if awaited is not None:
                    explained.add(call)
                    host += [(work, call) for work in self.queues.events(awaited)]
        return waits, host, explained

    def _in_host_order(self) -> list[tuple[int, bool, _Sync]]:
        """(when, whether it is the wait or the record it refers to, the record), by the calls' start."""
        steps = [
            (self.start_ns[call], waiting, sync)
            for sync in self.syncs
            for correlation, waiting in ((sync.record_correlation, False), (sync.correlation, True))
            if (call := self.calls.get((sync.rank, correlation))) is not None
        ]
        return sorted(steps)

    def _queued(self, stream: _Stream, moment_ns: int) -> _Frontier:
        """What is done once everything queued on a stream is done: its last work, and waits issued after that."""
        last = self.queues.last_before(stream, moment_ns)
        covered_ns = self.queues.launch_ns[stream][last[stream]] if last else None
        pending = self.pending.get(stream, {})
        inherited = {
            other: at for other, (at, issued_ns) in pending.items() if covered_ns is None or issued_ns > covered_ns
        }
        return inherited | last

    def _stream_wait(self, sync: _Sync, moment_ns: int) -> list[tuple[int, int]]:
        awaited = self.at_record.get((sync.rank, sync.record_correlation), {})
        stream = (sync.rank, sync.device, sync.stream)
        pending = self.pending.setdefault(stream, {})
        for other, at in awaited.items():
            if other not in pending or at > pending[other][0]:
                pending[other] = at, moment_ns
        waiting = self.queues.first_after(stream, moment_ns)
        return [] if waiting is None else [(work, waiting) for work in self.queues.events(awaited)]

    def _host_wait(self, sync: _Sync, moment_ns: int) -> _Frontier | None:
        """What a blocking call waits for; None where its event was recorded outside the trace."""
        if sync.kind == SyncKind.EVENT:
            return self.at_record.get((sync.rank, sync.record_correlation))
        if sync.kind == SyncKind.STREAM:
            return self._queued((sync.rank, sync.device, sync.stream), moment_ns)
        return self.queues.all_before(sync.rank, sync.device, moment_ns)


def _device_wide(trace: Trace, queues: Queues, blocks: Bool, known: set[int]) -> list[tuple[int, int]]:
    """For device and context synchronisation without a record, the last work launched before it on each stream."""
    e = trace.events
    by_name = np.array([text.endswith(("DeviceSynchronize", "CtxSynchronize")) for text in trace.strings] or [False])
    pairs = []
    for call in set(np.flatnonzero(blocks & by_name[e.name]).tolist()) - known:
        before = queues.all_before(int(trace.lanes.rank[e.lane[call]]), ABSENT, int(e.start_ns[call]))
        pairs += [(work, call) for work in queues.events(before)]
    return pairs


def _inferred(trace: Trace, launch: Launched, blocks: Bool, known: set[int]) -> list[tuple[int, int]]:
    """For blocking calls that no record explains, the launched work that ended last before they returned."""
    e = trace.events
    rank, device = trace.lanes.rank[e.lane], trace.lanes.device[e.lane]
    unknown = [int(row) for row in np.flatnonzero(blocks) if int(row) not in known]
    pairs = []
    for which in {int(rank[row]) for row in unknown}:
        work = np.flatnonzero((device != ABSENT) & (rank == which))
        work = work[np.argsort(e.end_ns[work], kind="stable")]
        ends_ns = e.end_ns[work]
        for call in (row for row in unknown if rank[row] == which):
            low, high = np.searchsorted(ends_ns, (e.start_ns[call], e.end_ns[call]), side="right")
            before = work[low:high][launch.call_ns[work[low:high]] < e.start_ns[call]]
            pairs += [(int(before[-1]), call)] if len(before) else []
    return pairs
