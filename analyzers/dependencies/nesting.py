"""Edges between a device operation and the operations it runs, where order alone is no dependency."""

from __future__ import annotations

import numpy as np

from traceflow.analyzers.dependencies.slices import Cut
from traceflow.graph import EdgeKind, Edges
from traceflow.trace.model import LaneKind, Trace


def nesting(trace: Trace, cut: Cut) -> Edges:
    """On a worker lane, an operation's slice binds the slice of its child that follows it, and the reverse."""
    left = np.flatnonzero((trace.lanes.kind == LaneKind.WORKER)[cut.lane[:-1]])
    left = left[cut.lane[left] == cut.lane[left + 1]]
    left = left[np.abs(cut.depth[left] - cut.depth[left + 1]) == 1]
    return Edges(2 * left + 1, 2 * left + 2, EdgeKind.DATA)
