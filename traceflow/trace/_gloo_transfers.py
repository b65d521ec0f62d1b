"""When a transfer over gloo keeps its thread.

The event of a transfer lies on the thread that posted it. It begins a little after the operator that did, ends when
the thread has waited for it, and holds whatever the thread did in between, other transfers included.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

import numpy as np

from traceflow.result import Tally
from traceflow.trace._gloo import Found
from traceflow.trace.canonical import canonical
from traceflow.trace.model import Int64, Trace

_POSTED = "transfer begins where it was posted"
_SENT = "send ends where its thread went on"
_AWAITED = "receive begins where its thread waited for it"


def with_posts(trace: Trace, found: Iterable[Found], rank: int) -> Trace:
    """The trace with transfers that cover nothing that their thread did meanwhile.

    A send begins when it was posted, and ends when its thread went on, which it need not wait for. A receive begins
    when its thread had done everything else, so that it is the wait; where that would change the order of receives
    that nothing else tells apart, they begin when they were posted.

    Args:
        trace: Of one rank.
        found: Its transfers, and anything without a post.
        rank: Which rank that is.
    """
    transfers = {one.event: one for one in found if one.posted_ns is not None}
    if not transfers:
        return trace
    posted = {event: one.posted_ns - (trace.epoch_ns or 0) for event, one in transfers.items()}  # type: ignore[operator]
    start_ns, end_ns = trace.events.start_ns.copy(), trace.events.end_ns.copy()
    start_ns[list(posted)] = list(posted.values())
    sends = {event for event, one in transfers.items() if one.source == rank}
    inside = {event: _inside(trace, event, start_ns, transfers) for event in transfers}
    later = {event: start_ns[inside[event]][start_ns[inside[event]] > posted[event]] for event in sends}
    went_on = {event: int(starts.min()) for event, starts in later.items() if len(starts)}
    waited = {event: _waits_from(inside[event], event, start_ns, end_ns) for event in transfers.keys() - sends}
    waited = _in_order(waited, posted, transfers)
    start_ns[list(waited)], end_ns[list(went_on)] = list(waited.values()), list(went_on.values())
    moved = canonical(replace(trace, events=replace(trace.events, start_ns=start_ns, end_ns=end_ns)))
    counts = {_POSTED: len(posted), _SENT: len(went_on), _AWAITED: len(waited)}
    return replace(moved, tally=moved.tally + Tally(repaired={why: n for why, n in counts.items() if n}))


def _inside(trace: Trace, event: int, start_ns: Int64, transfers: Collection[int]) -> Int64:
    """What began on the thread of a transfer from its post, the operator that posted it included, to its end.

    Likewise the other transfers that the thread waited for in that time.
    """
    e = trace.events
    first, stop = np.searchsorted(e.lane, (e.lane[event], e.lane[event] + 1))
    rows = np.arange(first, stop)
    began = (start_ns[rows] >= start_ns[event]) & (start_ns[rows] < e.end_ns[event])
    awaited = (e.end_ns[rows] > start_ns[event]) & (e.end_ns[rows] < e.end_ns[event])
    found: Int64 = rows[(began | (awaited & np.isin(rows, list(transfers)))) & (rows != event)]
    return found


def _waits_from(inside: Int64, event: int, start_ns: Int64, end_ns: Int64) -> int:
    """When the last of that ended; what outlasts the transfer, such as another one, counts from its start."""
    last = np.where(end_ns[inside] <= end_ns[event], end_ns[inside], start_ns[inside])
    return int(last.max(initial=start_ns[event]))


def _in_order(waited: Mapping[int, int], posted: Mapping[int, int], transfers: Mapping[int, Found]) -> dict[int, int]:
    """New starts of receives, without those of channels that would change their order."""
    channels: dict[tuple[int, int, int], list[int]] = defaultdict(list)
    for event, one in transfers.items():
        channels[one.group, one.key, one.source].append(event)
    kept = {}
    for events in channels.values():
        in_order = sorted(events, key=lambda event: posted[event])
        starts = [waited.get(event, posted[event]) for event in in_order]
        if starts == sorted(set(starts)):
            kept.update({event: waited[event] for event in events if event in waited})
    return kept
