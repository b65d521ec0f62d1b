"""Which kinds of overlap a program makes use of: computation of a certain kind behind communication of a certain kind."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from traceflow.analyzers.attribution.calls import OPERATOR, Surroundings
from traceflow.analyzers.attribution.purposes import GRADIENTS, TOKENS, Phase, Purpose
from traceflow.analyzers.attribution.shares import Participant, when
from traceflow.graph import DependencyGraph
from traceflow.intervals import union
from traceflow.result import Json
from traceflow.trace.model import Bool, Int64, Trace

if TYPE_CHECKING:
    from traceflow.analyzers.attribution import Attributed

_SHARED = re.compile(r"shared_?expert", re.IGNORECASE)
_LEAST_SHARE = 0.02  # of the calls that may be hidden: less comes about by chance
_WEIGHTS = re.compile(r"backward_dw|wgrad|weight_grad", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Overlap:
    """One kind of overlap that was seen; durations are sums over participants."""

    kind: str
    calls: int  # that computation of this kind ran behind
    busy_ns: int  # of all calls that this kind may hide
    overlapped_ns: int  # of that, covered by computation of this kind

    def to_dict(self) -> dict[str, Json]:
        """A row of `overlaps`."""
        return {"kind": self.kind, "calls": self.calls, "busy_ns": self.busy_ns, "overlapped_ns": self.overlapped_ns}


@dataclass(frozen=True, slots=True)
class Passes:
    """Per event of a trace, which kinds of computation it may be."""

    forward: Bool
    backward: Bool
    shared_expert: Bool
    weight_gradient: Bool
    issues: Bool  # operators that issue communication or wait for it, and compute nothing


_Behind = Callable[[Passes], Bool]
_KINDS: tuple[tuple[str, frozenset[Purpose], frozenset[Phase | None], _Behind], ...] = (
    ("shared expert", TOKENS, frozenset({None, *Phase}), lambda of: of.shared_expert),
    ("batch-level EP", TOKENS, frozenset({Phase.FORWARD}), lambda of: of.backward),
    ("batch-level EP", TOKENS, frozenset({Phase.BACKWARD}), lambda of: of.forward),
    ("dgrad/wgrad", frozenset({Purpose.DISPATCH}), frozenset({Phase.BACKWARD}), lambda of: of.weight_gradient),
    ("DP bucket", GRADIENTS, frozenset({Phase.BACKWARD}), lambda of: of.backward),
    (
        "parameter prefetch",
        frozenset({Purpose.PARAMETER_GATHER}),
        frozenset(Phase),
        lambda of: of.forward | of.backward,
    ),
)
"""What is hidden, in which pass, behind which computation."""


def passes(around: Surroundings) -> Passes:
    """Tell computation apart by what issued it, and by the scopes of instructions."""
    trace, e = around.trace, around.trace.events
    named = {pattern: _named(trace, pattern.search) for pattern in (_SHARED, _WEIGHTS)}
    inside = {pattern: _inside(around, mask) for pattern, mask in named.items()}
    backward = _inside(around, _named(trace, lambda text: text.startswith("autograd::engine::evaluate_function: ")))
    forward = _before_end(around) & ~backward
    for program, row, events in _executed(around):
        phase, scopes = around.of_instruction(program, row)
        backward[events], forward[events] = phase is Phase.BACKWARD, phase is Phase.FORWARD
        for pattern, mask in inside.items():
            mask[events] |= any(pattern.search(scope) for scope in scopes)
    backward |= inside[_WEIGHTS]  # which schedules call outside of the engine
    forward &= ~backward
    issues = np.array([bool(OPERATOR.match(text)) for text in trace.strings] or [False])[e.name]
    return Passes(forward, backward, inside[_SHARED], inside[_WEIGHTS], issues)


def _executed(around: Surroundings) -> Iterator[tuple[int, int, Int64]]:
    """Each instruction of the programs that are known, with its events."""
    hlo = around.trace.hlo
    known = np.flatnonzero((hlo.instruction >= 0) & np.isin(hlo.program, list(around.programs)))
    keys = np.column_stack((hlo.program[known], hlo.instruction[known]))
    distinct, which = np.unique(keys, axis=0, return_inverse=True)
    order = np.argsort(which.ravel(), kind="stable")
    bounds = np.searchsorted(which.ravel()[order], np.arange(len(distinct) + 1))
    for place, (program, row) in enumerate(distinct.tolist()):
        yield program, row, hlo.event[known[order[bounds[place] : bounds[place + 1]]]].astype(np.int64)


def _named(trace: Trace, wanted: Callable[[str], object]) -> Bool:
    mask: Bool = np.array([bool(wanted(text)) for text in trace.strings] or [False])[trace.events.name]
    return mask


def _inside(around: Surroundings, wanted: Bool) -> Bool:
    """Events that such a host event issued, directly or through others, or that are one."""
    wanted = wanted & around.on_thread
    if not wanted.any():  # as in most programs
        return wanted
    direct = wanted | (around.enclosing(wanted) >= 0)
    issued: Bool = direct[around.issuer]
    return issued


def _before_end(around: Surroundings) -> Bool:
    """Events issued in a step before its last work of the autograd engine ended."""
    e, step = around.trace.events, around.step
    changes = np.ones(len(e), bool)  # events of one lane and step follow one another
    changes[1:] = (e.lane[1:] != e.lane[:-1]) | (step[1:] != step[:-1])
    first = np.flatnonzero(changes)
    ended_ns = np.repeat(around.engine_end_ns(first), np.diff(np.append(first, len(e))))
    before: Bool = (e.start_ns < ended_ns)[around.issuer]
    return before


def overlaps(
    trace: Trace,
    graph: DependencyGraph,
    computing: Mapping[Participant, Bool],
    of: Passes,
    calls: Sequence[Attributed],
    rows: Int64,
) -> tuple[Overlap, ...]:
    """The kinds of overlap that were seen in a window, in the order in which they are named.

    Args:
        trace: The evidence.
        graph: The dependencies of the window.
        computing: Slices in which each participant computes.
        of: What kinds of computation there are.
        calls: What each row of `Trace.communications` is for.
        rows: The rows that overlap the window.
    """
    found: dict[str, list[Overlap]] = {}
    for kind, hidden, phases, behind in _KINDS:
        own = np.array([r for r in rows.tolist() if calls[r].purpose in hidden and calls[r].phase in phases], np.int64)
        found.setdefault(kind, []).extend(_seen(trace, graph, computing, behind(of) & ~of.issues, kind, own))
    return tuple(
        Overlap(kind, *(sum(getattr(one, name) for one in parts) for name in ("calls", "busy_ns", "overlapped_ns")))
        for kind, parts in found.items()
        if sum(one.overlapped_ns for one in parts) >= _LEAST_SHARE * sum(one.busy_ns for one in parts) > 0
    )


def _seen(
    trace: Trace,
    graph: DependencyGraph,
    computing: Mapping[Participant, Bool],
    events: Bool,
    kind: str,
    rows: Int64,
) -> Iterator[Overlap]:
    e, event = trace.events, trace.communications.event
    chosen = np.append(events, False)[graph.slices.event]  # no event, no kind
    rank, device = trace.lanes.rank[e.lane[event]], trace.lanes.device[e.lane[event]]
    for who, busy in when(trace, rows):
        mask = computing[who] & chosen if who in computing else np.zeros(len(chosen), bool)
        compute = union(graph.slices.start_ns[mask], graph.slices.end_ns[mask])
        mine = rows[(rank[rows] == who[0]) & (device[rows] == (-1 if who[1] is None else who[1]))]
        covered = compute.covered_ns(e.start_ns[event[mine]], e.end_ns[event[mine]])
        yield Overlap(kind, int((covered > 0).sum()), busy.total_ns, (busy & compute).total_ns)
