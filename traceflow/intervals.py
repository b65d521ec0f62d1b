"""Sets of half-open time intervals, as sorted disjoint arrays of starts and ends in integer ns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Int64: TypeAlias = NDArray[np.int64]
Bool: TypeAlias = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Intervals:
    """A set of instants: the union of `[start_ns[i], end_ns[i])`, sorted, disjoint, none empty or touching.

    Build one with :func:`union`; the operators keep the form.

    Example:
        >>> communication, compute = union([0, 4], [6, 8]), union([5], [7])
        >>> communication.total_ns, (communication - compute).total_ns, (communication & compute).total_ns
        (8, 6, 2)
    """

    start_ns: Int64
    end_ns: Int64

    def __len__(self) -> int:
        return len(self.start_ns)

    @property
    def total_ns(self) -> int:
        """Measure of the set."""
        return int((self.end_ns - self.start_ns).sum())

    def __or__(self, other: Intervals) -> Intervals:
        return union(np.concatenate((self.start_ns, other.start_ns)), np.concatenate((self.end_ns, other.end_ns)))

    def __and__(self, other: Intervals) -> Intervals:
        return _where(self, other, lambda one, two: one & two)

    def __sub__(self, other: Intervals) -> Intervals:
        return _where(self, other, lambda one, two: one & ~two)

    def covered_ns(self, start_ns: Int64, end_ns: Int64) -> Int64:
        """How much of each given interval lies in the set, in ns; intervals may overlap one another."""
        return self._measure_before(end_ns) - self._measure_before(start_ns)

    def _measure_before(self, instant_ns: Int64) -> Int64:
        """Measure of the part of the set before each instant."""
        if not len(self):
            return np.zeros(len(instant_ns), np.int64)
        before = np.concatenate(([0], np.cumsum(self.end_ns - self.start_ns)))
        last = np.searchsorted(self.start_ns, instant_ns, side="right")
        inside = np.where(last > 0, np.minimum(instant_ns, self.end_ns[last - 1]) - self.start_ns[last - 1], 0)
        return before[np.maximum(last - 1, 0)] + inside


def union(start_ns: Int64 | list[int], end_ns: Int64 | list[int]) -> Intervals:
    """The set of instants that at least one of the given intervals holds.

    Args:
        start_ns: Starts in ns, in any order.
        end_ns: Ends in ns; an interval that ends where it starts, or before, holds nothing.

    Complexity: O(n log n).
    """
    start, end = np.asarray(start_ns, np.int64), np.asarray(end_ns, np.int64)
    some = end > start
    start, end = start[some], end[some]
    order = np.argsort(start, kind="stable")
    start, reach = start[order], np.maximum.accumulate(end[order]) if len(order) else end
    first = np.ones(len(start), bool)
    first[1:] = start[1:] > reach[:-1]
    last = np.ones(len(start), bool)
    last[:-1] = first[1:]
    return Intervals(start[first], reach[last])


def _where(one: Intervals, two: Intervals, keep: Callable[[Bool, Bool], Bool]) -> Intervals:
    """Instants for which `keep(in one, in two)` holds, by the elementary intervals between all boundaries."""
    bounds = np.unique(np.concatenate((one.start_ns, one.end_ns, two.start_ns, two.end_ns)))
    left, right = bounds[:-1], bounds[1:]
    chosen = keep(_holds(one, left), _holds(two, left))
    return union(left[chosen], right[chosen])


def _holds(intervals: Intervals, instant_ns: Int64) -> Bool:
    last = np.searchsorted(intervals.start_ns, instant_ns, side="right") - 1
    return (
        (last >= 0) & (instant_ns < intervals.end_ns[np.maximum(last, 0)])
        if len(intervals)
        else np.zeros(len(instant_ns), bool)
    )
