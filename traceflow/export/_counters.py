"""Quantities over time: communication that nothing hides, and bytes that are alive."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from traceflow.analyzers.communication import compute_of
from traceflow.analyzers.live_ranges import live_ranges, of_default_space
from traceflow.export.subject import Subject
from traceflow.graph import DependencyGraph, SliceKind
from traceflow.intervals import Intervals, union
from traceflow.program.module import HloModule
from traceflow.trace.model import ABSENT, Int64, MemorySource, Trace

_COMMUNICATES = (SliceKind.TRANSFER, SliceKind.ARRIVED, SliceKind.COMMUNICATION)


@dataclass(frozen=True, slots=True)
class Counter:
    """A quantity of one device, or of a rank's host: it has each value until the next."""

    name: str
    unit: str  # bytes or count
    rank: int
    device: int  # ABSENT: the host
    time_ns: Int64
    value: Int64


def counters(run: Subject, *, step: int | None = None) -> Iterator[Counter]:
    """Every quantity that the evidence tells over time.

    - `exposed communication`: 1 while a participant communicates and does not compute, else 0; its integral over the
      window is the `exposed_ns` of the participant.
    - `allocated bytes` and `reserved bytes` of each source that tells them: what an allocator handed out, and holds.
    - `live bytes of PROGRAM`: what the compiler's simulation of the heap has alive when an instruction begins, and
      between executions what the program holds all the time.

    Args:
        run: The run.
        step: Which step communication is looked at in; the whole capture where None.
    """
    trace = run.trace
    yield from _exposed(trace, run.graph(step=step))
    yield from _allocated(trace)
    for key, module in run.programs.items():
        yield from _live(trace, key, module)


def _exposed(trace: Trace, graph: DependencyGraph) -> Iterator[Counter]:
    slices, lanes = graph.slices, trace.lanes
    communicates = (slices.lane >= 0) & np.isin(slices.kind, _COMMUNICATES)
    for (rank, device), compute in compute_of(trace, graph).items():
        on = ABSENT if device is None else device
        mine = communicates & ((lanes.rank == rank) & (lanes.device == on))[slices.lane]
        exposed = union(slices.start_ns[mine], slices.end_ns[mine]) - compute
        if len(exposed):
            yield Counter("exposed communication", "count", rank, on, *_switched(exposed, graph.start_ns))


def _switched(intervals: Intervals, start_ns: int) -> tuple[Int64, Int64]:
    """Moments at which something begins and ends, and 1 and 0."""
    times = np.append(start_ns, np.column_stack((intervals.start_ns, intervals.end_ns)).ravel())
    values = np.append(0, np.tile((1, 0), len(intervals)))
    first = int(times[1] == start_ns)  # it begins with the window
    return times[first:], values[first:]


def _allocated(trace: Trace) -> Iterator[Counter]:
    memory = trace.memory
    keys = np.column_stack((memory.rank, memory.device, memory.source))
    for rank, device, source in np.unique(keys, axis=0).tolist():
        rows = np.flatnonzero((keys == (rank, device, source)).all(axis=1))
        told = MemorySource(source).name.lower()
        for what, column in (("allocated", memory.allocated_bytes), ("reserved", memory.reserved_bytes)):
            if (column[rows] >= 0).all():
                yield Counter(f"{what} bytes ({told})", "bytes", rank, device, memory.time_ns[rows], column[rows])


def _live(trace: Trace, key: int, module: HloModule) -> Iterator[Counter]:
    """The live bytes of one program on each device that executes it; nothing without a simulation of the heap."""
    if module.buffers is None or not len(of_default_space(module.buffers)):
        return
    ranges = live_ranges(module.buffers, module.opcode)
    at_instruction = np.full(len(module) + 1, ABSENT, np.int64)
    np.maximum.at(at_instruction, ranges.instruction, ranges.live_bytes())  # ABSENT counts for the row after the last
    at_instruction[-1] = ABSENT
    held = int(ranges.size_bytes[ranges.persistent].sum())
    hlo, events, lanes = trace.hlo, trace.events, trace.lanes
    mine = np.flatnonzero(hlo.program == key)
    rows = mine[at_instruction[hlo.instruction[mine]] != ABSENT]
    lane = events.lane[hlo.event[rows]]
    places = np.column_stack((lanes.rank[lane], lanes.device[lane]))
    for rank, device in np.unique(places, axis=0).tolist():
        mine = rows[(places == (rank, device)).all(axis=1)]
        event = hlo.event[mine]
        ends = _last_ends(hlo.run[mine], events.end_ns[event])
        time = np.concatenate((ends, events.start_ns[event]))
        value = np.concatenate((np.full(len(ends), held), at_instruction[hlo.instruction[mine]]))
        order = np.argsort(time, kind="stable")
        yield Counter(f"live bytes of {module.name}", "bytes", rank, device, time[order], value[order])


def _last_ends(run: Int64, end_ns: Int64) -> Int64:
    """When the last instruction of each execution ended."""
    which = np.unique(run, return_inverse=True)[1].ravel()
    ends = np.full(int(which.max(initial=-1)) + 1, np.iinfo(np.int64).min)
    np.maximum.at(ends, which, end_ns)
    return ends
