"""Which part of a capture is looked at: all of it, one step, or what an annotation names."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import numpy as np

from traceflow.analyzers.dependencies import Dependencies
from traceflow.analyzers.matching import numbers_of
from traceflow.errors import TraceflowError
from traceflow.graph import DependencyGraph, window
from traceflow.trace.model import ABSENT, Int64, Marks, Rows, Trace

NO_STEP = np.iinfo(np.int64).min
_OCCURRENCE = re.compile(r"(.+)#(\d{1,18})$", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Window:
    """Half-open interval [start_ns, end_ns) of the capture's clock; `step` where it is one."""

    start_ns: int
    end_ns: int
    step: int | None = None

    @property
    def duration_ns(self) -> int:
        """Length of the window."""
        return self.end_ns - self.start_ns

    def to_dict(self) -> dict[str, int]:
        """The `window` object of the JSON contract."""
        return {"start_ns": self.start_ns, "end_ns": self.end_ns}


def in_window(trace: Trace, found: Dependencies, step: int | None) -> tuple[Window, DependencyGraph]:
    """The window and its graph.

    A step is what is launched, transitively, between its marks on any rank: it starts at the earliest mark and
    ends at the latest of that work. Without a step, the window runs from the first to the last piece of work.

    Raises:
        TraceflowError: TF104 when the trace holds no work, TF111 when it has no such step.
    """
    if not found.graph.counted.any():
        raise TraceflowError("TF104", "nothing to explain", "the trace holds no work", "record a longer window")
    if step is None:
        return Window(found.graph.start_ns, found.graph.end_ns), found.graph
    marks = trace.marks
    if step not in marks.step:
        known = ", ".join(str(s) for s in np.unique(marks.step)[:20]) or "none"
        raise TraceflowError("TF111", f"no step {step}", f"the trace marks these steps: {known}", "use one, or none")
    event = found.graph.slices.event
    counted = np.append(step_of_events(trace, found) == step, False)[event]  # a join is of no event, the last here
    if not counted.any():
        raise TraceflowError(
            "TF111", f"cannot explain step {step}", "no work lies between its marks", "choose another step"
        )
    start_ns = int(marks.start_ns[marks.step == step].min())
    end_ns = int(found.graph.slices.end_ns[counted].max())
    return Window(start_ns, end_ns, step), window(found.graph, start_ns, end_ns, counted=counted)


def named(trace: Trace, name: str) -> tuple[Trace, int]:
    """The trace with the occurrences of an annotation for its steps, and which of them is meant.

    Any host event can be named: `record_function` and user annotations, `TraceAnnotation`, operators. On each rank
    its occurrences are counted in order of time, from 0; the k-th of all ranks are one window.

    Args:
        trace: The evidence.
        name: Name of a host event, which means the first of it, or `NAME#k` for another.

    Raises:
        TraceflowError: TF111 when no host event is called so, or not as many times.
    """
    if name in trace.strings:
        text, occurrence = name, 0
    elif found := _OCCURRENCE.fullmatch(name):
        text, occurrence = found[1], int(found[2])
    else:
        text, occurrence = name, 0
    e = trace.events
    code = trace.strings.index(text) if text in trace.strings else ABSENT
    rows = np.flatnonzero((e.name == code) & (trace.lanes.device[e.lane] == ABSENT))
    rank = trace.lanes.rank[e.lane[rows]]
    order = np.lexsort((e.start_ns[rows], rank))
    rows, rank = rows[order], rank[order]
    count = np.arange(len(rows)) - np.searchsorted(rank, rank)
    if occurrence not in count:
        times = int(count.max()) + 1 if len(count) else 0
        why = f"it occurs {times} times, from {text}#0 on" if times else "no host event is called so"
        hint = "choose one of them" if times else "name an annotation of the program, as the trace has it"
        raise TraceflowError("TF111", f"no window {name}", why, hint)
    return replace(trace, marks=Marks(count, rank, e.start_ns[rows], e.end_ns[rows])), occurrence


def step_ends(trace: Trace, found: Dependencies) -> dict[int, int]:
    """When the last work of each step ended, in ns; steps without work are left out."""
    step, end_ns = step_of_events(trace, found), trace.events.end_ns
    known, which = np.unique(step[step != NO_STEP], return_inverse=True)
    ends = np.full(len(known), np.iinfo(np.int64).min)
    np.maximum.at(ends, which.ravel(), end_ns[step != NO_STEP])
    return dict(zip(known.tolist(), ends.tolist(), strict=True))


def step_of_events(trace: Trace, found: Dependencies) -> Int64:
    """The step of each event, NO_STEP outside of all.

    Host events belong to the marks that they begin between, device work to what launched it, or, where that is
    unknown, to the marks that it begins between itself.
    """
    begun, called = _marked(trace), np.flatnonzero(found.launch_call >= 0)
    step = begun.copy()
    tied, of_run = _by_run(trace, begun)
    step[tied] = of_run
    step[called] = begun[found.launch_call[called]]
    return step


def _marked(trace: Trace) -> Int64:
    """The step whose marks each event begins between on its rank; of nested marks, the inner."""
    e, marks = trace.events, trace.marks
    order = np.lexsort((marks.start_ns, marks.rank))
    bounds = np.searchsorted(e.lane, np.arange(len(trace.lanes) + 1, dtype=e.lane.dtype))
    steps = [np.empty(0, np.int64)]
    for lane, rank in enumerate(trace.lanes.rank.tolist()):
        mine = order[slice(*np.searchsorted(marks.rank[order], (rank, rank + 1)))]
        until_ns = np.minimum(
            marks.end_ns[mine], np.append(marks.start_ns[mine[1:]], np.iinfo(np.int64).max)[: len(mine)]
        )
        moments_ns = np.column_stack((marks.start_ns[mine], until_ns)).ravel()
        begun_ns = e.start_ns[bounds[lane] : bounds[lane + 1]]
        at = np.concatenate(([0], np.searchsorted(begun_ns, moments_ns), [len(begun_ns)]))
        values = np.full(len(at) - 1, NO_STEP)
        values[1::2] = marks.step[mine]
        steps.append(np.repeat(values, np.diff(at)))
    return np.concatenate(steps)


def _by_run(trace: Trace, step: Int64) -> tuple[Rows, Int64]:
    """Events of program executions whose launch is known, and the step that launched each."""
    launches, hlo = trace.launches, trace.hlo
    keys = np.column_stack((launches.program, launches.run, launches.rank))
    wanted = np.column_stack((hlo.program, hlo.run, trace.lanes.rank[trace.events.lane[hlo.event]]))
    code = numbers_of(np.concatenate((keys, wanted)))
    of_run = np.full(int(code.max(initial=-1)) + 1, NO_STEP, np.int64)
    known = np.zeros(len(of_run), bool)
    np.maximum.at(of_run, code[: len(keys)], step[launches.event])
    known[code[: len(keys)]] = True
    tied = known[code[len(keys) :]]
    return hlo.event[tied], of_run[code[len(keys) :][tied]]
