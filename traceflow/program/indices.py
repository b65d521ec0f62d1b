"""Whole numbers that a program computes on every device: where it slices, and what it compares.

A value has one row per device, of the type that the program gives it, so that it wraps round as on the device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from traceflow.program.arithmetic import arrays
from traceflow.program.module import LARGEST_TABLE, HloModule

Numbers: TypeAlias = NDArray[Any]
"""[device, ...]: whole numbers or truths."""

_TYPES: Mapping[str, type[np.generic]] = {
    "pred": np.bool_, "s8": np.int8, "s16": np.int16, "s32": np.int32, "s64": np.int64,
    "u8": np.uint8, "u16": np.uint16, "u32": np.uint32, "u64": np.uint64,
}  # fmt: skip


def _quotient(one: Numbers, other: Numbers) -> Numbers:
    """Towards zero; -1 where the divisor is zero."""
    safe = np.where(other == 0, 1, other)
    found: Numbers = np.where(other == 0, -1, (one - np.fmod(one, safe)) // safe)
    return found


def _remainder(one: Numbers, other: Numbers) -> Numbers:
    """With the sign of the dividend, which itself it is where the divisor is zero."""
    found: Numbers = np.where(other == 0, one, np.fmod(one, np.where(other == 0, 1, other)))
    return found


_OPERATIONS: Mapping[str, Callable[..., Numbers]] = {
    "abs": np.abs,
    "add": np.add,
    "and": np.bitwise_and,
    "clamp": lambda low, value, high: np.minimum(np.maximum(value, low), high),
    "divide": _quotient,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "multiply": np.multiply,
    "negate": np.negative,
    "not": np.invert,
    "or": np.bitwise_or,
    "remainder": _remainder,
    "select": np.where,
    "shift-left": np.left_shift,
    "shift-right-arithmetic": np.right_shift,
    "sign": np.sign,
    "subtract": np.subtract,
    "xor": np.bitwise_xor,
}
_COMPARISONS: Mapping[str, Callable[..., Numbers]] = {
    "EQ": np.equal,
    "GE": np.greater_equal,
    "GT": np.greater,
    "LE": np.less_equal,
    "LT": np.less,
    "NE": np.not_equal,
}
_UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
_SAME = frozenset({"bitcast", "convert", "copy", "reshape", "optimization-barrier"})


def numbers_of(module: HloModule, row: int, operands: Sequence[Numbers], devices: int) -> Numbers | None:
    """What an instruction computes on each device, where it computes whole numbers from known ones.

    Args:
        module: The program.
        row: The instruction.
        operands: Its operands, all known.
        devices: How many devices run the program.

    Returns:
        [device, ...] of the instruction's type and shape; None for what is no such computation or too large.
    """
    parts = arrays(module.shape[row])
    if len(parts) != 1 or (kind := _TYPES.get(parts[0][0])) is None or prod(sizes := parts[0][1]) > LARGEST_TABLE:
        return None
    with np.errstate(all="ignore"):  # wraps round, as the device does
        found = _computed(module, row, operands, devices, sizes)
    return None if found is None else np.broadcast_to(found, (devices, *sizes)).astype(kind, copy=False)


def _computed(
    module: HloModule, row: int, operands: Sequence[Numbers], devices: int, sizes: tuple[int, ...]
) -> Numbers | None:
    opcode = module.opcode[row]
    if opcode in {"partition-id", "replica-id"}:
        return np.arange(devices) if _tells_devices_apart(module, opcode) else np.zeros(devices, np.int64)
    if opcode == "constant" and row in module.integers:
        return np.array(module.integers[row]).reshape(1, *sizes)
    if opcode == "iota":
        (along,) = module.dimensions.get(row, (0,))
        return np.arange(sizes[along]).reshape(1, *(-1 if at == along else 1 for at in range(len(sizes))))
    if not operands:
        return None
    return _from_numbers(module, row, operands, sizes)


def _tells_devices_apart(module: HloModule, opcode: str) -> bool:
    """Devices are partitions of one replica, unless the program asks for replicas alone."""
    return opcode == "partition-id" or "partition-id" not in module.opcode


def _from_numbers(module: HloModule, row: int, operands: Sequence[Numbers], sizes: tuple[int, ...]) -> Numbers | None:
    opcode, first = module.opcode[row], operands[0]
    found: Numbers | None = None
    if opcode == "shift-right-logical":
        width = _UNSIGNED[first.dtype.itemsize]
        found = np.right_shift(first.view(width), operands[1].astype(width))
    elif opcode in _OPERATIONS:
        found = _OPERATIONS[opcode](*operands)
    elif opcode == "compare" and row in module.comparison:
        found = _COMPARISONS[module.comparison[row]](*operands)
    else:
        found = _rearranged(module, row, operands, sizes)
    return found


def _rearranged(module: HloModule, row: int, operands: Sequence[Numbers], sizes: tuple[int, ...]) -> Numbers | None:
    """The same numbers in another type, shape or place, or some of them."""
    opcode, first = module.opcode[row], operands[0]
    found: Numbers | None = None
    if opcode in _SAME:
        found = first.reshape(len(first), *sizes)
    elif opcode == "broadcast":
        kept = module.dimensions.get(row, ())
        found = first.reshape(len(first), *(size if at in kept else 1 for at, size in enumerate(sizes)))
    elif opcode == "slice" and row in module.slices:
        cut = tuple(slice(start, limit, stride) for start, limit, stride in module.slices[row])
        found = first[(slice(None), *cut)]
    elif opcode == "dynamic-slice":
        found = _looked_up(first, operands[1:], sizes)
    return found


def _looked_up(table: Numbers, starts: Sequence[Numbers], sizes: tuple[int, ...]) -> Numbers:
    """A slice of a table that begins elsewhere on each device, and never beyond the table."""
    last = [whole - size for whole, size in zip(table.shape[1:], sizes, strict=True)]
    begins = np.stack([np.clip(at.astype(np.int64), 0, end) for at, end in zip(starts, last, strict=True)], axis=1)
    cuts = (tuple(slice(b, b + size) for b, size in zip(begin, sizes, strict=True)) for begin in begins.tolist())
    return np.stack([own[cut] for own, cut in zip(table, cuts, strict=True)])
