"""Shapes of HLO values: how they are written, and how many bytes they hold."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

_ARRAY = re.compile(r"([a-z]\w*)\[([^\]]*)\]")
_BITS = re.compile(r"(?:bf|f|s|u|c)(\d+)")
_COMMENT = re.compile(r"/\*[^*]*\*/")
_LAYOUT = re.compile(r"\{[^{}]*\}")

# xla_data.proto, PrimitiveType
_ELEMENT_TYPES = {
    1: "pred", 2: "s8", 3: "s16", 4: "s32", 5: "s64", 6: "u8", 7: "u16", 8: "u32", 9: "u64", 10: "f16", 11: "f32",
    12: "f64", 14: "opaque", 15: "c64", 16: "bf16", 17: "token", 18: "c128", 19: "f8e5m2", 20: "f8e4m3fn", 21: "s4",
    22: "u4", 23: "f8e4m3b11fnuz", 24: "f8e5m2fnuz", 25: "f8e4m3fnuz", 26: "s2", 27: "u2", 28: "f8e4m3", 29: "f8e3m4",
    30: "s1", 31: "u1", 32: "f4e2m1fn", 33: "f8e8m0fnu", 34: "buffer", 35: "f6e3m2fn", 36: "f6e2m3fn",
}  # fmt: skip
_TUPLE = 13


def shape_text(shape: Any) -> str:
    """A `ShapeProto` as HLO text writes it, without layout."""
    if shape.element_type == _TUPLE:
        return f"({', '.join(map(shape_text, shape.tuple_shapes))})"
    sizes = ",".join(map(str, shape.dimensions))
    if any(shape.is_dynamic_dimension):
        bounds = zip(shape.dimensions, shape.is_dynamic_dimension, strict=True)
        sizes = ",".join(f"<={size}" if dynamic else str(size) for size, dynamic in bounds)
    return f"{_ELEMENT_TYPES.get(shape.element_type, 'opaque')}[{sizes}]"


def full_shape_text(shape: Any) -> str:
    """A `ShapeProto` as HLO text writes it, with layouts: `bf16[1024,64]{1,0:T(8,128)(2,1)S(1)}`."""
    if shape.element_type == _TUPLE:
        return f"({', '.join(map(full_shape_text, shape.tuple_shapes))})"
    return shape_text(shape) + (_layout_text(shape.layout) if shape.HasField("layout") else "")


def _layout_text(layout: Any) -> str:
    tiles = "".join(f"({','.join(map(str, tile.dimensions))})" for tile in layout.tiles)
    parts = (
        f"T{tiles}" if tiles else "",
        f"L({layout.tail_padding_alignment_in_elements})" if layout.tail_padding_alignment_in_elements > 1 else "",
        f"E({layout.element_size_in_bits})" if layout.element_size_in_bits else "",
        f"S({layout.memory_space})" if layout.memory_space else "",
    )
    order, rest = ",".join(map(str, layout.minor_to_major)), "".join(parts)
    return f"{{{order}:{rest}}}" if rest else f"{{{order}}}" if order else ""


def without_layout(text: str) -> str:
    """A shape of HLO text, freed of layouts and comments.

    Example:
        >>> without_layout("(f32[8,128]{1,0:T(8,128)S(1)}, /*index=1*/u32[]{:S(2)})")
        '(f32[8,128], u32[])'
    """
    return _LAYOUT.sub("", without_comments(text))


def without_comments(text: str) -> str:
    """A shape of HLO text, freed of comments such as `/*index=5*/`."""
    return _COMMENT.sub("", text)


_LARGEST, _MOST_DIGITS = 2**60, 19


@cache
def shape_bytes(text: str) -> int:
    """Logical size of a value: elements times bits per element, without padding; of a tuple, the sum.

    Args:
        text: A shape without layout. A dynamic dimension counts by its bound, a token holds nothing.

    Returns:
        Bytes, -1 where an element type has no known size, and for more than any memory holds.

    Example:
        >>> shape_bytes("f32[3,5]"), shape_bytes("(bf16[2], pred[], token[])"), shape_bytes("s4[3]")
        (60, 5, 2)
    """
    sizes = [_array_bytes(kind, dimensions) for kind, dimensions in _ARRAY.findall(text)]
    return -1 if -1 in sizes or sum(sizes) > _LARGEST else sum(sizes)


def _array_bytes(kind: str, dimensions: str) -> int:
    if kind == "token":
        return 0
    bits = 8 if kind == "pred" else int(found[1]) if (found := _BITS.match(kind)) else 0
    if not bits:
        return -1
    for size in re.split(r"[,<= ]+", dimensions.strip("<= ")) if dimensions else ():
        if not size.isdecimal() or len(size) > _MOST_DIGITS:
            return -1
        bits *= int(size)
    return -(-bits // 8)
