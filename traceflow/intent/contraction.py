"""What a product of two sharded arrays implies: gathers before it, and sums over devices after it.

With `l` and `r` the axes that split an index in the left and in the right operand:

- An index that is summed and split alike on both sides leaves partial sums on every device: an all-reduce over those
  axes, or, where the result is to be split over them, a reduce-scatter.
- An index that is summed and split on one side only takes a slice of the other side, which costs nothing, unless that
  side already uses the axis for another index. Then the axis cannot serve both, and the side whose use the result
  does not keep is gathered: a weight in fully sharded data parallelism, an input in a collective matmul.
- An index that the two sides split by different axes must first be split alike: a reshard of the right side.
- Where the result is to lie otherwise than the product does, that is a reshard.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from traceflow.errors import TraceflowError
from traceflow.intent.mesh import Axes, Mesh
from traceflow.intent.spec import Spec
from traceflow.program.replica_groups import Groups


class Implied(NamedTuple):
    """A collective that follows from how the arrays lie."""

    operation: str  # all-gather, all-reduce, reduce-scatter or reshard
    operand: str  # left, right or result
    axes: Axes
    groups: Groups


@dataclass(frozen=True, slots=True)
class Contraction:
    """How a product comes out, and what that takes."""

    product: Spec  # before its sums and reshards
    result: Spec  # as asked, else as it comes out
    implied: tuple[Implied, ...]


def contraction(equation: str, left: Spec, right: Spec, mesh: Mesh, result: Spec | None = None) -> Contraction:
    """The collectives that a product of two sharded arrays implies.

    Args:
        equation: As `einsum` takes it, with two operands and a result: ``"bf,fd->bd"``.
        left: How the left operand lies.
        right: How the right operand lies.
        mesh: The mesh of all three.
        result: How the product is to lie; without it, as it comes out, partial sums reduced.

    Returns:
        The collectives in the order in which they happen.

    Raises:
        TraceflowError: TF144 for an equation that is none, TF142 for an axis that the mesh lacks.

    Example:
        >>> mesh = Mesh.of({"X": 4, "Y": 2})
        >>> found = contraction("mk,kn->mn", Spec.of("X", "Y"), Spec.of("Y", None), mesh, Spec.of("X", "Y"))
        >>> [(i.operation, i.axes, i.groups[0]) for i in found.implied]
        [('reduce-scatter', ('Y',), (0, 1))]
    """
    names = _indices(equation)
    sides = {"left": _by_index(names[0], left), "right": _by_index(names[1], right)}
    kept = None if result is None else _by_index(names[2], result)
    gathers = _gathers(sides, names, kept)
    for side, index, axis in gathers:
        sides[side][index] = tuple(a for a in sides[side][index] if a != axis)
    unlike = _unlike(sides["left"], sides["right"])
    split = {i: sides["left"].get(i) or sides["right"].get(i, ()) for i in names[0] + names[1]}
    partial = tuple(axis for index in split if index not in names[2] for axis in split[index])
    product = Spec(tuple(split[index] for index in names[2]), partial)
    wanted = Spec(product.dimensions) if result is None else result.padded(len(names[2]))
    gathered = [(side, axis) for side, _, axis in gathers]
    implied = [
        Implied("all-gather", side, axes, mesh.groups(axes))
        for side in ("left", "right")
        if (axes := tuple(axis for s, axis in gathered if s == side))
    ]
    if unlike:
        implied.append(Implied("reshard", "right", unlike, mesh.groups(unlike)))
    return Contraction(product, wanted, (*implied, *_after(product, wanted, mesh)))


def _unlike(left: Mapping[str, Axes], right: Mapping[str, Axes]) -> Axes:
    """The axes of indices that both sides split, each by others."""
    shared = [(left[index], right[index]) for index in left if index in right]
    return tuple(dict.fromkeys(a for one, other in shared if one and other and one != other for a in (*one, *other)))


def _after(product: Spec, wanted: Spec, mesh: Mesh) -> list[Implied]:
    """Sums over devices, and what moves pieces to where they are wanted."""
    scattered = tuple(axis for axis in product.unreduced if axis in wanted.axes)
    summed = tuple(axis for axis in product.unreduced if axis not in wanted.axes)
    steps = [("reduce-scatter", scattered), ("all-reduce", summed)]
    implied = [Implied(operation, "result", axes, mesh.groups(axes)) for operation, axes in steps if axes]
    without = tuple(tuple(a for a in d if a not in scattered) for d in wanted.dimensions)
    pairs = zip(product.dimensions, without, strict=True)
    moved = tuple(dict.fromkeys(axis for one, other in pairs if one != other for axis in (*one, *other)))
    # An axis that only the wanted spec has is a slice that each device takes by itself.
    if any(axis in product.axes for axis in moved):
        implied.append(Implied("reshard", "result", moved, mesh.groups(moved)))
    return implied


def _gathers(
    sides: dict[str, dict[str, Axes]], names: Sequence[str], kept: dict[str, Axes] | None
) -> list[tuple[str, str, str]]:
    """Which side gives up which axis of which index, because the other side uses it for another index."""
    found = []
    for index, axes in sides["left"].items():
        for axis in axes:
            other = next((i for i, used in sides["right"].items() if axis in used), index)
            if other != index:
                found.append(
                    ("right", other, axis) if _keeps_left(index, other, axis, names[2], kept) else ("left", index, axis)
                )
    return found


def _keeps_left(left: str, right: str, axis: str, out: str, kept: dict[str, Axes] | None) -> bool:
    """Whether the left operand's use of an axis survives: where the result is to have it, else if it can."""
    if kept is not None:
        if axis in kept.get(left, ()):
            return True
        if axis in kept.get(right, ()):
            return False
    return left in out or right not in out


def _by_index(names: str, spec: Spec) -> dict[str, Axes]:
    return dict(zip(names, spec.padded(len(names)).dimensions, strict=False))


def _indices(equation: str) -> tuple[str, str, str]:
    operands, arrow, out = equation.replace(" ", "").partition("->")
    names = operands.split(",")
    letters = all(part.isalpha() and len(set(part)) == len(part) for part in (*names, out) if part)
    if not arrow or len(names) != 2 or not letters or not set(out) <= set(operands):
        why = "it needs two operands and a result, each index once in an operand"
        raise TraceflowError("TF144", f"no such product: {equation!r}", why, "write it as 'bf,fd->bd'")
    return names[0], names[1], out
