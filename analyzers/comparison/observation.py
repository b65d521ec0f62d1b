"""What one run shows of everything that is compared: each quantity over its steady steps, its plan, its outputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import TypeVar

import numpy as np

from traceflow.analyzers.communication import Collective, Communication, communication
from traceflow.analyzers.comparison.numerics import Outputs
from traceflow.analyzers.comparison.plan import ExecutedPlan, plan_of_programs, plan_of_trace
from traceflow.analyzers.comparison.sample import Sample
from traceflow.analyzers.critical_path import KINDS, CriticalPath, critical_path
from traceflow.analyzers.dependencies import Dependencies
from traceflow.analyzers.executed_operators import hlo_operation
from traceflow.analyzers.memory import Memory
from traceflow.analyzers.memory_traffic import traffic
from traceflow.analyzers.summary import Summary, steady_steps
from traceflow.analyzers.window import step_of_events
from traceflow.budgets import sent_bytes
from traceflow.errors import TraceflowError
from traceflow.program.module import COLLECTIVES, Programs
from traceflow.result import Provenance
from traceflow.trace.model import Bool, Copies, HloEvents, LaneKind, Trace

_MOST_STEPS = 15  # whose paths and communication are looked at
_NO_STEPS = "the trace marks no step in which nothing was compiled"
_NO_TRACE = "the input holds programs and no trace"
_NO_MEMORY = {
    "live_peak_bytes": "no compiled program came with its buffer assignment",
    "allocated_peak_bytes": "the capture holds no record of allocations",
    "traffic_bytes": "sizes of what was read and written in a step are not all known",
}
_Table = TypeVar("_Table", HloEvents, Copies)
OPERATIONS = tuple(sorted(name.replace("-", "_") for name in COLLECTIVES if not name.startswith("ragged")))
PATH = tuple(f"path_{kind}_ns" for kind in KINDS)
REMOVABLE = ("removable_transfer_ns", "removable_communication_ns")
BYTES = ("communication_bytes", *(f"{name}_bytes" for name in OPERATIONS))
CALLS = ("communication_calls", *(f"{name}_calls" for name in OPERATIONS))
DEVICE = ("busy_ns", "exposed_ns", "exposed_share", "compute_ns", "idle_ns")
MEMORY = ("live_peak_bytes", "allocated_peak_bytes", "traffic_bytes")
QUANTITIES = ("step_ns", "window_ns", *PATH, *DEVICE, *REMOVABLE, *BYTES, *CALLS, *MEMORY)
"""Everything that is compared, by name."""


@dataclass(frozen=True, slots=True)
class Observation:
    """One side of a comparison."""

    quantities: Mapping[str, Sample]  # by name; those that are not known are in `unknown`
    unknown: Mapping[str, str]  # why
    plans: tuple[ExecutedPlan, ...]  # of programs where there are some, then of the trace where there is one
    outputs: Outputs | None  # None where none were recorded
    steps: tuple[int, ...]  # those that were looked at closely
    steady_steps: int
    simulated: bool = False  # whether devices are threads of the host
    overlapping: bool = False  # whether a step begins before the last one has ended
    periods_ns: tuple[int, ...] = ()  # between the starts of steps


def observe(
    trace: Trace,
    found: Dependencies,
    programs: Programs,
    summary: Summary,
    memory: Memory | None = None,
    outputs: Outputs | None = None,
) -> Observation:
    """Look at one run as often as it has steady steps, at 15 of them closely.

    Args:
        trace: The evidence.
        found: Its dependencies.
        programs: Its programs.
        summary: Its steps.
        memory: Its memory.
        outputs: What it computed, where that was recorded.
    """
    steady = steady_steps(summary.steps)
    steps = _spread(sorted(steady))
    windows = list(_windows(trace, found, steps))
    paths, talks = [path for path, _ in windows], [talk for _, talk in windows]
    known = {
        "step_ns": tuple(float(duration_ns) for _, duration_ns in steady.values()),
        "window_ns": tuple(float(path.makespan_ns) for path in paths),
        **{f"path_{kind}_ns": tuple(float(path.by_kind_ns.get(kind, 0)) for path in paths) for kind in KINDS},
    }
    measured = {name: Sample(values, Provenance.MEASURED) for name, values in known.items() if values}
    looked_at = [path.window.step for path in paths if path.window.step is not None]
    samples = {**measured, **_participants(talks), **_removable(talks), **_calls(talks), **_memory(memory)}
    samples |= _traffic(trace, found, programs, looked_at)
    reasons = {name: _why(name, talks) for name in QUANTITIES if name not in samples}
    compiled = plan_of_programs(trace, programs)
    traced = plan_of_trace(trace, found, looked_at, talks) if talks else None
    starts = {step: start_ns for step, (start_ns, _) in steady.items()}
    follow = [step for step in starts if step + 1 in starts]
    overlaps = [starts[step + 1] < start + steady[step][1] for step, start in starts.items() if step in follow]
    return Observation(
        quantities=MappingProxyType(samples),
        unknown=MappingProxyType(reasons),
        plans=tuple(plan for plan in (compiled, traced) if plan is not None),
        outputs=outputs,
        steps=tuple(looked_at),
        steady_steps=len(steady),
        simulated=bool((trace.lanes.kind == LaneKind.WORKER).any()),
        overlapping=2 * sum(overlaps) > len(overlaps),
        periods_ns=tuple(starts[step + 1] - starts[step] for step in follow),
    )


def observe_programs(
    trace: Trace, programs: Programs, memory: Memory | None = None, outputs: Outputs | None = None
) -> Observation:
    """What programs alone tell: their plan and their peak, and nothing of time.

    Args:
        trace: That of an input without a trace, which is empty.
        programs: The programs.
        memory: Their memory.
        outputs: What they computed, where that was recorded.
    """
    samples = _memory(memory)
    compiled = plan_of_programs(trace, programs)
    return Observation(
        quantities=MappingProxyType(samples),
        unknown=MappingProxyType({name: _NO_TRACE for name in QUANTITIES if name not in samples}),
        plans=() if compiled is None else (compiled,),
        outputs=outputs,
        steps=(),
        steady_steps=0,
    )


def _spread(steps: Sequence[int]) -> list[int]:
    """At most so many steps, from the first to the last."""
    taken = np.unique(np.linspace(0, max(len(steps) - 1, 0), min(len(steps), _MOST_STEPS)).round().astype(int))
    return [steps[at] for at in taken.tolist()]


def _windows(trace: Trace, found: Dependencies, steps: Sequence[int]) -> Iterator[tuple[CriticalPath, Communication]]:
    """Path and communication of each step that has work; of the whole capture where no step is marked."""
    asked: Sequence[int | None] = steps or (None,)
    for step in asked:
        try:
            yield critical_path(trace, found, step=step), communication(trace, found, step=step)
        except TraceflowError as error:
            if error.code not in {"TF104", "TF111"}:
                raise


def _participants(talks: Sequence[Communication]) -> dict[str, Sample]:
    """Of exposed and busy time the worst participant counts, of computation and idleness the mean."""
    columns: dict[str, list[float]] = {name: [] for name in DEVICE}
    for talk in talks:
        rows = talk.participants
        if not rows:
            return {}
        columns["busy_ns"].append(max(row.busy_ns for row in rows))
        columns["exposed_ns"].append(max(row.exposed_ns for row in rows))
        columns["exposed_share"].append(max(row.exposed_share or 0.0 for row in rows))
        columns["compute_ns"].append(sum(row.compute_ns for row in rows) / len(rows))
        if (idle := [row.idle_ns for row in rows if row.idle_ns is not None]) and len(idle) == len(rows):
            columns["idle_ns"].append(sum(idle) / len(rows))
    return {
        name: Sample(tuple(values), Provenance.MEASURED)
        for name, values in columns.items()
        if values and len(values) == len(talks)
    }


def _removable(talks: Sequence[Communication]) -> dict[str, Sample]:
    columns = {name: [getattr(talk, name) for talk in talks] for name in REMOVABLE}
    return {
        name: Sample(tuple(values), Provenance.MODELLED)
        for name, values in columns.items()
        if values and None not in values
    }


def _calls(talks: Sequence[Communication]) -> dict[str, Sample]:
    """What each step communicates, over all participants: how often, and what they send at least."""
    if not talks or any(talk.unmatched for talk in talks):
        return {}
    columns: dict[str, list[float]] = {name: [] for name in CALLS}
    sizes: dict[str, list[float | None]] = {name: [] for name in BYTES}
    for talk in talks:
        counts, sent = _of_step(talk)
        for name in ("communication", *OPERATIONS):
            columns[f"{name}_calls"].append(counts.get(name, 0))
            sizes[f"{name}_bytes"].append(sent.get(name, 0))
    columns |= {
        name: [size for size in values if size is not None] for name, values in sizes.items() if None not in values
    }
    return {name: Sample(tuple(map(float, values)), Provenance.DERIVED, exact=True) for name, values in columns.items()}


def _of_step(talk: Communication) -> tuple[dict[str, int], dict[str, float | None]]:
    counts: dict[str, int] = {}
    sent: dict[str, float | None] = {}
    amounts = [(hlo_operation(one.op).replace("-", "_"), _sent(one)) for one in talk.collectives]
    amounts += [("send", message.payload_bytes) for message in talk.messages]
    for name, size in amounts:
        for key in ("communication", name):
            before = sent.get(key, 0)
            counts[key] = counts.get(key, 0) + 1
            sent[key] = None if before is None or size is None else before + size
    return counts, sent


def _sent(one: Collective) -> int | None:
    """What all participants of a collective send at least; None where payloads or the operation are not known."""
    operation = hlo_operation(one.op)
    each = [
        None if call.payload_bytes is None else sent_bytes(operation, call.payload_bytes, len(one.calls))
        for call in one.calls
    ]
    return None if None in each else sum(size for size in each if size is not None)


def _memory(memory: Memory | None) -> dict[str, Sample]:
    """Peaks of the largest program and of the fullest device."""
    samples: dict[str, Sample] = {}
    programs = [] if memory is None else [one.live_peak_bytes for one in memory.programs if one.executed is not False]
    if programs and None not in programs:
        peak = max(size for size in programs if size is not None)
        samples["live_peak_bytes"] = Sample((float(peak),), Provenance.COMPILER, exact=True)
    allocators = [] if memory is None else [use.peak_bytes for use in memory.allocator]
    if allocators and None not in allocators:
        peak = max(size for size in allocators if size is not None)
        samples["allocated_peak_bytes"] = Sample((float(peak),), Provenance.MEASURED)
    return samples


def _traffic(trace: Trace, found: Dependencies, programs: Programs, steps: Sequence[int]) -> dict[str, Sample]:
    """What the busiest device reads and writes in each step; nothing where part of it is not known."""
    of_events, sums = step_of_events(trace, found), []
    for step in steps:
        inside = of_events == step
        of_step = replace(
            trace, hlo=_rows(trace.hlo, inside[trace.hlo.event]), copies=_rows(trace.copies, inside[trace.copies.event])
        )
        rows, gaps = traffic(of_step, programs)
        by_device: dict[tuple[int, int | None], int] = {}
        for row in rows:
            by_device[row.rank, row.device] = by_device.get((row.rank, row.device), 0) + row.size_bytes
        if gaps or not by_device:
            return {}
        sums.append(float(max(by_device.values())))
    return {"traffic_bytes": Sample(tuple(sums), Provenance.DERIVED, exact=True)} if sums else {}


def _rows(table: _Table, mask: Bool) -> _Table:
    return type(table)(*(getattr(table, column.name)[mask] for column in fields(table)))


def _why(name: str, talks: Sequence[Communication]) -> str:
    """Why a quantity is not known."""
    if name in MEMORY:
        return _NO_MEMORY[name]
    if name == "step_ns":
        return _NO_STEPS
    if not talks:
        return "no work lies in a steady step"
    calls = sum(len(talk.unmatched) for talk in talks)
    if calls and name in {*REMOVABLE, *CALLS, *BYTES}:
        return f"{calls} communication calls stay whole: what they are part of is not known"
    return "payloads are not recorded" if name in BYTES else "the trace does not tell"
