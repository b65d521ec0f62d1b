"""What a capture holds, and how long its steps took: returned, ready, fetched; steady state apart from warm-up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from traceflow.analyzers.dependencies import Dependencies
from traceflow.analyzers.window import in_window
from traceflow.errors import TraceflowError
from traceflow.result import Finding, Json, Note, Provenance, Severity, Skipped
from traceflow.trace.model import ABSENT, Bool, Trace

if TYPE_CHECKING:
    import pandas as pd

CALL, READY, FETCH = "traceflow.call", "traceflow.ready", "traceflow.fetch"
_COMPILES = (
    "backend_compile",
    "PjRtCompile",
    "XlaCompile",
    "cpu_compiler",
    "Compile (",
    "::Compile",
    "TorchDynamo",
    "CompiledFxGraph compile",
)


@dataclass(frozen=True, slots=True)
class Step:
    """One step on one rank; ends are relative to the capture's clock, None where nothing marks them."""

    step: int
    rank: int
    start_ns: int
    duration_ns: int
    returned_ns: int | None  # the call returned to the host
    ready_ns: int | None  # the device had finished
    fetched_ns: int | None  # the result was on the host
    compiled: bool

    def to_dict(self) -> dict[str, Json]:
        """A row of `steps`."""
        return {
            "step": self.step,
            "rank": self.rank,
            "start_ns": self.start_ns,
            "duration_ns": self.duration_ns,
            "returned_ns": self.returned_ns,
            "ready_ns": self.ready_ns,
            "fetched_ns": self.fetched_ns,
            "compiled": self.compiled,
        }


@dataclass(frozen=True, slots=True)
class SteadyState:
    """Step time over the steps in which nothing was compiled, in ns."""

    steps: int
    median_ns: int
    minimum_ns: int
    maximum_ns: int

    def to_dict(self) -> dict[str, Json]:
        """The `steady_state` object."""
        return {
            "steps": self.steps,
            "median_ns": self.median_ns,
            "minimum_ns": self.minimum_ns,
            "maximum_ns": self.maximum_ns,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Ranks, devices, steps and size of a capture."""

    kind: ClassVar[str] = "summary"
    ranks: tuple[int, ...]
    devices: tuple[tuple[int, int], ...]  # (rank, device)
    steps: tuple[Step, ...]
    steady_state: SteadyState | None
    event_count: int
    format: str
    findings: tuple[Finding, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    notes: tuple[Note, ...] = ()

    def to_dict(self) -> dict[str, Json]:
        """The `result` object of the JSON contract."""
        return {
            "ranks": list(self.ranks),
            "devices": [{"rank": rank, "device": device} for rank, device in self.devices],
            "steps": [step.to_dict() for step in self.steps],
            "steady_state": None if self.steady_state is None else self.steady_state.to_dict(),
            "event_count": self.event_count,
            "format": self.format,
        }

    def to_pandas(self) -> pd.DataFrame:
        """One row per step and rank."""
        import pandas as pd

        return pd.DataFrame([step.to_dict() for step in self.steps])


def summary(trace: Trace, found: Dependencies) -> Summary:
    """Count what a capture holds and time its steps.

    A step's duration runs from its mark to the end of the work that it launched. returned <= ready <= fetched
    are three different moments; the steady state leaves out steps in which something was compiled.

    Args:
        trace: The evidence.
        found: Its dependencies.
    """
    lanes = trace.lanes
    steps = _steps(trace, found)
    steady = _steady_state(steps)
    devices = sorted({(int(r), int(d)) for r, d in zip(lanes.rank, lanes.device, strict=True) if d != ABSENT})
    skipped = [] if steps else [Skipped("/result/steps", "the trace marks no steps")]
    if steady is None:
        skipped.append(Skipped("/result/steady_state", "no step without compilation is marked"))
    return Summary(
        ranks=tuple(rank.rank for rank in trace.ranks),
        devices=tuple(devices),
        steps=steps,
        steady_state=steady,
        event_count=len(trace.events),
        format=trace.format,
        findings=_findings(steps),
        skipped=tuple(skipped),
        notes=found.notes,
    )


def _steps(trace: Trace, found: Dependencies) -> tuple[Step, ...]:
    marks, compiles = trace.marks, _named(trace, _COMPILES, whole=False)
    rows = []
    for i in np.lexsort((marks.rank, marks.step)):
        inside = _inside(trace, int(marks.rank[i]), int(marks.start_ns[i]), int(marks.end_ns[i]))
        start = int(marks.start_ns[i])
        rows.append(
            Step(
                int(marks.step[i]),
                int(marks.rank[i]),
                start,
                _end(trace, found, int(marks.step[i]), int(marks.end_ns[i])) - start,
                _end_of(trace, inside, CALL, first=True),
                _end_of(trace, inside, READY, first=True),
                _end_of(trace, inside, FETCH, first=False),
                bool((inside & compiles).any()),
            )
        )
    return tuple(rows)


def _end(trace: Trace, found: Dependencies, step: int, marked_ns: int) -> int:
    """End of the step's work; of its mark where no work belongs to it."""
    try:
        return in_window(trace, found, step)[0].end_ns
    except TraceflowError:
        return marked_ns


def _inside(trace: Trace, rank: int, start_ns: int, end_ns: int) -> Bool:
    e = trace.events
    mine: Bool = trace.lanes.rank[e.lane] == rank
    return mine & (e.start_ns >= start_ns) & (e.start_ns < end_ns)


def _end_of(trace: Trace, inside: Bool, name: str, *, first: bool) -> int | None:
    """End of the first or last annotation of a name inside a step; work launched after a fetch is awaited again."""
    ends = trace.events.end_ns[inside & _named(trace, (name,), whole=True)]
    return (int(ends.min()) if first else int(ends.max())) if len(ends) else None


def _named(trace: Trace, names: tuple[str, ...], *, whole: bool) -> Bool:
    hit = [text in names if whole else any(name in text for name in names) for text in trace.strings]
    mask: Bool = np.array(hit or [False])[trace.events.name]
    return mask


def _steady_state(steps: tuple[Step, ...]) -> SteadyState | None:
    """Per step the slowest rank counts."""
    slowest: dict[int, int] = {}
    compiled = {step.step for step in steps if step.compiled}
    for step in steps:
        if step.step not in compiled:
            slowest[step.step] = max(slowest.get(step.step, 0), step.duration_ns)
    if not slowest:
        return None
    durations = np.array(list(slowest.values()))
    return SteadyState(len(durations), int(np.median(durations)), int(durations.min()), int(durations.max()))


def _findings(steps: tuple[Step, ...]) -> tuple[Finding, ...]:
    compiled = sorted({step.step for step in steps if step.compiled})
    if not compiled:
        return ()
    return (
        Finding(
            code="TF205",
            severity=Severity.WARNING,
            title=f"{len(compiled)} recorded steps compile; they are left out of the steady state",
            provenance=Provenance.MEASURED,
            suggestion="keep shapes and static arguments constant, or record more warm-up steps",
            evidence={"steps": list(compiled)},
        ),
    )
