"""What had to happen before what: the dependency graph of a trace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from traceflow.analyzers.dependencies.device import Launched, launch_edges, launched, stream_order, waits_for_copy
from traceflow.analyzers.dependencies.hlo import data, envelopes, run_starts
from traceflow.analyzers.dependencies.host import flows, hand_off, program_order
from traceflow.analyzers.dependencies.issued import issued
from traceflow.analyzers.dependencies.nesting import nesting
from traceflow.analyzers.dependencies.rendezvous import rendezvous
from traceflow.analyzers.dependencies.slices import cut
from traceflow.analyzers.dependencies.synchronisation import synchronisation
from traceflow.analyzers.matching import Matches, match
from traceflow.graph import DependencyGraph, EdgeKind, dependency_graph
from traceflow.quality import ORDER
from traceflow.result import Note
from traceflow.trace.model import ABSENT, Bool, Int32, Kind, LaneKind, Trace

if TYPE_CHECKING:
    from traceflow.program.module import Programs


@dataclass(frozen=True, slots=True)
class Dependencies:
    """The graph of a whole capture, with what else was established while building it."""

    graph: DependencyGraph
    matches: Matches
    launch_call: Int32  # the host event that launched each device event, ABSENT where the trace does not tell
    notes: tuple[Note, ...]
    remarks: Remarks | None = None  # what the notes count; None where they count nothing


@dataclass(frozen=True, slots=True)
class Remarks:
    """What was left out, inferred or not found while a graph was built, in numbers that add up over ranks."""

    contradicted: Mapping[EdgeKind, int]
    inferred: int  # blocking calls whose cause no record tells
    stuck_out: int  # events cut to the one around them
    unlaunched: int  # device events without a call
    device_events: int
    bare_steps: int  # without device events, though calls launched some
    whole_steps: int


def dependencies(
    trace: Trace, programs: Programs, *, matches: Matches | None = None, resolution_ns: int | None = None
) -> Dependencies:
    """Build the dependency graph of a trace, with every edge kind that the trace carries.

    Args:
        trace: The evidence, all ranks on one clock.
        programs: Compiled modules for the trace's HLO operations; may be empty.
        matches: Which communication calls belong together; found in the trace where None.
        resolution_ns: How far the two ends of one moment may lie apart, likewise. Both are given for a trace of one
            rank of several, for which they were found in what all ranks share.

    Complexity: O(n log n) in the number of events.
    """
    matches = match(trace) if matches is None else matches
    launch, resolution_ns = launched(trace), resolution_of(trace) if resolution_ns is None else resolution_ns
    blocking = waits_for_copy(trace, launch)
    slices = cut(trace, matches, blocking | envelopes(trace, programs))
    slices, returned = issued(trace, matches, slices)
    handed_off, waits = hand_off(trace, slices)
    slices = slices.with_blocked(waits)
    operands = data(trace, programs, slices)
    synchronised, inferred = synchronisation(trace, launch, slices, blocking)
    edges = iter(
        [  # which lets go of them
            program_order(trace, slices),
            handed_off,
            returned,
            *flows(trace, slices),
            *launch_edges(trace, launch, slices),
            *stream_order(trace, slices, resolution_ns),
            *synchronised,
            operands,
            nesting(trace, slices),
            *run_starts(trace, slices, np.unique(slices.slices.event[operands.target >> 1])),
            *rendezvous(trace, matches, slices),
        ]
    )
    graph = dependency_graph(slices.slices, edges, resolution_ns=resolution_ns)
    remarks = _remarks(trace, graph, launch, inferred, slices.stuck_out)
    return Dependencies(graph, matches, launch.call, notes_of([remarks], trace), remarks)


def resolution_of(trace: Trace) -> int:
    """How far the two ends of one moment may lie apart: 1 us where all times are whole us, else 1 ns."""
    moments = trace.events.start_ns[:1000], trace.events.start_ns, trace.events.end_ns  # the first few mostly tell
    return 1 if any((moment_ns % 1000).any() for moment_ns in moments) else 1000


def _remarks(trace: Trace, graph: DependencyGraph, launch: Launched, inferred: int, stuck_out: int) -> Remarks:
    work = (trace.lanes.kind == LaneKind.STREAM)[trace.events.lane]
    missing, number = int((work & (launch.call < 0)).sum()), int(work.sum())
    return Remarks(graph.contradicted, inferred, stuck_out, missing, number, *_bare_steps(trace, launch))


def notes_of(remarks: Sequence[Remarks], trace: Trace) -> tuple[Note, ...]:
    """What limits the dependencies of some ranks.

    Args:
        remarks: Of each, or of all together.
        trace: Their evidence, of which lanes, ranks and marks are looked at.
    """
    notes = []
    inferred, stuck_out = (sum(getattr(one, name) for one in remarks) for name in ("inferred", "stuck_out"))
    counts = {kind: sum(one.contradicted.get(kind, 0) for one in remarks) for kind in EdgeKind}
    denied = {kind: count for kind, count in counts.items() if count}
    if denied:
        text = ", ".join(f"{count} {kind.label}" for kind, count in denied.items())
        notes.append(Note("TF304", f"timestamps contradict {text} edges; they were left out"))
    if inferred and (trace.lanes.kind == LaneKind.STREAM).any():  # XLA waits for results: it has no such records
        text = f"{inferred} blocking calls have no synchronisation record; what they waited for was inferred from the work that ended last"
        notes.append(Note("TF303", text, ORDER))
    if stuck_out:
        notes.append(Note("TF309", f"{stuck_out} host events end after the event they are in; they were cut to it"))
    world = max((rank.world_size or 0 for rank in trace.ranks), default=0)
    if world > len(trace.ranks):
        text = f"{len(trace.ranks)} of {world} ranks present: collectives with the others stay whole, and who was late is unknown"
        notes.append(Note("TF305", text, ("/result/ranks", *ORDER)))
    if len({rank.clock for rank in trace.ranks}) > 1:
        text = "the ranks read different clocks, which are not aligned: no figure crosses between them"
        notes.append(Note("TF308", text, ("/result/collectives", "/result/steps", *ORDER)))
    notes += [*_unlaunched(remarks), *_without_devices(remarks, trace)]
    if not (trace.lanes.device != ABSENT).any():
        text = "the trace holds no device events: only the host is explained"
        notes.append(Note("TF306", text, ("/result/devices", "/result/per_participant", *ORDER)))
    return tuple(notes)


def _unlaunched(remarks: Sequence[Remarks]) -> list[Note]:
    """Device work without its call, which was made, or whose record was dropped, before the recording.

    A few at the start are nothing to worry about; from one in `_SOME` on, the path has a cause less.
    """
    missing, number = (sum(getattr(one, name) for one in remarks) for name in ("unlaunched", "device_events"))
    if missing in {0, number}:  # where no call is known at all, the trace does not record them
        return []
    text = f"{missing:,} of {number:,} device events were launched by calls that were not recorded"
    return [Note("TF307", text, ORDER if missing * _SOME >= number else ())]


_SOME = 100


def _without_devices(remarks: Sequence[Remarks], trace: Trace) -> list[Note]:
    bare, whole = (sum(getattr(one, name) for one in remarks) for name in ("bare_steps", "whole_steps"))
    if not bare or not whole:
        return []
    number = len(trace.marks.step)
    text = f"{bare} of {number} steps hold no device events, though they launched work: the profiler lost it"
    return [Note("TF322", text, ("/result",))]


def _bare_steps(trace: Trace, launch: Launched) -> tuple[int, int]:
    """Steps whose calls launched work, none of which was recorded, and those that have theirs."""
    e, marks = trace.events, trace.marks
    calls = np.flatnonzero(_launches(trace)[e.name])
    calls = calls[(e.kind[calls] == Kind.CALL) & (e.correlation[calls] >= 0)]
    calls = calls[np.argsort(e.start_ns[calls], kind="stable")]
    done = np.zeros(len(e), bool)
    done[launch.call[launch.call >= 0]] = True
    bare = whole = 0
    for rank in np.unique(marks.rank):
        steps, own = marks.rank == rank, calls[trace.lanes.rank[e.lane[calls]] == rank]
        first, last = (np.searchsorted(e.start_ns[own], at[steps]) for at in (marks.start_ns, marks.end_ns))
        worked = np.append(0, np.cumsum(done[own]))
        with_work = worked[last] > worked[first]
        whole, bare = whole + int(with_work.sum()), bare + int(((last > first) & ~with_work).sum())
    return bare, whole


def _launches(trace: Trace) -> Bool:
    """Which names are of calls that start a kernel, or a graph of them."""
    return np.array(["Launch" in text for text in trace.strings] or [False], bool)
