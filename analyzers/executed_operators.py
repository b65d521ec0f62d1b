"""What PyTorch's operators cost and took, with the kernels that they launched; and the kernels of which no more is known."""

from __future__ import annotations

import re
from collections import defaultdict
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
    place = {event: row for row, event in enumerate(trace.operands.event.tolist())}
    again = _recomputations(trace, np.unique(operator))
    calls: dict[tuple[object, ...], set[int]] = defaultdict(set)
    total_ns: dict[tuple[object, ...], int] = defaultdict(int)
    for event, ns in zip(operator.tolist(), took_ns.tolist(), strict=True):
        row = place[event]
        told = tuple(
            _text(trace, int(c[row])) for c in (trace.operands.shapes, trace.operands.types, trace.operands.values)
        )
        key = trace.strings[trace.events.name[event]], *told, again.get(event)
        calls[key].add(event)
        total_ns[key] += ns
    for key, own in calls.items():
        name, shapes, types, values, recomputed = key
        cost = operator_cost(str(name), str(shapes), str(types), str(values))
        yield Work(
            kind=WorkKind.OPERATOR,
            name=str(name),
            detail=shapes_text(str(shapes)),
            executions=len(own),
            cost=cost or Cost(missing={"flops": _UNREAD, "bytes": _UNREAD}),
            measured_ns=total_ns[key],
            recomputed=None if recomputed is None else bool(recomputed),
        )


def _text(trace: Trace, code: int) -> str:
    return trace.strings[code] if code >= 0 else ""


def _recomputations(trace: Trace, operators: Int64) -> dict[int, bool]:
    """Whether operators run inside a recomputation of activation checkpointing; empty where no event marks one.

    An operator does when, of the recomputations and the steps of the backward pass around it, the innermost is a
    recomputation: gradients that a recomputed block computes are computed for the first time.
    """
    from traceflow.trace._nesting import innermost

    marks = np.array([_RECOMPUTES.search(text) is not None for text in trace.strings] or [False])
    steps = np.array([text.startswith(_BACKWARD) for text in trace.strings] or [False]) & ~marks
    e = trace.events
    if not marks[e.name].any():
        return {}
    around = np.flatnonzero(marks[e.name] | steps[e.name])
    spans = e.lane[around].astype(np.int64), e.start_ns[around], e.end_ns[around]
    order = operators[np.lexsort((e.start_ns[operators], e.lane[operators]))]
    inside = innermost(*spans, e.lane[order].astype(np.int64), e.start_ns[order])
    is_mark = np.append(marks[e.name[around]], False)[inside]
    return dict(zip(order.tolist(), is_mark.tolist(), strict=True))


def _on_host(trace: Trace, events: Rows) -> Iterator[Work]:
    """Operators of ranks without devices, those that hold no other operator with a known cost."""
    lanes, e = trace.lanes, trace.events
    with_device = np.unique(lanes.rank[lanes.device != ABSENT])
    own = np.intersect1d(trace.operands.event, events).astype(np.int64)
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
    row_of = {event: row for row, event in enumerate(trace.communications.event.tolist())}
    calls: dict[tuple[_Call, bool], list[int]] = defaultdict(list)
    for event, ns, alone in zip(events.tolist(), took_ns.tolist(), split.tolist(), strict=True):
        calls[_call(trace, event, row_of.get(event)), not alone].append(ns)
    for (call, waits), took in calls.items():
        yield Work(
            kind=WorkKind.COLLECTIVE,
            name=call.name,
            detail=call.operation,
            executions=len(took),
            cost=_collective_cost(call),
            measured_ns=sum(took),
            recomputed=None,
            waits=waits,
        )


def _call(trace: Trace, event: int, row: int | None) -> _Call:
    name, c = trace.strings[trace.events.name[event]], trace.communications
    if row is None:
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
