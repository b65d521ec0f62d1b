"""What a program would have in memory at most by its schedule, where the compiler's own simulation is not at hand."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from traceflow.program.layout import arrays_of
from traceflow.program.module import HloModule, base_opcode
from traceflow.trace.model import Int64

# Their results are other names for their operands, or parts of them.
_ALIASES = frozenset({
    "add-dependency", "bitcast", "domain", "get-tuple-element", "optimization-barrier", "tuple", "while",
})  # fmt: skip
_CALLS = frozenset({"call", "conditional", "while"})
_STAYS = frozenset({"constant", "parameter"})
_NOTHING: frozenset[int] = frozenset()


def scheduled_peak_bytes(module: HloModule) -> int | None:
    """Most bytes that values take at once when a program runs in the order of its schedule.

    A value lives from the instruction that makes it to the last one that uses it; arguments, constants and results
    are there all the time, and what a called computation needs inside comes on top. Each value takes its layout's
    size. What is updated in place counts twice, so that the figure tends to be too high.

    Args:
        module: The program.

    Returns:
        The bytes, None without a schedule of the entry computation.
    """
    rows = _rows_of(module, module.entry)
    if not len(rows) or module.schedule[rows].min() < 0:
        return None
    walk = _Walk(module)
    results = walk.holders(rows.tolist()).get(int(module.computation_root[module.entry]), _NOTHING)
    kept = [row for row in rows.tolist() if module.opcode[row] in _STAYS or row in results]
    return sum(_size(module, row) for row in kept) - _aliased_bytes(module) + walk.peak(module.entry, results)


def _aliased_bytes(module: HloModule) -> int:
    """Arguments whose memory results take over, where the program says."""
    if module.buffers is None:
        return 0
    places = module.buffers.allocations
    return int(places.size_bytes[(places.parameter >= 0) & places.live_out].sum())


def _rows_of(module: HloModule, computation: int) -> Int64:
    """The instructions of a computation in the order of its schedule, where it has one."""
    first, last = np.searchsorted(module.computation, (computation, computation + 1)).tolist()
    rows: Int64 = first + np.argsort(module.schedule[first:last], kind="stable")
    return rows


def _size(module: HloModule, row: int) -> int:
    return sum(array.physical_bytes for array in arrays_of(module.full_shape[row]) if array.space == 0)


@dataclass(slots=True)
class _Walk:
    """Peaks of computations, each found once."""

    module: HloModule
    known: dict[int, int] = field(default_factory=dict)

    def inner_bytes(self, computation: int) -> int:
        """The most that the values take at once which a computation makes itself."""
        if computation not in self.known:
            self.known[computation] = 0  # a computation does not call itself
            self.known[computation] = self.peak(computation)
        return self.known[computation]

    def peak(self, computation: int, elsewhere: frozenset[int] = _NOTHING) -> int:
        """The same without the values that are counted elsewhere."""
        module, rows = self.module, _rows_of(self.module, computation).tolist()
        holds = self.holders(rows)
        last = {value: place for place, row in enumerate(rows) for value in self._used(row, holds)}
        root = int(module.computation_root[computation])
        last |= dict.fromkeys(holds.get(root, _NOTHING), len(rows))
        ends: dict[int, list[int]] = {}
        live = peak = 0
        for place, row in enumerate(rows):
            if row in holds[row] - elsewhere:
                live += _size(module, row)
                ends.setdefault(last.get(row, place), []).append(row)
            peak = max(peak, live + sum(map(self.inner_bytes, self._called(row))))
            live -= sum(_size(module, value) for value in ends.pop(place, ()))
        return peak

    def holders(self, rows: list[int]) -> dict[int, frozenset[int]]:
        """For each instruction, the instructions that made what its result consists of."""
        module, holds = self.module, dict[int, frozenset[int]]()
        for row in rows:
            opcode = module.opcode[row]
            of_operands = (holds.get(operand, _NOTHING) for operand in module.operands_of(row).tolist())
            if opcode in _ALIASES or opcode.endswith(("-done", "-update")):
                holds[row] = _NOTHING.union(*of_operands)
            else:
                holds[row] = _NOTHING if opcode in _STAYS else frozenset((row,))
        return holds

    def _used(self, row: int, holds: dict[int, frozenset[int]]) -> Iterator[int]:
        for operand in self.module.operands_of(row).tolist():
            yield from holds.get(operand, _NOTHING)

    def _called(self, row: int) -> list[int]:
        return self.module.called_by(row).tolist() if base_opcode(self.module.opcode[row]) in _CALLS else []
