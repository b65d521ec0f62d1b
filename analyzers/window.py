"""Which part of a capture is looked at: all of it, or one step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from traceflow.analyzers.dependencies import Dependencies
from traceflow.errors import TraceflowError
from traceflow.graph import NO_EVENT, DependencyGraph, window
from traceflow.trace.model import ABSENT, Bool, Marks, Trace


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
    marks = _marks_of(trace.marks, step)
    member = _launched_between(trace, found, marks)
    event = found.graph.slices.event
    counted = (event != NO_EVENT) & np.append(member, False)[event]
    if not counted.any():
        raise TraceflowError(
            "TF111", f"cannot explain step {step}", "no work lies between its marks", "choose another step"
        )
    start_ns, end_ns = int(marks.start_ns.min()), int(found.graph.slices.end_ns[counted].max())
    return Window(start_ns, end_ns, step), window(found.graph, start_ns, end_ns, counted=counted)


def _marks_of(marks: Marks, step: int) -> Marks:
    rows = np.flatnonzero(marks.step == step)
    if not len(rows):
        known = ", ".join(str(s) for s in np.unique(marks.step)[:20]) or "none"
        raise TraceflowError(
            "TF111", f"no step {step}", f"the trace marks these steps: {known}", "use one of them, or none"
        )
    return Marks(marks.step[rows], marks.rank[rows], marks.start_ns[rows], marks.end_ns[rows])


def _launched_between(trace: Trace, found: Dependencies, marks: Marks) -> Bool:
    """Host events that begin between the marks of their rank, and all that they launch, shape (events,)."""
    e = trace.events
    rank, on_host = trace.lanes.rank[e.lane], trace.lanes.device[e.lane] == ABSENT
    begun = np.zeros(len(e), bool)
    for of_rank, start_ns, end_ns in zip(marks.rank, marks.start_ns, marks.end_ns, strict=True):
        begun |= (rank == of_rank) & (e.start_ns >= start_ns) & (e.start_ns < end_ns)
    member = on_host & begun
    runs = _runs(trace, member)
    tied = (found.launch_call >= 0) | runs[0]
    member |= np.where(found.launch_call >= 0, member[found.launch_call], False) | runs[1]
    member |= ~on_host & ~tied & begun
    return member


def _runs(trace: Trace, member: Bool) -> tuple[Bool, Bool]:
    """Events of runs whose launch is known, and those of them that a member launched."""
    launches, hlo = trace.launches, trace.hlo
    keys = np.column_stack((launches.program, launches.run, launches.rank))
    wanted = np.column_stack((hlo.program, hlo.run, trace.lanes.rank[trace.events.lane[hlo.event]]))
    code = np.unique(np.concatenate((keys, wanted)), axis=0, return_inverse=True)[1].ravel()
    launch, run = code[: len(keys)], code[len(keys) :]
    known, launched = np.zeros(len(trace.events), bool), np.zeros(len(trace.events), bool)
    known[hlo.event] = np.isin(run, launch)
    launched[hlo.event] = np.isin(run, launch[member[launches.event]])
    return known, launched
