"""Communication by dimension and purpose: how long it was busy, exposed, and how much of it replay can remove."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from traceflow.analyzers.attribution.purposes import Purpose
from traceflow.graph import DependencyGraph, EdgeKind, SliceKind
from traceflow.intervals import Intervals, union
from traceflow.result import Json
from traceflow.trace.model import ABSENT, Bool, Int64, Trace

if TYPE_CHECKING:
    from traceflow.analyzers.attribution import Attributed

Participant: TypeAlias = tuple[int, int | None]
Computing: TypeAlias = Mapping[Participant, Intervals]


@dataclass(frozen=True, slots=True)
class Share:
    """All calls of one dimension and purpose in a window; durations are sums over participants."""

    dimension: str
    purpose: Purpose
    calls: int
    payload_bytes: int | None  # of the calls whose size is known; None where none is
    busy_ns: int  # length of (union of the calls), per participant
    exposed_ns: int  # of that, what compute of the participant does not cover
    removable_transfer_ns: int | None
    removable_communication_ns: int | None

    def to_dict(self) -> dict[str, Json]:
        """A row of `by_purpose`."""
        return {
            "dimension": self.dimension,
            "purpose": self.purpose,
            "calls": self.calls,
            "payload_bytes": self.payload_bytes,
            "busy_ns": self.busy_ns,
            "exposed_ns": self.exposed_ns,
            "overlapped_ns": self.busy_ns - self.exposed_ns,
            "removable": {
                "transfer_ns": self.removable_transfer_ns,
                "communication_ns": self.removable_communication_ns,
            },
        }


def shares(
    trace: Trace,
    graph: DependencyGraph,
    rows: Mapping[tuple[str, Purpose], Int64],
    compute: Computing,
    *,
    replays: bool,
) -> tuple[Share, ...]:
    """The share of each dimension and purpose, the most exposed first.

    Removable is what one what-if for this kind of communication alone saves: its transfers at zero, and then nobody
    waiting for anybody in it either. Such savings do not add up: what one kind hides may be hidden by another.

    Args:
        trace: The evidence.
        graph: The dependencies of the window.
        rows: Rows of `Trace.communications` by dimension and purpose.
        compute: When each participant computes.
        replays: Whether every call could be split into wait and transfer, so that replay says something.
    """
    found = [_share(trace, graph, *key, own, compute, replays=replays) for key, own in rows.items()]
    return tuple(sorted(found, key=lambda share: (-share.exposed_ns, share.dimension, share.purpose)))


def _share(
    trace: Trace,
    graph: DependencyGraph,
    dimension: str,
    purpose: Purpose,
    rows: Int64,
    compute: Computing,
    *,
    replays: bool,
) -> Share:
    c = trace.communications
    busy = dict(when(trace, rows))
    exposed = [intervals - compute[who] if who in compute else intervals for who, intervals in busy.items()]
    sizes = c.payload_bytes[rows][c.payload_bytes[rows] != ABSENT]
    transfer, everything = _removable(trace, graph, c.event[rows].astype(np.int64)) if replays else (None, None)
    return Share(
        dimension,
        purpose,
        len(rows),
        int(sizes.sum()) if len(sizes) else None,
        sum(intervals.total_ns for intervals in busy.values()),
        sum(intervals.total_ns for intervals in exposed),
        transfer,
        everything,
    )


def when(trace: Trace, rows: Int64) -> Iterator[tuple[Participant, Intervals]]:
    """The time that some calls take, by participant."""
    e, lanes, event = trace.events, trace.lanes, trace.communications.event[rows]
    rank, device = lanes.rank[e.lane[event]], lanes.device[e.lane[event]]
    for own_rank, own_device in sorted(set(zip(rank.tolist(), device.tolist(), strict=True))):
        mine = event[(rank == own_rank) & (device == own_device)]
        yield (own_rank, None if own_device == ABSENT else own_device), union(e.start_ns[mine], e.end_ns[mine])


def _removable(trace: Trace, graph: DependencyGraph, events: Int64) -> tuple[int, int]:
    """What replay saves with these transfers at zero, and without waits in them too."""
    chosen: Bool = np.zeros(len(trace.events) + 1, bool)
    chosen[events] = True
    mine = chosen[graph.slices.event]
    work_ns = np.where(mine & (graph.slices.kind == SliceKind.TRANSFER), 0, graph.work_ns)
    met = (graph.kind == EdgeKind.RENDEZVOUS) & mine[graph.targets() >> 1]
    ends = [graph.end_of(graph.replay(work_ns=work_ns, cut=cut)) for cut in (np.zeros(len(met), bool), met)]
    return graph.end_ns - ends[0], graph.end_ns - ends[1]


def rows_by_share(calls: Sequence[Attributed], rows: Int64) -> dict[tuple[str, Purpose], Int64]:
    """The given rows by their dimension and purpose."""
    found: dict[tuple[str, Purpose], list[int]] = {}
    for row in rows.tolist():
        found.setdefault((calls[row].dimension, calls[row].purpose), []).append(row)
    return {key: np.array(own, np.int64) for key, own in found.items()}
