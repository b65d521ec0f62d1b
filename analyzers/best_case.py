"""Best cases: how long a window would take without communication, in perfect balance, or without launch overhead."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from traceflow.analyzers.changes import LAUNCH, RENDEZVOUS, Drop, Hypothesis, Scale, apply
from traceflow.analyzers.critical_path import unordered_streams
from traceflow.analyzers.dependencies import Dependencies
from traceflow.analyzers.what_if import Prediction, predict
from traceflow.graph import NO_EVENT, NO_LANE, DependencyGraph, SliceKind
from traceflow.result import Json, Provenance
from traceflow.trace.model import ABSENT, Bool, Int64, Trace


@dataclass(frozen=True, slots=True)
class BestCase:
    """The most that one kind of improvement can give; `prediction` is None where its reason says why.

    `unbounded` says that dependencies are unknown, so that nothing encloses the prediction.
    """

    title: str
    assumption: str
    measured_ns: int
    prediction: Prediction | None
    unbounded: bool
    reason: str | None = None

    @property
    def exact(self) -> bool:
        """Whether no latency and no unknown dependency can change the prediction."""
        return self.prediction is not None and self.prediction.exact and not self.unbounded

    def to_dict(self) -> dict[str, Json]:
        """A row of `best_cases`."""
        found = self.prediction
        return {
            "title": self.title,
            "predicted_ns": None if found is None else found.predicted_ns,
            "low_ns": None if found is None or self.unbounded else found.low_ns,
            "high_ns": None if found is None or self.unbounded else found.high_ns,
            "saved_ns": None if found is None else self.measured_ns - found.predicted_ns,
            "exact": self.exact,
            "provenance": Provenance.MODELLED.value,
            "assumption": self.assumption,
        }


def best_cases(
    trace: Trace, found: Dependencies, graph: DependencyGraph, *, unsplit: int, known: bool
) -> Iterator[BestCase]:
    """Three replays of a window, each without one reason to wait.

    - No communication: collectives and transfers take no time and nobody waits for anybody.
    - Perfect balance: with w(p, k) = work that p computes between the arrival at its collective before k and that at
      k, all participants P of k compute mean over P of w(p, k) instead. The work of each slice is scaled alike. What
      a rank without devices computes is its host's work.
    - No launch overhead: calls that launch take no time, and what they launch starts when they do.

    Args:
        trace: The evidence.
        found: Its dependencies.
        graph: The graph of the window.
        unsplit: How many communication calls in the window could not be matched.
        known: Whether the trace tells every dependency, without which no prediction is exact.
    """
    silent = apply(trace, graph, [Scale("@transfer", 0), Drop(RENDEZVOUS)])
    unmatched = graph.slices.kind == SliceKind.COMMUNICATION
    silent = replace(silent, work_ns=np.where(unmatched, 0, silent.work_ns))
    quick = apply(trace, graph, [Scale(LAUNCH, 0)])
    quick = replace(quick, work_ns=np.where(_launching(trace, found, graph), 0, quick.work_ns))
    even = replace(apply(trace, graph, []), work_ns=_balanced(trace, found, graph))
    unordered = next((skipped.reason for skipped in unordered_streams(trace)), None)
    whole = f"{unsplit} communication calls stay whole: who takes part in them is unknown" if unsplit else None
    supposed: tuple[tuple[str, str, Hypothesis, str | None], ...] = (
        ("no communication", "communication takes no time, and nobody waits for anybody", silent, unordered),
        ("perfect balance", "before each collective, all of its participants compute equally long", even, whole),
        ("no launch overhead", "launch calls take no time, and device work starts with its call", quick, None),
    )
    measured_ns = graph.end_ns - graph.start_ns
    for title, assumption, hypothesis, unknown in supposed:
        prediction = None if unknown else predict(graph, hypothesis)
        yield BestCase(title, assumption, measured_ns, prediction, not known, unknown)


def _launching(trace: Trace, found: Dependencies, graph: DependencyGraph) -> Bool:
    """Slices of the calls that launch device work."""
    launches = np.zeros(len(trace.events) + 1, bool)  # the last stands for joins
    launches[found.launch_call[found.launch_call != ABSENT]] = True
    launches[trace.launches.event] = True
    mask: Bool = launches[graph.slices.event] & (graph.slices.kind == SliceKind.HOST)
    return mask


def _balanced(trace: Trace, found: Dependencies, graph: DependencyGraph) -> Int64:
    """Work of each slice in perfect balance."""
    rows = np.flatnonzero((found.matches.instance != ABSENT) & ~found.matches.point_to_point & ~found.matches.done)
    lane = trace.events.lane[trace.communications.event]
    participant, computes = _participants(trace), _computes(trace, graph)
    next_row = np.full(len(graph.slices), ABSENT, np.int64)  # the collective that follows each slice
    for who in np.unique(participant[lane[rows]]).tolist():
        own = rows[participant[lane[rows]] == who]
        arrival_ns = trace.events.start_ns[trace.communications.event[own]]
        own, arrival_ns = own[np.argsort(arrival_ns, kind="stable")], np.sort(arrival_ns)
        mine = np.flatnonzero(computes & (np.append(participant, ABSENT)[graph.slices.lane] == who))
        at = np.searchsorted(arrival_ns, graph.slices.end_ns[mine])
        next_row[mine] = np.append(own, ABSENT)[at]
    instance = np.where(found.matches.done, ABSENT, found.matches.instance).astype(np.int64)
    return _evened(graph.work_ns, next_row, instance)


def _evened(work_ns: Int64, next_row: Int64, instance: Int64) -> Int64:
    """Scale what is before each row so that all rows of an instance have their mean before them."""
    led = next_row != ABSENT
    before_ns = np.bincount(next_row[led], work_ns[led], minlength=len(instance))
    rows = np.flatnonzero((instance != ABSENT) & (before_ns > 0))
    sums, counts = np.bincount(instance[rows], before_ns[rows]), np.bincount(instance[instance != ABSENT])
    factor = np.ones(len(instance))
    factor[rows] = sums[instance[rows]] / counts[instance[rows]] / before_ns[rows]
    evened: Int64 = work_ns.copy()
    evened[led] = np.rint(work_ns[led] * factor[next_row[led]]).astype(np.int64)
    return evened


def _participants(trace: Trace) -> Int64:
    """The number of the (rank, device) that each lane belongs to."""
    pairs = np.column_stack((trace.lanes.rank, trace.lanes.device))
    number: Int64 = np.unique(pairs, axis=0, return_inverse=True)[1].ravel().astype(np.int64)
    return number


def _computes(trace: Trace, graph: DependencyGraph) -> Bool:
    """Slices that compute: on a device its computations, on a rank without devices the host's work."""
    slices, lanes = graph.slices, trace.lanes
    with_device = np.unique(lanes.rank[lanes.device != ABSENT])
    alone = np.append((lanes.device == ABSENT) & ~np.isin(lanes.rank, with_device), False)
    on_lane = (slices.lane != NO_LANE) & (slices.event != NO_EVENT)
    computes: Bool = on_lane & (
        (slices.kind == SliceKind.COMPUTE) | (alone[slices.lane] & (slices.kind == SliceKind.HOST))
    )
    return computes
