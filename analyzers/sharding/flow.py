"""How values flow through a program: who uses them, what they are made of, and what only moves them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property

from traceflow.program.module import HloModule, base_opcode
from traceflow.trace.model import ABSENT

MOVES = frozenset({
    "all-gather", "all-to-all", "bitcast", "bitcast-convert", "collective-permute", "concatenate", "convert", "copy",
    "dynamic-slice", "dynamic-update-slice", "get-tuple-element", "pad", "reshape", "slice", "transpose", "tuple",
})  # fmt: skip
"""What leaves elements as they are and only says where they lie."""

_CALLS = frozenset({"fusion", "call"})


class Flow:
    """The values of one module.

    Args:
        module: A program at any stage.
    """

    def __init__(self, module: HloModule) -> None:
        self.module = module

    @cached_property
    def users(self) -> list[list[int]]:
        """Rows that use each row as an operand."""
        users: list[list[int]] = [[] for _ in range(len(self.module))]
        for row in range(len(self.module)):
            for operand in self.module.operands_of(row).tolist():
                users[operand].append(row)
        return users

    @cached_property
    def callers(self) -> dict[int, list[int]]:
        """Instructions that call each computation."""
        callers: dict[int, list[int]] = {}
        for row in range(len(self.module)):
            for computation in self.module.called_by(row).tolist():
                callers.setdefault(computation, []).append(row)
        return callers

    @cached_property
    def members(self) -> dict[int, list[int]]:
        """The instructions of each computation."""
        members: dict[int, list[int]] = {}
        for row, computation in enumerate(self.module.computation.tolist()):
            members.setdefault(computation, []).append(row)
        return members

    @cached_property
    def sources(self) -> list[list[int]]:
        """What each row is made of: operands, and across the borders of loops and calls what enters and leaves there.

        A part of what a loop carries is made of what it begins as, not of what the round before left.
        """
        return [self._sources(row) for row in range(len(self.module))]

    @cached_property
    def results(self) -> list[list[int]]:
        """What is made of each row: the other way round."""
        results: list[list[int]] = [[] for _ in range(len(self.module))]
        for row, sources in enumerate(self.sources):
            for source in sources:
                results[source].append(row)
        return results

    def _sources(self, row: int) -> list[int]:
        module, opcode = self.module, self.module.opcode[row]
        operands: list[int] = module.operands_of(row).tolist()
        if opcode == "get-tuple-element":
            return self._sources_of_part(operands[0], int(module.tuple_index[row])) or operands
        if opcode == "call":
            return self._roots(row)
        if opcode == "parameter":
            number = int(module.parameter_number[row])
            callers = self.callers.get(int(module.computation[row]), ())
            return [int(module.operands_of(at)[number]) for at in callers if module.opcode[at] == "call"]
        return operands

    def _sources_of_part(self, row: int, index: int) -> list[int]:
        """What one part of a tuple is made of, where the tuple itself or a loop tells it."""
        module, opcode = self.module, self.module.opcode[row]
        if opcode == "tuple":
            return [int(module.operands_of(row)[index])]
        if opcode in {"while", "call"}:
            return [part for root in self._roots(row) for part in self._sources_of_part(root, index)]
        loops = self.callers.get(int(module.computation[row]), ()) if opcode == "parameter" else ()
        entering = [int(module.operands_of(at)[0]) for at in loops if module.opcode[at] == "while"]
        return [part for at in entering for part in self._sources_of_part(at, index)]

    def _roots(self, row: int) -> list[int]:
        return [int(self.module.computation_root[called]) for called in self.module.called_by(row).tolist()]

    def made_of(self, row: int, through: Callable[[int], bool] = lambda _: True) -> Iterator[int]:
        """As `before`, across the borders of loops and calls."""
        yield from _reached(row, lambda at: self.sources[at], through)

    def makes(self, row: int, through: Callable[[int], bool] = lambda _: True) -> Iterator[int]:
        """As `after`, across the borders of loops and calls."""
        yield from _reached(row, lambda at: self.results[at], through)

    def before(self, row: int, through: Callable[[int], bool] = lambda _: True) -> Iterator[int]:
        """What a value is made of, itself included, nearest first; what `through` denies is named but not passed."""
        yield from _reached(row, lambda at: self.module.operands_of(at).tolist(), through)

    def after(self, row: int, through: Callable[[int], bool] = lambda _: True) -> Iterator[int]:
        """What is made of a value, itself included, nearest first; what `through` denies is named but not passed."""
        yield from _reached(row, lambda at: self.users[at], through)

    def moves(self, row: int) -> bool:
        """Whether an instruction only moves its operand; a fusion does where everything in it does."""
        module = self.module
        if module.opcode[row] in {"fusion", "call"}:
            inside = [at for called in module.called_by(row).tolist() for at in self.members.get(called, ())]
            still = MOVES | {"parameter", "constant", "partition-id"}
            return bool(inside) and all(module.opcode[at] in still or at in self.indices for at in inside)
        return base_opcode(module.opcode[row]) in MOVES

    @cached_property
    def indices(self) -> frozenset[int]:
        """Integers of one element: where a slice begins, and how that is computed."""
        shapes = enumerate(self.module.shape)
        return frozenset(row for row, shape in shapes if shape[:1] in "su" and shape.endswith(("[]", "[1]")))

    def origin(self, row: int) -> int:
        """The value that a chain of mere moves begins with, through tuples, fusions, calls and what loops carry along."""
        for _ in range(len(self.module)):
            following = self._moved(row)
            if following is None:
                return row
            row = following
        return row

    def _moved(self, row: int) -> int | None:
        """The value that an instruction moves; None where it makes a new one."""
        module, opcode = self.module, self.module.opcode[row]
        operands = [at for at in module.operands_of(row).tolist() if at not in self.indices]
        if opcode == "get-tuple-element":
            return self._part(operands[0], int(module.tuple_index[row]))
        if opcode in _CALLS:
            return self._into(row, None)
        if opcode == "parameter":
            return self._out_of(row)
        return operands[0] if base_opcode(opcode) in MOVES and opcode != "tuple" and operands else None

    def _part(self, row: int, index: int) -> int | None:
        """One part of a tuple."""
        module, opcode = self.module, self.module.opcode[row]
        if opcode == "tuple":
            return int(module.operands_of(row)[index])
        if opcode in _CALLS:
            return self._into(row, index)
        return self._carried(row, index) if opcode == "parameter" else None

    def _into(self, row: int, index: int | None) -> int | None:
        """What a fusion or a call moves: its operand where the way back from its result ends at a parameter."""
        module = self.module
        called = module.called_by(row).tolist()
        root = int(module.computation_root[called[0]]) if called else ABSENT
        if root < 0:
            return None
        inside = root if index is None else self._part(root, index)
        if inside is None:
            return None
        start = self.origin(inside)
        if int(module.computation[start]) != called[0]:
            return start
        number = int(module.parameter_number[start])
        return int(module.operands_of(row)[number]) if number >= 0 else None

    def _out_of(self, parameter: int) -> int | None:
        """What a fusion or a call puts in for a parameter, where only one does."""
        module = self.module
        callers = self.callers.get(int(module.computation[parameter]), ())
        if len(callers) != 1 or module.opcode[callers[0]] not in _CALLS:
            return None
        return int(module.operands_of(callers[0])[int(module.parameter_number[parameter])])

    def _carried(self, parameter: int, index: int) -> int | None:
        """What a loop carries along unchanged: the part of its operand."""
        module = self.module
        computation = int(module.computation[parameter])
        loops = [row for row in self.callers.get(computation, ()) if module.opcode[row] == "while"]
        root = int(module.computation_root[computation])
        if len(loops) != 1 or module.opcode[root] != "tuple":
            return None
        kept = int(module.operands_of(root)[index])
        if module.opcode[kept] != "get-tuple-element" or int(module.tuple_index[kept]) != index:
            return None
        return self._part(int(module.operands_of(loops[0])[0]), index)


def _reached(row: int, following: Callable[[int], list[int]], through: Callable[[int], bool]) -> Iterator[int]:
    seen, waiting = {row}, [row]
    for at in waiting:
        yield at
        if at == row or through(at):
            new = [other for other in following(at) if other not in seen]
            seen.update(new)
            waiting.extend(dict.fromkeys(new))
