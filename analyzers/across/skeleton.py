"""What all ranks have to know of one: its collectives, and what its other events are like."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from traceflow.analyzers.clocks import Clocks, clock_of_reference, shifted
from traceflow.result import Note, Tally
from traceflow.trace.canonical import canonical, merge, take
from traceflow.trace.host_noise import without_host_noise
from traceflow.trace.model import ABSENT, Int32, Kind, LaneKind, Rank, Trace, empty

_NOISE = ("on a thread that only waits", "the profiler's own")


@dataclass(frozen=True, slots=True)
class Skeleton:
    """A trace without what only its own rank needs, and what was dropped on the way to it."""

    trace: Trace
    noise: Tally  # what `without_host_noise` left out
    separable: bool  # whether nothing in it needs another rank's events
    outline: Trace  # as it was read, with the event alone that ends last


def skeleton(trace: Trace) -> tuple[Trace, Skeleton]:
    """The trace of one rank without noise of the host, and its skeleton.

    Kept are the events of communication and the first of each lane, so that the earliest event and all lanes remain.

    Args:
        trace: As it was read from one file.
    """
    working = without_host_noise(trace)
    noise = {reason: working.tally.dropped[reason] for reason in _NOISE if reason in working.tally.dropped}
    e = working.events
    keep = e.kind == Kind.COMMUNICATION
    keep[np.unique(e.lane, return_index=True)[1]] = True
    keep[working.communications.event] = True
    rows = np.flatnonzero(keep)
    row = np.full(len(e), ABSENT, np.int32)
    row[rows] = np.arange(len(rows))
    c = working.communications
    reduced = replace(
        working,
        events=take(e, rows),
        communications=replace(c, event=row[c.event]),
        syncs=take(working.syncs, np.arange(min(1, len(working.syncs.rank)))),
        tally=trace.tally,
        **{name: empty(type(getattr(working, name))) for name in ("flows", "launches", "memory", "operands", "copies")},
    )
    separable = (
        not len(working.hlo.event)
        and bool((working.lanes.device[e.lane[c.event]] != ABSENT).all())
        and not bool((working.lanes.kind == LaneKind.WORKER).any())
        and len(e) > 0
    )
    told = Skeleton(
        _with_few_strings(reduced), Tally(kept=-sum(noise.values()), dropped=noise), separable, _outline(trace)
    )
    return working, told


def _outline(trace: Trace) -> Trace:
    last = np.argsort(trace.events.end_ns, kind="stable")[-1:]
    tables = ("communications", "syncs", "flows", "hlo", "launches", "memory", "operands", "copies")
    nothing = {name: empty(type(getattr(trace, name))) for name in tables}
    return replace(trace, events=take(trace.events, last), strings=(), tally=Tally(), **nothing)


def _with_few_strings(trace: Trace) -> Trace:
    """The trace with the strings that its tables use."""
    e, c = trace.events, trace.communications
    columns = (e.name, c.operation, c.in_splits, c.out_splits)
    used = np.unique(np.concatenate(columns))
    used = used[used >= 0]

    def coded(column: Int32) -> Int32:
        return np.where(column < 0, column, np.searchsorted(used, column)).astype(np.int32)

    return replace(
        trace,
        strings=tuple(trace.strings[code] for code in used.tolist()),
        events=replace(e, name=coded(e.name)),
        communications=replace(
            c, operation=coded(c.operation), in_splits=coded(c.in_splits), out_splits=coded(c.out_splits)
        ),
    )


def together(skeletons: Sequence[Skeleton], signs: tuple[Note, ...]) -> Trace:
    """All skeletons as one trace, with the tally of the whole run.

    Args:
        skeletons: In order of rank.
        signs: What else is to be remarked on their files.
    """
    noise = sum((one.noise for one in skeletons), Tally())
    dropped = {reason: noise.dropped[reason] for reason in _NOISE if noise.dropped.get(reason)}
    whole = merge([one.trace for one in skeletons])
    return replace(whole, tally=whole.tally + Tally(notes=signs) + Tally(kept=noise.kept, dropped=dropped))


@dataclass(frozen=True, slots=True)
class Placement:
    """How one rank reads the clock of all."""

    shift_ns: int  # what to add to its own times
    found: Clocks | None  # what to correct then; None where one clock was read by all
    back_ns: int  # what to subtract in the end
    ranks: tuple[Rank, ...]
    clock_error_ns: int


def placements(skeletons: Sequence[Skeleton], merged: Trace, aligned: Trace, found: Clocks) -> list[Placement]:
    """The placement of each rank, such that its times are those it has in the trace of all.

    Args:
        skeletons: Those that were merged, in the same order.
        merged: All of them together.
        aligned: The same on one clock, counted from the epoch, or from 0 where there is none.
        found: The offsets.
    """
    by_rank = {rank.rank: rank for rank in aligned.ranks}
    back_ns = (aligned.epoch_ns or 0) - (merged.epoch_ns or 0)
    several = clock_of_reference(merged, found) is not None
    places = []
    for one in skeletons:
        own = one.trace.epoch_ns
        shift_ns = 0 if own is None or merged.epoch_ns is None else own - merged.epoch_ns
        ranks = tuple(by_rank[rank.rank] for rank in one.trace.ranks)
        places.append(Placement(shift_ns, found if several else None, back_ns, ranks, aligned.clock_error_ns))
    return places


def placed(trace: Trace, at: Placement) -> Trace:
    """The trace of one rank on the clock of all."""
    moved = _moved(trace, at.shift_ns)
    if at.found is not None:
        moved = shifted(moved, at.found, 0)
    moved = _moved(moved, -at.back_ns)
    ordered = canonical(replace(moved, epoch_ns=0))  # which counts from its own earliest event again
    first_ns = ordered.epoch_ns or 0
    return replace(_moved(ordered, first_ns), ranks=at.ranks, clock_error_ns=at.clock_error_ns, tally=Tally())


def _moved(trace: Trace, shift_ns: int) -> Trace:
    e, marks, memory = trace.events, trace.marks, trace.memory
    return replace(
        trace,
        events=replace(e, start_ns=e.start_ns + shift_ns, end_ns=e.end_ns + shift_ns),
        marks=replace(marks, start_ns=marks.start_ns + shift_ns, end_ns=marks.end_ns + shift_ns),
        memory=replace(memory, time_ns=memory.time_ns + shift_ns),
    )
