"""Communication: busy, exposed and removable time, and every collective split into wait and transfer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from traceflow.analyzers.attribution import Attributed, Attribution
from traceflow.analyzers.attribution.overlap import Overlap, overlaps
from traceflow.analyzers.attribution.purposes import Purpose
from traceflow.analyzers.attribution.shares import Share, rows_by_share, shares
from traceflow.analyzers.changes import Drop, Scale, apply
from traceflow.analyzers.communication_rows import (
    Call,
    Collective,
    Message,
    Participant,
    ParticipantTime,
    UnmatchedCall,
    named,
)
from traceflow.analyzers.dependencies import Dependencies
from traceflow.analyzers.matching import SENDS, Unmatched
from traceflow.analyzers.unrecognised import unrecognised
from traceflow.analyzers.window import Window, in_window, step_of_events
from traceflow.graph import DependencyGraph, SliceKind
from traceflow.intervals import Intervals, union
from traceflow.result import Finding, Json, Note, Provenance, Severity, Shown, Skipped
from traceflow.trace.model import ABSENT, Bool, Int64, Trace

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "Call",
    "Collective",
    "Communication",
    "Message",
    "Participant",
    "ParticipantTime",
    "UnmatchedCall",
    "communication",
    "compute_of",
]

_COMMUNICATES = (SliceKind.TRANSFER, SliceKind.ARRIVED, SliceKind.COMMUNICATION)


@dataclass(frozen=True, slots=True, kw_only=True)
class Communication(Shown):
    """Communication of a window, per participant and per collective; removable time by replay."""

    kind: ClassVar[str] = "communication"
    window: Window
    participants: tuple[ParticipantTime, ...]
    removable_transfer_ns: int | None
    removable_communication_ns: int | None
    collectives: tuple[Collective, ...]
    messages: tuple[Message, ...]
    unmatched: tuple[UnmatchedCall, ...]
    shares: tuple[Share, ...] = ()  # by dimension and purpose
    overlaps: tuple[Overlap, ...] = ()
    findings: tuple[Finding, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    notes: tuple[Note, ...] = ()

    def to_dict(self) -> dict[str, Json]:
        """The `result` object of the JSON contract."""
        return {
            "window": {**self.window.to_dict()},
            "per_participant": [p.to_dict() for p in self.participants],
            "removable": {
                "transfer_ns": self.removable_transfer_ns,
                "communication_ns": self.removable_communication_ns,
            },
            "by_purpose": [share.to_dict() for share in self.shares],
            "overlaps": [overlap.to_dict() for overlap in self.overlaps],
            "collectives": [c.to_dict() for c in self.collectives],
            "point_to_point": [m.to_dict() for m in self.messages],
            "unmatched": [u.to_dict() for u in self.unmatched],
        }

    def to_pandas(self) -> pd.DataFrame:
        """One row per participant of each collective."""
        import pandas as pd

        return pd.DataFrame([{"id": c.id, "op": c.op, **call.to_dict()} for c in self.collectives for call in c.calls])


def communication(
    trace: Trace, found: Dependencies, *, step: int | None = None, attributed: Attribution | None = None
) -> Communication:
    """How long devices communicated, how much of it was exposed, and how much of it replay can remove.

    busy, exposed and idle are measures of interval unions per participant (`ParticipantTime`). removable is a
    what-if: the measured end minus the replayed end with every transfer at zero, and with nobody waiting for
    anybody either. Exposed is not removable: what is exposed may not be on the critical path.

    Args:
        trace: The evidence.
        found: Its dependencies.
        step: Which step; the whole capture where None.
        attributed: What its collectives are for, for communication by dimension and purpose.

    Raises:
        TraceflowError: TF104 without work, TF111 without such a step.
    """
    window, graph = in_window(trace, found, step)
    compute = compute_of(trace, graph)
    rows = _rows_inside(trace, found, window)
    whole = compute if graph is found.graph else compute_of(trace, found.graph)  # a call may reach out of the window
    calls = attributed.calls if attributed else (None,) * len(trace.communications.event)
    collectives, messages = _instances(trace, found, rows, whole, calls)
    unmatched = _unmatched(trace, found, rows, calls)
    participants = _participants(trace, graph, window, compute)
    transfer, everything = (None, None) if unmatched else _removable(trace, graph)
    return Communication(
        window=window,
        participants=participants,
        removable_transfer_ns=transfer,
        removable_communication_ns=everything,
        collectives=collectives,
        messages=messages,
        unmatched=unmatched,
        shares=_shares(trace, graph, rows, compute, attributed, replays=not unmatched),
        overlaps=_overlaps(trace, graph, rows, attributed),
        findings=(*_findings(participants), *unrecognised(trace, found, window)),
        skipped=(*_skipped(unmatched, participants), *_unattributed(calls, rows, unmatched)),
        notes=found.notes,
    )


def _participants(
    trace: Trace, graph: DependencyGraph, window: Window, compute: dict[Participant, Intervals]
) -> tuple[ParticipantTime, ...]:
    communicating = _slices_of(trace, graph, _COMMUNICATES)
    copying = _slices_of(trace, graph, (SliceKind.COPY,))
    rows = []
    for who in sorted(compute, key=lambda p: (p[0], -1 if p[1] is None else p[1])):
        busy, copies = _intervals(graph, communicating[who]), _intervals(graph, copying[who])
        on_device = who[1] is not None
        idle = window.duration_ns - (busy | compute[who] | copies).total_ns
        rows.append(
            ParticipantTime(
                who,
                compute[who].total_ns,
                copies.total_ns if on_device else None,
                busy.total_ns,
                (busy - compute[who]).total_ns,
                idle if on_device else None,
                window.duration_ns,
            )
        )
    return tuple(rows)


def compute_of(trace: Trace, graph: DependencyGraph) -> dict[Participant, Intervals]:
    """When each participant computes: its device, or the leaf operations of a rank without devices.

    Args:
        trace: The evidence.
        graph: The dependencies of the window that is looked at.
    """
    return {who: _intervals(graph, mask) for who, mask in _slices_of(trace, graph, (SliceKind.COMPUTE,)).items()}


def _slices_of(trace: Trace, graph: DependencyGraph, kinds: Sequence[SliceKind]) -> dict[Participant, Bool]:
    """Slices of some kinds per participant; on a rank without devices, leaf operations of the host compute."""
    slices, lanes = graph.slices, trace.lanes
    on_lane = slices.lane >= 0
    kind = slices.kind.copy()
    with_device = set(lanes.rank[lanes.device != ABSENT].tolist())
    masks: dict[Participant, Bool] = {}
    for rank, device in sorted({(int(r), int(d)) for r, d in zip(lanes.rank, lanes.device, strict=True)}):
        if device == ABSENT and rank in with_device:
            continue
        here = on_lane & ((lanes.rank == rank) & (lanes.device == device))[slices.lane]
        if device == ABSENT:
            kind = np.where(here & (kind == SliceKind.HOST) & _leaves(trace, graph), np.int8(SliceKind.COMPUTE), kind)
        masks[rank, None if device == ABSENT else device] = here & np.isin(kind, list(kinds))
    return masks


def _leaves(trace: Trace, graph: DependencyGraph) -> Bool:
    """Slices of events that hold no other event."""
    e, event = trace.events, graph.slices.event
    holds = np.zeros(len(e) + 1, bool)
    holds[:-2] = (e.lane[1:] == e.lane[:-1]) & (e.start_ns[1:] < e.end_ns[:-1])
    leaf: Bool = ~holds[event]
    return leaf


def _intervals(graph: DependencyGraph, mask: Bool) -> Intervals:
    return union(graph.slices.start_ns[mask], graph.slices.end_ns[mask])


def _rows_inside(trace: Trace, found: Dependencies, window: Window) -> Int64:
    """Communication rows that overlap the window, in order of time; of a step, without those of later steps.

    The window of a step ends with the last thing that it launched, and so reaches into the next step where a thread is
    late in closing its call.
    """
    event = trace.communications.event
    start, end = trace.events.start_ns[event], trace.events.end_ns[event]
    inside = (start < window.end_ns) & (end > window.start_ns)
    if window.step is not None:
        inside &= step_of_events(trace, found)[event] <= window.step
    rows = np.flatnonzero(inside)
    return rows[np.argsort(start[rows], kind="stable")]


def _instances(
    trace: Trace,
    found: Dependencies,
    rows: Int64,
    compute: dict[Participant, Intervals],
    attributed: Sequence[Attributed | None],
) -> tuple[tuple[Collective, ...], tuple[Message, ...]]:
    """Matched rows gathered into collectives and messages, in order of their first arrival."""
    exposed = _exposed(trace, compute)
    members: dict[int, list[int]] = {}
    for row in rows[~found.matches.done[rows]].tolist():
        if (instance := int(found.matches.instance[row])) != ABSENT:
            members.setdefault(instance, []).append(row)
    done = np.flatnonzero(found.matches.done & (found.matches.instance != ABSENT)).tolist()
    ends = {(int(found.matches.instance[row]), _participant(trace, row)): row for row in done}
    collectives, messages = [], []
    for instance, own in members.items():
        if found.matches.point_to_point[own[0]]:
            messages += [_message(trace, instance, own, attributed)] if len(own) == 2 else []
        else:
            calls = [(row, ends.get((instance, _participant(trace, row)), row)) for row in sorted(own)]
            collectives.append(_collective(trace, found, instance, calls, exposed, attributed[calls[0][0]]))
    return tuple(collectives), tuple(messages)


def _collective(
    trace: Trace,
    found: Dependencies,
    instance: int,
    calls: list[tuple[int, int]],
    exposed: Int64,
    attributed: Attributed | None,
) -> Collective:
    """A collective from each participant's rows that issued and that ended it."""
    c, e = trace.communications, trace.events
    rows = [row for row, _ in calls]
    arrivals = [(-int(e.start_ns[c.event[row]]), row) for row in rows]
    last = min(arrivals)[1]
    group = trace.groups[c.group[rows[0]]]
    return Collective(
        f"c{instance}",
        trace.strings[c.operation[rows[0]]],
        trace.strings[e.name[c.event[rows[0]]]],
        group.name,
        _participant(trace, last),
        tuple(_call(trace, found, row, done, exposed) for row, done in calls),
        attributed,
    )


def _call(trace: Trace, found: Dependencies, row: int, done: int, exposed: Int64) -> Call:
    c, e = trace.communications, trace.events
    arrival, end, last = int(e.start_ns[c.event[row]]), int(e.end_ns[c.event[done]]), int(found.matches.last_ns[done])
    return Call(
        _participant(trace, row),
        _known(c.payload_bytes[row]),
        arrival,
        min(end, last) - arrival,
        max(0, end - last),
        end,
        int(exposed[row]) + (int(exposed[done]) if done != row else 0),
    )


def _message(trace: Trace, instance: int, rows: list[int], attributed: Sequence[Attributed | None]) -> Message:
    c, e = trace.communications, trace.events
    send, receive = sorted(rows, key=lambda row: trace.strings[c.operation[row]] not in SENDS)
    posted, arrived = int(e.start_ns[c.event[send]]), int(e.start_ns[c.event[receive]])
    return Message(
        f"p{instance}",
        _participant(trace, send),
        _participant(trace, receive),
        _known(c.payload_bytes[send]),
        posted,
        int(e.end_ns[c.event[receive]]),
        max(0, posted - arrived),
        attributed[send],
    )


def _exposed(trace: Trace, compute: dict[Participant, Intervals]) -> Int64:
    """Per communication row, its duration minus what compute of the same participant covers."""
    event = trace.communications.event
    start, end = trace.events.start_ns[event], trace.events.end_ns[event]
    rank, device = trace.lanes.rank[trace.events.lane[event]], trace.lanes.device[trace.events.lane[event]]
    exposed = end - start
    for (of_rank, of_device), intervals in compute.items():
        mine = (rank == of_rank) & (device == (ABSENT if of_device is None else of_device))
        exposed[mine] -= intervals.covered_ns(start[mine], end[mine])
    return exposed


def _unmatched(
    trace: Trace, found: Dependencies, rows: Int64, attributed: Sequence[Attributed | None]
) -> tuple[UnmatchedCall, ...]:
    e, event = trace.events, trace.communications.event
    return tuple(
        UnmatchedCall(
            _participant(trace, row),
            trace.strings[e.name[event[row]]],
            int(e.start_ns[event[row]]),
            int(e.end_ns[event[row]] - e.start_ns[event[row]]),
            Unmatched(found.matches.why[row]).reason,
            attributed[row],
        )
        for row in rows.tolist()
        if found.matches.instance[row] == ABSENT
    )


def _removable(trace: Trace, graph: DependencyGraph) -> tuple[int, int]:
    """What replay saves without transfers, and without transfers and waits."""
    no_transfer: tuple[Scale | Drop, ...] = (Scale("@transfer", 0),)
    saved = []
    for changes in (no_transfer, (*no_transfer, Drop("@rendezvous"))):
        supposed = apply(trace, graph, changes)
        end_ns = graph.end_of(graph.replay(work_ns=supposed.work_ns, lag_ns=supposed.lag_ns, cut=supposed.cut))
        saved.append(graph.end_ns - end_ns)
    return saved[0], saved[1]


def _findings(participants: tuple[ParticipantTime, ...]) -> tuple[Finding, ...]:
    """The participant with the most exposed communication, where that is worth a remark."""
    worst = max(participants, key=lambda p: p.exposed_ns, default=None)
    if worst is None or not worst.window_ns or worst.exposed_ns < 0.05 * worst.window_ns:
        return ()
    return (
        Finding(
            code="TF201",
            severity=Severity.WARNING,
            title=f"{worst.exposed_ns / worst.window_ns:.0%} of the window is exposed communication",
            provenance=Provenance.MEASURED,
            suggestion="see which collectives wait for a late participant and which transfer; only the removable part shortens the step",
            cost_ns=worst.exposed_ns,
            evidence={**named(worst.participant), "busy_ns": worst.busy_ns, "exposed_ns": worst.exposed_ns},
        ),
    )


def _shares(
    trace: Trace,
    graph: DependencyGraph,
    rows: Int64,
    compute: dict[Participant, Intervals],
    attributed: Attribution | None,
    *,
    replays: bool,
) -> tuple[Share, ...]:
    if attributed is None:
        return ()
    return shares(trace, graph, rows_by_share(attributed.calls, rows), compute, replays=replays)


def _overlaps(trace: Trace, graph: DependencyGraph, rows: Int64, attributed: Attribution | None) -> tuple[Overlap, ...]:
    if attributed is None:
        return ()
    computing = _slices_of(trace, graph, (SliceKind.COMPUTE,))
    return overlaps(trace, graph, computing, attributed.passes, attributed.calls, rows)


def _unattributed(
    calls: Sequence[Attributed | None], rows: Int64, unmatched: tuple[UnmatchedCall, ...]
) -> Iterator[Skipped]:
    """Why purposes are not told: nobody asked, or nothing tells those of some calls."""
    known = [call for row in rows.tolist() if (call := calls[row]) is not None]
    if not known and len(rows):
        reason = "what its collectives are for was not asked"
        yield from (Skipped(f"/result/collectives/*/{key}", reason) for key in ("dimension", "purpose"))
    silent = Counter(call.because for call in known if call.purpose is Purpose.UNKNOWN)
    for because, count in silent.items():
        yield Skipped("/result/collectives/*/purpose", f"of {count} of {len(known)} calls: {because}")
    if known and unmatched:
        yield Skipped("/result/by_purpose/*/removable", f"{len(unmatched)} communication calls are unsplit")


def _skipped(unmatched: tuple[UnmatchedCall, ...], participants: tuple[ParticipantTime, ...]) -> tuple[Skipped, ...]:
    skipped = []
    if unmatched:
        reasons = "; ".join(sorted({call.reason for call in unmatched}))
        skipped.append(Skipped("/result/removable", f"{len(unmatched)} communication calls are unsplit: {reasons}"))
    if any(p.idle_ns is None for p in participants):
        skipped += [
            Skipped(f"/result/per_participant/*/{key}", "the rank has no device events")
            for key in ("copy_ns", "idle_ns")
        ]
    return tuple(skipped)


def _participant(trace: Trace, row: int) -> Participant:
    lane = trace.events.lane[trace.communications.event[row]]
    return int(trace.lanes.rank[lane]), _known(trace.lanes.device[lane])


def _known(value: int) -> int | None:
    return None if value == ABSENT else int(value)
