"""The neighbours of a critical path: what each of its segments had to wait for, and what waited for it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from traceflow.analyzers.critical_path import entered_at, pieces_of
from traceflow.analyzers.dependencies import Dependencies
from traceflow.analyzers.window import in_window
from traceflow.graph import NO_LANE, DependencyGraph, EdgeKind, SliceKind
from traceflow.trace.model import ABSENT, Int64, Rows, Trace

MOST = 6  # neighbours on either side, the ones with least to spare


@dataclass(frozen=True, slots=True)
class Neighbour:
    """Work that a segment had to wait for, or that waited for the segment."""

    edge: str  # why, as the JSON contract names it
    rank: int
    device: int | None  # None for host work
    lane: str
    name: str
    gap_ns: int  # between the end of what came first and the start of what came then
    slack_ns: int  # how much later it could have been there without moving the end of the window
    segment: int | None  # which segment of the path it is; None where it does not lie on it


@dataclass(frozen=True, slots=True)
class Neighbours:
    """The neighbours of each segment asked for, in the order of `segment`."""

    segment: tuple[int, ...]  # rows of the path
    slack_ns: tuple[int, ...]  # of the segment itself; 0 unless the clock's resolution hides a little
    before: tuple[tuple[Neighbour, ...], ...]
    after: tuple[tuple[Neighbour, ...], ...]


def neighbours(
    trace: Trace, found: Dependencies, *, step: int | None = None, segments: Sequence[int] | None = None
) -> Neighbours:
    """What each segment of a critical path had to wait for, and what waited for it.

    slack = latest(v) - time(v), where latest keeps the end of the window and all lags; gap = time between both. Where
    work met in a collective, the neighbours are its participants.

    Args:
        trace: The evidence.
        found: Its dependencies.
        step: Which step; the whole capture where None.
        segments: Which rows of the path; all where None.

    Returns:
        At most `MOST` neighbours on either side of a segment: those that bound it most closely, and those that could
        wait least.

    Raises:
        TraceflowError: TF104 without work, TF111 without such a step.
    """
    graph = in_window(trace, found, step)[1]
    pieces = pieces_of(graph)
    rows = range(len(pieces.vertex)) if segments is None else segments
    around = _Around(trace, graph, {int(v) >> 1: i for i, v in enumerate(pieces.vertex) if pieces.work[i]})
    into = entered_at(graph, pieces.vertex, pieces.work)
    ends = [int(pieces.vertex[row]) for row in rows]
    return Neighbours(
        tuple(rows),
        tuple(around.slack_of(vertex) for vertex in ends),
        tuple(around.before(int(into[row])) for row in rows),
        tuple(around.after(vertex) if pieces.work[row] else () for row, vertex in zip(rows, ends, strict=True)),
    )


class _Around:
    """Edges by both ends."""

    def __init__(self, trace: Trace, graph: DependencyGraph, on_path: dict[int, int]) -> None:
        self._trace, self._graph, self._on_path = trace, graph, on_path
        self._target = graph.targets()
        self._by_source = np.argsort(graph.source, kind="stable")
        self._sorted = graph.source[self._by_source]
        self._latest_ns: Int64 = graph.latest_ns()

    def slack_of(self, vertex: int) -> int:
        return max(int(self._latest_ns[vertex] - self._graph.time_ns[vertex]), 0)

    def before(self, vertex: int) -> tuple[Neighbour, ...]:
        """What a vertex waited for, the latest first."""
        time_ns = self._graph.time_ns
        found = (
            self._told(source, kind, int(time_ns[vertex] - time_ns[source])) for source, kind in self._into(vertex)
        )
        return tuple(sorted(found, key=lambda one: one.gap_ns)[:MOST])

    def after(self, vertex: int) -> tuple[Neighbour, ...]:
        """What waited for a vertex, that with least slack first."""
        time_ns = self._graph.time_ns
        found = (
            self._told(target, kind, int(time_ns[target] - time_ns[vertex])) for target, kind in self._from(vertex)
        )
        return tuple(sorted(found, key=lambda one: (one.slack_ns, one.gap_ns))[:MOST])

    def _into(self, vertex: int) -> Iterator[tuple[int, int]]:
        """Edges into a vertex as their sources and kinds, through joins, which are nobody's work."""
        edges = range(int(self._graph.offsets[vertex]), int(self._graph.offsets[vertex + 1]))
        yield from self._through(((int(self._graph.source[edge]), edge) for edge in edges), forwards=False)

    def _from(self, vertex: int) -> Iterator[tuple[int, int]]:
        """Edges out of a vertex as their targets and kinds."""
        low, high = np.searchsorted(self._sorted, [vertex, vertex + 1])
        edges: Rows = self._by_source[low:high]
        yield from self._through(((int(self._target[edge]), int(edge)) for edge in edges), forwards=True)

    def _through(self, ends: Iterable[tuple[int, int]], *, forwards: bool) -> Iterator[tuple[int, int]]:
        for vertex, edge in ends:
            kind = int(self._graph.kind[edge])
            if kind == EdgeKind.SELF:
                continue
            if self._graph.slices.lane[vertex >> 1] != NO_LANE:
                yield vertex, kind
            elif forwards:
                yield from ((far, kind) for far, _ in self._from(vertex | 1))
            else:
                yield from ((far, kind) for far, _ in self._into(vertex & ~1))

    def _told(self, vertex: int, kind: int, gap_ns: int) -> Neighbour:
        row, trace = vertex >> 1, self._trace
        lane = self._graph.slices.lane[row]
        device = int(trace.lanes.device[lane])
        return Neighbour(
            EdgeKind(kind).label,
            int(trace.lanes.rank[lane]),
            None if device == ABSENT else device,
            trace.lanes.name[lane],
            trace.strings[trace.events.name[self._graph.slices.event[row]]],
            max(gap_ns, 0),
            self.slack_of(vertex),
            self._on_path.get(row, self._on_path.get(row + 1) if self._arrived(row) else None),
        )

    def _arrived(self, row: int) -> bool:
        """Whether this is the wait for the others, behind which the transfer of the same collective lies."""
        return bool(self._graph.slices.kind[row] == SliceKind.ARRIVED)
