"""Pieces of device work with what they cost: instructions of programs, operators of PyTorch, and plain kernels."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from traceflow.graph import NO_EVENT, DependencyGraph, SliceKind
from traceflow.program.cost import Cost
from traceflow.result import Provenance
from traceflow.trace.model import Bool, Int64, Rows, Trace

_SPLIT = (SliceKind.TRANSFER, SliceKind.ARRIVED)


class WorkKind(StrEnum):
    """What a piece of work is known as."""

    INSTRUCTION = "instruction"  # of a compiled program
    OPERATOR = "operator"  # of PyTorch, with the kernels that it launched
    COLLECTIVE = "collective"
    KERNEL = "kernel"  # of which only the name is known
    COPY = "copy"


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """All executions of one operation in a window, on all devices."""

    kind: WorkKind
    name: str
    detail: str = ""  # opcode or shapes
    program: str | None = None
    source: str | None = None
    executions: int
    cost: Cost  # of one execution
    measured_ns: int  # of all executions
    recomputed: bool | None  # whether it computes again what was there before; None where that is not told
    waits: bool = False  # whether the measured time holds waiting that could not be told apart
    provenance: Provenance = Provenance.DERIVED

    @property
    def total(self) -> Cost:
        """What all executions took together."""
        return self.cost * self.executions


def measured_ns(trace: Trace, graph: DependencyGraph, events: Rows) -> tuple[Int64, Bool]:
    """How long each event took, and whether that was split: a collective then took its transfer, without the wait."""
    length: Int64 = trace.events.end_ns[events] - trace.events.start_ns[events]
    slices = graph.slices
    split = np.isin(slices.kind, _SPLIT) & (slices.event != NO_EVENT)
    is_split = np.zeros(len(trace.events), bool)
    is_split[slices.event[split]] = True
    transfer = split & (slices.kind == SliceKind.TRANSFER)
    took = np.zeros(len(trace.events), np.int64)
    np.add.at(took, slices.event[transfer], (slices.end_ns - slices.start_ns)[transfer])
    return np.where(is_split[events], took[events], length), is_split[events]


def in_graph(trace: Trace, graph: DependencyGraph) -> Rows:
    """The events that a graph, which may be that of a step, counts."""
    held = np.zeros(len(trace.events), bool)
    event = graph.slices.event[graph.counted]
    held[event[event != NO_EVENT]] = True
    return np.flatnonzero(held)


def merged(work: Iterable[Work]) -> tuple[Work, ...]:
    """One row for what is the same work, longest first."""
    rows: dict[tuple[object, ...], Work] = {}
    for one in work:
        key = one.kind, one.name, one.detail, one.program, one.recomputed, one.waits, str(one.cost)
        known = rows.get(key)
        rows[key] = (
            one
            if known is None
            else replace(
                known, executions=known.executions + one.executions, measured_ns=known.measured_ns + one.measured_ns
            )
        )
    return tuple(sorted(rows.values(), key=lambda one: (-one.measured_ns, one.kind, one.name, one.detail)))
