"""Compiled kernels that step over pieces of JSON. Imported only inside functions.

They know just enough of it to be fast and forgiving: raw control characters, unknown escapes, superfluous commas, NaN
and Infinity need no special treatment. Text is looked at BLOCK bytes at a time; `_between` marks bytes of such a block
by bits of a number, the first by the lowest. What holds the text therefore goes on for PADDING bytes behind it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from traceflow.compiled import Compiled, Intrinsic
from traceflow.trace._text_columns import BLOCK, byte_at, load

INCOMPLETE, BAD = -1, -2
"""In place of where something ends: the text ends before; it is no JSON."""

(QUOTE, _PLUS, COMMA, COLON, _BACKSLASH) = map(ord, '"+,:\\')
(OPEN, CLOSE, OPEN_LIST, CLOSE_LIST) = map(ord, "{}[]")
BLANK = ord(" ")
_ALL = np.uint64(2**64 - 1)
_NONE, _ONE, _THREE = map(np.uint64, (0, 1, 0xFFFFFF))
_COLON_SPACE = np.uint64(int.from_bytes(b'": ', "little"))


@Intrinsic
def _low_zeros(types: Any, ir: Any) -> Any:
    """How many of the lowest bits of a word are zero."""

    def build(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))

    return types.int64, (types.uint64,), build


@Intrinsic
def _between(types: Any, ir: Any) -> Any:
    """Mark the bytes of the block at an address that are neither below the one nor above the other."""

    def build(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        byte, block = ir.IntType(8), ir.VectorType(ir.IntType(8), BLOCK)
        at, low, high = arguments

        def each(value: Any) -> Any:
            one = builder.insert_element(ir.Constant(block, None), builder.trunc(value, byte), ir.IntType(32)(0))
            return builder.shuffle_vector(one, one, ir.Constant(ir.VectorType(ir.IntType(32), BLOCK), None))

        found = builder.load(builder.inttoptr(at, block.as_pointer()), align=1)
        inside = builder.icmp_unsigned("<=", builder.sub(found, each(low)), each(builder.sub(high, low)))
        return builder.zext(builder.bitcast(inside, ir.IntType(BLOCK)), ir.IntType(64))

    return types.uint64, (types.int64, types.int64, types.int64), build


@Intrinsic
def equal(types: Any, ir: Any) -> Any:
    """Mark the bytes of the block at an address that are those of the block at another."""

    def build(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        block = ir.VectorType(ir.IntType(8), BLOCK)
        one, other = (builder.load(builder.inttoptr(at, block.as_pointer()), align=1) for at in arguments)
        return builder.zext(builder.bitcast(builder.icmp_unsigned("==", one, other), ir.IntType(BLOCK)), ir.IntType(64))

    return types.uint64, (types.int64, types.int64), build


@Compiled
def space(at: int, stop: int) -> int:
    """Step over white space, commas and what else no value starts with."""
    while at < stop:
        found = _between(at, COMMA + 1, 255) | _between(at, QUOTE, QUOTE)
        if found:
            return at + _low_zeros(found)
        at += BLOCK
    return at


@Compiled
def _string_end(at: int, stop: int) -> int:
    """Where the quote is that closes the string whose first character is at `at`; at `stop` or later for none."""
    while at < stop:
        found = _between(at, QUOTE, QUOTE) | _between(at, _BACKSLASH, _BACKSLASH)
        if not found:
            at += BLOCK
            continue
        at += _low_zeros(found)
        if byte_at(at) == QUOTE:
            return at
        at += 2
    return at


@Compiled
def _bare_end(at: int, stop: int) -> int:
    """Where a number, true, false, null, NaN or Infinity ends."""
    while at < stop:
        found = _between(at, 0, _PLUS - 1) | _between(at, COMMA, COMMA) | _between(at, COLON, COLON)
        found |= _between(at, CLOSE, CLOSE) | _between(at, CLOSE_LIST, CLOSE_LIST)
        if found:
            return at + _low_zeros(found)
        at += BLOCK
    return at


@Compiled
def _nested_end(at: int, stop: int) -> int:
    """Where the object or list at `at` ends, INCOMPLETE for nowhere."""
    depth = 0
    while at < stop:
        opens = _between(at, OPEN, OPEN) | _between(at, OPEN_LIST, OPEN_LIST)
        closes = _between(at, CLOSE, CLOSE) | _between(at, CLOSE_LIST, CLOSE_LIST)
        found = opens | closes | _between(at, QUOTE, QUOTE)
        block = at
        at += BLOCK
        while found:
            place = _low_zeros(found)
            bit = found & (~found + _ONE)
            found ^= bit
            if opens & bit:
                depth += 1
            elif closes & bit:
                depth -= 1
                if depth == 0:
                    return block + place + 1
            else:
                end = _string_end(block + place + 1, stop) + 1
                if end >= block + BLOCK:
                    at, found = end, _NONE
                else:
                    found &= _ALL << np.uint64(end - block)
    return INCOMPLETE


@Compiled
def value_end(at: int, stop: int) -> int:
    """Where the value at `at` ends; INCOMPLETE or BAD where it does not."""
    if byte_at(at) == QUOTE:
        end = _string_end(at + 1, stop) + 1
    elif byte_at(at) in (OPEN, OPEN_LIST):
        return _nested_end(at, stop)
    else:
        end = _bare_end(at, stop)
    if end >= stop:
        return INCOMPLETE
    return end if end > at else BAD


@Compiled
def key_and_value(at: int, stop: int) -> tuple[int, int]:
    """Where the key of the member at `at` ends, and where its value starts."""
    if byte_at(at) != QUOTE:
        return 0, BAD
    end = _string_end(at + 1, stop)
    if end + 3 < stop and load(end) & _THREE == _COLON_SPACE and byte_at(end + 3) > BLANK:
        return end, end + 3
    value = space(end + 1, stop)
    if value < stop and byte_at(value) != COLON:
        return 0, BAD
    value = space(value + 1, stop)
    return end, value if value < stop else INCOMPLETE
