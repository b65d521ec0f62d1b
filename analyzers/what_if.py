"""What-if: how long the window would take if some work were faster, slower or gone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar

from traceflow.analyzers.changes import Drop, Hypothesis, Scale, apply
from traceflow.analyzers.critical_path import Segments, segments_of, unordered_streams
from traceflow.analyzers.dependencies import Dependencies
from traceflow.analyzers.window import Window, in_window
from traceflow.graph import DependencyGraph, rebound
from traceflow.result import Finding, Json, Note, Provenance, Severity, Shown, Skipped
from traceflow.trace.model import Trace

if TYPE_CHECKING:
    import pandas as pd

    from traceflow.program.module import Programs


@dataclass(frozen=True, slots=True)
class Prediction:
    """Length of a window under a change, in ns: as replayed, and the least and most that hidden latencies allow.

    A measured start tells only the sum of a bound and a latency. Where a latency may have been hidden behind another
    dependency, `low_ns` and `high_ns` enclose every way to attribute it, and low <= predicted <= high.
    """

    predicted_ns: int
    low_ns: int
    high_ns: int

    @property
    def exact(self) -> bool:
        """Whether every way to explain the measured latencies gives the same length."""
        return self.low_ns == self.high_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf(Shown):
    """Measured and predicted length of a window. `exact` says that no hidden latency can change the prediction."""

    kind: ClassVar[str] = "what-if"
    window: Window
    predicted_ns: int
    low_ns: int | None  # what hidden latencies allow; None where dependencies are unknown, so that nothing bounds it
    high_ns: int | None
    exact: bool
    selected: tuple[tuple[str, int], ...]  # (pattern, how many slices or edges it is about), one per change
    segments: Segments  # the path as it would be
    findings: tuple[Finding, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    notes: tuple[Note, ...] = ()

    @property
    def baseline_ns(self) -> int:
        """Measured length of the window."""
        return self.window.duration_ns

    @property
    def saved_ns(self) -> int:
        """Baseline - predicted; negative where the change costs time."""
        return self.baseline_ns - self.predicted_ns

    def to_dict(self) -> dict[str, Json]:
        """The `result` object of the JSON contract."""
        return {
            "window": {**self.window.to_dict()},
            "baseline_ns": self.baseline_ns,
            "predicted_ns": self.predicted_ns,
            "low_ns": self.low_ns,
            "high_ns": self.high_ns,
            "saved_ns": self.saved_ns,
            "exact": self.exact,
            "selected": [{"pattern": pattern, "count": count} for pattern, count in self.selected],
            "segments": self.segments.to_dicts(),
        }

    def to_pandas(self) -> pd.DataFrame:
        """One row per segment of the predicted path."""
        import pandas as pd

        return pd.DataFrame(self.segments.to_dicts())


def what_if(
    trace: Trace,
    found: Dependencies,
    changes: Sequence[Scale | Drop],
    *,
    ranks: frozenset[int] | None = None,
    step: int | None = None,
    programs: Programs = MappingProxyType({}),
) -> WhatIf:
    """Replay a window with changed work.

    time(v) = latest bound over the edges into v + lag(v), with the changed work and the measured lags. The
    prediction is exact where every way to explain the measured lags gives the same end; elsewhere it is a bound,
    since a latency may have been hidden behind what was made faster, and lies between `low_ns` and `high_ns`.

    Args:
        trace: The evidence.
        found: Its dependencies.
        changes: What to change, applied in order.
        ranks: Only on these ranks; on all where None.
        step: Which step; the whole capture where None.
        programs: What tells of instructions on the new path.

    Raises:
        TraceflowError: TF104 without work, TF111 without such a step, TF112 for a pattern that cannot be used.
    """
    window, graph = in_window(trace, found, step)
    supposed = apply(trace, graph, changes, ranks=ranks)
    prediction = predict(graph, supposed)
    selected = tuple((change.pattern, count) for change, count in zip(changes, supposed.selected, strict=True))
    unknown = unknown_dependencies(trace, found, window) if changes else ()  # the measurement itself is no guess
    return WhatIf(
        window=window,
        predicted_ns=prediction.predicted_ns,
        low_ns=None if unknown else prediction.low_ns,
        high_ns=None if unknown else prediction.high_ns,
        exact=prediction.exact and not unknown,
        selected=selected,
        segments=segments_of(trace, _as_supposed(graph, supposed), programs),
        findings=(*_without_effect(selected), *unknown),
        skipped=_unbounded(unknown),
        notes=found.notes,
    )


def _without_effect(selected: tuple[tuple[str, int], ...]) -> tuple[Finding, ...]:
    return tuple(
        Finding(
            code="TF208",
            severity=Severity.WARNING,
            title=f"nothing in the window is selected by {pattern}",
            provenance=Provenance.MODELLED,
            suggestion="look the name up in the critical path, and the rank in the summary",
            evidence={"pattern": pattern},
        )
        for pattern, count in selected
        if not count
    )


def _unbounded(unknown: tuple[Finding, ...]) -> tuple[Skipped, ...]:
    why = "; ".join(finding.title for finding in unknown)
    return tuple(Skipped(f"/result/{name}", why) for name in ("low_ns", "high_ns")) if unknown else ()


def unknown_dependencies(trace: Trace, found: Dependencies, window: Window) -> tuple[Finding, ...]:
    """Dependencies that the trace does not tell, so that no prediction is exact.

    Args:
        trace: The evidence.
        found: Its dependencies.
        window: What is predicted.

    Returns:
        One finding per reason; none where the trace tells everything.
    """
    reasons = [skipped.reason for skipped in unordered_streams(trace)]
    whole = unmatched_calls(trace, found, window)
    if whole:
        reasons.append(f"{whole} communication calls stay whole: what they wait for is unknown")
    return tuple(
        Finding(
            code="TF209",
            severity=Severity.WARNING,
            title=f"the prediction is no more than a bound: {reason}",
            provenance=Provenance.MODELLED,
            suggestion="record all ranks, and synchronisation events where the profiler offers them",
        )
        for reason in reasons
    )


def unmatched_calls(trace: Trace, found: Dependencies, window: Window) -> int:
    """How many communication calls in a window stay whole."""
    e, event = trace.events, trace.communications.event[found.matches.instance < 0]
    return int(((e.start_ns[event] < window.end_ns) & (e.end_ns[event] > window.start_ns)).sum())


def predict(graph: DependencyGraph, supposed: Hypothesis) -> Prediction:
    """Predicted length of a window, and between which two lengths it lies."""
    time_ns = graph.replay(work_ns=supposed.work_ns, lag_ns=supposed.lag_ns, cut=supposed.cut)
    return enclosed(graph, supposed, graph.end_of(time_ns) - graph.start_ns)


def enclosed(graph: DependencyGraph, supposed: Hypothesis, predicted_ns: int) -> Prediction:
    """A predicted length with the two that it lies between.

    Args:
        graph: The graph of a window.
        supposed: What is changed.
        predicted_ns: What a replay gives.
    """
    bounds = graph.replay_bounds(work_ns=supposed.work_ns, delay=supposed.delay, cut=supposed.cut)
    ends = [graph.end_of(times) - graph.start_ns for times in bounds]
    return Prediction(predicted_ns, min(predicted_ns, *ends), max(predicted_ns, *ends))


def _as_supposed(graph: DependencyGraph, supposed: Hypothesis) -> DependencyGraph:
    """The graph with the replayed times, so that its path is the predicted one."""
    time_ns = graph.replay(work_ns=supposed.work_ns, lag_ns=supposed.lag_ns, cut=supposed.cut)
    return rebound(graph, time_ns, supposed.work_ns, supposed.cut)
