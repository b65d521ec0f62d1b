"""The dependency graph against plain recursion: replay, bounds, slack, path, windows."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from traceflow.graph import (
    CAN_DELAY,
    NO_EVENT,
    NO_LANE,
    DependencyGraph,
    EdgeKind,
    Edges,
    SliceKind,
    Slices,
    dependency_graph,
    rebound,
    window,
)

Int64 = NDArray[np.int64]
KINDS: list[EdgeKind] = [kind for kind in EdgeKind if kind != EdgeKind.SELF]
Row = tuple[int, int, int, SliceKind]  # start, end, lane, kind
Arrow = tuple[int, int, EdgeKind]  # source vertex, target vertex


def slices_of(rows: list[Row]) -> Slices:
    start, end, lane, kind = zip(*rows, strict=True)
    event = np.arange(len(rows), dtype=np.int32)
    return Slices.between(
        np.array(start, np.int64), np.array(end, np.int64), np.array(lane, np.int32), event, np.array(kind, np.int8)
    )


def edges_of(arrows: list[Arrow]) -> list[Edges]:
    by_kind = {kind: [arrow for arrow in arrows if arrow[2] == kind] for kind in dict.fromkeys(a[2] for a in arrows)}
    return [
        Edges(np.array([a[0] for a in some]), np.array([a[1] for a in some]), kind) for kind, some in by_kind.items()
    ]


def graph_of(rows: list[Row], arrows: list[Arrow], *, resolution_ns: int = 0) -> DependencyGraph:
    return dependency_graph(slices_of(rows), edges_of(arrows), resolution_ns=resolution_ns)


def start(i: int) -> int:
    return 2 * i


def end(i: int) -> int:
    return 2 * i + 1


@st.composite
def rows(draw: st.DrawFn) -> list[Row]:
    """Slices in order on one to three lanes; many are empty or of one instant."""
    found: list[Row] = []
    for lane in range(draw(st.integers(1, 3))):
        now = draw(st.integers(0, 5))
        for _ in range(draw(st.integers(1, 5))):
            now += draw(st.sampled_from([0, 0, 0, 1, 3]))
            stop = now + draw(st.sampled_from([0, 0, 1, 2, 7]))
            kind = draw(st.sampled_from([SliceKind.COMPUTE, SliceKind.HOST, SliceKind.BLOCKED, SliceKind.ARRIVED]))
            found.append((now, stop, lane, kind))
            now = stop
    return found


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[Row], list[Arrow]]:
    """Slices, and edges of any kind between different slices, whether or not the clock agrees with them."""
    found = draw(rows())
    vertex = st.integers(0, 2 * len(found) - 1)
    kind: st.SearchStrategy[EdgeKind] = st.sampled_from(KINDS)
    arrow = st.tuples(vertex, vertex, kind).filter(lambda a: a[0] >> 1 != a[1] >> 1)
    arrows: list[Arrow] = draw(st.lists(arrow, max_size=24)) if len(found) > 1 else []
    return found, arrows


def nothing_cut(graph: DependencyGraph) -> NDArray[np.bool_]:
    return np.zeros(len(graph.source), bool)


def measured_ns(found: list[Row], vertex: int) -> int:
    return found[vertex >> 1][vertex & 1]


def kept(graph: DependencyGraph) -> list[Arrow]:
    """The edges of a graph, those inside slices included."""
    target = np.repeat(np.arange(graph.vertices), np.diff(graph.offsets))
    return [(int(u), int(v), EdgeKind(kind)) for u, v, kind in zip(graph.source, target, graph.kind, strict=True)]


def reachable(arrows: list[Arrow], origin: int) -> set[int]:
    seen, open_ = set(), [origin]
    while open_:
        if (v := open_.pop()) not in seen:
            seen.add(v)
            open_ += [b for a, b, _ in arrows if a == v]
    return seen


def longest(graph: DependencyGraph, work_ns: Int64, lag_ns: Int64) -> list[int]:
    """Replay by recursion on the definition: latest bound over the edges into v, plus lag(v)."""
    into: dict[int, list[tuple[int, int, EdgeKind]]] = {}
    for (u, v, kind), advance_ns in zip(kept(graph), graph.advance_ns.tolist(), strict=True):
        into.setdefault(v, []).append((u, advance_ns, kind))
    known: dict[int, int] = {}

    def time(v: int) -> int:
        if v not in known:
            bounds = [
                time(u) - advance_ns + (int(work_ns[v >> 1]) if kind == EdgeKind.SELF else 0)
                for u, advance_ns, kind in into.get(v, [])
            ]
            known[v] = max(bounds) + int(lag_ns[v]) if bounds else int(graph.time_ns[v])
        return known[v]

    return [time(v) for v in range(graph.vertices)]


@given(graphs())
def test_edges_that_the_clock_contradicts_or_that_close_a_cycle_are_counted(
    case: tuple[list[Row], list[Arrow]],
) -> None:
    found, arrows = case
    graph = graph_of(found, arrows)
    remaining = [arrow for arrow in kept(graph) if arrow[2] != EdgeKind.SELF]
    late = [a for a in arrows if measured_ns(found, a[0]) > measured_ns(found, a[1])]
    agreed = [a for a in arrows if a not in late]
    assert EdgeKind.SELF not in graph.contradicted
    for kind in KINDS:
        given_, left = (sum(a[2] == kind for a in some) for some in (arrows, remaining))
        assert graph.contradicted.get(kind, 0) == given_ - left
    own = [(start(i), end(i), EdgeKind.SELF) for i in range(len(found))]
    for arrow in set(agreed) - set(remaining):
        assert arrow[0] in reachable(agreed + own, arrow[1]), "only an edge of a cycle may be left out"
    for u, v, _ in kept(graph):
        assert u not in reachable(kept(graph), v), "what remains has no cycle"


@given(graphs())
def test_replay_with_nothing_changed_is_the_measurement(case: tuple[list[Row], list[Arrow]]) -> None:
    graph = graph_of(*case)
    assert (graph.lag_ns >= 0).all()
    assert graph.replay().tolist() == graph.time_ns.tolist()
    low, high = graph.replay_bounds(work_ns=graph.work_ns, delay=np.ones(len(graph.source)), cut=nothing_cut(graph))
    assert low.tolist() == high.tolist() == graph.time_ns.tolist()


@given(graphs(), st.randoms(use_true_random=False))
def test_replay_is_the_longest_path(case: tuple[list[Row], list[Arrow]], draw: random.Random) -> None:
    graph = graph_of(*case)
    work_ns = np.array([draw.randint(0, 9) for _ in graph.work_ns], np.int64)
    lag_ns = np.array([draw.choice([0, int(lag), 5]) for lag in graph.lag_ns], np.int64)
    assert graph.replay(work_ns=work_ns, lag_ns=lag_ns).tolist() == longest(graph, work_ns, lag_ns)


@given(graphs(), st.randoms(use_true_random=False))
def test_a_cut_edge_binds_nothing(case: tuple[list[Row], list[Arrow]], draw: random.Random) -> None:
    graph = graph_of(*case)
    cut = np.array([kind != EdgeKind.SELF and draw.random() < 0.4 for kind in graph.kind], bool)
    remaining = [a for a, gone in zip(kept(graph), cut, strict=True) if not gone and a[2] != EdgeKind.SELF]
    without = graph_of(case[0], remaining)
    freed = np.setdiff1d(np.arange(graph.vertices), [a[1] for a in kept(without)])
    wanted = longest(without, graph.work_ns, graph.lag_ns)
    assert graph.replay(cut=cut).tolist() == wanted
    assert graph.replay(cut=cut)[freed].tolist() == graph.time_ns[freed].tolist(), (
        "what nothing binds stays where it was"
    )


@given(graphs(), st.randoms(use_true_random=False))
def test_more_work_never_ends_earlier(case: tuple[list[Row], list[Arrow]], draw: random.Random) -> None:
    graph = graph_of(*case)
    more = graph.work_ns + np.array([draw.choice([0, 1, 6]) for _ in graph.work_ns], np.int64)
    assert (graph.replay(work_ns=more) >= graph.time_ns).all()
    assert graph.end_of(graph.replay(work_ns=more)) >= graph.end_ns


@given(graphs(), st.integers(1, 4), st.randoms(use_true_random=False))
def test_within_the_clocks_resolution_an_edge_binds_less_the_difference(
    case: tuple[list[Row], list[Arrow]], resolution_ns: int, draw: random.Random
) -> None:
    found, arrows = case
    graph = graph_of(found, arrows, resolution_ns=resolution_ns)
    early_ns = [max(0, measured_ns(found, u) - measured_ns(found, v)) for u, v, _ in kept(graph)]
    assert graph.advance_ns.tolist() == early_ns
    assert max(early_ns) <= resolution_ns
    assert (graph.lag_ns >= 0).all()
    assert graph.replay().tolist() == graph.time_ns.tolist()
    assert (graph.latest_ns() >= graph.time_ns).all()
    work_ns = np.array([draw.randint(0, 9) for _ in graph.work_ns], np.int64)
    assert graph.replay(work_ns=work_ns).tolist() == longest(graph, work_ns, graph.lag_ns)
    part = window(graph, graph.start_ns, graph.end_ns, counted=graph.counted)
    assert part.replay().tolist() == part.time_ns.tolist()
    assert sum(part.contradicted.values()) == sum(graph.contradicted.values())
    assert len(part.source) == len(graph.source) + 1, "the window's origin has an edge inside, and nothing else changed"


@given(graphs())
def test_slack_is_how_long_an_end_can_wait_before_the_window_grows(case: tuple[list[Row], list[Arrow]]) -> None:
    graph = graph_of(*case)
    slack_ns = graph.latest_ns() - graph.time_ns
    assert (slack_ns >= 0).all()
    for vertex in range(1, graph.vertices, 2):
        for delay, delays in ((int(slack_ns[vertex]), False), (int(slack_ns[vertex]) + 1, True)):
            lag_ns = graph.lag_ns.copy()
            lag_ns[vertex] += delay
            assert (graph.replay(lag_ns=lag_ns).max() > graph.end_ns) == delays


@given(graphs())
def test_the_path_is_bound_step_by_step_and_has_no_slack(case: tuple[list[Row], list[Arrow]]) -> None:
    graph = graph_of(*case)
    path = graph.path().tolist()
    steps = set(pairwise(path))
    bound = {(u, v) for u, v, _ in kept(graph)}
    assert steps <= bound
    assert path[-1] == graph.end_vertex()
    assert graph.time_ns[path[-1]] == graph.end_ns
    first = path[0]
    assert graph.time_ns[first] <= graph.start_ns or not any(v == first for _, v in bound)
    assert (graph.time_ns[path[1:]] >= graph.time_ns[path[:-1]]).all()
    assert ((graph.latest_ns() - graph.time_ns)[path] == 0).all()


@given(graphs())
def test_the_window_of_the_whole_span_changes_nothing(case: tuple[list[Row], list[Arrow]]) -> None:
    graph = graph_of(*case)
    whole = window(graph, graph.start_ns, graph.end_ns, counted=graph.counted)
    assert whole.time_ns[: graph.vertices].tolist() == graph.time_ns.tolist()
    assert whole.replay().tolist() == whole.time_ns.tolist()
    crossed = [
        [(int(v), int(g.time_ns[v])) for v in g.path() if v < graph.vertices and g.time_ns[v] > graph.start_ns]
        for g in (graph, whole)
    ]
    assert crossed[0] == crossed[1]
    assert (whole.latest_ns()[: graph.vertices] == graph.latest_ns()).all()


@given(graphs(), st.integers(0, 12), st.integers(0, 12))
def test_a_window_clips_its_slices_and_replays_exactly(
    case: tuple[list[Row], list[Arrow]], from_ns: int, length_ns: int
) -> None:
    graph = graph_of(*case)
    counted = (graph.slices.end_ns <= from_ns + length_ns) & (graph.slices.end_ns > from_ns)
    if not counted.any():
        return
    to_ns = int(graph.slices.end_ns[counted].max())
    part = window(graph, from_ns, to_ns, counted=counted)
    assert part.time_ns.min() == from_ns
    assert part.time_ns.max() == to_ns
    assert part.replay().tolist() == part.time_ns.tolist()
    assert (part.latest_ns() >= part.time_ns).all()
    working = graph.work_ns > 0
    inside = np.minimum(graph.slices.end_ns, to_ns) - np.maximum(graph.slices.start_ns, from_ns)
    assert part.work_ns.sum() == np.maximum(inside, 0)[working].sum()
    path = part.path()
    assert part.time_ns[path[-1]] == to_ns
    assert part.time_ns[path[0]] == from_ns or not np.diff(part.offsets)[path[0]]


@given(graphs(), st.randoms(use_true_random=False))
def test_a_rebound_graph_explains_the_replayed_times(case: tuple[list[Row], list[Arrow]], draw: random.Random) -> None:
    graph = graph_of(*case)
    work_ns = np.where(graph.work_ns > 0, [draw.randint(0, 9) for _ in graph.work_ns], 0)
    nothing = np.zeros(len(graph.source), bool)
    time_ns = graph.replay(work_ns=work_ns)
    again = rebound(graph, time_ns, work_ns, nothing)
    assert (again.lag_ns >= 0).all()
    assert again.replay().tolist() == time_ns.tolist()
    assert again.end_ns == graph.end_of(time_ns)
    assert again.time_ns[again.path()[-1]] == again.end_ns


@dataclass
class Truth:
    """A graph whose edges have known latencies, most of them hidden behind other edges."""

    rows: list[Row]
    arrows: list[Arrow]
    latency_ns: list[int]

    def times(self, work: Callable[[int], int]) -> list[int]:
        """Every vertex by its definition; starts that nothing binds stay where they are."""
        time: list[int] = []
        for i, row in enumerate(self.rows):
            bounds = [
                time[u] + latency
                for (u, v, _), latency in zip(self.arrows, self.latency_ns, strict=True)
                if v == start(i)
            ]
            time.append(max(bounds, default=row[0]))
            time.append(time[-1] + work(i))
        return time


@st.composite
def truths(draw: st.DrawFn) -> Truth:
    """Slices that work, bound by edges from earlier ones; only kinds that can delay take time of their own."""
    count = draw(st.integers(2, 7))
    arrows, latency_ns = [], []
    for i in range(1, count):
        for source in draw(st.lists(st.integers(0, 2 * i - 1), max_size=3, unique=True)):
            kind = draw(st.sampled_from([EdgeKind.LAUNCH, EdgeKind.HAND_OFF, EdgeKind.STREAM_ORDER, EdgeKind.DATA]))
            arrows.append((source, start(i), kind))
            latency_ns.append(draw(st.integers(0, 6)) if kind in CAN_DELAY else 0)
    work = [draw(st.integers(0, 9)) for _ in range(count)]
    first = [(draw(st.integers(0, 4)), 0, i, SliceKind.COMPUTE) for i in range(count)]
    time = Truth(first, arrows, latency_ns).times(lambda i: work[i])
    return Truth([(time[start(i)], time[end(i)], i, SliceKind.COMPUTE) for i in range(count)], arrows, latency_ns)


@given(truths(), st.randoms(use_true_random=False))
def test_the_bounds_hold_the_truth_however_latencies_hide(truth: Truth, draw: random.Random) -> None:
    graph = graph_of(truth.rows, truth.arrows)
    work_ns = np.array([draw.choice([int(work), 0, 3, 2 * int(work)]) for work in graph.work_ns], np.int64)
    low, high = graph.replay_bounds(work_ns=work_ns, delay=np.ones(len(graph.source)), cut=nothing_cut(graph))
    really = np.array(truth.times(lambda i: int(work_ns[i])))
    assert (low <= really).all()
    assert (really <= high).all()


A, B, C = range(3)


def test_of_equal_bounds_the_one_on_the_same_lane_binds() -> None:
    three: list[Row] = [(0, 4, 0, SliceKind.COMPUTE), (0, 4, 1, SliceKind.COMPUTE), (4, 6, 1, SliceKind.COMPUTE)]
    graph = graph_of(three, [(end(A), start(C), EdgeKind.EVENT_WAIT), (end(B), start(C), EdgeKind.STREAM_ORDER)])
    assert graph.path().tolist() == [start(B), end(B), start(C), end(C)]


def test_of_equal_bounds_from_other_lanes_the_first_binds() -> None:
    three: list[Row] = [(0, 4, 0, SliceKind.COMPUTE), (0, 4, 1, SliceKind.COMPUTE), (4, 6, 2, SliceKind.COMPUTE)]
    graph = graph_of(three, [(end(B), start(C), EdgeKind.DATA), (end(A), start(C), EdgeKind.DATA)])
    assert graph.path().tolist() == [start(A), end(A), start(C), end(C)]


def test_a_later_bound_beats_the_same_lane() -> None:
    three: list[Row] = [(0, 5, 0, SliceKind.COMPUTE), (0, 4, 1, SliceKind.COMPUTE), (5, 6, 1, SliceKind.COMPUTE)]
    graph = graph_of(three, [(end(A), start(C), EdgeKind.EVENT_WAIT), (end(B), start(C), EdgeKind.STREAM_ORDER)])
    assert graph.path().tolist()[:2] == [start(A), end(A)]


def test_the_window_ends_with_the_work_that_ends_last() -> None:
    blocked_first: list[Row] = [
        (0, 5, 0, SliceKind.BLOCKED),
        (1, 5, 1, SliceKind.COMPUTE),
        (2, 5, 2, SliceKind.COMPUTE),
    ]
    assert graph_of(blocked_first, []).end_vertex() == end(B)


def test_joins_do_not_end_the_window() -> None:
    late_join: list[Row] = [(0, 5, 0, SliceKind.COMPUTE), (9, 9, NO_LANE, SliceKind.JOIN)]
    graph = graph_of(late_join, [])
    assert (graph.start_ns, graph.end_ns) == (0, 5)


def test_a_cycle_of_one_instant_is_opened_and_counted() -> None:
    two: list[Row] = [(3, 3, 0, SliceKind.COMPUTE), (3, 3, 1, SliceKind.COMPUTE)]
    graph = graph_of(two, [(end(A), start(B), EdgeKind.DATA), (end(B), start(A), EdgeKind.EVENT_WAIT)])
    assert sum(graph.contradicted.values()) == 1
    assert graph.replay().tolist() == [3, 3, 3, 3]


def test_what_closes_a_cycle_is_never_the_work_of_a_slice() -> None:
    """A before B before A, all in one instant: A's end still follows its start."""
    two: list[Row] = [(3, 3, 0, SliceKind.COMPUTE), (3, 3, 1, SliceKind.COMPUTE)]
    graph = graph_of(two, [(end(A), start(B), EdgeKind.DATA), (start(B), start(A), EdgeKind.EVENT_WAIT)])
    assert sum(graph.contradicted.values()) == 1
    assert EdgeKind.SELF not in graph.contradicted
    assert graph.replay(work_ns=np.array([4, 2])).max() == 9


def test_a_graph_without_slices_has_no_edges() -> None:
    none, few = np.empty(0, np.int64), np.empty(0, np.int32)
    nothing = Slices.between(none, none, few, few, np.empty(0, np.int8))
    graph = dependency_graph(nothing, [])
    assert (graph.vertices, len(graph.source), graph.start_ns, graph.end_ns) == (0, 0, 0, 0)


def test_what_came_before_a_window_binds_its_start() -> None:
    """A ends as the window opens, B runs when it does, C waits for both."""
    three: list[Row] = [(0, 10, 0, SliceKind.COMPUTE), (2, 12, 1, SliceKind.COMPUTE), (13, 20, 0, SliceKind.COMPUTE)]
    arrows: list[Arrow] = [(end(A), start(C), EdgeKind.STREAM_ORDER), (end(B), start(C), EdgeKind.EVENT_WAIT)]
    part = window(graph_of(three, arrows), 10, 20, counted=np.array([False, False, True]))
    assert part.slices.event.tolist() == [B, C, NO_EVENT]
    assert part.time_ns.tolist() == [10, 12, 13, 20, 10, 10]
    assert part.work_ns.tolist() == [2, 7, 0], "the kernel that was running is clipped"
    assert part.path().tolist() == [0, 1, 2, 3], "and it still binds"
    without_b = part.replay(work_ns=np.array([0, 7, 0]))
    assert part.end_of(without_b) == 18


@pytest.mark.parametrize("gone", [EdgeKind.DATA, EdgeKind.EVENT_WAIT])
def test_contradicted_edges_are_counted_by_kind(gone: EdgeKind) -> None:
    two: list[Row] = [(0, 5, 0, SliceKind.COMPUTE), (3, 6, 1, SliceKind.COMPUTE)]
    graph = graph_of(two, [(end(A), start(B), gone), (start(A), start(B), EdgeKind.LAUNCH)])
    assert dict(graph.contradicted) == {gone: 1}
