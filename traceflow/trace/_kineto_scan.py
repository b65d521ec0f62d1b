"""Compiled kernels of the Kineto reader: JSON bytes to columns in one pass. Imported only inside functions.

`scan` notes where the values of an event that matter are, turns them into rows of columns, and steps over everything
else. What breaks the grammar is skipped up to the start of the next event. Where the values of few events are needed
for more, their places are kept; `_text_columns` turns these into columns.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from traceflow.compiled import Compiled
from traceflow.trace import _kineto_words as w
from traceflow.trace._json_blocks import (
    BAD,
    BLANK,
    CLOSE,
    CLOSE_LIST,
    COMMA,
    INCOMPLETE,
    OPEN,
    OPEN_LIST,
    QUOTE,
    equal,
    key_and_value,
    space,
    value_end,
)
from traceflow.trace._text_columns import BLOCK, PADDING, byte_at, code_of, load, number_of, signed, times_of

Bytes = NDArray[np.uint8]
Int64 = NDArray[np.int64]
Int32 = NDArray[np.int32]
Int8 = NDArray[np.int8]

(DESCRIBED, SHAPED, CUT) = (1, 2, 4)
"""Bits: a span has arguments of a collective, has shapes, was cut by the end of the recording."""

# What the kernels remember from call to call: places in `state`.
(MODE, BARE, BASE, OFFSET, DAMAGE, FOUND, MEMBER_START, MEMBER_STOP, SPANS, FLOWS, KEPT, UNTIMED, STATE) = range(13)
(START, MEMBERS, EVENTS, END, BROKEN) = range(5)  # values of MODE

(START_NS, END_NS, NUMBER, EXTERNAL, NUMBERS) = range(5)
(TEXT, OWNER, TRACK, CATEGORY, CODES) = range(5)
(ROW, OUTCOME, SAID, KEPT_COLUMNS) = range(4)

_NO_MORE = min(INCOMPLETE, BAD) - 1
HABITS = 1 << w.SLOT_BITS
(WIDTH, SPELLED, MEANING, SLOT, HABIT) = range(BLOCK // 8, BLOCK // 8 + 5)  # behind the block itself


@Compiled
def scan(
    buffer: Bytes,
    begin: int,
    final: bool,  # noqa: FBT001
    state: Int64,
    counts: Int64,
    habits: Int64,
    numbers: Int64,
    codes: Int32,
    places: Int64,
    kept: Int64,
    counted: Int8,
    filled: Int64,
    texts: Int64,
    slots: Int32,
    arena: Bytes,
) -> int:
    """Take the complete events of `buffer` from `begin` on, at most one less than `places` has rows.

    Args:
        buffer: A piece of the file, starting where the last one was left, and PADDING.
        begin: Where to go on in it.
        final: Whether the file ends with this piece.
        state: See MODE and the names after it. FOUND and KEPT will be the numbers of events found and kept; SPANS and
            FLOWS those of the rows filled since they were set to 0.
        counts: Events by what became of them.
        habits: Per key, by its slot, the text from the end of its value to the value after it, as it was last time.
        numbers: Per row ns of start and end, correlation or number of a flow, and external number, shape (4, rows).
            Spans of time fill the rows from the first on, ends of flows from the last on backwards.
        codes: Of the same rows, numbers of the texts that tell name (of a flow, its phase), owner and track, and what
            it is, shape (4, rows).
        places: Per event kept and member, the addresses where its value starts and ends; 0 and 0 for none. They hold
            as long as the buffer does.
        kept: Per event kept, its row, what it is, and bits of what it says.
        counted: Per text, whether operators of this name are kept for their shapes: 0 for no.
        filled: How many texts there are, and how many bytes of them.
        texts: The texts seen so far, with room for three for each event.
        slots: Where to find them.
        arena: What they hold.

    Returns:
        Where it stopped: behind a member of the top-level object, whose place is then in MEMBER_START and
        MEMBER_STOP, or at something that is not complete, or at the end.
    """
    base = signed(buffer.ctypes.data)
    at, stop = base + begin, base + len(buffer) - PADDING
    state[BASE], state[FOUND], state[KEPT], state[MEMBER_STOP] = base, 0, 0, 0
    while state[FOUND] + 1 < len(places) and state[MEMBER_STOP] == 0:
        at = space(at, stop)
        if at >= stop:
            return stop - base
        if state[MODE] == EVENTS:
            after, outcome = _scan_event(at, stop, final, state, places, habits)
            if outcome >= 0:
                state[FOUND] += 1
                counts[outcome] += 1
                if outcome <= w.UNKNOWN or outcome == w.DATA_FLOW:
                    _fill_row(state, outcome, numbers, codes, places, kept, counted, filled, texts, slots, arena)
                elif outcome in (w.SYNC_RECORD, w.ALLOCATION):
                    _keep(state, kept, -1, outcome, 0)
        elif state[MODE] == MEMBERS:
            after = _scan_member(at, stop, state)
        else:
            after = _scan_start(at, state)
        if after == INCOMPLETE:
            break
        if after == BAD:
            _note_damage(at, state)
            state[MODE], after = BROKEN, stop
        at = after
    return at - base


@Compiled
def _note_damage(at: int, state: Int64) -> None:
    if state[DAMAGE] < 0:
        state[DAMAGE] = state[OFFSET] + at - state[BASE]


@Compiled
def _scan_start(at: int, state: Int64) -> int:
    byte = byte_at(at)
    if state[MODE] != START:
        return BAD
    if byte >= 0xBB:  # the bytes of a byte-order mark
        return at + 1
    if byte == OPEN_LIST:
        state[MODE], state[BARE] = EVENTS, 1
    elif byte == OPEN:
        state[MODE] = MEMBERS
    return at + 1 if state[MODE] != START else BAD


@Compiled
def _scan_member(at: int, stop: int, state: Int64) -> int:
    if byte_at(at) == CLOSE:
        state[MODE] = END
        return at + 1
    end, value = key_and_value(at, stop)
    if value < 0:
        return value
    if w.meaning_of(at + 1, end) == w.TRACE_EVENTS and byte_at(value) == OPEN_LIST:
        state[MODE] = EVENTS
        return value + 1
    end = value_end(value, stop)
    if end >= 0:
        state[MEMBER_START], state[MEMBER_STOP] = at - state[BASE], end - state[BASE]
    return end


@Compiled
def _scan_event(at: int, stop: int, final: bool, state: Int64, places: Int64, habits: Int64) -> tuple[int, int]:  # noqa: FBT001
    """Where an event ends, and what becomes of it; -1 where there is none."""
    if byte_at(at) == CLOSE_LIST:
        state[MODE] = END if state[BARE] else MEMBERS
        return at + 1, -1
    place = state[KEPT]
    end = _note_places(at, stop, places, place, habits) if byte_at(at) == OPEN else BAD
    if end >= 0:
        return end, _outcome(places, place)
    if end == BAD:
        end = _next_event(at + 1, stop)
        if end >= 0 or final:
            _note_damage(at, state)
            return end if end >= 0 else BAD, w.DAMAGED
    return end, -1


@Compiled
def _note_places(at: int, stop: int, places: Int64, place: int, habits: Int64) -> int:
    """Note where the values of one event are; return the position behind it.

    What stands between a value and the next is nearly always the same after the same key. So what came last time is
    compared first: where it ends is then known without looking, and the processor need not wait for it.
    """
    for field in range(w.FIELDS):
        places[place, field, 0] = places[place, field, 1] = 0
    in_arguments, before = False, 0
    at += 1
    while True:
        value, at = _next_value(at, stop, before, habits)
        if value == _NO_MORE and in_arguments:
            in_arguments = False
            continue
        if value < 0:
            return at if value == _NO_MORE else value
        key, before = habits[before, MEANING], habits[before, SLOT]
        if key == w.ARGS and byte_at(value) == OPEN and not in_arguments:
            in_arguments, at = True, value + 1
            continue
        at = value_end(value, stop)
        if at < 0:
            return at
        if 0 < key < w.FIELDS and in_arguments == (key >= w.CORRELATION):
            quoted = byte_at(value) == QUOTE
            places[place, key, 0], places[place, key, 1] = value + quoted, at - quoted


@Compiled
def _next_value(at: int, stop: int, before: int, habits: Int64) -> tuple[int, int]:
    """Where the value of the next member starts, its key learned; _NO_MORE where the object ends, and the end of it."""
    if _is_as_usual(at, before, habits):
        return at + habits[before, WIDTH], at
    start = space(at, stop)
    if start >= stop:
        return INCOMPLETE, at
    if byte_at(start) == CLOSE:
        return _NO_MORE, start + 1
    end, value = key_and_value(start, stop)
    if value >= 0:
        _learn(at, start, end, value, before, habits)
    return value, at


@Compiled
def _is_as_usual(at: int, before: int, habits: Int64) -> bool:
    """Whether what is at `at`, up to the next value, is what came last time after the key before."""
    width = habits[before, WIDTH]
    if width == 0 or not _begins_value(byte_at(at + width)):
        return False
    wanted = np.uint64(habits[before, SPELLED])
    return equal(at, signed(habits.ctypes.data) + before * 8 * HABIT) & wanted == wanted


@Compiled
def _begins_value(byte: int) -> bool:
    """Whether `space` would not step over it."""
    return byte > COMMA or byte == QUOTE


@Compiled
def _learn(at: int, start: int, end: int, value: int, before: int, habits: Int64) -> None:
    """Expect the key from `start` to `end`, and what is around it from `at` to its value, when the one before returns."""
    habits[before, MEANING], habits[before, SLOT] = w.meaning_of(start + 1, end), w.slot_of(start + 1, end)
    habits[before, WIDTH], habits[before, SPELLED] = 0, 0
    if value - at < BLOCK and _begins_value(byte_at(value)):
        for i in range(BLOCK // 8):
            habits[before, i] = signed(load(at + 8 * i))
        habits[before, WIDTH], habits[before, SPELLED] = value - at, (1 << (value - at)) - 1


@Compiled
def _fill_row(
    state: Int64,
    outcome: int,
    numbers: Int64,
    codes: Int32,
    places: Int64,
    kept: Int64,
    counted: Int8,
    filled: Int64,
    texts: Int64,
    slots: Int32,
    arena: Bytes,
) -> None:
    """Fill the columns of one span of time or end of a flow, and keep it where it says more than they hold."""
    place, is_flow = state[KEPT], outcome == w.DATA_FLOW
    start_ns, end_ns = times_of(places, place, w.TS, w.DUR)
    if end_ns < 0 and not is_flow:
        state[UNTIMED] += 1
        return
    row = codes.shape[1] - 1 - state[FLOWS] if is_flow else state[SPANS]
    numbers[START_NS, row], numbers[END_NS, row] = start_ns, end_ns
    numbers[NUMBER, row] = number_of(places, place, w.ID if is_flow else w.CORRELATION)
    numbers[EXTERNAL, row] = number_of(places, place, w.EXTERNAL)
    on_device = w.KERNEL <= outcome <= w.QUEUE
    name = w.PH if is_flow else w.NAME
    if outcome == w.UNKNOWN and places[place, w.CATEGORY, 1] > 0:
        name = w.CATEGORY
    owner = w.DEVICE if on_device and places[place, w.DEVICE, 1] > 0 else w.PID
    track = w.STREAM if on_device and places[place, w.STREAM, 1] > 0 else w.TID
    codes[TEXT, row] = code_of(places, place, name, filled, texts, slots, arena)
    codes[OWNER, row] = code_of(places, place, owner, filled, texts, slots, arena)
    codes[TRACK, row] = code_of(places, place, track, filled, texts, slots, arena)
    codes[CATEGORY, row] = outcome
    if is_flow:
        state[FLOWS] += 1
        return
    state[SPANS] += 1
    said = _said(places, place)
    asked = outcome == w.OPERATOR and codes[TEXT, row] >= 0 and counted[codes[TEXT, row]] != 0
    if outcome == w.MEMORY or said & (DESCRIBED | CUT) or (said & SHAPED and asked):
        _keep(state, kept, row, outcome, said)


@Compiled
def _said(places: Int64, place: int) -> int:
    described = places[place, w.COLLECTIVE, 1] > 0 or places[place, w.GROUP_NAME, 1] > 0
    cut = places[place, w.FINISHED, 1] - places[place, w.FINISHED, 0] == len("false")  # "true" is shorter
    return DESCRIBED * described + SHAPED * (places[place, w.SHAPES, 1] > 0) + CUT * cut


@Compiled
def _keep(state: Int64, kept: Int64, row: int, outcome: int, said: int) -> None:
    """Leave the places of this event as they are, and go on behind them."""
    place = state[KEPT]
    kept[place, ROW], kept[place, OUTCOME], kept[place, SAID] = row, outcome, said
    state[KEPT] += 1


@Compiled
def _next_event(at: int, stop: int) -> int:
    """Behind damage: where an event starts after a comma, or where the list of events closes."""
    before = 0
    while at < stop:
        byte = byte_at(at)
        if byte == CLOSE_LIST and before == CLOSE:
            return at
        if byte == OPEN and before == COMMA:
            first = space(at + 1, stop)
            end, value = key_and_value(first, stop)
            if value >= 0 and 0 < w.meaning_of(first + 1, end) <= w.ARGS:
                return at
        if byte > BLANK:
            before = byte
        at += 1
    return INCOMPLETE


@Compiled
def _outcome(places: Int64, place: int) -> int:
    """What one event is to become, from its category and phase."""
    phase = byte_at(places[place, w.PH, 0]) if places[place, w.PH, 1] - places[place, w.PH, 0] == 1 else 0
    outcome = w.meaning_of(places[place, w.CATEGORY, 0], places[place, w.CATEGORY, 1])
    if outcome < w.OPERATOR or outcome > w.OVERHEAD:
        outcome = w.UNKNOWN
    if phase == 0:
        outcome = w.EMPTY
    elif phase == ord("M"):
        outcome = w.METADATA
    elif phase == ord("C"):
        outcome = w.COUNTER
    elif phase == ord("i") or phase == ord("I") or phase == ord("R"):
        is_allocation = w.meaning_of(places[place, w.NAME, 0], places[place, w.NAME, 1]) == w.ALLOCATION
        outcome = w.ALLOCATION if is_allocation else w.INSTANT
    elif phase == ord("s") or phase == ord("t") or phase == ord("f"):
        outcome = w.DATA_FLOW if outcome == w.DATA_FLOW else w.LAUNCH_FLOW
    elif phase != ord("X"):
        outcome = w.OTHER_PHASE
    return outcome
