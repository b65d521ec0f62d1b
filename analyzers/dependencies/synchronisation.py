"""Edges of synchronisation: events between streams, and host calls that wait for the device."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from traceflow.analyzers.dependencies.device import Launched
from traceflow.analyzers.dependencies.slices import Cut
from traceflow.graph import EdgeKind, Edges
from traceflow.trace.model import ABSENT, Bool, Int64, Kind, LaneKind, SyncKind, Trace

_Stream = tuple[int, int, int]  # rank, device, stream


@dataclass(frozen=True, slots=True)
class Queues:
    """Per stream, its work in launch order; the launches' times find what was queued at a moment."""

    work: dict[_Stream, list[int]]
    launch_ns: dict[_Stream, list[int]]

    def last_before(self, stream: _Stream, moment_ns: int) -> tuple[int, int] | None:
        """The event launched last on a stream before a moment, and when it was launched."""
        at = bisect_left(self.launch_ns.get(stream, ()), moment_ns) - 1
        return (self.work[stream][at], self.launch_ns[stream][at]) if at >= 0 else None

    def first_after(self, stream: _Stream, moment_ns: int) -> int | None:
        """The event launched first on a stream after a moment."""
        launches = self.launch_ns.get(stream, ())
        at = bisect_right(launches, moment_ns)
        return self.work[stream][at] if at < len(launches) else None

    def streams_of(self, rank: int, device: int = ABSENT) -> list[_Stream]:
        """The streams of a device; of every device of the rank where the device is unknown."""
        return [stream for stream in self.work if stream[0] == rank and device in (ABSENT, stream[1])]


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
    waits, host = _Recorded(trace, queues).replayed()
    own = np.flatnonzero((launch.call >= 0) & blocks[launch.call])
    host += zip(own.tolist(), launch.call[own].tolist(), strict=True)
    host += _device_wide(trace, queues, blocks, known={call for _, call in host})
    inferred = _inferred(trace, launch, blocks, known={call for _, call in host})
    return [
        _edges(cut, waits, EdgeKind.EVENT_WAIT, to_start=True),
        _edges(cut, host + inferred, EdgeKind.HOST_SYNCHRONISATION, to_start=False),
    ], len(inferred)


def _blocks(trace: Trace, blocking: Bool) -> Bool:
    """Host events that wait."""
    on_host: Bool = trace.lanes.device[trace.events.lane] == ABSENT
    waits: Bool = on_host & ((trace.events.kind == Kind.WAIT) | blocking)
    return waits


def _edges(cut: Cut, pairs: list[tuple[int, int]], kind: EdgeKind, *, to_start: bool) -> Edges:
    work, waiter = np.array(sorted(set(pairs)), np.int64).reshape(-1, 2).T
    return Edges(cut.end_of(work), cut.start_of(waiter) if to_start else cut.end_of(waiter), kind)


def _queues(trace: Trace, launch: Launched) -> Queues:
    """Work whose launch is not in the trace was launched before it."""
    lanes, e = trace.lanes, trace.events
    work: dict[_Stream, Int64] = {}
    bounds = np.searchsorted(e.lane, np.arange(len(lanes) + 1))
    for lane in np.flatnonzero(lanes.kind == LaneKind.STREAM):
        rows = np.arange(bounds[lane], bounds[lane + 1])
        order = rows[np.lexsort((e.start_ns[rows], launch.call_ns[rows]))]
        work[int(lanes.rank[lane]), int(lanes.device[lane]), int(lanes.stream[lane])] = order
    return Queues(
        {stream: rows.tolist() for stream, rows in work.items()},
        {stream: launch.call_ns[rows].tolist() for stream, rows in work.items()},
    )


def _calls(trace: Trace) -> dict[tuple[int, int], int]:
    """The host event of each (rank, correlation) that a synchronisation record refers to."""
    e = trace.events
    wanted = np.union1d(trace.syncs.correlation, trace.syncs.record_correlation)
    rows = np.flatnonzero(
        np.isin(e.correlation, wanted) & (e.correlation >= 0) & (trace.lanes.device[e.lane] == ABSENT)
    )
    rank = trace.lanes.rank[e.lane[rows]]
    return {
        (int(r), int(c)): int(row) for r, c, row in zip(rank[::-1], e.correlation[rows][::-1], rows[::-1], strict=True)
    }


class _Recorded:
    """Replays records and waits in the order in which the host issued them."""

    def __init__(self, trace: Trace, queues: Queues) -> None:
        columns = (getattr(trace.syncs, name).tolist() for name in _Sync._fields)
        self.syncs = [_Sync(*row) for row in zip(*columns, strict=True)]
        self.start_ns = trace.events.start_ns
        self.calls, self.queues = _calls(trace), queues
        self.pending: dict[_Stream, list[tuple[int, tuple[int, ...]]]] = {}  # (when the wait was issued, awaited work)
        self.at_record: dict[tuple[int, int], tuple[int, ...]] = {}

    def replayed(self) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
        """Pairs (awaited work, waiting work) and (awaited work, blocking call)."""
        waits: list[tuple[int, int]] = []
        host: list[tuple[int, int]] = []
        for moment_ns, waiting, sync in self._in_host_order():
            if not waiting:
                stream = (sync.rank, sync.device, sync.awaited_stream)
                self.at_record[sync.rank, sync.record_correlation] = self._queued(stream, moment_ns)
            elif sync.kind == SyncKind.STREAM_WAIT:
                waits += self._stream_wait(sync, moment_ns)
            else:
                call = self.calls[sync.rank, sync.correlation]
                host += [(work, call) for work in self._host_wait(sync, moment_ns)]
        return waits, host

    def _in_host_order(self) -> list[tuple[int, bool, _Sync]]:
        """(when, whether it is the wait or the record it refers to, the record), by the calls' start."""
        steps = [
            (int(self.start_ns[call]), waiting, sync)
            for sync in self.syncs
            for correlation, waiting in ((sync.record_correlation, False), (sync.correlation, True))
            if (call := self.calls.get((sync.rank, correlation))) is not None
        ]
        return sorted(steps)

    def _queued(self, stream: _Stream, moment_ns: int) -> tuple[int, ...]:
        """What is done once everything queued on a stream is done: its last work, and waits issued after that."""
        last = self.queues.last_before(stream, moment_ns)
        pending = [wait for wait in self.pending.get(stream, ()) if last is None or wait[0] > last[1]]
        self.pending[stream] = pending  # the host goes forward: what its last work waited for stays covered by that
        inherited = tuple(work for _, awaited in pending for work in awaited)
        return inherited if last is None else (last[0], *inherited)

    def _stream_wait(self, sync: _Sync, moment_ns: int) -> list[tuple[int, int]]:
        awaited = self.at_record.get((sync.rank, sync.record_correlation), ())
        stream = (sync.rank, sync.device, sync.stream)
        self.pending.setdefault(stream, []).append((moment_ns, awaited))
        waiting = self.queues.first_after(stream, moment_ns)
        return [] if waiting is None else [(work, waiting) for work in awaited]

    def _host_wait(self, sync: _Sync, moment_ns: int) -> tuple[int, ...]:
        if sync.kind == SyncKind.EVENT:
            return self.at_record.get((sync.rank, sync.record_correlation), ())
        if sync.kind == SyncKind.STREAM:
            return self._queued((sync.rank, sync.device, sync.stream), moment_ns)
        streams = self.queues.streams_of(sync.rank, sync.device)
        return tuple(work for stream in streams for work in self._queued(stream, moment_ns))


def _device_wide(trace: Trace, queues: Queues, blocks: Bool, known: set[int]) -> list[tuple[int, int]]:
    """For device and context synchronisation without a record, the last work launched before it on each stream."""
    e = trace.events
    by_name = np.array([text.endswith(("DeviceSynchronize", "CtxSynchronize")) for text in trace.strings] or [False])
    pairs = []
    for call in set(np.flatnonzero(blocks & by_name[e.name]).tolist()) - known:
        for stream in queues.streams_of(int(trace.lanes.rank[e.lane[call]])):
            last = queues.last_before(stream, int(e.start_ns[call]))
            pairs += [] if last is None else [(last[0], call)]
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
