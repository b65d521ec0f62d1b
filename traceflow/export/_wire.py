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
    """Bytes of each row, shape (rows, width), and which of them count."""

    data: NDArray[np.uint8]
    used: Bool

    def lengths(self) -> Int64:
        """How many bytes each row has."""
        length: Int64 = self.used.sum(axis=1, dtype=np.int64)
        return length

    def tobytes(self) -> bytes:
        """All rows, one after another."""
        return self.data[self.used].tobytes()


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
    more = np.zeros(used.shape, np.uint8)
    more[:, :-1] = used[:, 1:] * np.uint8(0x80)
    return Column((shifted & np.uint64(0x7F)).astype(np.uint8) | more, used)


def number(field: int, values: Rows, present: Bool | None = None) -> Column:
    """A field of integers, left out of the rows where it is not present."""
    return _tagged(field, _VARINT, varint(values), present)


def fixed64(field: int, values: Rows, present: Bool | None = None) -> Column:
    """A field of integers of eight bytes."""
    data = np.ascontiguousarray(values, "<u8").view(np.uint8).reshape(-1, 8)
    return _tagged(field, _FIXED64, Column(data, np.ones(data.shape, bool)), present)


def message(field: int, parts: Iterable[Column], present: Bool | None = None) -> Column:
    """A field of messages, each made of the parts of its row."""
    inner = _beside(parts)
    return _tagged(field, _BYTES, _beside((varint(inner.lengths()), inner)), present)


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


def _tagged(field: int, kind: int, content: Column, present: Bool | None) -> Column:
    tag = varint(np.full(len(content.data), field << 3 | kind))
    whole = _beside((tag, content))
    return whole if present is None else Column(whole.data, whole.used & present[:, None])


def _beside(columns: Iterable[Column]) -> Column:
    every = tuple(columns)
    return Column(np.hstack([c.data for c in every]), np.hstack([c.used for c in every]))
