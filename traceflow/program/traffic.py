"""Bytes that an instruction reads and writes at least, from shapes: each operand once, the result once.

What only looks at a part of an operand, such as a slice or a gather, reads that part; an update in place reads and
writes what it updates. A value inside a fusion touches no memory. On TPUs, what the compiler placed in memory on the
chip does not count: it is no traffic of the device's main memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from traceflow.program.layout import arrays_of
from traceflow.program.module import HloModule

FREE = frozenset({
    "add-dependency", "after-all", "bitcast", "constant", "domain", "get-dimension-size", "get-tuple-element",
    "optimization-barrier", "parameter", "partition-id", "replica-id", "tuple",
})  # fmt: skip
"""Opcodes without any memory traffic of their own."""

_PARTIAL = frozenset({"slice", "dynamic-slice", "gather"})
_RENAMES = frozenset({"bitcast", "reshape"})
# Library calls whose result comes first, and behind it the room that they work in.
_WITH_WORKSPACE = ("__cublas$", "__cudnn$")


def value_bytes(module: HloModule, row: int) -> int:
    """Logical size of a value as far as it lies in main memory, -1 where it is not known."""
    full = module.full_shape[row]
    if "S(" not in full or "T(" not in full:
        return int(module.output_bytes[row])
    return sum(array.logical_bytes for array in arrays_of(full) if not (array.space and array.tiles))


def accessed_bytes(module: HloModule, row: int) -> int | None:
    """Bytes that one execution of an instruction reads and writes, None where a size is not known.

    Args:
        module: The program.
        row: An instruction that executes as one piece: no loop, no call, no collective.
    """
    opcode = module.opcode[row]
    if opcode in FREE:
        return 0
    operands = module.operands_of(row).tolist()
    sizes = [value_bytes(module, operand) for operand in operands]
    if opcode in _PARTIAL:
        return _sum([2 * value_bytes(module, row), *sizes[1:]])
    if opcode == "dynamic-update-slice":
        return _sum([2 * sizes[1], *sizes[2:]])
    if opcode == "scatter":
        half = len(operands) // 2
        return _sum([sizes[half], *(2 * size for size in sizes[half + 1 :])])
    if opcode == "fusion" and len(called := module.called_by(row)):
        return _fusion_bytes(module, row, int(called[0]))
    distinct = dict(zip(operands, sizes, strict=True))
    return _sum([*distinct.values(), _result_bytes(module, row)])


def _sum(sizes: Sequence[int]) -> int | None:
    return None if min(sizes, default=0) < 0 else sum(sizes)


def _result_bytes(module: HloModule, row: int) -> int:
    """What an instruction writes: of a library call without its workspace, of a copy its target."""
    parts = arrays_of(module.full_shape[row])
    has_more = module.custom_call_target.get(row, "").startswith(_WITH_WORKSPACE) or module.opcode[row] == "copy-start"
    if has_more and parts:
        return 0 if parts[0].space and parts[0].tiles else parts[0].logical_bytes
    return value_bytes(module, row)


def _fusion_bytes(module: HloModule, row: int, computation: int) -> int | None:
    first, last = np.searchsorted(module.computation, (computation, computation + 1)).tolist()
    inside = range(first, last)
    users: dict[int, list[int]] = {}
    for user in inside:
        for operand in module.operands_of(user).tolist():
            users.setdefault(operand, []).append(user)
    sizes, seen = [], set[int]()
    parameters = {int(module.parameter_number[one]): one for one in inside if module.opcode[one] == "parameter"}
    for position, operand in enumerate(module.operands_of(row).tolist()):
        whole, parameter = value_bytes(module, operand), parameters.get(position)
        part = whole if parameter is None else _read(module, parameter, users, whole)
        if operand not in seen or part < whole:
            sizes.append(part)
        seen.add(operand)
    return _sum([*sizes, *_written(module, row, computation)])


def _read(module: HloModule, value: int, users: Mapping[int, Sequence[int]], whole: int) -> int:
    """How much of a value its users inside a fusion look at."""
    parts = 0
    for user in users.get(value, ()):
        first = int(module.operands_of(user)[0]) == value
        if module.opcode[user] in _PARTIAL and first:
            parts += int(module.output_bytes[user])
        elif module.opcode[user] in _RENAMES:
            parts += _read(module, user, users, whole)
        elif not (module.opcode[user] == "dynamic-update-slice" and first):
            return whole
    return min(parts, whole)


def _written(module: HloModule, row: int, computation: int) -> Iterator[int]:
    """What a fusion writes: of an update in place, the part that it updates."""
    root = int(module.computation_root[computation])
    if root < 0:
        yield value_bytes(module, row)
        return
    updates = [_update(module, result) for result in _results(module, root)]
    if any(update is not None for update in updates):
        for result, update in zip(_results(module, root), updates, strict=True):
            yield int(module.output_bytes[result]) if update is None else update
    else:
        yield value_bytes(module, row)


def _results(module: HloModule, root: int) -> list[int]:
    return module.operands_of(root).tolist() if module.opcode[root] == "tuple" else [root]


def _update(module: HloModule, result: int) -> int | None:
    while module.opcode[result] in _RENAMES:
        result = int(module.operands_of(result)[0])
    if module.opcode[result] != "dynamic-update-slice":
        return None
    return int(module.output_bytes[module.operands_of(result)[1]])
