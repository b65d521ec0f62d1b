"""Compiled kernels: columns of numbers, times and codes from pieces of text. Imported only inside functions.

A piece of text is given by the addresses where it starts and ends. It is looked at eight bytes at a time, so
that what holds it goes on for at least PADDING bytes behind it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traceflow.compiled import Compiled, Intrinsic

Bytes = NDArray[np.uint8]
Int64 = NDArray[np.int64]
Int32 = NDArray[np.int32]
Bool = NDArray[np.bool_]

BLOCK = 32
PADDING = 2 * BLOCK
(KEY, AT, LENGTH, TEXT_WIDTH) = range(4)  # columns of a table of texts

_ALL, _LOWEST, _MIX = np.uint64(2**64 - 1), np.uint64(255), np.uint64(0x9E3779B97F4A7C15)
_EACH, _TOP = (np.uint64(n * 0x0101010101010101) for n in (0x01, 0x80))
(_PLUS, _MINUS, _DOT) = map(ord, "+-.")
_ZEROS = _EACH * np.uint64(ord("0"))
_POWERS = 10 ** np.arange(19)
_LARGEST_US = 9 * 10**15  # in ns it still fits 64 bits
_NS_PART, _US_PART = 10**15, 10**18  # what is finer than a ns, and digits behind the point of a us


@Intrinsic
def load(types: Any, ir: Any) -> Any:
    """The eight bytes at an address, as a little-endian number."""

    def build(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.load(builder.inttoptr(arguments[0], ir.IntType(64).as_pointer()), align=1)

    return types.uint64, (types.int64,), build


signed: Callable[[Any], int] = np.int64  # type: ignore[assignment]
"""A word as an integer; compiled code must not mix the two."""


@Compiled
def byte_at(at: int) -> int:
    """The byte at an address."""
    return signed(load(at) & _LOWEST)


def numbers(spans: Int64, places: Int64, fields: Int64) -> Int64:
    """Per field and event, the non-negative integer there, else -1; exporters also write 2**32 - 1 for none."""
    found = np.empty((len(fields), len(places)), np.int64)
    _fill_numbers(spans, places, fields, found)
    return found


@Compiled
def _fill_numbers(spans: Int64, places: Int64, fields: Int64, found: Int64) -> None:
    for row in range(len(fields)):
        for i in range(len(places)):
            found[row, i] = number_of(spans, places[i], fields[row])


@Compiled
def number_of(spans: Int64, event: int, field: int) -> int:
    """Of one event, the number in a field, as `numbers` tells it."""
    start, stop = spans[event, field, 0], spans[event, field, 1]
    value = _digits(start, stop) if start < stop else -1
    return value if value != 2**32 - 1 else -1


def amounts(spans: Int64, places: Int64, field: int) -> Int64:
    """Per event, the integer in a field, which may be negative; 0 where it has none."""
    found = np.empty(len(places), np.int64)
    _fill_amounts(spans, places, field, found)
    return found


@Compiled
def _fill_amounts(spans: Int64, places: Int64, field: int, found: Int64) -> None:
    for i in range(len(places)):
        start, stop = spans[places[i], field, 0], spans[places[i], field, 1]
        negative = start < stop and byte_at(start) == _MINUS
        value = max(_digits(start + negative, stop), 0)
        found[i] = -value if negative else value


def times(spans: Int64, places: Int64, start: int, duration: int) -> tuple[Int64, Int64]:
    """Per event, ns of its start and of its end, both rounded down; -1 where it has none."""
    start_ns, end_ns = np.empty(len(places), np.int64), np.empty(len(places), np.int64)
    _fill_times(spans, places, start, duration, start_ns, end_ns)
    return start_ns, end_ns


@Compiled
def _fill_times(spans: Int64, places: Int64, start: int, duration: int, start_ns: Int64, end_ns: Int64) -> None:
    for i in range(len(places)):
        start_ns[i], end_ns[i] = times_of(spans, places[i], start, duration)


@Compiled
def times_of(spans: Int64, event: int, start: int, duration: int) -> tuple[int, int]:
    """Of one event, ns of its start and of its end, as `times` tells them."""
    start_ns, part = _decimal(spans[event, start, 0], spans[event, start, 1])
    length_ns, length_part = _decimal(spans[event, duration, 0], spans[event, duration, 1])
    if start_ns < 0 or length_ns < 0:
        return start_ns, -1
    return start_ns, start_ns + length_ns + (part + length_part >= _NS_PART)


@Compiled
def codes(
    spans: Int64,
    places: Int64,
    fields: Int64,
    instead: Int64,
    wanted: Bool,
    filled: Int64,
    texts: Int64,
    slots: Int32,
    arena: Bytes,
    found: Int32,
) -> None:
    """Per field and event, a number for the text there as the file spells it, -1 where there is none.

    Where `wanted`, the text of the field `instead` is taken, if there is one. `texts`, `slots` and `arena` hold
    the texts seen so far and have room for one per field and event.
    """
    for row in range(len(fields)):
        for i in range(len(places)):
            event, column = places[i], fields[row]
            if wanted[row, i] and spans[event, instead[row], 1] > 0:
                column = instead[row]
            found[row, i] = code_of(spans, event, column, filled, texts, slots, arena)


@Compiled
def code_of(spans: Int64, event: int, field: int, filled: Int64, texts: Int64, slots: Int32, arena: Bytes) -> int:
    """Of one event, the number of the text in a field, as `codes` tells it."""
    start, stop = spans[event, field, 0], spans[event, field, 1]
    if stop == 0:
        return -1
    key = _key_of(start, stop)
    slot = key & (len(slots) - 1)
    while slots[slot] >= 0 and not _is_text(start, stop, key, texts, slots[slot], arena):
        slot = (slot + 1) & (len(slots) - 1)
    if slots[slot] < 0:
        code = filled[0]
        slots[slot] = code
        texts[code, KEY], texts[code, AT], texts[code, LENGTH] = key, filled[1], stop - start
        for at in range(start, stop):
            arena[filled[1] + at - start] = byte_at(at)
        filled[0] += 1
        filled[1] += stop - start
    return slots[slot]


@Compiled
def index(texts: Int64, count: int, slots: Int32) -> None:
    """Enter the first `count` texts into empty `slots`."""
    for code in range(count):
        slot = texts[code, KEY] & (len(slots) - 1)
        while slots[slot] >= 0:
            slot = (slot + 1) & (len(slots) - 1)
        slots[slot] = code


@Compiled
def _key_of(start: int, stop: int) -> int:
    key = _MIX
    for at in range(start, stop, 8):
        word = load(at)
        if stop - at < 8:
            word &= ~(_ALL << np.uint64(8 * (stop - at)))
        key = (key ^ word) * _MIX
        key ^= key >> np.uint64(32)
    return signed(key)


@Compiled
def _is_text(start: int, stop: int, key: int, texts: Int64, code: int, arena: Bytes) -> bool:
    if texts[code, KEY] != key or texts[code, LENGTH] != stop - start:
        return False
    other = signed(arena.ctypes.data) + texts[code, AT]
    differing = _ALL - _ALL
    for at in range(start, stop, 8):
        difference = load(at) ^ load(other + at - start)
        if stop - at < 8:
            difference <<= np.uint64(8 * (8 - (stop - at)))
        differing |= difference
    return differing == 0


@Compiled
def _digits(start: int, stop: int) -> int:
    """Value of 1 to 18 digits, else -1."""
    if start >= stop or stop - start > 18:
        return -1
    value, block = 0, 0
    while stop - start >= 8 and block >= 0:
        block = _eight_digits(load(start))
        value = value * 10**8 + block
        start += 8
    if start < stop and block >= 0:
        bits = np.uint64(8 * (stop - start))
        block = _eight_digits((load(start) << (np.uint64(64) - bits)) | (_ZEROS >> bits))
        value = value * _POWERS[stop - start] + block
    return value if block >= 0 else -1


@Compiled
def _eight_digits(word: np.uint64) -> int:
    """Value of eight digits, else -1. Adds neighbours up: digits to pairs, pairs to fours, fours to the whole."""
    digits = word ^ _ZEROS
    if ((digits + _EACH * np.uint64(118)) | digits) & _TOP:
        return -1
    pairs = digits * np.uint64(10) + (digits >> np.uint64(8))
    mask = np.uint64(0x000000FF000000FF)
    upper = (pairs & mask) * np.uint64(100 + (1000000 << 32))
    lower = ((pairs >> np.uint64(16)) & mask) * np.uint64(1 + (10000 << 32))
    return signed((upper + lower) >> np.uint64(32))


@Compiled
def _decimal(start: int, stop: int) -> tuple[int, int]:
    """Microseconds in decimal text, as ns (-1 where it is no time) and what is finer, in 1e-15 ns."""
    point = _digits_end(start, stop)
    whole, part, rest = _digits(start, point), 0, point
    if point < stop and byte_at(point) == _DOT:
        rest = _digits_end(point + 1, stop)
        count = min(rest - point - 1, 18)
        part = _digits(point + 1, point + 1 + count) * _POWERS[18 - count]
    if rest < stop and whole >= 0 and part >= 0:
        whole, part = _shifted(whole, part, rest, stop)
    if whole < 0 or part < 0 or whole >= _LARGEST_US:
        return -1, 0
    return whole * 1000 + part // _NS_PART, part % _NS_PART


@Compiled
def _digits_end(at: int, stop: int) -> int:
    while at < stop and 48 <= byte_at(at) <= 57:
        at += 1
    return at


@Compiled
def _shifted(whole: int, part: int, start: int, stop: int) -> tuple[int, int]:
    """Apply the exponent that the text goes on with; the part is -1 where it goes on with something else."""
    minus, plus = byte_at(start + 1) == _MINUS, byte_at(start + 1) == _PLUS
    exponent = _digits(start + 1 + (minus or plus), stop)
    if (byte_at(start) != ord("e") and byte_at(start) != ord("E")) or exponent < 0:
        return 0, -1
    for _ in range(exponent):
        if whole + part == 0 or whole >= _LARGEST_US:
            break
        if minus:
            whole, part = whole // 10, part // 10 + whole % 10 * (_US_PART // 10)
        else:
            whole, part = whole * 10 + part // (_US_PART // 10), part % (_US_PART // 10) * 10
    return whole, part
