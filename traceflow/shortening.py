"""When a window would end if some of its work or lags were shorter: many such cases over one graph.

The longest path through a vertex v is as long as the window less slack(v) = latest(v) - time(v). A case that shortens
one path as long as the window by d ends no earlier than d before it, and makes no path longer. So no path through a
vertex with slack(v) > d decides its end, and it is replayed on the other vertices alone, which are often few. Of these,
one that waits for a single other comes as long after it as before, unless it is one of those that the case is about.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from traceflow.compiled import Compiled
from traceflow.graph import Bool, DependencyGraph, EdgeKind, Int8, Int32, Int64

_FAR = 2**62  # the slack of what no end depends on
_SELF = int(EdgeKind.SELF)
_AT_A_TIME = 64  # cases that share one contracted graph, if they are
_CHANGED = 8  # times fewer than its vertices
_WORTH_COPYING = 0.7  # of a part's vertices; a part that keeps more of them is not worth its copy


@dataclass(frozen=True, slots=True)
class Shorter:
    """What one case shortens, and by how many ns: work of slices, or lags of vertices; none by more than there is."""

    place: Int64  # slices, or vertices
    is_lag: bool
    less_ns: Int64


def ends_if_shorter(graph: DependencyGraph, cases: Sequence[Shorter]) -> list[int]:
    """Latest end of a counted slice in each case, in ns: what a replay of that case gives.

    Args:
        graph: The dependencies of a window, in which something is counted.
        cases: Independent of one another.

    Complexity: O(vertices + edges), and for each case the part of the graph that can decide it.

    Example:
        >>> from traceflow.graph import Slices, dependency_graph
        >>> lane, kind = np.arange(2, dtype=np.int32), np.zeros(2, np.int8)
        >>> graph = dependency_graph(Slices.between(np.array([0, 0]), np.array([70, 100]), lane, lane, kind), [])
        >>> ends_if_shorter(graph, [Shorter(np.array([1]), False, np.array([ns])) for ns in (20, 50)])
        [80, 70]
    """
    if not cases:
        return []
    vertices = [case.place if case.is_lag else 2 * case.place + 1 for case in cases]
    part = _Part.of(graph)
    on_path = part.longest_path()
    sure_ns = np.array([
        case.less_ns[on_path[part.place[vertex]] >= (1 if case.is_lag else 2)].sum()
        for vertex, case in zip(vertices, cases, strict=True)
    ])  # fmt: skip
    ends_ns = np.zeros(len(cases), np.int64)
    left = np.argsort(-sure_ns, kind="stable")
    while len(left):
        part = part.within(int(sure_ns[left[0]]))
        about = np.cumsum([len(vertices[at]) for at in left[:_AT_A_TIME]])
        few = max(1, int((about <= len(part.time_ns) // _CHANGED).sum()))
        some, left = left[:few].tolist(), left[few:]
        ends_ns[some] = part.ends_ns([vertices[at] for at in some], [cases[at] for at in some])
    found: list[int] = ends_ns.tolist()
    return found


@dataclass(frozen=True, slots=True)
class _Part:
    """Vertices of a graph in topological order, and the edges among them: time = max(time of source + weight)."""

    place: Int32  # of each vertex of the graph here, -1 for those that are not here
    offsets: Int32
    source: Int32
    weight: Int64
    own: Bool  # which edges are inside a slice
    time_ns: Int64
    slack_ns: Int64
    counted: Bool

    @classmethod
    def of(cls, graph: DependencyGraph) -> _Part:
        """All of a graph."""
        vertices, edges = graph.vertices, len(graph.source)
        place, offsets = np.empty(vertices, np.int32), np.empty(vertices + 1, np.int32)
        source, weight, own = np.empty(edges, np.int32), np.empty(edges, np.int64), np.empty(edges, bool)
        given = graph.offsets, graph.source, graph.kind, graph.advance_ns, graph.work_ns, graph.lag_ns
        _arrange(graph.order, *given, place, offsets, source, weight, own)
        time_ns, slack_ns = graph.time_ns[graph.order], np.empty(vertices, np.int64)
        counted = (graph.order % 2 == 1) & graph.counted[graph.order >> 1]
        _measure(offsets, source, weight, time_ns, counted, int(time_ns[counted].max()), slack_ns)
        return cls(place, offsets, source, weight, own, time_ns, slack_ns, counted)

    def longest_path(self) -> Int8:
        """One path as long as the window: 1 for its vertices, 2 for those that it comes to from the start of a slice."""
        on_path = np.zeros(len(self.time_ns), np.int8)
        last = np.flatnonzero(self.counted & (self.slack_ns == 0))[-1]
        _walk(int(last), self.offsets, self.source, self.weight, self.own, self.time_ns, on_path)
        return on_path

    def within(self, slack_ns: int) -> _Part:
        """The vertices with at most so much slack; all where that leaves out few."""
        kept = self.slack_ns <= slack_ns
        vertices, edges = int(np.count_nonzero(kept)), len(self.source)
        if vertices > _WORTH_COPYING * len(kept):
            return self
        place, offsets = self.place.copy(), np.empty(vertices + 1, np.int32)
        source, weight, own = np.empty(edges, np.int32), np.empty(edges, np.int64), np.empty(edges, bool)
        moved = np.empty(len(kept), np.int32)
        of = kept, self.offsets, self.source, self.weight, self.own
        edges = int(_keep(*of, moved, place, offsets, source, weight, own))
        return _Part(
            place,
            offsets,
            source[:edges],
            weight[:edges],
            own[:edges],
            self.time_ns[kept],
            self.slack_ns[kept],
            self.counted[kept],
        )

    def ends_ns(self, vertices: Sequence[Int64], cases: Sequence[Shorter]) -> Int64:
        """When the window would end in each case."""
        about = np.concatenate([self.place[vertex] for vertex in vertices])
        if len(cases) > 1:
            about, *graph, time_ns, last_ns = self._contracted(about)
        else:
            graph, time_ns = [self.offsets, self.source, self.weight, self.own], self.time_ns
            last_ns = np.where(self.counted, 0, -_FAR)
        begin = np.append(0, np.cumsum([len(vertex) for vertex in vertices]))
        less_ns = np.concatenate([case.less_ns for case in cases]).astype(np.int64, copy=False)
        is_lag, ends_ns = np.array([case.is_lag for case in cases]), np.empty(len(cases), np.int64)
        _replay(begin, about, less_ns, is_lag, *graph, time_ns, last_ns, time_ns.copy(), ends_ns)
        return ends_ns

    def _contracted(self, about: Int32) -> tuple[Int32, Int32, Int32, Int64, Bool, Int64, Int64]:
        """Places of some vertices, and the graph of these and of what waits for several others, in columns."""
        vertices, edges = len(self.time_ns), len(self.source)
        kept = np.zeros(vertices + 1, bool)  # the last stands for vertices that are not here
        kept[about] = True
        place, offsets = np.empty(vertices + 1, np.int32), np.empty(vertices + 1, np.int32)
        place[-1] = -1
        after_ns, time_ns, last_ns = np.empty((3, vertices), np.int64)
        source, weight, own = np.empty(edges, np.int32), np.empty(edges, np.int64), np.empty(edges, bool)
        of = self.offsets, self.source, self.weight, self.own, self.time_ns, self.counted
        left = int(_contract(kept, *of, place, after_ns, offsets, source, weight, own, time_ns, last_ns))
        return place[about], offsets[: left + 1], source, weight, own, time_ns[:left], last_ns[:left]


@Compiled
def _arrange(
    order: Int32,
    offsets: Int32,
    source: Int32,
    kind: Int8,
    advance: Int32,
    work: Int64,
    lag: Int64,
    place: Int32,
    new_offsets: Int32,
    new_source: Int32,
    weight: Int64,
    own: Bool,
) -> None:
    for i in range(len(order)):
        place[order[i]] = i
    filled = 0
    for i in range(len(order)):
        v = order[i]
        new_offsets[i] = filled
        for e in range(offsets[v], offsets[v + 1]):
            own[filled] = kind[e] == _SELF
            new_source[filled] = place[source[e]]
            weight[filled] = lag[v] - advance[e] + (work[v >> 1] if kind[e] == _SELF else 0)
            filled += 1
    new_offsets[len(order)] = filled


@Compiled
def _measure(offsets: Int32, source: Int32, weight: Int64, time: Int64, counted: Bool, end: int, slack: Int64) -> None:
    for v in range(len(time)):
        slack[v] = end - time[v] if counted[v] else _FAR
    for v in range(len(time) - 1, -1, -1):
        if slack[v] < _FAR:
            for e in range(offsets[v], offsets[v + 1]):
                u = source[e]
                slack[u] = min(slack[u], slack[v] + time[v] - weight[e] - time[u])


@Compiled
def _walk(v: int, offsets: Int32, source: Int32, weight: Int64, own: Bool, time: Int64, on_path: Int8) -> None:
    at = np.int64(v)
    while at >= 0:
        on_path[at] = 1
        before = np.int64(-1)
        for e in range(offsets[at], offsets[at + 1]):
            if before < 0 and time[source[e]] + weight[e] == time[at]:
                before = source[e]
                if own[e]:
                    on_path[at] = 2
        at = before


@Compiled
def _keep(
    kept: Bool,
    offsets: Int32,
    source: Int32,
    weight: Int64,
    own: Bool,
    moved: Int32,
    place: Int32,
    new_offsets: Int32,
    new_source: Int32,
    new_weight: Int64,
    new_own: Bool,
) -> int:
    """Fill the columns of a part of a part; return how many edges it has."""
    vertices, filled = 0, 0
    for v in range(len(kept)):
        moved[v] = -1
        if not kept[v]:
            continue
        moved[v], new_offsets[vertices] = vertices, filled
        vertices += 1
        for e in range(offsets[v], offsets[v + 1]):
            if kept[source[e]]:
                new_source[filled], new_weight[filled], new_own[filled] = moved[source[e]], weight[e], own[e]
                filled += 1
    new_offsets[vertices] = filled
    for v in range(len(place)):
        if place[v] >= 0:
            place[v] = moved[place[v]]
    return filled


@Compiled
def _contract(
    kept: Bool,
    offsets: Int32,
    source: Int32,
    weight: Int64,
    own: Bool,
    time: Int64,
    counted: Bool,
    place: Int32,
    after: Int64,
    new_offsets: Int32,
    new_source: Int32,
    new_weight: Int64,
    new_own: Bool,
    new_time: Int64,
    last: Int64,
) -> int:
    """Fill the columns of a graph without vertices that wait for a single other; return how many are left.

    place and after: where the vertex is, or the one that a vertex waits for in the end, and how long after it it comes.
    last: how long after a vertex the last comes that is counted and waits for it alone.
    """
    vertices, filled = 0, 0
    for v in range(len(time)):
        if offsets[v + 1] - offsets[v] == 1 and not kept[v]:
            e = offsets[v]
            place[v], after[v] = place[source[e]], after[source[e]] + weight[e]
        else:
            place[v], after[v], new_offsets[vertices] = vertices, 0, filled
            new_time[vertices], last[vertices] = time[v], -_FAR
            vertices += 1
            for e in range(offsets[v], offsets[v + 1]):
                new_source[filled], new_own[filled] = place[source[e]], own[e]
                new_weight[filled] = weight[e] + after[source[e]]
                filled += 1
        if counted[v]:
            last[place[v]] = max(last[place[v]], after[v])
    new_offsets[vertices] = filled
    return vertices


@Compiled
def _replay(
    begin: Int64,
    vertex: Int32,
    less: Int64,
    is_lag: Bool,
    offsets: Int32,
    source: Int32,
    weight: Int64,
    own: Bool,
    measured: Int64,
    last: Int64,
    time: Int64,
    ends: Int64,
) -> None:
    """Fill the ends of cases; `time` is measured before, and the weights are in the end as they were."""
    for case in range(len(ends)):
        first = _lengthen(vertex, less, -1, begin[case], begin[case + 1], is_lag[case], offsets, weight, own)
        end = np.int64(-_FAR)
        for v in range(len(time)):
            if v >= first:
                latest = np.int64(-_FAR)
                for e in range(offsets[v], offsets[v + 1]):
                    latest = max(latest, time[source[e]] + weight[e])
                if latest > -_FAR:
                    time[v] = latest
            if last[v] > -_FAR:
                end = max(end, time[v] + last[v])
        ends[case] = end
        for v in range(first, len(time)):
            time[v] = measured[v]
        _lengthen(vertex, less, 1, begin[case], begin[case + 1], is_lag[case], offsets, weight, own)


@Compiled
def _lengthen(
    vertex: Int32, less: Int64, times: int, begin: int, end: int, is_lag: int, offsets: Int32, weight: Int64, own: Bool
) -> int:
    """Add to the weights what one case shortens; return the first vertex that this concerns."""
    first = len(offsets) - 1
    for k in range(begin, end):
        v = vertex[k]
        if v >= 0:
            first = min(first, v)
            for e in range(offsets[v], offsets[v + 1]):
                if is_lag or own[e]:
                    weight[e] += times * less[k]
    return first
