"""The dependencies of an operation table in the terms of its trace, so that every analyzer can follow them."""

from __future__ import annotations

import numpy as np

from traceflow.analyzers.dependencies import Dependencies
from traceflow.analyzers.matching import Matches, Unmatched
from traceflow.analyzers.operation_graph import OperationGraph, operation_graph
from traceflow.trace.model import ABSENT, Rows
from traceflow.trace.operation_trace import communicates, in_order
from traceflow.trace.operation_types import RECEIVES, SENDS
from traceflow.trace.operations import OperationTable


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
    return Dependencies(found.graph, matches, np.full(len(table), ABSENT, np.int32), found.notes)


def _matches(found: OperationGraph, rows: Rows) -> Matches:
    """What meets, for the operations that communicate, in order of their events."""
    table, met = found.table, found.meeting >= 0
    last_ns = np.full(int(found.meeting.max(initial=-1)) + 2, np.iinfo(np.int64).min)
    np.maximum.at(last_ns, found.meeting[met], table.start_ns[met])
    passed = np.isin(table.type, [code for code, name in enumerate(table.types) if name in SENDS or name in RECEIVES])
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
    )
