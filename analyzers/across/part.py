"""One rank's part of the dependency graph of all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from traceflow.analyzers.dependencies import Dependencies, Remarks, dependencies
from traceflow.analyzers.matching import Matches
from traceflow.analyzers.window import step_of_events
from traceflow.graph import NO_EVENT, DependencyGraph, EdgeKind, window
from traceflow.trace.model import ABSENT, Bool, Int32, Int64, Trace

NOWHERE = -1  # instead of a meeting: the start of the window


@dataclass(frozen=True, slots=True)
class Own:
    """The rows of `Matches` that are one rank's, and what its instances are called among all."""

    matches: Matches
    meeting: Int64  # per instance of `matches`, its number among those of all ranks


def owned(trace: Trace, matches: Matches) -> list[Own] | None:
    """Matches divided by rank, in the order of ranks; None where rows of several ranks depend on each other in pairs.

    Args:
        trace: All skeletons together.
        matches: Of its communication calls.
    """
    if len(matches.pair_source) or matches.done.any():
        return None
    rank = trace.lanes.rank[trace.events.lane[trace.communications.event]]
    return [_own(matches, np.flatnonzero(rank == one.rank)) for one in sorted(trace.ranks, key=lambda one: one.rank)]


def _own(matches: Matches, rows: Int64) -> Own:
    instance = matches.instance[rows]
    meeting, local = np.unique(instance[instance >= 0], return_inverse=True)
    own = np.full(len(rows), ABSENT, np.int32)
    own[instance >= 0] = local.ravel()
    part = Matches(
        own,
        matches.why[rows],
        matches.point_to_point[rows],
        matches.last_ns[rows],
        matches.joined[rows],
        np.empty(0, np.int32),
        np.empty(0, np.int32),
        matches.done[rows],
    )
    return Own(part, meeting.astype(np.int64))


@dataclass(frozen=True, slots=True)
class Part:
    """One rank's trace, its dependencies, and which meeting each join of its graph is."""

    trace: Trace
    found: Dependencies
    meeting: Int64  # of the joins, which are the last slices, in order


@dataclass(frozen=True, slots=True)
class Told:
    """What the others have to know of a part."""

    remarks: Remarks
    counted: bool  # whether there is work
    start_ns: int
    end_ns: int
    complete: bool  # whether all its arrivals are in its graph


def part_of(trace: Trace, own: Own, resolution_ns: int) -> tuple[Part, Told]:
    """Build the graph of one rank.

    Args:
        trace: On the clock of all ranks.
        own: Its collectives, with the moments at which the last participants of all ranks arrived.
        resolution_ns: How far the two ends of one moment may lie apart, on any rank.
    """
    found = dependencies(trace, {}, matches=own.matches, resolution_ns=resolution_ns)
    graph, joined = found.graph, own.matches.joined
    meeting = own.meeting[np.unique(own.matches.instance[joined])]
    first = len(graph.slices) - len(meeting)
    into = graph.targets()
    arrivals = (graph.kind == EdgeKind.RENDEZVOUS) & (into >= 2 * first) & (into % 2 == 0)
    complete = int(arrivals.sum()) == int(joined.sum()) and not (graph.slices.lane[first:] >= 0).any()
    counted = bool(graph.counted.any())
    remarks = found.remarks or Remarks({}, 0, 0, 0, 0, 0, 0)
    return Part(trace, found, meeting), Told(remarks, counted, graph.start_ns, graph.end_ns, complete)


def step_told(part: Part, step: int) -> tuple[int, int]:
    """When a step starts and ends on a rank; the ends of time where it has no marks or no work of it."""
    marks = part.trace.marks
    mine = marks.step == step
    counted = _of_step(part, step)
    ends = part.found.graph.slices.end_ns[counted]
    start_ns = int(marks.start_ns[mine].min()) if mine.any() else int(np.iinfo(np.int64).max)
    return start_ns, int(ends.max()) if len(ends) else int(np.iinfo(np.int64).min)


def _of_step(part: Part, step: int) -> Bool:
    """The slices of the work of a step."""
    event = part.found.graph.slices.event
    of_step: Bool = (event != NO_EVENT) & np.append(step_of_events(part.trace, part.found) == step, False)[event]
    return of_step


@dataclass(frozen=True, slots=True)
class View:
    """One rank's part of the graph of a window."""

    trace: Trace
    launch_call: Int32
    graph: DependencyGraph
    meeting: Int64  # per slice, which meeting it is the join of; NOWHERE elsewhere and before the window


def view_of(part: Part, start_ns: int, end_ns: int, step: int | None) -> View:
    """The window of a part, at the times that it has for all ranks."""
    graph = part.found.graph
    meeting = np.full(len(graph.slices), NOWHERE)
    meeting[len(meeting) - len(part.meeting) :] = part.meeting
    if step is None:
        graph = replace(graph, start_ns=start_ns, end_ns=end_ns)
    else:
        inside = ((graph.slices.end_ns > start_ns) | (graph.slices.start_ns >= start_ns)) & (
            graph.slices.start_ns <= end_ns
        )
        graph = window(graph, start_ns, end_ns, counted=_of_step(part, step))
        meeting = np.append(meeting[inside], NOWHERE)
    meeting = np.where(graph.slices.start_ns > start_ns, meeting, NOWHERE)
    return View(part.trace, part.found.launch_call, graph, meeting)


@dataclass(frozen=True, slots=True)
class Ways:
    """How the critical path runs inside a rank: from each of its arrivals, and from its end, back to a meeting."""

    meeting: Int64  # at which it arrived
    arrived_ns: Int64
    since: Int64  # the meeting that the path comes from, NOWHERE where it comes from the start of the window
    end_ns: int | None  # None where nothing of the rank can end the window
    works: bool  # whether what ends last works
    since_end: int
    device: Int32  # on which it arrived


def ways(view: View) -> Ways:
    """The ways of a part; each is a walk along the bindings, all of which are local but those of joins."""
    graph, root = view.graph, _roots(view)
    vertex, arrival = _arrivals(view)
    if graph.counted.any():
        end = graph.end_vertex()
        end_ns, works, since_end = int(graph.slices.end_ns[end >> 1]), bool(graph.work_ns[end >> 1] > 0), root[end]
    else:
        end_ns, works, since_end = None, False, NOWHERE
    met = view.meeting[vertex >> 1]
    device = view.trace.lanes.device[graph.slices.lane[arrival >> 1]]
    return Ways(met, graph.time_ns[arrival], root[arrival], end_ns, works, int(since_end), device)


def _arrivals(view: View) -> tuple[Int64, Int64]:
    """Start of each join in the window, and the last arrival of this rank at it; of several, the first in order."""
    graph = view.graph
    edge = np.flatnonzero(graph.kind == EdgeKind.RENDEZVOUS)
    target = graph.targets()[edge]
    edge = edge[(view.meeting[target >> 1] != NOWHERE) & (target % 2 == 0)]
    target, source = graph.targets()[edge], graph.source[edge]
    order = np.lexsort((source, -graph.time_ns[source], target))
    first = np.unique(target[order], return_index=True)[1]
    return target[order][first].astype(np.int64), source[order][first].astype(np.int64)


def _stops(view: View) -> Bool:
    """Vertices at which a walk inside the rank ends."""
    graph = view.graph
    met = np.repeat(view.meeting != NOWHERE, 2)
    stops: Bool = met | (graph.time_ns <= graph.start_ns) | (graph.binding < 0)
    return stops


def _roots(view: View) -> Int64:
    """For each vertex, the meeting at which the walk back from it ends; NOWHERE at the start of the window."""
    graph, stops = view.graph, _stops(view)
    parent = np.where(stops, np.arange(graph.vertices), graph.source[graph.binding])
    while True:
        further = parent[parent]
        if (further == parent).all():
            return np.repeat(view.meeting, 2)[parent]
        parent = further


def walks(view: View, meetings: Sequence[int]) -> list[Int64]:
    """The vertices of the ways from some arrivals of a rank, in order of time, the meeting they come from included.

    Args:
        view: The rank's part.
        meetings: At which it arrived; NOWHERE for the end of the window.
    """
    graph, stops = view.graph, _stops(view)
    vertex, arrival = _arrivals(view)
    arrived = dict(zip(view.meeting[vertex >> 1].tolist(), arrival.tolist(), strict=True))
    found = []
    for meeting in meetings:
        at = graph.end_vertex() if meeting == NOWHERE else arrived[meeting]
        way = [at]
        while not stops[at]:
            at = int(graph.source[graph.binding[at]])
            way.append(at)
        if view.meeting[at >> 1] != NOWHERE and at & 1:
            way.append(at - 1)
        found.append(np.array(way[::-1], np.int64))
    return found
