"""The rounds of a ring: which products and permutes belong together, and which block each device has in which round."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import cast

import numpy as np

from traceflow.analyzers.rings.values import NOBODY, Block, Sum, Term
from traceflow.analyzers.rings.walk import Permute, Product, Walk
from traceflow.trace.model import Int64


@dataclass(frozen=True, slots=True, eq=False)
class Round:
    """One product of a ring, on all devices."""

    number: int
    product: int  # the event
    term: Term
    block: Int64  # [device]: whose block it multiplies; of sums that travel, where the sum ends
    arrived_by: int | None  # the permute that brought the block, or the sum that the product is added to
    hides: tuple[int, ...]  # the permutes that may run meanwhile


@dataclass(frozen=True, eq=False)
class Ring:
    """Products and permutes that belong together."""

    walk: Walk
    products: tuple[int, ...]
    permutes: tuple[int, ...]

    @cached_property
    def sum(self) -> Sum | None:
        """The sum of most of the products."""
        own = set(self.products)
        sums = [one for one in self.walk.sums if any(term.product in own for term in one.terms)]
        return max(sums, key=lambda one: len(one.terms), default=None)

    @cached_property
    def sums_travel(self) -> bool:
        """Whether sums are sent, and no blocks."""
        return not any(isinstance(self.permute(number).moved, Block) for number in self.permutes)

    @cached_property
    def orbits(self) -> tuple[frozenset[int], ...]:
        """The devices among which things travel."""
        return _orbits([self.permute(number).senders for number in self.permutes], self.walk.devices)

    @cached_property
    def size(self) -> int:
        """Devices of the ring."""
        return max(map(len, self.orbits))

    @cached_property
    def rounds(self) -> tuple[Round, ...]:
        """Its products, in the order in which blocks come or sums pass."""
        found = self._of_sums() if self.sums_travel else self._of_blocks()
        return tuple(sorted(found, key=lambda one: (one.number, one.product)))

    def permute(self, number: int) -> Permute:
        """An event that is a permute."""
        return cast("Permute", self.walk.events[number])

    def product(self, number: int) -> Product:
        """An event that is a product."""
        return cast("Product", self.walk.events[number])

    def moving(self, term: Term) -> tuple[Block, bool]:
        """The operand of a product that travels, and whether it is the left one."""
        moved = {id(b.origin) for n in self.permutes if isinstance(b := self.permute(n).moved, Block)}
        left = bool(term.left.hops) or (not term.right.hops and id(term.left.origin) in moved)
        return (term.left if left else term.right), left

    def _of_blocks(self) -> Iterator[Round]:
        terms = [(number, self.product(number).term) for number in self.products]
        blocks = {number: self.moving(term)[0] for number, term in terms}
        first = min(len(block.hops) for block in blocks.values())
        for number, term in terms:
            hops = blocks[number].hops
            sent = tuple(n for n in self.permutes if _sends(self.permute(n), blocks[number]))
            yield Round(len(hops) - first, number, term, blocks[number].owner, hops[-1] if hops else None, sent)

    def _of_sums(self) -> Iterator[Round]:
        if self.sum is None:
            return
        chain = max((term.hops for term in self.sum.terms), key=len)
        for term in self.sum.terms:
            passed = len(chain) - len(term.hops)
            arrived = chain[passed - 1] if passed else None
            ends = np.full(self.walk.devices, NOBODY)
            ends[term.left.owner] = np.arange(self.walk.devices)
            own = self.product(term.product).term
            yield Round(passed, term.product, own, ends, arrived, () if arrived is None else (arrived,))


def _sends(permute: Permute, block: Block) -> bool:
    """Whether a permute sends on the block that a product multiplies."""
    moved = permute.moved
    return isinstance(moved, Block) and moved.origin is block.origin and moved.hops == block.hops


def _orbits(senders: Sequence[Int64], devices: int) -> tuple[frozenset[int], ...]:
    groups = _Groups(devices)
    for column in senders:
        for receiver, sender in enumerate(column.tolist()):
            if sender != NOBODY:
                groups.join(receiver, sender)
    return tuple(map(frozenset, groups.members()))


class _Groups:
    """Numbers that belong together."""

    def __init__(self, count: int) -> None:
        self._parent = list(range(count))

    def join(self, one: int, other: int) -> None:
        """Put two numbers, and all that belong to either, together."""
        self._parent[self._first(one)] = self._first(other)

    def members(self) -> Iterable[list[int]]:
        """The groups, each in order."""
        groups: dict[int, list[int]] = {}
        for number in range(len(self._parent)):
            groups.setdefault(self._first(number), []).append(number)
        return groups.values()

    def _first(self, number: int) -> int:
        while self._parent[number] != number:
            self._parent[number] = self._parent[self._parent[number]]
            number = self._parent[number]
        return number


def rings(walk: Walk) -> Iterator[Ring]:
    """The rings of a program: at least two products with blocks, or of sums, that came through different permutes.

    A block that was sent once before it is multiplied is no ring, nor is what pipelines and changes of layout do.
    """
    groups = _Groups(len(walk.events))
    for one, other in (*_by_origin(walk), *_by_hops(walk), *walk.together):
        groups.join(one, other)
    for members in groups.members():
        products = [number for number in members if isinstance(walk.events[number], Product)]
        permutes = [number for number in members if isinstance(walk.events[number], Permute)]
        if products and permutes:
            yield from _ring(walk, products, permutes)


def _ring(walk: Walk, products: list[int], permutes: list[int]) -> Iterator[Ring]:
    found = Ring(walk, tuple(products), tuple(permutes))
    if found.sums_travel:
        travelled = {len(term.hops) for term in found.sum.terms} if found.sum else set()
        if len(travelled) > 1:
            yield found
        return
    repeated = tuple(_in_rounds(found))
    ring = Ring(walk, repeated or found.products, found.permutes)
    travelled = {len(ring.moving(ring.product(n).term)[0].hops) for n in ring.products}
    if len(travelled) > 1 and (repeated or len(travelled) >= ring.size):
        yield ring


def _in_rounds(ring: Ring) -> Iterator[int]:
    """Products whose other operand meets more than one block; one that merely uses the block as well is another's.

    There may be none: what is computed anew in each round is no operand of another.
    """
    by_resident: dict[int, list[int]] = {}
    for number in ring.products:
        term = ring.product(number).term
        resident = term.right if ring.moving(term)[1] else term.left
        by_resident.setdefault(id(resident.origin), []).append(number)
    yield from sorted(number for numbers in by_resident.values() if len(numbers) > 1 for number in numbers)


def _by_origin(walk: Walk) -> Iterator[tuple[int, int]]:
    """Events about one array that is sent somewhere."""
    sent: dict[int, int] = {}
    for number, event in enumerate(walk.events):
        if isinstance(event, Permute) and isinstance(event.moved, Block):
            yield number, sent.setdefault(id(event.moved.origin), number)
    for number, event in enumerate(walk.events):
        if isinstance(event, Product):
            for block in (event.term.left, event.term.right):
                if id(block.origin) in sent:
                    yield number, sent[id(block.origin)]


def _by_hops(walk: Walk) -> Iterator[tuple[int, int]]:
    """Permutes, and what came through them."""
    for number, event in enumerate(walk.events):
        if isinstance(event, Product):
            came = (*event.term.left.hops, *event.term.right.hops)
        elif isinstance(event.moved, Sum):
            came = (*event.moved.hops, *(term.product for term in event.moved.terms))
        else:
            came = event.moved.hops if event.moved is not None else ()
        yield from ((number, other) for other in came)
