"""Pictures of a mesh: which device holds which piece of an array. A colour is a piece, and replicas share it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, TypeAlias

import numpy as np

from traceflow.errors import TraceflowError
from traceflow.intent.mesh import Mesh
from traceflow.intent.spec import Spec, held, local_shape, replica_axes
from traceflow.report.names import numbers, printable

Row: TypeAlias = Mapping[str, Any]
Piece: TypeAlias = tuple[tuple[int, int], ...]
"""First and end index per dimension."""

_MOST_DEVICES, _MOST_PICTURES, _MOST_PIECES = 64, 6, 16
_ACROSS = 1060  # pixels that a picture may be wide
_CHARACTER, _NARROWEST, _NARROW, _WIDEST, _HEIGHT = 6.4, 16, 44, 168, 38  # of a letter and of a cell, in pixels
_SIDE, _HEAD, _GAP = 66, 20, 18  # room beside cells, for each line above them, and between panels
_GOLDEN_ANGLE = 137.508  # between the hues of neighbours, so that no two pieces come close


@dataclass(frozen=True, slots=True)
class Device:
    """A device in its place; without a colour where all devices hold the same, or this one holds nothing."""

    x: int
    y: int
    colour: str
    name: str
    piece: str
    label: str


@dataclass(frozen=True, slots=True)
class Heading:
    """What a column, a row or a panel is called: `where` is head, side or panel."""

    x: float
    y: float
    text: str
    where: str


@dataclass(frozen=True, slots=True)
class MeshPicture:
    """One array on the devices of a mesh; `pieces` says in words which devices hold each."""

    array: str
    caption: str
    width: int
    height: int
    cell: tuple[int, int]
    devices: tuple[Device, ...]
    headings: tuple[Heading, ...]
    pieces: tuple[tuple[str, str], ...]
    more: str


def mesh_pictures(arrays: Sequence[Row], mesh: Mesh) -> tuple[MeshPicture, ...]:
    """Arrays that lie otherwise than intended, both ways; then the largest of each other way to lie.

    Args:
        arrays: The rows of `arrays` in the result of `traceflow show sharding`.
        mesh: What they lie on, of several devices. Arrays of programs with another mesh have no picture.
    """
    pictures: list[MeshPicture] = []
    for row, spec, said in _choice(arrays):
        if len(pictures) < _MOST_PICTURES and (picture := _picture(row, Spec.parse(spec), said, mesh)):
            pictures.append(picture)
    return tuple(pictures)


def _choice(arrays: Sequence[Row]) -> Iterator[tuple[Row, str, str]]:
    """Arrays with the spec that is to be drawn, and what is to be said of it."""
    for row in arrays:
        if row["matches"] is False:
            yield row, row["intended"], "as intended, "
            yield row, row["compiled"], "as compiled, "
    seen = set()
    for row in sorted(arrays, key=lambda row: -math.prod(row["global_shape"])):
        if row["compiled"] is not None and row["matches"] is not False and row["compiled"] not in seen:
            seen.add(row["compiled"])
            yield row, row["compiled"], ""


def _picture(row: Row, spec: Spec, said: str, mesh: Mesh) -> MeshPicture | None:
    """A picture; None where the spec is of another mesh."""
    shape = row["global_shape"]
    try:
        holds = held(shape, spec, mesh)
    except TraceflowError:
        return None
    pieces = sorted(set(holds.values()))
    words = {piece: _words(piece, shape) for piece in pieces}
    grid = _Grid.of(mesh, max(map(len, words.values())))
    return MeshPicture(
        array=printable(row["name"], 60),
        caption=f"{said}{spec}: {_counted(pieces, shape, spec, mesh)}",
        width=grid.size[0],
        height=grid.size[1],
        cell=(grid.cell_width - 2, _HEIGHT - 2),
        devices=tuple(grid.devices(mesh, {d: (pieces.index(piece), words[piece]) for d, piece in holds.items()})),
        headings=tuple(grid.headings()),
        pieces=tuple((words[piece], numbers(_holders(holds, piece))) for piece in pieces[:_MOST_PIECES]),
        more=grid.more,
    )


def _counted(pieces: Sequence[Piece], shape: Sequence[int], spec: Spec, mesh: Mesh) -> str:
    """How many pieces there are, and how many devices hold each."""
    local = ", ".join(map(str, local_shape(shape, spec, mesh)))
    count = "the whole" if len(pieces) == 1 else f"{len(pieces)} pieces of [{local}]"
    along = [axis for axis in replica_axes(spec, mesh) if mesh.axes[axis] > 1]
    return f"{count}, each on {mesh.size(along)} devices, along {', '.join(along)}" if along else count


def _holders(holds: Mapping[int, Piece], piece: Piece) -> list[int]:
    return sorted(device for device, held_there in holds.items() if held_there == piece)


def _words(piece: Piece, shape: Sequence[int]) -> str:
    """A piece as Python would slice it.

    Example:
        >>> _words(((0, 512), (0, 64)), (1024, 64)), _words(((0, 8),), (8,)), _words(((8, 8),), (8,))
        ('0:512, :', 'whole', 'nothing')
    """
    if any(first == end for first, end in piece):
        return "nothing"
    slices = [
        ":" if (first, end) == (0, size) else f"{first}:{end}" for (first, end), size in zip(piece, shape, strict=True)
    ]
    return "whole" if set(slices) <= {":"} else ", ".join(slices)


def _colour(number: int) -> str:
    return f"hsl({(210 + number * _GOLDEN_ANGLE) % 360:.0f} 65% 50%)"


@dataclass(frozen=True, slots=True)
class _Grid:
    """Where devices stand: the last axis runs to the right, the one before it downwards, all others make panels."""

    axes: tuple[str, ...]  # those of more than one device
    sizes: tuple[int, ...]  # how many of them are drawn
    cell_width: int
    more: str

    @classmethod
    def of(cls, mesh: Mesh, longest: int) -> _Grid:
        """A grid for a mesh, with cells wide enough for that many characters where there is room."""
        axes = {axis: size for axis, size in mesh.axes.items() if size > 1}
        drawn = dict(axes)
        while math.prod(drawn.values()) > _MOST_DEVICES:
            largest = max(drawn, key=lambda axis: drawn[axis])
            drawn[largest] = -(-drawn[largest] // 2)
        left = [f"the first {drawn[axis]} of {size} along {axis}" for axis, size in axes.items() if drawn[axis] < size]
        columns = list(drawn.values())[-1]
        width = min(max(int(longest * _CHARACTER) + 12, _NARROW), _WIDEST)
        more = f"Drawn are {' and '.join(left)}." if left else ""
        return cls(tuple(drawn), tuple(drawn.values()), max(min(width, _ACROSS // columns), _NARROWEST), more)

    @property
    def panel(self) -> tuple[int, int]:
        """Size of a panel with its headings and the gap after it."""
        rows, columns = (1, *self.sizes)[-2:]
        return _SIDE + columns * self.cell_width + _GAP, self._above + rows * _HEIGHT + _GAP

    @property
    def size(self) -> tuple[int, int]:
        """Width and height of the picture."""
        panels = math.prod(self.sizes[:-2])
        across = min(panels, self._across)
        return across * self.panel[0], -(-panels // self._across) * self.panel[1]

    @property
    def _across(self) -> int:
        """How many panels stand beside one another."""
        return max(_ACROSS // self.panel[0], 1)

    @property
    def _above(self) -> int:
        """Room for the headings of a panel."""
        return _HEAD * (2 if len(self.sizes) > 2 else 1)

    def _corner(self, number: int) -> tuple[int, int]:
        """Upper left corner of the cells of a panel."""
        width, height = self.panel
        return number % self._across * width + _SIDE, number // self._across * height + self._above

    def devices(self, mesh: Mesh, holds: Mapping[int, tuple[int, str]]) -> Iterator[Device]:
        """Every device that is drawn.

        Args:
            mesh: The mesh.
            holds: Number and words of the piece of each device.
        """
        alike = len({number for number, _ in holds.values()}) == 1
        ids = np.array(mesh.devices).reshape([size for size in mesh.axes.values() if size > 1])
        for at in product(*map(range, self.sizes)):
            device = int(ids[at])
            number, words = holds[device]
            x, y = self._corner(int(np.ravel_multi_index(at[:-2], self.sizes[:-2])) if len(at) > 2 else 0)
            yield Device(
                x + at[-1] * self.cell_width,
                y + (0, *at)[-2] * _HEIGHT,
                "" if alike or words == "nothing" else _colour(number),
                self._fitting(str(device)),
                self._fitting(words, f"#{number}"),
                f"device {device} ({_places(self.axes, at)}): {words}",
            )

    def _fitting(self, *texts: str) -> str:
        """The first of some texts that fits into a cell."""
        return next((text for text in texts if len(text) * _CHARACTER <= self.cell_width - 2), "")

    def headings(self) -> Iterator[Heading]:
        """Names of columns, rows and panels."""
        for number, at in enumerate(product(*map(range, self.sizes[:-2]))):
            x, y = self._corner(number)
            if at:
                yield Heading(x, y - _HEAD - 6, _places(self.axes[:-2], at), "panel")
            yield from self._columns(x, y)
            for row in range(self.sizes[-2]) if len(self.sizes) > 1 else ():
                yield Heading(x - 8, y + (row + 0.5) * _HEIGHT, f"{self.axes[-2]} {row}", "side")

    def _columns(self, x: int, y: int) -> Iterator[Heading]:
        """Columns by name and number; by number alone where that would not fit."""
        names = [f"{self.axes[-1]} {column}" for column in range(self.sizes[-1])]
        if not self._fitting(names[-1]):
            yield Heading(x - 8, y - 8, self.axes[-1], "side")
            names = [str(column) for column in range(self.sizes[-1])]
        for column, name in enumerate(names):
            yield Heading(x + (column + 0.5) * self.cell_width, y - 8, name, "head")


def _places(axes: Sequence[str], at: Sequence[int]) -> str:
    return ", ".join(f"{axis} {i}" for axis, i in zip(axes, at, strict=True))
