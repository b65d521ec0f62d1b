"""The dependencies of an operation table in the terms of its trace, so that every analyzer can follow them."""

from __future__ import annotations

import numpy as np

from traceflow.analyzers.dependencies import Dependencies
from traceflow.analyzers.matching import Matches, Unmatched
from traceflow.analyzers.operation_graph import OperationGraph, operation_graph
from traceflow.result import Note
from traceflow.trace.model import ABSENT, Rows
from traceflow.trace.operation_trace import communicates, in_order
from traceflow.trace.operation_types import RECEIVES, SENDS
from traceflow.trace.operations import OperationTable

_FEWEST, _AT_ONCE_NS, _SELDOM_SHARE = 8, 1_000, 0.05


def operation_dependencies(table: OperationTable) -> Dependencies:
    """The graph of a table from the semantics of its schedule; see :mod:`traceflow.analyzers.operation_graph`.

    Args:
        table: What the trace was made of.

    Raises:
        TraceflowError: TF107 if data is passed on between stages and the table does not tell the stage.
    """
    found = operation_graph(table)
    order = in_order(table)
    matches = _matches(found, order[communicates(table)[order] > 0])
    notes = (*found.notes, *_without_waits(found))
    return Dependencies(found.graph, matches, np.full(len(table), ABSENT, np.int32), notes)


def _without_waits(found: OperationGraph) -> tuple[Note, ...]:
    """A remark where the two ends of transfers hardly ever arrive apart, as no pipeline does."""
    rows = np.flatnonzero((found.meeting >= 0) & found.table.of((*SENDS, *RECEIVES)))
    rows = rows[np.argsort(found.meeting[rows], kind="stable")]
    apart_ns = np.abs(np.diff(found.table.start_ns[rows].reshape(-1, 2))).ravel()
    if len(apart_ns) < _FEWEST or np.mean(apart_ns > _AT_ONCE_NS) > _SELDOM_SHARE:
        return ()
    text = "the two ends of a transfer begin at one moment: the table does not tell who waited for whom"
    return (Note("TF315", text, ("/result",)),)


def _matches(found: OperationGraph, rows: Rows) -> Matches:
    """What meets, for the operations that communicate, in order of their events."""
    table, met = found.table, found.meeting >= 0
    last_ns = np.full(int(found.meeting.max(initial=-1)) + 2, np.iinfo(np.int64).min)
    np.maximum.at(last_ns, found.meeting[met], table.start_ns[met])
    passed = table.of((*SENDS, *RECEIVES))
    without = np.where(
        passed, Unmatched.NO_PARTNER, np.where(found.alone, Unmatched.ABSENT_PARTICIPANTS, Unmatched.NO_GROUP)
    )
    return Matches(
        instance=found.meeting[rows].astype(np.int32),
        why=np.where(met, Unmatched.MATCHED, without)[rows].astype(np.int8),
        point_to_point=passed[rows],
        last_ns=np.where(met, last_ns[found.meeting], 0)[rows],
        joined=(met & ~passed)[rows],
        pair_source=np.empty(0, np.int32),
        pair_target=np.empty(0, np.int32),
        done=np.zeros(len(rows), bool),
    )
