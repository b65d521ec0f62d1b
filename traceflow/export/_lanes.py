"""A compiled kernel: rows that overlap are put on levels, so that what shares a track nests. Imported inside functions."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

Int64 = NDArray[np.int64]
Int32 = NDArray[np.int32]


@njit(cache=True)
def levels_of(lane: Int64, start_ns: Int64, end_ns: Int64, nest: bool) -> tuple[Int32, Int64]:  # noqa: FBT001
    """On which level of its lane each row fits, and the order in which rows begin and end.

    A row goes to the first level on which no row is open any more or, where rows may nest, the innermost open row
    holds it whole. Rows are sorted by (lane, start, -end). In the order that is returned, 2 i stands for the beginning
    of row i and 2 i + 1 for its end; what it says of one level of one lane is sorted by time.
    """
    rows = len(start_ns)
    level = np.zeros(rows, np.int32)
    order = np.empty(2 * rows, np.int64)
    outer = np.full(rows, -1, np.int64)  # the row that holds a row, on its level
    top = np.full(rows + 1, -1, np.int64)  # the innermost open row of each level
    told, levels = 0, 0
    for i in range(rows + 1):
        closing = i == rows or (i > 0 and lane[i] != lane[i - 1])
        chosen = -1
        for at in range(levels):
            while top[at] >= 0 and (closing or end_ns[top[at]] <= start_ns[i]):
                order[told] = 2 * top[at] + 1
                told, top[at] = told + 1, outer[top[at]]
            if chosen < 0 and not closing and (top[at] < 0 or (nest and end_ns[i] <= end_ns[top[at]])):
                chosen = at
        if i == rows:
            break
        if closing:
            chosen, levels = 0, 1
        elif chosen < 0:
            chosen, levels = levels, levels + 1
        level[i], outer[i], top[chosen] = chosen, top[chosen], i
        order[told] = 2 * i
        told += 1
    return level, order
