"""A part of a graph as edges between meetings, and all parts as one graph in which replay is a longest path."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from traceflow.analyzers.across.part import NOWHERE, View
from traceflow.graph import SliceKind
from traceflow.trace.model import Int32, Int64

ALWAYS, END, FIRST_MEETING = 0, 1, 2
"""Nodes: what is at a given moment, the end of the window, and from here on the meetings."""
_MOST = 6  # meetings from which a vertex may be reached before it becomes a node itself
_NEVER = -(2**62)


@dataclass(frozen=True, slots=True)
class Edges:
    """Edges of one rank: its target comes no earlier than its source and `edge_ns`. Nodes of its own are below 0."""

    source: Int64
    target: Int64
    edge_ns: Int64


def edges_of(view: View, work_ns: Int64 | None = None, lag_ns: Int64 | None = None) -> Edges:
    """The part of one rank between meetings. Which edges there are, and their order, depends on no times.

    Args:
        view: The rank's part.
        work_ns: Work of each slice; measured where None.
        lag_ns: Lag of each vertex; measured where None.
    """
    from traceflow.analyzers.across._sweep import reduce_part

    graph = view.graph
    met = np.flatnonzero(view.meeting != NOWHERE)
    node = np.full(len(graph.slices), NOWHERE)
    node[met] = FIRST_MEETING + np.arange(len(met))
    nodes, room, count = FIRST_MEETING + len(met), 0, 4 * len(met) + 64
    scratch = np.empty((graph.vertices, _MOST), np.int64), np.empty((graph.vertices, _MOST), np.int64)
    while count > room:
        room = count
        edges = np.empty((3, room), np.int64)
        count = reduce_part(
            graph.order,
            graph.offsets,
            graph.source,
            graph.kind,
            graph.advance_ns,
            graph.work_ns if work_ns is None else work_ns,
            graph.lag_ns if lag_ns is None else lag_ns,
            graph.time_ns,
            node,
            graph.slices.kind == SliceKind.ARRIVED,
            graph.counted,
            _MOST,
            *scratch,
            np.empty(graph.vertices, np.int64),
            np.empty(nodes + graph.vertices, np.int64),
            edges,
        )
    source, target, edge_ns = (column[:count].copy() for column in edges)
    own = np.unique(target[target >= nodes])

    def named(local: Int64) -> Int64:
        meeting = np.append(view.meeting[met], 0)[np.clip(local - FIRST_MEETING, 0, len(met))] + FIRST_MEETING
        return np.where(
            local < FIRST_MEETING, local, np.where(local < nodes, meeting, -1 - np.searchsorted(own, local))
        )

    return Edges(named(source), named(target), edge_ns)


@dataclass(frozen=True, slots=True)
class Whole:
    """Edges between all nodes, by target, each as long as the rank makes it that makes it longest, and the next rank."""

    order: Int64
    offsets: Int64
    source: Int64
    key: Int64  # target and source in one number, ascending
    longest_ns: Int64
    by: Int32  # the part that makes it so
    otherwise_ns: Int64  # without that part
    own: Int64  # first node of its own of each part, whose number is subtracted from it

    @property
    def nodes(self) -> int:
        """How many nodes there are."""
        return len(self.offsets) - 1

    def end_ns(self, edge_ns: Int64) -> int:
        """When the window ends with edges of the given lengths."""
        from traceflow.analyzers.across._sweep import longest_path

        time = np.full(self.nodes, _NEVER)
        time[ALWAYS] = 0
        return int(longest_path(self.order, self.offsets, self.source, edge_ns, time))

    def end_with(self, part: int, edges: Edges) -> int:
        """When the window ends with other lengths of the edges of one part."""
        edge_ns = np.where(self.by == part, self.otherwise_ns, self.longest_ns)
        place = np.searchsorted(self.key, _key(edges, int(self.own[part]), self.nodes))
        np.maximum.at(edge_ns, place, edges.edge_ns)
        return self.end_ns(edge_ns)


def _key(edges: Edges, own: int, nodes: int) -> Int64:
    source, target = (np.where(end < 0, own - 1 - end, end) for end in (edges.source, edges.target))
    return target * nodes + source


def whole_of(parts: Sequence[Edges], meetings: int) -> Whole | None:
    """All parts as one; None where they depend on each other in a circle, at one moment.

    Args:
        parts: Edges of all ranks.
        meetings: How many meetings there are.
    """
    from traceflow._replay import topological_order

    sizes = [int(-min(part.target.min(initial=0), 0)) for part in parts]
    own = FIRST_MEETING + meetings + np.concatenate(([0], np.cumsum(sizes))).astype(np.int64)
    nodes = int(own[-1])
    key = np.concatenate([_key(part, int(first), nodes) for part, first in zip(parts, own[:-1], strict=True)])
    by = np.concatenate([np.full(len(part.source), i, np.int32) for i, part in enumerate(parts)])
    edge_ns = np.concatenate([part.edge_ns for part in parts])
    order = np.lexsort((-edge_ns, by, key))
    head = _first_of_each(key[order], by[order])
    order = order[head]  # the longest of each part
    order = order[np.lexsort((-edge_ns[order], key[order]))]
    first = np.flatnonzero(_first_of_each(key[order]))
    again = np.append(first[1:], len(order)) - first > 1
    otherwise_ns = np.where(again, edge_ns[order[np.minimum(first + 1, len(order) - 1)]], _NEVER)
    keys = key[order[first]]
    target, source = keys // nodes, keys % nodes
    narrow: Int32 = source.astype(np.int32)
    offsets = np.searchsorted(target, np.arange(nodes + 1)).astype(np.int64)
    ordered, closing = topological_order(offsets.astype(np.int32), narrow, np.ones(len(source), np.int8))
    if closing.any():
        return None
    return Whole(
        ordered.astype(np.int64), offsets, source, keys, edge_ns[order[first]], by[order[first]], otherwise_ns, own[:-1]
    )


def _first_of_each(*columns: Int64 | Int32) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Whether each row differs from the one before it."""
    first = np.ones(len(columns[0]), bool)
    same = np.ones(max(len(columns[0]) - 1, 0), bool)
    for column in columns:
        same &= column[1:] == column[:-1]
    first[1:] = ~same
    return first
