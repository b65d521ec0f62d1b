"""Edges of synchronisation: events between streams, and host calls that wait for the device."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from traceflow.analyzers.dependencies.device import Launched, calls_of, in_stream_order
from traceflow.analyzers.dependencies.slices import Cut
from traceflow.analyzers.matching import numbers_of
from traceflow.graph import EdgeKind, Edges, SliceKind
from traceflow.trace.host_waits import waits_on_host
from traceflow.trace.model import ABSENT, Bool, Int8, Int32, Int64, Kind, LaneKind, Rows, SyncKind, Trace

_Pairs = tuple[Int64, Int64]
"""Work that is awaited, and the work or the call that waits for it, as rows of the trace's events."""


def synchronisation(trace: Trace, launch: Launched, cut: Cut, blocking: Bool) -> tuple[list[Edges], int]:
    """Edges from event waits and blocking calls, and how many blocking calls had to be inferred.

    Records say what a call waits for. Without one, a call that launched work itself waits for that work, and one
    that synchronises the device for all that was launched before; any other is taken to wait for the work,
    launched before it, that ended last before it returned.
    """
    blocks = _blocks(trace, blocking)
    waits = _waits(trace, _for_everything(trace, blocks))
    work, awaited, after = _followed(trace, launch, waits)
    recorded = np.arange(len(waits.call)) < len(trace.syncs.kind)
    on_host = waits.waits & (waits.kind != SyncKind.STREAM_WAIT)
    explained = np.zeros(len(trace.events), bool)
    explained[waits.call[on_host & recorded]] = True  # be it by nothing that was queued
    own = np.flatnonzero(launch.call >= 0)
    own = own[np.isin(launch.call[own], blocks)]
    explained[launch.call[own]] = True
    on_host[~recorded] = ~explained[waits.call[~recorded]]
    of_stream, of_call = _chosen(awaited, after >= 0), _chosen(awaited, on_host)
    told = work[of_call[0]], waits.call[of_call[1]]
    explained[told[1]] = True
    inferred = _inferred(trace, launch, blocks[~explained[blocks]])
    done: Int64 = np.concatenate((own, told[0], inferred[0]))
    call: Int64 = np.concatenate((launch.call[own], told[1], inferred[1]))
    return [
        _edges(cut, (work[of_stream[0]], work[after[of_stream[1]]]), EdgeKind.EVENT_WAIT, to_start=True),
        _edges(cut, (done, call), EdgeKind.HOST_SYNCHRONISATION, to_start=False),
    ], len(inferred[0])


def _blocks(trace: Trace, blocking: Bool) -> Int64:
    """Host events that wait for the device."""
    e = trace.events
    rows = np.flatnonzero((e.kind == Kind.WAIT) | blocking)
    elsewhere = np.array([waits_on_host(text) for text in trace.strings] or [False])
    on_host = trace.lanes.device[e.lane[rows]] == ABSENT
    waits: Int64 = rows[on_host & ~elsewhere[e.name[rows]]]
    return waits


def _for_everything(trace: Trace, rows: Int64) -> Int64:
    """Those of some calls that by their names wait for all devices."""
    named = np.array([text.endswith(("DeviceSynchronize", "CtxSynchronize")) for text in trace.strings] or [False])
    chosen: Int64 = rows[named[trace.events.name[rows]]]
    return chosen


class _Waits(NamedTuple):
    """Records of synchronisation, and behind them the calls that by their names wait for all devices of their rank."""

    kind: Int8
    rank: Int32
    device: Int32
    stream: Int64
    awaited_stream: Int64
    call: Int64  # the host event that waits, or lets a stream wait
    record: Int64  # the host event that records what is awaited
    waits: Bool  # whether it is known from when on, and not before what it waits for was recorded


def _waits(trace: Trace, whole: Int64) -> _Waits:
    syncs, none = trace.syncs, np.full(len(whole), ABSENT)
    numbers = np.concatenate((syncs.correlation, syncs.record_correlation))
    call, record = np.split(calls_of(trace, np.tile(syncs.rank, 2), numbers).astype(np.int64), 2)
    call, record = np.append(call, whole), np.append(record, none)
    kind = np.append(syncs.kind, np.full(len(whole), SyncKind.CONTEXT, np.int8))
    start_ns = trace.events.start_ns
    ready = (
        (kind == SyncKind.STREAM) | (kind == SyncKind.CONTEXT) | (record >= 0) & (start_ns[record] <= start_ns[call])
    )
    return _Waits(
        kind,
        np.append(syncs.rank, trace.lanes.rank[trace.events.lane[whole]]),
        np.append(syncs.device, none.astype(np.int32)),
        np.append(syncs.stream, none),
        np.append(syncs.awaited_stream, none),
        call,
        record,
        (call >= 0) & ready,
    )


def _followed(trace: Trace, launch: Launched, waits: _Waits) -> tuple[Int64, Int32, Int64]:
    """Work stream by stream as it was launched, what each row awaits, and what waits for that on a stream.

    Per row, awaited is the place of the last work on each stream of the row's rank; what waits is what its stream is
    given next; -1 stands for none. Work whose launch is not in the trace was launched before it.
    """
    from traceflow.analyzers.dependencies._waiting import follow

    lanes, e = trace.lanes, trace.events
    here = np.flatnonzero(lanes.kind == LaneKind.STREAM)
    streams = waits.stream, waits.awaited_stream, lanes.stream[here]
    ranks = np.concatenate((waits.rank, waits.rank, lanes.rank[here])).astype(np.int64)
    devices = np.concatenate((waits.device, waits.device, lanes.device[here])).astype(np.int64)
    number = numbers_of(np.column_stack((ranks, devices, np.concatenate(streams))))
    count = int(number.max(initial=-1)) + 1
    of_rank, of_device, of_lane = np.empty(count, np.int64), np.empty(count, np.int64), np.empty(len(lanes), np.int64)
    of_rank[number], of_device[number], of_lane[here] = ranks, devices, number[2 * len(waits.rank) :]
    stream, recorded = number[: len(waits.rank)], number[len(waits.rank) : 2 * len(waits.rank)]
    low, high = (np.searchsorted(of_rank, waits.rank, side) for side in ("left", "right"))
    width = int((high - low).max(initial=0))

    work = in_stream_order(trace)
    work = work[np.lexsort((launch.call_ns[work], of_lane[e.lane[work]]))]
    bounds = np.searchsorted(of_lane[e.lane[work]], np.arange(count + 1))
    awaited, after = np.full((len(waits.rank), width), -1, np.int32), np.full(len(waits.rank), -1)
    follow(
        *_steps(trace, waits),
        waits.kind,
        waits.device,
        stream,
        recorded,
        low,
        high,
        of_device,
        bounds,
        launch.call_ns[work],
        bounds[:-1].copy(),
        np.full((count, width), -1, np.int32),
        np.zeros((count, width), np.int64),
        awaited,
        after,
    )
    return work, awaited, after


def _steps(trace: Trace, waits: _Waits) -> tuple[Int64, Int64, Bool]:
    """What the host did in order of time: of which row, when, and whether it waits or what it awaits is recorded.

    At one moment, events are recorded first, and then streams begin to wait.
    """
    recorded, waiting = np.flatnonzero(waits.waits & (waits.record >= 0)), np.flatnonzero(waits.waits)
    waiting = waiting[np.argsort(waits.kind[waiting] != SyncKind.STREAM_WAIT, kind="stable")]
    moment_ns = trace.events.start_ns[np.concatenate((waits.record[recorded], waits.call[waiting]))]
    order = np.argsort(moment_ns, kind="stable")
    return np.concatenate((recorded, waiting))[order], moment_ns[order], order >= len(recorded)


def _chosen(awaited: Int32, rows: Bool) -> _Pairs:
    """The places that some rows await, and the row of each."""
    row, stream = np.nonzero((awaited >= 0) & rows[:, None])
    return awaited[row, stream].astype(np.int64), row


def _edges(cut: Cut, pairs: _Pairs, kind: EdgeKind, *, to_start: bool) -> Edges:
    events = len(cut.first) + 1
    work, waiter = np.divmod(np.unique(pairs[0] * events + pairs[1]), events)
    ends = cut.end_of(work)
    return Edges(ends, cut.start_of(waiter) if to_start else _returns(cut, ends >> 1, waiter), kind)


def _returns(cut: Cut, done: Rows, call: Rows) -> Rows:
    """The vertex at which each call could go on: the end of its slice, or a nested wait's, in which the work ended.

    A call that waits by calls of its own is in pieces; what comes after the work is over waits for it no more.
    """
    from traceflow.analyzers.dependencies._waiting import ended_by

    piece = np.empty(len(call), np.int64)
    ended_by(cut.first[call], cut.last[call], cut.slices.end_ns[done], cut.slices.time_ns, piece)
    return np.where(cut.slices.kind[piece] == SliceKind.BLOCKED, 2 * piece + 1, cut.end_of(call))


def _inferred(trace: Trace, launch: Launched, calls: Int64) -> _Pairs:
    """For calls that nothing explains, the launched work that ended last before they returned."""
    from traceflow.analyzers.dependencies._waiting import launched_before

    e, lanes = trace.events, trace.lanes
    rank = lanes.rank[e.lane[calls]]
    pairs = [(np.empty(0, np.int64), np.empty(0, np.int64))]
    for which in np.unique(rank):
        own = calls[rank == which]
        work = np.flatnonzero(((lanes.device != ABSENT) & (lanes.rank == which))[e.lane])
        work = work[np.argsort(e.end_ns[work], kind="stable")]
        low, high = (np.searchsorted(e.end_ns[work], of[own], "right") for of in (e.start_ns, e.end_ns))
        at = np.empty(len(own), np.int64)
        launched_before(low, high, e.start_ns[own], launch.call_ns[work], at)
        pairs.append((work[at[at >= 0]], own[at >= 0]))
    awaited, waiting = (np.concatenate(column) for column in zip(*pairs, strict=True))
    return awaited, waiting
