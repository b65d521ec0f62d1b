"""Bring what a reader collected into the one order that everything else relies on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import TypeVar

import numpy as np

from traceflow.result import Tally
from traceflow.trace.model import (
    Bool,
    Communications,
    Copies,
    Events,
    Flows,
    HloEvents,
    Int32,
    Int64,
    Lanes,
    Launches,
    Marks,
    MemoryEvents,
    Operands,
    Rank,
    Rows,
    Syncs,
    Trace,
)

Table = TypeVar(
    "Table", Events, Communications, Flows, HloEvents, Launches, Marks, MemoryEvents, Syncs, Operands, Copies
)


def canonical(trace: Trace) -> Trace:
    """Sort lanes and events, drop exact duplicates, count time from the earliest event or step mark.

    Args:
        trace: Rows in any order, times in ns from any origin whose absolute time is `epoch_ns`.

    Returns:
        The same evidence in the order that `Events` and `Lanes` document, so that the order of a file
        changes no result. Duplicates are counted under `exact duplicate`, unused lanes vanish.
    """
    trace = _with_sorted_lanes(trace)
    order, duplicate = _event_order(trace)
    row = np.empty(len(order), np.int32)
    row[order] = np.cumsum(~duplicate) - 1  # a duplicate points at the row that is kept
    keep = order[~duplicate]
    events = take(trace.events, keep)
    tally = (
        Tally(kept=-int(duplicate.sum()), dropped={"exact duplicate": int(duplicate.sum())})
        if duplicate.any()
        else Tally()
    )
    remapped = replace(
        trace,
        events=events,
        communications=_point_at(trace.communications, row, ("event",)),
        flows=_point_at(trace.flows, row, ("source", "target")),
        hlo=_point_at(trace.hlo, row, ("event",)),
        launches=_point_at(trace.launches, row, ("event",)),
        marks=_point_at(trace.marks, row, ()),
        memory=_in_order(trace.memory),
        operands=_point_at(trace.operands, row, ("event",)),
        copies=_point_at(trace.copies, row, ("event",)),
        tally=trace.tally + tally,
    )
    return _from_earliest(remapped)


def merge(traces: Sequence[Trace]) -> Trace:
    """Put the traces of several ranks on one time axis.

    Args:
        traces: Canonical traces. Where all know their absolute epoch, times are counted from the earliest
            of them; otherwise each keeps its own origin, and clock alignment has to relate them.

    Returns:
        One canonical trace with every rank's events, lanes and side tables.
    """
    if len(traces) == 1:
        return traces[0]
    epochs = [trace.epoch_ns for trace in traces]
    known = [epoch for epoch in epochs if epoch is not None]
    base = min(known) if len(known) == len(epochs) else None
    strings: dict[str, int] = {}
    shifted, event_offset, lane_offset, group_offset = [], 0, 0, 0
    for trace in traces:
        shift = 0 if base is None or trace.epoch_ns is None else trace.epoch_ns - base
        code = np.array([strings.setdefault(text, len(strings)) for text in trace.strings] or [0], np.int32)
        shifted.append(_renumbered(trace, shift, code, event_offset, lane_offset, group_offset))
        group_offset += len(trace.groups)
        event_offset += len(trace.events)
        lane_offset += len(trace.lanes)
    first = traces[0]
    joined = replace(
        first,
        strings=tuple(strings),
        groups=tuple(group for trace in traces for group in trace.groups),
        ranks=_with_clocks([rank for trace in traces for rank in trace.ranks], comparable=base is not None),
        epoch_ns=base,
        tally=sum((trace.tally for trace in traces), Tally()),
        metadata={key: value for trace in reversed(traces) for key, value in trace.metadata.items()},
        lanes=_all_lanes([trace.lanes for trace in shifted]),
        **{name: _stacked([getattr(t, name) for t in shifted]) for name in _TABLES},
    )
    return canonical(joined)


def _with_clocks(ranks: list[Rank], *, comparable: bool) -> tuple[Rank, ...]:
    """Ranks of one host share a clock; without a common epoch each rank has its own."""
    numbers: dict[object, int] = {}
    return tuple(
        replace(rank, clock=numbers.setdefault(rank.host if comparable else rank.rank, len(numbers))) for rank in ranks
    )


_TABLES = ("events", "communications", "syncs", "flows", "hlo", "launches", "marks", "memory", "operands", "copies")


def take(table: Table, rows: Int64 | Bool) -> Table:
    """The given rows of a struct of arrays, in the given order."""
    return type(table)(*(getattr(table, f.name)[rows] for f in fields(table)))


def without(trace: Trace, gone: Bool, reasons: Mapping[str, int]) -> Trace:
    """A canonical trace without some of its events, and without what the side tables say of them.

    Args:
        trace: A canonical trace.
        gone: Per event, whether it is left out.
        reasons: How many are, by reason.
    """
    left = np.flatnonzero(~gone)
    row = np.full(len(gone), -1, np.int32)
    row[left] = np.arange(len(left))
    pointed = {name: _moved(getattr(trace, name), row, "event") for name in _POINTING}
    flows = _moved(_moved(trace.flows, row, "source"), row, "target")
    counted = Tally(kept=len(left) - len(row), dropped={reason: count for reason, count in reasons.items() if count})
    return canonical(
        replace(trace, events=take(trace.events, left), flows=flows, tally=trace.tally + counted, **pointed)
    )


_POINTING = ("communications", "hlo", "launches", "operands", "copies")


def _moved(table: Table, row: Int32, column: str) -> Table:
    """Follow a column of events to their new rows; what points at none is left out."""
    moved = replace(table, **{column: row[getattr(table, column)].astype(np.int32)})
    return take(moved, getattr(moved, column) >= 0)


def _stacked(tables: list[Table]) -> Table:
    return type(tables[0])(*(np.concatenate([getattr(t, f.name) for t in tables]) for f in fields(tables[0])))


def _all_lanes(tables: list[Lanes]) -> Lanes:
    return Lanes(
        rank=np.concatenate([lanes.rank for lanes in tables]),
        device=np.concatenate([lanes.device for lanes in tables]),
        kind=np.concatenate([lanes.kind for lanes in tables]),
        stream=np.concatenate([lanes.stream for lanes in tables]),
        name=tuple(name for lanes in tables for name in lanes.name),
    )


def _with_sorted_lanes(trace: Trace) -> Trace:
    lanes = trace.lanes
    used = np.flatnonzero(np.bincount(trace.events.lane, minlength=len(lanes)))
    order = used[sorted(range(len(used)), key=lambda i: _lane_key(lanes, int(used[i])))] if len(used) else used
    position = np.full(len(lanes), -1, np.int32)
    position[order] = np.arange(len(order))
    return replace(
        trace,
        lanes=Lanes(
            lanes.rank[order],
            lanes.device[order],
            lanes.kind[order],
            lanes.stream[order],
            tuple(lanes.name[i] for i in order),
        ),
        events=replace(trace.events, lane=position[trace.events.lane]),
    )


def _lane_key(lanes: Lanes, i: int) -> tuple[int, int, int, int, str]:
    return int(lanes.rank[i]), int(lanes.device[i]), int(lanes.kind[i]), int(lanes.stream[i]), lanes.name[i]


def _event_order(trace: Trace) -> tuple[Int64, Bool]:
    """Row order of the events, and which of the ordered rows repeat the row before them.

    Few events share lane and start with another, so all but these are in order after one sort by one key.
    """
    events = trace.events
    key = _lane_and_start(events)
    order: Int64 = np.argsort(key)
    tied = _is_tied(key[order])
    rows = order[tied]
    names = _alphabetical(trace.strings)[events.name[rows]]
    columns = events.kind[rows], events.correlation[rows], names, -events.end_ns[rows], key[rows]
    order[tied] = rows = rows[np.lexsort(columns)]
    duplicate = np.zeros(len(order), bool)
    duplicate[tied] = _repeats([getattr(events, f.name)[rows] for f in fields(events)])
    return order, duplicate


def _lane_and_start(events: Events) -> Int64:
    """One integer per event that sorts as (lane, start) does."""
    low, high = int(events.start_ns.min(initial=0)), int(events.start_ns.max(initial=0))
    extent, lanes = high - low + 1, int(events.lane.max(initial=0)) + 1
    if extent * lanes < 2**63:
        return events.lane.astype(np.int64) * extent + (events.start_ns - low)
    distinct, rank = np.unique(events.start_ns, return_inverse=True)
    return events.lane.astype(np.int64) * len(distinct) + rank


def _is_tied(ordered: Int64) -> Bool:
    """Whether each value equals a neighbour."""
    tied = np.zeros(len(ordered), bool)
    equal = ordered[1:] == ordered[:-1]
    tied[1:] |= equal
    tied[:-1] |= equal
    return tied


def _repeats(columns: Sequence[Rows]) -> Bool:
    """Whether each row equals the one before it, in every column."""
    same = np.ones(len(columns[0]), bool)
    same[:1] = False
    for column in columns:
        same[1:] &= column[1:] == column[:-1]
    return same


def _alphabetical(strings: Sequence[str]) -> Int64:
    """Per string, its place in their order."""
    place = np.empty(len(strings), np.int64)
    place[sorted(range(len(strings)), key=strings.__getitem__)] = np.arange(len(strings))
    return place


def _point_at(table: Table, row: Rows, columns: tuple[str, ...]) -> Table:
    """Follow events to their new rows; rows of a side table that became equal are one."""
    moved = replace(table, **{c: row[getattr(table, c)].astype(np.int32) for c in columns})
    cells = [getattr(moved, f.name) for f in fields(moved)]
    order = np.lexsort(cells[::-1])
    return take(moved, order[~_repeats([cell[order] for cell in cells])])


def _in_order(memory: MemoryEvents) -> MemoryEvents:
    """Rows of one device together, by time; those of one moment stay in their order, which tells what came first."""
    return take(memory, np.lexsort((memory.time_ns, memory.source, memory.device, memory.rank)))


def _from_earliest(trace: Trace) -> Trace:
    if not len(trace.events) and not len(trace.marks.start_ns):
        first = trace.memory.time_ns.min() if len(trace.memory) else 0
    else:
        first = min(column.min() for column in (trace.events.start_ns, trace.marks.start_ns) if len(column))
    if first == 0:
        return trace
    return replace(
        trace,
        events=replace(trace.events, start_ns=trace.events.start_ns - first, end_ns=trace.events.end_ns - first),
        marks=replace(trace.marks, start_ns=trace.marks.start_ns - first, end_ns=trace.marks.end_ns - first),
        memory=replace(trace.memory, time_ns=trace.memory.time_ns - first),
        epoch_ns=None if trace.epoch_ns is None else trace.epoch_ns + int(first),
    )


def _renumbered(trace: Trace, shift: int, code: Int32, event: int, lane: int, group: int) -> Trace:
    def coded(column: Int32) -> Int32:
        return np.where(column < 0, column, code[column]).astype(np.int32)

    e, c, o = trace.events, trace.communications, trace.operands
    return replace(
        trace,
        events=replace(
            e, start_ns=e.start_ns + shift, end_ns=e.end_ns + shift, lane=e.lane + np.int32(lane), name=coded(e.name)
        ),
        communications=replace(
            c,
            event=c.event + np.int32(event),
            operation=coded(c.operation),
            group=np.where(c.group < 0, c.group, c.group + np.int32(group)),
            in_splits=coded(c.in_splits),
            out_splits=coded(c.out_splits),
        ),
        flows=Flows(trace.flows.source + np.int32(event), trace.flows.target + np.int32(event)),
        hlo=replace(trace.hlo, event=trace.hlo.event + np.int32(event)),
        launches=replace(trace.launches, event=trace.launches.event + np.int32(event)),
        marks=replace(trace.marks, start_ns=trace.marks.start_ns + shift, end_ns=trace.marks.end_ns + shift),
        memory=replace(trace.memory, time_ns=trace.memory.time_ns + shift),
        copies=replace(trace.copies, event=trace.copies.event + np.int32(event)),
        operands=Operands(o.event + np.int32(event), coded(o.shapes), coded(o.types), coded(o.values)),
    )
