"""What PyTorch's operators cost and took, with the kernels that they launched; and the kernels of which no more is known."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from traceflow.analyzers.dependencies import Dependencies
from traceflow.analyzers.work import Work, WorkKind
from traceflow.budgets import sent_bytes
from traceflow.program.cost import Cost
from traceflow.program.operators import operator_cost, shapes_text
from traceflow.trace.model import ABSENT, Bool, Int64, Kind, Rows, Trace

_NO_SHAPES = "no operator with shapes launched it that is known to compute what follows from them"
_UNREAD = "the shapes of its arguments do not say"
_NO_PAYLOAD = "the trace does not tell what is sent"
_NO_SIZE = "the trace does not tell how much is copied"
_RECOMPUTES = re.compile(r"CheckpointFunctionBackward|torch/utils/checkpoint\.py\(\d+\): (?:recompute_fn|unpack_hook)")
_BACKWARD = "autograd::engine::evaluate_function"
_HLO_NAMES = (
    (r"all_?reduce", "all-reduce"),
    (r"all_?gather", "all-gather"),
    (r"reduce_?scatter", "reduce-scatter"),
    (r"all_?to_?all", "all-to-all"),
    (r"collective_?permute", "collective-permute"),
    (r"broadcast", "collective-broadcast"),
    (r"send", "send"),
    (r"recv", "recv"),
)


def executed_operators(trace: Trace, found: Dependencies, events: Rows, took_ns: Int64, split: Bool) -> Iterator[Work]:
    """Operators, collectives, copies and kernels that execute no instruction of a known program.

    A kernel belongs to the innermost operator with a known cost around the call that launched it; an operator took
    what its kernels took. On ranks without devices operators took their own time.

    Args:
        trace: The evidence.
        found: Its dependencies, for the calls that launched kernels.
        events: The rows to look at, ascending.
        took_ns: How long each of them took.
        split: Whether that is without waiting for others.
    """
    kind, device = trace.events.kind[events], trace.lanes.device[trace.events.lane[events]]
    compiled = np.zeros(len(trace.events), bool)
    compiled[trace.hlo.event[trace.hlo.instruction >= 0]] = True
    other = ~compiled[events]
    talks = other & (kind == Kind.COMMUNICATION)
    yield from _collectives(trace, events[talks], took_ns[talks], split[talks])
    on_device = other & (device != ABSENT)
    yield from _copies(trace, events[on_device & (kind == Kind.COPY)], took_ns[on_device & (kind == Kind.COPY)])
    kernels = on_device & (kind == Kind.COMPUTE)
    yield from _kernels(trace, found, events[kernels], took_ns[kernels])
    yield from _on_host(trace, events)


def _kernels(trace: Trace, found: Dependencies, events: Rows, took_ns: Int64) -> Iterator[Work]:
    """Kernels by the operators that launched them, and the others by name."""
    operator = _operators_around(trace, found.launch_call[events].astype(np.int64))
    launched = operator >= 0
    yield from _operators(trace, operator[launched], took_ns[launched])
    names = trace.events.name[events]
    for code in np.unique(names[~launched]).tolist():
        own = np.flatnonzero((names == code) & ~launched)
        yield Work(
            kind=WorkKind.KERNEL,
            name=trace.strings[code],
            executions=len(own),
            cost=Cost(missing={"flops": _NO_SHAPES, "bytes": _NO_SHAPES}),
            measured_ns=int(took_ns[own].sum()),
            recomputed=None,
        )


def _operators_around(trace: Trace, calls: Int64) -> Int64:
    """For each call the row of the innermost operator with operands around it, -1 for none."""
    from traceflow.trace._nesting import innermost

    e, operators = trace.events, np.sort(trace.operands.event).astype(np.int64)
    found = np.full(len(calls), -1, np.int64)
    known = np.flatnonzero(calls >= 0)
    if not len(operators) or not len(known):
        return found
    lane, at_ns = e.lane[calls[known]].astype(np.int64), e.start_ns[calls[known]]
    order = np.lexsort((at_ns, lane))
    spans = e.lane[operators].astype(np.int64), e.start_ns[operators], e.end_ns[operators]
    inside = innermost(*spans, lane[order], at_ns[order])
    found[known[order]] = np.append(operators, -1)[inside]
    return found


def _operators(trace: Trace, operator: Int64, took_ns: Int64) -> Iterator[Work]:
    """One row per operator and shapes; each call of an operator counts once, whatever it launched."""
    operands = trace.operands
    row_of = np.zeros(len(trace.events), np.int64)
    row_of[operands.event] = np.arange(len(operands.event))
    row, again = row_of[operator], _recomputations(trace, operator)
    said = operands.shapes[row], operands.types[row], operands.values[row]
    for own in _alike(trace.events.name[operator], *said, again):
        name = trace.strings[trace.events.name[operator[own[0]]]]
        shapes, types, values = (_text(trace, int(column[own[0]])) for column in said)
        cost = operator_cost(name, shapes, types, values)
        yield Work(
            kind=WorkKind.OPERATOR,
            name=name,
            detail=shapes_text(shapes),
            executions=len(np.unique(operator[own])),
            cost=cost or Cost(missing={"flops": _UNREAD, "bytes": _UNREAD}),
            measured_ns=int(took_ns[own].sum()),
            recomputed=None if again[own[0]] == ABSENT else bool(again[own[0]]),
        )


def _alike(*columns: Rows | Bool) -> list[Int64]:
    """The rows that are the same in all columns, each kind where it comes first."""
    order = np.lexsort(columns)
    other = np.zeros(len(order), bool)
    for column in columns:
        other[1:] |= column[order[1:]] != column[order[:-1]]
    kinds = np.split(order, np.flatnonzero(other)) if len(order) else []
    return sorted(kinds, key=lambda rows: int(rows[0]))


def _text(trace: Trace, code: int) -> str:
    return trace.strings[code] if code >= 0 else ""


def _recomputations(trace: Trace, operators: Int64) -> Int64:
    """Whether operators run inside a recomputation of activation checkpointing; ABSENT where no event marks one.

    An operator does when, of the recomputations and the steps of the backward pass around it, the innermost is a
    recomputation: gradients that a recomputed block computes are computed for the first time.
    """
    from traceflow.trace._nesting import innermost

    marks = np.array([_RECOMPUTES.search(text) is not None for text in trace.strings] or [False])
    steps = np.array([text.startswith(_BACKWARD) for text in trace.strings] or [False]) & ~marks
    e, again = trace.events, np.full(len(operators), ABSENT, np.int64)
    if not marks[e.name].any():
        return again
    around = np.flatnonzero(marks[e.name] | steps[e.name])
    spans = e.lane[around].astype(np.int64), e.start_ns[around], e.end_ns[around]
    order = np.lexsort((e.start_ns[operators], e.lane[operators]))
    inside = innermost(*spans, e.lane[operators[order]].astype(np.int64), e.start_ns[operators[order]])
    again[order] = np.append(marks[e.name[around]], False)[inside]
    return again


def _on_host(trace: Trace, events: Rows) -> Iterator[Work]:
    """Operators of ranks without devices, those that hold no other operator with a known cost."""
    lanes, e = trace.lanes, trace.events
    with_device = np.unique(lanes.rank[lanes.device != ABSENT])
    described = np.zeros(len(e), bool)
    described[trace.operands.event] = True
    own = events[described[events]].astype(np.int64)
    own = own[~np.isin(lanes.rank[e.lane[own]], with_device)]
    last = np.append((e.lane[own[1:]] != e.lane[own[:-1]]) | (e.start_ns[own[1:]] >= e.end_ns[own[:-1]]), True)
    leaves = own[last[: len(own)]]
    yield from _operators(trace, leaves, e.end_ns[leaves] - e.start_ns[leaves])


def _copies(trace: Trace, events: Rows, took_ns: Int64) -> Iterator[Work]:
    names = trace.events.name[events]
    for code in np.unique(names).tolist():
        own = np.flatnonzero(names == code)
        yield Work(
            kind=WorkKind.COPY,
            name=trace.strings[code],
            executions=len(own),
            cost=Cost(missing={"bytes": _NO_SIZE}),
            measured_ns=int(took_ns[own].sum()),
            recomputed=None,
        )


@dataclass(frozen=True, slots=True)
class _Call:
    name: str
    operation: str
    payload_bytes: int
    members: int


def _collectives(trace: Trace, events: Rows, took_ns: Int64, split: Bool) -> Iterator[Work]:
    """Collectives that a library executes, by name, payload and size of their group."""
    row_of = np.full(len(trace.events), ABSENT, np.int64)
    row_of[trace.communications.event] = np.arange(len(trace.communications.event))
    row = row_of[events]
    c = trace.communications
    said = [np.append(column, ABSENT)[row] for column in (c.operation, c.payload_bytes, c.group)]
    for own in _alike(trace.events.name[events], *said, row == ABSENT, split):
        call = _call(trace, int(events[own[0]]), int(row[own[0]]))
        yield Work(
            kind=WorkKind.COLLECTIVE,
            name=call.name,
            detail=call.operation,
            executions=len(own),
            cost=_collective_cost(call),
            measured_ns=int(took_ns[own].sum()),
            recomputed=None,
            waits=not split[own[0]],
        )


def _call(trace: Trace, event: int, row: int) -> _Call:
    name, c = trace.strings[trace.events.name[event]], trace.communications
    if row == ABSENT:
        return _Call(name, "", ABSENT, ABSENT)
    group = int(c.group[row])
    of_group = trace.groups[group] if group >= 0 else None
    members = ABSENT if of_group is None else max(of_group.size, len(of_group.members))
    operation = trace.strings[c.operation[row]] if c.operation[row] >= 0 else ""
    return _Call(name, operation, int(c.payload_bytes[row]), members)


def hlo_operation(name: str) -> str:
    """A communication operation as HLO names it, empty where HLO has none such.

    Example:
        >>> hlo_operation("_allgather_base"), hlo_operation("all-to-all"), hlo_operation("barrier")
        ('all-gather', 'all-to-all', '')
    """
    plain = name.lower().replace("-", "_")
    return next((hlo for pattern, hlo in _HLO_NAMES if re.search(pattern, plain)), "")


def _collective_cost(call: _Call) -> Cost:
    operation = hlo_operation(call.operation)
    if call.payload_bytes < 0 or not operation or (call.members < 1 and operation not in {"send", "recv"}):
        return Cost(missing={"bytes": _NO_PAYLOAD, "sent_bytes": _NO_PAYLOAD})
    members = call.members if call.members > 0 else 2
    gets = {"all-gather": call.payload_bytes * members, "reduce-scatter": call.payload_bytes // members}
    sent = sent_bytes(operation, call.payload_bytes, members)
    return Cost(bytes=call.payload_bytes + gets.get(operation, call.payload_bytes), sent_bytes=sent or 0)
