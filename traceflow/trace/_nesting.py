"""Which span holds a moment."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from traceflow.compiled import Compiled

Int64 = NDArray[np.int64]


def innermost(lane: Int64, start_ns: Int64, end_ns: Int64, at_lane: Int64, at_ns: Int64) -> Int64:
    """For each moment on a lane: the latest-started span there that holds it, -1 where none does.

    Spans are sorted by (lane, start, -end), moments by (lane, time); both ends of a span belong to it.
    """
    found, stack = np.full(len(at_ns), -1, np.int64), np.empty(len(start_ns), np.int64)
    _find(lane, start_ns, end_ns, at_lane, at_ns, stack, found)
    return found


@Compiled
def _find(
    lane: Int64, start_ns: Int64, end_ns: Int64, at_lane: Int64, at_ns: Int64, stack: Int64, found: Int64
) -> None:
    depth, span = 0, 0
    for i in range(len(at_ns)):
        here, now = at_lane[i], at_ns[i]
        while span < len(start_ns) and (lane[span] < here or (lane[span] == here and start_ns[span] <= now)):
            stack[depth] = span
            depth, span = depth + 1, span + 1
        while depth > 0 and (lane[stack[depth - 1]] != here or end_ns[stack[depth - 1]] < now):
            depth -= 1
        if depth > 0:
            found[i] = stack[depth - 1]
