"""Sweeps over a dependency graph, as machine code. Used by traceflow.graph alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from traceflow.compiled import Compiled

Int64 = NDArray[np.int64]
Int32 = NDArray[np.int32]
Int8 = NDArray[np.int8]
Bool = NDArray[np.bool_]
Float64 = NDArray[np.float64]

_MOST_NS = 2**31 - 1
SELF = 0
RENDEZVOUS = 9


def by_target(
    time: Int64, ends: Sequence[Sequence[Int32]], kinds: Sequence[int], resolution: int
) -> tuple[tuple[Int32, Int32, Int8, Int32], list[int]]:
    """Group edges by the vertex they lead to, in their order, behind the edge of each slice from its start to its end.

    Args:
        time: Of the vertices.
        ends: Sources and targets of some edges that are of one kind, and so on.
        kinds: Their kinds.
        resolution: Edges whose target comes before its source by more than this are left out.

    Returns:
        Offsets, sources, kinds, and how long before its source the target of each edge comes; and how many of each of
        the given edges were left out.
    """
    offsets = np.zeros(len(time) + 2, np.int32)  # where the next edge into each vertex goes, one place behind it
    late = [_count(time, source, target, resolution, offsets) for source, target in ends]
    count = len(time) // 2 + sum(len(source) for source, _ in ends) - sum(late)
    columns = np.empty(count, np.int32), np.empty(count, np.int8), np.empty(count, np.int32)
    _begin(offsets, *columns)
    for (source, target), kind in zip(ends, kinds, strict=True):
        _place(time, source, target, kind, resolution, offsets, *columns)
    return (offsets[:-1], *columns), late


@Compiled
def _advance(time: Int64, source: int, target: int) -> int:
    """How long before its source a target comes: 0 where it does not, and at most what 32 bits hold."""
    return min(max(time[source] - time[target], 0), _MOST_NS)


@Compiled
def _count(time: Int64, source: Int32, target: Int32, resolution: int, offsets: Int32) -> int:
    """Count the edges into each vertex, two places behind it; return how many come too late."""
    late = 0
    for e in range(len(source)):
        if _advance(time, source[e], target[e]) > resolution:
            late += 1
        else:
            offsets[target[e] + 2] += 1
    return late


@Compiled
def _begin(offsets: Int32, sources: Int32, kinds: Int8, advances: Int32) -> None:
    """Turn numbers of edges into where those of each vertex begin, behind the edges inside slices, which are put there."""
    for v in range(len(offsets) - 2):
        offsets[v + 2] += offsets[v + 1] + v % 2
        if v % 2 == 1:
            at = offsets[v + 1]
            sources[at], kinds[at], advances[at] = v - 1, SELF, 0
            offsets[v + 1] += 1


@Compiled
def _place(
    time: Int64,
    source: Int32,
    target: Int32,
    kind: int,
    resolution: int,
    offsets: Int32,
    sources: Int32,
    kinds: Int8,
    advances: Int32,
) -> None:
    """Put edges where the next one into their target goes."""
    for e in range(len(source)):
        advance = _advance(time, source[e], target[e])
        if advance <= resolution:
            at = offsets[target[e] + 1]
            sources[at], kinds[at], advances[at] = source[e], kind, advance
            offsets[target[e] + 1] += 1


def topological_order(offsets: Int32, source: Int32, kind: Int8) -> tuple[Int32, Bool]:
    """Vertices so that every edge leads forward, by depth-first search over predecessors.

    An edge that closes a cycle (only possible among vertices of one instant) is left out and marked; never the one
    inside a slice: in its place goes the edge by which the search left the slice's start.
    """
    vertices = len(offsets) - 1
    order, closing = np.empty(vertices, np.int32), np.zeros(len(source), bool)
    _sort(offsets, source, kind, np.empty(vertices, np.int32), np.zeros(vertices, np.int32), order, closing)
    return order, closing


@Compiled
def _sort(
    offsets: Int32, source: Int32, kind: Int8, stack: Int32, progress: Int32, order: Int32, closing: Bool
) -> None:
    """Fill the order, and mark what closes.

    `progress` is 0 of new vertices, -1 of done ones, and of those on the stack one more than the edges looked at.
    """
    filled = 0
    for root in range(len(progress)):
        if progress[root] != 0:
            continue
        stack[0], depth, progress[root] = root, 1, 1
        while depth > 0:
            v = stack[depth - 1]
            e = offsets[v] + progress[v] - 1
            if e == offsets[v + 1]:
                progress[v], order[filled] = -1, v
                filled += 1
                depth -= 1
                continue
            progress[v] += 1
            u = source[e]
            if progress[u] > 0 and kind[e] == SELF:
                while stack[depth - 1] != u:  # search again from u, without that edge
                    w = stack[depth - 1]
                    progress[w] = 0
                    for entered in range(offsets[w], offsets[w + 1]):
                        closing[entered] = False
                    depth -= 1
                closing[offsets[u] + progress[u] - 2] = True
            elif progress[u] > 0:
                closing[e] = True
            elif progress[u] == 0:
                progress[u], stack[depth] = 1, u
                depth += 1


def bindings(
    time: Int64, work: Int64, lane: Int32, offsets: Int32, source: Int32, kind: Int8, advance: Int32
) -> tuple[Int32, Int64]:
    """The edge with the latest bound on each vertex (-1 without edges), and the lag behind that bound.

    Ties: a rendezvous first, since of equal arrivals all participants name the same one as the last; then an
    edge from the same lane; then the smallest source.
    """
    vertices = len(offsets) - 1
    binding, lag = np.full(vertices, -1, np.int32), np.zeros(vertices, np.int64)
    _bind(time, work, lane, offsets, source, kind, advance, binding, lag)
    return binding, lag


@Compiled
def _bind(
    time: Int64,
    work: Int64,
    lane: Int32,
    offsets: Int32,
    source: Int32,
    kind: Int8,
    advance: Int32,
    binding: Int32,
    lag: Int64,
) -> None:
    for v in range(len(binding)):
        best, rank = np.int64(0), 0
        for e in range(offsets[v], offsets[v + 1]):
            u = source[e]
            bound = time[u] - advance[e] + (work[v >> 1] if kind[e] == SELF else 0)
            own = 0 if kind[e] == RENDEZVOUS else 1 if lane[u >> 1] == lane[v >> 1] else 2
            better = binding[v] < 0 or bound > best
            if not better and bound == best:
                better = own < rank or (own == rank and u < source[binding[v]])
            if better:
                binding[v], best, rank = e, bound, own
        if binding[v] >= 0:
            lag[v] = time[v] - best


def replay(
    measured: Int64,
    order: Int32,
    work: Int64,
    lag: Int64,
    offsets: Int32,
    source: Int32,
    kind: Int8,
    advance: Int32,
    cut: Bool,
) -> Int64:
    """Time of each vertex: its latest bound plus its lag; the measured time where nothing binds it."""
    time = measured.copy()
    _run(time, order, work, lag, offsets, source, kind, advance, cut)
    return time


@Compiled
def _run(
    time: Int64,
    order: Int32,
    work: Int64,
    lag: Int64,
    offsets: Int32,
    source: Int32,
    kind: Int8,
    advance: Int32,
    cut: Bool,
) -> None:
    for v in order:
        bound, bound_by = np.int64(0), False
        for e in range(offsets[v], offsets[v + 1]):
            if cut[e]:
                continue
            candidate = time[source[e]] - advance[e] + (work[v >> 1] if kind[e] == SELF else 0)
            if not bound_by or candidate > bound:
                bound, bound_by = candidate, True
        if bound_by:
            time[v] = bound + lag[v]


def latest(
    time: Int64,
    order: Int32,
    work: Int64,
    lag: Int64,
    offsets: Int32,
    source: Int32,
    kind: Int8,
    advance: Int32,
    end: int,
) -> Int64:
    """The latest time of each vertex that still lets everything end at `end`, lags kept."""
    late = np.full(len(time), end, np.int64)
    _run_back(late, order, work, lag, offsets, source, kind, advance)
    return late


@Compiled
def _run_back(
    late: Int64, order: Int32, work: Int64, lag: Int64, offsets: Int32, source: Int32, kind: Int8, advance: Int32
) -> None:
    for i in range(len(order) - 1, -1, -1):
        v = order[i]
        for e in range(offsets[v], offsets[v + 1]):
            allowed = late[v] - lag[v] + advance[e] - (work[v >> 1] if kind[e] == SELF else 0)
            late[source[e]] = min(late[source[e]], allowed)


def replay_bounds(
    measured: Int64,
    order: Int32,
    old_work: Int64,
    work: Int64,
    binding: Int32,
    offsets: Int32,
    source: Int32,
    kind: Int8,
    advance: Int32,
    delay: Float64,
    cut: Bool,
    can_delay: Bool,
) -> tuple[Int64, Int64]:
    """Earliest and latest time of each vertex over every way to share its lag among its edges.

    The measurement says only that max over edges of (bound + latency) was `measured`. An edge whose kind can
    delay may have had any latency up to `measured - bound`, hidden behind another; the others had none.
    """
    low, high = measured.copy(), measured.copy()
    columns = order, old_work, work, binding, offsets, source, kind, advance, delay, cut, can_delay
    _run_bounds(measured, *columns, low, high)
    return low, high


@Compiled
def _run_bounds(
    measured: Int64,
    order: Int32,
    old_work: Int64,
    work: Int64,
    binding: Int32,
    offsets: Int32,
    source: Int32,
    kind: Int8,
    advance: Int32,
    delay: Float64,
    cut: Bool,
    can_delay: Bool,
    low: Int64,
    high: Int64,
) -> None:
    for v in order:
        some, reached, has_cause = False, False, False
        floor_low, floor_high, cause_low, cause_high = np.int64(0), np.int64(0), np.int64(0), np.int64(0)
        for e in range(offsets[v], offsets[v + 1]):
            if cut[e]:
                continue
            u = source[e]
            before = measured[u] - advance[e] + (old_work[v >> 1] if kind[e] == SELF else 0)
            after = (work[v >> 1] if kind[e] == SELF else np.int64(0)) - advance[e]
            bound_low, bound_high = low[u] + after, high[u] + after
            floor_low = bound_low if not some else max(floor_low, bound_low)
            floor_high = bound_high if not some else max(floor_high, bound_high)
            some = True
            if before == measured[v]:
                reached = True
            if can_delay[kind[e]] or e == binding[v]:
                hidden = measured[v] - before
                if delay[e] != 1:
                    hidden = np.int64(np.rint(hidden * delay[e]))
                cause_low = bound_low + hidden if not has_cause else min(cause_low, bound_low + hidden)
                cause_high = bound_high + hidden if not has_cause else max(cause_high, bound_high + hidden)
                has_cause = True
        if not some:
            continue
        low[v] = max(floor_low, cause_low) if has_cause and not reached else floor_low
        high[v] = max(floor_high, cause_high) if has_cause else floor_high


def walk_back(time: Int64, binding: Int32, source: Int32, end_vertex: int, start: int) -> Int32:
    """The vertices of the critical path, last first, until the start of the window or a vertex nothing binds."""
    path = np.empty(len(time), np.int32)
    length = _walk(time, binding, source, end_vertex, start, path)
    return path[:length].copy()


@Compiled
def _walk(time: Int64, binding: Int32, source: Int32, vertex: int, start: int, path: Int32) -> int:
    length = 0
    while True:
        path[length] = vertex
        length += 1
        if time[vertex] <= start or binding[vertex] < 0:
            return length
        vertex = source[binding[vertex]]
