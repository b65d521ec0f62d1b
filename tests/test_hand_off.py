"""Which thread's work fills what another one does, against the definition tried out on every pair."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from traceflow.analyzers.dependencies._sweep import fillings

Span = tuple[int, int]
Wait = tuple[int, int, int, int, int]


def waits_of(slices: Sequence[Span], *, gaps: bool) -> list[Wait]:
    """Slices of a thread, or gaps before them: which, from when to when, and the time in which nothing else may happen."""
    if not gaps:
        return [(i, start, end, start, end) for i, (start, end) in enumerate(slices)]
    before = [i for i in range(1, len(slices)) if slices[i][0] > slices[i - 1][1]]
    since = [slices[0][0], *(slices[i][0] for i in before)]
    until = [*(slices[i - 1][1] for i in before), slices[-1][1]]
    return [(i, slices[i - 1][1], slices[i][0], since[n], until[n + 1]) for n, i in enumerate(before)]


def by_definition(
    threads: Sequence[Sequence[Span]], workers: Sequence[bool], *, gaps: bool
) -> set[tuple[int, int, int]]:
    """Number of the slice, first and last slice of the work that fills it or the gap before it."""
    found = set()
    begins = np.cumsum([0, *(len(slices) for slices in threads)]).tolist()
    for who, slices in enumerate(threads):
        for caller, others in enumerate(threads):
            if not workers[who] or caller == who:
                continue
            for wait, start, end, since, until in waits_of(others, gaps=gaps):
                inside = [i for i, (begin, stop) in enumerate(slices) if start <= begin and stop <= end]
                alone = all(i in inside or stop <= since or begin >= until for i, (begin, stop) in enumerate(slices))
                if inside and alone and 2 * sum(slices[i][1] - slices[i][0] for i in inside) >= end - start:
                    found.add((begins[caller] + wait, begins[who] + inside[0], begins[who] + inside[-1]))
    return found


@st.composite
def thread(draw: st.DrawFn) -> list[Span]:
    """Slices of one thread in order, with and without gaps between them; none is empty."""
    now, slices = draw(st.integers(0, 20)), []
    for length, gap in draw(st.lists(st.tuples(st.integers(1, 12), st.integers(0, 15)), min_size=1, max_size=6)):
        slices.append((now, now + length))
        now += length + gap
    return slices


@given(st.lists(st.tuples(thread(), st.booleans()), min_size=1, max_size=5), st.booleans())
def test_what_a_thread_does_is_filled_as_defined(some: list[tuple[list[Span], bool]], gaps: bool) -> None:  # noqa: FBT001
    threads, workers = [slices for slices, _ in some], [works for _, works in some]
    start, end = np.array([span for slices in threads for span in slices], np.int64).T.copy()
    lane = np.repeat(np.arange(len(threads), dtype=np.int32), [len(slices) for slices in threads])
    starts = np.flatnonzero((start[1:] > end[:-1]) & (lane[1:] == lane[:-1])) + 1
    found = fillings(
        np.column_stack((start, end)).ravel(),
        lane,
        np.array(workers),
        starts if gaps else np.arange(len(start)),
        gaps=gaps,
    )
    assert set(zip(*(column.tolist() for column in found), strict=True)) == by_definition(threads, workers, gaps=gaps)
