"""What can be late on one rank, and how long it would take if it were as on its peers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from traceflow.graph import NO_EVENT, DependencyGraph, EdgeKind, Float64, SliceKind
from traceflow.shortening import Shorter
from traceflow.trace.model import Bool, Int32, Int64, LaneKind, Rows, Trace

_WORKS = (SliceKind.HOST, SliceKind.COMPUTE, SliceKind.COPY, SliceKind.TRANSFER)
LAUNCH, GAP = -1, -2
"""Causes beside kinds of slices: launches, and gaps on threads."""


@dataclass(frozen=True, slots=True)
class Work:
    """Everything that can be late: slices by their work, launches and gaps on threads by their lag. One row each."""

    place: Int64  # slice, or vertex of the lag
    is_lag: Bool
    duration_ns: Int64
    rank: Rows
    device: Rows
    name: Rows
    stage: Rows
    cause: Rows


def work_of(trace: Trace, graph: DependencyGraph, stage: Int32) -> Work:
    """Slices that work, lags of launches, and gaps on threads, by participant, name and stage.

    Args:
        trace: The evidence.
        graph: The dependencies of the window.
        stage: Code of the stage of each event.
    """
    slices = graph.slices
    rows = np.flatnonzero((slices.event != NO_EVENT) & np.isin(slices.kind, _WORKS) & (graph.work_ns > 0))
    lag = _lags(trace, graph)
    vertices = np.flatnonzero(lag)
    of_slice = np.concatenate((rows, vertices >> 1))
    lane, event = slices.lane[of_slice], slices.event[of_slice]
    return Work(
        np.concatenate((rows, vertices)),
        np.concatenate((np.zeros(len(rows), bool), np.ones(len(vertices), bool))),
        np.concatenate((graph.work_ns[rows], graph.lag_ns[vertices])),
        trace.lanes.rank[lane],
        trace.lanes.device[lane],
        trace.events.name[event],
        stage[event],
        np.concatenate((slices.kind[rows], lag[vertices])),
    )


def _lags(trace: Trace, graph: DependencyGraph) -> Int64:
    """Which vertices came late after a launch, or after a gap on their own thread; 0 for the others."""
    by = np.where(graph.binding >= 0, graph.kind[graph.binding], EdgeKind.SELF)
    on_thread = np.append(trace.lanes.kind == LaneKind.THREAD, False)[np.repeat(graph.slices.lane, 2)]
    lag = np.where(np.isin(by, (EdgeKind.LAUNCH, EdgeKind.GRAPH_LAUNCH)), LAUNCH, 0)
    lag[on_thread & (by == EdgeKind.PROGRAM_ORDER)] = GAP
    return np.where(graph.lag_ns > 0, lag, 0)


def on_path(graph: DependencyGraph, work: Work, vertex: Rows) -> Bool:
    """Which work lies on a path.

    Args:
        graph: The dependencies of the window.
        work: What can be late.
        vertex: The vertices of the path.
    """
    slices = np.zeros(len(graph.slices), bool)
    slices[vertex >> 1] = True
    lags = np.zeros(graph.vertices, bool)
    lags[vertex] = True
    slice_of, lag_of = np.where(work.is_lag, 0, work.place), np.where(work.is_lag, work.place, 0)
    lies: Bool = np.where(work.is_lag, lags[lag_of], slices[slice_of])
    return lies


def as_each(own_ns: Int64, expected_ns: Float64) -> Int64:
    """Durations at most as long as those that are expected, one by one."""
    as_peers: Int64 = np.minimum(own_ns, np.rint(expected_ns)).astype(np.int64)
    return as_peers


def as_in_stages(work: Work, mine: Int64, stages: Rows, expected_ns: Float64, late_ns: float) -> Int64:
    """Durations without what there is more of than expected, in the stages in which there is.

    Args:
        work: What can be late.
        mine: The rows of one cause.
        stages: The stages of these rows, in order, each once.
        expected_ns: How long such work takes in each of them elsewhere.
        late_ns: How much longer all of it takes here.
    """
    own_ns, code = work.duration_ns[mine], np.searchsorted(stages, work.stage[mine])
    by_stage = by_stage_ns(work, mine, stages)
    surplus_ns = np.maximum(by_stage - expected_ns, 0)
    kept = 1 - surplus_ns * min(1, late_ns / max(surplus_ns.sum(), 1)) / by_stage
    scaled: Int64 = np.rint(own_ns * kept[code]).astype(np.int64)
    return scaled


def by_stage_ns(work: Work, rows: Int64, stages: Rows) -> Float64:
    """How long some work took in each stage."""
    place = np.minimum(np.searchsorted(stages, work.stage[rows]), len(stages) - 1)
    here = stages[place] == work.stage[rows]
    sums = np.zeros(len(stages))
    np.add.at(sums, place[here], work.duration_ns[rows[here]])
    return sums


def changed(graph: DependencyGraph, work: Work, mine: Int64, target_ns: Int64) -> tuple[Int64, Int64]:
    """Work of each slice and lag of each vertex where a cause takes as long as its target."""
    work_ns, lag_ns = graph.work_ns.copy(), graph.lag_ns.copy()
    (lag_ns if work.is_lag[mine[0]] else work_ns)[work.place[mine]] = target_ns
    return work_ns, lag_ns


def shorter(work: Work, mine: Int64, target_ns: Int64) -> Shorter:
    """What is shorter where a cause takes as long as its target."""
    return Shorter(work.place[mine], bool(work.is_lag[mine[0]]), work.duration_ns[mine] - target_ns)


def longest(work: Work, mine: Int64, target_ns: Int64) -> int:
    """The row where most time is lost in the stage that loses most; of several such stages, in any of them."""
    lost = work.duration_ns[mine] - target_ns
    code = np.unique(work.stage[mine], return_inverse=True)[1].ravel()
    by_stage = np.bincount(code, lost)
    worst = (by_stage == by_stage.max())[code]
    return int(mine[worst][np.argmax(lost[worst])])
