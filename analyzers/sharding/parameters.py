"""Parameters that every device assembles in full, though each was to hold a part."""

from __future__ import annotations

from collections.abc import Iterator

from traceflow.analyzers.sharding.declared import declared
from traceflow.analyzers.sharding.expectations import implied_by
from traceflow.analyzers.sharding.found import Found
from traceflow.analyzers.sharding.partitioning import Collective, Partitioning, shape_of
from traceflow.intent.mesh import Axes
from traceflow.intent.spec import Spec, replica_axes


def gathered_parameters(p: Partitioning) -> Iterator[Found]:
    """All-gathers that begin with an argument, through mere moves, and end with the whole of it.

    One is meant where a product implies it: the other operand needs the axis for another index, as the batch does in
    fully sharded data parallelism; it gathers over exactly the axes that split the argument, in one collective.
    """
    module = p.divided
    if module is None or p.mesh is None:
        return
    numbers = {row: number for number, row in p.parameters.items()}
    for gather in p.collectives:
        if gather.operation != "all-gather" or gather.written or declared(p, gather):
            continue
        origin = p.flow.origin(gather.row)
        argument = p.arguments.get(numbers.get(origin, -1))
        if argument is None or argument.spec is None or not argument.spec.axes:
            continue
        if shape_of(module, gather.row) == argument.shape and not _meant(p, gather, argument.spec, origin):
            yield _found(p, gather, argument.name, argument.spec, origin)


def _meant(p: Partitioning, gather: Collective, spec: Spec, origin: int) -> bool:
    """Whether a product implies this gather as it is."""
    if len(_chain(p, gather, origin)) > 1 or set(gather.axes or ()) != set(spec.axes):
        return False
    if p.compilation.propagated is None:
        return True  # how the other operand lies is not known: it may well need the axis
    implied = [one for row in p.causes(gather.row) for one in implied_by(p, row) or ()]
    return any(one.operation == "all-gather" and set(one.axes) == set(spec.axes) for one in implied)


def _chain(p: Partitioning, gather: Collective, origin: int) -> list[Collective]:
    """The collectives between an argument and a gather of it, the gather included."""
    between = set(p.flow.before(gather.row, lambda row: row != origin and p.flow.moves(row)))
    return [c for c in p.collectives if c.row in between]


def _found(p: Partitioning, gather: Collective, name: str, spec: Spec, origin: int) -> Found:
    chain = _chain(p, gather, origin)
    over = _named(gather.axes)
    why = f"it lies over {_named(spec.axes)}, the gather runs over {over}"
    if set(gather.axes or ()) == set(spec.axes):
        why = "no product needs the axis for another index"
    used = p.mesh is not None and replica_axes(spec, p.mesh)
    return Found(
        code="TF231",
        title=f"every device assembles all of {name}: {why}",
        rows=tuple(c.row for c in chain),
        suggestion=(
            f"Let what is computed with {name} lie over {_named(spec.axes)} as well, or state where its result is to"
            " lie so that partial sums are reduced instead."
        ),
        evidence={"array": name, "spec": str(spec), "replica_axes": list(used or ())},
    )


def _named(axes: Axes | None) -> str:
    return ", ".join(axes) if axes else "devices that no axis joins"
