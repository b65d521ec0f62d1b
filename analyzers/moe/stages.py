"""The stages of a mixture of experts, by the named scopes that its work lies in."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from traceflow.analyzers.dependencies import Dependencies
from traceflow.analyzers.window import step_of_events
from traceflow.graph import NO_EVENT, DependencyGraph, EdgeKind
from traceflow.intervals import union
from traceflow.result import Json
from traceflow.trace.model import ABSENT, Bool, Int64, Kind, LaneKind, Trace

if TYPE_CHECKING:
    from traceflow.program.module import Programs

STAGES = (
    "route",
    "preprocess",
    "permute",
    "dispatch",
    "etp_gather",
    "sort",
    "experts",
    "unsort",
    "etp_scatter",
    "combine",
    "unpermute",
    "shared_expert",
)
"""In the order in which a forward pass goes through them; the shared expert beside them."""

ROW_STAGES = ("sort", "experts", "unsort")
"""Those whose work grows with the rows that a participant received."""

_ALIASES = {
    "router": "route",
    "routing": "route",
    "dispatch_preprocess": "preprocess",
    "token_dispatch": "dispatch",
    "routed_experts": "experts",
    "token_combine": "combine",
    "shared_experts": "shared_expert",
}
_BACKWARD = " backward"
_NAMES = {**{name: code for code, name in enumerate(STAGES)}, **{a: STAGES.index(name) for a, name in _ALIASES.items()}}
_SCOPE = re.compile(rf"(?<![\w-])({'|'.join(sorted(_NAMES, key=len, reverse=True))})(?![\w-])")


@dataclass(frozen=True, slots=True)
class Staged:
    """The stage of each event, as columns [events]; ABSENT outside of all."""

    stage: Int64  # place in `STAGES`
    backward: Bool
    annotation: Int64  # row of the annotation around it, or of itself; ABSENT where an instruction tells the stage
    step: Int64


@dataclass(frozen=True, slots=True)
class StageTime:
    """What one participant spent in one stage, in one direction.

    `duration_ns` is the length of the union of its annotations on a host without devices, waits included, else of its
    work on the device. `work_ns` is the work of its slices, without waits, on whatever thread; `path_ns` of it lies on
    the critical path.
    """

    stage: str
    direction: str
    rank: int
    device: int | None
    duration_ns: int
    work_ns: int
    path_ns: int

    def to_dict(self) -> dict[str, Json]:
        """A row of `stages`."""
        return {
            "stage": self.stage,
            "direction": self.direction,
            "rank": self.rank,
            "device": self.device,
            "duration_ns": self.duration_ns,
            "work_ns": self.work_ns,
            "path_ns": self.path_ns,
        }


def staged(trace: Trace, found: Dependencies, programs: Programs) -> Staged:
    """The stage of every event: of the innermost annotation that names one, or of the scope of an instruction.

    Device work belongs to the stage of the call that launched it, and a collective that another thread executes to
    that of the operator that issued it. Backward is what an annotation `NAME backward`, or a scope in `transpose(...)`,
    says.

    Args:
        trace: The evidence.
        found: Its dependencies, for the calls that launched work.
        programs: What tells the scopes of instructions.
    """
    from traceflow.analyzers.dependencies._sweep import enclosing

    e, codes = trace.events, np.array([_named(text) for text in trace.strings] or [ABSENT])
    annotates = (codes[e.name] != ABSENT) & (e.kind == Kind.HOST) & (trace.lanes.kind[e.lane] == LaneKind.THREAD)
    around = enclosing(e.start_ns, e.end_ns, e.lane, annotates)
    around[annotates] = np.flatnonzero(annotates)
    called = found.launch_call >= 0
    around[called] = around[found.launch_call[called]]
    issued = np.isin(trace.flows.target, trace.communications.event)
    target, source = trace.flows.target[issued], trace.flows.source[issued]
    around[target] = np.where(around[target] >= 0, around[target], around[source])
    code = np.where(around >= 0, codes[e.name[around]], ABSENT)
    _from_scopes(trace, programs, code)
    return Staged(
        np.where(code == ABSENT, ABSENT, code >> 1),
        (code & 1).astype(bool) & (code != ABSENT),
        around,
        step_of_events(trace, found),
    )


def _named(text: str) -> int:
    """Twice the stage that an annotation names, plus one for backward; ABSENT for none.

    Example:
        >>> _named("dispatch backward"), _named("router"), _named("aten::sort")
        (7, 0, -1)
    """
    stage = _NAMES.get(text.removesuffix(_BACKWARD))
    return ABSENT if stage is None else 2 * stage + text.endswith(_BACKWARD)


def _scoped(name: str) -> int:
    """The same for the scope of an instruction, whose innermost stage counts.

    Example:
        >>> _scoped("jit(train)/transpose(jvp(dispatch))/scatter-add"), _scoped("jvp(dispatch)/jit(argsort)/sort")
        (7, 6)
    """
    *scopes, _ = name.rpartition("/")  # the last part is the operation
    inside = _SCOPE.findall(scopes[0])
    return 2 * _NAMES[inside[-1]] + ("transpose(" in name) if inside else ABSENT


def _from_scopes(trace: Trace, programs: Programs, code: Int64) -> None:
    """Fill in the stage of events that execute an instruction of a known program."""
    hlo = trace.hlo
    for key, module in programs.items():
        rows = np.flatnonzero((hlo.program == key) & (hlo.instruction >= 0))
        of = np.array([_scoped(name) for name in module.operation_name] or [ABSENT])
        events = hlo.event[rows]
        code[events] = np.where(code[events] == ABSENT, of[hlo.instruction[rows]], code[events])


def stage_times(trace: Trace, of: Staged, graph: DependencyGraph) -> tuple[StageTime, ...]:
    """What each participant spent in each stage within the window of a graph."""
    e, lanes = trace.events, trace.lanes
    on_path = path_ns(graph)
    with_device = np.unique(lanes.rank[lanes.device != ABSENT])
    on_host = (lanes.device == ABSENT)[e.lane]
    counts = (of.stage != ABSENT) & (e.end_ns > graph.start_ns) & (e.start_ns < graph.end_ns)
    counts &= np.where(on_host, ~np.isin(lanes.rank[e.lane], with_device), True)
    shown = counts & np.where(on_host, of.annotation == np.arange(len(e)), True)
    event = graph.slices.event
    mine = np.flatnonzero((event != NO_EVENT) & np.append(counts, False)[event])
    times = []
    for key, rows in _groups(trace, of, np.flatnonzero(shown)):
        rank, device, stage, backward = key
        here = e.lane[event[mine]]
        same = (lanes.rank[here] == rank) & (lanes.device[here] == device)
        same &= (of.stage[event[mine]] == stage) & (of.backward[event[mine]] == bool(backward))
        parts = mine[same]
        times.append(
            StageTime(
                STAGES[stage],
                "backward" if backward else "forward",
                rank,
                None if device == ABSENT else device,
                _covered_ns(np.maximum(e.start_ns[rows], graph.start_ns), np.minimum(e.end_ns[rows], graph.end_ns)),
                int(graph.work_ns[parts].sum()),
                int(on_path[parts].sum()),
            )
        )
    return tuple(sorted(times, key=lambda t: (t.direction == "backward", STAGES.index(t.stage), t.rank, t.device or 0)))


def _groups(trace: Trace, of: Staged, rows: Int64) -> Iterator[tuple[tuple[int, int, int, int], Int64]]:
    """Events by (rank, device, stage, backward)."""
    lane = trace.events.lane[rows]
    keys = np.column_stack((trace.lanes.rank[lane], trace.lanes.device[lane], of.stage[rows], of.backward[rows]))
    distinct, which = np.unique(keys, axis=0, return_inverse=True)
    for i, key in enumerate(distinct.tolist()):
        yield tuple(key), rows[which.ravel() == i]


def _covered_ns(start_ns: Int64, end_ns: Int64) -> int:
    return union(start_ns, end_ns).total_ns


def path_ns(graph: DependencyGraph) -> Int64:
    """How much of the work of each slice lies on the critical path, [slices]; lags belong to no slice."""
    vertex = graph.path().astype(np.int64)
    binding, row = graph.binding[vertex], vertex >> 1
    works = (binding >= 0) & (graph.kind[binding] == EdgeKind.SELF) & (graph.work_ns[row] > 0)
    on_path = np.zeros(len(graph.slices), np.int64)
    on_path[row[works]] = graph.work_ns[row[works]]
    return on_path


def host_waits(trace: Trace, of: Staged, graph: DependencyGraph) -> Bool:
    """Calls in the window that make the host wait for the device inside a stage around the exchange, [events]."""
    inside = np.isin(
        of.stage, [STAGES.index(name) for name in ("preprocess", "permute", "dispatch", "sort", "combine")]
    )
    in_window = (trace.events.start_ns >= graph.start_ns) & (trace.events.start_ns < graph.end_ns)
    waits: Bool = inside & in_window & (trace.events.kind == Kind.WAIT)
    return waits
