"""Parameters that every device assembles in full, though each was to hold a part."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from traceflow.analyzers.sharding.declared import declared
from traceflow.analyzers.sharding.expectations import expected, implied_by, returned, stated_after
from traceflow.analyzers.sharding.found import Found
from traceflow.analyzers.sharding.partitioning import Collective, Partitioning, shape_of
from traceflow.analyzers.sharding.reductions import cut_to
from traceflow.intent.intent import ArrayIntent
from traceflow.intent.mesh import Axes
from traceflow.intent.spec import local_shape
from traceflow.program.arithmetic import arrays
from traceflow.program.module import HloModule

_PLACING = frozenset({"convert", "copy", "custom-call"})  # what a constraint becomes, and what it may wait for
_ALL_ALONG = frozenset({"reduce-window", "scatter", "sort"})  # what orders, accumulates or writes along a dimension


class Gathered(NamedTuple):
    """An argument that an all-gather assembles, one of several where the compiler combined them."""

    gather: Collective
    part: int  # which of the operands
    argument: ArrayIntent


def gathered_arguments(p: Partitioning) -> Iterator[Gathered]:
    """All-gathers that begin with an argument, through mere moves, and end with the whole of it, or of a layer of it."""
    module = p.divided
    if module is None or p.mesh is None:
        return
    numbers = {row: number for number, row in p.parameters.items()}
    for gather in p.collectives:
        if gather.operation != "all-gather":
            continue
        results = [sorted(size) for _, size in arrays(module.shape[gather.row])]  # whatever order a layout gives them
        operands = module.operands_of(gather.row).tolist()
        for part, operand in enumerate(operands):
            argument = p.arguments.get(numbers.get(p.flow.origin(operand), -1))
            if argument is None or argument.spec is None or not argument.spec.axes:
                continue
            # A loop over layers gathers one layer of what is stacked. The start of a pair has operands and results.
            layer = argument.shape[1:]
            if any(sorted(size) in results for size in (argument.shape, layer, (1, *layer)) if size):
                yield Gathered(gather, part, argument)


def gathered_parameters(p: Partitioning) -> Iterator[Found]:
    """Arguments that are gathered though nothing calls for it.

    It is meant where a product implies it: the other operand needs the axis for another index, as the batch does in
    fully sharded data parallelism; it gathers over exactly the axes that split the argument, in one collective. Where
    the program was not kept before it was divided, which product that is cannot be told, and nothing is said.
    """
    for one in gathered_arguments(p):
        if not (one.gather.written or declared(p, one.gather) or _meant(p, one)):
            yield _found(p, one)


def fully_sharded(p: Partitioning) -> dict[int, frozenset[int]]:
    """The operands of collectives that fully sharded data parallelism means, by row of the collective.

    They are arguments, gathered over exactly the axes that split them, while another argument that is not gathered,
    the batch, is split over these axes as well. What returns to such an argument is its gradient: a reduce-scatter
    over the same axes, to pieces of the size of the argument's own.
    """
    gathered = list(gathered_arguments(p))
    names = {one.argument.name for one in gathered}
    batches = [_batch_axes(a) for a in p.arguments.values() if a.name not in names]
    found: dict[int, set[int]] = {}
    for one in gathered:
        axes = _axes(one.argument)
        if _axes_of(one.gather) == axes and any(axes <= batch for batch in batches):
            found.setdefault(one.gather.row, set()).add(one.part)
    for row, part in _gradients(p, [one.argument for one in gathered if one.gather.row in found]):
        found.setdefault(row, set()).add(part)
    return {row: frozenset(parts) for row, parts in found.items()}


def _batch_axes(argument: ArrayIntent) -> set[str]:
    """The axes that may split a batch: it is no array's last dimension, which holds features, unless it is the only."""
    dimensions = argument.spec.padded(len(argument.shape)).dimensions if argument.spec is not None else ()
    return {axis for axes in dimensions[: max(1, len(dimensions) - 1)] for axis in axes}


def _gradients(p: Partitioning, arguments: list[ArrayIntent]) -> Iterator[tuple[int, int]]:
    """Rows and parts of reduce-scatters whose pieces are as large as those of arguments that lie over their axes."""
    module, mesh = p.divided, p.mesh
    if module is None or mesh is None:
        return
    held = {
        (frozenset(_axes(a)), tuple(sorted(local_shape(a.shape, a.spec, mesh))))
        for a in arguments
        if a.spec is not None
    }
    for collective in p.collectives:
        if collective.operation == "reduce-scatter":
            for part, (_, size) in enumerate(arrays(module.shape[collective.row])):
                if (_axes_of(collective), tuple(sorted(size))) in held:
                    yield collective.row, part


def returned_gradients(p: Partitioning) -> frozenset[int]:
    """All-reduces that bring the gradient of what was gathered back to where it came from.

    The gradient of a gather is a reduce-scatter over its axes. A backend that has none reduces in full and keeps
    pieces of the size of those gathered. No line of the program says so: its author asked for the gather alone.
    """
    module = p.divided
    if module is None:
        return frozenset()
    sharded = fully_sharded(p)
    gathers = [c for c in p.collectives if c.operation == "all-gather" and (c.row in sharded or expected(p, c))]
    pieces = [(c.row, _axes_of(c), size) for c in gathers for size in _operand_sizes(module, c.row)]
    return frozenset(
        c.row
        for c in p.collectives
        if c.operation == "all-reduce" and "transpose(" in module.operation_name[c.row]
        for size in cut_to(p, c.row)
        for gather, axes, piece in pieces
        if (_axes_of(c), _size(size)) == (axes, piece) and c.row not in p.flow.before(gather)
    )


def _operand_sizes(module: HloModule, row: int) -> list[tuple[int, ...]]:
    return [_size(shape_of(module, operand)) for operand in module.operands_of(row).tolist()]


def _size(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Dimensions in whatever order a layout gives them."""
    return tuple(sorted(size for size in shape if size > 1))


def assembled_arrays(p: Partitioning) -> dict[int, tuple[str, ...]]:
    """Names of the arguments that each all-gather assembles, by its row."""
    found: dict[int, tuple[str, ...]] = {}
    for one in gathered_arguments(p):
        found[one.gather.row] = (*found.get(one.gather.row, ()), one.argument.name)
    return found


def _meant(p: Partitioning, one: Gathered) -> bool:
    """Whether its author asks for this gather itself, or what is computed needs it as it is."""
    placed = any(stated_after(p, row) for row in p.causes(one.gather.row, _PLACING))
    if placed or returned(p, one.gather) or next(p.causes(one.gather.row, _ALL_ALONG), None) is not None:
        return True
    if len(_chain(p, one)) > 1 or _axes_of(one.gather) != _axes(one.argument):
        return False
    if p.compilation.propagated is None:
        return True
    implied = [i for row in p.causes(one.gather.row) for i in implied_by(p, row) or ()]
    return any(i.operation == "all-gather" and set(i.axes) == _axes(one.argument) for i in implied)


def _axes(argument: ArrayIntent) -> set[str]:
    return set(argument.spec.axes) if argument.spec is not None else set()


def _axes_of(collective: Collective) -> frozenset[str]:
    return frozenset(collective.axes or ())


def _chain(p: Partitioning, one: Gathered) -> list[Collective]:
    """The collectives between an argument and a gather of it, the gather included."""
    module = p.divided
    start = p.parameters.get(one.argument.number if one.argument.number is not None else -1)
    if module is None:
        return [one.gather]
    operand = int(module.operands_of(one.gather.row)[one.part])
    between = set(p.flow.before(operand, lambda row: row != start and p.flow.moves(row))) | {one.gather.row}
    return [c for c in p.collectives if c.row in between]


def _found(p: Partitioning, one: Gathered) -> Found:
    name, spec = one.argument.name, one.argument.spec
    why = f"it lies over {_named(tuple(_ordered(one.argument)))}, the gather runs over {_named(one.gather.axes)}"
    if _axes_of(one.gather) == _axes(one.argument):
        why = "no product needs the axis for another index"
    over = _named(tuple(_ordered(one.argument)))
    return Found(
        code="TF231",
        title=f"every device assembles all of {name}: {why}",
        rows=tuple(c.row for c in _chain(p, one)),
        suggestion=(
            f"Let what is computed with {name} lie over {over} as well, or state where its result is to lie so that"
            " partial sums are reduced instead."
        ),
        evidence={"array": name, "intended": str(spec)},
    )


def _ordered(argument: ArrayIntent) -> Axes:
    return argument.spec.axes if argument.spec is not None else ()


def _named(axes: Axes | None) -> str:
    return ", ".join(axes) if axes else "devices that no axis joins"
