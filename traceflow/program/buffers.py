"""Where a compiled program keeps its values: logical buffers, the allocations they share, and when they live.

Source: XLA's `hlo.proto`, `BufferAssignmentProto`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np

from traceflow.trace.model import ABSENT, Bool, Int8, Int32, Int64


class BufferEventKind(IntEnum):
    """What happens to a buffer in the compiler's simulation of the heap."""

    ALLOCATE = 0
    FREE = 1
    SHARE = 2  # the buffer takes the place of another, which stays until both are freed


@dataclass(frozen=True, slots=True)
class Values:
    """One row per logical buffer: what one instruction produces, or one part of its tuple."""

    size_bytes: Int64
    instruction: Int32  # row in the module's instructions, ABSENT where it has none of the name
    shape_index: tuple[tuple[int, ...], ...]  # path into the tuple, () for a whole value
    space: Int64  # memory space ("color"), 0 is the default one
    allocation: Int32  # row of `Allocations`, ABSENT where none was assigned
    offset_bytes: Int64  # within the allocation

    def __len__(self) -> int:
        return len(self.size_bytes)


@dataclass(frozen=True, slots=True)
class Allocations:
    """One row per contiguous piece of memory, which several values may use one after another."""

    size_bytes: Int64
    space: Int64
    parameter: Int32  # number of the entry parameter that it holds, else ABSENT
    constant: Bool
    live_out: Bool  # may hold a result of the program
    thread_local: Bool  # lives only within a call, on the stack
    tuple: Bool  # a table of pointers
    donated: Bool  # a parameter whose memory a result takes over

    def __len__(self) -> int:
        return len(self.size_bytes)


@dataclass(frozen=True, slots=True)
class HeapEvents:
    """What a simulation of the heap did, in order; several simulations follow one another."""

    simulation: Int32  # which simulation, from 0
    kind: Int8  # `BufferEventKind`
    value: Int32  # row of `Values`
    shared_with: Int32  # row of the value whose place it takes, ABSENT unless `SHARE`
    instruction: Int32  # row in the module's instructions, ABSENT where it has none of the name

    def __len__(self) -> int:
        return len(self.kind)


@dataclass(frozen=True, slots=True)
class Buffers:
    """The buffer assignment of one module."""

    values: Values
    allocations: Allocations
    heap: HeapEvents  # without rows where the compiler recorded none, as in a live executable on CPU


def buffers_of(assignment: Any, named: Mapping[str, int], numbered: Mapping[int, int]) -> Buffers:
    """The columns of a `BufferAssignmentProto`.

    Args:
        assignment: The message.
        named: Rows of the module's instructions by name, which events of the heap tell.
        numbered: The same by id, which is all that some versions of XLA tell of a logical buffer.

    Raises:
        KeyError: An event or an assignment names a buffer that does not exist.
    """
    logical = list(assignment.logical_buffers)
    rows = {buffer.id: row for row, buffer in enumerate(logical)}
    return Buffers(
        _values(logical, rows, assignment.buffer_allocations, named, numbered),
        _allocations(assignment.buffer_allocations),
        _heap(assignment.heap_simulator_traces, rows, named),
    )


def _values(
    logical: list[Any], rows: Mapping[int, int], allocations: Any, named: Mapping[str, int], numbered: Mapping[int, int]
) -> Values:
    places = [buffer.defined_at for buffer in logical]
    allocation = np.full(len(logical), ABSENT, np.int32)
    offset = np.full(len(logical), ABSENT, np.int64)
    for number, one in enumerate(allocations):
        for assigned in one.assigned:
            row = rows[assigned.logical_buffer_id]
            allocation[row], offset[row] = number, assigned.offset
    return Values(
        np.array([buffer.size for buffer in logical], np.int64),
        np.array(
            [named.get(place.instruction_name, numbered.get(place.instruction_id, ABSENT)) for place in places],
            np.int32,
        ),
        tuple(tuple(place.shape_index) for place in places),
        np.array([buffer.color for buffer in logical], np.int64),
        allocation,
        offset,
    )


def _allocations(allocations: Any) -> Allocations:
    return Allocations(
        np.array([one.size for one in allocations], np.int64),
        np.array([one.color for one in allocations], np.int64),
        np.array(
            [one.parameter_number if one.is_entry_computation_parameter else ABSENT for one in allocations], np.int32
        ),
        np.array([one.is_constant for one in allocations], np.bool_),
        np.array([one.maybe_live_out for one in allocations], np.bool_),
        np.array([one.is_thread_local for one in allocations], np.bool_),
        np.array([one.is_tuple for one in allocations], np.bool_),
        np.array([one.is_parameter_aliased_with_output for one in allocations], np.bool_),
    )


def _heap(simulations: Any, rows: Mapping[int, int], named: Mapping[str, int]) -> HeapEvents:
    events = [event for simulation in simulations for event in simulation.events]
    lengths = [len(simulation.events) for simulation in simulations]
    shares = [event.kind == BufferEventKind.SHARE for event in events]
    return HeapEvents(
        np.repeat(np.arange(len(lengths), dtype=np.int32), lengths),
        np.array([event.kind for event in events], np.int8),
        np.array([rows[event.buffer_id] for event in events], np.int32),
        np.array(
            [rows[e.share_with_canonical_id] if share else ABSENT for e, share in zip(events, shares, strict=True)],
            np.int32,
        ),
        np.array([named.get(event.instruction_name, ABSENT) for event in events], np.int32),
    )
