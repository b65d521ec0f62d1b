"""What a trace says around each communication call: who issued it, in which pass, inside which annotations.

The name of what executes a collective is not looked at: one name stands for many purposes, and libraries execute one
operation by the kernel of another. Of operators, only the operation is taken.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from traceflow.analyzers.attribution.purposes import Kind, Phase, kind_of_operation
from traceflow.analyzers.matching import numbers_of
from traceflow.analyzers.window import NO_STEP, step_of_events
from traceflow.trace.model import ABSENT, Bool, Group, Int64, LaneKind, Rows, Trace
from traceflow.trace.model import Kind as EventKind

if TYPE_CHECKING:
    from traceflow.analyzers.dependencies import Dependencies
    from traceflow.analyzers.sharding.flow import Flow
    from traceflow.program.module import HloModule, Programs

_BACKWARD = "autograd::engine::evaluate_function: "
_RECOMPUTES = f"{_BACKWARD}CheckpointFunctionBackward"
_ACCUMULATES = re.compile(r"^(?:autograd::engine::evaluate_function: )?torch::autograd::AccumulateGrad$")
_UPDATES = re.compile(r"^Optimizer\.step#")
OPERATOR = re.compile(r"^(?:c10d|nccl|_c10d_functional):{1,2}(\w+)")
_NO_SCOPE = re.compile(r"\.py\(\d+\): |^<built-in |^traceflow\.|^(?:aten|c10d|nccl|autograd|torch|_c10d_functional):")
_BY_TIME = (None, Phase.FORWARD, Phase.UPDATE)
_REPLICATED = re.compile(r"^(?:DistributedDataParallel\.forward$|FSDP::|FullyShardedDataParallel\.)")


@dataclass(frozen=True, slots=True)
class Call:
    """What is around a communication call. All rows of `Trace.communications` in which none of it differs share one."""

    participant: tuple[int, int]  # rank and device, ABSENT on the host
    kind: Kind
    group: Group | None
    payload_bytes: int | None
    in_splits: tuple[int, ...]
    out_splits: tuple[int, ...]
    step: int
    phase: Phase | None
    scopes: tuple[str, ...]  # annotations around it, the innermost first
    hooked: bool  # issued while a gradient was accumulated
    program: int | None = None  # of XLA
    of_argument: bool = False  # whether an instruction is given an argument of its program, moved at most

    @property
    def members(self) -> frozenset[int]:
        """Who takes part; empty where that is not known."""
        return frozenset(self.group.members) if self.group else frozenset()


@dataclass(frozen=True, slots=True)
class Calls:
    """All communication calls of a trace."""

    each: tuple[Call, ...]  # those that differ, in the order of their last rows
    of: Int64  # per row of `Trace.communications`, which of them it is
    issued_ns: Int64  # per row


@dataclass(frozen=True, slots=True)
class _Said:
    """What the names of events around a call say of it."""

    kind: Kind | None
    phase: Phase | None
    scopes: tuple[str, ...]
    hooked: bool


class Surroundings:
    """Host events around others, and instructions behind events of XLA."""

    def __init__(self, trace: Trace, found: Dependencies, programs: Programs) -> None:
        self.trace, self.found, self.programs = trace, found, programs
        e, lanes = trace.events, trace.lanes
        self.on_thread: Bool = (lanes.kind[e.lane] == LaneKind.THREAD) & (e.kind == EventKind.HOST)
        self.step = step_of_events(trace, found)
        self._flows: dict[int, Flow] = {}
        self._arguments: dict[tuple[int, int], bool] = {}
        self._known: dict[tuple[int, int], tuple[Phase | None, tuple[str, ...]]] = {}
        self._said: dict[tuple[str, ...], _Said] = {}
        self._numbers: dict[int, tuple[int, ...]] = {ABSENT: ()}

    @cached_property
    def around(self) -> Int64:
        """The innermost host event around each event, ABSENT without one."""
        return self.enclosing(self.on_thread)

    def enclosing(self, wanted: Bool) -> Int64:
        """The innermost of the wanted events around each event, ABSENT without one."""
        from traceflow.analyzers.dependencies._sweep import enclosing

        e = self.trace.events
        innermost: Int64 = enclosing(e.start_ns, e.end_ns, e.lane, wanted)
        return innermost

    @cached_property
    def issuer(self) -> Int64:
        """The event that issued each event: a launch, an operator, or itself."""
        launched = self.found.launch_call
        issuer = np.where(launched >= 0, launched, np.arange(len(launched)))
        flows, e = self.trace.flows, self.trace.events
        communicates = e.kind[flows.target] == EventKind.COMMUNICATION
        handed = communicates & (e.lane[flows.source] != e.lane[flows.target]) & (launched[flows.target] < 0)
        issuer[flows.target[handed]] = flows.source[handed]
        return issuer

    @cached_property
    def instruction(self) -> tuple[Int64, Int64]:
        """Program and instruction that each communication call executes, ABSENT where it executes none."""
        hlo, at = self.trace.hlo, np.full(len(self.trace.events), ABSENT)
        known = np.flatnonzero((hlo.instruction != ABSENT) & np.isin(hlo.program, list(self.programs)))
        at[hlo.event[known]] = np.arange(len(known))
        at = at[self.trace.communications.event]
        program, row = (np.append(column[known], ABSENT)[at] for column in (hlo.program, hlo.instruction))
        return program, row

    @cached_property
    def issued_by(self) -> Int64:
        """The event that issued each communication call; its own where an instruction did."""
        own = self.trace.communications.event
        return np.where(self.instruction[1] != ABSENT, own, self.issuer[own])

    @cached_property
    def _engine(self) -> tuple[Int64, Int64, Int64]:
        """Ranks, steps, and when the engine's work in each rank and step ended, NO_STEP where it did none."""
        e, trace = self.trace.events, self.trace
        named = np.array([text.startswith(_BACKWARD) for text in trace.strings] or [False])
        rows = np.flatnonzero(named[e.name])
        rows = rows[self.step[rows] != NO_STEP]
        ranks, at_rank = np.unique(trace.lanes.rank[e.lane[rows]], return_inverse=True)
        steps, at_step = np.unique(self.step[rows], return_inverse=True)
        ends_ns = np.full((len(ranks) + 1, len(steps) + 1), NO_STEP)  # the last ones stand for all others
        np.maximum.at(ends_ns, (at_rank, at_step), e.end_ns[rows])
        return ranks, steps, ends_ns

    def engine_end_ns(self, event: Rows) -> Int64:
        """When the last work of the autograd engine in the rank and step of some events ended, NO_STEP without any."""
        ranks, steps, ends_ns = self._engine
        of = self.trace.lanes.rank[self.trace.events.lane[event]], self.step[event]
        ended_ns: Int64 = ends_ns[_place(ranks, of[0]), _place(steps, of[1])]
        return ended_ns

    @cached_property
    def by_time(self) -> Int64:
        """The pass that issued each communication call, by when that was in its step, as its place in `_BY_TIME`."""
        ended_ns = self.engine_end_ns(self.issued_by)
        late = self.trace.events.start_ns[self.issued_by] >= ended_ns
        return np.where(ended_ns == NO_STEP, 0, np.where(late, 2, 1))

    @cached_property
    def names(self) -> list[Int64]:
        """Per communication call, the name of the event that issued it, of the host event around that, and so on."""
        event, around = self.trace.communications.event, self.around
        at = np.where(self.issued_by == event, around[event], self.issued_by)
        at, levels = np.where(self.instruction[1] != ABSENT, ABSENT, at), []
        while (at >= 0).any():
            levels.append(np.where(at >= 0, self.trace.events.name[at], ABSENT))
            at = np.where(at >= 0, around[at], ABSENT)
        return levels

    def of_instruction(self, program: int, row: int) -> tuple[Phase | None, tuple[str, ...]]:
        """Pass and scopes of an instruction, by the name of the operation that it comes from."""
        if (program, row) not in self._known:
            module = self.programs[program]
            self._known[program, row] = phase_and_scopes(module.operation_name[_work(module, row)])
        return self._known[program, row]

    def takes_argument(self, program: int, row: int) -> bool:
        """Whether all that an instruction is given are arguments of its program, moved at most."""
        from traceflow.analyzers.sharding.flow import Flow

        if (program, row) not in self._arguments:
            module = self.programs[program]
            work = _work(module, row)
            flow = self._flows.setdefault(program, Flow(module))
            origins = [flow.origin(operand) for operand in module.operands_of(work).tolist()]
            self._arguments[program, row] = bool(origins) and all(
                module.opcode[origin] == "parameter" and module.computation[origin] == module.entry
                for origin in origins
            )
        return self._arguments[program, row]

    def said_by(self, row: int) -> _Said:
        """What the names around a communication call say; most calls share theirs with many."""
        names = tuple(self.trace.strings[level[row]] for level in self.names if level[row] != ABSENT)
        if names not in self._said:
            self._said[names] = _said_by(names)
        return self._said[names]

    def numbers(self, code: int) -> tuple[int, ...]:
        """The numbers in a text of the trace; none for no text."""
        if code not in self._numbers:
            self._numbers[code] = tuple(map(int, re.findall(r"\d+", self.trace.strings[code])))
        return self._numbers[code]


def _place(known: Rows, wanted: Rows) -> Int64:
    """Where each wanted number is among known ones, which ascend; behind all of them where it is not."""
    place = np.searchsorted(known, wanted)
    return np.where(np.append(known, 0)[place] == wanted, place, len(known))


def _said_by(names: tuple[str, ...]) -> _Said:
    operators = (found[1] for name in names if (found := OPERATOR.match(name)))
    kinds = (kind_of_operation(operator) for operator in operators)
    engine = next((name for name in names if name.startswith(_BACKWARD)), None)
    phase = None
    if engine is not None:
        phase = Phase.FORWARD if engine == _RECOMPUTES else Phase.BACKWARD
    elif any(_UPDATES.match(name) for name in names):
        phase = Phase.UPDATE
    return _Said(
        next((kind for kind in kinds if kind is not Kind.OTHER), None),
        phase,
        tuple(name for name in names if not _NO_SCOPE.search(name)),
        any(_ACCUMULATES.match(name) for name in names),
    )


def _work(module: HloModule, row: int) -> int:
    return module.wrapped_by(module.start_of(row))


def phase_and_scopes(operation_name: str) -> tuple[Phase | None, tuple[str, ...]]:
    """What JAX writes into the name of an operation: transformations and named scopes.

    Example:
        >>> phase_and_scopes("jit(train)/shard_map/transpose(jvp(dispatch))/all_to_all")
        (<Phase.BACKWARD: 'backward'>, ('dispatch', 'shard_map', 'train'))
    """
    *around, _ = operation_name.split("/") if operation_name else [""]
    scopes = tuple(part.rstrip(")").rpartition("(")[2] for part in reversed(around))
    if "rematted_computation" in operation_name:
        return Phase.FORWARD, scopes
    if "transpose(" in operation_name:
        return Phase.BACKWARD, scopes
    return (Phase.FORWARD if "jvp(" in operation_name else None), scopes


def calls_of(around: Surroundings) -> Calls:
    """The communication calls of a trace; what is around equal ones is looked at once."""
    trace, issuer = around.trace, around.issued_by
    c, e, lanes = trace.communications, trace.events, trace.lanes
    lane = e.lane[c.event]
    names = [e.name[c.event]] if trace.format == "operations" else around.names
    what = c.operation, c.group, c.payload_bytes, c.in_splits, c.out_splits
    who = lanes.rank[lane], lanes.device[lane], around.step[issuer], around.by_time
    number = numbers_of(np.column_stack((*who, *what, *around.instruction, *names)))
    last = np.empty(int(number.max(initial=-1)) + 1, np.int64)
    last[number] = np.arange(len(number))  # the last one written stays
    order = np.argsort(last)
    each = tuple(_call(around, row) for row in last[order].tolist())
    return Calls(each, np.argsort(order)[number], e.start_ns[issuer])


def replicated(trace: Trace) -> bool:
    """Whether a library that keeps copies of parameters alike has left its annotations."""
    return any(_REPLICATED.match(text) for text in trace.strings)


def _call(around: Surroundings, row: int) -> Call:
    """What is around one row of `Trace.communications`."""
    trace, c = around.trace, around.trace.communications
    event, group, payload_bytes = int(c.event[row]), int(c.group[row]), int(c.payload_bytes[row])
    kind, hooked, of_argument = kind_of_operation(trace.strings[c.operation[row]]), False, False
    program, instruction = (int(column[row]) for column in around.instruction)
    if instruction != ABSENT:
        phase, scopes = around.of_instruction(program, instruction)
        of_argument = kind is Kind.ALL_GATHER and around.takes_argument(program, instruction)
    else:
        said = around.said_by(row)
        kind, phase, scopes, hooked = said.kind or kind, said.phase, said.scopes, said.hooked
        phase = phase or _BY_TIME[around.by_time[row]]
        if trace.format == "operations":  # the types of a table are what its author says of them
            scopes = (trace.strings[trace.events.name[event]],)
    lane = trace.events.lane[event]
    return Call(
        participant=(int(trace.lanes.rank[lane]), int(trace.lanes.device[lane])),
        kind=kind,
        group=trace.groups[group] if group != ABSENT else None,
        payload_bytes=payload_bytes if payload_bytes != ABSENT else None,
        in_splits=around.numbers(int(c.in_splits[row])),
        out_splits=around.numbers(int(c.out_splits[row])),
        step=int(around.step[around.issued_by[row]]),
        phase=phase,
        scopes=scopes,
        hooked=hooked,
        program=program if instruction != ABSENT else None,
        of_argument=of_argument,
    )
