"""Compiled sweeps that reduce a part of a graph to edges between meetings, and find longest paths over these."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from traceflow.compiled import Compiled
from traceflow.graph import EdgeKind

Int64 = NDArray[np.int64]
Int32 = NDArray[np.int32]
Int8 = NDArray[np.int8]
Bool = NDArray[np.bool_]

ALWAYS, END = 0, 1  # nodes beside those of meetings, which follow: what is at a given moment, and the window's end
_SELF = int(EdgeKind.SELF)
_NEVER = -(2**62)


@Compiled
def reduce_part(
    order: Int32,
    offsets: Int32,
    source: Int32,
    kind: Int8,
    advance: Int32,
    work: Int64,
    lag: Int64,
    time: Int64,
    node: Int64,
    waited: Bool,
    counted: Bool,
    most: int,
    origins: Int64,
    weights: Int64,
    count: Int64,
    best: Int64,
    edges: Int64,
) -> int:
    """Fill the edges between nodes: source, target and length; return how many there are, even if they have no room.

    origins and weights, shape (vertices, most), and count: from which nodes each vertex is reached, and how long after
    them. best, shape (nodes + vertices,): scratch. A vertex that more than `most` nodes reach becomes a node itself.
    """
    nodes, filled = len(best) - len(time), 0
    best[:] = _NEVER
    for i in range(len(time)):
        v = order[i]
        met = node[v >> 1]
        if met >= 0:
            if v & 1 == 0:
                filled = _lead(
                    v, met, 0, 0, offsets, source, kind, advance, work, count, origins, weights, edges, filled
                )
            origins[v, 0], weights[v, 0], count[v] = met, 0, 1
        elif offsets[v] == offsets[v + 1]:
            origins[v, 0], weights[v, 0], count[v] = ALWAYS, time[v], 1
        else:
            # Who arrived is never later than who arrived last: of a wait, only its end by the others counts.
            skips = 1 if waited[v >> 1] and v & 1 and _met(v, offsets, source, advance, node) else 0
            count[v] = _reach(v, skips, most, offsets, source, kind, advance, work, lag, count, origins, weights)
            if count[v] > most:
                own = nodes + v
                filled = _lead(
                    v, own, skips, lag[v], offsets, source, kind, advance, work, count, origins, weights, edges, filled
                )
                origins[v, 0], weights[v, 0], count[v] = own, 0, 1
        if v & 1 and counted[v >> 1]:
            for k in range(count[v]):
                best[origins[v, k]] = max(best[origins[v, k]], weights[v, k])
    for at in range(len(best)):
        if best[at] > _NEVER:
            filled = _add(edges, filled, at, END, best[at])
    return filled


@Compiled
def _met(v: int, offsets: Int64, source: Int32, advance: Int32, node: Int64) -> bool:
    """Whether a meeting binds a vertex, to the nanosecond."""
    met = False
    for e in range(offsets[v], offsets[v + 1]):
        met = met or (node[source[e] >> 1] >= 0 and advance[e] == 0)
    return met


@Compiled
def _reach(
    v: int,
    skips: int,
    most: int,
    offsets: Int32,
    source: Int32,
    kind: Int8,
    advance: Int32,
    work: Int64,
    lag: Int64,
    count: Int64,
    origins: Int64,
    weights: Int64,
) -> int:
    """Note from which nodes a vertex is reached; return how many they are, `most` and one or more if too many."""
    reached = 0
    for e in range(offsets[v], offsets[v + 1]):
        if skips and kind[e] == _SELF:
            continue
        u, after = source[e], lag[v] - advance[e] + (work[v >> 1] if kind[e] == _SELF else 0)
        for k in range(count[u]):
            reached = _note(v, origins[u, k], weights[u, k] + after, most, reached, origins, weights)
    return reached


@Compiled
def _note(v: int, origin: int, weight: int, most: int, reached: int, origins: Int64, weights: Int64) -> int:
    for j in range(min(reached, most)):
        if origins[v, j] == origin:
            weights[v, j] = max(weights[v, j], weight)
            return reached
    if reached < most:
        origins[v, reached], weights[v, reached] = origin, weight
    return reached + 1


@Compiled
def _lead(
    v: int,
    to: int,
    skips: int,
    lag: int,
    offsets: Int64,
    source: Int32,
    kind: Int8,
    advance: Int32,
    work: Int64,
    count: Int64,
    origins: Int64,
    weights: Int64,
    edges: Int64,
    filled: int,
) -> int:
    """Add an edge to a node from each node that reaches its vertex."""
    for e in range(offsets[v], offsets[v + 1]):
        if skips and kind[e] == _SELF:
            continue
        u, after = source[e], lag - advance[e] + (work[v >> 1] if kind[e] == _SELF else 0)
        for k in range(count[u]):
            filled = _add(edges, filled, origins[u, k], to, weights[u, k] + after)
    return filled


@Compiled
def _add(edges: Int64, filled: int, source: int, target: int, length: int) -> int:
    if filled < edges.shape[1]:
        edges[0, filled], edges[1, filled], edges[2, filled] = source, target, length
    return filled + 1


@Compiled
def longest_path(order: Int64, offsets: Int64, source: Int64, edge: Int64, time: Int64) -> int:
    """Fill the time of each node, given that of ALWAYS; return that of END."""
    for i in range(len(order)):
        v = order[i]
        if v == ALWAYS:
            continue
        latest = _NEVER
        for e in range(offsets[v], offsets[v + 1]):
            if edge[e] > _NEVER and time[source[e]] > _NEVER:
                latest = max(latest, time[source[e]] + edge[e])
        time[v] = latest
    return int(time[END])
