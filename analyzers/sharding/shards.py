"""Shards that do not divide evenly, and arrays that lie otherwise than their author states."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatch
from math import prod

from traceflow.analyzers.sharding.found import Found
from traceflow.analyzers.sharding.partitioning import Partitioning, shape_of
from traceflow.intent.spec import Spec, local_shape, pieces, uneven
from traceflow.program.shape import shape_bytes


def uneven_shards(p: Partitioning) -> Iterator[Found]:
    """Stated shardings whose pieces do not divide a dimension: some device holds and masks padding."""
    if p.mesh is None:
        return
    seen = set()
    for array in p.intent.arrays:
        if array.spec is None or not array.shape or not (dimensions := uneven(array.shape, array.spec, p.mesh)):
            continue
        local = local_shape(array.shape, array.spec, p.mesh)
        key = array.shape, array.spec, array.source
        if key in seen:
            continue
        seen.add(key)
        split = pieces(array.spec.padded(len(array.shape)), p.mesh)
        padded = prod(size * n for size, n in zip(local, split, strict=True)) - prod(array.shape)
        told = ", ".join(f"{array.shape[d]} over {split[d]}" for d in dimensions)
        yield Found(
            code="TF236",
            title=f"the pieces of {array.name} do not divide it: {told}",
            source=array.source,
            suggestion="Pad the array yourself to a multiple of the pieces, or split a dimension that divides.",
            bytes=shape_bytes(f"{array.dtype}[{padded}]"),
            evidence={"array": array.name, "shape": list(array.shape), "local_shape": list(local)},
        )


def misplaced_arrays(p: Partitioning) -> Iterator[Found]:
    """Arguments and activations that lie otherwise than the author states beside the program."""
    yield from _arguments(p)
    yield from _activations(p)


def _arguments(p: Partitioning) -> Iterator[Found]:
    for array in p.arguments.values():
        for pattern, wanted in p.intent.params.items():
            spec = array.spec or Spec(())
            rank = len(array.shape)
            if fnmatch(array.name, pattern) and spec.padded(rank).dimensions != wanted.padded(rank).dimensions:
                yield Found(
                    code="TF245",
                    title=f"{array.name} lies as {spec}, not as {wanted}",
                    suggestion="Place it with the sharding that was meant, or pass in_shardings to jit.",
                    source=array.source,
                    spec=str(wanted),
                    evidence={"array": array.name},
                )


def _activations(p: Partitioning) -> Iterator[Found]:
    module = p.compilation.propagated
    if module is None:
        return
    for row in range(len(module)):
        shape = shape_of(module, row)
        for pattern, wanted in p.intent.activations.items():
            if len(shape) < len(wanted.dimensions) or not fnmatch(module.operation_name[row], pattern):
                continue
            spec = p.spec(row)
            if spec is not None and spec.dimensions != wanted.padded(len(shape)).dimensions:
                missing = set(wanted.axes) - set(spec.axes)
                yield Found(
                    code="TF233" if missing else "TF245",
                    title=f"{module.operation_name[row]} lies as {spec}, not as {wanted}",
                    whole_row=row,
                    suggestion=f"Constrain it: jax.lax.with_sharding_constraint(..., {wanted}).",
                    spec=str(wanted),
                    evidence={"array": module.operation_name[row]},
                )
