"""What would shorten a window most: one what-if per candidate, ranked by the time it saves."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from traceflow.analyzers.best_case import BestCase, best_cases
from traceflow.analyzers.changes import LAUNCH, RENDEZVOUS, Drop, Hypothesis, Scale, apply, shortened
from traceflow.analyzers.dependencies import Dependencies
from traceflow.analyzers.stages import WHOLE_STEP
from traceflow.analyzers.summary import summary
from traceflow.analyzers.what_if import enclosed, unknown_dependencies, unmatched_calls
from traceflow.analyzers.window import Window, in_window
from traceflow.graph import DependencyGraph, EdgeKind, SliceKind
from traceflow.result import Finding, Json, Note, Provenance, Severity, Shown, Skipped
from traceflow.shortening import ends_if_shorter
from traceflow.trace.model import Trace

if TYPE_CHECKING:
    import pandas as pd

NAMES = 10
"""How many of the costliest names on the path are tried."""

NOTABLE_SHARE = 0.05
"""A class of work that costs less than this share of the window is no finding."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A hypothesis worth replaying: what is changed, what that supposes, and how one could come near it."""

    title: str
    kind: str
    change: Scale | Drop
    assumption: str
    suggestion: str
    code: str | None = None  # of the finding that a notable saving makes


@dataclass(frozen=True, slots=True)
class Saving:
    """What a hypothesis saves: baseline - predicted, in ns. `exact` as for a what-if."""

    candidate: Candidate
    saved_ns: int
    saved_share: float  # of the window
    exact: bool
    within_spread: bool | None  # smaller than steps differ from one another; None where that is unknown

    def to_dict(self) -> dict[str, Json]:
        """A row of `savings`; `option` repeats the what-if on the command line."""
        candidate, change = self.candidate, self.candidate.change
        scales = isinstance(change, Scale)
        return {
            "title": candidate.title,
            "kind": candidate.kind,
            "option": "--scale" if scales else "--drop",
            "argument": f"{change.pattern}={change.factor:g}" if isinstance(change, Scale) else change.pattern,
            "saved_ns": self.saved_ns,
            "saved_share": self.saved_share,
            "exact": self.exact,
            "within_spread": self.within_spread,
            "provenance": Provenance.MODELLED.value,
            "assumption": candidate.assumption,
            "suggestion": candidate.suggestion,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Savings(Shown):
    """The what-ifs that save most, the largest first; those that save nothing are left out."""

    kind: ClassVar[str] = "savings"
    window: Window
    spread_ns: int | None  # longest minus shortest step of the steady state
    savings: tuple[Saving, ...]
    best_cases: tuple[BestCase, ...]
    findings: tuple[Finding, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    notes: tuple[Note, ...] = ()

    def to_dict(self) -> dict[str, Json]:
        """The `result` object of the JSON contract."""
        return {
            "window": {**self.window.to_dict()},
            "baseline_ns": self.window.duration_ns,
            "spread_ns": self.spread_ns,
            "savings": [saving.to_dict() for saving in self.savings],
            "best_cases": [case.to_dict() for case in self.best_cases],
        }

    def to_pandas(self) -> pd.DataFrame:
        """One row per hypothesis."""
        import pandas as pd

        return pd.DataFrame([saving.to_dict() for saving in self.savings])


def savings(trace: Trace, found: Dependencies, *, step: int | None = None, top: int = 3) -> Savings:
    """Replay the hypotheses that could shorten a window, and rank them by what they save.

    Tried are the costliest names on the critical path, each as if it took no time, since only what is on the
    path can save anything; and whole classes: no transfer, nobody late, no launch latency, no host work, no
    copies. So a saving is the most that any improvement of one thing alone can give; savings do not add up.
    Beside them stand the best cases (:func:`traceflow.analyzers.best_case.best_cases`): no communication at all,
    perfect balance, no launch overhead.

    Args:
        trace: The evidence.
        found: Its dependencies.
        step: Which step; the whole capture where None. Only for a step is there a spread to compare with.
        top: How many to return.

    Raises:
        TraceflowError: TF104 without work, TF111 without such a step.
    """
    window, graph = in_window(trace, found, step)
    spread_ns = None if step is None else _spread_ns(trace, found)
    unknown = "; ".join(finding.title for finding in unknown_dependencies(trace, found, window))
    known = not unknown
    best = tuple(best_cases(trace, found, graph, unsplit=unmatched_calls(trace, found, window), known=known))
    ranked = _ranked(trace, graph, (*_names(trace, graph), *_CLASSES))
    shown, notable = _without_repetition(ranked)[:top], _notable(ranked)
    whole = {tried: _saving(trace, graph, tried, spread_ns, known=known) for tried in {*shown, *notable}}
    return Savings(
        window=window,
        spread_ns=spread_ns,
        savings=tuple(whole[tried] for tried in shown),
        best_cases=best,
        findings=tuple(_finding(whole[tried]) for tried in notable),
        skipped=(*_no_spread(spread_ns, step), *_no_best_case(best, unknown)),
        notes=found.notes,
    )


_START_EARLIER = "start it earlier, cut it into pieces that overlap with computation, or send less"
_SPEED_UP = {
    SliceKind.COMPUTE: (
        "compute",
        "{}",
        "a faster kernel, fusion, lower precision or a smaller share per device comes near it",
    ),
    SliceKind.TRANSFER: ("transfer", "the transfer of {}", _START_EARLIER),
    SliceKind.COMMUNICATION: ("communication", "{}", _START_EARLIER),
    SliceKind.COPY: ("copy", "{}", "keep the data where it is used, or overlap the copy with computation"),
    SliceKind.HOST: ("host", "{}", "call it less often, compile it, or move it to another thread"),
}

_BETWEEN = "look at what the program does in a step between operators, such as loading data, and do it ahead"

_CLASSES = (
    Candidate(
        "transfers took no time",
        "transfer",
        Scale("@transfer", 0),
        "every collective ends when its last participant arrives",
        _START_EARLIER,
    ),
    Candidate(
        "nobody were late",
        "rendezvous",
        Drop(RENDEZVOUS),
        "no collective waits for its last participant; the transfers themselves stay",
        "look at what the late participant does before it arrives, and balance the work",
        "TF202",
    ),
    Candidate(
        "launches took no time",
        "launch",
        Scale(LAUNCH, 0),
        "device work starts the moment its launch call does; the calls themselves stay",
        "launch larger pieces: compile, capture a graph, batch small operations",
        "TF203",
    ),
    Candidate(
        "the host took no time",
        "host",
        Scale("@host", 0),
        "host code runs in no time; gaps between calls and launch latencies stay",
        "compile or capture larger pieces, and avoid synchronisation",
        "TF203",
    ),
    Candidate(
        "copies took no time",
        "copy",
        Scale("@copy", 0),
        "moving data between or within memories takes no time",
        "keep data where it is used, pin host memory, or overlap the copies with computation",
        "TF207",
    ),
)


def _names(trace: Trace, graph: DependencyGraph) -> Iterator[Candidate]:
    """The costliest names on the path, each to take no time."""
    for name, kind in _costliest(trace, graph):
        label, phrase, suggestion = _SPEED_UP[kind]
        yield Candidate(
            f"{phrase.format(name)} took no time",
            label,
            Scale(f"^{re.escape(name)}$", 0),
            "all that bears this name takes no time; everything else keeps its duration and its lags",
            _BETWEEN if name.startswith(WHOLE_STEP) else suggestion,
        )


def _costliest(trace: Trace, graph: DependencyGraph) -> list[tuple[str, SliceKind]]:
    """Names of the work on the path with its kind, by their total time there."""
    vertex = graph.path()
    own = graph.kind[graph.binding[vertex]] == EdgeKind.SELF
    row = vertex[own & (graph.binding[vertex] >= 0) & (graph.work_ns[vertex >> 1] > 0)] >> 1
    key = trace.events.name[graph.slices.event[row]].astype(np.int64) * len(SliceKind) + graph.slices.kind[row]
    which, at = np.unique(key, return_inverse=True)
    cost_ns = np.bincount(at, graph.work_ns[row])
    order = np.argsort(-cost_ns, kind="stable")[:NAMES]
    return [(trace.strings[k // len(SliceKind)], SliceKind(k % len(SliceKind))) for k in which[order].tolist()]


@dataclass(frozen=True, slots=True)
class _Tried:
    """A candidate that saves something; whether that is exact is not known yet."""

    candidate: Candidate
    saved_ns: int
    saved_share: float


def _ranked(trace: Trace, graph: DependencyGraph, candidates: Sequence[Candidate]) -> list[_Tried]:
    """The candidates that save something, those that save most first."""
    scaled = [one for one in candidates if isinstance(one.change, Scale)]
    cases = shortened(trace, graph, [one.change for one in scaled if isinstance(one.change, Scale)])
    ends_ns = dict(zip(scaled, ends_if_shorter(graph, cases), strict=True))
    for one in candidates:
        if one not in ends_ns:  # it cuts edges
            supposed = apply(trace, graph, [one.change])
            time_ns = graph.replay(work_ns=supposed.work_ns, lag_ns=supposed.lag_ns, cut=supposed.cut)
            ends_ns[one] = graph.end_of(time_ns)
    measured_ns = graph.end_ns - graph.start_ns
    saved_ns = {one: graph.end_ns - ends_ns[one] for one in candidates}
    tried = [_Tried(one, saved, saved / max(measured_ns, 1)) for one, saved in saved_ns.items() if saved > 0]
    return sorted(tried, key=lambda one: -one.saved_ns)


def _saving(trace: Trace, graph: DependencyGraph, tried: _Tried, spread_ns: int | None, *, known: bool) -> Saving:
    """What is said of a candidate; whether it is exact takes another replay."""
    within = None if spread_ns is None else tried.saved_ns < spread_ns
    exact = known and _is_exact(graph, apply(trace, graph, [tried.candidate.change]), tried.saved_ns)
    return Saving(tried.candidate, tried.saved_ns, tried.saved_share, exact, within)


def _is_exact(graph: DependencyGraph, supposed: Hypothesis, saved_ns: int) -> bool:
    return enclosed(graph, supposed, graph.end_ns - graph.start_ns - saved_ns).exact


def _without_repetition(ranked: list[_Tried]) -> list[_Tried]:
    """Leave out a class of work that saves no more than one name in it: the name says more."""
    named = {(s.candidate.kind, s.saved_ns) for s in ranked if s.candidate not in _CLASSES}
    return [s for s in ranked if s.candidate not in _CLASSES or (s.candidate.kind, s.saved_ns) not in named]


def _notable(ranked: list[_Tried]) -> list[_Tried]:
    """The classes of work whose saving is worth a remark; of two with one code, the larger."""
    by_code: dict[str, _Tried] = {}
    for tried in ranked:
        code = tried.candidate.code
        if code is not None and tried.saved_share >= NOTABLE_SHARE:
            by_code.setdefault(code, tried)
    return list(by_code.values())


def _finding(saving: Saving) -> Finding:
    return Finding(
        code=str(saving.candidate.code),
        severity=Severity.WARNING,
        title=f"if {saving.candidate.title}, the window would be {saving.saved_share:.0%} shorter",
        provenance=Provenance.MODELLED,
        suggestion=saving.candidate.suggestion,
        cost_ns=saving.saved_ns,
        evidence={"exact": saving.exact, "assumption": saving.candidate.assumption},
    )


def _spread_ns(trace: Trace, found: Dependencies) -> int | None:
    """Longest minus shortest step of the steady state; None where fewer than two steps are in it."""
    steady = summary(trace, found).steady_state
    return None if steady is None or steady.steps < 2 else steady.maximum_ns - steady.minimum_ns


def _no_spread(spread_ns: int | None, step: int | None) -> tuple[Skipped, ...]:
    if spread_ns is not None:
        return ()
    whole = "the whole capture is one window, with nothing to compare it with"
    why = whole if step is None else "fewer than two steps without compilation are marked"
    return (Skipped("/result/spread_ns", why),)


def _no_best_case(cases: tuple[BestCase, ...], unknown: str) -> tuple[Skipped, ...]:
    rows = "/result/best_cases"
    absent = [Skipped(f"{rows}/{at}/predicted_ns", case.reason) for at, case in enumerate(cases) if case.reason]
    unbounded = [Skipped(f"{rows}/*/{name}", unknown) for name in ("low_ns", "high_ns")] if unknown else []
    return (*absent, *unbounded)
