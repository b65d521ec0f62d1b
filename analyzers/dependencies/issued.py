"""Edges back from what a host backend executed for a thread: gloo's collectives and their waits."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from traceflow.analyzers.dependencies.slices import Cut
from traceflow.analyzers.matching import Matches
from traceflow.graph import EdgeKind, Edges, Float64, SliceKind
from traceflow.trace.model import ABSENT, Bool, Int64, Rows, Trace

_ONLY_WORK = ("aten::", "c10d::")  # operators that compute, or issue and return
_LATE = 10  # one part in so many of a collective's length, its end may be recorded too late


def issued(trace: Trace, matches: Matches, cut: Cut) -> tuple[Cut, Edges]:
    """The end of a collective binds the thread that issued it and waited, and its slices are cut where they waited.

    `Work.wait()` leaves no event. A thread that issued a collective waits in a gap, or in the self time of an
    enclosing event, in which the collective ends: the part before the end is the wait, the rest is its own work. In
    the slice after the call it is taken to wait. Later it is, unless it goes on by itself for longer, or slices like
    this one take as long where no collective ends in them, or another rank went on from the same point of the program
    before the collective had ended there. Of several collectives that end in one slice, it waited for the last.

    Args:
        trace: The evidence.
        matches: Which collectives belong together.
        cut: Its slices.

    Returns:
        The slices, those that waited in two; and the edges.
    """
    calls = _calls(trace, matches)
    if not len(calls.event):
        return cut, Edges(calls.event, calls.event, EdgeKind.HOST_SYNCHRONISATION)
    row = _under_way(cut, calls.lane, calls.done_ns)
    at, slices = np.maximum(row, 0), cut.slices
    within = (at > cut.last[calls.event]) & (slices.end_ns[at] >= calls.done_ns) & _may_wait(trace, cut)[at]
    within[within] = _waited(trace, cut, calls, np.flatnonzero(within), at[within])
    gap = (row >= cut.last[calls.event]) & (slices.end_ns[at] < calls.done_ns) & _followed(cut, at)
    until_ns = np.zeros(len(slices), np.int64)
    np.maximum.at(until_ns, at[within], calls.done_ns[within])
    waits = np.unique(at[within])
    divided, place = cut.divided(waits, until_ns[waits])
    source = divided.end_of(np.concatenate((calls.work[within], calls.work[gap])))
    target = np.concatenate((2 * place[at[within]] + 1, 2 * place[at[gap] + 1]))
    return divided, Edges(source, target, EdgeKind.HOST_SYNCHRONISATION)


class _Calls(NamedTuple):
    """Calls that issued a collective, and what another thread executed for them."""

    event: Int64
    work: Int64
    lane: Int64
    end_ns: Int64
    done_ns: Int64  # when the collective ended
    instance: Int64  # equal on all ranks


def _calls(trace: Trace, matches: Matches) -> _Calls:
    e, flows, communicates = trace.events, trace.flows, trace.communications.event
    executed = np.zeros(len(e), bool)
    executed[communicates] = trace.lanes.device[e.lane[communicates]] == ABSENT
    here = executed[flows.target] & (e.lane[flows.source] != e.lane[flows.target])
    call, work = flows.source[here].astype(np.int64), flows.target[here].astype(np.int64)
    instance = np.full(len(e), ABSENT, np.int64)
    instance[communicates] = matches.instance
    return _Calls(call, work, e.lane[call].astype(np.int64), e.end_ns[call], e.end_ns[work], instance[work])


def _under_way(cut: Cut, lane: Rows, moment_ns: Int64) -> Int64:
    """The last slice of each lane to start by each moment, -1 without one."""
    found = np.full(len(lane), -1)
    for which in np.unique(lane):
        first, stop = np.searchsorted(cut.slices.lane[: len(cut.depth)], (which, which + 1))
        mine = lane == which
        place = np.searchsorted(cut.slices.start_ns[first:stop], moment_ns[mine], side="right") - 1
        found[mine] = np.where(place >= 0, first + place, -1)
    return found


def _may_wait(trace: Trace, cut: Cut) -> Bool:
    """Host slices, except those of operators that only work."""
    works = np.array([text.startswith(_ONLY_WORK) for text in trace.strings] or [False])
    may: Bool = (cut.slices.kind == SliceKind.HOST) & ~works[trace.events.name[cut.slices.event]]
    return may


def _followed(cut: Cut, row: Int64) -> Bool:
    """Slices with another after them on their lane."""
    after = np.minimum(row + 1, len(cut.slices) - 1)
    followed: Bool = (after > row) & (cut.slices.lane[after] == cut.slices.lane[row])
    return followed


def _waited(trace: Trace, cut: Cut, calls: _Calls, which: Int64, at: Int64) -> Bool:
    """Whether the thread waited for a collective in the slice in which it ended.

    Args:
        trace: The evidence.
        cut: Its slices.
        calls: All calls.
        which: The calls that are asked about.
        at: The slice of each.
    """
    wait_ns, rest_ns = calls.done_ns[which] - cut.slices.start_ns[at], cut.slices.end_ns[at] - calls.done_ns[which]
    name, point = _identities(trace, cut)
    likely = (wait_ns >= rest_ns) & (2 * _usual_ns(cut, name, point, at) <= wait_ns + 2 * rest_ns)
    waited: Bool = at == cut.last[calls.event[which]] + 1
    asked = np.flatnonzero(likely & ~waited)
    waited[asked] = _undisputed(trace, cut, calls, which[asked], at[asked], point[at[asked]])
    return waited


def _identities(trace: Trace, cut: Cut) -> tuple[Int64, Int64]:
    """What slices of one part of a program share: their event's name, and what they end with.

    That is the name of the event that begins then, as an even number, or of their own, which ends, as an odd one.
    """
    event = cut.slices.event
    ends = (cut.last[event] == np.arange(len(event))) | (event < 0)
    name = np.where(event >= 0, trace.events.name[event], ABSENT).astype(np.int64)
    return name, np.where(ends, 2 * name + 1, 2 * np.append(name[1:], ABSENT))


def _usual_ns(cut: Cut, name: Int64, point: Int64, at: Int64) -> Float64:
    """The median length of the other slices with the name and the point of each given one; 0 without any."""
    length_ns = cut.slices.end_ns - cut.slices.start_ns
    others = np.ones(len(length_ns), bool)
    others[at] = False
    usual = np.zeros(len(at))
    for own in np.unique(np.column_stack((name[at], point[at])), axis=0):
        alike = (name == own[0]) & (point == own[1])
        usual[alike[at]] = np.median(length_ns[alike & others]) if (alike & others).any() else 0
    return usual


def _undisputed(trace: Trace, cut: Cut, calls: _Calls, which: Int64, at: Int64, point: Int64) -> Bool:
    """Whether all ranks that reach the end of a slice do so after the collective that it may have waited for.

    The end of a collective is recorded by a thread of its own, which may be late to run: a tenth of its length is
    allowed. The end of a slice is the k-th time, after the call, that an event of some name begins or ends on the thread.
    """
    points, agree = _Points(trace), np.ones(len(which), bool)
    for i, call in enumerate(which.tolist()):
        end_ns = int(cut.slices.end_ns[at[i]])
        turn = points.count(int(point[i]), int(calls.lane[call]), int(calls.end_ns[call]), end_ns)
        peers = np.flatnonzero((calls.instance == calls.instance[call]) & (calls.instance != ABSENT))
        for peer in peers.tolist():
            reached_ns = points.reached(int(point[i]), int(calls.lane[peer]), int(calls.end_ns[peer]), turn)
            if reached_ns is not None:
                took_ns = int(calls.done_ns[peer] - trace.events.start_ns[calls.work[peer]])
                agree[i] &= reached_ns >= calls.done_ns[peer] - took_ns // _LATE
    return agree


class _Points:
    """When a point of the program, as in `_identities`, comes on a lane."""

    def __init__(self, trace: Trace) -> None:
        self._events = trace.events
        self._known: dict[tuple[int, int], Int64] = {}

    def count(self, point: int, lane: int, since_ns: int, until_ns: int) -> int:
        """How often it comes in a time."""
        times = self._times(point, lane)
        return int(np.searchsorted(times, until_ns, "right") - np.searchsorted(times, since_ns, "right"))

    def reached(self, point: int, lane: int, since_ns: int, turn: int) -> int | None:
        """When it comes for the given time; None where it does not."""
        times = self._times(point, lane)
        place = int(np.searchsorted(times, since_ns, "right")) + turn - 1
        return int(times[place]) if place < len(times) else None

    def _times(self, point: int, lane: int) -> Int64:
        if (point, lane) not in self._known:
            e = self._events
            here = (e.lane == lane) & (e.name == point >> 1)
            self._known[point, lane] = np.sort((e.end_ns if point & 1 else e.start_ns)[here])
        return self._known[point, lane]
