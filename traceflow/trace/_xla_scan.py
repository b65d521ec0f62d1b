"""Compiled kernels of the XSpace reader: the bytes of one line to columns in one pass.

They know the fields of XLine, XEvent and XStat by number and step over all others. They read what profilers write and
leave what is written in any other way to protobuf: whatever is odd or damaged, they say so and stop. No place is read
that was not compared with the end of what holds it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traceflow.compiled import Compiled

Bytes = NDArray[np.uint8]
Int64 = NDArray[np.int64]
Int8 = NDArray[np.int8]

(LINE_ID, TIMESTAMP_NS, NAME_START, NAME_STOP, HEAD) = range(5)  # what is known of a line
(METADATA, OFFSET_PS, DURATION_PS, TIMES) = range(4)  # rows of a table of events

# What a statistic holds, after the numbers of its fields; NOTHING where it has none of them.
(ABSENT, NOTHING, DOUBLE, UNSIGNED, SIGNED, TEXT, BYTES, REFERENCE) = range(8)

ODD = -1
LENGTH_BITS = 31  # of a word that tells where a text is: protobuf reads nothing longer
_VARINT, _FIXED64, _TEXT, _FIXED32 = 0, 1, 2, 5  # how a field is written
_SIGN = -(2**63)
_ID, _NAME, _TIMESTAMP, _EVENT = 1 << 3, 2 << 3 | _TEXT, 3 << 3, 4 << 3 | _TEXT
_STAT = 4 << 3 | _TEXT

_signed: Callable[[Any], int] = np.int64  # type: ignore[assignment]


@Compiled
def _varint(content: Bytes, at: int, stop: int) -> tuple[int, int]:
    """The number at a place and where it ends, ODD for none."""
    value, shift = 0, 0
    while at < stop and shift < 63:
        byte = _signed(content[at])
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
    if at < stop and shift == 63 and content[at] <= 1:
        return value + _SIGN * _signed(content[at]), at + 1
    return 0, ODD


@Compiled
def _field(content: Bytes, at: int, stop: int) -> tuple[int, int, int]:
    """The tag of the field at a place, its number or where its content starts, and where it ends, ODD for nowhere."""
    tag = _signed(content[at])
    at += 1
    if tag >= 128:
        if at >= stop or content[at] >= 128:
            return 0, 0, ODD
        tag += (_signed(content[at]) - 1) << 7
        at += 1
    if tag < 8:
        return 0, 0, ODD
    form = tag & 7
    if form == _VARINT:
        value, at = _varint(content, at, stop)
        return tag, value, at
    length = 8 if form == _FIXED64 else 4
    if form == _TEXT:
        length, at = _varint(content, at, stop)
    elif form not in (_FIXED64, _FIXED32):
        return 0, 0, ODD
    if at < 0 or length < 0 or length > stop - at:
        return 0, 0, ODD
    return tag, at, at + length


@Compiled
def _is_plain(content: Bytes, at: int, stop: int) -> bool:
    """Whether a text is ASCII."""
    bits = 0
    for i in range(at, stop):
        bits |= _signed(content[i])
    return bits < 128


@Compiled
def count_events(content: Bytes, head: Int64, checked: bool) -> int:  # noqa: FBT001
    """Fill in what is known of a line; return how many events it holds, or ODD.

    Args:
        content: An XLine.
        head: See LINE_ID and the names after it.
        checked: Whether all texts are known to be UTF-8.
    """
    at, stop, events = 0, len(content), 0
    while at < stop:
        tag, value, at = _field(content, at, stop)
        if at < 0:
            return ODD
        if tag == _EVENT:
            events += 1
        elif tag == _ID:
            head[LINE_ID] = value
        elif tag == _TIMESTAMP:
            head[TIMESTAMP_NS] = value
        elif tag == _NAME:
            head[NAME_START], head[NAME_STOP] = value, at
            if not checked and not _is_plain(content, value, at):
                return ODD
    return events


@Compiled
def scan_events(
    content: Bytes,
    checked: bool,  # noqa: FBT001
    wanted: Int64,
    slots: Int64,
    times: Int64,
    form: Int8,
    word: Int64,
) -> int:
    """Fill the columns of all events of a line; return 0, or ODD.

    Args:
        content: An XLine.
        checked: Whether all texts are known to be UTF-8.
        wanted: Numbers of the statistics to read, ascending.
        slots: For each of these, the row of the tables that it goes to.
        times: Per event, see METADATA and the names after it; shape (TIMES, events), and zeros.
        form: What each statistic of each event holds, see ABSENT and the names after it; shape (slots, events), and
            zeros. Of several that go to one place, the last counts.
        word: Its 64 bits; of a text, where it starts, times 2**LENGTH_BITS, and its length.
    """
    at, stop, row = 0, len(content), 0
    while at < stop:
        tag, start, at = _field(content, at, stop)
        if at < 0:
            return ODD
        if tag == _EVENT:
            if _scan_event(content, start, at, checked, wanted, slots, times, form, word, row) < 0:
                return ODD
            row += 1
    return 0


@Compiled
def _scan_event(
    content: Bytes,
    at: int,
    stop: int,
    checked: bool,  # noqa: FBT001
    wanted: Int64,
    slots: Int64,
    times: Int64,
    form: Int8,
    word: Int64,
    row: int,
) -> int:
    while at < stop:
        tag, value, at = _field(content, at, stop)
        if at < 0:
            return ODD
        if tag == _STAT:
            if _scan_stat(content, value, at, checked, wanted, slots, form, word, row) < 0:
                return ODD
        elif tag & 7 == _VARINT and tag >> 3 <= TIMES:
            times[(tag >> 3) - 1, row] = value
    return 0


@Compiled
def _scan_stat(
    content: Bytes,
    at: int,
    stop: int,
    checked: bool,  # noqa: FBT001
    wanted: Int64,
    slots: Int64,
    form: Int8,
    word: Int64,
    row: int,
) -> int:
    number, kind, bits = 0, NOTHING, 0
    while at < stop:
        tag, value, at = _field(content, at, stop)
        if at < 0:
            return ODD
        field = tag >> 3
        if tag == _ID:
            number = value
        elif tag == (DOUBLE << 3 | _FIXED64):
            kind, bits = DOUBLE, _eight(content, value)
        elif tag in (UNSIGNED << 3, SIGNED << 3, REFERENCE << 3):
            kind, bits = field, value
        elif tag in (TEXT << 3 | _TEXT, BYTES << 3 | _TEXT):
            kind, bits = field, (value << LENGTH_BITS) + at - value
            if field == TEXT and not checked and not _is_plain(content, value, at):
                return ODD
    place = _place(wanted, number)
    if place >= 0:
        form[slots[place], row], word[slots[place], row] = kind, bits
    return 0


@Compiled
def _eight(content: Bytes, at: int) -> int:
    """Eight bytes as a signed number."""
    value = _signed(content[at + 7])
    value = value - 256 if value >= 128 else value
    for i in range(6, -1, -1):
        value = (value << 8) + _signed(content[at + i])
    return value


@Compiled
def _place(wanted: Int64, number: int) -> int:
    """The place of a number, ODD for none."""
    low, high = 0, len(wanted)
    while low < high:
        middle = (low + high) >> 1
        if wanted[middle] < number:
            low = middle + 1
        else:
            high = middle
    return low if low < len(wanted) and wanted[low] == number else ODD
