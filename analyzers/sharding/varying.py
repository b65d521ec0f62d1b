"""Along which axes of the mesh a value differs from device to device, inside a program that is written for one.

An input differs along the axes that split it. A sum or a gather over an axis makes a value alike along that axis.
What is computed from a value that differs does as well. After a permute it is not known: a ring of them can bring
everything everywhere. What is made of something unknown is unknown, so that only what is certain is told.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias

from traceflow.intent.mesh import Mesh
from traceflow.program.module import HloModule


class Value(NamedTuple):
    """What is known of one array: along all other axes it is alike."""

    differs: frozenset[str]
    unknown: frozenset[str]
    given: bool  # it depends on an input, or on the device


Values: TypeAlias = (
    "Value | tuple[Value, ...]"  # of an instruction with several results, each where they are told apart
)

_CONSTANT = Value(frozenset(), frozenset(), given=False)
_ALIKE = frozenset({"all-reduce", "all-gather", "collective-broadcast"})
_EXCHANGES = frozenset({"collective-permute", "all-to-all", "ragged-all-to-all"})
_OPAQUE = frozenset({"conditional", "rng", "infeed", "recv"})


def parts(values: Values) -> tuple[Value, ...]:
    """Results one by one."""
    return (values,) if isinstance(values, Value) else values


def joined(several: Iterable[Values]) -> Value:
    """What is made of several values."""
    every = [value for values in several for value in parts(values)]
    unknown = frozenset[str]().union(*(value.unknown for value in every))
    differs = frozenset[str]().union(*(value.differs for value in every)) - unknown
    return Value(differs, unknown, any(value.given for value in every))


class Varying:
    """Follows values through a computation and those that it calls.

    Args:
        module: The program as written.
        mesh: Its mesh.
        axes: Those of the mesh that the program handles by hand.
    """

    def __init__(self, module: HloModule, mesh: Mesh, axes: Sequence[str]) -> None:
        self.module = module
        self.mesh = mesh
        self.axes = frozenset(axes)
        self.values: dict[int, Values] = {}

    def follow(self, computation: int, inputs: Sequence[Values]) -> Values:
        """What a computation returns for its inputs; what its instructions make is kept in `values`."""
        order = _in_order(self.module, computation)
        for row in order:
            self.values[row] = self._made(row, inputs)
        return self.values[int(self.module.computation_root[computation])]

    def over(self, row: int) -> frozenset[str]:
        """The axes that a collective runs over, of those handled by hand."""
        groups = self.module.replica_groups.get(row, ())
        pairs = self.module.source_target_pairs.get(row, ())
        named = self.mesh.axes_between(pairs) if pairs else self.mesh.axes_of(groups) if groups else self.mesh.axes
        return self.axes & frozenset(named or ())

    def _made(self, row: int, inputs: Sequence[Values]) -> Values:
        module, opcode = self.module, self.module.opcode[row]
        operands = [self.values[operand] for operand in module.operands_of(row).tolist()]
        if opcode == "parameter":
            number = int(module.parameter_number[row])
            return inputs[number] if number < len(inputs) else self._unknown(operands, self.axes)
        if opcode == "tuple":
            return tuple(part for operand in operands for part in parts(operand))
        if opcode == "get-tuple-element":
            found = operands[0]
            return found if isinstance(found, Value) else found[int(module.tuple_index[row])]
        if opcode == "call":
            return self.follow(int(module.called_by(row)[0]), operands)
        if opcode == "while":
            return self._looped(row, operands[0])
        return operands[0] if opcode == "opt-barrier" else self._computed(row, operands)

    def _computed(self, row: int, operands: list[Values]) -> Value:
        opcode, value = self.module.opcode[row], joined(operands)
        if opcode in _ALIKE:
            return Value(value.differs - self.over(row), value.unknown - self.over(row), value.given)
        if opcode == "reduce-scatter":
            return Value(value.differs | self.over(row), value.unknown - self.over(row), value.given)
        if opcode in _EXCHANGES:
            return self._unknown(operands, self.over(row))
        if opcode == "partition-id":
            alone = len(self.mesh) == self.mesh.size(self.axes) and len(self.axes) == 1
            return Value(self.axes, frozenset(), given=True) if alone else self._unknown(operands, self.axes)
        return self._unknown(operands, self.axes) if opcode in _OPAQUE else value

    @staticmethod
    def _unknown(operands: list[Values], axes: frozenset[str]) -> Value:
        value = joined(operands)
        return Value(value.differs - axes, value.unknown | axes, given=True)

    def _looped(self, row: int, carried: Values) -> Values:
        """What is the same after any number of rounds, at least one."""
        module = self.module
        bodies = [c for c in module.called_by(row).tolist() if not _is_condition(module, c)]
        after = parts(self.follow(bodies[0], [carried]))
        while (following := _agreed(after, parts(self.follow(bodies[0], [after])))) != after:
            after = following
        return after


def _agreed(one: tuple[Value, ...], other: tuple[Value, ...]) -> tuple[Value, ...]:
    """What two rounds of a loop have in common: where they do not agree, it is unknown."""
    return tuple(_either(a, b) for a, b in zip(one, other, strict=True))


def _either(a: Value, b: Value) -> Value:
    unknown = a.unknown | b.unknown | (a.differs ^ b.differs)
    return Value((a.differs & b.differs) - unknown, unknown, a.given or b.given)


def _is_condition(module: HloModule, computation: int) -> bool:
    return module.shape[int(module.computation_root[computation])] == "pred[]"


def _in_order(module: HloModule, computation: int) -> list[int]:
    """Instructions of a computation, operands before those that use them."""
    waiting = [row for row in range(len(module)) if int(module.computation[row]) == computation][::-1]
    placed: dict[int, None] = {}
    while waiting:
        row = waiting.pop()
        missing = [operand for operand in module.operands_of(row).tolist() if operand not in placed]
        if row not in placed and missing:
            waiting += [row, *missing]
        else:
            placed[row] = None
    return list(placed)
