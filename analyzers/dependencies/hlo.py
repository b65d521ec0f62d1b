"""Data edges between HLO operations of one execution, and the edges that start an execution."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from traceflow.analyzers.dependencies.stream_waits import stream_waits
from traceflow.graph import EdgeKind, Edges
from traceflow.trace.model import ABSENT, Bool, Int32, Int64, LaneKind, Trace

if TYPE_CHECKING:
    from traceflow.analyzers.dependencies.slices import Cut
    from traceflow.program.module import HloModule, Programs

ENVELOPES = frozenset({"while", "conditional", "call"})
"""Operations that only run other operations: they have no work of their own."""


def envelopes(trace: Trace, programs: Programs) -> Bool:
    """Events that execute an operation which only runs others, shape (events,)."""
    mask = np.zeros(len(trace.events), bool)
    for program, rows in _by_program(trace, programs):
        opcodes = programs[program].opcode
        wraps = [opcodes[i] in ENVELOPES for i in trace.hlo.instruction[rows]]
        mask[trace.hlo.event[rows[wraps]]] = True
    return mask


def data(trace: Trace, programs: Programs, cut: Cut) -> Edges:
    """The end of each producer of an operand binds the operation, within one run on one device.

    An operation that ran n times in a run is joined occurrence by occurrence: to the producer's same
    occurrence, to the occurrence before it where a loop carries the value, and at the first round of a loop to
    what entered it. On streams, what the schedule says of waits between them binds likewise.
    """
    sources, targets = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for program, rows in _by_program(trace, programs):
        table = _occurrences(trace, rows, len(programs[program]))
        consumer, producer, carried = _static_edges(programs[program], table.executed, streams=_on_streams(trace, rows))
        source, target = _dynamic_edges(table, consumer, producer, carried)
        sources.append(source)
        targets.append(target)
    source, target = np.concatenate(sources), np.concatenate(targets)
    return Edges(cut.end_of(source), cut.start_of(target), EdgeKind.DATA)


def run_starts(trace: Trace, cut: Cut, dependent: Int64) -> list[Edges]:
    """What starts a run on a device: its launch on the host, and the end of the run before it on that device.

    Args:
        trace: The evidence.
        cut: Its slices.
        dependent: Events that some operand already binds; they wait for nothing else.
    """
    kind = trace.lanes.kind[trace.events.lane[trace.hlo.event]]
    unordered = np.flatnonzero(kind == LaneKind.WORKER)
    roots = unordered[~np.isin(trace.hlo.event[unordered], dependent)]
    launch = _launch_pairs(trace, np.concatenate((roots, _first_of_run(trace, np.flatnonzero(kind == LaneKind.LINE)))))
    before = _runs_before(trace, roots, unordered)
    return [
        Edges(cut.start_of(launch[0]), cut.start_of(launch[1]), EdgeKind.LAUNCH),
        Edges(cut.end_of(before[0]), cut.start_of(before[1]), EdgeKind.STREAM_ORDER),
    ]


def _first_of_run(trace: Trace, rows: Int64) -> Int64:
    """Of the given rows of the HLO table, those whose event is the first of its run on its device."""
    lane = trace.events.lane[trace.hlo.event[rows]]
    start_ns = trace.events.start_ns[trace.hlo.event[rows]]
    run = np.column_stack(
        (trace.lanes.rank[lane], trace.lanes.device[lane], trace.hlo.program[rows], trace.hlo.run[rows])
    )
    order = np.lexsort((start_ns, *run.T[::-1]))
    first = np.ones(len(rows), bool)
    first[1:] = (run[order][1:] != run[order][:-1]).any(axis=1)
    return rows[order[first]]


def _by_program(trace: Trace, programs: Programs) -> list[tuple[int, Int64]]:
    """Rows of the HLO table per program that is known, instructions that it lacks left out."""
    known = trace.hlo.instruction >= 0
    return [
        (int(program), np.flatnonzero(known & (trace.hlo.program == program)))
        for program in np.unique(trace.hlo.program)
        if int(program) in programs
    ]


@dataclass(frozen=True, slots=True)
class _Occurrences:
    """Events of one program sorted by (run on a device, instruction, start), with where each such group begins."""

    event: Int64
    first: Int64  # shape (runs, instructions): position in `event`
    count: Int64
    executed: Bool  # instructions that have events


def _occurrences(trace: Trace, rows: Int64, instructions: int) -> _Occurrences:
    event, instruction = trace.hlo.event[rows], trace.hlo.instruction[rows]
    lane = trace.events.lane[event]
    participant = np.column_stack((trace.lanes.rank[lane], trace.lanes.device[lane], trace.hlo.run[rows]))
    run = np.unique(participant, axis=0, return_inverse=True)[1].ravel()
    order = np.lexsort((trace.events.start_ns[event], instruction, run))
    count = np.zeros((int(run.max(initial=-1)) + 1, instructions), np.int64)
    np.add.at(count, (run, instruction), 1)
    first = (np.cumsum(count) - count.ravel()).reshape(count.shape)
    return _Occurrences(event[order].astype(np.int64), first, count, np.any(count, axis=0))


def _dynamic_edges(table: _Occurrences, consumer: Int64, producer: Int64, carried: Bool) -> tuple[Int64, Int64]:
    """Events (source, target) of every static edge in every run."""
    n_consumer, n_producer = table.count[:, consumer], table.count[:, producer]
    divides = (n_producer > 0) & (n_consumer > 0)
    divides &= np.where(carried, n_consumer == n_producer, n_consumer % np.maximum(n_producer, 1) == 0)
    run, edge = np.nonzero(divides)
    times = n_consumer[run, edge]
    run, edge = np.repeat(run, times), np.repeat(edge, times)
    occurrence = np.arange(len(run)) - np.repeat(np.cumsum(times) - times, times)
    rounds = n_consumer[run, edge] // n_producer[run, edge]
    keep = np.where(carried[edge], occurrence > 0, occurrence % rounds == 0)
    run, edge, occurrence, rounds = run[keep], edge[keep], occurrence[keep], rounds[keep]
    source = table.first[run, producer[edge]] + np.where(carried[edge], occurrence - 1, occurrence // rounds)
    return table.event[source], table.event[table.first[run, consumer[edge]] + occurrence]


def _on_streams(trace: Trace, rows: Int64) -> bool:
    """Whether rows of the HLO table were all executed on streams."""
    return bool((trace.lanes.kind[trace.events.lane[trace.hlo.event[rows]]] == LaneKind.STREAM).all())


def _static_edges(module: HloModule, executed: Bool, *, streams: bool) -> tuple[Int64, Int64, Bool]:
    """Executed instructions and the executed producers of what they use; whether a loop carries the value."""
    resolver = _Producers(module, executed)
    edges = {
        (int(consumer), producer, carried)
        for consumer in np.flatnonzero(executed)
        for producer, carried in resolver.of(int(consumer))
        if producer != consumer or carried
    }
    if streams:
        edges |= {(waiting, awaited, False) for waiting, awaited in stream_waits(module, executed)}
    consumer, producer, carried = np.array(sorted(edges), np.int64).reshape(-1, 3).T
    return consumer, producer, carried.astype(bool)


_Found = frozenset[tuple[int, bool]]


@dataclass(slots=True)
class _Producers:
    """Follows operands through parameters, tuples and whatever has no event of its own."""

    module: HloModule
    executed: Bool
    callers: dict[int, list[int]] = field(init=False)
    memo: dict[tuple[int, int], _Found] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        module, self.callers = self.module, {}
        for i in np.flatnonzero(np.diff(module.called_offsets)).tolist():
            for computation in _part(module.called, module.called_offsets, i):
                self.callers.setdefault(computation, []).append(i)

    def of(self, consumer: int) -> _Found:
        """Executed producers of an instruction's operands and control predecessors."""
        module = self.module
        used = self._all(_part(module.operands, module.operand_offsets, consumer))
        return used | self._all(_part(module.controls, module.control_offsets, consumer))

    def _all(self, instructions: list[int]) -> _Found:
        return frozenset().union(*(self._behind(i, ABSENT) for i in instructions))

    def _behind(self, i: int, element: int) -> _Found:
        """Executed instructions that produce value i, or one element of it where it is a tuple."""
        if self.executed[i]:
            return frozenset({(i, False)})
        if (i, element) not in self.memo:
            self.memo[i, element] = frozenset()  # a value that depends on itself adds nothing to itself
            self.memo[i, element] = self._follow(i, element)
        return self.memo[i, element]

    def _follow(self, i: int, element: int) -> _Found:
        module = self.module
        operands = _part(module.operands, module.operand_offsets, i)
        match module.opcode[i]:
            case "get-tuple-element" if operands:
                return self._behind(operands[0], int(module.tuple_index[i]))
            case "tuple" if element >= 0:
                return self._behind(operands[element], ABSENT)
            case "parameter":
                return self._entering(i, element)
            case "async-start" if (work := module.wrapped_by(i)) != i and self.executed[work]:
                return frozenset({(work, False)})
            case _:
                return frozenset().union(*(self._behind(operand, ABSENT) for operand in operands))

    def _entering(self, parameter: int, element: int) -> _Found:
        """What a computation's callers pass for a parameter; for a loop also what its last round left."""
        module, found = self.module, frozenset[tuple[int, bool]]()
        computation, number = int(module.computation[parameter]), int(module.parameter_number[parameter])
        for caller in self.callers.get(computation, ()):
            operands = _part(module.operands, module.operand_offsets, caller)
            called = _part(module.called, module.called_offsets, caller)
            place = called.index(computation) + 1 if module.opcode[caller] == "conditional" else number
            if place < len(operands):
                found |= self._behind(operands[place], element)
            if module.opcode[caller] == "while":
                roots = [int(module.computation_root[body]) for body in called]
                left = frozenset().union(*(self._behind(root, element) for root in roots))
                found |= frozenset((producer, True) for producer, _ in left)
        return found


def _part(values: Int32, offsets: Int64, i: int) -> list[int]:
    part: list[int] = values[offsets[i] : offsets[i + 1]].tolist()
    return part


def _launch_pairs(trace: Trace, rows: Int64) -> tuple[Int64, Int64]:
    """(launching host event, launched event) for the given rows of the HLO table."""
    launches, known = trace.launches, {}
    for at in range(len(launches.event)):
        key = int(launches.program[at]), int(launches.run[at]), int(launches.rank[at]), int(launches.device[at])
        known[key] = int(launches.event[at])
    lane = trace.events.lane[trace.hlo.event[rows]]
    pairs = []
    for row, rank, device in zip(
        rows.tolist(), trace.lanes.rank[lane].tolist(), trace.lanes.device[lane].tolist(), strict=True
    ):
        run = int(trace.hlo.program[row]), int(trace.hlo.run[row]), rank
        call = known.get((*run, device), known.get((*run, ABSENT)))
        pairs += [] if call is None else [(call, int(trace.hlo.event[row]))]
    source, target = np.array(pairs, np.int64).reshape(-1, 2).T
    return source, target


def _runs_before(trace: Trace, roots: Int64, rows: Int64) -> tuple[Int64, Int64]:
    """(latest event of earlier runs that had ended, root event), per device."""
    e, event = trace.events, trace.hlo.event
    lane = e.lane[event]
    device = np.unique(
        np.column_stack((trace.lanes.rank[lane], trace.lanes.device[lane])), axis=0, return_inverse=True
    )[1].ravel()
    pairs = []
    for which in np.unique(device[rows]):
        own = rows[device[rows] == which]
        runs, first_ns = _first_start(trace.hlo.run[own], e.start_ns[event[own]])
        by_end = own[np.argsort(e.end_ns[event[own]], kind="stable")]
        for root in roots[device[roots] == which]:
            begun = first_ns[np.searchsorted(runs, trace.hlo.run[root])]
            at = int(np.searchsorted(e.end_ns[event[by_end]], begun, side="right")) - 1
            pairs += [(int(event[by_end[at]]), int(event[root]))] if at >= 0 else []
    source, target = np.array(pairs, np.int64).reshape(-1, 2).T
    return source, target


def _first_start(run: Int64, start_ns: Int64) -> tuple[Int64, Int64]:
    runs, inverse = np.unique(run, return_inverse=True)
    first = np.full(len(runs), np.iinfo(np.int64).max)
    np.minimum.at(first, inverse.ravel(), start_ns)
    return runs, first
