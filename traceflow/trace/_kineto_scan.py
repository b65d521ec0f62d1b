"""Compiled kernels of the Kineto reader: JSON bytes to columns in one pass. Imported only inside functions.

`scan` knows just enough JSON to be fast and forgiving. It notes where the values that matter are, steps over
everything else, and skips an event that breaks the grammar up to the start of the next one. Raw control
characters, unknown escapes, superfluous commas, NaN and Infinity need no special treatment. `times`, `numbers`
and `codes` of `_text_columns` then turn noted values into columns.

Text is looked at eight bytes at a time; `_is` and `_above` mark bytes of such a word in their highest bits.
Every buffer therefore ends in PADDING bytes that belong to nothing. Words and grammar share one module, because
the compiler's cache notices a change only in the file that a kernel stands in.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from traceflow.compiled import Compiled, Intrinsic
from traceflow.trace._text_columns import PADDING, byte_at, code_of, load, number_of, signed, times_of

Bytes = NDArray[np.uint8]
Int64 = NDArray[np.int64]
Int32 = NDArray[np.int32]
Int8 = NDArray[np.int8]

# Members of an event whose values are noted; those from CORRELATION on are arguments.
(PH, CATEGORY, NAME, PID, TID, TS, DUR, ID, ARGS) = range(1, 10)
(CORRELATION, EXTERNAL, STREAM, DEVICE, COLLECTIVE, DTYPE, NELEMS, IN_SPLITS, OUT_SPLITS) = range(10, 19)
(GROUP_NAME, GROUP_RANKS, GROUP_SIZE, SEQUENCE, ROOT, SOURCE, DESTINATION) = range(19, 26)
(SYNC, AWAITED_STREAM, RECORD_CORRELATION, FINISHED) = range(26, 30)
(BYTES, ALLOCATED, RESERVED, DEVICE_KIND, DEVICE_NUMBER) = range(30, 35)
(SHAPES, TYPES, VALUES, FIELDS) = range(35, 39)

# What becomes of an event: up to UNKNOWN a span of time, then records of their own kind, then nothing.
(OPERATOR, ANNOTATION, PYTHON, RUNTIME, KERNEL, MEMORY, QUEUE, UNKNOWN, SYNC_RECORD, DATA_FLOW) = range(40, 50)
(LAUNCH_FLOW, DEVICE_ANNOTATION, PROFILER, OVERHEAD, INSTANT, COUNTER, METADATA) = range(50, 57)
(OTHER_PHASE, EMPTY, DAMAGED, ALLOCATION, OUTCOMES) = range(57, 62)
_TRACE_EVENTS = OUTCOMES


def _words(texts: str, first: int, step: int = 1) -> dict[str, int]:
    return {text: first + step * i for i, text in enumerate(texts.split("|"))}


_WORDS = {
    **_words("ph|cat|name|pid|tid|ts|dur|id|args|correlation|External id|stream|device", PH),
    **_words("Collective name|dtype|In msg nelems|In split size|Out split size", COLLECTIVE),
    **_words("Process Group Name|Process Group Ranks|Group size|Seq|Rank|Src Rank|Dst Rank", GROUP_NAME),
    **_words("cuda_sync_kind|wait_on_stream|wait_on_cuda_event_record_corr_id|finished", SYNC),
    **_words("Bytes|Total Allocated|Total Reserved|Device Type|Device Id", BYTES),
    **_words("Input Dims|Input type|Concrete Inputs", SHAPES),
    "Input dims": SHAPES,
    "bytes": BYTES,
    "external id": EXTERNAL,
    "Process Group ID": GROUP_NAME,
    # Capitalised: as exporters wrote them before 2022.
    **_words("cpu_op|Operator", OPERATOR, 0),
    "user_annotation": ANNOTATION,
    "python_function": PYTHON,
    **_words("cuda_runtime|cuda_driver|xpu_runtime|xpu_driver|mtia_runtime|glow_runtime|Runtime", RUNTIME, 0),
    **_words("privateuse1_runtime|privateuse1_driver", RUNTIME, 0),
    **_words("kernel|concurrent_kernel|Kernel", KERNEL, 0),
    **_words("gpu_memcpy|gpu_memset|Memcpy|Memset", MEMORY, 0),
    "mtia_ccp_events": QUEUE,
    **_words("cuda_sync|xpu_sync", SYNC_RECORD, 0),
    **_words("fwdbwd|forward_backward", DATA_FLOW, 0),
    **_words("ac2g|async_cpu_to_gpu|async_gpu", LAUNCH_FLOW, 0),
    "gpu_user_annotation": DEVICE_ANNOTATION,
    "Trace": PROFILER,
    "overhead": OVERHEAD,
    "[memory]": ALLOCATION,
    "traceEvents": _TRACE_EVENTS,
}
_MEANING = np.array([0, *_WORDS.values()], np.int64)
_LENGTH = np.array([0, *map(len, _WORDS)], np.int64)
_LONGEST = int(_LENGTH.max())
_SLOT_BITS = 9


def _spelling() -> NDArray[np.uint64]:
    """Each word in pieces of eight bytes, the last of which ends where the word ends."""
    pieces = np.zeros((len(_WORDS) + 1, (_LONGEST + 7) // 8), np.uint64)
    for place, word in enumerate(_WORDS, 1):
        for i in range(0, len(word), 8):
            at = min(i, max(len(word) - 8, 0))
            pieces[place, i // 8] = int.from_bytes(word[at : at + 8].encode(), "little")
    return pieces


def _perfect_hash() -> tuple[np.uint64, Int64]:
    """A factor that takes first piece plus length to a slot of its own for each word, and the words by slot."""
    keys = _PIECES[1:, 0] + _LENGTH[1:].astype(np.uint64)
    for factor in np.arange(1, 2**16, 2).astype(np.uint64) * _MIX:
        slots = (keys * factor) >> np.uint64(64 - _SLOT_BITS)
        if len(np.unique(slots)) == len(slots):
            break
    word_at = np.zeros(1 << _SLOT_BITS, np.int64)
    word_at[slots.astype(np.int64)] = np.arange(1, len(slots) + 1)
    return factor, word_at


_EACH, _TOP, _REST = (np.uint64(n * 0x0101010101010101) for n in (0x01, 0x80, 0x7F))
_ALL, _MIX = np.uint64(2**64 - 1), np.uint64(0x9E3779B97F4A7C15)
_PIECES = _spelling()
_FACTOR, _WORD_AT = _perfect_hash()

(DESCRIBED, SHAPED, CUT) = (1, 2, 4)
"""Bits: a span has arguments of a collective, has shapes, was cut by the end of the recording."""

# What the kernels remember from call to call: places in `state`.
(MODE, BARE, BASE, OFFSET, DAMAGE, FOUND, MEMBER_START, MEMBER_STOP, STATE) = range(9)
(START, MEMBERS, EVENTS, END, BROKEN) = range(5)  # values of MODE

_INCOMPLETE, _BAD = -1, -2
(_QUOTE, _PLUS, _COMMA, _COLON, _BACKSLASH) = map(ord, '"+,:\\')
(_OPEN, _CLOSE, _OPEN_LIST, _CLOSE_LIST) = map(ord, "{}[]")
_THREE, _COLON_SPACE = np.uint64(0xFFFFFF), np.uint64(int.from_bytes(b'": ', "little"))


@Intrinsic
def _low_zeros(types: Any, ir: Any) -> Any:
    """How many of the lowest bits of a word are zero."""

    def build(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))

    return types.int64, (types.uint64,), build


@Compiled
def _is(word: np.uint64, byte: int) -> np.uint64:
    """Mark the bytes that equal `byte`; above the first of them, marks may be wrong."""
    other = word ^ (_EACH * np.uint64(byte))
    return (other - _EACH) & ~other & _TOP


@Compiled
def _above(word: np.uint64, byte: int) -> np.uint64:
    """Mark the bytes that are greater than `byte`, which is below 128."""
    return (((word & _REST) + _EACH * np.uint64(127 - byte)) | word) & _TOP


@Compiled
def _space(at: int, stop: int) -> int:
    """Step over white space, commas and what else no value starts with."""
    while at < stop:
        word = load(at)
        found = _above(word, _COMMA) | _is(word, _QUOTE)
        if found:
            return at + (_low_zeros(found) >> 3)
        at += 8
    return at


@Compiled
def _string_end(at: int, stop: int) -> int:
    """Where the quote is that closes the string whose first character is at `at`; at `stop` or later for none."""
    while at < stop:
        word = load(at)
        found = _is(word, _QUOTE) | _is(word, _BACKSLASH)
        if not found:
            at += 8
            continue
        at += _low_zeros(found) >> 3
        if byte_at(at) == _QUOTE:
            return at
        at += 2
    return at


@Compiled
def _bare_end(at: int, stop: int) -> int:
    """Where a number, true, false, null, NaN or Infinity ends."""
    while at < stop:
        word = load(at)
        found = (~_above(word, _COMMA) & _TOP) | _is(word, _CLOSE) | _is(word, _CLOSE_LIST) | _is(word, _COLON)
        if not found:
            at += 8
            continue
        at += _low_zeros(found) >> 3
        if byte_at(at) != _PLUS:
            return at
        at += 1
    return at


@Compiled
def _nested_end(at: int, stop: int) -> int:
    """Where the object or list at `at` ends, _INCOMPLETE for nowhere."""
    depth = 0
    while at < stop:
        word = load(at)
        folded = word & ~(_EACH * np.uint64(32))  # takes braces to brackets
        found = _is(word, _QUOTE) | _is(folded, _OPEN_LIST) | _is(folded, _CLOSE_LIST)
        if not found:
            at += 8
            continue
        at += _low_zeros(found) >> 3
        if byte_at(at) == _QUOTE:
            at = _string_end(at + 1, stop)
        elif byte_at(at) == _OPEN or byte_at(at) == _OPEN_LIST:
            depth += 1
        else:
            depth -= 1
        at += 1
        if depth == 0:
            return at
    return _INCOMPLETE


@Compiled
def _value_end(at: int, stop: int) -> int:
    if byte_at(at) == _QUOTE:
        end = _string_end(at + 1, stop) + 1
    elif byte_at(at) == _OPEN or byte_at(at) == _OPEN_LIST:
        return _nested_end(at, stop)
    else:
        end = _bare_end(at, stop)
    if end >= stop:
        return _INCOMPLETE
    return end if end > at else _BAD


@Compiled
def _key(at: int, stop: int) -> tuple[int, int]:
    """Where the value of the member at `at` starts, and what its key means."""
    if byte_at(at) != _QUOTE:
        return _BAD, 0
    end = _string_end(at + 1, stop)
    if end + 3 < stop and load(end) & _THREE == _COLON_SPACE and byte_at(end + 3) > 32:
        return end + 3, _word(at + 1, end)
    value = _space(end + 1, stop)
    if value >= stop:
        return _INCOMPLETE, 0
    if byte_at(value) != _COLON:
        return _BAD, 0
    value = _space(value + 1, stop)
    if value >= stop:
        return _INCOMPLETE, 0
    return value, _word(at + 1, end)


@Compiled
def _word(start: int, stop: int) -> int:
    """Meaning of a word of `_WORDS`, else 0."""
    length = stop - start
    if length <= 0 or length > _LONGEST:
        return 0
    first = load(start)
    if length < 8:
        first &= ~(_ALL << np.uint64(8 * length))
    place = _WORD_AT[signed(((first + np.uint64(length)) * _FACTOR) >> np.uint64(64 - _SLOT_BITS))]
    if _LENGTH[place] != length or _PIECES[place, 0] != first:
        return 0
    for i in range(8, length, 8):
        if load(start + min(i, length - 8)) != _PIECES[place, i >> 3]:
            return 0
    return _MEANING[place]


@Compiled
def scan(
    buffer: Bytes,
    begin: int,
    final: bool,  # noqa: FBT001
    state: Int64,
    spans: Int64,
    outcomes: Int8,
    numbers: Int64,
    codes: Int32,
    filled: Int64,
    texts: Int64,
    slots: Int32,
    arena: Bytes,
) -> int:
    """Note the complete events of `buffer` from `begin` on, as many as `outcomes` has room for.

    Args:
        buffer: A piece of the file, starting where the last one was left, and PADDING.
        begin: Where to go on in it.
        final: Whether the file ends with this piece.
        state: See MODE and the names after it. FOUND will be the number of events noted.
        spans: Per event and member, the addresses where its value starts and ends; 0 and 0 for none.
            They hold as long as the buffer does.
        outcomes: Per event, what it is to become.
        numbers: Of spans of time, ns of start and end, correlation and external number, shape (4, events); of ends of
            data flows, the time and, as the third, their number.
        codes: Of the same, numbers of the texts that tell name (of a flow, its phase), owner and track, and what else
            is noted, by bits, shape (4, events).
        filled: As for `codes`, and the rest likewise.
        texts: The texts seen so far, with room for three for each event.
        slots: Where to find them.
        arena: What they hold.

    Returns:
        Where it stopped: behind a member of the top-level object, whose place is then in MEMBER_START and
        MEMBER_STOP, or at something that is not complete, or at the end.
    """
    base = signed(buffer.ctypes.data)
    at, stop = base + begin, base + len(buffer) - PADDING
    state[BASE], state[FOUND], state[MEMBER_STOP] = base, 0, 0
    while state[FOUND] < len(outcomes) and state[MEMBER_STOP] == 0:
        at = _space(at, stop)
        if at >= stop:
            return stop - base
        if state[MODE] == EVENTS:
            place = state[FOUND]
            after = _scan_event(at, stop, final, state, spans, outcomes)
            if state[FOUND] > place and (outcomes[place] <= UNKNOWN or outcomes[place] == DATA_FLOW):
                _note_span(spans, place, outcomes[place], numbers, codes, filled, texts, slots, arena)
        elif state[MODE] == MEMBERS:
            after = _scan_member(at, stop, state)
        else:
            after = _scan_start(at, state)
        if after == _INCOMPLETE:
            break
        if after == _BAD:
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
        return _BAD
    if byte >= 0xBB:  # the bytes of a byte-order mark
        return at + 1
    if byte == _OPEN_LIST:
        state[MODE], state[BARE] = EVENTS, 1
    elif byte == _OPEN:
        state[MODE] = MEMBERS
    return at + 1 if state[MODE] != START else _BAD


@Compiled
def _scan_member(at: int, stop: int, state: Int64) -> int:
    if byte_at(at) == _CLOSE:
        state[MODE] = END
        return at + 1
    value, key = _key(at, stop)
    if value < 0:
        return value
    if key == _TRACE_EVENTS and byte_at(value) == _OPEN_LIST:
        state[MODE] = EVENTS
        return value + 1
    end = _value_end(value, stop)
    if end >= 0:
        state[MEMBER_START], state[MEMBER_STOP] = at - state[BASE], end - state[BASE]
    return end


@Compiled
def _scan_event(at: int, stop: int, final: bool, state: Int64, spans: Int64, outcomes: Int8) -> int:  # noqa: FBT001
    if byte_at(at) == _CLOSE_LIST:
        state[MODE] = END if state[BARE] else MEMBERS
        return at + 1
    place = state[FOUND]
    end = _note_event(at, stop, spans, place) if byte_at(at) == _OPEN else _BAD
    if end >= 0:
        outcomes[place] = _outcome(spans, place)
        state[FOUND] += 1
    elif end == _BAD:
        end = _next_event(at + 1, stop)
        if end >= 0 or final:
            _note_damage(at, state)
            outcomes[place] = DAMAGED
            state[FOUND] += 1
            end = end if end >= 0 else _BAD
    return end


@Compiled
def _note_event(at: int, stop: int, spans: Int64, place: int) -> int:
    """Note where the values of one event are; return the position behind it."""
    for field in range(FIELDS):
        spans[place, field, 0] = spans[place, field, 1] = 0
    in_arguments = False
    at += 1
    while True:
        at = _space(at, stop)
        if at >= stop:
            return _INCOMPLETE
        if byte_at(at) == _CLOSE:
            at += 1
            if not in_arguments:
                return at
            in_arguments = False
            continue
        value, key = _key(at, stop)
        if value < 0:
            return value
        if key == ARGS and byte_at(value) == _OPEN and not in_arguments:
            in_arguments, at = True, value + 1
            continue
        at = _value_end(value, stop)
        if at < 0:
            return at
        if 0 < key < FIELDS and in_arguments == (key >= CORRELATION):
            quoted = byte_at(value) == _QUOTE
            spans[place, key, 0], spans[place, key, 1] = value + quoted, at - quoted


@Compiled
def _note_span(
    spans: Int64,
    place: int,
    outcome: int,
    numbers: Int64,
    codes: Int32,
    filled: Int64,
    texts: Int64,
    slots: Int32,
    arena: Bytes,
) -> None:
    """Fill the columns of one span of time or end of a flow, while what was noted of it is at hand."""
    numbers[0, place], numbers[1, place] = times_of(spans, place, TS, DUR)
    numbers[2, place] = number_of(spans, place, ID if outcome == DATA_FLOW else CORRELATION)
    numbers[3, place] = number_of(spans, place, EXTERNAL)
    on_device = KERNEL <= outcome <= QUEUE
    name = PH if outcome == DATA_FLOW else NAME
    if outcome == UNKNOWN and spans[place, CATEGORY, 1] > 0:
        name = CATEGORY
    owner = DEVICE if on_device and spans[place, DEVICE, 1] > 0 else PID
    track = STREAM if on_device and spans[place, STREAM, 1] > 0 else TID
    codes[0, place] = code_of(spans, place, name, filled, texts, slots, arena)
    codes[1, place] = code_of(spans, place, owner, filled, texts, slots, arena)
    codes[2, place] = code_of(spans, place, track, filled, texts, slots, arena)
    described = spans[place, COLLECTIVE, 1] > 0 or spans[place, GROUP_NAME, 1] > 0
    cut = spans[place, FINISHED, 1] - spans[place, FINISHED, 0] == len("false")  # "true" is shorter
    codes[3, place] = DESCRIBED * described + SHAPED * (spans[place, SHAPES, 1] > 0) + CUT * cut


@Compiled
def _next_event(at: int, stop: int) -> int:
    """Behind damage: where an event starts after a comma, or where the list of events closes."""
    before = 0
    while at < stop:
        byte = byte_at(at)
        if byte == _CLOSE_LIST and before == _CLOSE:
            return at
        if byte == _OPEN and before == _COMMA:
            value, key = _key(_space(at + 1, stop), stop)
            if value >= 0 and 0 < key <= ARGS:
                return at
        if byte > 32:
            before = byte
        at += 1
    return _INCOMPLETE


@Compiled
def _outcome(spans: Int64, place: int) -> int:
    """What one event is to become, from its category and phase."""
    phase = byte_at(spans[place, PH, 0]) if spans[place, PH, 1] - spans[place, PH, 0] == 1 else 0
    outcome = _word(spans[place, CATEGORY, 0], spans[place, CATEGORY, 1])
    if outcome < OPERATOR or outcome > OVERHEAD:
        outcome = UNKNOWN
    if phase == 0:
        outcome = EMPTY
    elif phase == ord("M"):
        outcome = METADATA
    elif phase == ord("C"):
        outcome = COUNTER
    elif phase == ord("i") or phase == ord("I") or phase == ord("R"):
        is_allocation = _word(spans[place, NAME, 0], spans[place, NAME, 1]) == ALLOCATION
        outcome = ALLOCATION if is_allocation else INSTANT
    elif phase == ord("s") or phase == ord("t") or phase == ord("f"):
        outcome = DATA_FLOW if outcome == DATA_FLOW else LAUNCH_FLOW
    elif phase != ord("X"):
        outcome = OTHER_PHASE
    return outcome
