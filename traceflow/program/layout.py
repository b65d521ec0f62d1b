"""How many bytes a value takes where it is stored: its shape, its layout, and the padding of its tiles.

Source: XLA, "Shapes and layout" and "Tiled layout".
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import prod

from traceflow.program.shape import without_comments

_ARRAY = re.compile(r"([a-z]\w*)\[([^\]]*)\](?:\{([^{}]*)\})?")
_BITS = re.compile(r"(?:bf|f|s|u|c)(\d+)")
_TILES = re.compile(r"T((?:\([\d,]+\))+)")
_HELD_ELSEWHERE = frozenset({"token", "opaque"})


@dataclass(frozen=True, slots=True)
class Stored:
    """One array as it lies in memory."""

    dimensions: tuple[int, ...]  # as the program counts them
    bits: int  # of one element, as the program counts it
    minor_to_major: tuple[int, ...]
    tiles: tuple[tuple[int, ...], ...]
    stored_bits: int  # of one element, as it is stored
    alignment: int  # the number of elements is a multiple of it
    space: int  # memory space, 0 is the default one

    @property
    def logical_bytes(self) -> int:
        """Elements times bits per element."""
        return -(-prod(self.dimensions) * self.bits // 8)

    @property
    def slots(self) -> int:
        """Elements that there is room for: prod of the dimensions after tiling, padding included."""
        sizes = [self.dimensions[dimension] for dimension in reversed(self.minor_to_major)]
        for tile in self.tiles:
            sizes = _tiled(sizes, tile)
        return -(-prod(sizes) // self.alignment) * self.alignment

    @property
    def physical_bytes(self) -> int:
        """Slots times stored bits per element."""
        return -(-self.slots * self.stored_bits // 8)


def _tiled(sizes: Sequence[int], tile: tuple[int, ...]) -> list[int]:
    """Dimensions, major first, after the most minor ones were cut into tiles: how many tiles, then a tile."""
    sizes = [*[1] * (len(tile) - len(sizes)), *sizes]
    kept = len(sizes) - len(tile)
    return [*sizes[:kept], *(-(-size // edge) for size, edge in zip(sizes[kept:], tile, strict=True)), *tile]


@cache
def stored(full_shape: str) -> Stored | None:
    """An array of HLO text with its layout; None for a tuple, a token, or what cannot be understood.

    Args:
        full_shape: Such as `bf16[1024,64]{1,0:T(8,128)(2,1)S(1)}`. A dynamic dimension counts by its bound. Without a
            layout the first dimension is the most major one.

    Example:
        >>> array = stored("f32[3,5]{1,0:T(2,2)}")
        >>> array.logical_bytes, array.slots, array.physical_bytes
        (60, 24, 96)
        >>> stored("bf16[1024,64]{1,0:T(8,128)(2,1)}").physical_bytes
        262144
    """
    match = _ARRAY.fullmatch(without_comments(full_shape).strip())
    if match is None or match[1] in _HELD_ELSEWHERE:
        return None
    sizes = re.findall(r"\d+", match[2])
    bits = 8 if match[1] == "pred" else int(found[1]) if (found := _BITS.match(match[1])) else 0
    order, _, rest = (match[3] or "").partition(":")
    minor_to_major = tuple(map(int, re.findall(r"\d+", order))) or tuple(range(len(sizes)))[::-1]
    if not bits or "?" in match[2] or "*" in rest or sorted(minor_to_major) != list(range(len(sizes))):
        return None
    tiles = _TILES.search(rest)
    return Stored(
        tuple(map(int, sizes)),
        bits,
        minor_to_major,
        tuple(tuple(map(int, tile.split(","))) for tile in re.findall(r"\(([^)]*)\)", tiles[1])) if tiles else (),
        _number(rest, "E") or max(bits, 8),
        _number(rest, "L") or 1,
        _number(rest, "S"),
    )


def _number(layout: str, letter: str) -> int:
    found = re.search(rf"{letter}\((\d+)\)", layout)
    return int(found[1]) if found else 0


@cache
def part_of(full_shape: str, index: tuple[int, ...]) -> str:
    """The shape of one part of a tuple.

    Args:
        full_shape: Of the whole.
        index: Path into the tuple, empty for the whole.

    Returns:
        The part's shape, empty where the path leads nowhere.

    Example:
        >>> part_of("(f32[2]{0}, (s32[], pred[8]{0}))", (1, 1))
        'pred[8]{0}'
    """
    text = without_comments(full_shape).strip()
    for place in index:
        parts = tuple_parts(text)
        if place >= len(parts):
            return ""
        text = parts[place]
    return text


def tuple_parts(full_shape: str) -> tuple[str, ...]:
    """The shapes in a tuple; of an array, nothing.

    Example:
        >>> tuple_parts("(f32[2]{0:T(128)}, (s32[], pred[8]))")
        ('f32[2]{0:T(128)}', '(s32[], pred[8])')
    """
    text = full_shape.strip()
    if not text.startswith("(") or text == "()":
        return ()
    parts, depth, start = [], 0, 1
    for at, character in enumerate(text):
        depth += (character in "([{") - (character in ")]}")
        if (character == "," and depth == 1) or depth == 0:
            parts.append(text[start:at].strip())
            start = at + 1
    return tuple(parts)


def leaves(full_shape: str) -> tuple[str, ...]:
    """The shapes of what is no tuple in a shape, in order.

    Example:
        >>> leaves("(f32[2]{0}, (s32[], token[]))")
        ('f32[2]{0}', 's32[]', 'token[]')
    """
    text = without_comments(full_shape).strip()
    parts = tuple_parts(text)
    return tuple(leaf for part in parts for leaf in leaves(part)) if parts else (text,)


@cache
def arrays_of(full_shape: str) -> tuple[Stored, ...]:
    """Every array of a shape, those within tuples included; what cannot be understood is left out.

    Example:
        >>> [array.physical_bytes for array in arrays_of("(f32[2], (s32[], token[]))")]
        [8, 4]
    """
    return tuple(array for leaf in leaves(full_shape) if (array := stored(leaf)) is not None)
