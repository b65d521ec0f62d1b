"""An operation table as a trace, so that every question can be asked of it: a rank with a lane for each sort of work."""

from __future__ import annotations

import numpy as np

from traceflow.trace.model import (
    ABSENT,
    Communications,
    Events,
    Flows,
    Group,
    HloEvents,
    Int8,
    Int32,
    Int64,
    Kind,
    LaneKind,
    Lanes,
    Launches,
    Marks,
    Rank,
    Syncs,
    Trace,
    empty,
)
from traceflow.trace.operation_types import COMMUNICATION, RECEIVES, SENDS, UNSPLIT, WITHIN_PIPELINE, WITHIN_STAGE
from traceflow.trace.operations import OperationTable

_LANES = ("operations", "communication")
_SCOPES = ("stage", "pipeline", "rank", "all")
_COLLECTIVES = ("all-gather", "reduce-scatter", "all-reduce")


def operation_trace(table: OperationTable, source: str) -> Trace:
    """The operations of a table as events, each rank as one device, each step marked on every rank.

    Args:
        table: As the reader gives it.
        source: The name of its file.
    """
    order = in_order(table)
    ranks = np.unique(table.rank)
    return Trace(
        events=_events(table.take(order), lanes_of(table)[order]),
        lanes=_lanes(table),
        strings=(*table.types, *_verbs(table)),
        groups=_groups(table)[0],
        communications=_communications(table, order),
        syncs=empty(Syncs),
        flows=empty(Flows),
        hlo=empty(HloEvents),
        launches=empty(Launches),
        marks=_marks(table),
        ranks=tuple(Rank(int(rank), None, len(ranks), source) for rank in ranks),
        epoch_ns=None,
        format="operations",
        tally=table.tally,
        clock_error_ns=table.resolution_ns,
    )


def lanes_of(table: OperationTable) -> Int32:
    """The lane of every operation, shape (operations,)."""
    return np.unique(_lane_keys(table), return_inverse=True)[1].astype(np.int32)


def in_order(table: OperationTable) -> Int64:
    """The operation behind each event, shape (events,): sorted by lane, start, longest first, type."""
    return np.lexsort((table.type, -table.end_ns, table.start_ns, lanes_of(table)))


def communicates(table: OperationTable) -> Int8:
    """1 for operations that communicate, 0 for the others, shape (operations,)."""
    return table.of(COMMUNICATION).astype(np.int8)


def _lane_keys(table: OperationTable) -> Int64:
    return 2 * table.rank.astype(np.int64) + communicates(table)


def _lanes(table: OperationTable) -> Lanes:
    keys = np.unique(_lane_keys(table))
    return Lanes(
        rank=(keys // 2).astype(np.int32),
        device=np.zeros(len(keys), np.int32),
        kind=np.full(len(keys), LaneKind.LINE, np.int8),
        stream=np.full(len(keys), ABSENT, np.int64),
        name=tuple(_LANES[key % 2] for key in keys.tolist()),
    )


def _events(table: OperationTable, lane: Int32) -> Events:
    kind = np.where(communicates(table), Kind.COMMUNICATION, Kind.COMPUTE).astype(np.int8)
    return Events(table.start_ns, table.end_ns, lane, table.type, kind, np.full(len(table), ABSENT, np.int64))


def _verbs(table: OperationTable) -> tuple[str, ...]:
    """What each type does, in the words of other traces."""
    return tuple(_verb(name) for name in table.types)


def _verb(name: str) -> str:
    if name in SENDS or name in RECEIVES:
        return "send" if name in SENDS else "recv"
    return next((verb for verb in _COLLECTIVES if name.endswith(verb)), "all-reduce")


def _groups(table: OperationTable) -> tuple[tuple[Group, ...], Int32]:
    """Who could meet whom, with the ranks where all of them do, and the row of that for every operation."""
    scope = np.array([_SCOPES.index(_scope(name)) for name in table.types])[table.type]
    place = np.select([scope == 0, scope == 1, scope == 2], [table.stage, table.dp_rank, table.rank], ABSENT)
    keys, row = np.unique(np.column_stack((scope, place)), axis=0, return_inverse=True)
    groups = []
    for what, where in keys.tolist():
        everybody = table.stage == where if _SCOPES[what] == "stage" else np.full(len(table), _SCOPES[what] == "all")
        members = tuple(np.unique(table.rank[everybody]).tolist())
        name = "all ranks" if _SCOPES[what] == "all" else f"{_SCOPES[what]} {where}"
        groups.append(Group(name, members, len(members) or ABSENT))
    return tuple(groups), row.ravel().astype(np.int32)


def _scope(name: str) -> str:
    if name in WITHIN_STAGE:
        return "stage"
    if name in WITHIN_PIPELINE or name in SENDS or name in RECEIVES:
        return "pipeline"
    return "rank" if name in UNSPLIT else "all"


def _communications(table: OperationTable, order: Int64) -> Communications:
    event = np.flatnonzero(communicates(table)[order]).astype(np.int32)
    rows = order[event]
    unknown = np.full(len(event), ABSENT, np.int64)
    return Communications(
        event=event,
        operation=(len(table.types) + table.type[rows]).astype(np.int32),
        group=_groups(table)[1][rows],
        key=np.zeros(len(event), np.int64),
        sequence=unknown,
        member=table.rank[rows].astype(np.int64),
        payload_bytes=unknown,
        source=unknown,
        destination=unknown,
        in_splits=unknown.astype(np.int32),
        out_splits=unknown.astype(np.int32),
    )


def _marks(table: OperationTable) -> Marks:
    """Every step on every rank, from its first start on any rank until after its last end."""
    steps, step = np.unique(table.step, return_inverse=True)
    start_ns, end_ns = np.full(len(steps), np.iinfo(np.int64).max), np.full(len(steps), np.iinfo(np.int64).min)
    np.minimum.at(start_ns, step, table.start_ns)
    np.maximum.at(end_ns, step, table.end_ns)
    pairs = np.unique(np.column_stack((step, table.rank)), axis=0)
    which = pairs[:, 0]
    return Marks(steps[which], pairs[:, 1].astype(np.int32), start_ns[which], end_ns[which] + 1)
