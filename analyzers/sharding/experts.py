"""Experts that are all computed for all tokens, only for most results to be thrown away.

The weights of experts are arguments. All experts see the same tokens: in one product with an index that the tokens
lack, in one product for each, or in a product of tokens that were masked for each. A choice then keeps few of the
results: a mask or an index that is made from scores by telling the largest. A mask that no scores enter, as of
attention or dropout, chooses no expert, nor do scores themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from traceflow.analyzers.sharding.flow import Flow
from traceflow.analyzers.sharding.found import Found
from traceflow.analyzers.sharding.partitioning import Partitioning, shape_of
from traceflow.program.arithmetic import arrays
from traceflow.program.module import HloModule

_SORTING = frozenset({"sort", "topk"})
_SORTING_CALLS = ("TopK", "mhlo.topk", "__gpu$TopK")
_RANKING = frozenset({"reduce", "iota", *_SORTING})  # what a comparison needs to tell the largest, or an index
_WEIGHING = frozenset({"multiply", "select"})
_SPREADING = frozenset({"broadcast", "reshape", "transpose", "convert", "copy", "call", "parameter"})


class _Experts(NamedTuple):
    """Experts that are all computed."""

    product: int
    number: int
    tokens: int  # the row of them
    mask: int


class _Product(NamedTuple):
    """A product of something with the weights of experts."""

    row: int
    weights: int
    stack: int  # the argument that they are, or are cut from
    tokens: int
    free: tuple[int, ...]  # sizes of indices that only the weights have
    batch: tuple[int, ...]  # sizes of indices that both have and the result keeps


def masked_experts(p: Partitioning) -> Iterator[Found]:
    """Products of all tokens with the weights of all experts, of which a choice then keeps few results."""
    module = p.compilation.written
    if module is None:
        return
    search = _Search(module)
    for found in (*search.together(), *search.one_by_one(), *search.masked_before()):
        yield _found(module, found)
        return


def _found(module: HloModule, experts: _Experts) -> Found:
    rows = shape_of(module, experts.tokens)
    return Found(
        code="TF244",
        title=f"all {experts.number} experts are computed for all tokens, and a mask leaves most of them out",
        source=module.source[experts.product],
        suggestion=(
            "Send tokens to their experts (all_to_all with a capacity) or sort them by expert and multiply groups"
            " (ragged_dot): then each expert computes the rows that chose it."
        ),
        evidence={
            "instruction": module.instruction_name[experts.product],
            "experts": experts.number,
            "tokens": rows[0] if rows else None,
            "mask": module.instruction_name[experts.mask],
        },
    )


class _Search:
    """The ways in which experts are masked, in one program."""

    def __init__(self, module: HloModule) -> None:
        self.module = module
        self.flow = Flow(module)
        self.chosen = self._chosen()
        self.entered = [(row, factor) for factor in sorted(self.chosen) for row in self.flow.users[factor]]
        self.products = [product for row in module.dots for product in self._products(row)] if self.chosen else []

    def _products(self, row: int) -> Iterator[_Product]:
        """A product, either side taken for the weights, where that side is an argument or cut from one."""
        dot, operands = self.module.dots[row], self.module.operands_of(row)[:2].tolist()
        sides = (dot.left_contracting, dot.left_batch), (dot.right_contracting, dot.right_batch)
        for side, (contracted, batch) in enumerate(sides):
            shape = shape_of(self.module, operands[side])
            free = tuple(size for d, size in enumerate(shape) if d not in (*contracted, *batch))
            stack = self.flow.origin(operands[side])  # moved or gathered at most
            if self.module.opcode[stack] in {"parameter", "get-tuple-element"}:
                sizes = tuple(shape[d] for d in batch)
                yield _Product(row, operands[side], stack, operands[1 - side], free, sizes)

    def together(self) -> Iterator[_Experts]:
        """One product with an index of the experts that the tokens lack, combined by a mask or picked by an index."""
        for one in self.products:
            if len(one.free) > 1 and not one.batch and one.free[0] > 1:
                mask = self._mask(one.row, one.free[0], apart=False)
                if mask is not None:
                    yield _Experts(one.row, one.free[0], one.tokens, mask)

    def one_by_one(self) -> Iterator[_Experts]:
        """The same tokens with the weights of one expert after another, each result masked."""
        for one in self.products:
            number = self._number(one)
            mask = self._mask(one.row, number, apart=True) if number > 1 and not one.batch else None
            if mask is not None:
                yield _Experts(one.row, number, one.tokens, mask)

    def _number(self, one: _Product) -> int:
        """How many experts, of one stack or of arguments that are alike, see the same tokens in products of their own."""
        stack, shape = shape_of(self.module, one.stack), shape_of(self.module, one.weights)
        is_part = len([size for size in shape if size > 1]) < len(stack)
        looped = self.module.computation[self.flow.origin(one.tokens)] != self.module.computation[one.row]
        if is_part and looped:
            return stack[0]
        alike = {
            other.row
            for other in self.products
            if other.tokens == one.tokens
            and shape_of(self.module, other.weights) == shape
            and (other.stack == one.stack if is_part else other.stack == other.weights)
        }
        return len(alike)

    def masked_before(self) -> Iterator[_Experts]:
        """Tokens that are masked for each expert, and still are multiplied by all of them."""
        for one in self.products:
            for row in self._spread(one.tokens) if one.batch else ():
                number = one.batch[0]
                for mask, spread in self._factors(row):
                    tokens = self._narrow(spread)
                    masks = number in shape_of(self.module, mask) and mask in self.chosen
                    if number > 1 and masks and number not in shape_of(self.module, tokens):
                        yield _Experts(one.row, number, tokens, mask)

    def _factors(self, row: int) -> Iterator[tuple[int, int]]:
        """The operands of what weighs its operands element by element, either one first."""
        dot, operands = self.module.dots.get(row), self.module.operands_of(row).tolist()
        if self.module.opcode[row] in _WEIGHING or (dot is not None and not dot.left_contracting):
            yield from ((one, other) for one in operands for other in operands if one != other)

    def _spread(self, row: int) -> Iterator[int]:
        """What a value was before it was repeated along other dimensions, itself first."""
        spreads = self.module.opcode[row] in _SPREADING
        return self.flow.made_of(row, lambda at: self.module.opcode[at] in _SPREADING) if spreads else iter((row,))

    def _narrow(self, row: int) -> int:
        *_, last = self._spread(row)
        return last

    def _mask(self, product: int, experts: int, *, apart: bool) -> int | None:
        """What keeps few of the results of a product by a choice, where results of experts are together or apart."""
        made = set(self.flow.makes(product)) if self.entered else set()
        for row, factor in self.entered:
            if row not in made or factor in made:
                continue
            if self._picks(row, factor) or self._combines(row, factor, experts) or (apart and self._adds(row)):
                return factor
        return None

    def _picks(self, row: int, factor: int) -> bool:
        return self.module.opcode[row] == "gather" and factor == int(self.module.operands_of(row)[1])

    def _combines(self, row: int, factor: int, experts: int) -> bool:
        """Whether experts are weighed by a factor, and summed."""
        if row in self.module.dots:
            dot, shape = self.module.dots[row], shape_of(self.module, factor)
            left = int(self.module.operands_of(row)[0]) == factor
            return [shape[d] for d in (dot.left_contracting if left else dot.right_contracting)] == [experts]
        weighs = self.module.opcode[row] in _WEIGHING and experts in shape_of(self.module, factor)
        return weighs and any(self._sums(at, experts) for at in self._moved(row))

    def _sums(self, row: int, experts: int) -> bool:
        if self.module.opcode[row] != "reduce":
            return False
        shape = shape_of(self.module, int(self.module.operands_of(row)[0]))
        return any(d < len(shape) and shape[d] == experts for d in self.module.dimensions.get(row, ()))

    def _adds(self, row: int) -> bool:
        """Whether what is weighed is added to the results of other experts."""
        opcode = self.module.opcode
        return opcode[row] in _WEIGHING and any(opcode[at] == "add" for at in self._moved(row))

    def _moved(self, row: int) -> Iterator[int]:
        """What uses a value as it is, where it is only moved before, or goes in and out of calls."""
        borders = {"call", "parameter"}
        return self.flow.makes(row, lambda at: self.module.opcode[at] in borders or self.flow.moves(at))

    def _chosen(self) -> frozenset[int]:
        """What is made of choices: masks and indices, up to the products that they enter.

        A choice tells the largest of what is given, or compares scores by their rank.
        """
        opcode, shape = self.module.opcode, self.module.shape
        rows = range(len(self.module))
        scored = self._behind(self.module.dots)
        given = scored | self._behind(row for row in rows if opcode[row] == "parameter")
        ranked = self._behind(row for row in rows if opcode[row] in _RANKING)
        finding = (row for row in rows if opcode[row] == "reduce" and len(arrays(shape[row])) > 1)  # the index as well
        sorting = (row for row in rows if self._sorts(row))
        comparing = (row for row in rows if opcode[row] == "compare" and row in ranked and row in scored)
        return self._behind([*(given & {*finding, *sorting}), *comparing])

    def _sorts(self, row: int) -> bool:
        target = self.module.custom_call_target.get(row, "")
        return self.module.opcode[row] in _SORTING or target.startswith(_SORTING_CALLS)

    def _behind(self, rows: Iterable[int]) -> frozenset[int]:
        """Some values and what is made of them, up to the products that they enter."""
        waiting = list(rows)
        seen = set(waiting)
        for row in waiting:
            new = [at for at in self.flow.results[row] if at not in seen]
            seen.update(new)
            waiting += [at for at in new if at not in self.module.dots]
        return frozenset(seen)
