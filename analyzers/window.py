"""Which part of a capture is looked at: all of it, one step, or what an annotation names."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import numpy as np

from traceflow.analyzers.dependencies import Dependencies
from traceflow.errors import TraceflowError
from traceflow.graph import NO_EVENT, DependencyGraph, window
from traceflow.trace.model import ABSENT, Bool, Int64, Marks, Trace

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
    counted = (event != NO_EVENT) & np.append(step_of_events(trace, found) == step, False)[event]
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
    e = trace.events
    on_host = trace.lanes.device[e.lane] == ABSENT
    begun = _marked(trace)
    step = np.where(on_host, begun, NO_STEP)
    called = found.launch_call >= 0
    run_step, tied = _by_run(trace, step)
    step = np.where(called, step[found.launch_call], np.where(tied, run_step, step))
    return np.where(on_host | called | tied, step, begun)


def _marked(trace: Trace) -> Int64:
    """The step whose marks each event begins between on its rank; of nested marks, the inner."""
    e, marks = trace.events, trace.marks
    rank, step = trace.lanes.rank[e.lane], np.full(len(e), NO_STEP, np.int64)
    for of_rank in np.unique(marks.rank):
        mine = np.flatnonzero(marks.rank == of_rank)
        mine = mine[np.argsort(marks.start_ns[mine], kind="stable")]
        rows = np.flatnonzero(rank == of_rank)
        at = np.searchsorted(marks.start_ns[mine], e.start_ns[rows], side="right") - 1
        inside = (at >= 0) & (e.start_ns[rows] < marks.end_ns[mine[at]])
        step[rows[inside]] = marks.step[mine[at[inside]]]
    return step


def _by_run(trace: Trace, step: Int64) -> tuple[Int64, Bool]:
    """For events of program executions: the step that launched them, and whether their launch is known."""
    launches, hlo = trace.launches, trace.hlo
    keys = np.column_stack((launches.program, launches.run, launches.rank))
    wanted = np.column_stack((hlo.program, hlo.run, trace.lanes.rank[trace.events.lane[hlo.event]]))
    code = np.unique(np.concatenate((keys, wanted)), axis=0, return_inverse=True)[1].ravel()
    of_run = np.full(int(code.max(initial=-1)) + 1, NO_STEP, np.int64)
    known = np.zeros(len(of_run), bool)
    np.maximum.at(of_run, code[: len(keys)], step[launches.event])
    known[code[: len(keys)]] = True
    run_step, tied = np.full(len(step), NO_STEP, np.int64), np.zeros(len(step), bool)
    run_step[hlo.event], tied[hlo.event] = of_run[code[len(keys) :]], known[code[len(keys) :]]
    return run_step, tied
