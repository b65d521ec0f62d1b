"""Products whose sum only one operand splits."""

from __future__ import annotations

from collections.abc import Iterator

from traceflow.analyzers.sharding.found import Found
from traceflow.analyzers.sharding.partitioning import Partitioning, shape_of
from traceflow.intent.mesh import Axes
from traceflow.intent.spec import Spec
from traceflow.program.module import HloModule


def one_sided_products(p: Partitioning) -> Iterator[Found]:
    """Products whose summed index one operand splits, while the other lies whole on every device.

    Each device then reads only its part of the whole operand, which could lie there alone. An operand that uses the
    axis for another index is a different matter: the axis cannot serve both.
    """
    module = p.compilation.propagated
    if module is None:
        return
    for row, dot in module.dots.items():
        sides = p.whole_operands(row)[:2]
        specs = [p.spec(side) for side in sides]
        pairs = zip(dot.left_contracting, dot.right_contracting, strict=True)
        for left, right in pairs:
            yield from _one_sided(p, module, row, sides, specs, (left, right))


def _one_sided(
    p: Partitioning,
    module: HloModule,
    row: int,
    sides: list[int],
    specs: list[Spec | None],
    dimensions: tuple[int, int],
) -> Iterator[Found]:
    one, other = specs
    if one is None or other is None:
        return
    splits = [spec.dimensions[d] for spec, d in zip((one, other), dimensions, strict=True)]
    for split, whole in ((0, 1), (1, 0)):
        axes = splits[split]
        spec = (one, other)[whole]
        whole_row = sides[whole]
        if axes and not splits[whole] and not set(axes) & set(spec.axes) and _is_argument(p, module, whole_row):
            better = Spec(tuple(axes if d == dimensions[whole] else s for d, s in enumerate(spec.dimensions)))
            yield _found(module, row, whole_row, axes, better)


def _is_argument(p: Partitioning, module: HloModule, row: int) -> bool:
    """Whether an operand is an argument as it is: what is computed may have its reasons to lie whole."""
    flow = p.whole_flow
    at = row if flow is None else flow.origin(row)
    return module.opcode[at] == "parameter" and bool(shape_of(module, at))


def _found(module: HloModule, row: int, whole: int, axes: Axes, better: Spec) -> Found:
    over = ", ".join(axes)
    name = module.operation_name[whole] or module.instruction_name[whole]
    return Found(
        code="TF237",
        title=f"a product sums an index that only one operand splits over {over}: all of {name} lies on every device",
        whole_row=row,
        suggestion=f"Let {name} lie as {better}: each device reads no other part of it.",
        spec=str(better),
        evidence={"array": name, "axes": list(axes)},
    )
