"""The join of trace and programs: which instruction an event executed, when, and where that was written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from traceflow.analyzers.dependencies import Dependencies
from traceflow.graph import NO_EVENT
from traceflow.result import Json
from traceflow.trace.model import ABSENT, Bool, Int64, Rows, Text, Trace

if TYPE_CHECKING:
    from traceflow.program.module import HloModule, Programs


@dataclass(frozen=True, slots=True)
class Join:
    """How much of the time of the devices is known by instruction and by line.

    Times are self times of events on devices, waits included, in ns: `joined_ns` of those whose instruction is in a
    program, `named_ns` of those that name one, `sourced_ns` of those joined to a line outside the framework.
    """

    modules: int
    instructions: int  # of all modules
    device_ns: int
    named_ns: int
    joined_ns: int
    sourced_ns: int

    @property
    def joined_share(self) -> float | None:
        """Of the device time, None where there is none."""
        return self.joined_ns / self.device_ns if self.device_ns else None

    @property
    def sourced_share(self) -> float | None:
        """Of the joined time, None where there is none."""
        return self.sourced_ns / self.joined_ns if self.joined_ns else None

    def to_dict(self) -> dict[str, Json]:
        """The `programs` object of a summary."""
        return {
            "modules": self.modules,
            "instructions": self.instructions,
            "device_ns": self.device_ns,
            "named_ns": self.named_ns,
            "joined_ns": self.joined_ns,
            "sourced_ns": self.sourced_ns,
            "joined_share": self.joined_share,
            "sourced_share": self.sourced_share,
        }


@dataclass(frozen=True, slots=True)
class Executions:
    """One row per row of `Trace.hlo`: which time an instruction was executed."""

    launch: Int64  # how many runs of the program began on the device before
    occurrence: Int64  # how often the run executed the instruction before, loops included

    def __len__(self) -> int:
        return len(self.launch)


@dataclass(frozen=True, slots=True)
class Written:
    """What the programs tell of events, None where they tell nothing."""

    operation: Text  # opcode with what it contains: "fusion(dot, add)"
    scope: Text  # named scopes and transformations, such as "jit(step)/transpose(jvp())/router/psum"
    source: Text  # "file:line"


def join(trace: Trace, found: Dependencies, programs: Programs) -> Join:
    """Measure how far events are joined to instructions, and these to lines of the user's program.

    Args:
        trace: The evidence.
        found: Its dependencies, whose slices are the self times of events.
        programs: By the keys that `trace.hlo` uses.
    """
    slices = found.graph.slices
    rows = np.flatnonzero(slices.event != NO_EVENT)
    rows = rows[trace.lanes.device[slices.lane[rows]] != ABSENT]
    event, duration_ns = slices.event[rows], (slices.end_ns - slices.start_ns)[rows]
    at = _hlo_rows(trace)[event]
    named = at != ABSENT
    joined = named & (np.append(trace.hlo.instruction, ABSENT)[at] != ABSENT)
    sourced = joined & np.append(_of_instructions(trace, programs, _by_user, False), False)[at].astype(bool)
    return Join(
        modules=len(programs),
        instructions=sum(map(len, programs.values())),
        device_ns=int(duration_ns.sum()),
        named_ns=int(duration_ns[named].sum()),
        joined_ns=int(duration_ns[joined].sum()),
        sourced_ns=int(duration_ns[sourced].sum()),
    )


def written(trace: Trace, programs: Programs, event: Rows) -> Written:
    """What the programs tell of some events.

    Args:
        trace: The evidence.
        programs: By the keys that `trace.hlo` uses.
        event: Rows of events.
    """
    at = _hlo_rows(trace)[event]
    columns = (
        np.append(_of_instructions(trace, programs, column, None, only=at), [None])[at]
        for column in (_operations, _scopes, _sources)
    )
    return Written(*columns)


def executions(trace: Trace) -> Executions:
    """Number the launches of each program on each device, and the executions of each instruction within a launch.

    Several kernels of one instruction are one execution of it: kernels of one name are counted, not kernels.
    """
    hlo, e = trace.hlo, trace.events
    lane, start_ns = e.lane[hlo.event], e.start_ns[hlo.event]
    place = _codes(trace.lanes.rank[lane], trace.lanes.device[lane], hlo.program)
    run = _codes(place, hlo.run)
    begun = np.full(int(run.max(initial=-1)) + 1, np.iinfo(np.int64).max)
    np.minimum.at(begun, run, start_ns)
    order = np.lexsort((run, begun[run]))
    first = np.unique(run[order], return_index=True)[1]
    leaders = order[np.sort(first)]
    ordinal = np.empty(len(begun), np.int64)
    ordinal[run[leaders]] = _ordinals(place[leaders])
    kernel = _codes(run, hlo.instruction, e.name[hlo.event])
    by_time = np.argsort(start_ns, kind="stable")
    occurrence = np.empty(len(run), np.int64)
    occurrence[by_time] = _ordinals(kernel[by_time])
    return Executions(ordinal[run], occurrence)


def _codes(*columns: Rows) -> Int64:
    """Numbers that are equal where all columns are."""
    return np.unique(np.column_stack(columns), axis=0, return_inverse=True)[1].ravel().astype(np.int64)


def _ordinals(codes: Int64) -> Int64:
    """How many equal ones come before each."""
    order = np.argsort(codes, kind="stable")
    first = np.searchsorted(codes[order], codes[order])
    found = np.empty(len(codes), np.int64)
    found[order] = np.arange(len(codes)) - first
    return found


def _hlo_rows(trace: Trace) -> Int64:
    """The row of `Trace.hlo` of each event, ABSENT where it has none."""
    rows = np.full(len(trace.events), ABSENT, np.int64)
    rows[trace.hlo.event] = np.arange(len(trace.hlo.event))
    return rows


def _of_instructions(
    trace: Trace,
    programs: Programs,
    column: Callable[[HloModule, Rows], Sequence[object]],
    missing: object,
    only: Rows | None = None,
) -> Text:
    """A column of the programs for each row of `Trace.hlo`, or only for some of them."""
    hlo = trace.hlo
    told = np.full(len(hlo.event), missing, object)
    wanted: Bool = (hlo.instruction != ABSENT) & np.isin(hlo.program, list(programs))
    if only is not None:
        wanted &= np.isin(np.arange(len(hlo.event)), only)
    for key in np.unique(hlo.program[wanted]).tolist():
        rows = np.flatnonzero(wanted & (hlo.program == key))
        instructions, where = np.unique(hlo.instruction[rows], return_inverse=True)
        values = np.empty(len(instructions), object)
        values[:] = column(programs[key], instructions)
        told[rows] = values[where]
    return told


def _operations(module: HloModule, rows: Rows) -> list[object]:
    from traceflow.program.description import described

    return [described(module, row) for row in rows.tolist()]


def _scopes(module: HloModule, rows: Rows) -> list[object]:
    return [module.operation_name[row] or None for row in rows]


def _sources(module: HloModule, rows: Rows) -> list[object]:
    return [module.source[row] or None for row in rows]


def _by_user(module: HloModule, rows: Rows) -> list[object]:
    from traceflow.program.frames import is_framework

    return [bool(module.source[row]) and not is_framework(module.source[row]) for row in rows]
