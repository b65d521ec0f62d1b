"""Bring what a reader collected into the one order that everything else relies on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import TypeVar

import numpy as np

from traceflow.result import Tally
from traceflow.trace.model import (
    Bool,
    Communications,
    Events,
    Flows,
    HloEvents,
    Int32,
    Int64,
    Lanes,
    Launches,
    Marks,
    Rank,
    Syncs,
    Trace,
)

Table = TypeVar("Table", Events, Communications, Flows, HloEvents, Launches, Marks, Syncs)


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
    tally = Tally(kept=-int(duplicate.sum()), dropped={"exact duplicate": int(duplicate.sum())}) if duplicate.any() else Tally()
    remapped = replace(
        trace,
        events=events,
        communications=_point_at(trace.communications, row, ("event",)),
        flows=_point_at(trace.flows, row, ("source", "target")),
        hlo=_point_at(trace.hlo, row, ("event",)),
        launches=_point_at(trace.launches, row, ("event",)),
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
        lanes=Lanes(
            *(np.concatenate([getattr(t.lanes, c) for t in shifted]) for c in ("rank", "device", "kind", "stream")),
            tuple(name for t in shifted for name in t.lanes.name),
        ),
        **{name: _stacked([getattr(t, name) for t in shifted]) for name in _TABLES},
    )
    return canonical(joined)


def _with_clocks(ranks: list[Rank], *, comparable: bool) -> tuple[Rank, ...]:
    """Ranks of one host share a clock; without a common epoch each rank has its own."""
    numbers: dict[object, int] = {}
    return tuple(
        replace(rank, clock=numbers.setdefault(rank.host if comparable else rank.rank, len(numbers))) for rank in ranks
    )


_TABLES = ("events", "communications", "syncs", "flows", "hlo", "launches", "marks")


def take(table: Table, rows: Int64 | Bool) -> Table:
    """The given rows of a struct of arrays, in the given order."""
    return type(table)(*(getattr(table, f.name)[rows] for f in fields(table)))


def _stacked(tables: list[Table]) -> Table:
    return type(tables[0])(*(np.concatenate([getattr(t, f.name) for t in tables]) for f in fields(tables[0])))


def _with_sorted_lanes(trace: Trace) -> Trace:
    lanes = trace.lanes
    used = np.unique(trace.events.lane)
    order = used[sorted(range(len(used)), key=lambda i: _lane_key(lanes, int(used[i])))] if len(used) else used
    position = np.full(len(lanes), -1, np.int32)
    position[order] = np.arange(len(order))
    return replace(
        trace,
        lanes=Lanes(
            lanes.rank[order], lanes.device[order], lanes.kind[order], lanes.stream[order], tuple(lanes.name[i] for i in order)
        ),
        events=replace(trace.events, lane=position[trace.events.lane]),
    )


def _lane_key(lanes: Lanes, i: int) -> tuple[int, int, int, int, str]:
    return int(lanes.rank[i]), int(lanes.device[i]), int(lanes.kind[i]), int(lanes.stream[i]), lanes.name[i]


def _event_order(trace: Trace) -> tuple[Int64, Bool]:
    """Row order of the events, and which of the ordered rows repeat the row before them."""
    events = trace.events
    rank_of_name = np.argsort(np.argsort(np.array(trace.strings, dtype=object))) if trace.strings else np.empty(0, np.int64)
    names = rank_of_name[events.name] if len(events) else np.empty(0, np.int64)
    order = np.lexsort((events.kind, events.correlation, names, -events.end_ns, events.start_ns, events.lane))
    same = np.ones(max(len(order) - 1, 0), bool)
    for f in fields(events):
        column = getattr(events, f.name)[order]
        same &= column[1:] == column[:-1]
    return order, np.concatenate((np.zeros(min(len(order), 1), bool), same))


def _point_at(table: Table, row: Int64, columns: tuple[str, ...]) -> Table:
    """Follow events to their new rows; rows of a side table that became equal are one."""
    moved = replace(table, **{c: row[getattr(table, c)].astype(np.int32) for c in columns})
    if not len(getattr(moved, columns[0])):
        return moved
    stacked = np.stack([getattr(moved, f.name).astype(np.int64) for f in fields(moved)])
    return take(moved, np.unique(stacked, axis=1, return_index=True)[1])


def _from_earliest(trace: Trace) -> Trace:
    if not len(trace.events) and not len(trace.marks.start_ns):
        return trace
    first = min(column.min() for column in (trace.events.start_ns, trace.marks.start_ns) if len(column))
    return replace(
        trace,
        events=replace(trace.events, start_ns=trace.events.start_ns - first, end_ns=trace.events.end_ns - first),
        marks=replace(trace.marks, start_ns=trace.marks.start_ns - first, end_ns=trace.marks.end_ns - first),
        epoch_ns=None if trace.epoch_ns is None else trace.epoch_ns + int(first),
    )


def _renumbered(trace: Trace, shift: int, code: Int32, event: int, lane: int, group: int) -> Trace:
    def coded(column: Int32) -> Int32:
        return np.where(column < 0, column, code[column]).astype(np.int32)

    e, c = trace.events, trace.communications
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
    )
