"""Interval sets against brute force on sets of single nanoseconds."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from traceflow.intervals import Intervals, union

Spans = list[tuple[int, int]]
spans = st.lists(st.tuples(st.integers(-20, 40), st.integers(-20, 40)), max_size=12)  # also empty and backward ones
LATE = 2**62  # absolute times in ns do not fit a float


def build(pairs: Spans, origin: int = 0) -> Intervals:
    return union([start + origin for start, _ in pairs], [end + origin for _, end in pairs])


def instants(pairs: Spans) -> set[int]:
    return {ns for start, end in pairs for ns in range(start, end)}


def held(intervals: Intervals) -> set[int]:
    return instants(list(zip(intervals.start_ns.tolist(), intervals.end_ns.tolist(), strict=True)))


def normal(intervals: Intervals) -> bool:
    """Sorted, disjoint, none empty, none touching the next."""
    start, end = intervals.start_ns, intervals.end_ns
    return bool((start < end).all() and (end[:-1] < start[1:]).all())


@given(spans)
def test_a_union_holds_what_any_interval_holds(pairs: Spans) -> None:
    intervals = build(pairs)
    assert held(intervals) == instants(pairs)
    assert intervals.total_ns == len(instants(pairs))
    assert normal(intervals)


@given(spans, spans)
def test_operators_agree_with_sets_of_instants(one: Spans, two: Spans) -> None:
    for got, wanted in (
        (build(one) | build(two), instants(one) | instants(two)),
        (build(one) & build(two), instants(one) & instants(two)),
        (build(one) - build(two), instants(one) - instants(two)),
    ):
        assert held(got) == wanted
        assert normal(got)


@given(spans, st.lists(st.tuples(st.integers(-30, 50), st.integers(0, 40)), max_size=8))
def test_covered_is_what_each_interval_shares_with_the_set(pairs: Spans, asked: list[tuple[int, int]]) -> None:
    start = np.array([first for first, _ in asked], np.int64)
    end = np.array([first + length for first, length in asked], np.int64)
    wanted = [len(instants(pairs) & set(range(a, b))) for a, b in zip(start.tolist(), end.tolist(), strict=True)]
    assert build(pairs).covered_ns(start, end).tolist() == wanted


@given(spans, spans)
def test_large_times_lose_no_nanosecond(one: Spans, two: Spans) -> None:
    late = build(one, LATE) - build(two, LATE)
    assert {ns - LATE for ns in late.start_ns.tolist()} <= instants(one)
    assert late.total_ns == len(instants(one) - instants(two))
    assert (build(one, LATE) & build(two, LATE)).total_ns == len(instants(one) & instants(two))


def test_touching_intervals_are_one() -> None:
    joined = union([5, 0], [9, 5])
    assert (joined.start_ns.tolist(), joined.end_ns.tolist()) == ([0], [9])


def test_the_empty_set_is_neutral() -> None:
    nothing, some = union([], []), union([3], [8])
    assert (nothing | some).total_ns == (some - nothing).total_ns == 5
    assert (nothing & some).total_ns == (nothing - some).total_ns == len(nothing) == 0
    assert nothing.covered_ns(np.array([1, 2]), np.array([4, 2])).tolist() == [0, 0]
