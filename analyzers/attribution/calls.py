"""What a trace says around each communication call: who issued it, in which pass, inside which annotations.

The name of what executes a collective is not looked at: one name stands for many purposes, and libraries execute one
operation by the kernel of another. Of operators, only the operation is taken.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from traceflow.analyzers.attribution.purposes import Kind, Phase, kind_of_operation
from traceflow.analyzers.dependencies import Dependencies
from traceflow.analyzers.window import NO_STEP, step_of_events
from traceflow.program.module import HloModule, Programs
from traceflow.trace.model import ABSENT, Bool, Group, Int64, LaneKind, Trace
from traceflow.trace.model import Kind as EventKind

if TYPE_CHECKING:
    from traceflow.analyzers.sharding.flow import Flow

_BACKWARD = "autograd::engine::evaluate_function: "
_RECOMPUTES = f"{_BACKWARD}CheckpointFunctionBackward"
_ACCUMULATES = re.compile(r"^(?:autograd::engine::evaluate_function: )?torch::autograd::AccumulateGrad$")
_UPDATES = re.compile(r"^Optimizer\.step#")
OPERATOR = re.compile(r"^(?:c10d|nccl|_c10d_functional):{1,2}(\w+)")
_NO_SCOPE = re.compile(r"\.py\(\d+\): |^<built-in |^traceflow\.|^(?:aten|c10d|nccl|autograd|torch|_c10d_functional):")
_REPLICATED = re.compile(r"^(?:DistributedDataParallel\.forward$|FSDP::|FullyShardedDataParallel\.)")


@dataclass(frozen=True, slots=True)
class Call:
    """One row of `Trace.communications` with what is around it."""

    row: int
    participant: tuple[int, int]  # rank and device, ABSENT on the host
    kind: Kind
    group: Group | None
    payload_bytes: int | None
    in_splits: tuple[int, ...]
    out_splits: tuple[int, ...]
    issued_ns: int
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
class _Said:
    """What the names of events around a call say of it."""

    kind: Kind | None
    phase: Phase | None
    scopes: tuple[str, ...]
    hooked: bool


class Issued(NamedTuple):
    """What issued a call."""

    rank: int
    step: int
    start_ns: int


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
    def instruction(self) -> Mapping[int, tuple[int, int]]:
        """Program and instruction of each communication event that executes one."""
        hlo = self.trace.hlo
        chosen = np.flatnonzero((hlo.instruction != ABSENT) & np.isin(hlo.event, self.trace.communications.event))
        columns = (column[chosen].tolist() for column in (hlo.event, hlo.program, hlo.instruction))
        return {event: (program, row) for event, program, row in zip(*columns, strict=True) if program in self.programs}

    @cached_property
    def backward_span(self) -> Mapping[tuple[int, int], tuple[int, int]]:
        """When the engine's work of each rank and step began and ended."""
        e, trace = self.trace.events, self.trace
        named = np.array([text.startswith(_BACKWARD) for text in trace.strings] or [False])
        rows = np.flatnonzero(named[e.name] & (self.step != NO_STEP))
        steps = np.unique(trace.marks.step)
        key = trace.lanes.rank[e.lane[rows]].astype(np.int64) * len(steps) + np.searchsorted(steps, self.step[rows])
        keys = np.unique(key)
        which = np.searchsorted(keys, key)
        first, last = np.full(len(keys), np.iinfo(np.int64).max), np.zeros(len(keys), np.int64)
        np.minimum.at(first, which, e.start_ns[rows])
        np.maximum.at(last, which, e.end_ns[rows])
        of = zip((keys // max(len(steps), 1)).tolist(), steps[keys % max(len(steps), 1)].tolist(), strict=True)
        return dict(zip(of, zip(first.tolist(), last.tolist(), strict=True), strict=True))

    @cached_property
    def names(self) -> list[tuple[str, ...]]:
        """Per communication call, the names of the host events around what issued it, the innermost first."""
        event, strings = self.trace.communications.event, self.trace.strings
        at = self.issuer[event]
        at, levels = np.where(at == event, self.around[at], at), []
        while (at >= 0).any():
            levels.append(np.where(at >= 0, self.trace.events.name[at], ABSENT))
            at = np.where(at >= 0, self.around[at], ABSENT)
        codes = list(zip(*(level.tolist() for level in levels), strict=True)) or [()] * len(event)
        spelled = {own: tuple(strings[code] for code in own if code != ABSENT) for own in set(codes)}
        return [spelled[own] for own in codes]

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

    def said_by(self, names: tuple[str, ...]) -> _Said:
        """What the names around calls say; most calls share theirs with many."""
        if names not in self._said:
            self._said[names] = _said_by(names)
        return self._said[names]

    def numbers(self, code: int) -> tuple[int, ...]:
        """The numbers in a text of the trace; none for no text."""
        if code not in self._numbers:
            self._numbers[code] = tuple(map(int, re.findall(r"\d+", self.trace.strings[code])))
        return self._numbers[code]

    def phase_of(self, issued: Issued, said: _Said) -> Phase | None:
        """The pass that issued something: by what is around it, else by when it was in its step."""
        if said.phase is not None:
            return said.phase
        span = self.backward_span.get((issued.rank, issued.step))
        if span is None:
            return None
        return Phase.UPDATE if issued.start_ns >= span[1] else Phase.FORWARD

    @cached_property
    def issued(self) -> list[Issued]:
        """Per communication call, what issued it; its own event where an instruction did."""
        e, own = self.trace.events, self.trace.communications.event
        issuer = self.issuer[own]
        by_instruction = np.isin(own, list(self.instruction)) if self.instruction else np.zeros(len(own), bool)
        issuer = np.where(by_instruction, own, issuer)
        columns = self.trace.lanes.rank[e.lane[issuer]], self.step[issuer], e.start_ns[issuer]
        return list(map(Issued, *(column.tolist() for column in columns)))


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


def calls_of(around: Surroundings) -> list[Call]:
    """Every communication call of a trace, by row."""
    c, e, lanes = around.trace.communications, around.trace.events, around.trace.lanes
    lane = e.lane[c.event]
    participants = zip(lanes.rank[lane].tolist(), lanes.device[lane].tolist(), strict=True)
    columns = c.event, c.operation, c.group, c.payload_bytes, c.in_splits, c.out_splits
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return [_call(around, row, *both) for row, both in enumerate(zip(participants, rows, strict=True))]


def replicated(trace: Trace) -> bool:
    """Whether a library that keeps copies of parameters alike has left its annotations."""
    return any(_REPLICATED.match(text) for text in trace.strings)


def _call(
    around: Surroundings, row: int, participant: tuple[int, int], told: tuple[int, int, int, int, int, int]
) -> Call:
    """One row of `Trace.communications`: event, operation, group, payload and both splits."""
    trace = around.trace
    event, operation, group, payload_bytes, in_splits, out_splits = told
    kind = kind_of_operation(trace.strings[operation])
    issued, program, hooked, of_argument = around.issued[row], None, False, False
    if instruction := around.instruction.get(event):
        program = instruction[0]
        phase, scopes = around.of_instruction(*instruction)
        of_argument = kind is Kind.ALL_GATHER and around.takes_argument(*instruction)
    else:
        said = around.said_by(around.names[row])
        kind, phase, scopes, hooked = said.kind or kind, around.phase_of(issued, said), said.scopes, said.hooked
        if trace.format == "operations":  # the types of a table are what its author says of them
            scopes = (trace.strings[trace.events.name[event]],)
    return Call(
        row=row,
        participant=participant,
        kind=kind,
        group=trace.groups[group] if group != ABSENT else None,
        payload_bytes=payload_bytes if payload_bytes != ABSENT else None,
        in_splits=around.numbers(in_splits),
        out_splits=around.numbers(out_splits),
        issued_ns=issued.start_ns,
        step=issued.step,
        phase=phase,
        scopes=scopes,
        hooked=hooked,
        program=program,
        of_argument=of_argument,
    )
