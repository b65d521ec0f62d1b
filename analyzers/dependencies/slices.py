"""Cut the events of a trace into slices: self time on nested lanes, wait and transfer for matched collectives."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from traceflow.analyzers.matching import Matches
from traceflow.graph import NO_EVENT, NO_LANE, SliceKind, Slices
from traceflow.trace.model import Bool, Int32, Int64, Kind, LaneKind, Rows, Trace

_KIND = {
    Kind.HOST: SliceKind.HOST,
    Kind.CALL: SliceKind.HOST,
    Kind.WAIT: SliceKind.BLOCKED,
    Kind.COMPUTE: SliceKind.COMPUTE,
    Kind.COPY: SliceKind.COPY,
    Kind.COMMUNICATION: SliceKind.COMMUNICATION,
}


@dataclass(frozen=True, slots=True)
class Cut:
    """Slices, and where to find those of an event."""

    slices: Slices
    first: Int32  # first slice of each event
    last: Int32
    depth: Int32  # nesting of each slice on its lane
    joins: Int32  # the join slice of each instance of `Matches` that is joined, -1 elsewhere
    stuck_out: int  # events that were cut because they ended after their parent

    def start_of(self, event: Rows) -> Rows:
        """Vertex at which each event starts."""
        return 2 * self.first[event]

    @property
    def lane(self) -> Int32:
        """The lane of each slice that is on one; joins come after these."""
        return self.slices.lane[: len(self.depth)]

    def with_blocked(self, rows: Rows) -> Cut:
        """The same slices, where those of the given rows only wait."""
        kind = self.slices.kind.copy()
        kind[rows] = SliceKind.BLOCKED
        return replace(self, slices=replace(self.slices, kind=kind))

    def divided(self, rows: Rows, at_ns: Int64) -> tuple[Cut, Int64]:
        """The same slices, where the given rows only wait until a moment, and are then followed by another slice.

        Args:
            rows: Slices, in order.
            at_ns: When each stops waiting.

        Returns:
            The slices, and where to find the first part of each old one.
        """
        if not len(rows):
            return self, np.arange(len(self.slices))
        copies = np.ones(len(self.slices), np.int64)
        copies[rows] = 2
        place, old = np.cumsum(copies) - copies, np.repeat(np.arange(len(copies)), copies)
        waits = place[rows]
        start, end, kind = self.slices.start_ns[old], self.slices.end_ns[old], self.slices.kind[old]
        end[waits], start[waits + 1], kind[waits] = at_ns, at_ns, SliceKind.BLOCKED
        first, last = place[self.first], place[self.last] + copies[self.last] - 1
        joins = np.where(self.joins >= 0, place[self.joins], -1)
        cut = Cut(
            Slices.between(start, end, self.slices.lane[old], self.slices.event[old], kind),
            first.astype(np.int32),
            last.astype(np.int32),
            np.repeat(self.depth, copies[: len(self.depth)]),
            joins.astype(np.int32),
            self.stuck_out,
        )
        return cut, place

    def end_of(self, event: Rows) -> Rows:
        """Vertex at which each event ends."""
        return 2 * self.last[event] + 1


def cut(trace: Trace, matches: Matches, blocking: Bool) -> Cut:
    """Slices of every event, in order of lane and time, followed by one join per joined collective.

    Args:
        trace: The evidence.
        matches: Which communication calls belong together.
        blocking: Calls that wait although their name does not say so, shape (events,).
    """
    from traceflow.analyzers.dependencies._sweep import self_time

    e = trace.events
    kind = np.array([_KIND[kind] for kind in Kind], np.int8)[e.kind]
    kind[blocking] = SliceKind.BLOCKED
    joins, join_ns = _joins(matches)
    nests, halves = trace.lanes.kind != LaneKind.STREAM, (SliceKind.ARRIVED, SliceKind.TRANSFER)
    columns = e.start_ns, e.end_ns, e.lane, kind, nests, _arrivals(trace, matches)
    time_ns, codes, kinds, bounds, count, stuck_out = self_time(*columns, halves, len(join_ns))
    total = count + len(join_ns)
    time_ns[2 * count : 2 * total], kinds[count:total] = np.repeat(join_ns, 2), SliceKind.JOIN
    codes[0, count:total], codes[1, count:total] = NO_LANE, NO_EVENT
    slices = Slices(time_ns[: 2 * total], codes[0, :total], codes[1, :total], kinds[:total])
    first_join = np.where(joins >= 0, joins + count, -1).astype(np.int32)
    return Cut(slices, bounds[0], bounds[1], codes[2, :count], first_join, stuck_out)


def _arrivals(trace: Trace, matches: Matches) -> Int64:
    """When the last participant of each matched communication arrived, NOT_CUT for all other events."""
    from traceflow.analyzers.dependencies._sweep import NOT_CUT

    until_ns = np.full(len(trace.events), NOT_CUT)
    matched = np.flatnonzero(matches.instance >= 0)
    until_ns[trace.communications.event[matched]] = matches.last_ns[matched]
    return until_ns


def _joins(matches: Matches) -> tuple[Int64, Int64]:
    """Number of each instance's join (-1 without one) and the time of each join."""
    count = int(matches.instance.max(initial=-1)) + 1
    time = np.full(count, np.iinfo(np.int64).min)
    np.maximum.at(time, matches.instance[matches.joined], matches.last_ns[matches.joined])
    some = time > np.iinfo(np.int64).min
    return np.where(some, np.cumsum(some) - 1, -1), time[some]
