"""Which instructions compute again what was computed before: activations that were thrown away to save memory.

Two signs count, and names such as `.remat` do not. JAX says in the scope of an operation that it is a recomputation:
`rematted_computation` stands in `op_name`. And the same value may be computed twice in one computation: an
instruction with the same opcode, shape and attributes as an earlier one, of operands that are the same values. What
XLA itself rematerialises is found so, since nothing else survives its elimination of common subexpressions. Where an
attribute is not known, such as the bounds of a slice or the value of a constant, values are not called the same.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import pairwise
from typing import TypeAlias

import numpy as np

from traceflow.program.module import HloModule
from traceflow.trace.model import Bool, Int64, Rows

_SCOPE = re.compile(r"(?:^|/)rematted_computation(?:/|$)")
# Cheap to have twice.
_PASSED_OVER = frozenset({
    "after-all", "bitcast", "broadcast", "constant", "copy", "get-tuple-element", "iota", "parameter", "partition-id",
    "replica-id", "reshape", "transpose", "tuple",
})  # fmt: skip
# Each is a value of its own: another one every time, or with attributes that are not known.
_ALONE = frozenset({
    "call", "compare", "conditional", "constant", "custom-call", "fft", "gather", "infeed", "iota", "outfeed", "pad",
    "parameter", "recv", "reduce-precision", "rng", "rng-bit-generator", "rng-get-and-update-state", "scatter", "send",
    "slice", "sort", "while",
})  # fmt: skip
_CALLS = frozenset({"fusion", "map", "reduce", "reduce-window", "select-and-scatter"})
_DESCRIBED = frozenset({"convolution", "dot", "ragged-dot", "scaled-dot"})
_BARRIER = "optimization-barrier"

_Key: TypeAlias = tuple[object, ...]


def recomputed(module: HloModule) -> Bool:
    """Whether each instruction computes again what was computed before.

    A fusion does where all it computes is in a recomputation scope, by what it contains.

    Args:
        module: A program.

    Returns:
        One truth value per instruction. The first of several equal ones, in order of the schedule, is no repetition.
    """
    scoped = np.array([_SCOPE.search(name) is not None for name in module.operation_name], bool)
    for row, opcode in enumerate(module.opcode):
        if opcode == "fusion" and len(called := module.called_by(row)):
            inside = _contents(module, int(called[0]))
            scoped[row] = bool(inside) and all(scoped[one] for one in inside)
    return scoped | _repeated(module)


def _contents(module: HloModule, computation: int) -> list[int]:
    """The instructions of a computation that compute something and say in which scope."""
    first, last = np.searchsorted(module.computation, (computation, computation + 1)).tolist()
    rows = range(first, last)
    return [row for row in rows if module.opcode[row] not in _PASSED_OVER and module.operation_name[row]]


def _repeated(module: HloModule) -> Bool:
    """Whether the same value was computed earlier in the same computation."""
    number, earlier = _Numbers(module), np.zeros(len(module), bool)
    seen: set[tuple[int, int]] = set()
    order = np.lexsort((np.arange(len(module)), module.schedule, module.computation))
    for row in order.tolist():
        if module.opcode[row] in _PASSED_OVER or module.opcode[row] in _ALONE:
            continue
        key = int(module.computation[row]), number.of(row)
        earlier[row] = key in seen
        seen.add(key)
    return earlier


def _attributes(module: HloModule) -> dict[int, str]:
    """What is known of instructions besides opcode, shape and operands."""
    tables: tuple[Mapping[int, object], ...] = (
        module.dots, module.convolutions, module.windows, module.dimensions, module.replica_groups,
        module.source_target_pairs,
    )  # fmt: skip
    told: dict[int, str] = {}
    for table in tables:
        for row, value in table.items():
            told[row] = f"{told.get(row, '')}{value}"
    return told


def _rows(offsets: Int64, values: Rows) -> list[list[int]]:
    """The values of each row, as lists: numbers are looked up far more often than rows."""
    all_values, ends = values.tolist(), offsets.tolist()
    return [all_values[start:end] for start, end in pairwise(ends)]


class _Numbers:
    """Numbers of values: equal where the same is computed from the same."""

    def __init__(self, module: HloModule) -> None:
        self._module = module
        self._keys: dict[_Key, int] = {}
        self._of: dict[int, int] = {}
        self._contents: dict[int, _Key] = {}
        self._attributes = _attributes(module)
        self._operands, self._called = (
            _rows(module.operand_offsets, module.operands),
            _rows(module.called_offsets, module.called),
        )

    def of(self, row: int) -> int:
        """The number of an instruction's value."""
        stack = [row]
        while stack:
            at = stack[-1]
            if at not in self._of:
                open_operands = [one for one in self._operands[at] if one not in self._of]
                if open_operands:
                    stack += open_operands
                    continue
                key = self._key(at)
                self._of[at] = self._keys.setdefault(key, len(self._keys))
            stack.pop()
        return self._of[row]

    def _key(self, row: int) -> _Key:
        module, opcode = self._module, self._module.opcode[row]
        if opcode in _ALONE or self._hidden(row):
            return opcode, row
        operands = tuple([self._of[one] for one in self._operands[row]])
        if opcode == _BARRIER:
            opcode = "tuple"
        called = tuple([self._content(one) for one in self._called[row]])
        return opcode, module.shape[row], int(module.tuple_index[row]), self._attributes.get(row), called, operands

    def _hidden(self, row: int) -> bool:
        """Whether it is not known what an instruction does, as where only its own line of text is there."""
        opcode = self._module.opcode[row]
        if opcode.endswith(("-start", "-done")):
            return True
        if opcode in _CALLS:
            return not self._called[row]
        return opcode in _DESCRIBED and row not in self._attributes

    def _content(self, computation: int) -> _Key:
        """What a called computation does with its parameters."""
        found = self._contents.get(computation)
        if found is None:
            module = self._module
            first, last = np.searchsorted(module.computation, (computation, computation + 1)).tolist()
            found = self._contents[computation] = tuple(self._inner(row, first) for row in range(first, last))
        return found

    def _inner(self, row: int, first: int) -> _Key:
        module, opcode = self._module, self._module.opcode[row]
        if (opcode in _ALONE and opcode != "parameter") or self._hidden(row):
            return opcode, row
        operands = tuple([one - first for one in self._operands[row]])
        called = tuple([self._content(one) for one in self._called[row]])
        numbers = int(module.parameter_number[row]), int(module.tuple_index[row])
        return opcode, module.shape[row], numbers, self._attributes.get(row), called, operands
