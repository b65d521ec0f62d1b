"""The critical path: the chain of work and lags that ended the window when it ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, TypeAlias

import numpy as np

from traceflow.analyzers.dependencies import Dependencies
from traceflow.analyzers.idle_time import idle_time
from traceflow.analyzers.join import Written, written
from traceflow.analyzers.window import Window, in_window
from traceflow.graph import NO_EVENT, DependencyGraph, EdgeKind, SliceKind
from traceflow.result import Finding, Json, Note, Shown, Skipped
from traceflow.trace.model import ABSENT, Bool, Int32, Int64, LaneKind, Rows, Text, Trace

if TYPE_CHECKING:
    import pandas as pd

    from traceflow.program.module import Programs

KINDS = ("compute", "transfer", "communication", "copy", "host", "launch", "idle")
"""Kinds of segments; the first five are those of the slices that work, in the order of `SliceKind`."""

LastOf: TypeAlias = Mapping[int, tuple[int, int | None]]
"""Participants, as (rank, device), by the slice of a join."""

_HOST, _LAUNCH, _IDLE = (KINDS.index(kind) for kind in ("host", "launch", "idle"))
_LABELS = np.array([*(edge.label for edge in EdgeKind), None], object)
_WHY_IDLE = {
    EdgeKind.STREAM_ORDER: "its stream was free, and its launch came earlier or is not in the trace",
    EdgeKind.EVENT_WAIT: "what its stream waited for was done, and its launch came earlier or is not in the trace",
    EdgeKind.DATA: "its operands were there; the trace does not tell when the backend could run it",
    EdgeKind.SELF: "the trace does not tell what an operation did that only runs others",
}
_REASONS = np.array([*(_WHY_IDLE.get(edge, "no edge explains it") for edge in EdgeKind), "nothing binds it"], object)


@dataclass(frozen=True, slots=True)
class Segments:
    """The path as columns, in time order; each segment ends where the next begins."""

    start_ns: Int64
    duration_ns: Int64
    kind: Text  # of KINDS
    rank: Int32
    device: Int32  # ABSENT for host work
    lane: Text
    name: Text
    operation: Text  # what a compiled instruction does, by what it contains; None elsewhere
    scope: Text  # named scopes and transformations that it was written in, None where unknown
    source: Text  # where the work was written, None where unknown
    edge: Text  # how the segment was reached, None for the first
    waiting_for: Text  # participant who ended the wait, as (rank, device or None); None where nobody did
    reason: Text  # of idle segments, why their cause is unknown; None elsewhere
    clipped: Bool  # work that began before the window

    def __len__(self) -> int:
        return len(self.start_ns)

    def __repr__(self) -> str:
        """One line: the columns are long."""
        return f"<Segments: {len(self):,}>"

    def to_dicts(self) -> list[Json]:
        """Rows for the JSON contract."""
        return [
            {
                "start_ns": int(self.start_ns[i]),
                "duration_ns": int(self.duration_ns[i]),
                "kind": self.kind[i],
                "rank": int(self.rank[i]),
                "device": _device(self.device[i]),
                "lane": self.lane[i],
                "name": self.name[i],
                "operation": self.operation[i],
                "scope": self.scope[i],
                "source": self.source[i],
                "edge": self.edge[i],
                "waiting_for": None if (who := self.waiting_for[i]) is None else {"rank": who[0], "device": who[1]},
                "reason": self.reason[i],
                "clipped": bool(self.clipped[i]),
            }
            for i in range(len(self))
        ]


@dataclass(frozen=True, slots=True)
class Slack:
    """How much later each slice could have ended without delaying the end of the window, as columns."""

    start_ns: Int64
    slack_ns: Int64  # ABSENT for blocking calls, which have none
    rank: Int32
    device: Int32
    lane: Text
    name: Text

    def __repr__(self) -> str:
        """One line: the columns are long."""
        return f"<Slack: {len(self.start_ns):,}>"


@dataclass(frozen=True, slots=True, kw_only=True)
class CriticalPath(Shown):
    """Segments that tile the window, the time they sum to by kind and by rank, and the slack of the rest."""

    kind: ClassVar[str] = "critical-path"
    window: Window
    segments: Segments
    slack: Slack | None = None
    error_ns: int | None = 0  # how far a moment on one rank may be off against another's; None: unbounded
    findings: tuple[Finding, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    notes: tuple[Note, ...] = field(default=())

    @property
    def makespan_ns(self) -> int:
        """Length of the window, which the segments sum to."""
        return self.window.duration_ns

    @property
    def by_kind_ns(self) -> dict[str, int]:
        """Time on the path per kind, in the order of `KINDS`; kinds without time are left out."""
        sums = {k: int(self.segments.duration_ns[self.segments.kind == k].sum()) for k in KINDS}
        return {k: ns for k, ns in sums.items() if ns}

    @property
    def by_rank_ns(self) -> dict[int, int]:
        """Time on the path per rank."""
        ranks = np.unique(self.segments.rank)
        return {int(r): int(self.segments.duration_ns[self.segments.rank == r].sum()) for r in ranks}

    def to_dict(self) -> dict[str, Json]:
        """The `result` object of the JSON contract."""
        result: dict[str, Json] = {
            "window": {**self.window.to_dict()},
            "makespan_ns": self.makespan_ns,
            "segments": self.segments.to_dicts(),
            "by_kind_ns": {**self.by_kind_ns},
            "by_rank_ns": {str(rank): ns for rank, ns in self.by_rank_ns.items()},
            "error_ns": self.error_ns,
        }
        if self.slack is not None:
            result["slack"] = _slack_rows(self.slack)
        return result

    def to_pandas(self) -> pd.DataFrame:
        """One row per segment."""
        import pandas as pd

        return pd.DataFrame(self.segments.to_dicts())


def critical_path(
    trace: Trace,
    found: Dependencies,
    *,
    step: int | None = None,
    slack: bool = False,
    programs: Programs = MappingProxyType({}),
) -> CriticalPath:
    """The critical path of a step, or of the whole capture.

    Walk back from the end of the window, from each vertex to the edge with the latest bound, crossing the lag
    behind that bound, until the start. Of equal bounds the one on the same lane wins, then the first in order.

    Args:
        trace: The evidence.
        found: Its dependencies.
        step: Which step; the whole capture where None.
        slack: Also compute the slack of every slice: its latest end with the window's end fixed and all lags
            kept, minus its end.
        programs: What tells of instructions: what they do, and where they were written.

    Returns:
        Segments that tile the window to the nanosecond.

    Raises:
        TraceflowError: TF104 without work, TF111 without such a step.
    """
    window, graph = in_window(trace, found, step)
    slack_of = _slack(trace, graph) if slack else None
    return path_of(trace, window, segments_of(trace, graph, programs), slack_of, found.notes)


def path_of(
    trace: Trace, window: Window, segments: Segments, slack: Slack | None, notes: tuple[Note, ...]
) -> CriticalPath:
    """The answer that some segments are.

    Args:
        trace: The evidence; of its events, only those of communication are looked at.
        window: What the segments tile.
        segments: The path.
        slack: That of every slice, where it was asked for.
        notes: What limits the dependencies.
    """
    unordered = unordered_streams(trace)
    return CriticalPath(
        window=window,
        segments=segments,
        slack=slack,
        error_ns=trace.clock_error_ns if _on_one_clock(trace) else None,
        findings=idle_time(trace, segments, unordered=bool(unordered)),
        skipped=(*_unaligned(trace), *unordered, *(_without_slack(slack) if slack else ())),
        notes=notes,
    )


def _on_one_clock(trace: Trace) -> bool:
    return len({rank.clock for rank in trace.ranks}) < 2


def _unaligned(trace: Trace) -> tuple[Skipped, ...]:
    if _on_one_clock(trace):
        return ()
    return (Skipped("/result/error_ns", "clocks of some ranks are linked by no collective: nothing bounds the error"),)


def _without_slack(slack: Slack) -> tuple[Skipped, ...]:
    if not (slack.slack_ns == ABSENT).any():
        return ()
    return (Skipped("/result/slack/*/slack_ns", "a blocking call does no work of its own that could end later"),)


def unordered_streams(trace: Trace) -> tuple[Skipped, ...]:
    """Without records of what waited for what, and without operands, streams have no order among themselves.

    Args:
        trace: The evidence.

    Returns:
        Nothing where the order is known or no device has two streams; else what is unknown, and why.
    """
    lanes = trace.lanes
    streams = np.flatnonzero((lanes.kind == LaneKind.STREAM) & ~np.isin(lanes.rank, trace.syncs.rank))
    devices, count = np.unique(np.column_stack((lanes.rank, lanes.device))[streams], axis=0, return_counts=True)
    if len(trace.hlo.event) or not (count > 1).any():
        return ()
    ranks = ", ".join(str(rank) for rank in np.unique(devices[count > 1][:, 0]))
    reason = f"rank {ranks} holds no synchronisation records: what one stream waited for on another is unknown"
    return (Skipped("/result/segments", reason),)


@dataclass(frozen=True, slots=True)
class Pieces:
    """The path of a graph as it lies in the graph: each row is the work of a slice, or the lag before a vertex."""

    vertex: Int64  # where the piece ends
    work: Bool
    start_ns: Int64
    duration_ns: Int64


def pieces_of(graph: DependencyGraph) -> Pieces:
    """The path of a graph in time order, row by row what `segments_of` describes; those without duration left out.

    Args:
        graph: The graph of the window.
    """
    vertex = graph.path().astype(np.int64)
    return pieces_along(graph, vertex, *path_times(graph.time_ns[vertex], graph.start_ns))


def path_times(time_ns: Int64, start_ns: int) -> tuple[Int64, Int64]:
    """When a path comes to each of its vertices, and when it left the one before.

    Within the clock's resolution a vertex may come before the one that binds it; the path never goes back.

    Args:
        time_ns: Time of each vertex, in the order of the path.
        start_ns: Start of the window.
    """
    time_ns = np.minimum.accumulate(time_ns[::-1])[::-1]
    return time_ns, np.concatenate(([start_ns], time_ns[:-1]))


def pieces_along(graph: DependencyGraph, vertex: Int64, time_ns: Int64, previous_ns: Int64) -> Pieces:
    """Some vertices of a path as pieces, those without duration left out.

    Args:
        graph: The graph of the window.
        vertex: In the order of the path.
        time_ns: When the path comes to each, from `path_times`.
        previous_ns: When it left the one before.
    """
    duration_ns = time_ns - previous_ns
    worked = _crossed_work(graph, vertex)
    # A step of the path is a lag, then work: both ends lie between the vertex before and this one.
    lag_ns = np.where(worked, np.minimum(graph.lag_ns[vertex], duration_ns), duration_ns)
    parts = [(previous_ns, duration_ns - lag_ns, worked), (previous_ns + duration_ns - lag_ns, lag_ns, ~worked)]
    start = np.concatenate([parts[0][0], parts[1][0]])
    length = np.concatenate([parts[0][1], parts[1][1]])
    at = np.concatenate((np.arange(len(vertex)), np.arange(len(vertex))))
    is_work = np.concatenate((np.ones(len(vertex), bool), np.zeros(len(vertex), bool)))
    order = np.lexsort((~is_work, start, at))
    order = order[length[order] > 0]
    return Pieces(vertex[at[order]], is_work[order], start[order], length[order])


def segments_of(trace: Trace, graph: DependencyGraph, programs: Programs = MappingProxyType({})) -> Segments:
    """The path of a graph as segments, those without duration left out."""
    return first_of_all(segments_along(trace, graph, programs, pieces_of(graph)))


def first_of_all(segments: Segments) -> Segments:
    """Segments from the start of a window on: nothing leads to the first."""
    edge = segments.edge.copy()
    edge[:1] = None
    return replace(segments, edge=edge)


def segments_along(
    trace: Trace, graph: DependencyGraph, programs: Programs, pieces: Pieces, last: LastOf = MappingProxyType({})
) -> Segments:
    """What some pieces of a path are.

    Args:
        trace: The evidence.
        graph: The graph of the window.
        programs: What tells of instructions.
        pieces: Of its path.
        last: Who arrived last, by the slice of the join, where the graph does not hold that arrival.
    """
    told = written(trace, programs, graph.slices.event[pieces.vertex >> 1])
    vertex, work = pieces.vertex, pieces.work
    return _described(trace, graph, vertex, work, pieces.start_ns, pieces.duration_ns, told, last)


def _crossed_work(graph: DependencyGraph, vertex: Int64) -> Bool:
    """Whether the binding edge of each vertex carries a slice's work."""
    binding = graph.binding[vertex]
    own = (binding >= 0) & (graph.kind[binding] == EdgeKind.SELF)
    crossed: Bool = own & (graph.work_ns[vertex >> 1] > 0)
    return crossed


def _described(
    trace: Trace,
    graph: DependencyGraph,
    vertex: Int64,
    work: Bool,
    start_ns: Int64,
    duration_ns: Int64,
    told: Written,
    last: LastOf,
) -> Segments:
    row = vertex >> 1
    event, lane = graph.slices.event[row], graph.slices.lane[row]
    device = trace.lanes.device[lane]
    edge = _reached_by(graph, vertex, work, trace.lanes.device == ABSENT)
    lag = np.where(
        np.isin(edge, (EdgeKind.LAUNCH, EdgeKind.GRAPH_LAUNCH)), _LAUNCH, np.where(device == ABSENT, _HOST, _IDLE)
    )
    kind = np.where(work, graph.slices.kind[row], lag)
    return Segments(
        start_ns,
        duration_ns,
        np.array(KINDS, object)[kind],
        trace.lanes.rank[lane],
        np.where(kind == _HOST, ABSENT, device).astype(np.int32),
        np.array(trace.lanes.name, object)[lane],
        np.array(trace.strings, object)[trace.events.name[event]],
        told.operation,
        told.scope,
        told.source,
        _LABELS[edge],
        _waiting_for(trace, graph, vertex, work, last),
        np.where(kind == _IDLE, _REASONS[_binding_kind(graph, vertex)], np.array(None, object)),
        work & (start_ns == graph.start_ns) & (trace.events.start_ns[event] < graph.start_ns),
    )


def _reached_by(graph: DependencyGraph, vertex: Int64, work: Bool, on_thread: Bool) -> Rows:
    """The edge that leads to a segment: into the slice's start for its work, into the vertex for a lag; -1 for none.

    A transfer is reached through the end of its wait, where the rendezvous binds; a call that nothing is known to
    have kept, through its start.
    """
    kind = _binding_kind(graph, entered_at(graph, vertex, work))
    on_host = np.append(on_thread, False)[graph.slices.lane[vertex >> 1]]
    own: Rows = np.where(on_host, EdgeKind.PROGRAM_ORDER, EdgeKind.STREAM_ORDER)  # only its own arrival bound it
    return np.where(kind == EdgeKind.SELF, own, kind)


def entered_at(graph: DependencyGraph, vertex: Int64, work: Bool) -> Int64:
    """The vertex whose edges lead to a piece of the path.

    Args:
        graph: The graph of the window.
        vertex: Where each piece ends.
        work: Whether it is the work of a slice.
    """
    binding = graph.binding[vertex]
    kept_by_none = (binding >= 0) & (graph.kind[binding] == EdgeKind.SELF)
    into: Int64 = np.where(_waited(graph, vertex) & work, vertex - 2, np.where(work | kept_by_none, vertex - 1, vertex))
    return into


def _binding_kind(graph: DependencyGraph, vertex: Int64) -> Rows:
    """The kind of the edge that binds each vertex, -1 for none."""
    binding = graph.binding[vertex]
    kinds: Rows = np.where(binding < 0, -1, graph.kind[binding])
    return kinds


def _waited(graph: DependencyGraph, vertex: Int64) -> Bool:
    """Vertices of transfers whose wait is the slice before; a window may have cut it off."""
    row, slices = vertex >> 1, graph.slices
    waited: Bool = (slices.kind[row] == SliceKind.TRANSFER) & (slices.kind[row - 1] == SliceKind.ARRIVED)
    waited &= slices.event[row - 1] == slices.event[row]
    return waited


def _waiting_for(trace: Trace, graph: DependencyGraph, vertex: Int64, work: Bool, last: LastOf) -> Text:
    """Who ended the wait before a transfer, or the wait of a blocking call."""
    blocked = graph.slices.kind[vertex >> 1] == SliceKind.BLOCKED
    who = np.full(len(vertex), None, object)
    for i in np.flatnonzero((work & _waited(graph, vertex)) | (~work & blocked)):
        who[i] = _ended_by(trace, graph, int(vertex[i]), last, worked=bool(work[i]))
    return who


def _ended_by(
    trace: Trace, graph: DependencyGraph, vertex: int, last: LastOf, *, worked: bool
) -> tuple[int, int | None] | None:
    if worked:
        return _behind(trace, graph, vertex - 2, last)  # the end of the wait, in the slice before
    if vertex & 1:
        binding = graph.binding[vertex]
        if binding >= 0 and graph.kind[binding] == EdgeKind.HOST_SYNCHRONISATION:
            return _participant(trace, graph, int(graph.source[binding]))
    return None


def _behind(trace: Trace, graph: DependencyGraph, waited: int, last: LastOf) -> tuple[int, int | None] | None:
    """The participant whose arrival ended a wait, through the join if there is one."""
    binding = graph.binding[waited]
    while binding >= 0:
        vertex = int(graph.source[binding])
        if graph.slices.lane[vertex >> 1] >= 0:
            return _participant(trace, graph, vertex)
        if vertex >> 1 in last:
            return last[vertex >> 1]
        binding = graph.binding[vertex]
    return None


def _participant(trace: Trace, graph: DependencyGraph, vertex: int) -> tuple[int, int | None]:
    lane = graph.slices.lane[vertex >> 1]
    return int(trace.lanes.rank[lane]), _device(trace.lanes.device[lane])


def _slack(trace: Trace, graph: DependencyGraph) -> Slack:
    """Slack of every slice with work, and of blocking calls, which get ABSENT."""
    slices = graph.slices
    rows = np.flatnonzero((slices.event != NO_EVENT) & (slices.kind != SliceKind.ARRIVED))
    slack_ns = graph.latest_ns()[2 * rows + 1] - slices.end_ns[rows]
    lane, event = slices.lane[rows], slices.event[rows]
    return Slack(
        slices.start_ns[rows],
        np.where(slices.kind[rows] == SliceKind.BLOCKED, ABSENT, slack_ns),
        trace.lanes.rank[lane],
        trace.lanes.device[lane],
        np.array(trace.lanes.name, object)[lane],
        np.array(trace.strings, object)[trace.events.name[event]],
    )


def _slack_rows(slack: Slack) -> list[Json]:
    return [
        {
            "rank": int(slack.rank[i]),
            "device": _device(slack.device[i]),
            "lane": slack.lane[i],
            "name": slack.name[i],
            "start_ns": int(slack.start_ns[i]),
            "slack_ns": None if slack.slack_ns[i] == ABSENT else int(slack.slack_ns[i]),
        }
        for i in range(len(slack.start_ns))
    ]


def _device(device: int) -> int | None:
    return None if device == ABSENT else int(device)
