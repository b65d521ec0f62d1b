"""Sums that every device receives in full and then cuts down to its own piece."""

from __future__ import annotations

from collections.abc import Iterator

from traceflow.analyzers.sharding.expectations import reduces
from traceflow.analyzers.sharding.found import Found
from traceflow.analyzers.sharding.partitioning import Collective, Partitioning, shape_of
from traceflow.program.module import HloModule


def cut_reductions(p: Partitioning) -> Iterator[Found]:
    """All-reduces of which each device uses only a slice at its own place: a reduce-scatter moves half as much.

    Backends that turn such a pair into a reduce-scatter themselves have none left in the compiled program.
    """
    for reduction in reduces(p):
        worth = (reduction.bytes or 0) >= p.worth_bytes
        if reduction.operation == "all-reduce" and worth and _is_cut(p, reduction):
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


def _is_cut(p: Partitioning, reduction: Collective) -> bool:
    """Whether all that uses a sum takes a slice of it, whose place depends on the device."""
    module = p.divided
    if module is None:
        return False
    renamed = {"bitcast", "reshape", "copy", "transpose", "convert", "get-tuple-element"}
    used = [
        row
        for row in p.flow.after(reduction.row, lambda row: module.opcode[row] in renamed)
        if row != reduction.row and module.opcode[row] not in renamed
    ]
    return bool(used) and all(_slices(p, module, row, reduction.row) for row in used)


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
    places = module.operands_of(row).tolist()[1:]
    return any(module.opcode[at] in {"partition-id", "replica-id"} for place in places for at in p.flow.before(place))
