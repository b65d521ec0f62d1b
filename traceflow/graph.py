"""The dependency graph of a trace: slices of work, what each had to wait for, and replay.

A slice has two vertices, its start (2 i) and its end (2 i + 1). Every edge binds its target to come no
earlier than its source; the edge from a slice's start to its end also carries the slice's work. What no edge
explains is a lag: lag(v) = time(v) - latest bound over the edges into v.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Int64: TypeAlias = NDArray[np.int64]
Int32: TypeAlias = NDArray[np.int32]
Int8: TypeAlias = NDArray[np.int8]
Bool: TypeAlias = NDArray[np.bool_]
Float64: TypeAlias = NDArray[np.float64]
Rows: TypeAlias = NDArray[np.integer]

NO_EVENT = -1
NO_LANE = -1
_NEVER = np.iinfo(np.int64).max


class SliceKind(IntEnum):
    """What a slice is on the critical path. The first five work; the others only wait or join."""

    COMPUTE = 0
    TRANSFER = 1  # the part of a collective after its last participant arrived
    COMMUNICATION = 2  # a collective whose participants are not all known, unsplit
    COPY = 3
    HOST = 4
    BLOCKED = 5  # a call that waits for the device: its end is bound by what it waited for
    ARRIVED = 6  # the part of a collective before its last participant arrived
    JOIN = 7  # no time: the arrival of the last participant, or the start of the window


WORKS = frozenset({SliceKind.COMPUTE, SliceKind.TRANSFER, SliceKind.COMMUNICATION, SliceKind.COPY, SliceKind.HOST})


class EdgeKind(IntEnum):
    """Why the target of an edge cannot come before its source."""

    SELF = 0  # start of a slice to its end
    PROGRAM_ORDER = 1
    LAUNCH = 2
    GRAPH_LAUNCH = 3
    STREAM_ORDER = 4
    EVENT_WAIT = 5
    HOST_SYNCHRONISATION = 6
    HAND_OFF = 7
    DATA = 8
    RENDEZVOUS = 9
    SEND_RECEIVE = 10

    @property
    def label(self) -> str:
        """As the JSON contract names it.

        Example:
            >>> EdgeKind.HAND_OFF.label, EdgeKind.SEND_RECEIVE.label
            ('hand-off', 'send-receive')
        """
        return self.name.lower().replace("_", "-")


CAN_DELAY = frozenset(
    {
        EdgeKind.PROGRAM_ORDER,
        EdgeKind.LAUNCH,
        EdgeKind.GRAPH_LAUNCH,
        EdgeKind.HOST_SYNCHRONISATION,
        EdgeKind.HAND_OFF,
    }
)
"""Edges that take time of their own: launch latency, return from a call, a thread waking up."""


@dataclass(frozen=True, slots=True)
class Slices:
    """One row per slice, sorted by lane and start; joins, which belong to no lane, come last."""

    time_ns: Int64  # start and end of each in turn: the vertices
    lane: Int32  # row of the trace's lanes, NO_LANE for joins
    event: Int32  # row of the trace's events, NO_EVENT for joins
    kind: Int8  # SliceKind

    @classmethod
    def between(cls, start_ns: Int64, end_ns: Int64, lane: Int32, event: Int32, kind: Int8) -> Slices:
        """Slices whose starts and ends are in columns of their own."""
        return cls(np.column_stack((start_ns, end_ns)).ravel(), lane, event, kind)

    def __len__(self) -> int:
        return len(self.kind)

    @property
    def start_ns(self) -> Int64:
        """When each starts."""
        return self.time_ns[0::2]

    @property
    def end_ns(self) -> Int64:
        """When each ends."""
        return self.time_ns[1::2]

    @property
    def work_ns(self) -> Int64:
        """Duration of the slices that work, 0 for those that only wait."""
        only_waits = ~np.isin(np.arange(len(SliceKind)), list(WORKS))
        work_ns = self.end_ns - self.start_ns
        work_ns[only_waits[self.kind]] = 0
        return work_ns


@dataclass(frozen=True, slots=True)
class Edges:
    """Edges of one kind between vertices, before they are checked against the clock."""

    source: Rows
    target: Rows
    kind: EdgeKind

    def __len__(self) -> int:
        return len(self.source)


@dataclass(frozen=True, slots=True)
class DependencyGraph:
    """Slices and edges in CSR arrays: `source[offsets[v]:offsets[v + 1]]` are the vertices that bind v."""

    slices: Slices
    counted: Bool  # the slices whose end can be the end of the window
    start_ns: int
    end_ns: int
    time_ns: Int64  # measured time of each vertex
    work_ns: Int64
    offsets: Int32
    source: Int32
    kind: Int8
    advance_ns: Int32  # how much before its source an edge's target may come: the clock's resolution at most
    order: Int32  # a topological order of the vertices
    binding: Int32  # the edge with the latest bound on each vertex, -1 without edges
    lag_ns: Int64
    contradicted: Mapping[EdgeKind, int]  # edges left out because the timestamps deny them

    @property
    def vertices(self) -> int:
        """Number of vertices, two per slice."""
        return len(self.time_ns)

    def targets(self) -> Int32:
        """The vertex that each edge binds, shape (edges,)."""
        return np.repeat(np.arange(self.vertices, dtype=np.int32), np.diff(self.offsets))

    def end_vertex(self) -> int:
        """The end of the counted slice that ends last; of several, the one that works, then the first."""
        ends = np.where(self.counted, self.slices.end_ns, np.iinfo(np.int64).min)
        last = np.flatnonzero(ends == ends.max())
        working = last[self.work_ns[last] > 0]
        return int(2 * (working if len(working) else last)[0] + 1)

    def replay(self, *, work_ns: Int64 | None = None, lag_ns: Int64 | None = None, cut: Bool | None = None) -> Int64:
        """Time of every vertex in ns when work, lags or edges change; unchanged, exactly the measured times.

        time(v) = max over edges into v that are not cut of (time(source) + work along the edge) + lag(v)

        Args:
            work_ns: Work of each slice, shape (slices,); measured where None.
            lag_ns: Lag of each vertex, shape (vertices,); measured where None.
            cut: Edges to leave out, shape (edges,).

        Complexity: O(vertices + edges).
        """
        from traceflow._replay import replay

        times: Int64 = replay(
            self.time_ns,
            self.order,
            self.work_ns if work_ns is None else work_ns,
            self.lag_ns if lag_ns is None else lag_ns,
            self.offsets,
            self.source,
            self.kind,
            self.advance_ns,
            np.zeros(len(self.source), bool) if cut is None else cut,
        )
        return times

    def replay_bounds(self, *, work_ns: Int64, delay: Float64, cut: Bool) -> tuple[Int64, Int64]:
        """Earliest and latest time of every vertex that the measurement allows, in ns.

        A measured start tells only the sum of a bound and a latency. Where several edges bind a vertex, a
        latency may hide behind another edge; the two times enclose every way to attribute it.

        Args:
            work_ns: Work of each slice, shape (slices,).
            delay: What the latency of each edge is multiplied by, hidden or not, shape (edges,).
            cut: Edges to leave out, shape (edges,).
        """
        from traceflow._replay import replay_bounds

        can_delay = np.isin(np.arange(len(EdgeKind)), list(CAN_DELAY))
        low, high = replay_bounds(
            self.time_ns,
            self.order,
            self.work_ns,
            work_ns,
            self.binding,
            self.offsets,
            self.source,
            self.kind,
            self.advance_ns,
            delay,
            cut,
            can_delay,
        )
        return low, high

    def end_of(self, time_ns: Int64) -> int:
        """Latest end of the counted slices among the given vertex times."""
        return int(time_ns[1::2][self.counted].max())

    def latest_ns(self) -> Int64:
        """Latest time of every vertex with the end of the window fixed and all lags kept, in ns."""
        from traceflow._replay import latest

        late: Int64 = latest(
            self.time_ns,
            self.order,
            self.work_ns,
            self.lag_ns,
            self.offsets,
            self.source,
            self.kind,
            self.advance_ns,
            self.end_ns,
        )
        return late

    def path(self) -> Int32:
        """Vertices of the critical path in time order, from the start of the window to its end."""
        from traceflow._replay import walk_back

        back: Int32 = walk_back(self.time_ns, self.binding, self.source, self.end_vertex(), self.start_ns)
        return back[::-1]


def dependency_graph(
    slices: Slices, edges: Iterable[Edges], *, counted: Bool | None = None, resolution_ns: int = 0
) -> DependencyGraph:
    """Assemble a graph; edges that the timestamps contradict, or that close a cycle, are left out and counted.

    Args:
        slices: The vertices.
        edges: Every edge between different slices; the edges inside slices are added here. Given as an iterator, they
            take no memory any more once they are grouped.
        counted: Slices that can end the window; all that belong to a lane where None.
        resolution_ns: A target that comes before its source by no more than this is rounding, no contradiction:
            the edge binds, less the difference.

    Complexity: O(slices + edges).
    """
    from traceflow._replay import topological_order

    csr, contradicted = _grouped(slices.time_ns, list(edges), resolution_ns)
    order, closing = topological_order(*csr[:3])
    contradicted.update(EdgeKind(kind) for kind in csr[2][closing].tolist())
    if closing.any():
        csr = _without(csr, closing)
    if counted is None:
        counted = slices.lane != NO_LANE
    return _bound(slices, counted, csr, order, {kind: contradicted[kind] for kind in EdgeKind if contradicted[kind]})


_Csr: TypeAlias = tuple[Int32, Int32, Int8, Int32]
"""Offsets, sources, kinds and advances of the edges, by target."""


def _grouped(time_ns: Int64, edges: Sequence[Edges], resolution_ns: int) -> tuple[_Csr, Counter[EdgeKind]]:
    """The edges by target, and how many were left out because their timestamps deny them."""
    from traceflow._replay import by_target

    ends = [[end.astype(np.int32, copy=False) for end in (one.source, one.target)] for one in edges]
    csr, late = by_target(time_ns, ends, [int(one.kind) for one in edges], resolution_ns)
    denied = Counter[EdgeKind]()
    for one, number in zip(edges, late, strict=True):
        denied[one.kind] += number
    return csr, denied


def _without(csr: _Csr, edges: Bool) -> _Csr:
    """All but some edges."""
    offsets, source, kind, advance_ns = csr
    before = np.append(np.int32(0), np.cumsum(~edges, dtype=np.int32))
    return before[offsets], source[~edges], kind[~edges], advance_ns[~edges]


def _bound(
    slices: Slices, counted: Bool, csr: _Csr, order: Int32, contradicted: Mapping[EdgeKind, int]
) -> DependencyGraph:
    from traceflow._replay import bindings

    work_ns = slices.work_ns
    binding, lag_ns = bindings(slices.time_ns, work_ns, slices.lane, *csr)
    return DependencyGraph(
        slices,
        counted,
        int(np.min(slices.start_ns, where=counted, initial=_NEVER)) if counted.any() else 0,
        int(np.max(slices.end_ns, where=counted, initial=-_NEVER)) if counted.any() else 0,
        slices.time_ns,
        work_ns,
        *csr,
        order,
        binding,
        lag_ns,
        contradicted,
    )


def window(graph: DependencyGraph, start_ns: int, end_ns: int, *, counted: Bool) -> DependencyGraph:
    """The part of a graph inside a window.

    A slice that began earlier is clipped to the start; what a slice waited for before the start binds it to
    the start of the window. Nothing after the end takes part.

    Args:
        graph: The graph of the whole capture.
        start_ns: Start of the window.
        end_ns: End of the window, the latest end of a counted slice.
        counted: The slices whose end can end the window, shape (slices,).
    """
    slices = graph.slices
    inside = ((slices.end_ns > start_ns) | (slices.start_ns >= start_ns)) & (slices.start_ns <= end_ns)
    rows = np.flatnonzero(inside)
    origin = len(rows)
    renumber = np.full(len(slices), origin, np.int32)
    renumber[rows] = np.arange(origin)
    part = Slices.between(
        np.append(np.maximum(slices.start_ns[rows], start_ns), start_ns),
        np.append(np.minimum(slices.end_ns[rows], end_ns), start_ns),
        np.append(slices.lane[rows], np.int32(NO_LANE)),
        np.append(slices.event[rows], np.int32(NO_EVENT)),
        np.append(slices.kind[rows], np.int8(SliceKind.JOIN)),
    )
    edges = _inside(graph, rows, renumber, start_ns, end_ns)
    clipped = dependency_graph(
        part, edges, counted=np.append(counted[rows], False), resolution_ns=int(graph.advance_ns.max(initial=0))
    )
    return replace(clipped, start_ns=start_ns, end_ns=end_ns, contradicted=graph.contradicted)


def rebound(graph: DependencyGraph, time_ns: Int64, work_ns: Int64, cut: Bool) -> DependencyGraph:
    """The same graph at other times, such as those of a replay: its path and lags follow them.

    Args:
        graph: The measured graph.
        time_ns: New time of each vertex, shape (vertices,).
        work_ns: New work of each slice, shape (slices,).
        cut: Edges that no longer bind, shape (edges,).
    """
    from traceflow._replay import bindings

    csr = _without((graph.offsets, graph.source, graph.kind, graph.advance_ns), cut)
    slices = replace(graph.slices, time_ns=time_ns)
    binding, lag_ns = bindings(time_ns, work_ns, slices.lane, *csr)
    return replace(
        graph,
        slices=slices,
        end_ns=int(slices.end_ns[graph.counted].max()),
        time_ns=time_ns,
        work_ns=work_ns,
        offsets=csr[0],
        source=csr[1],
        kind=csr[2],
        advance_ns=csr[3],
        binding=binding,
        lag_ns=lag_ns,
    )


def _inside(graph: DependencyGraph, rows: Rows, renumber: Int32, start_ns: int, end_ns: int) -> list[Edges]:
    """Edges into vertices of the window; what came before the start is represented by the origin's end."""
    target, edge = _into(graph, np.column_stack((2 * rows, 2 * rows + 1)).ravel())
    time_ns, source, kind, origin = graph.time_ns, graph.source[edge], graph.kind[edge], len(rows)
    keep = (kind != EdgeKind.SELF) & (time_ns[target] >= start_ns) & (time_ns[target] <= end_ns)
    source, target, kind = source[keep], target[keep], kind[keep]
    early = time_ns[source] < start_ns
    new_source = np.where(early, 2 * origin + 1, 2 * renumber[source >> 1] + (source & 1))
    new_target = 2 * renumber[target >> 1] + (target & 1)
    order = np.argsort(kind, kind="stable")
    bounds = np.searchsorted(kind[order], np.arange(len(EdgeKind) + 1, dtype=np.int8))
    parts = [(of, order[bounds[of] : bounds[of + 1]]) for of in EdgeKind if bounds[of] < bounds[of + 1]]
    return [Edges(new_source[part], new_target[part], of) for of, part in parts]


def _into(graph: DependencyGraph, vertices: Rows) -> tuple[Rows, Rows]:
    """The edges into some vertices, vertex by vertex: the vertex, and where to find the edge."""
    first = graph.offsets[vertices]
    count = graph.offsets[vertices + 1] - first
    before = np.cumsum(count) - count
    return np.repeat(vertices, count), np.repeat(first - before, count) + np.arange(int(count.sum()))
