"""Pictures of a mesh: which device holds which piece of an array. A colour is a piece, and replicas share it."""

from __future__ import annotations

import math
from collections.abc import Container, Iterator, Mapping, Sequence
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

_MOST_DEVICES, _MOST_PICTURES, _FEW = 64, 6, 16
_LINE = 16  # cells beside one another
_ACROSS = 1120  # pixels that a picture may be wide
_CHARACTER, _NARROW, _HEIGHT = 6.4, 40, 38  # widths of a letter and of a cell, and a cell's height, in pixels
_HEAD, _GAP = 20, 18  # room for each line above cells, and between panels
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
    """One array on the devices of a mesh; `pieces` are numbers, words, and the devices that hold each."""

    array: str
    caption: str
    width: int
    height: int
    cell: tuple[int, int]
    devices: tuple[Device, ...]
    headings: tuple[Heading, ...]
    pieces: tuple[tuple[str, str, str], ...]
    more: str


def mesh_pictures(arrays: Sequence[Row], mesh: Mesh, told: Container[str] = ()) -> tuple[MeshPicture, ...]:
    """Arrays that lie otherwise than intended, both ways; then one of each other way to lie.

    Args:
        arrays: The rows of `arrays` in the result of `traceflow show sharding`.
        told: Names of those that are drawn before others; else the largest are.
        mesh: What they lie on, of several devices. Arrays of programs with another mesh have no picture.
    """
    pictures: list[MeshPicture] = []
    for row, spec, said in _choice(arrays, told):
        if len(pictures) < _MOST_PICTURES and (picture := _picture(row, Spec.parse(spec), said, mesh)):
            pictures.append(picture)
    return tuple(pictures)


def _choice(arrays: Sequence[Row], told: Container[str]) -> Iterator[tuple[Row, str, str]]:
    """Arrays with the spec that is to be drawn, and what is to be said of it."""
    for row in arrays:
        if row["matches"] is False:
            yield row, row["intended"], "as intended, "
            yield row, row["compiled"], "as compiled, "
    seen = set()
    for row in sorted(arrays, key=lambda row: (row["name"] not in told, -math.prod(row["global_shape"]))):
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
    told = {piece: (number, _words(piece, shape)) for number, piece in enumerate(pieces)}
    grid = _Grid.of(mesh, max(len(words) for _, words in told.values()))
    return MeshPicture(
        array=printable(row["name"], 60),
        caption=f"{said}{spec}: {_counted(pieces, shape, spec, mesh)}",
        width=grid.size[0],
        height=grid.size[1],
        cell=(grid.cell_width - 2, _HEIGHT - 2),
        devices=tuple(grid.devices(mesh, {device: told[piece] for device, piece in holds.items()})),
        headings=tuple(grid.headings()),
        pieces=tuple(
            (f"#{told[piece][0]}", told[piece][1], numbers(_holders(holds, piece))) for piece in pieces[:_MOST_DEVICES]
        ),
        more=grid.more,
    )


def _counted(pieces: Sequence[Piece], shape: Sequence[int], spec: Spec, mesh: Mesh) -> str:
    """How many pieces there are, and how many devices hold each."""
    local = ", ".join(map(str, local_shape(shape, spec, mesh)))
    along = [axis for axis in replica_axes(spec, mesh) if mesh.axes[axis] > 1]
    copies = f"on {mesh.size(along)} devices, along {', '.join(along)}" if along else ""
    if len(pieces) == 1:
        return ", ".join(filter(None, ("the whole", copies)))
    count = sum(not _empty(piece) for piece in pieces)
    return f"{count} pieces of [{local}]" + (f", each {copies}" if copies else "")


def _empty(piece: Piece) -> bool:
    return any(first == end for first, end in piece)


def _holders(holds: Mapping[int, Piece], piece: Piece) -> list[int]:
    return sorted(device for device, held_there in holds.items() if held_there == piece)


def _words(piece: Piece, shape: Sequence[int]) -> str:
    """A piece as Python would slice it.

    Example:
        >>> _words(((0, 512), (0, 64)), (1024, 64)), _words(((0, 8),), (8,)), _words(((8, 8),), (8,))
        ('0:512, :', 'whole', 'nothing')
    """
    if _empty(piece):
        return "nothing"
    slices = [
        ":" if (first, end) == (0, size) else f"{first}:{end}" for (first, end), size in zip(piece, shape, strict=True)
    ]
    return "whole" if set(slices) <= {":"} else ", ".join(slices)


def _colour(number: int) -> str:
    return f"hsl({(210 + number * _GOLDEN_ANGLE) % 360:.0f} 65% 50%)"


@dataclass(frozen=True, slots=True)
class _Grid:
    """Where devices stand: the last axis runs to the right, the one before it downwards, all others make panels.

    A long last axis is broken into lines.
    """

    axes: tuple[str, ...]  # those of more than one device
    sizes: tuple[int, ...]  # how many of them are drawn
    line: int  # cells beside one another
    cell_width: int
    more: str

    @classmethod
    def of(cls, mesh: Mesh, longest: int) -> _Grid:
        """A grid for a mesh, with cells wide enough for that many characters where devices are few."""
        axes = {axis: size for axis, size in mesh.axes.items() if size > 1}
        drawn = dict(axes)
        while math.prod(drawn.values()) > _MOST_DEVICES:
            largest = max(drawn, key=lambda axis: drawn[axis])
            drawn[largest] = -(-drawn[largest] // 2)
        left = [f"the first {drawn[axis]} of {size} along {axis}" for axis, size in axes.items() if drawn[axis] < size]
        line = min(list(drawn.values())[-1], _LINE)
        width = int(longest * _CHARACTER) + 12 if math.prod(drawn.values()) <= _FEW else 0
        more = f"Drawn are {' and '.join(left)}." if left else ""
        return cls(tuple(drawn), tuple(drawn.values()), line, min(max(width, _NARROW), _ACROSS // line), more)

    @property
    def size(self) -> tuple[int, int]:
        """Width and height of the picture."""
        panels, (width, height) = math.prod(self.sizes[:-2]), self._panel
        return min(panels, self._across) * width, -(-panels // self._across) * height

    @property
    def _panel(self) -> tuple[int, int]:
        """Size of a panel with its headings and the gap after it."""
        height = self._above + len(self._rows) * _HEIGHT
        return self._side + self.line * self.cell_width + _GAP, height + _GAP

    @property
    def _across(self) -> int:
        """How many panels stand beside one another."""
        return max(_ACROSS // self._panel[0], 1)

    @property
    def _above(self) -> int:
        """Room for the headings above the cells of a panel."""
        return _HEAD * (2 if len(self.sizes) > 2 else 1)

    @property
    def _side(self) -> int:
        """Room for the headings beside them."""
        return int(max(map(len, (*self._rows, self.axes[-1]))) * _CHARACTER) + 12

    @property
    def _rows(self) -> list[str]:
        """What each line of a panel is called."""
        lines = range(0, self.sizes[-1], self.line)
        begins = [f"{self.axes[-1]} {first}" if len(lines) > 1 else "" for first in lines]
        if len(self.sizes) == 1:
            return begins
        outer = [f"{self.axes[-2]} {row}" for row in range(self.sizes[-2])]
        return [", ".join(filter(None, pair)) for pair in product(outer, begins)]

    def _corner(self, number: int) -> tuple[int, int]:
        """Upper left corner of the cells of a panel."""
        width, height = self._panel
        return number % self._across * width + self._side, number // self._across * height + self._above

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
            x, y = self._place(at)
            yield Device(
                x,
                y,
                "" if alike or words == "nothing" else _colour(number),
                str(device),
                self._fitting(words, f"#{number}"),
                f"device {device} ({_places(self.axes, at)}): {words}",
            )

    def _place(self, at: tuple[int, ...]) -> tuple[int, int]:
        x, y = self._corner(int(np.ravel_multi_index(at[:-2], self.sizes[:-2])) if len(at) > 2 else 0)
        lines = -(-self.sizes[-1] // self.line)
        row = (0, *at)[-2] * lines + at[-1] // self.line
        return x + at[-1] % self.line * self.cell_width, y + row * _HEIGHT

    def _fitting(self, *texts: str) -> str:
        """The first of some texts that fits into a cell."""
        return next((text for text in texts if len(text) * _CHARACTER <= self.cell_width - 2), "")

    def headings(self) -> Iterator[Heading]:
        """Names of panels, rows and columns."""
        for number, at in enumerate(product(*map(range, self.sizes[:-2]))):
            x, y = self._corner(number)
            if at:
                yield Heading(x, y - _HEAD - 6, _places(self.axes[:-2], at), "panel")
            for row, name in enumerate(self._rows):
                yield Heading(x - 8, y + (row + 0.5) * _HEIGHT, name, "side")
            if self.sizes[-1] == self.line:
                yield from self._columns(x, y)

    def _columns(self, x: int, y: int) -> Iterator[Heading]:
        """Columns by name and number; by number alone where that would not fit."""
        names = [f"{self.axes[-1]} {column}" for column in range(self.line)]
        if not self._fitting(names[-1]):
            yield Heading(x - 8, y - 8, self.axes[-1], "side")
            names = [str(column) for column in range(self.line)]
        for column, name in enumerate(names):
            yield Heading(x + (column + 0.5) * self.cell_width, y - 8, name, "head")


def _places(axes: Sequence[str], at: Sequence[int]) -> str:
    return ", ".join(f"{axis} {i}" for axis, i in zip(axes, at, strict=True))
