"""Protobuf's wire format in columns: one message per row, encoded by numpy for all rows at once.

Source: the encoding chapter of protobuf's documentation. A column of bytes is a matrix with as many columns as the
longest row needs, and a mask of the bytes that count.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from traceflow.trace.model import Bool, Int64, Rows

_VARINT, _FIXED64, _BYTES = 0, 1, 2


@dataclass(frozen=True, slots=True)
class Column:
    """Bytes of each row in pieces that follow one another: matrices of shape (rows, width), and which bytes count."""

    pieces: tuple[tuple[NDArray[np.uint8], Bool], ...]

    def lengths(self) -> Int64:
        """How many bytes each row has."""
        lengths: Int64 = sum(used.sum(axis=1, dtype=np.int64) for _, used in self.pieces)
        return lengths

    def tobytes(self) -> bytes:
        """All rows, one after another."""
        data, used = (np.hstack(side) for side in zip(*self.pieces, strict=True))
        content: bytes = data[used].tobytes()
        return content


def varint(values: Rows) -> Column:
    """Seven bits a byte, the lowest first; negative numbers as 64 bits.

    Example:
        >>> varint(np.array([1, 300])).tobytes().hex(" ")
        '01 ac 02'
    """
    left = np.asarray(values).astype(np.int64).view(np.uint64)
    width = max(1, -(-int(left.max(initial=0)).bit_length() // 7))
    shifted = left[:, None] >> (np.arange(width, dtype=np.uint64) * np.uint64(7))
    used = shifted > 0
    used[:, 0] = True
    data = (shifted & np.uint64(0x7F)).astype(np.uint8)
    data[:, :-1] |= used[:, 1:].view(np.uint8) << np.uint8(7)
    return Column(((data, used),))


def number(field: int, values: Rows, present: Bool | None = None) -> Column:
    """A field of integers, left out of the rows where it is not present."""
    return _tagged(field, _VARINT, varint(values), len(values), present)


def fixed64(field: int, values: Rows, present: Bool | None = None) -> Column:
    """A field of integers of eight bytes."""
    data = np.ascontiguousarray(values, "<u8").view(np.uint8).reshape(-1, 8)
    return _tagged(field, _FIXED64, Column(((data, np.ones(data.shape, bool)),)), len(values), present)


def message(field: int, parts: Iterable[Column], present: Bool | None = None) -> Column:
    """A field of messages, each made of the parts of its row."""
    inner = Column(tuple(piece for part in parts for piece in part.pieces))
    lengths = inner.lengths()
    return _tagged(field, _BYTES, Column(varint(lengths).pieces + inner.pieces), len(lengths), present)


def one(field: int, value: int | str | bytes) -> bytes:
    """A field of a single message.

    Example:
        >>> one(2, "ab").hex(" "), one(1, 5).hex(" ")
        ('12 02 61 62', '08 05')
    """
    if isinstance(value, int):
        return number(field, np.array([value])).tobytes()
    content = value.encode("utf-8", "backslashreplace") if isinstance(value, str) else value
    return varint(np.array([field << 3 | _BYTES, len(content)])).tobytes() + content


def _tagged(field: int, kind: int, content: Column, rows: int, present: Bool | None) -> Column:
    tag = varint(np.array([field << 3 | kind]))
    pieces = tuple((np.repeat(data, rows, 0), np.repeat(used, rows, 0)) for data, used in tag.pieces) + content.pieces
    return Column(pieces if present is None else tuple((data, used & present[:, None]) for data, used in pieces))
