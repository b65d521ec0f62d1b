"""What a value of a program is made of, on every device at once: blocks of arrays, and sums of their products.

A block is told by where it was made (its origin), on which device (its owner), and which part of it this is. Each is
a column with one row per device, so that sending a value to other devices is taking rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self, TypeAlias

import numpy as np

from traceflow.trace.model import Int64

if TYPE_CHECKING:
    from traceflow.program.indices import Numbers
    from traceflow.program.module import Dot

NOBODY = -1
"""Owner of what a device holds that nothing was sent to: zeros."""


@dataclass(frozen=True, slots=True, eq=False)
class Origin:
    """An array as every device made or got it."""

    row: int  # the instruction
    shape: tuple[int, ...]
    offsets: tuple[Int64, ...] | None = None  # per dimension, where each device's part begins in the whole array


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """A part of something, in its own dimensions."""

    sizes: tuple[int, ...]
    axes: tuple[int, ...]  # for each dimension, which one of the whole it is; -1 where it is none of them
    starts: tuple[Int64, ...]  # [device] for each dimension, where it begins

    def cut(self, starts: Sequence[Int64], sizes: tuple[int, ...]) -> Self:
        """A part of this one; where each device's begins, in all dimensions."""
        within = [np.clip(s, 0, whole - size) for s, whole, size in zip(starts, self.sizes, sizes, strict=True)]
        moved = tuple(own + more for own, more in zip(self.starts, within, strict=True))
        return replace(self, sizes=sizes, starts=moved)

    def turned(self, order: tuple[int, ...]) -> Self:
        """The same with its dimensions in another order."""
        return replace(
            self,
            sizes=tuple(self.sizes[at] for at in order),
            axes=tuple(self.axes[at] for at in order),
            starts=tuple(self.starts[at] for at in order),
        )

    def shaped(self, sizes: tuple[int, ...]) -> Self:
        """The same elements in other dimensions; those that are kept keep their place."""
        kept, nowhere = _kept(self.sizes, sizes), np.zeros(1, np.int64)
        axes = tuple(-1 if at is None else self.axes[at] for at in kept)
        starts = tuple(nowhere if at is None else self.starts[at] for at in kept)
        return replace(self, sizes=sizes, axes=axes, starts=starts)


@dataclass(frozen=True, slots=True, eq=False)
class Block(Part):
    """A part of an array that some device made."""

    origin: Origin
    owner: Int64  # [device]: who made what this device has
    hops: tuple[int, ...] = ()  # the permutes that it came through, in order

    @classmethod
    def whole(cls, origin: Origin, devices: int) -> Block:
        """All of an array, each device its own."""
        rank, zero = len(origin.shape), np.zeros(devices, np.int64)
        return cls(origin.shape, tuple(range(rank)), (zero,) * rank, origin, np.arange(devices))

    def sent(self, senders: Int64, permute: int) -> Block:
        """What each device has after a permute: that of its sender."""
        owner = np.where(senders == NOBODY, NOBODY, self.owner[senders])
        return replace(self, owner=owner, starts=_rows(self.starts, senders), hops=(*self.hops, permute))

    def divided(self, at: int) -> bool:
        """Whether this is a part of the origin along a dimension."""
        return self.axes[at] >= 0 and self.sizes[at] < self.origin.shape[self.axes[at]]

    def placed(self, at: int) -> Int64 | None:
        """[device]: where a dimension begins in the whole array; None where that is not known."""
        if self.origin.offsets is None or self.axes[at] < 0:
            return None
        return self.starts[at] + self.origin.offsets[self.axes[at]][self.owner]


def _rows(columns: tuple[Int64, ...], senders: Int64) -> tuple[Int64, ...]:
    return tuple(np.broadcast_to(column, senders.shape)[senders] for column in columns)


def _kept(old: tuple[int, ...], new: tuple[int, ...]) -> list[int | None]:
    """For each new dimension, the old one that it is: as long, and with as many elements before it."""
    places = {(before, size): at for at, (before, size) in enumerate(_places(old)) if size > 1}
    return [places.get(place) if place[1] > 1 else None for place in _places(new)]


def _places(sizes: tuple[int, ...]) -> list[tuple[int, int]]:
    before = np.concatenate(([1], np.cumprod(sizes, dtype=np.int64))).tolist()
    return list(zip(before, sizes, strict=False))


@dataclass(frozen=True, slots=True, eq=False)
class Term:
    """One product of two blocks, and the permutes that the product came through."""

    product: int  # the event
    dot: Dot
    left: Block
    right: Block
    hops: tuple[int, ...] = ()

    def sent(self, senders: Int64, permute: int) -> Term:
        """The term after a permute."""
        left, right = (replace(b.sent(senders, permute), hops=b.hops) for b in (self.left, self.right))
        return replace(self, left=left, right=right, hops=(*self.hops, permute))

    def contracted(self) -> tuple[tuple[int, int], ...]:
        """The dimensions that are summed over, of the left and of the right operand."""
        return tuple(zip(self.dot.left_contracting, self.dot.right_contracting, strict=True))

    def dimensions(self) -> tuple[tuple[Block, int], ...]:
        """Where each dimension of the product comes from: which operand, and which of its dimensions."""
        left = (*self.dot.left_batch, *self.dot.left_contracting)
        right = (*self.dot.right_batch, *self.dot.right_contracting)
        return (
            *((self.left, at) for at in self.dot.left_batch),
            *((self.left, at) for at in range(len(self.left.sizes)) if at not in left),
            *((self.right, at) for at in range(len(self.right.sizes)) if at not in right),
        )


@dataclass(frozen=True, slots=True, eq=False)
class Sum(Part):
    """A part of a sum of products, on every device; without terms, zeros that sums begin with."""

    terms: tuple[Term, ...]
    hops: tuple[int, ...] = ()  # all permutes that any part of it came through

    @classmethod
    def of(cls, term: Term, sizes: tuple[int, ...], devices: int) -> Sum:
        """A product."""
        zero = np.zeros(devices, np.int64)
        return cls(sizes, tuple(range(len(sizes))), (zero,) * len(sizes), (term,))

    def __add__(self, other: Sum) -> Sum:
        shape = self if self.terms else other
        return replace(shape, terms=self.terms + other.terms, hops=tuple(dict.fromkeys(self.hops + other.hops)))

    def sent(self, senders: Int64, permute: int) -> Sum:
        """The sum after a permute."""
        terms = tuple(term.sent(senders, permute) for term in self.terms)
        return replace(self, terms=terms, starts=_rows(self.starts, senders), hops=(*self.hops, permute))

    def placed(self, term: Term, at: int) -> Int64 | None:
        """[device]: where a dimension of a term begins in the whole product; None where that is not known."""
        if self.axes[at] < 0:
            return None
        block, dimension = term.dimensions()[self.axes[at]]
        begin = block.placed(dimension)
        return None if begin is None else begin + self.starts[at]


@dataclass(frozen=True, slots=True, eq=False)
class Assembled:
    """An array put together from sums, each at its place."""

    parts: tuple[tuple[tuple[Int64, ...], Sum], ...]  # [device] for each dimension, where the part begins
    sizes: tuple[int, ...]

    def sent(self, senders: Int64, permute: int) -> Assembled:
        """The array after a permute."""
        parts = tuple((_rows(starts, senders), one.sent(senders, permute)) for starts, one in self.parts)
        return replace(self, parts=parts)


@dataclass(frozen=True, slots=True, eq=False)
class Known:
    """A value, and the events that it cannot be there without, as bits."""

    value: Value
    after: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """A tuple."""

    parts: tuple[Known, ...]


Value: TypeAlias = "Numbers | Block | Sum | Assembled | Parts | None"
"""None: an array of which nothing is known."""
