"""Experts that are all computed for all tokens, only for most results to be multiplied by zero."""

from __future__ import annotations

from collections.abc import Iterator

from traceflow.analyzers.sharding.flow import Flow
from traceflow.analyzers.sharding.found import Found
from traceflow.analyzers.sharding.partitioning import Partitioning, shape_of
from traceflow.program.module import HloModule

# What chooses: a mask or an index made by one of these leaves most elements out.
_CHOOSING = frozenset({"compare", "sort", "topk"})
_CHOOSING_CALLS = ("TopK", "mhlo.topk", "__gpu$TopK")


def masked_experts(p: Partitioning) -> Iterator[Found]:
    """Products of tokens with the weights of all experts, whose results a chosen mask then combines.

    The first product has an index of the weights that the tokens lack, with weights of three dimensions or more: the
    experts. The mask has tokens and experts, comes from a choice among experts, and does not depend on that product.
    It is multiplied with what the product became, and the experts are summed.
    """
    module = p.compilation.written
    if module is None:
        return
    flow = Flow(module)
    for row, dot in module.dots.items():
        for weights, tokens, contracted, batch in (
            (0, 1, dot.left_contracting, dot.left_batch),
            (1, 0, dot.right_contracting, dot.right_batch),
        ):
            side, other = (int(module.operands_of(row)[i]) for i in (weights, tokens))
            shape = shape_of(module, side)
            free = [shape[d] for d in range(len(shape)) if d not in (*contracted, *batch)]
            if len(shape) < 3 or len(free) < 2 or batch or not _is_weight(flow, module, side):
                continue
            experts = free[0]
            if experts > 1 and (mask := _mask(flow, module, row, experts)) is not None:
                yield _found(module, row, experts, mask, other)
                return


def _found(module: HloModule, row: int, experts: int, mask: int, tokens: int) -> Found:
    rows = shape_of(module, tokens)
    return Found(
        code="TF244",
        title=f"all {experts} experts are computed for all tokens, and a mask leaves most of them out",
        source=module.source[row],
        suggestion=(
            "Send tokens to their experts (all_to_all with a capacity) or sort them by expert and multiply groups"
            " (ragged_dot): then each expert computes the rows that chose it."
        ),
        evidence={
            "instruction": module.instruction_name[row],
            "experts": experts,
            "tokens": rows[0] if rows else None,
            "mask": module.instruction_name[mask],
        },
    )


def _is_weight(flow: Flow, module: HloModule, row: int) -> bool:
    """Whether a value is an argument of the computation, moved or gathered at most."""
    return module.opcode[flow.origin(row)] == "parameter"


def _mask(flow: Flow, module: HloModule, product: int, experts: int) -> int | None:
    """What combines the results of a product by a choice among experts."""
    made = set(flow.after(product))
    for row in made:
        for factor in map(int, module.operands_of(row)):
            if factor in made or experts not in shape_of(module, factor):
                continue
            combines = row in module.dots and _sums_experts(module, row, factor, experts)
            weighs = module.opcode[row] in {"multiply", "select"} and _summed_later(flow, module, row, experts)
            if (combines or weighs) and _is_chosen(flow, module, factor):
                return factor
    return None


def _sums_experts(module: HloModule, row: int, factor: int, experts: int) -> bool:
    dot = module.dots[row]
    left = int(module.operands_of(row)[0]) == factor
    shape = shape_of(module, factor)
    return any(shape[d] == experts for d in (dot.left_contracting if left else dot.right_contracting))


def _summed_later(flow: Flow, module: HloModule, row: int, experts: int) -> bool:
    """Whether the experts are summed by a reduction of what was weighed, moved at most."""
    for at in flow.after(row, lambda r: r == row or flow.moves(r)):
        if module.opcode[at] == "reduce":
            shape = shape_of(module, int(module.operands_of(at)[0]))
            if any(d < len(shape) and shape[d] == experts for d in module.dimensions.get(at, ())):
                return True
    return False


def _is_chosen(flow: Flow, module: HloModule, row: int) -> bool:
    """Whether a choice is made between the product that scores the experts and a mask."""
    return any(
        module.opcode[at] in _CHOOSING or module.custom_call_target.get(at, "").startswith(_CHOOSING_CALLS)
        for at in flow.before(row, lambda at: at not in module.dots)
    )
