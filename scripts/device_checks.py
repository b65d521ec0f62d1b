"""What has to hold of a capture that was recorded on a GPU; each check takes the run and what its program measured.

A check returns what it found, for the log, and raises AssertionError where that is not as it should be. What only a GPU
has is looked at where the program ran on one; all else is checked on a CPU, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from traceflow import Scale
from traceflow.run import Run
from traceflow.trace.model import ABSENT, Kind, LaneKind

PEAK_TOLERANCE_SHARE = 0.01
LAUNCHED_SHARE = 0.99
FASTEST_RATIO, SLOWEST_RATIO = 0.95, 4.0  # of a large product, measured over what the hardware allows
MOST_COST_SHARE = 0.5  # by which a recorded step may be longer than one that is awaited without being recorded

Told = Mapping[str, Any]
"""What a program measured itself, by name; `platform` is gpu or cpu."""


def tiles(run: Run, _told: Told) -> dict[str, Any]:
    """Each segment of each critical path ends where the next begins, from the start of the window to its end."""
    steps = run.trace.marks.step.tolist()
    for step in (None, *steps):
        path = run.critical_path(step=step)
        starts = path.segments.start_ns.tolist()
        ends = (path.segments.start_ns + path.segments.duration_ns).tolist()
        assert [path.window.start_ns, *ends] == [*starts, path.window.end_ns], f"the path of step {step} does not tile"
    return {"windows": 1 + len(steps)}


def replays(run: Run, _told: Told) -> dict[str, Any]:
    """A replay in which nothing is changed takes as long as what was measured."""
    for step in run.trace.marks.step.tolist():
        same = run.what_if(Scale("@compute", 1.0), step=step)
        assert same.predicted_ns == same.baseline_ns, f"step {step}: {same.predicted_ns} ns of {same.baseline_ns} ns"
    return {"steps": len(run.trace.marks.step)}


def launched(run: Run, told: Told) -> dict[str, Any]:
    """Nearly all work of devices has the call that launched it."""
    trace = run.trace
    on_device = trace.lanes.kind[trace.events.lane] == LaneKind.STREAM
    calls = trace.events.correlation[np.isin(trace.events.kind, (Kind.CALL, Kind.WAIT))]
    work = trace.events.correlation[on_device]
    share = float(np.isin(work, calls[calls != ABSENT]).mean()) if len(work) else None
    if told["platform"] == "gpu":
        assert share is not None, "nothing was recorded on a stream"
        assert share >= LAUNCHED_SHARE, f"{share:.1%} of the work of devices has its launch"
    return {"share": share, "work": len(work)}


def graphs(run: Run, told: Told) -> dict[str, Any]:
    """One call launches several kernels where the program replays a CUDA graph."""
    trace = run.trace
    on_device = trace.events.kind == Kind.COMPUTE
    correlations = trace.events.correlation[on_device & (trace.events.correlation != ABSENT)]
    most = int(np.unique(correlations, return_counts=True)[1].max(initial=0))
    if told["platform"] == "gpu":
        assert most > 1, "no call launched more than one kernel: the graph is not in the trace"
    return {"kernels_of_a_call": most}


def synchronised(run: Run, told: Told) -> dict[str, Any]:
    """The trace says which stream waited for which."""
    records = len(run.trace.syncs.kind)
    if told["platform"] == "gpu":
        assert records > 0, "no synchronisation was recorded"
        notes = {note.code for note in (*run.summary().notes, *run.critical_path().notes)}
        assert "TF303" not in notes, "the order across streams is not known"
    return {"records": records}


def peaks(run: Run, told: Told) -> dict[str, Any]:
    """The peak of memory is the one that PyTorch's allocator counted itself."""
    uses = {use.device: use.peak_bytes for use in run.memory().allocator}
    device = 0 if told["platform"] == "gpu" else None
    assert device in uses, f"no allocator of device {device} is told"
    counted, peak_bytes = told.get("max_memory_allocated"), uses[device]
    if told["platform"] == "gpu":
        assert peak_bytes is not None, "the history of memory is not whole"
        apart = abs(peak_bytes - counted) / counted
        assert apart <= PEAK_TOLERANCE_SHARE, f"the peak is {peak_bytes} bytes, and PyTorch counted {counted}"
    return {"peak_bytes": peak_bytes, "counted_bytes": counted}


def holds(run: Run, told: Told) -> dict[str, Any]:
    """What the compiler arranged for a JAX program is no more than the allocator has held at once."""
    needed, held = run.memory().co_resident.at_least_bytes, told.get("peak_bytes_in_use")
    assert needed, "no program tells its memory"
    if held is not None:
        assert needed <= held * (1 + PEAK_TOLERANCE_SHARE), f"programs need {needed} bytes, the allocator held {held}"
    return {"needed_bytes": needed, "held_bytes": held}


def budgeted(run: Run, told: Told) -> dict[str, Any]:
    """A large product takes no less than the hardware needs, and not much more."""
    gpu = told["platform"] == "gpu"
    operations = run.budget(step=run.trace.marks.step.tolist()[-1]).operations
    products = [one for one in operations if one.work.cost.flops]
    assert products, "no product has a budget"
    largest = max(products, key=lambda one: sum(one.work.cost.flops.values()))
    ratio = largest.measured_over_bound_ratio
    if gpu:
        assert ratio is not None, "the hardware is not known"
        assert FASTEST_RATIO <= ratio <= SLOWEST_RATIO, f"{largest.work.name} took {ratio:.2f} of what it needs"
    return {"operation": largest.work.name, "ratio": ratio}


def cheap(_run: Run, told: Told) -> dict[str, Any]:
    """A recorded step is not much longer than one that is awaited without being recorded."""
    plain_ns, recorded_ns = told["plain_step_ns"], told["recorded_step_ns"]
    share = recorded_ns / plain_ns - 1
    if told["platform"] == "gpu":
        assert share <= MOST_COST_SHARE, f"a recorded step takes {share:.0%} longer"
    return {"plain_step_ns": plain_ns, "recorded_step_ns": recorded_ns, "cost_share": round(share, 4)}


Check = Callable[[Run, Told], dict[str, Any]]
CHECKS: dict[str, tuple[Check, ...]] = {
    "product-torch": (tiles, replays, launched, graphs, synchronised, peaks, budgeted, cheap),
    "product-jax": (tiles, replays, holds, budgeted, cheap),
}
