"""What a compiled program keeps in memory, and from where to where."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from traceflow.program.buffers import Allocations, BufferEventKind, Buffers, HeapEvents
from traceflow.program.layout import part_of
from traceflow.program.shape import shape_bytes, without_layout
from traceflow.trace.model import ABSENT, Bool, Int32, Int64

if TYPE_CHECKING:
    from traceflow.program.module import HloModule

BEFORE = -1


@dataclass(frozen=True, slots=True)
class LiveRanges:
    """One row per stretch of memory in use, counted in events of the compiler's simulation of the heap.

    A row is live at event i where born <= i < dies. What is there during the whole program is born at `BEFORE` and
    dies at the number of events, where there is none at 1. Rows that share memory are one.
    """

    value: Int32  # row of the module's values that gives it a name
    size_bytes: Int64
    born: Int64
    dies: Int64
    instruction: Int32  # row of the instruction that the program has reached at each event

    def __len__(self) -> int:
        return len(self.value)

    @property
    def persistent(self) -> Bool:
        """The rows that are live during the whole program."""
        stays: Bool = self.born == BEFORE
        return stays

    def live_bytes(self) -> Int64:
        """Bytes in use after each event, shape (events,); one figure where there is no event.

        live(i) = sum of size over rows with born <= i < dies.
        """
        change = np.zeros(max(len(self.instruction), 1) + 1, np.int64)
        np.add.at(change, np.maximum(self.born, 0), self.size_bytes)
        np.add.at(change, self.dies, -self.size_bytes)
        return np.cumsum(change)[:-1]

    def at(self, event: int) -> Int64:
        """Rows that are live after an event, the largest first."""
        rows = np.flatnonzero((self.born <= event) & (self.dies > event))
        return rows[np.argsort(-self.size_bytes[rows], kind="stable")]


def live_ranges(buffers: Buffers, opcode: tuple[str, ...] = ()) -> LiveRanges:
    """Live ranges in the default memory space, by the compiler's buffer assignment and its simulation of the heap.

    Of allocations that the simulation does not touch, parameters, constants and results are there all the time, each
    with the whole allocation. Tables of pointers that live only within the program are not counted. A buffer that
    shares the place of another is part of that one, which is there again if it was freed.

    Args:
        buffers: The buffer assignment, with at most one simulation of the default space.
        opcode: Opcodes of the module's instructions; of values that share an allocation the parameter gives the name.

    Example:
        An argument of 8 bytes, and a temporary of 4 that lives from event 0 to event 1:

        >>> import numpy as np
        >>> from traceflow.program.buffers import Values
        >>> none, no = np.full(2, -1, np.int32), np.zeros(2, bool)
        >>> values = Values(np.array([8, 4]), none, ((), ()), np.zeros(2, int), np.arange(2), np.zeros(2, int))
        >>> places = Allocations(np.array([8, 4]), np.zeros(2, int), np.array([0, -1]), no, no, no, no, no)
        >>> heap = HeapEvents(np.zeros(2, int), np.array([0, 1]), np.array([1, 1]), none, none)
        >>> live_ranges(Buffers(values, places, heap)).live_bytes().tolist()
        [12, 8]
    """
    values, heap = buffers.values, of_default_space(buffers)
    kept = persistent(buffers)
    named = [_name_of(buffers, int(allocation), opcode) for allocation in kept]
    value, born, dies = _simulated(heap)
    end = max(len(heap), 1)
    return LiveRanges(
        np.array([*named, *value], np.int32),
        np.concatenate((buffers.allocations.size_bytes[kept], values.size_bytes[value])),
        np.concatenate((np.full(len(kept), BEFORE), born)),
        np.concatenate((np.full(len(kept), end), np.where(dies == ABSENT, end, dies))),
        _reached(heap),
    )


def of_default_space(buffers: Buffers) -> HeapEvents:
    """The events of the heap that are about the default memory space."""
    heap = buffers.heap
    rows = np.flatnonzero(buffers.values.space[heap.value] == 0)
    return HeapEvents(
        heap.simulation[rows], heap.kind[rows], heap.value[rows], heap.shared_with[rows], heap.instruction[rows]
    )


def persistent(buffers: Buffers) -> Int64:
    """Allocations of the default space that stay for the whole program: rows of `Allocations`."""
    places = buffers.allocations
    simulated = np.zeros(len(places) + 1, bool)
    simulated[buffers.values.allocation[buffers.heap.value]] = True
    return np.flatnonzero(_stays(places) & ~simulated[:-1] & (places.space == 0))


def unsimulated(buffers: Buffers) -> Int64:
    """Allocations of the default space that come and go within the program, when is not told: rows of `Allocations`.

    Tables of pointers are left out.
    """
    places = buffers.allocations
    simulated = np.zeros(len(places) + 1, bool)
    simulated[buffers.values.allocation[buffers.heap.value]] = True
    return np.flatnonzero(temporary(places) & ~places.tuple & ~simulated[:-1] & (places.space == 0))


def temporary(places: Allocations) -> Bool:
    """Allocations that hold neither a parameter nor a constant nor a result."""
    comes_and_goes: Bool = (places.parameter == ABSENT) & ~places.constant & ~places.live_out & ~places.thread_local
    return comes_and_goes


def _stays(places: Allocations) -> Bool:
    stays: Bool = ((places.parameter != ABSENT) | places.constant | places.live_out) & ~places.thread_local
    return stays


def _name_of(buffers: Buffers, allocation: int, opcode: tuple[str, ...]) -> int:
    """The value that an allocation is called by: the parameter or constant in it, else the largest; ABSENT if empty."""
    values = buffers.values
    rows = np.flatnonzero(values.allocation == allocation).tolist()

    def rank(row: int) -> tuple[bool, int, int]:
        instruction = int(values.instruction[row])
        given = instruction != ABSENT and bool(opcode) and opcode[instruction] in {"parameter", "constant"}
        return not given, -int(values.size_bytes[row]), row

    return min(rows, key=rank, default=ABSENT)


def _reached(heap: HeapEvents) -> Int32:
    """The instruction of each event; of a release, which names the one that had allocated, that of the last event."""
    last = np.maximum.accumulate(np.where(heap.kind == BufferEventKind.FREE, 0, np.arange(len(heap))))
    return heap.instruction[last]


def _simulated(heap: HeapEvents) -> tuple[Int64, Int64, Int64]:
    """Value, first event and first event after the end, ABSENT for none, of each stretch that the simulation uses."""
    place: dict[int, int] = {}  # of the value whose memory a value uses
    users: dict[int, int] = {}
    open_row: dict[int, int] = {}
    found: list[list[int]] = []
    for event, (kind, value, other) in enumerate(
        zip(heap.kind.tolist(), heap.value.tolist(), heap.shared_with.tolist(), strict=True)
    ):
        if kind == BufferEventKind.FREE:
            of = place.get(value, value)
            users[of] = users.get(of, 0) - 1
            if users[of] == 0:
                found[open_row.pop(of)][2] = event
            continue
        of = place[value] = other if kind == BufferEventKind.SHARE else value
        if users.get(of, 0) <= 0:
            users[of] = 0
            open_row[of] = len(found)
            found.append([of, event, ABSENT])
        users[of] += 1
    columns = np.array(found, np.int64).reshape(-1, 3)
    return columns[:, 0], columns[:, 1], columns[:, 2]


def value_name(module: HloModule, buffers: Buffers, value: int) -> str:
    """A value as `instruction`, or `instruction{1}` for a part of a tuple."""
    if value == ABSENT or buffers.values.instruction[value] == ABSENT:
        return ""
    index = buffers.values.shape_index[value]
    path = "".join(f"{{{','.join(map(str, index))}}}") if index else ""
    name: str = module.instruction_name[buffers.values.instruction[value]] + path
    return name


def value_shape(module: HloModule, buffers: Buffers, value: int) -> str:
    """The shape of a value with its layout, empty where it is not known."""
    if value == ABSENT or buffers.values.instruction[value] == ABSENT:
        return ""
    shape: str = part_of(module.full_shape[buffers.values.instruction[value]], buffers.values.shape_index[value])
    return shape


def logical_bytes(full_shape: str) -> int | None:
    """Elements times bits per element of an array; None where it is not known, and for a table of pointers."""
    size_bytes = ABSENT if full_shape[:1] in {"", "("} else shape_bytes(without_layout(full_shape))
    return None if size_bytes < 0 else size_bytes
