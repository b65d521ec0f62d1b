"""What a capture holds, and how long its steps took: returned, ready, fetched; steady state apart from warm-up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np

from traceflow.analyzers.dependencies import Dependencies
from traceflow.analyzers.join import Join, join
from traceflow.analyzers.window import step_ends
from traceflow.result import Finding, Json, Note, Provenance, Severity, Shown, Skipped
from traceflow.trace.model import ABSENT, Trace

if TYPE_CHECKING:
    import pandas as pd

    from traceflow.program.module import Programs

CALL, READY, FETCH = "traceflow.call", "traceflow.ready", "traceflow.fetch"
_COMPILES = (
    "backend_compile",
    "PjRtCompile",
    "XlaCompile",
    "cpu_compiler",
    "Compile (",
    "::Compile",
    "_compile.compile_inner",  # the lookup in the cache of TorchDynamo is in every step
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
    """Step time over the steps that all ranks mark and in which nothing was compiled, in ns.

    A step lasts from its mark to the end of the work that it launched. Where the host runs ahead, steps overlap, and
    the time that one more step costs is the period: the median time from the start of a step to the next one's.
    """

    steps: int
    median_ns: int
    minimum_ns: int
    maximum_ns: int
    period_ns: int | None = None  # None with fewer than two steps that follow one another

    def to_dict(self) -> dict[str, Json]:
        """The `steady_state` object."""
        return {
            "period_ns": self.period_ns,
            "steps": self.steps,
            "median_ns": self.median_ns,
            "minimum_ns": self.minimum_ns,
            "maximum_ns": self.maximum_ns,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary(Shown):
    """Ranks, devices, steps and size of a capture."""

    kind: ClassVar[str] = "summary"
    ranks: tuple[int, ...]
    devices: tuple[tuple[int, int], ...]  # (rank, device)
    steps: tuple[Step, ...]
    steady_state: SteadyState | None
    event_count: int
    format: str
    join: Join | None = None  # how far events are joined to programs; None where none was executed
    findings: tuple[Finding, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    notes: tuple[Note, ...] = ()

    def to_dict(self) -> dict[str, Json]:
        """The `result` object of the JSON contract."""
        result: dict[str, Json] = {
            "ranks": list(self.ranks),
            "devices": [{"rank": rank, "device": device} for rank, device in self.devices],
            "steps": [step.to_dict() for step in self.steps],
            "steady_state": None if self.steady_state is None else self.steady_state.to_dict(),
            "event_count": self.event_count,
            "format": self.format,
        }
        if self.join is not None:
            result["programs"] = self.join.to_dict()
        return result

    def to_pandas(self) -> pd.DataFrame:
        """One row per step and rank."""
        import pandas as pd

        return pd.DataFrame([step.to_dict() for step in self.steps])


def summary(trace: Trace, found: Dependencies, programs: Programs | None = None) -> Summary:
    """Count what a capture holds and time its steps.

    A step's duration runs from its mark to the end of the work that it launched. returned <= ready <= fetched
    are three different moments; the steady state leaves out steps in which something was compiled, and those that
    only some of the ranks with steps mark: on the others, the recording began or ended within them.

    Args:
        trace: The evidence.
        found: Its dependencies.
        programs: Compiled programs, by the keys that the trace uses; without them, what they explain is not told.
    """
    lanes = trace.lanes
    steps = _steps(trace, found)
    steady = _steady_state(steps)
    devices = sorted({(int(r), int(d)) for r, d in zip(lanes.rank, lanes.device, strict=True) if d != ABSENT})
    skipped = [] if steps else [Skipped("/result/steps", "the trace marks no steps")]
    skipped += [
        Skipped(f"/result/steps/*/{moment}", "nothing in the trace marks this moment")
        for moment in ("returned_ns", "ready_ns", "fetched_ns")
        if any(getattr(step, moment) is None for step in steps)
    ]
    if steady is not None and steady.period_ns is None:
        skipped.append(Skipped("/result/steady_state/period_ns", "no two steady steps follow one another"))
    if steady is None:
        skipped.append(Skipped("/result/steady_state", "no step without compilation is marked on all ranks"))
    return Summary(
        ranks=tuple(rank.rank for rank in trace.ranks),
        devices=tuple(devices),
        steps=steps,
        steady_state=steady,
        event_count=len(trace.events),
        format=trace.format,
        join=join(trace, found, programs) if programs is not None and len(trace.hlo.event) else None,
        findings=_findings(steps),
        skipped=tuple(skipped),
        notes=found.notes,
    )


def _steps(trace: Trace, found: Dependencies) -> tuple[Step, ...]:
    marks, ends_ns, told = trace.marks, step_ends(trace, found), _told(trace)
    rows = []
    for i in np.lexsort((marks.rank, marks.step)):
        step, rank, start_ns, marked_ns = (int(c[i]) for c in (marks.step, marks.rank, marks.start_ns, marks.end_ns))
        inside = [row for row in told if row.rank == rank and start_ns <= row.start_ns < marked_ns]
        calls, awaits, fetches = ([row.end_ns for row in inside if row.name == name] for name in (CALL, READY, FETCH))
        rows.append(
            Step(
                step,
                rank,
                start_ns,
                ends_ns.get(step, marked_ns) - start_ns,
                min(calls, default=None),
                min(awaits, default=None),  # work launched after a fetch is awaited a second time
                max(fetches, default=None),
                any(row.name not in (CALL, READY, FETCH) for row in inside),
            )
        )
    return tuple(rows)


class _Told(NamedTuple):
    """An event whose name tells something of its step: an annotation of the recorder, or a compilation."""

    name: str
    rank: int
    start_ns: int
    end_ns: int


def _told(trace: Trace) -> list[_Told]:
    e = trace.events
    tells = [text in (CALL, READY, FETCH) or any(word in text for word in _COMPILES) for text in trace.strings]
    rows = np.flatnonzero(np.array(tells or [False])[e.name])
    return [
        _Told(trace.strings[e.name[row]], int(trace.lanes.rank[e.lane[row]]), int(e.start_ns[row]), int(e.end_ns[row]))
        for row in rows.tolist()
    ]


def steady_steps(steps: tuple[Step, ...]) -> dict[int, tuple[int, int]]:
    """Steps that all ranks mark and in which nothing was compiled: when the first rank began, how long the slowest took.

    Args:
        steps: As a summary has them.

    Returns:
        By step, (start, duration) in ns.
    """
    steady: dict[int, tuple[int, int]] = {}
    disturbed = {step.step for step in steps if step.compiled} | _partial(steps)
    for step in steps:
        if step.step not in disturbed:
            start_ns, duration_ns = steady.get(step.step, (step.start_ns, 0))
            steady[step.step] = min(start_ns, step.start_ns), max(duration_ns, step.duration_ns)
    return steady


def _steady_state(steps: tuple[Step, ...]) -> SteadyState | None:
    steady = steady_steps(steps)
    if not steady:
        return None
    durations = np.array([duration_ns for _, duration_ns in steady.values()])
    return SteadyState(
        len(durations),
        int(np.median(durations)),
        int(durations.min()),
        int(durations.max()),
        _period_ns({step: start_ns for step, (start_ns, _) in steady.items()}),
    )


def _partial(steps: tuple[Step, ...]) -> set[int]:
    """Steps that are not marked on every rank that marks any."""
    ranks: dict[int, set[int]] = {}
    for step in steps:
        ranks.setdefault(step.step, set()).add(step.rank)
    everywhere = set().union(*ranks.values())
    return {step for step, marked in ranks.items() if marked != everywhere}


def _period_ns(starts_ns: Mapping[int, int]) -> int | None:
    """Median time between the starts of steady steps that follow one another."""
    periods = [starts_ns[step + 1] - start for step, start in starts_ns.items() if step + 1 in starts_ns]
    return int(np.median(periods)) if periods else None


def _findings(steps: tuple[Step, ...]) -> tuple[Finding, ...]:
    compiled = sorted({step.step for step in steps if step.compiled})
    if not compiled:
        return ()
    return (
        Finding(
            code="TF205",
            severity=Severity.WARNING,
            title=(
                f"{len(compiled)} recorded steps compile; they are left out of the steady state"
                if len(compiled) > 1
                else "1 recorded step compiles; it is left out of the steady state"
            ),
            provenance=Provenance.MEASURED,
            suggestion="keep shapes and static arguments constant, or record more warm-up steps",
            evidence={"steps": list(compiled)},
        ),
    )
