"""Edges of synchronisation: events between streams, and host calls that wait for the device."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from traceflow.analyzers.dependencies.device import Launched
from traceflow.analyzers.dependencies.slices import Cut
from traceflow.graph import EdgeKind, Edges
from traceflow.trace.model import ABSENT, Bool, Int64, Kind, LaneKind, SyncKind, Trace

_Stream = tuple[int, int, int]  # rank, device, stream


@dataclass(frozen=True, slots=True)
class Queues:
    """Per stream, its work in launch order; the launches' times find what was queued at a moment."""

    work: dict[_Stream, Int64]
    launch_ns: dict[_Stream, Int64]

    def last_before(self, stream: _Stream, moment_ns: int) -> tuple[int, int] | None:
        """The event launched last on a stream before a moment, and when it was launched."""
        at = int(np.searchsorted(self.launch_ns[stream], moment_ns)) - 1 if stream in self.work else ABSENT
        return (int(self.work[stream][at]), int(self.launch_ns[stream][at])) if at >= 0 else None

    def first_after(self, stream: _Stream, moment_ns: int) -> int:
        """The event launched first on a stream after a moment, ABSENT without one."""
        if stream not in self.work:
            return ABSENT
        at = int(np.searchsorted(self.launch_ns[stream], moment_ns, side="right"))
        return int(self.work[stream][at]) if at < len(self.work[stream]) else ABSENT

    def streams_of(self, rank: int, device: int) -> list[_Stream]:
        """The streams of a device; of every device of the rank where the device is unknown."""
        return [stream for stream in self.work if stream[0] == rank and device in (ABSENT, stream[1])]


def synchronisation(trace: Trace, launch: Launched, cut: Cut, blocking: Bool) -> tuple[list[Edges], int]:
    """Edges from event waits and blocking calls, and how many blocking calls had to be inferred.

    Records say what a call waits for. Without one, a call that launched work itself waits for that work; any
    other is taken to wait for the work, launched before it, that ended last before it returned.
    """
    queues = _queues(trace, launch)
    calls = _calls(trace)
    awaited = _Recorded(trace, queues, calls)
    waits, host = awaited.replayed()
    own = np.flatnonzero((launch.call >= 0) & _blocks(trace, blocking)[launch.call])
    host += [(int(work), int(launch.call[work])) for work in own]
    inferred = _inferred(trace, launch, blocking, known={call for _, call in host})
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
    return Queues(work, {stream: launch.call_ns[rows] for stream, rows in work.items()})


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

    def __init__(self, trace: Trace, queues: Queues, calls: dict[tuple[int, int], int]) -> None:
        self.trace, self.queues, self.calls = trace, queues, calls
        self.pending: dict[_Stream, list[tuple[int, tuple[int, ...]]]] = {}  # (when the wait was issued, awaited work)
        self.at_record: dict[tuple[int, int], tuple[int, ...]] = {}

    def replayed(self) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
        """Pairs (awaited work, waiting work) and (awaited work, blocking call)."""
        waits: list[tuple[int, int]] = []
        host: list[tuple[int, int]] = []
        for moment_ns, record, row in self._in_host_order():
            if record:
                self._note_record(row, moment_ns)
            elif self.trace.syncs.kind[row] == SyncKind.STREAM_WAIT:
                waits += self._stream_wait(row, moment_ns)
            else:
                call = self.calls[self._rank(row), int(self.trace.syncs.correlation[row])]
                host += [(work, call) for work in self._host_wait(row, moment_ns)]
        return waits, host

    def _in_host_order(self) -> list[tuple[int, bool, int]]:
        """(when, is it the record of an event, row of the synchronisation), by the calls' start."""
        syncs, start_ns = self.trace.syncs, self.trace.events.start_ns
        steps = []
        for row in range(len(syncs.kind)):
            rank = self._rank(row)
            for correlation, record in ((syncs.record_correlation[row], True), (syncs.correlation[row], False)):
                call = self.calls.get((rank, int(correlation)))
                if call is not None:
                    steps.append((int(start_ns[call]), record, row))
        return sorted(steps, key=lambda step: (step[0], not step[1], step[2]))

    def _rank(self, row: int) -> int:
        return int(self.trace.syncs.rank[row])

    def _stream(self, row: int, stream: int) -> _Stream:
        return self._rank(row), int(self.trace.syncs.device[row]), stream

    def _note_record(self, row: int, moment_ns: int) -> None:
        stream = self._stream(row, int(self.trace.syncs.awaited_stream[row]))
        self.at_record[self._rank(row), int(self.trace.syncs.record_correlation[row])] = self._queued(stream, moment_ns)

    def _queued(self, stream: _Stream, moment_ns: int) -> tuple[int, ...]:
        """What is done once everything queued on a stream is done: its last work, and waits issued after that."""
        last = self.queues.last_before(stream, moment_ns)
        pending = [wait for wait in self.pending.get(stream, ()) if last is None or wait[0] > last[1]]
        self.pending[stream] = pending  # the host goes forward: what its last work waited for stays covered by that
        inherited = tuple(work for _, awaited in pending for work in awaited)
        return inherited if last is None else (last[0], *inherited)

    def _stream_wait(self, row: int, moment_ns: int) -> list[tuple[int, int]]:
        awaited = self.at_record.get((self._rank(row), int(self.trace.syncs.record_correlation[row])), ())
        stream = self._stream(row, int(self.trace.syncs.stream[row]))
        self.pending.setdefault(stream, []).append((moment_ns, awaited))
        waiting = self.queues.first_after(stream, moment_ns)
        return [(work, waiting) for work in awaited] if waiting >= 0 else []

    def _host_wait(self, row: int, moment_ns: int) -> tuple[int, ...]:
        kind = self.trace.syncs.kind[row]
        if kind == SyncKind.EVENT:
            return self.at_record.get((self._rank(row), int(self.trace.syncs.record_correlation[row])), ())
        if kind == SyncKind.STREAM:
            return self._queued(self._stream(row, int(self.trace.syncs.stream[row])), moment_ns)
        streams = self.queues.streams_of(self._rank(row), int(self.trace.syncs.device[row]))
        return tuple(work for stream in streams for work in self._queued(stream, moment_ns))


def _inferred(trace: Trace, launch: Launched, blocking: Bool, known: set[int]) -> list[tuple[int, int]]:
    """For blocking calls that no record explains, the launched work that ended last before they returned."""
    e = trace.events
    rank, device = trace.lanes.rank[e.lane], trace.lanes.device[e.lane]
    unknown = [int(row) for row in np.flatnonzero(_blocks(trace, blocking)) if int(row) not in known]
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
