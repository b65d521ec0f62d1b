"""A window of a trace in which products that are cut into rounds may have run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from traceflow.analyzers.communication import Participant, compute_of
from traceflow.analyzers.dependencies import Dependencies
from traceflow.analyzers.rings.timed import Span, Timed
from traceflow.analyzers.window import Window, in_window
from traceflow.graph import DependencyGraph, SliceKind
from traceflow.intervals import Intervals, union
from traceflow.trace.model import Trace

if TYPE_CHECKING:
    from traceflow.program.module import Programs


@dataclass(frozen=True, slots=True)
class Recorded:
    """A window of a trace."""

    trace: Trace
    programs: Programs
    found: Dependencies
    window: Window
    graph: DependencyGraph
    compute: Mapping[Participant, Intervals]
    _timed: dict[int, Timed] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def of(cls, trace: Trace, programs: Programs, found: Dependencies, step: int | None = None) -> Recorded:
        """A step, or the whole capture.

        Raises:
            TraceflowError: TF104 without work, TF111 without such a step.
        """
        window, graph = in_window(trace, found, step)
        return cls(trace, programs, found, window, graph, compute_of(trace, graph))

    def timed(self, key: int) -> Timed:
        """The executions of one program."""
        if key not in self._timed:
            told = self.trace, self.found.matches, key, self.programs[key], self.window, self.compute
            self._timed[key] = Timed(*told)
        return self._timed[key]


def replayed_saving(graph: DependencyGraph, hidden: Mapping[int, int]) -> int:
    """What replay saves where so much of the transfer of some events is hidden, in ns by row of the event."""
    slices, work_ns = graph.slices, graph.work_ns.copy()
    transfers = np.isin(slices.kind, (SliceKind.TRANSFER, SliceKind.COMMUNICATION)) & np.isin(
        slices.event, list(hidden)
    )
    for at in np.flatnonzero(transfers).tolist():
        work_ns[at] = max(int(work_ns[at]) - hidden[int(slices.event[at])], 0)
    return graph.end_ns - graph.end_of(graph.replay(work_ns=work_ns))


def exposed_of(spans: list[Span], compute: Intervals | None) -> int:
    """How long one of some calls at least was under way while the participant computed nothing."""
    busy = union([span.start_ns for span in spans], [span.end_ns for span in spans])
    return (busy - compute).total_ns if compute else busy.total_ns
