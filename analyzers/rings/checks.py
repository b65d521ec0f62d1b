"""Whether a ring computes what it is for, sends no more than it must, and can hide what it sends."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from traceflow.analyzers.rings.values import NOBODY, Assembled, Parts, Sum, Term, Value
from traceflow.analyzers.rings.walk import Walk, offsets
from traceflow.program.sharding import ShardingKind, parse_sharding
from traceflow.result import Json
from traceflow.trace.model import Int64

if TYPE_CHECKING:
    from traceflow.analyzers.rings.rounds import Ring, Round


@dataclass(frozen=True, slots=True)
class Flaw:
    """Something wrong with a ring."""

    code: str
    title: str
    suggestion: str
    evidence: dict[str, Json]


def used(ring: Ring, one: Round) -> tuple[Int64, int] | None:
    """Which part of the operand that stays a product uses: [device] where it begins, and how long it is.

    None where it is used whole, as where blocks of rows travel and each gives rows of the result.
    """
    travels = None if ring.sums_travel else ring.moving(one.term)[0]
    for block in (one.term.left, one.term.right):
        if block is travels:
            continue
        for at, size in enumerate(block.sizes):
            if block.divided(at):
                return block.starts[at], size
    return None


def matches(ring: Ring) -> dict[int, bool | None]:
    """By product, whether on every device the two operands are about the same part of what is summed over.

    Where both lie in whole arrays of which the layout is known, positions are compared. Elsewhere a block must meet
    the same part of the other operand on every device and in every round, and different blocks different parts.
    """
    differences = {one.product: _difference(one.term) for one in ring.rounds}
    known = [column for found in differences.values() if found is not None for column in found]
    if not known or any(found is None for found in differences.values()):
        return dict.fromkeys(differences, None) if ring.sums_travel else _consistent(ring)
    offset = known[0].flat[0] if len(np.unique(np.concatenate(known))) == 1 else 0
    return {number: all((c == offset).all() for c in found or ()) for number, found in differences.items()}


def _difference(term: Term) -> list[Int64] | None:
    """[device] per summed dimension, how far the operands are apart in their whole arrays."""
    found = []
    for left, right in term.contracted():
        one, other = term.left.placed(left), term.right.placed(right)
        if one is None or other is None:
            return None
        found.append(np.broadcast_to(one - other, term.left.owner.shape))
    return found or None


def _consistent(ring: Ring) -> dict[int, bool | None]:
    met: dict[tuple[int, ...], tuple[int, ...]] = {}
    found: dict[int, bool | None] = {}
    for one in ring.rounds:
        moving, left = ring.moving(one.term)
        resident = one.term.right if left else one.term.left
        pairs = [(m, r) if left else (r, m) for m, r in one.term.contracted()]
        if not any(resident.divided(r) for _, r in pairs):
            found[one.product] = None
            continue
        columns = [np.broadcast_to(moving.starts[m], moving.owner.shape) for m, _ in pairs]
        theirs = [np.broadcast_to(resident.starts[r], moving.owner.shape) for _, r in pairs]
        keys = zip(moving.owner.tolist(), *(c.tolist() for c in columns), strict=True)
        values = zip(*(c.tolist() for c in theirs), strict=True)
        same = [met.setdefault(key, value) == value for key, value in zip(keys, values, strict=True)]
        found[one.product] = all(same)
    return found


def flaws(ring: Ring) -> Iterator[Flaw]:
    """What is wrong with a ring, the gravest first."""
    yield from _wrong_rows(ring)
    yield from _wrong_sum(ring)
    yield from _sent_in_vain(ring)
    yield from _in_turn(ring)


def _name(ring: Ring, number: int) -> str:
    return ring.walk.module.instruction_name[ring.walk.events[number].rows[0]]


def _wrong_rows(ring: Ring) -> Iterator[Flaw]:
    """Blocks that meet rows of another block."""
    fits = matches(ring)
    wrong = [one for one in ring.rounds if fits[one.product] is False]
    if not wrong:
        return
    first = wrong[0]
    found, part = _difference(first.term), used(ring, first)
    device = 0 if found is None else int(np.flatnonzero(np.any([c != 0 for c in found], axis=0))[0])
    rows = "" if part is None else f" and rows from {int(np.broadcast_to(part[0], first.block.shape)[device])}"
    yield Flaw(
        "TF260",
        f"{len(wrong)} of {len(ring.rounds)} rounds use rows of other blocks: in round {first.number} device {device} "
        f"has the block of {int(first.block[device])}{rows}",
        "a device that receives from the one after it has the block of (index + round) mod N; let the slice follow it",
        {"rounds": [one.number for one in wrong], "device": device, "product": _name(ring, first.product)},
    )


def _wrong_sum(ring: Ring) -> Iterator[Flaw]:
    for title, number in (*_mixed(ring), *_incomplete(ring), *_again(ring), *_misplaced(ring)):
        yield Flaw(
            "TF261",
            title,
            "add on each device what belongs to its own part of the result, each block once, and let sums end there",
            {"product": _name(ring, number)},
        )
        return


def _mixed(ring: Ring) -> Iterator[tuple[str, int]]:
    """Sums of terms that belong to different places of the result."""
    whole = ring.sum
    if whole is None:
        return
    for term in whole.terms[1:]:
        for at in range(len(whole.sizes)):
            one, other = _place(whole, whole.terms[0], at), _place(whole, term, at)
            if one is not None and other is not None and (one != other).any():
                yield "a sum adds up products that belong to different parts of the result", term.product
                return


def _place(whole: Sum, term: Term, at: int) -> Int64 | None:
    """Where a dimension of a term begins: in the whole product, else in what the device has."""
    placed = whole.placed(term, at)
    if placed is not None or whole.axes[at] < 0:
        return placed
    block, dimension = term.dimensions()[whole.axes[at]]
    return block.starts[dimension] + whole.starts[at]


def _incomplete(ring: Ring) -> Iterator[tuple[str, int]]:
    """Blocks that a device never multiplies; or, of sums, devices that one passes twice while it leaves others out."""
    blocks = np.array([one.block for one in ring.rounds])
    for device in range(ring.walk.devices):
        met = set(blocks[:, device].tolist()) - {NOBODY}
        if len(met) < _orbit_size(ring, device):
            what = "adds to fewer sums" if ring.sums_travel else "multiplies fewer blocks"
            yield f"device {device} {what} than there are devices in the ring", ring.rounds[-1].product
            return


def _orbit_size(ring: Ring, device: int) -> int:
    return next(len(orbit) for orbit in ring.orbits if device in orbit)


def _again(ring: Ring) -> Iterator[tuple[str, int]]:
    """Complete sums that a collective adds up over the devices of the ring."""
    own, module = set(ring.products), ring.walk.module
    for row, one in ring.walk.reduced:
        products = [term.product for term in one.terms if term.product in own]
        groups = module.replica_groups.get(row) or (tuple(range(ring.walk.devices)),)
        inside = any(len(set(group) & orbit) > 1 for group in groups for orbit in ring.orbits)
        if len(products) == len(own) and inside:
            name = module.instruction_name[row]
            yield f"{name} adds up over the devices what is complete on each: the result is too large", products[0]


def _misplaced(ring: Ring) -> Iterator[tuple[str, int]]:
    """Results that lie elsewhere than the program says, and rows at another's place."""
    own = set(ring.products)
    for whole, places in _results(ring.walk):
        for term in whole.terms:
            if term.product in own and not _lies(whole, term, places):
                yield "sums end on other devices than those that have their part of the result", term.product
                return
    largest = max(ring.walk.arrays, key=lambda one: _parts_of(one, own), default=None)
    if largest is not None:
        yield from ((_ELSEWHERE, number) for number in _elsewhere(largest, own))


def _parts_of(found: Assembled, own: set[int]) -> int:
    return sum(any(term.product in own for term in part.terms) for _, part in found.parts)


_ELSEWHERE = "products are put where those of another block belong"


def _lies(whole: Sum, term: Term, places: tuple[Int64, ...]) -> bool:
    placed = (whole.placed(term, at) for at in range(len(whole.sizes)))
    return all(len(np.unique(one - there)) == 1 for one, there in zip(placed, places, strict=True) if one is not None)


def _results(walk: Walk) -> Iterator[tuple[Sum, tuple[Int64, ...]]]:
    """Sums that the program returns, with where each device's part of the result begins."""
    result = walk.result.value if walk.result else None
    sharding = parse_sharding(walk.module.output_sharding) if walk.module.output_sharding else None
    if sharding is None:
        return
    values: tuple[Value, ...] = tuple(p.value for p in result.parts) if isinstance(result, Parts) else (result,)
    stated = sharding.elements if sharding.kind is ShardingKind.TUPLE else (sharding,) * len(values)
    for value, one in zip(values, stated, strict=False):
        places = offsets(one, value.sizes, walk.devices) if isinstance(value, Sum) else None
        if isinstance(value, Sum) and places is not None:
            yield value, places


def _elsewhere(found: Assembled, own: set[int]) -> Iterator[int]:
    """Products whose place in what is assembled is not, but for one offset per device, that in the whole product."""
    offset: dict[int, Int64] = {}
    for starts, part in found.parts:
        for term in part.terms:
            for at, start in enumerate(starts):
                placed = part.placed(term, at)
                if term.product in own and placed is not None:
                    apart = np.broadcast_to(start - placed, placed.shape)
                    if (offset.setdefault(at, apart) != apart).any():
                        yield term.product
                        return


def _sent_in_vain(ring: Ring) -> Iterator[Flaw]:
    """Permutes that a ring can do without."""
    needed = _needed(ring)
    idle = [number for number in ring.permutes if number not in needed]
    if not idle:
        return
    size_bytes = sum(bytes_sent(ring, number) for number in idle)
    yield Flaw(
        "TF262",
        f"{len(ring.permutes)} permutes in a ring of {ring.size}, {len(idle)} of them for nothing",
        "send before each round but the first, or after each but the last; begin sums with a product, not with zeros",
        {"permutes": [_name(ring, number) for number in idle], "bytes": size_bytes},
    )


def _needed(ring: Ring) -> set[int]:
    """Permutes that bring a device another's block, or a sum."""
    needed: set[int] = set()
    for one in ring.rounds:
        for block in (one.term.left, one.term.right):
            own = (block.owner == np.arange(ring.walk.devices)).all()
            needed |= set(block.hops[:-1] if own else block.hops)
    sums = [one for one in (ring.sum, *(s for s, _ in _results(ring.walk))) if one is not None]
    own_terms = [term for one in sums for term in one.terms if term.product in ring.products]
    needed |= {hop for term in own_terms for hop in term.hops}
    arrived = {hop for found in ring.walk.arrays for _, part in found.parts for hop in part.hops}
    return needed | arrived


def bytes_sent(ring: Ring, number: int) -> int:
    """What each device sends in a permute."""
    row = ring.permute(number).rows[0]
    operand = int(ring.walk.module.operands_of(row)[0])
    return max(int(ring.walk.module.output_bytes[operand]), 0)


def in_turn(ring: Ring) -> tuple[int, ...]:
    """Permutes that cannot run beside the product of their round: one needs the other."""
    found = []
    for one in ring.rounds:
        for number in one.hides:
            product, permute = ring.product(one.product), ring.permute(number)
            if permute.after >> one.product & 1 or product.after >> number & 1:
                found.append(number)
    beside = {n for one in ring.rounds for n in one.hides if n not in found}
    return tuple(dict.fromkeys(number for number in found if number not in beside))


def _in_turn(ring: Ring) -> Iterator[Flaw]:
    ordered = in_turn(ring)
    if not ordered:
        return
    yield Flaw(
        "TF263",
        f"{len(ordered)} of {len(ring.permutes)} permutes cannot run beside the product of their round",
        "send the block as it came, before or beside the product, not something that was made with the product",
        {"permutes": [_name(ring, number) for number in ordered]},
    )
