"""Hypothetical changes to a dependency graph, and what replay says of them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from traceflow.errors import TraceflowError
from traceflow.graph import NO_EVENT, NO_LANE, DependencyGraph, EdgeKind, Float64, SliceKind
from traceflow.shortening import Shorter
from traceflow.trace.model import ABSENT, Bool, Int8, Int32, Int64, Trace

_SELECTORS = {
    "@compute": (SliceKind.COMPUTE,),
    "@transfer": (SliceKind.TRANSFER,),
    "@host": (SliceKind.HOST,),
    "@copy": (SliceKind.COPY,),
}
LAUNCH = "@launch"
RENDEZVOUS = "@rendezvous"
_LAUNCHES = (EdgeKind.LAUNCH, EdgeKind.GRAPH_LAUNCH)
_SCALABLE = (SliceKind.COMPUTE, SliceKind.TRANSFER, SliceKind.COMMUNICATION, SliceKind.COPY, SliceKind.HOST)


@dataclass(frozen=True, slots=True)
class Scale:
    """Multiply the work that a pattern selects (for `@launch`, the launch latencies) by a factor."""

    pattern: str
    factor: float


@dataclass(frozen=True, slots=True)
class Drop:
    """Take away the work and the lag of what a pattern selects; for `@rendezvous`, nobody waits for anybody."""

    pattern: str


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A graph's work, lags and cut edges under a set of changes, in the arrays that replay takes."""

    work_ns: Int64
    lag_ns: Int64
    delay: Float64  # what the latency of each edge is multiplied by, also where it hides behind another edge
    cut: Bool
    selected: tuple[int, ...]  # how many slices, or edges, each change is about


def apply(
    trace: Trace, graph: DependencyGraph, changes: Sequence[Scale | Drop], *, ranks: frozenset[int] | None = None
) -> Hypothesis:
    """Work, lags and edges with the changes made; waits are never scaled, they follow.

    Args:
        trace: The evidence behind the graph.
        graph: The graph of a window.
        changes: What to change. A pattern is a regular expression on the event's name, or one of `@compute`,
            `@transfer`, `@host`, `@copy`, `@launch` and, to drop, `@rendezvous`. On a collective it selects the
            transfer.
        ranks: Only slices of these ranks; all where None.

    Raises:
        TraceflowError: TF112 for a pattern or a factor that cannot be used.
    """
    work_ns, delay = graph.work_ns.copy(), np.ones(len(graph.source))
    cut = np.zeros(len(graph.source), bool)
    mine, names, selected = _of_ranks(trace, graph, ranks), _names(trace, graph.slices.event), []
    for change in changes:
        factor = _factor(change)
        if change.pattern == RENDEZVOUS:
            chosen = _rendezvous(graph, change) & _into(graph, mine)
            cut |= chosen
        elif change.pattern == LAUNCH:
            chosen = _among(graph.kind, _LAUNCHES) & _into(graph, mine)
            delay[chosen] *= factor
        else:
            chosen = mine & _selected(trace, graph.slices.kind, names, change.pattern)
            work_ns[chosen] = _scaled(work_ns[chosen], factor)
            if isinstance(change, Drop):
                delay[_into(graph, chosen)] = 0
        selected.append(int(chosen.sum()))
    lag_ns = graph.lag_ns if (delay == 1).all() else _scaled(graph.lag_ns, np.append(delay, 1)[graph.binding])
    return Hypothesis(work_ns, lag_ns, delay, cut, tuple(selected))


def shortened(trace: Trace, graph: DependencyGraph, changes: Sequence[Scale]) -> list[Shorter]:
    """What each change shortens by itself, on all ranks; its factor is at most 1.

    Args:
        trace: The evidence behind the graph.
        graph: The graph of a window.
        changes: As for `apply`.

    Raises:
        TraceflowError: TF112 for a pattern that cannot be used.
    """
    own = _of_ranks(trace, graph, None)
    rows = np.flatnonzero(own & (graph.work_ns > 0))
    kind, names = graph.slices.kind[rows], _names(trace, graph.slices.event[rows])
    cases = []
    for change in changes:
        if change.pattern == LAUNCH:
            launches = np.append(_among(graph.kind, _LAUNCHES) & _into(graph, own), False)
            place, whole_ns = np.flatnonzero(launches[graph.binding] & (graph.lag_ns > 0)), graph.lag_ns
        else:
            place, whole_ns = rows[_selected(trace, kind, names, change.pattern)], graph.work_ns
        less_ns = whole_ns[place] - _scaled(whole_ns[place], _factor(change))
        cases.append(Shorter(place, change.pattern == LAUNCH, less_ns))
    return cases


def _into(graph: DependencyGraph, slices: Bool) -> Bool:
    """Edges that lead to a vertex of some slices."""
    edges: Bool = np.repeat(np.repeat(slices, 2), np.diff(graph.offsets))
    return edges


def _factor(change: Scale | Drop) -> float:
    factor = change.factor if isinstance(change, Scale) else 0.0
    if not 0 <= factor < float("inf"):
        raise TraceflowError("TF112", f"cannot scale {change.pattern}", f"{factor} is no factor", "give a number >= 0")
    return factor


def _scaled(duration_ns: Int64, factor: float | Float64) -> Int64:
    """Rounded to the nearest ns; 0 and 1 are exact."""
    scaled: Int64 = np.rint(duration_ns * factor).astype(np.int64)
    return scaled


def _of_ranks(trace: Trace, graph: DependencyGraph, ranks: frozenset[int] | None) -> Bool:
    on_lane: Bool = graph.slices.lane != NO_LANE
    if ranks is None:
        return on_lane
    chosen: Bool = on_lane & np.isin(trace.lanes.rank[graph.slices.lane], list(ranks))
    return chosen


def _among(kind: Int8, kinds: Sequence[int]) -> Bool:
    among = np.zeros(len(kind), bool)
    for one in kinds:  # much faster than looking each up, as there are few
        among |= kind == one
    return among


def _names(trace: Trace, event: Int32) -> Int64:
    """Codes of the names of events, ABSENT for joins."""
    return np.where(event == NO_EVENT, ABSENT, trace.events.name[event]).astype(np.int64)


def _selected(trace: Trace, kind: Int8, names: Int64, pattern: str) -> Bool:
    """Which slices a pattern selects, by their kinds and the codes of their names."""
    if pattern.startswith("@"):
        if pattern not in _SELECTORS:
            known = ", ".join([*_SELECTORS, LAUNCH, RENDEZVOUS])
            raise TraceflowError(
                "TF112", f"cannot select {pattern}", "no such selector", f"use one of {known}, or a name"
            )
        return _among(kind, _SELECTORS[pattern])
    try:
        expression = re.compile(pattern)
    except re.error as error:
        raise TraceflowError("TF112", f"cannot select {pattern!r}", str(error), "give a regular expression") from error
    named = np.array([*(expression.search(text) is not None for text in trace.strings), False])
    chosen: Bool = _among(kind, _SCALABLE) & named[names]
    return chosen


def _rendezvous(graph: DependencyGraph, change: Scale | Drop) -> Bool:
    """Rendezvous edges, which cannot be scaled."""
    if isinstance(change, Scale):
        raise TraceflowError(
            "TF112", "cannot scale @rendezvous", "a wait has no duration of its own", "drop it instead"
        )
    edges: Bool = graph.kind == EdgeKind.RENDEZVOUS
    return edges
