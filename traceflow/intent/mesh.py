"""A mesh: devices in a grid whose axes have names, and what groups of devices are called on it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations, product
from typing import TypeAlias

import numpy as np

from traceflow.errors import TraceflowError
from traceflow.program.replica_groups import Groups
from traceflow.trace.model import Int64

Axes: TypeAlias = tuple[str, ...]
"""Names of axes, major to minor. A part of an axis is written as Shardy does: ``model:(2)2`` is the part of size 2
that lies after 2 parts."""

_MOST_DEVICES = 1 << 20  # they are listed one by one


@dataclass(frozen=True, slots=True)
class Mesh:
    """Devices in a grid, in row-major order: the last axis counts fastest.

    Example:
        >>> mesh = Mesh.of({"data": 2, "model": 4})
        >>> mesh.groups(("model",))
        ((0, 1, 2, 3), (4, 5, 6, 7))
        >>> mesh.axes_of([[0, 4], [1, 5], [2, 6], [3, 7]])
        ('data',)
    """

    axes: Mapping[str, int]  # sizes by name, major to minor
    devices: tuple[int, ...]  # ids

    @classmethod
    def of(cls, axes: Mapping[str, int], devices: Sequence[int] | None = None) -> Mesh:
        """A mesh of the given sizes by name.

        Args:
            axes: Sizes by name, major to minor.
            devices: Ids in row-major order; without them, 0, 1, 2 ...

        Raises:
            TraceflowError: TF141 where a size is not positive, or the devices are too few, too many or repeated.
        """
        total = math.prod(axes.values())
        if total > _MOST_DEVICES:
            why, hint = f"it has more than {_MOST_DEVICES} devices", "give sizes whose product is their number"
            raise TraceflowError("TF141", "no such mesh", why, hint)
        ids = tuple(range(total)) if devices is None else tuple(map(int, devices))
        if min(axes.values(), default=1) < 1 or len(ids) != total or len(set(ids)) != total:
            shape = " x ".join(f"{name}={size}" for name, size in axes.items())
            why = f"{len(set(ids))} devices do not fill it"
            raise TraceflowError("TF141", f"no such mesh: {shape}", why, "give sizes whose product is their number")
        return cls(dict(axes), ids)

    def __len__(self) -> int:
        """How many devices there are."""
        return len(self.devices)

    def size(self, axes: Iterable[str]) -> int:
        """How many pieces the named axes make together.

        Raises:
            TraceflowError: TF142 for a name that is no axis.
        """
        return math.prod(self._part(axis)[2] for axis in axes)

    def position(self, axes: Axes) -> Int64:
        """Which piece each device holds of a dimension that is split over `axes`, in order of `devices`."""
        found = np.zeros(len(self), np.int64)
        for axis in axes:
            index, before, size = self._part(axis)
            after = list(self.axes.values())[index] // (before * size)
            found = found * size + self._coordinates()[index] // after % size
        return found

    def groups(self, axes: Axes) -> Groups:
        """The groups of devices that differ in nothing but `axes`, in order."""
        place = self.position(axes)
        rest = [self._coordinates()[i] for i in range(len(self.axes))]
        key = np.stack([row - self._along(axes, index) for index, row in enumerate(rest)])
        _, group = np.unique(key, axis=1, return_inverse=True)
        order = np.lexsort((place, group))
        ids = np.array(self.devices)[order].reshape(-1, self.size(axes))
        return tuple(sorted(tuple(map(int, row)) for row in ids))

    def axes_of(self, groups: Iterable[Iterable[int]]) -> Axes | None:
        """The axes whose groups these are, whole ones before parts; None where no name fits."""
        wanted = frozenset(frozenset(group) for group in groups)
        length = len(next(iter(wanted), ()))
        if any(len(group) != length for group in wanted):
            return None
        for axes in self._choices():
            if self.size(axes) == length and frozenset(map(frozenset, self.groups(axes))) == wanted:
                return axes
        return None

    def axes_of_position(self, position: Sequence[int]) -> Axes | None:
        """The axes, in order, that give each device this piece of a dimension; None where none do.

        Args:
            position: Of each device, in order of `devices`.
        """
        pieces = max(position, default=0) + 1
        for chosen in self._choices():
            if self.size(chosen) == pieces:
                for axes in permutations(chosen):
                    if np.array_equal(self.position(axes), position):
                        return axes
        return None

    def axes_between(self, pairs: Iterable[tuple[int, int]]) -> Axes:
        """The axes along which senders and receivers differ."""
        row = {device: number for number, device in enumerate(self.devices)}
        known = [(row[s], row[t]) for s, t in pairs if s in row and t in row]
        return tuple(
            name
            for name, where in zip(self.axes, self._coordinates(), strict=True)
            if any(where[s] != where[t] for s, t in known)
        )

    def _coordinates(self) -> Int64:
        """Coordinates by axis and device."""
        sizes = tuple(self.axes.values())
        return np.array(np.unravel_index(np.arange(len(self)), sizes), np.int64).reshape(len(sizes), len(self))

    def _along(self, axes: Axes, index: int) -> Int64:
        """What of the coordinate on one axis the named parts of it make up."""
        whole, found = list(self.axes.values())[index], np.zeros(len(self), np.int64)
        for axis in axes:
            other, before, size = self._part(axis)
            if other == index:
                after = whole // (before * size)
                found += self._coordinates()[index] // after % size * after
        return found

    def _part(self, axis: str) -> tuple[int, int, int]:
        """Number of an axis, how many parts lie before, and how many there are."""
        name, _, part = axis.partition(":")
        if name not in self.axes:
            known = ", ".join(self.axes) or "none"
            raise TraceflowError("TF142", f"no axis {name!r}", f"the mesh has {known}", "name an axis of the mesh")
        index = list(self.axes).index(name)
        if not part:
            return index, 1, self.axes[name]
        before, size = part.removeprefix("(").split(")")
        return index, int(before), int(size)

    def _choices(self) -> Iterator[Axes]:
        """Sets of axes and of parts of axes, those without parts first, fewer before more."""
        parts = [["", name, *_parts(name, size)] for name, size in self.axes.items()]
        chosen = [tuple(filter(None, choice)) for choice in product(*parts)]
        yield from sorted(chosen, key=lambda axes: (sum(":" in axis for axis in axes), len(axes)))


def _parts(name: str, size: int) -> Iterator[str]:
    divisors = [d for d in range(1, size + 1) if size % d == 0]
    for before in divisors:
        for part in divisors:
            if 1 < part < size and size % (before * part) == 0:
                yield f"{name}:({before}){part}"
