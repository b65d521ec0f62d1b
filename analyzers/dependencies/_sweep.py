"""Compiled sweep that cuts nested events into slices of self time."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

Int64 = NDArray[np.int64]
Int32 = NDArray[np.int32]
Bool = NDArray[np.bool_]


@njit(cache=True)
def self_time(start: Int64, end: Int64, lane: Int32, nests: Bool) -> tuple[Int64, Int64, Int32, Int32, int]:
    """Slices (start, end, event, depth of nesting) of events sorted by (lane, start, -end), and how many were cut to their parent.

    Every event opens and closes with a slice, empty where a child starts or ends with it; slices between children
    are never empty.
    """
    count = len(start)
    starts, ends, events = np.empty(2 * count, np.int64), np.empty(2 * count, np.int64), np.empty(2 * count, np.int32)
    stack, stop, resumed = np.empty(count, np.int32), np.empty(count, np.int64), np.empty(count, np.int64)
    depths = np.empty(2 * count, np.int32)
    filled, depth, cut = 0, 0, 0
    opened = np.zeros(count, np.bool_)
    for i in range(count + 1):
        closing_lane = i == count or (i > 0 and lane[i] != lane[i - 1])
        while depth > 0 and (closing_lane or stop[depth - 1] <= start[i]):
            top = stack[depth - 1]
            starts[filled], ends[filled], events[filled] = resumed[depth - 1], stop[depth - 1], top
            depths[filled] = depth - 1
            filled += 1
            depth -= 1
            if depth > 0:
                resumed[depth - 1] = stop[depth]
        if i == count:
            break
        if not nests[lane[i]]:
            starts[filled], ends[filled], events[filled] = start[i], end[i], i
            depths[filled] = 0
            filled += 1
            continue
        limit = end[i]
        if depth > 0:
            top = stack[depth - 1]
            if start[i] > resumed[depth - 1] or not opened[top]:
                starts[filled], ends[filled], events[filled] = resumed[depth - 1], start[i], top
                depths[filled] = depth - 1
                filled += 1
            opened[top] = True
            if limit > stop[depth - 1]:
                limit = stop[depth - 1]
                cut += 1
        stack[depth], stop[depth], resumed[depth] = i, limit, start[i]
        depth += 1
    return starts[:filled], ends[:filled], events[:filled], depths[:filled], cut


@njit(cache=True)
def enclosing(start: Int64, end: Int64, lane: Int32, wanted: Bool) -> Int64:
    """For each event, the innermost other event of its lane that is wanted and under way when it starts, -1 without one.

    Events are sorted by (lane, start, -end).
    """
    found = np.full(len(start), -1, np.int64)
    stack, depth = np.empty(len(start), np.int64), 0
    for i in range(len(start)):
        while depth > 0 and (lane[stack[depth - 1]] != lane[i] or end[stack[depth - 1]] <= start[i]):
            depth -= 1
        if depth > 0:
            found[i] = stack[depth - 1]
        if wanted[i]:
            stack[depth] = i
            depth += 1
    return found
