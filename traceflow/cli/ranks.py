"""What the demo says of a step that several processes took together."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.text import Text

from traceflow.report.tables import Rows, printed
from traceflow.report.units import duration_text, share_text, unit_for

if TYPE_CHECKING:
    from rich.console import RenderableType

    from traceflow.analyzers.communication import Communication
    from traceflow.analyzers.critical_path import CriticalPath
    from traceflow.analyzers.stragglers import Straggler, Stragglers
    from traceflow.analyzers.summary import Summary

LAYOUT = "ep2_edp2"
_TITLE = "One train step of a mixture of experts on 4 processes"
_SETTING = "tokens go to their experts within pairs of processes; both pairs hold the same experts"
_LONGEST = 6
_COSTLIEST = 3


@dataclass(frozen=True)
class Explained:
    """A recording of several ranks with one of its steps explained."""

    step: int
    summary: Summary
    path: CriticalPath
    communication: Communication
    stragglers: Stragglers


def told(found: Explained, *, width: int, color: bool) -> str:
    """Step times, the path across ranks, exposed communication and stragglers, and a verdict.

    Args:
        found: What was recorded.
        width: Characters of a line.
        color: Whether to use terminal escapes.
    """
    return printed(_parts(found), width=width, color=color)


def _parts(found: Explained) -> Iterator[RenderableType]:
    yield Text(f"{_TITLE}:", style="bold")
    yield Text(_SETTING)
    yield from _step_times(found.summary)
    yield from _path(found)
    yield from _communication(found.communication)
    yield from _stragglers(found.stragglers.ranking[:_COSTLIEST])
    yield Text("\nVerdict", style="bold")
    sentences = (_where(found), _exposed(found.communication), _split(found.communication), _late(found.stragglers))
    yield Text("\n".join(sentences) + f"\n\n{_worth(len(found.summary.ranks))}\n")


def _step_times(summary: Summary) -> Iterator[RenderableType]:
    unit = unit_for(step.duration_ns for step in summary.steps)
    numbers = sorted({step.step for step in summary.steps})
    times = {(step.step, step.rank): unit.text(step.duration_ns) for step in summary.steps}
    rows = [(str(n), *(times.get((n, rank), "n/a") for rank in summary.ranks)) for n in numbers]
    yield Text(f"\nTime of each step by rank ({unit.name})", style="bold")
    yield Rows(("step", *map(str, summary.ranks)), rows)


def _path(found: Explained) -> Iterator[RenderableType]:
    took = Counter[tuple[int, str, str]]()
    segments = found.path.segments
    for rank, kind, name, duration_ns in zip(
        segments.rank, segments.kind, segments.name, segments.duration_ns, strict=True
    ):
        took[int(rank), str(kind), str(name)] += int(duration_ns)
    longest = took.most_common(_LONGEST)
    unit, whole_ns = unit_for(ns for _, ns in longest), found.path.makespan_ns
    rows = [(str(r), unit.text(ns), share_text(ns, whole_ns), kind, name) for (r, kind, name), ns in longest]
    yield Text(f"\nThe longest on the critical path of step {found.step} ({unit.name})", style="bold")
    yield Rows(("rank", "took", "share", "kind", "name"), rows)


def _communication(communication: Communication) -> Iterator[RenderableType]:
    split = Counter[tuple[int, str]]()
    for call in (call for collective in communication.collectives for call in collective.calls):
        split[call.participant[0], "wait"] += call.wait_ns
        split[call.participant[0], "transfer"] += call.transfer_ns
    figures = [
        (
            p.participant[0],
            p.compute_ns,
            p.busy_ns,
            p.exposed_ns,
            split[p.participant[0], "wait"],
            split[p.participant[0], "transfer"],
        )
        for p in communication.participants
    ]
    unit = unit_for(ns for _, *row in figures for ns in row)
    yield Text(f"\nComputation and communication in that step ({unit.name})", style="bold")
    headings = ("rank", "computation", "communication", "exposed", "waiting", "transferring")
    yield Rows(headings, [(str(rank), *map(unit.text, row)) for rank, *row in figures])


def _stragglers(costliest: tuple[Straggler, ...]) -> Iterator[RenderableType]:
    if not costliest:
        return
    unit = unit_for(ns for row in costliest for ns in (row.cost_ns, row.duration_ns, row.peer_ns))
    rows = [
        (str(row.rank), *map(unit.text, (row.cost_ns, row.duration_ns, row.peer_ns)), row.name) for row in costliest
    ]
    yield Text(f"\nLate by their own doing, as replay tells ({unit.name})", style="bold")
    yield Rows(("rank", "cost", "took", "elsewhere", "name"), rows)


def _where(found: Explained) -> str:
    """On which ranks the path ran."""
    on = Counter[int]()
    for rank, duration_ns in zip(found.path.segments.rank, found.path.segments.duration_ns, strict=True):
        on[int(rank)] += int(duration_ns)
    told = ", ".join(f"{share_text(ns, found.path.makespan_ns)} on rank {rank}" for rank, ns in on.most_common())
    return f"The critical path of {duration_text(found.path.makespan_ns)} ran {told}."


def _exposed(communication: Communication) -> str:
    most = max(communication.participants, key=lambda p: p.exposed_ns)
    share = share_text(most.exposed_ns, most.window_ns)
    return f"Rank {most.participant[0]} had most exposed communication: {share} of the step."


def _split(communication: Communication) -> str:
    """How much of all time in collectives was waiting for others."""
    calls = [call for collective in communication.collectives for call in collective.calls]
    whole_ns = sum(call.wait_ns + call.transfer_ns for call in calls)
    told = f"Of all time in collectives, {share_text(sum(call.wait_ns for call in calls), whole_ns)} was waiting for others."
    unmatched = len(communication.unmatched)
    return f"{told} {unmatched} calls are not in it: {communication.unmatched[0].reason}." if unmatched else told


def _late(stragglers: Stragglers) -> str:
    if not stragglers.ranking:
        return "No rank was late by its own doing."
    first = stragglers.ranking[0]
    return f"Rank {first.rank} cost most by its own doing: {duration_text(first.cost_ns)}, in {first.name}."


def _worth(processes: int) -> str:
    return (
        f"These {processes} processes share {os.cpu_count()} cores of this host and talk over loopback. Order and"
        " dependencies are real; the times are no evidence about accelerators or networks."
    )
