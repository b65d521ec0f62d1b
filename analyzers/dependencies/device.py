"""Edges of device work: launches, stream order, events between streams, and calls that wait for the device."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from traceflow.analyzers.dependencies.slices import Cut
from traceflow.graph import EdgeKind, Edges
from traceflow.trace.model import ABSENT, Bool, Int32, Int64, Kind, LaneKind, Trace

_BEFORE_THE_TRACE = np.iinfo(np.int64).min


@dataclass(frozen=True, slots=True)
class Launched:
    """How device work came to be: per event, the call that launched it (ABSENT if unknown) and when that began."""

    call: Int32
    call_ns: Int64


def launched(trace: Trace) -> Launched:
    """Join device work to its launch call by (rank, correlation)."""
    e, lanes = trace.events, trace.lanes
    work = np.flatnonzero(e.correlation >= 0)
    work = work[lanes.device[e.lane[work]] != ABSENT]
    call, call_ns = np.full(len(e), ABSENT, np.int32), np.full(len(e), _BEFORE_THE_TRACE)
    call[work] = calls_of(trace, lanes.rank[e.lane[work]], e.correlation[work])
    work = work[call[work] >= 0]
    call_ns[work] = e.start_ns[call[work]]
    return Launched(call, call_ns)


def calls_of(trace: Trace, rank: Int32, correlation: Int64) -> Int32:
    """The host event of each (rank, correlation), ABSENT without one; of several, the first."""
    e, lanes = trace.events, trace.lanes
    calls = np.flatnonzero(e.correlation >= 0)
    calls = calls[lanes.device[e.lane[calls]] == ABSENT]
    if not len(calls):
        return np.full(len(rank), ABSENT, np.int32)
    key = _by_rank(
        np.concatenate((lanes.rank[e.lane[calls]], rank)), np.concatenate((e.correlation[calls], correlation))
    )
    own, wanted = key[: len(calls)], key[len(calls) :]
    order = np.lexsort((e.start_ns[calls], own))
    calls, own = calls[order], own[order]
    at = np.minimum(np.searchsorted(own, wanted), len(own) - 1)
    return np.where(own[at] == wanted, calls[at], ABSENT).astype(np.int32)


def _by_rank(rank: Int32, number: Int64) -> Int64:
    """One integer per pair, equal where both are; numbers are sorted only where they are too large to be put together."""
    extent = int(number.max(initial=0)) + 2  # ABSENT is below 0
    if extent * (int(rank.max(initial=0)) + 1) >= 2**63:
        distinct, number = np.unique(number, return_inverse=True)
        extent = len(distinct) + 1
    return rank.astype(np.int64) * extent + number


def waits_for_copy(trace: Trace, launch: Launched) -> Bool:
    """Calls that copy to or from pageable memory: they return only when the copy is done."""
    pageable = np.array(["ageable" in text for text in trace.strings] or [False])
    copies = np.flatnonzero((trace.events.kind == Kind.COPY) & pageable[trace.events.name] & (launch.call >= 0))
    waits = np.zeros(len(trace.events), bool)
    done = copies[trace.events.end_ns[copies] <= trace.events.end_ns[launch.call[copies]]]
    waits[launch.call[done]] = True
    return waits


def in_stream_order(trace: Trace) -> Int64:
    """The events of streams in the order in which they ran, stream by stream.

    Of two that start together, the one that ends first came first: it took no time.
    """
    e = trace.events
    rows = np.flatnonzero((trace.lanes.kind == LaneKind.STREAM)[e.lane])
    together = (e.lane[rows[1:]] == e.lane[rows[:-1]]) & (e.start_ns[rows[1:]] == e.start_ns[rows[:-1]])
    tied = np.append(together, False) | np.append(False, together) if len(rows) else np.zeros(0, bool)
    some = rows[tied]
    rows[tied] = some[np.lexsort((e.correlation[some], e.end_ns[some], e.start_ns[some], e.lane[some]))]
    return rows


def launch_edges(trace: Trace, launch: Launched, cut: Cut) -> list[Edges]:
    """The start of a launch call binds the work; of a graph, the first node on each stream."""
    e, work = trace.events, np.flatnonzero(launch.call >= 0)
    many = (np.bincount(launch.call[work], minlength=1) > 1)[launch.call[work]]
    single, nodes = work[~many], work[many]
    nodes = nodes[np.lexsort((e.end_ns[nodes], e.start_ns[nodes]))]
    first = np.unique(np.column_stack((launch.call[nodes], e.lane[nodes])), axis=0, return_index=True)[1]
    return [
        Edges(cut.start_of(launch.call[chosen]), cut.start_of(chosen), kind)
        for chosen, kind in ((single, EdgeKind.LAUNCH), (nodes[first], EdgeKind.GRAPH_LAUNCH))
    ]


def stream_order(trace: Trace, cut: Cut, resolution_ns: int) -> list[Edges]:
    """The end of work on a stream binds the start of the next; where they overlap, start binds start.

    Overlap within the clock's resolution is none. Work that outlasts what came after it binds the first that
    starts when it has ended. On a device line, whose events nest, consecutive slices are in order; so are the two
    parts of a collective.
    """
    e, rows = trace.events, in_stream_order(trace)
    before, after = rows[:-1], rows[1:]
    longest = rows[_last_to_end(e.lane[rows], e.end_ns[rows])][:-1]
    same = e.lane[before] == e.lane[after]
    before, after, longest = before[same], after[same], longest[same]
    behind = e.end_ns[before] <= e.start_ns[after] + resolution_ns
    outlasted = (longest != before) & (e.end_ns[longest] <= e.start_ns[after] + resolution_ns)
    left = np.flatnonzero((trace.lanes.kind != LaneKind.THREAD)[cut.lane[:-1]])
    left = left[cut.lane[left] == cut.lane[left + 1]]
    on_line = (trace.lanes.kind == LaneKind.LINE)[cut.lane[left]]
    left = left[on_line | (cut.slices.event[left] == cut.slices.event[left + 1])]
    return [
        Edges(cut.end_of(before[behind]), cut.start_of(after[behind]), EdgeKind.STREAM_ORDER),
        Edges(cut.end_of(longest[outlasted]), cut.start_of(after[outlasted]), EdgeKind.STREAM_ORDER),
        Edges(cut.start_of(before[~behind]), cut.start_of(after[~behind]), EdgeKind.STREAM_ORDER),
        Edges(2 * left + 1, 2 * left + 2, EdgeKind.STREAM_ORDER),
    ]


def _last_to_end(lane: Int32, end_ns: Int64) -> Int64:
    """For each row of sorted lanes, the row up to there on its lane that ends last; of several, the last of them."""
    latest = lane.astype(np.int64) * (int(end_ns.max(initial=0)) + 1) + end_ns
    last = latest == np.maximum.accumulate(latest)
    rows: Int64 = np.flatnonzero(last)[np.cumsum(last) - 1]
    return rows
