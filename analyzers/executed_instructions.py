"""What the instructions of compiled programs cost and took, by instruction."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np

from traceflow.analyzers.work import Work, WorkKind
from traceflow.program.cost import ProgramCost
from traceflow.program.module import COLLECTIVES, HloModule, Programs, operation_of
from traceflow.program.recompute import recomputed
from traceflow.result import Provenance
from traceflow.trace.model import ABSENT, Bool, Int64, LaneKind, Rows, Trace

_HOLDS_OTHERS = frozenset({"while", "conditional", "call"})


def executed_instructions(
    trace: Trace, programs: Programs, events: Rows, took_ns: Int64, split: Bool
) -> Iterator[Work]:
    """Every executed instruction of a known program, asynchronous halves together.

    Loops and calls whose instructions are in the trace themselves are left out, so that nothing counts twice. An
    asynchronous pair took from its start to its end, work that hides it included. On a line or a worker each event is
    one execution; on a stream, where an instruction may launch several kernels, the kernel that ran least often tells.

    Args:
        trace: The evidence.
        programs: Its programs.
        events: The rows to look at, ascending.
        took_ns: How long each of them took.
        split: Whether that is without waiting for others.
    """
    place = np.full(len(trace.events), ABSENT, np.int64)
    place[events] = np.arange(len(events))
    rows = np.flatnonzero((place[trace.hlo.event] >= 0) & (trace.hlo.instruction >= 0))
    for program in np.unique(trace.hlo.program[rows]).tolist():
        of_program = rows[trace.hlo.program[rows] == program]
        if program in programs:
            at = place[trace.hlo.event[of_program]]
            yield from _Executed(trace, programs[program], of_program, took_ns[at], split[at]).work()


class _Executed:
    """The executions of one program."""

    def __init__(self, trace: Trace, module: HloModule, rows: Rows, took_ns: Int64, split: Bool) -> None:
        self._trace, self._module = trace, module
        self._event, self._run = trace.hlo.event[rows], trace.hlo.run[rows]
        self._took_ns, self._split = took_ns, split
        self._instruction = trace.hlo.instruction[rows]
        self._lane = trace.events.lane[self._event]
        self._start_ns, self._end_ns = trace.events.start_ns[self._event], trace.events.end_ns[self._event]
        lanes = trace.lanes
        self._place = list(zip(lanes.rank[self._lane].tolist(), lanes.device[self._lane].tolist(), strict=True))
        self._cost = ProgramCost(module, len(set(self._place)))

    def work(self) -> Iterator[Work]:
        """One row per instruction."""
        module, again = self._module, recomputed(self._module)
        executed = {int(module.computation[row]) for row in np.unique(self._instruction).tolist()}
        by_start: dict[int, list[int]] = defaultdict(list)
        for at, row in enumerate(self._instruction.tolist()):
            by_start[module.start_of(row)].append(at)
        for row, own in by_start.items():
            if module.opcode[row] in _HOLDS_OTHERS and self._reaches(row, executed):
                continue
            operation = operation_of(module, row)
            executions, took_ns, paired = self._counted(own)
            talks = operation in COLLECTIVES
            yield Work(
                kind=WorkKind.COLLECTIVE if talks else WorkKind.INSTRUCTION,
                name=module.instruction_name[row],
                detail=f"{operation} {module.shape[row]}",
                program=module.name,
                source=module.source[row] or None,
                executions=executions,
                cost=self._cost.of(row),
                measured_ns=took_ns,
                recomputed=bool(again[row]),
                waits=paired or (talks and not self._split[own].all()),
                provenance=Provenance.COMPILER if row in module.stated_flops else Provenance.DERIVED,
            )

    def _reaches(self, row: int, executed: set[int]) -> bool:
        """Whether the trace holds instructions that an instruction calls, itself or through others."""
        module, seen = self._module, set[int]()
        left = module.called_by(row).tolist()
        while left:
            computation = left.pop()
            if computation in executed:
                return True
            if computation not in seen:
                seen.add(computation)
                first, last = np.searchsorted(module.computation, (computation, computation + 1)).tolist()
                left += [c for inner in range(first, last) for c in module.called_by(inner).tolist()]
        return False

    def _counted(self, own: Sequence[int]) -> tuple[int, int, bool]:
        """How often an instruction ran, how long that took in all, and whether from a start to the end of its wait."""
        rows = np.array(own)
        module = self._module
        halves = np.unique(self._instruction[rows])
        if len(halves) > 1:
            done = np.array([module.opcode[row].endswith("-done") for row in self._instruction[rows].tolist()])
            return *self._pairs(rows[~done], rows[done]), True
        took_ns = int(self._took_ns[rows].sum())
        if self._trace.lanes.kind[self._lane[rows[0]]] != LaneKind.STREAM:
            return len(rows), took_ns, False
        kernels: dict[tuple[object, ...], dict[int, int]] = defaultdict(lambda: defaultdict(int))
        for at in own:
            kernels[*self._place[at], int(self._run[at])][int(self._trace.events.name[self._event[at]])] += 1
        return sum(min(of_run.values()) for of_run in kernels.values()), took_ns, False

    def _pairs(self, starts: Rows, ends: Rows) -> tuple[int, int]:
        """Starts and the ends that follow them on the same device, in order."""
        took_ns, ends_of = 0, defaultdict(list)
        for at in ends[np.argsort(self._end_ns[ends], kind="stable")].tolist():
            ends_of[*self._place[at], int(self._run[at])].append(int(self._end_ns[at]))
        waiting = {key: iter(values) for key, values in ends_of.items()}
        for at in starts[np.argsort(self._start_ns[starts], kind="stable")].tolist():
            end_ns = next(waiting.get((*self._place[at], int(self._run[at])), iter(())), int(self._end_ns[at]))
            took_ns += max(end_ns - int(self._start_ns[at]), 0)
        return len(starts), took_ns
