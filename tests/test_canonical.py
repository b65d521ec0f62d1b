"""The one order of a trace, whatever order and origin its rows came in."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kineto_builder import BASE_NS, RECORDING_NS, KinetoTrace, opened

from traceflow.result import Tally
from traceflow.trace.canonical import canonical, merge
from traceflow.trace.model import (
    ABSENT,
    Communications,
    Events,
    Flows,
    HloEvents,
    Kind,
    LaneKind,
    Lanes,
    Launches,
    Marks,
    Rank,
    Syncs,
    Trace,
    empty,
)

Row = tuple[int, int, int, str, int]  # lane, start, duration, name, correlation
LANES = ((0, ABSENT, "main"), (0, 0, "7"), (0, ABSENT, "autograd"), (1, 0, "7"))

rows = st.lists(
    st.tuples(
        st.integers(0, 3),
        st.integers(-50, 50),
        st.integers(0, 5),
        st.sampled_from(["b", "a", "B", "é"]),
        st.integers(-1, 1),
    ),
    max_size=14,
)


def trace_of(
    some: list[Row], *, marks: tuple[int, ...] = (), flows: tuple[tuple[int, int], ...] = (), rank: int = 0
) -> Trace:
    strings = tuple(dict.fromkeys(row[3] for row in some))
    lane, start, duration, name, correlation = (
        (list(column) for column in zip(*some, strict=True)) if some else ([],) * 5
    )
    start_ns, mark_ns = np.array(start, np.int64), np.array(marks, np.int64)
    arrows = np.array(flows, np.int32).reshape(-1, 2)
    return Trace(
        events=Events(
            start_ns,
            start_ns + np.array(duration, np.int64),
            np.array(lane, np.int32),
            np.array([strings.index(text) for text in name], np.int32),
            np.full(len(some), Kind.HOST, np.int8),
            np.array(correlation, np.int64),
        ),
        lanes=Lanes(
            np.array([rank + lane[0] for lane in LANES], np.int32),
            np.array([lane[1] for lane in LANES], np.int32),
            np.array([LaneKind.THREAD if lane[1] == ABSENT else LaneKind.STREAM for lane in LANES], np.int8),
            np.array([lane[1] for lane in LANES], np.int64),
            tuple(lane[2] for lane in LANES),
        ),
        strings=strings,
        groups=(),
        communications=empty(Communications),
        syncs=empty(Syncs),
        flows=Flows(arrows[:, 0], arrows[:, 1]),
        hlo=empty(HloEvents),
        launches=empty(Launches),
        marks=Marks(np.arange(len(marks)), np.zeros(len(marks), np.int32), mark_ns, mark_ns + 1),
        ranks=(Rank(rank, "host", 1, "file"),),
        epoch_ns=1_000,
        format="kineto",
        tally=Tally(len(some), len(some)),
    )


def read_back(trace: Trace) -> list[Row]:
    """The rows of a trace, with lanes by their places in LANES."""
    places = [
        LANES.index((rank, device, name))
        for rank, device, name in zip(trace.lanes.rank, trace.lanes.device, trace.lanes.name, strict=True)
    ]
    e = trace.events
    return [
        (places[lane], int(start), int(end - start), trace.strings[name], int(correlation))
        for lane, start, end, name, correlation in zip(e.lane, e.start_ns, e.end_ns, e.name, e.correlation, strict=True)
    ]


@given(rows)
def test_events_are_sorted_once_each_and_start_at_zero(some: list[Row]) -> None:
    got = read_back(canonical(trace_of(some)))
    first = min((row[1] for row in some), default=0)
    order = {place: number for number, place in enumerate([2, 0, 1, 3])}  # by rank, device, kind, name
    wanted = sorted(
        {(lane, start - first, length, name, key) for lane, start, length, name, key in some},
        key=lambda r: (order[r[0]], r[1], -r[2], r[3], r[4]),
    )
    assert got == wanted


@given(rows, st.randoms(use_true_random=False))
def test_the_order_of_rows_does_not_matter(some: list[Row], shuffle: object) -> None:
    mixed = some.copy()
    shuffle.shuffle(mixed)  # type: ignore[attr-defined]
    assert read_back(canonical(trace_of(mixed))) == read_back(canonical(trace_of(some)))


@given(rows)
def test_once_canonical_always_canonical(some: list[Row]) -> None:
    once = canonical(trace_of(some))
    again = canonical(once)
    for table in ("events", "lanes", "marks", "flows"):
        one, two = getattr(once, table), getattr(again, table)
        assert all(np.array_equal(getattr(one, f.name), getattr(two, f.name)) for f in fields(one))


def test_duplicates_are_counted_and_what_points_at_them_follows() -> None:
    some = [(0, 5, 3, "a", 1), (1, 9, 2, "b", 2), (0, 5, 3, "a", 1), (1, 9, 2, "b", 2), (1, 9, 2, "b", 2)]
    trace = canonical(trace_of(some, flows=((0, 1), (2, 4))))
    assert trace.tally.dropped == {"exact duplicate": 3}
    assert (trace.tally.read, trace.tally.kept) == (5, 2)
    assert (trace.flows.source.tolist(), trace.flows.target.tolist()) == ([0], [1])


def test_equal_but_for_the_correlation_is_no_duplicate() -> None:
    trace = canonical(trace_of([(1, 0, 2, "a", 1), (1, 0, 2, "a", 2)]))
    assert len(trace.events) == 2
    assert not trace.tally.dropped


def test_time_is_counted_from_the_earliest_event_or_mark() -> None:
    trace = canonical(trace_of([(0, 40, 3, "a", 1)], marks=(30,)))
    assert (trace.events.start_ns.tolist(), trace.marks.start_ns.tolist()) == ([10], [0])
    assert trace.epoch_ns == 1_030


def test_a_mark_that_is_written_twice_is_one() -> None:
    trace = trace_of([(0, 0, 3, "a", 1)], marks=(0, 5))
    twice = Marks(*(np.tile(getattr(trace.marks, f.name), 2) for f in fields(trace.marks)))
    assert canonical(replace(trace, marks=twice)).marks.start_ns.tolist() == [0, 5]


def test_unused_lanes_vanish() -> None:
    trace = canonical(trace_of([(2, 0, 3, "a", 1)]))
    assert trace.lanes.name == ("autograd",)
    assert trace.events.lane.tolist() == [0]


def test_an_empty_trace_stays_empty() -> None:
    trace = canonical(trace_of([]))
    assert (len(trace.events), len(trace.lanes)) == (0, 0)


def test_ranks_are_merged_on_their_common_time() -> None:
    late = replace(trace_of([(0, 5, 3, "b", 1), (0, 9, 1, "only here", 1)], rank=1), epoch_ns=1_100)
    trace = merge([canonical(trace_of([(0, 5, 3, "a", 1), (1, 6, 1, "b", 2)])), canonical(late)])
    named = {
        trace.strings[name]: int(start) for name, start in zip(trace.events.name, trace.events.start_ns, strict=True)
    }
    assert named == {"a": 0, "b": 100, "only here": 104}
    assert trace.epoch_ns == 1_005
    assert [rank.rank for rank in trace.ranks] == [0, 1]
    assert {rank.clock for rank in trace.ranks} == {0}
    assert trace.tally.read == 4


def test_without_a_common_epoch_each_rank_has_a_clock_of_its_own() -> None:
    one, two = (canonical(replace(trace_of([(0, 5, 3, "a", 1)], rank=rank), epoch_ns=None)) for rank in (0, 1))
    trace = merge([one, two])
    assert trace.epoch_ns is None
    assert trace.events.start_ns.tolist() == [0, 0]
    assert len({rank.clock for rank in trace.ranks}) == 2


def test_ranks_of_other_hosts_have_other_clocks() -> None:
    one, two = (
        canonical(replace(trace_of([(0, 5, 3, "a", 1)]), ranks=(Rank(r, f"host {r % 2}", 3, ""),))) for r in (0, 1)
    )
    third = replace(one, ranks=(Rank(2, "host 0", 3, ""),))
    assert [rank.clock for rank in merge([one, two, third]).ranks] == [0, 1, 0]


def test_a_single_trace_is_left_as_it_is() -> None:
    trace = canonical(trace_of([(0, 5, 3, "a", 1)]))
    assert merge([trace]) is trace


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_files_are_told_apart_by_rank_not_by_order(tmp_path: Path, order: tuple[int, int]) -> None:
    cards = [KinetoTrace(rank, 2) for rank in order]
    for card in cards:
        card.kernel(f"of rank {card.rank}", 1_000 * card.rank, 5_000)
    trace = opened(tmp_path, *cards).trace
    assert trace.epoch_ns == BASE_NS + RECORDING_NS
    assert [rank.rank for rank in trace.ranks] == [0, 1]
    assert trace.events.start_ns.tolist() == [0, 1_000]
