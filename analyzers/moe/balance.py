"""What perfect balance among experts would save: a replay in which each rank multiplies the mean of the rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from traceflow.analyzers.changes import apply
from traceflow.analyzers.moe.rows import Rows, exchange_of
from traceflow.analyzers.moe.stages import ROW_STAGES, STAGES
from traceflow.analyzers.what_if import Prediction, predict
from traceflow.graph import DependencyGraph
from traceflow.result import Json
from traceflow.trace.model import Int64, Trace

if TYPE_CHECKING:
    from traceflow.analyzers.moe.calls import Calls
    from traceflow.intent.routing import LayerRouting

ASSUMPTION = (
    "each rank's experts multiply the mean of the rows of their exchange group; a row takes as long as measured, "
    "everything else stays as it is"
)
_MOST_LAYERS = 8


@dataclass(frozen=True, slots=True)
class Balance:
    """The window as measured, and as replayed in perfect balance; `by_layer_ns` is what each layer alone would save."""

    measured_ns: int
    prediction: Prediction
    by_layer_ns: tuple[int | None, ...]

    @property
    def saved_ns(self) -> int:
        """Measured minus predicted length of the window."""
        return self.measured_ns - self.prediction.predicted_ns

    def to_dict(self) -> dict[str, Json]:
        """The `balance` object of the result."""
        return {
            "measured_ns": self.measured_ns,
            "predicted_ns": self.prediction.predicted_ns,
            "low_ns": self.prediction.low_ns,
            "high_ns": self.prediction.high_ns,
            "saved_ns": self.saved_ns,
            "exact": self.prediction.exact,
            "provenance": "modelled",
            "assumption": ASSUMPTION,
        }


def balance(
    trace: Trace, graph: DependencyGraph, calls: Calls, layers: Sequence[LayerRouting], rows: Sequence[Rows | None]
) -> Balance | None:
    """Replay a window with the work of the stages that grow with rows as in perfect balance.

    work'(s) = work(s) + b (mean rows - rows(s)), with b, the time per row of a stage, layer and direction, fitted by
    least squares to all sources and calls, and the mean over the exchange group of s.

    Args:
        trace: The evidence.
        graph: The graph of the window.
        calls: Which work belongs to which call.
        layers: The record.
        rows: What its layers multiply, by complete call; None where that is not known.

    Returns:
        The replay; None where no work could be told to belong to a call.
    """
    slices_of = _slices_by_event(graph)
    evened, found = [graph.work_ns.copy() for _ in layers], False
    for stage in map(STAGES.index, ROW_STAGES):
        for backward in (False, True):
            works: dict[int, list[tuple[int, int, Int64]]] = {}
            for call, events in calls.of_stage(stage, backward=backward):
                parts = slices_of(events)
                if graph.work_ns[parts].any():
                    works.setdefault(call.layer, []).append((call.call, call.source, parts))
            for at, work in works.items():
                counted = rows[at]
                if counted is not None:
                    _even(graph.work_ns, evened[at], layers[at], counted, work)
                    found = True
    return _replayed(trace, graph, evened) if found else None


def _slices_by_event(graph: DependencyGraph) -> Callable[[Int64], Int64]:
    """What gives the slices of some events."""
    order = np.argsort(graph.slices.event, kind="stable")
    ordered = graph.slices.event[order]

    def slices_of(events: Int64) -> Int64:
        first, last = (np.searchsorted(ordered, events, side) for side in ("left", "right"))
        slices: Int64 = order[np.concatenate([np.arange(*ends) for ends in zip(first, last, strict=True)])]
        return slices

    return slices_of


def _even(
    work_ns: Int64, evened_ns: Int64, layer: LayerRouting, rows: Rows, works: Sequence[tuple[int, int, Int64]]
) -> None:
    """Change the work of one stage of one layer to that of the mean of the rows."""
    executed = rows.executed.sum(axis=2)
    place = {call: at for at, call in enumerate(np.flatnonzero((layer.assigned[:, :, 0] >= 0).all(axis=1)).tolist())}
    known = [(place[call], source, parts) for call, source, parts in works if call in place]
    if len(known) < 2:
        return
    mine = np.array([executed[call, source] for call, source, _ in known], float)
    took = np.array([work_ns[parts].sum() for *_, parts in known], float)
    mean = np.array([executed[call, exchange_of(layer, source)].mean() for call, source, _ in known])
    spread = mine - mine.mean()
    per_row = max(0.0, float(spread @ took) / float(spread @ spread)) if spread.any() else 0.0
    for (*_, parts), had, wanted in zip(known, took, np.maximum(took + per_row * (mean - mine), 0), strict=True):
        evened_ns[parts] = np.rint(work_ns[parts] * (wanted / had)).astype(np.int64)


def _replayed(trace: Trace, graph: DependencyGraph, evened: Sequence[Int64]) -> Balance:
    as_is, change = apply(trace, graph, []), [work - graph.work_ns for work in evened]
    measured_ns = graph.end_ns - graph.start_ns
    whole = predict(graph, replace(as_is, work_ns=graph.work_ns + sum(change)))
    moved = [int(np.abs(one).sum()) for one in change]
    largest = sorted(range(len(moved)), key=lambda at: -moved[at])[:_MOST_LAYERS]
    saved = [
        measured_ns - predict(graph, replace(as_is, work_ns=evened[at])).predicted_ns if at in largest else None
        for at in range(len(evened))
    ]
    return Balance(measured_ns, whole, tuple(saved))
