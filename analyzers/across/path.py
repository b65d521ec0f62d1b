"""The critical path across ranks, from each rank's own ways."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields

import numpy as np

from traceflow.analyzers.across.part import NOWHERE, View, Ways, walks
from traceflow.analyzers.critical_path import Segments, pieces_along, segments_along
from traceflow.trace.model import Int64


def last_arrivals(ways: Sequence[Ways]) -> dict[int, tuple[int, int, int]]:
    """Per meeting, which part arrived last, the meeting that its way comes from, and its device; of several, the first part.

    Args:
        ways: Of all ranks, in their order.
    """
    part = np.concatenate([np.full(len(way.meeting), i) for i, way in enumerate(ways)])
    meeting, arrived_ns, since, device = (
        np.concatenate([getattr(way, name) for way in ways]) for name in ("meeting", "arrived_ns", "since", "device")
    )
    order = np.lexsort((part, -arrived_ns, meeting))
    first = order[np.unique(meeting[order], return_index=True)[1]]
    who = zip(part[first].tolist(), since[first].tolist(), device[first].tolist(), strict=True)
    return dict(zip(meeting[first].tolist(), who, strict=True))


def route(ways: Sequence[Ways], last: Mapping[int, tuple[int, int, int]]) -> list[tuple[int, int]]:
    """The critical path as (part, meeting at which it arrives there), from the end back to the start of the window."""
    ends = [(-way.end_ns, not way.works, i) for i, way in enumerate(ways) if way.end_ns is not None]
    part = min(ends)[2]
    legs, meeting = [(part, NOWHERE)], ways[part].since_end
    while meeting != NOWHERE:
        part, since, _ = last[meeting]
        legs.append((part, meeting))
        meeting = since
    return legs[::-1]


def way_times(view: View, meetings: Sequence[int]) -> list[Int64]:
    """When the ways from some arrivals of a rank come to each of their vertices."""
    return [view.graph.time_ns[way] for way in walks(view, meetings)]


def segments_on(
    view: View,
    meetings: Sequence[int],
    times: Sequence[tuple[Int64, Int64]],
    last: Mapping[int, tuple[int, int | None]],
) -> list[Segments]:
    """What the ways from some arrivals of a rank are, one after the other.

    Args:
        view: The rank's part.
        meetings: At which it arrived.
        times: When the path comes to the vertices of each way, and when it left the one before.
        last: The participant who arrived last at each meeting.
    """
    joins = np.flatnonzero(view.meeting != NOWHERE).tolist()
    by_join = {join: last[meeting] for join in joins if (meeting := int(view.meeting[join])) in last}
    return [
        segments_along(view.trace, view.graph, {}, pieces_along(view.graph, way, *time), by_join)
        for way, time in zip(walks(view, meetings), times, strict=True)
    ]


def joined(segments: Sequence[Segments]) -> Segments:
    """Segments one after the other."""
    return Segments(*(np.concatenate([getattr(one, f.name) for one in segments]) for f in fields(Segments)))
