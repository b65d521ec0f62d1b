"""Whether the way in which arrays lie calls for a collective: what products, sums and stated shardings imply."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from string import ascii_letters

from traceflow.analyzers.sharding.declared import declared
from traceflow.analyzers.sharding.partitioning import MOVING, REDUCING, Collective, Partitioning, shape_of
from traceflow.intent.contraction import Implied, contraction
from traceflow.intent.intent import Role
from traceflow.intent.mesh import Axes
from traceflow.program.module import Dot, HloModule

# What partitions of which are sums over devices when a dimension that they look at is split.
_SUMS = frozenset({"reduce", "reduce-window", "scatter", "select-and-scatter", "convolution", "gather"})
_JUDGED = frozenset({"dot", "reduce"})
_ELEMENTWISE_OPAQUE = frozenset({"Sharding", "xla.sdy.FuncResultSharding"})


def expected(p: Partitioning, collective: Collective) -> bool | None:
    """Whether a collective is meant; None where that cannot be told.

    Where the author lists those that may happen, the list decides. One that the program has itself is meant. One that
    the partitioner put in is where a product or a sum implies it by how its operands lie, or where the author asks for
    arrays to lie otherwise.
    """
    if (said := declared(p, collective)) is not None:
        return said
    if collective.written:
        return True
    if p.compilation.propagated is None or collective.axes is None:
        return None
    if collective.operation in REDUCING:
        return _reduction(p, collective)
    return _movement(p, collective) if collective.operation in MOVING else None


def _reduction(p: Partitioning, collective: Collective) -> bool | None:
    """Sums over devices follow from sums over a dimension that these devices split."""
    causes = list(p.causes(collective.row))
    sums = [axes for row in causes if (axes := summed_axes(p, row)) is not None]
    if any(set(collective.axes or ()) <= set(axes) for axes in sums):
        return True
    module = p.compilation.propagated
    return None if not sums or module is None or any(module.opcode[r] in _SUMS - _JUDGED for r in causes) else False


def summed_axes(p: Partitioning, row: int) -> Axes | None:
    """The axes over which an instruction of the propagated program leaves partial sums."""
    module = p.compilation.propagated
    if module is None:
        return None
    if module.opcode[row] == "dot":
        implied = implied_by(p, row)
        return None if implied is None else tuple(a for i in implied if i.operation in REDUCING for a in i.axes)
    if module.opcode[row] == "reduce":
        spec = p.spec(int(module.operands_of(row)[0]))
        return None if spec is None else tuple(a for d in module.dimensions.get(row, ()) for a in spec.dimensions[d])
    return None


def _movement(p: Partitioning, collective: Collective) -> bool | None:
    """Moves follow from a product whose operands want one axis for two indices, or from what the author states."""
    module = p.compilation.propagated
    causes = list(p.causes(collective.row))
    if module is None or not causes:
        return returned(p, collective) or None
    if collective.operation != "all-gather" and any(_clash(p, row) for row in causes):
        return False
    if any(stated_after(p, row) for row in causes):
        return True
    products = [implied for row in causes if module.opcode[row] == "dot" and (implied := implied_by(p, row))]
    if any(_moves(one, collective) for implied in products for one in implied):
        return True
    judged = {"dot", *ELEMENTWISE}
    return False if all(module.opcode[row] in judged or _breaks(p, row) for row in causes) else None


def _breaks(p: Partitioning, row: int) -> bool:
    """Whether a reshape cannot keep how its operand is split, and no product behind it needs these axes elsewhere.

    A split dimension stays split where an equally long rest of the shape begins with a dimension that it divides.
    """
    module, mesh = p.compilation.propagated, p.mesh
    if module is None or mesh is None or module.opcode[row] != "reshape":
        return False
    operand = p.whole_operands(row)[0]
    before, after, spec = shape_of(module, operand), shape_of(module, row), p.spec(operand)
    rests = {prod(after[d:]): size for d, size in reversed([*enumerate(after)])}
    broken = {
        axis
        for d, axes in enumerate(spec.dimensions if spec else ())
        if axes and rests.get(prod(before[d:]), 1) % mesh.size(axes)
        for axis in axes
    }
    return bool(broken) and not broken & _wanted_behind(p, row)


def _wanted_behind(p: Partitioning, row: int) -> set[str]:
    """The axes that the other operands of products of a value are split over."""
    module, flow = p.compilation.propagated, p.whole_flow
    if module is None or flow is None:
        return set()
    behind = list(flow.after(row, lambda at: at == row or is_elementwise(module, at) or flow.moves(at)))
    others = (o for at in behind if at in module.dots for o in p.whole_operands(at) if o not in behind)
    return {axis for other in others if (spec := p.spec(other)) is not None for axis in spec.axes}


def returned(p: Partitioning, collective: Collective) -> bool:
    """Whether a move only brings a result to where the author wants it."""
    module = p.divided
    if module is None or not any(a.role is Role.RESULT and a.spec is not None for a in p.intent.arrays):
        return False
    reached = list(p.flow.after(collective.row, p.flow.moves))
    return int(module.computation_root[module.entry]) in reached and all(map(p.flow.moves, reached))


def _clash(p: Partitioning, row: int) -> bool:
    """Whether operands that are computed with element by element split different dimensions over one axis."""
    module = p.compilation.propagated
    if module is None or module.opcode[row] not in ELEMENTWISE:
        return False
    specs = [spec.dimensions for at in module.operands_of(row).tolist() if (spec := p.spec(at)) is not None]
    places = [{axis: d for d, axes in enumerate(spec) for axis in axes} for spec in specs]
    return any(one[axis] != other[axis] for one in places for other in places for axis in one.keys() & other.keys())


def _moves(implied: Implied, collective: Collective) -> bool:
    if implied.operation == "all-gather":
        return collective.operation == "all-gather" and set(collective.axes or ()) <= set(implied.axes)
    return implied.operation == "reshard" and implied.operand == "result"


def stated_after(p: Partitioning, row: int) -> bool:
    """Whether the author states that a value lies as it does: itself, or what is made of it element by element."""
    flow, module = p.whole_flow, p.compilation.propagated
    spec = p.spec(row)
    if flow is None or module is None or spec is None:
        return False
    wanted = stated_rows(p)
    here = (at for at in flow.after(row, lambda at: at == row or is_elementwise(module, at)))
    return any(
        (at in wanted and p.spec(at) == spec)
        for at in here
        if at == row or is_elementwise(module, at) or module.custom_call_target.get(at) == "SPMDFullToShardShape"
    )


def stated_rows(p: Partitioning) -> frozenset[int]:
    """Rows of the propagated program whose sharding its author states: constraints, results, inputs of `shard_map`."""
    module = p.compilation.propagated
    if module is None:
        return frozenset()
    asked = {Role.CONSTRAINT, Role.RESULT}
    places = {(a.name, a.source) for a in p.intent.arrays if a.role in asked and a.spec is not None}
    rows = range(len(module))
    stated = {r for r in rows if (module.operation_name[r], module.source[r]) in places}
    manual = {r for r in rows if module.custom_call_target.get(r) == "SPMDFullToShardShape"}
    before = {int(operand) for r in manual for operand in module.operands_of(r)}
    return frozenset(stated | before)


def implied_by(p: Partitioning, row: int) -> tuple[Implied, ...] | None:
    """What a product of the propagated program implies; None where some of it has no spec."""
    module, mesh = p.compilation.propagated, p.mesh
    if module is None or mesh is None or row not in module.dots:
        return None
    left, right = (int(operand) for operand in module.operands_of(row)[:2])
    specs = [p.spec(left), p.spec(right), p.spec(row)]
    if any(spec is None for spec in specs):
        return None
    one, other, result = (spec for spec in specs if spec is not None)
    text = equation(module.dots[row], len(shape_of(module, left)), len(shape_of(module, right)))
    return contraction(text, one, other, mesh, result).implied


def equation(dot: Dot, left_rank: int, right_rank: int) -> str:
    """A product as `einsum` writes it: batch dimensions first in its result, then those of left and right.

    Example:
        >>> equation(Dot((1,), (0,)), 2, 2)
        'ab,bc->ac'
    """
    letters = iter(ascii_letters)
    left = [next(letters) for _ in range(left_rank)]
    shared = dict(zip(dot.right_contracting + dot.right_batch, dot.left_contracting + dot.left_batch, strict=True))
    right = [left[shared[i]] if i in shared else next(letters) for i in range(right_rank)]
    batch = [left[i] for i in dot.left_batch]
    rest = [left[i] for i in range(left_rank) if i not in dot.left_contracting + dot.left_batch]
    new = [right[i] for i in range(right_rank) if i not in shared]
    return f"{''.join(left)},{''.join(right)}->{''.join(batch + rest + new)}"


ELEMENTWISE = frozenset({
    "abs", "add", "and", "atan2", "cbrt", "ceil", "clamp", "compare", "convert", "copy", "cosine", "divide", "erf",
    "exponential", "exponential-minus-one", "floor", "is-finite", "log", "log-plus-one", "logistic", "maximum",
    "minimum", "multiply", "negate", "not", "or", "power", "remainder", "round-nearest-afz", "round-nearest-even",
    "rsqrt", "select", "sign", "sine", "sqrt", "subtract", "tan", "tanh", "xor",
})  # fmt: skip
"""Opcodes that compute each element of their result from the same element of their operands."""


def is_elementwise(module: HloModule, row: int) -> bool:
    """Whether each element of a value is made of the same element of its operands."""
    return module.opcode[row] in ELEMENTWISE or module.custom_call_target.get(row) in _ELEMENTWISE_OPAQUE


def reduces(p: Partitioning) -> Iterator[Collective]:
    """The sums over devices that the partitioner put in."""
    return (c for c in p.collectives if c.operation in REDUCING and not c.written)
