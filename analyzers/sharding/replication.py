"""Work that every device does alike, though a mesh was there to divide it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fnmatch import fnmatch
from typing import NamedTuple

from traceflow.analyzers.sharding.expectations import is_elementwise
from traceflow.analyzers.sharding.found import Found
from traceflow.analyzers.sharding.partitioning import Partitioning, shape_of
from traceflow.intent.intent import ArrayIntent
from traceflow.intent.mesh import Axes
from traceflow.intent.shardy import stated
from traceflow.intent.spec import Spec
from traceflow.program.arithmetic import arrays
from traceflow.program.cost import Cost
from traceflow.program.module import COLLECTIVES, HloModule, base_opcode

_WORTH_FLOPS = 1_000_000  # a mesh need not divide less


class Redundancy(NamedTuple):
    """How much more the devices compute together than the program asks for."""

    ratio: float | None  # FLOPs of a device times devices over those of the whole program
    idle_axes: Axes  # of the mesh, that split no array
    reason: str
    flops: int = 0  # of the whole program, where they are known


def redundancy(p: Partitioning) -> Redundancy:
    """FLOPs that all devices compute together, over those of the program as it is written.

    1 where the work is divided; n where n devices do the same. Masks and reductions of pieces make it differ a little.
    """
    idle = idle_axes(p)
    local = None if p.divided_cost is None else _flops(p.divided_cost.total())
    whole = _flops(p.whole_cost)
    if p.mesh is None or local is None or not whole:
        return Redundancy(None, idle, _why_unknown(p), whole or 0)
    by_hand = p.compilation.written is not None and "xla.sdy.GlobalToLocalShape" in set(
        p.compilation.written.custom_call_target.values()
    )
    if by_hand:
        return Redundancy(
            None, idle, "parts of the program are written for one device, and their whole is not known", whole
        )
    why = f"{', '.join(idle)} splits no array" if idle else "all axes split arrays"
    return Redundancy(local * len(p.mesh) / whole, idle, why, whole)


def _why_unknown(p: Partitioning) -> str:
    if p.whole_cost is None:
        return (
            "the program was not kept as it was written: decorate the jitted step with tf.instrument, or record with "
            "xla_dump=True or --xla-dump"
        )
    return "no mesh is named" if p.mesh is None else "what the program computes is not known at every stage"


def _flops(cost: Cost | None) -> int | None:
    return None if cost is None or cost.total_flops is None else cost.total_flops + cost.transcendentals


def _least_flops(p: Partitioning) -> int:
    """Of the whole program. Where some of it is not known, as how often a loop runs, what is known."""
    return 0 if p.whole_cost is None else sum(p.whole_cost.flops.values()) + p.whole_cost.transcendentals


def idle_axes(p: Partitioning) -> Axes:
    """The axes of the mesh that split no array, neither a stated one nor one that the compiler laid out."""
    if p.mesh is None:
        return ()
    meant = {axis for array in p.intent.arrays if array.spec is not None for axis in array.spec.axes}
    module = p.compilation.propagated
    laid = {axis for row in (module.sharding if module else ()) if (spec := p.spec(row)) for axis in spec.axes}
    used = {axis.partition(":")[0] for axis in meant | laid} | _by_hand(p)
    return tuple(axis for axis, size in p.mesh.axes.items() if axis not in used and size > 1)


def _by_hand(p: Partitioning) -> set[str]:
    """Axes that the inputs of `shard_map` are split over."""
    module = p.compilation.written
    said = (
        a.get(f"xla.sdy.{way}_shardings", "")
        for a in (module.attributes.values() if module else ())
        for way in ("in", "out")
    )
    return {axis.partition(":")[0] for text in said for one in stated(text) for axis in one.spec.axes}


def replicated_work(p: Partitioning) -> Iterator[Found]:
    """A batch that is to be divided and lies whole on every device, or a program that no device shares with another."""
    yield from _batch(p)
    mesh, whole = p.mesh, p.compilation.propagated
    if mesh is None or whole is None or len(mesh) < 2 or _least_flops(p) < _WORTH_FLOPS or _divides_itself(p):
        return
    if set(idle_axes(p)) == {axis for axis, size in mesh.axes.items() if size > 1} and p.intent.batch is None:
        yield Found(
            code="TF233",
            title=f"all {len(mesh)} devices do all of the work: no array is split",
            whole_row=_heaviest(whole),
            suggestion="Place the inputs with a sharding, or constrain what is made inside: a constant has none.",
        )


def _divides_itself(p: Partitioning) -> bool:
    """Whether the program asks which device it runs on, or talks to others: it divides the work by hand."""
    module = p.compilation.written
    return module is not None and any(
        opcode == "partition-id" or base_opcode(opcode) in COLLECTIVES for opcode in module.opcode
    )


def _batch(p: Partitioning) -> Iterator[Found]:
    """Where the author names the axes of the batch: the arguments that are no parameters, and what is made of them."""
    batch = p.intent.batch
    if batch is None:
        return
    arguments = [array for array in p.arguments.values() if array.shape and not _is_parameter(p, array)]
    if not any(set(batch) & set((array.spec or Spec(())).axes) for array in arguments):
        for array in _inputs(p, arguments):
            better = Spec.of(batch, *[None] * (len(array.shape) - 1))
            yield Found(
                code="TF233",
                title=f"every device holds all of {array.name}, though {', '.join(batch)} is to split the batch",
                suggestion=f"Place it as {better}.",
                source=array.source,
                spec=str(better),
                evidence={"array": array.name},
            )
        return
    yield from _lost(p, batch)


def _is_parameter(p: Partitioning, array: ArrayIntent) -> bool:
    return any(fnmatch(array.name, pattern) for pattern in p.intent.params)


def _inputs(p: Partitioning, arguments: list[ArrayIntent]) -> list[ArrayIntent]:
    """The argument that holds the batch: the first that lies whole, and rather one that the step does not return.

    What a step takes and returns in the same shape is a state, such as parameters.
    """
    whole = [array for array in arguments if not (array.spec or Spec(())).axes]
    returned = set(_result_shapes(p))
    entering = [array for array in whole if array.shape not in returned]
    first = entering or whole or arguments
    return first[:1]


def _result_shapes(p: Partitioning) -> list[tuple[int, ...]]:
    """Dimensions of what the whole program returns."""
    module = p.compilation.written
    root = -1 if module is None else int(module.computation_root[module.entry])
    return [] if module is None or root < 0 else [dims for _, dims in arrays(module.shape[root])]


def _lost(p: Partitioning, batch: Axes) -> Iterator[Found]:
    """Products that every device computes for all of the batch, though it was split before."""
    module = p.compilation.propagated
    for row, dot in module.dots.items() if module is not None else ():
        sides = zip(p.whole_operands(row), (dot.left_contracting, dot.right_contracting), strict=False)
        result = p.spec(row)
        if module is None or result is None or set(result.axes) & set(batch):
            continue
        if any(_split_before(p, operand, summed, batch) for operand, summed in sides):
            yield Found(
                code="TF233",
                title=f"{module.operation_name[row]} lies whole over {', '.join(batch)}, which splits its batch",
                whole_row=row,
                suggestion="Constrain it to keep the axes of the batch.",
                evidence={"array": module.operation_name[row]},
            )


def _split_before(p: Partitioning, operand: int, summed: Sequence[int], batch: Axes) -> bool:
    """Whether the batch splits an index of an operand that is not summed: itself, or the product that it is made of."""
    module, flow = p.compilation.propagated, p.whole_flow
    if module is None or flow is None:
        return False
    products = [at for at in flow.before(operand, lambda at: is_elementwise(module, at)) if at in module.dots]
    for at in (operand, *products):
        spec = p.spec(at)
        same = shape_of(module, at) == shape_of(module, operand)
        if (
            spec is not None
            and same
            and any(set(a) & set(batch) for d, a in enumerate(spec.dimensions) if d not in summed)
        ):
            return True
    return False


def _heaviest(module: HloModule) -> int | None:
    """The largest value that a line of the source makes."""
    placed = (row for row in range(len(module)) if module.source[row])
    return max(placed, key=lambda row: int(module.output_bytes[row]), default=None)
