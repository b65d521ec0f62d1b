"""Edges between a device operation and the operations it runs, where order alone is no dependency."""

from __future__ import annotations

import numpy as np

from traceflow.analyzers.dependencies.slices import Cut
from traceflow.graph import EdgeKind, Edges
from traceflow.trace.model import LaneKind, Trace


def nesting(trace: Trace, cut: Cut) -> Edges:
    """On a worker lane, an operation's slice binds the slice of its child that follows it, and the reverse."""
    slices, inner = cut.slices, slice(len(cut.depth))
    worker = np.append(trace.lanes.kind == LaneKind.WORKER, False)[slices.lane[inner]]
    left = np.flatnonzero(
        worker[:-1] & (slices.lane[inner][1:] == slices.lane[inner][:-1]) & (np.abs(np.diff(cut.depth)) == 1)
    )
    return Edges(2 * left + 1, 2 * left + 2, EdgeKind.DATA)
