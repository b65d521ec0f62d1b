"""Collectives next to a product that could be cut into rounds, but are not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from traceflow.analyzers.rings.walk import Product, Walk
from traceflow.program.module import HloModule, base_opcode

if TYPE_CHECKING:
    from traceflow.analyzers.rings.rounds import Ring


@dataclass(frozen=True, slots=True)
class Pair:
    """A collective and the product that needs what it gathers, or makes what it sums up."""

    collective: int  # the instruction; of an asynchronous pair, its start
    product: tuple[int, ...]  # the instruction, and what runs it
    members: int  # devices that take part


def pairs(walk: Walk, rings: Iterable[Ring]) -> Iterator[Pair]:
    """Collectives of a program with the product next to them, moves aside, each collective once.

    Args:
        walk: Through the program.
        rings: What is cut already.
    """
    cut = {number for ring in rings for number in ring.products}
    seen: set[int] = set()
    for row, product in _beside(walk):
        start = walk.module.start_of(row)
        members = _members(walk.module, start, walk.devices)
        if product not in cut and start not in seen and members > 1:
            seen.add(start)
            yield Pair(start, walk.events[product].rows, members)


def _beside(walk: Walk) -> Iterator[tuple[int, int]]:
    for number, event in enumerate(walk.events):
        if isinstance(event, Product):
            for block in (event.term.left, event.term.right):
                if base_opcode(walk.module.opcode[block.origin.row]) == "all-gather":
                    yield block.origin.row, number
    for row, found in walk.reduced:
        yield from ((row, term.product) for term in found.terms)


def _members(module: HloModule, row: int, devices: int) -> int:
    groups = module.replica_groups.get(row)
    return len(groups[0]) if groups else devices
