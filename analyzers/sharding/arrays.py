"""Every array that a program names, as it was meant to lie and as it does."""

from __future__ import annotations

from collections.abc import Iterator

from traceflow.analyzers.sharding.partitioning import Partitioning
from traceflow.analyzers.sharding.result import ArrayRow
from traceflow.errors import TraceflowError
from traceflow.intent.hlo_sharding import spec_of
from traceflow.intent.intent import ArrayIntent, Role
from traceflow.intent.spec import Spec, local_shape
from traceflow.program.sharding import parse_sharding


def array_rows(p: Partitioning) -> Iterator[ArrayRow]:
    """Arguments, constraints and results, in the order of the program."""
    for array in p.intent.arrays:
        compiled = _compiled(p, array)
        intended = array.spec
        yield ArrayRow(
            p.compilation.name,
            array.name,
            array.role.value,
            array.dtype,
            array.shape,
            intended,
            compiled,
            _local(p, array.shape, compiled),
            None if intended is None or compiled is None else _same(intended, compiled, len(array.shape)),
            array.source,
        )


def _same(one: Spec, other: Spec, rank: int) -> bool:
    return one.padded(rank).dimensions == other.padded(rank).dimensions


def _local(p: Partitioning, shape: tuple[int, ...], spec: Spec | None) -> tuple[int, ...] | None:
    if p.mesh is None or spec is None:
        return None
    try:
        return local_shape(shape, spec, p.mesh)
    except TraceflowError:
        return None


def _compiled(p: Partitioning, array: ArrayIntent) -> Spec | None:
    """How the compiler laid an array out: an argument as the divided program has it, another value by its place."""
    if p.mesh is None:
        return None
    rank = len(array.shape)
    if array.role is Role.ARGUMENT and array.number is not None:
        module, row = p.divided, p.parameters.get(array.number)
        if module is None or row is None:
            return None
        text = module.sharding.get(row)
        return Spec(((),) * rank) if text is None else spec_of(parse_sharding(text), p.mesh, rank)
    module = p.compilation.propagated
    rows = p.at(array.name, array.source)
    specs = [
        spec
        for row in rows
        if module is not None and (spec := p.spec(row)) is not None and len(spec.dimensions) == rank
    ]
    return specs[-1] if specs else None
