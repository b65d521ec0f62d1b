"""How values flow through a program: who uses them, what they are made of, and what only moves them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property

from traceflow.program.module import HloModule, base_opcode

MOVES = frozenset({
    "all-gather", "all-to-all", "bitcast", "bitcast-convert", "collective-permute", "concatenate", "convert", "copy",
    "dynamic-slice", "dynamic-update-slice", "get-tuple-element", "pad", "reshape", "slice", "transpose", "tuple",
})  # fmt: skip
"""What leaves elements as they are and only says where they lie."""

ELEMENTWISE_CALLS = frozenset({"Sharding", "xla.sdy.FuncResultSharding"})


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
            inside = set(module.called_by(row).tolist())
            return bool(inside) and all(
                module.opcode[at] in MOVES | {"parameter", "constant", "partition-id"} or at in self.indices
                for at in range(len(module))
                if int(module.computation[at]) in inside
            )
        return base_opcode(module.opcode[row]) in MOVES

    @cached_property
    def indices(self) -> frozenset[int]:
        """Integers of one element: where a slice begins, and how that is computed."""
        shapes = enumerate(self.module.shape)
        return frozenset(row for row, shape in shapes if shape[:1] in "su" and shape.endswith(("[]", "[1]")))

    def origin(self, row: int) -> int:
        """The value that a chain of mere moves begins with."""
        for _ in range(len(self.module)):
            operands = [at for at in self.module.operands_of(row).tolist() if at not in self.indices]
            if not self.moves(row) or not operands:
                return row
            row = operands[0]
        return row


def _reached(row: int, following: Callable[[int], list[int]], through: Callable[[int], bool]) -> Iterator[int]:
    seen, waiting = {row}, [row]
    for at in waiting:
        yield at
        if at == row or through(at):
            new = [other for other in following(at) if other not in seen]
            seen.update(new)
            waiting.extend(dict.fromkeys(new))
