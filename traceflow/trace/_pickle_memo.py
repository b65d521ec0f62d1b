"""How much a pickle asks to be remembered, found without loading it. Imported only inside functions."""

from __future__ import annotations

import pickletools
from typing import TypeAlias

import numpy as np
from numba import njit
from numpy.typing import NDArray

_Bytes: TypeAlias = NDArray[np.uint8]

_LINE = pickletools.UP_TO_NEWLINE
_LENGTH_BYTES = {
    pickletools.TAKEN_FROM_ARGUMENT1: 1,
    pickletools.TAKEN_FROM_ARGUMENT4: 4,
    pickletools.TAKEN_FROM_ARGUMENT4U: 4,
    pickletools.TAKEN_FROM_ARGUMENT8U: 8,
}
_UNKNOWN = -100
_LINES = {"INST": 2, "GLOBAL": 2}  # arguments that are two lines
_PUT, _BINPUT, _LONG_BINPUT = (ord(code) for code in "pqr")
_STOP = ord(".")


def _arguments() -> NDArray[np.int64]:
    """Per opcode: the bytes of its argument, -1 or -2 for so many lines, or -10 less the bytes of its length."""
    table = np.full(256, _UNKNOWN, np.int64)
    for opcode in pickletools.opcodes:
        width = 0 if opcode.arg is None else opcode.arg.n
        if width == _LINE:
            width = -_LINES.get(opcode.name, 1)
        elif width < 0:
            width = -10 - _LENGTH_BYTES[width]
        table[ord(opcode.code)] = width
    return table


_ARGUMENTS = _arguments()


def highest_place(content: bytes) -> int:
    r"""The highest place in its memory that a pickle names, -1 for none; what is behind damage is never executed.

    A loader makes room for all places up to that one, so that ten bytes can ask for gigabytes. An honest pickle has as
    many places as it has values to remember.

    Example:
        >>> highest_place(b"\x80\x02}r\xff\xff\xff\x7f."), highest_place(b"\x80\x04}\x94.")
        (2147483647, -1)
    """
    return int(_highest_place(np.frombuffer(content, np.uint8), _ARGUMENTS))


@njit(cache=True)
def _highest_place(content: _Bytes, arguments: NDArray[np.int64]) -> int:
    at, highest, size = 0, -1, len(content)
    while at < size and content[at] != _STOP:
        opcode = content[at]
        width = arguments[opcode]
        at += 1
        if width == _UNKNOWN:
            break
        if width <= -10:
            counted = -10 - width
            width = counted + _number(content, at, counted)
            if width < counted:
                break
        elif width < 0:
            width = _lines_end(content, at, -width) - at
        if opcode == _PUT:
            highest = max(highest, _decimal(content, at, at + width))
        elif opcode in (_BINPUT, _LONG_BINPUT):
            highest = max(highest, _number(content, at, width))
        at += width
    return highest


@njit(cache=True)
def _number(content: _Bytes, at: int, width: int) -> int:
    """A little-endian number, the largest there is for one that ends behind the content or is larger."""
    if at + width > len(content):
        return 1 << 62
    found = 0
    for i in range(width):
        if i == 7 and content[at + i] >= 64:
            return 1 << 62
        found += int(content[at + i]) << (8 * i)
    return found


@njit(cache=True)
def _lines_end(content: _Bytes, at: int, lines: int) -> int:
    while at < len(content) and lines:
        lines -= content[at] == 10
        at += 1
    return at


@njit(cache=True)
def _decimal(content: _Bytes, at: int, stop: int) -> int:
    """A number in digits, the largest there is for one that is larger or has others than digits."""
    found = 0
    for i in range(at, min(stop, len(content)) - 1):
        digit = int(content[i]) - 48
        if digit < 0 or digit > 9 or found > 1 << 58:
            return 1 << 62
        found = 10 * found + digit
    return found
