"""Which thread's work fills another one's interval, against the definition tried out on every pair."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from traceflow.analyzers.dependencies._sweep import fillings, within

Span = tuple[int, int]


def by_definition(
    threads: Sequence[Sequence[Span]], workers: Sequence[bool], waits: Sequence[tuple[int, int, int, int, int]]
) -> set[tuple[int, int, int]]:
    """Number of the interval, first and last slice of the work that fills it."""
    found, base = set(), 0
    for who, slices in enumerate(threads):
        for wait, (caller, start, end, since, until) in enumerate(waits):
            inside = [i for i, (begin, stop) in enumerate(slices) if start <= begin and stop <= end]
            if not inside or not workers[who] or caller == who:
                continue
            alone = all(i in inside or stop <= since or begin >= until for i, (begin, stop) in enumerate(slices))
            if alone and 2 * sum(slices[i][1] - slices[i][0] for i in inside) >= end - start:
                found.add((wait, base + inside[0], base + inside[-1]))
        base += len(slices)
    return found


@st.composite
def thread(draw: st.DrawFn) -> list[Span]:
    """Slices of one thread in order, with and without gaps between them; none is empty."""
    now, slices = draw(st.integers(0, 20)), []
    for length, gap in draw(st.lists(st.tuples(st.integers(1, 12), st.integers(0, 15)), min_size=1, max_size=6)):
        slices.append((now, now + length))
        now += length + gap
    return slices


@given(st.lists(st.tuples(thread(), st.booleans()), min_size=1, max_size=5), st.data())
def test_an_interval_is_filled_as_defined(some: list[tuple[list[Span], bool]], data: st.DataObject) -> None:
    threads, workers = [slices for slices, _ in some], [works for _, works in some]
    moments = st.lists(st.integers(0, 90), min_size=4, max_size=4).map(sorted)
    chosen = data.draw(st.lists(st.tuples(st.integers(0, len(some) - 1), moments), max_size=8))
    waits = [(caller, start, end, since, until) for caller, (since, start, end, until) in chosen]
    spans = [span for slices in threads for span in slices]
    columns = np.array(waits, np.int64).reshape(-1, 5).T.copy()
    found = fillings(
        np.array([start for start, _ in spans], np.int64),
        np.array([end for _, end in spans], np.int64),
        np.repeat(np.arange(len(threads), dtype=np.int64), [len(slices) for slices in threads]),
        np.array(workers),
        *columns,
    )
    assert set(zip(*(column.tolist() for column in found), strict=True)) == by_definition(threads, workers, waits)


@given(st.lists(st.integers(0, 30)), st.lists(st.integers(0, 30), max_size=12))
def test_moments_are_counted_in_intervals(moments: list[int], bounds: list[int]) -> None:
    moments, bounds = sorted(moments), sorted(bounds)
    start, end = bounds[: len(bounds) // 2 * 2 : 2], bounds[1::2]
    found = within(np.array(moments, np.int64), np.array(start, np.int64), np.array(end, np.int64))
    assert found.tolist() == [sum(s <= m <= e for m in moments) for s, e in zip(start, end, strict=True)]
