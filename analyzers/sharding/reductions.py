"""Sums that every device receives in full and then cuts down to its own piece."""

from __future__ import annotations

from collections.abc import Container, Iterator

from traceflow.analyzers.sharding.expectations import reduces
from traceflow.analyzers.sharding.found import Found
from traceflow.analyzers.sharding.partitioning import Partitioning, shape_of
from traceflow.program.module import HloModule, base_opcode


def cut_reductions(p: Partitioning, meant: Container[int]) -> Iterator[Found]:
    """All-reduces of which each device uses only a slice at its own place: a reduce-scatter moves half as much.

    Backends that turn such a pair into a reduce-scatter themselves have one in the compiled program.

    Args:
        p: The program.
        meant: Those that are the gradients of gathers, of which a backend makes nothing better.
    """
    for reduction in reduces(p):
        worth = reduction.operation == "all-reduce" and (reduction.bytes or 0) >= p.worth_bytes
        if worth and reduction.row not in meant and cut_to(p, reduction.row) and not _is_scattered(p, reduction.row):
            yield Found(
                code="TF232",
                title="an all-reduce gives every device all sums, of which it keeps its own part",
                rows=(reduction.row,),
                suggestion=(
                    "Use psum_scatter in shard_map, or a backend that fuses the pair to a reduce-scatter; it sends half"
                    " the bytes and needs a fraction of the memory."
                ),
                bytes=None if reduction.bytes is None else reduction.bytes // 2,
            )


def _is_scattered(p: Partitioning, row: int) -> bool:
    """Whether the compiled program has a reduce-scatter in place of a pair of the divided one."""
    module, compiled = p.divided, p.compilation.compiled
    if module is None or compiled is None or module is compiled:
        return False
    place = module.operation_name[row], module.source[row]
    return any(
        base_opcode(opcode) == "reduce-scatter" and (compiled.operation_name[at], compiled.source[at]) == place
        for at, opcode in enumerate(compiled.opcode)
    )


def cut_to(p: Partitioning, row: int) -> tuple[tuple[int, ...], ...]:
    """Shapes of the slices of a sum, where slices whose place depends on the device are all that is used of it."""
    module = p.divided
    if module is None:
        return ()
    renamed = {"bitcast", "reshape", "copy", "transpose", "convert", "get-tuple-element"}
    used = [
        at
        for at in p.flow.after(row, lambda at: module.opcode[at] in renamed)
        if at != row and module.opcode[at] not in renamed
    ]
    return tuple(shape_of(module, at) for at in used) if all(_slices(p, module, at, row) for at in used) else ()


def _slices(p: Partitioning, module: HloModule, row: int, reduction: int) -> bool:
    if module.opcode[row] == "fusion":
        inside = [r for c in module.called_by(row).tolist() for r in range(len(module)) if module.computation[r] == c]
        whole = shape_of(module, reduction)
        parts = [r for r in inside if module.opcode[r] == "dynamic-slice"]
        return any(
            shape_of(module, int(module.operands_of(r)[0])) == whole and len(whole) > 0 for r in parts
        ) and _knows_the_device(p, module, row)
    return module.opcode[row] == "dynamic-slice" and _knows_the_device(p, module, row)


def _knows_the_device(p: Partitioning, module: HloModule, row: int) -> bool:
    """Whether a number that enters an instruction is computed from that of the device."""
    numbers = (
        at for place in module.operands_of(row).tolist()[1:] for at in p.flow.before(place, p.flow.indices.__contains__)
    )
    return any(module.opcode[at] in {"partition-id", "replica-id"} for at in numbers)
