"""Products of operators that wait for a collective, or that a collective waits for, as streams tell it.

Without a program it is not known what a product is made of. What its stream waited for, is.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from traceflow.analyzers.communication import Participant
from traceflow.analyzers.executed_operators import hlo_operation
from traceflow.analyzers.rings.recorded import Recorded, exposed_of, replayed_saving
from traceflow.analyzers.rings.result import Candidate
from traceflow.analyzers.rings.timed import Span
from traceflow.graph import EdgeKind
from traceflow.trace.model import ABSENT, Bool, Rows, Trace

_PRODUCT = re.compile(r"gemm|matmul|nvjet", re.IGNORECASE)
_BEFORE = frozenset({"all-gather"})
_AFTER = frozenset({"all-reduce", "reduce-scatter"})


def waiting_products(recorded: Recorded) -> Iterator[Candidate]:
    """Collectives that a product waits for or that wait for one, the calls of one pair of names together.

    Args:
        recorded: A window of a trace.
    """
    alike: dict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
    t = recorded.trace
    for row, product in _pairs(recorded):
        name, operation = t.events.name[product], hlo_operation(t.strings[t.communications.operation[row]])
        alike[operation, t.strings[name]].append((row, product))
    yield from (_candidate(recorded, operation, name, pairs) for (operation, name), pairs in alike.items())


def _pairs(recorded: Recorded) -> Iterator[tuple[int, int]]:
    """Rows of `Trace.communications` with the product beside each, by the events that one stream waited for."""
    t, graph = recorded.trace, recorded.graph
    edges = np.flatnonzero(graph.kind == EdgeKind.EVENT_WAIT)
    source = graph.slices.event[graph.source[edges] >> 1]
    target = graph.slices.event[graph.targets()[edges] >> 1]
    row_of = np.full(len(t.events) + 1, ABSENT, np.int64)  # the last stands for joins
    row_of[t.communications.event] = np.arange(len(t.communications.event))
    row_of[t.hlo.event] = ABSENT  # of which a program tells more
    before, after = _operations_among(t, _BEFORE), _operations_among(t, _AFTER)
    first = before[row_of[source]] & _products(t, target)
    second = after[row_of[target]] & _products(t, source)
    seen: set[int] = set()
    for at in np.flatnonzero(first | second).tolist():
        for known, collective, product in ((first, source, target), (second, target, source)):
            row = int(row_of[collective[at]])
            if known[at] and row not in seen:
                seen.add(row)
                yield row, int(product[at])


def _operations_among(t: Trace, operations: frozenset[str]) -> Bool:
    """Which communication calls are among some operations, and False for what is none."""
    code, at = np.unique(t.communications.operation, return_inverse=True)
    known = np.array([hlo_operation(t.strings[one]) in operations for one in code.tolist()], bool)
    return np.append(known[at.ravel()], False)


def _products(t: Trace, events: Rows) -> Bool:
    """Which events are products, by their names; no joins."""
    code, at = np.unique(t.events.name[events], return_inverse=True)
    known = np.array([_PRODUCT.search(t.strings[one]) is not None for one in code.tolist()], bool)
    products: Bool = known[at.ravel()] & (events >= 0)
    return products


def _candidate(recorded: Recorded, operation: str, product: str, pairs: list[tuple[int, int]]) -> Candidate:
    t = recorded.trace
    calls: dict[Participant, list[Span]] = defaultdict(list)
    products: dict[Participant, list[int]] = defaultdict(list)
    hidden: dict[int, int] = {}
    members = max(_members(recorded, row) for row, _ in pairs)
    for row, event in pairs:
        collective = int(t.communications.event[row])
        start, end = int(t.events.start_ns[collective]), int(t.events.end_ns[collective])
        took = int(t.events.end_ns[event] - t.events.start_ns[event])
        who = int(t.lanes.rank[t.events.lane[collective]]), int(t.lanes.device[t.events.lane[collective]])
        calls[who].append(Span(start, end, start, collective))
        products[who].append(took)
        hidden[collective] = took * (members - 1) // members
    exposed = {who: exposed_of(spans, recorded.compute.get(who)) for who, spans in calls.items()}
    worst = max(exposed, key=lambda who: exposed[who])
    sent = t.communications.payload_bytes[[row for row, _ in pairs]]
    return Candidate(
        collective=t.strings[t.events.name[t.communications.event[pairs[0][0]]]],
        operation=operation,
        matmul=product,
        program=None,
        members=members,
        bytes=None if (sent < 0).any() else int(sent.max()) * (members if operation in _BEFORE else 1),
        exposed_ns=exposed[worst],
        matmul_ns=sum(products[worst]),
        saved_ns=replayed_saving(recorded.graph, hidden),
        source="",
    )


def _members(recorded: Recorded, row: int) -> int:
    """Members of a collective's group; 1, so that nothing is hidden, where the trace does not say."""
    at = int(recorded.trace.communications.group[row])
    group = recorded.trace.groups[at] if at >= 0 else None
    return max(len(group.members), group.size, 1) if group else 1
