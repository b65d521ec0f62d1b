"""The lines of an XSpace's planes as columns: what its bytes hold, with what each plane says once for all its events."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from traceflow.program.schema import message
from traceflow.trace._xla_columns import CODED, NONE, WANTED, Column, Made, Stats, Texts
from traceflow.trace._xla_lines import LONGEST, WITHOUT_TIME, Count, Line, distinct_names, noise
from traceflow.trace._xla_scan import (
    BYTES,
    DOUBLE,
    DURATION_PS,
    HEAD,
    LENGTH_BITS,
    LINE_ID,
    METADATA,
    NAME_START,
    NAME_STOP,
    NOTHING,
    ODD,
    OFFSET_PS,
    REFERENCE,
    TEXT,
    TIMES,
    TIMESTAMP_NS,
    count_events,
    scan_events,
)
from traceflow.trace.model import Bool, Int8, Int64


@dataclass(frozen=True, slots=True)
class _Bytes:
    """One line as it is written, with its own fields; `checked` where protobuf has seen it."""

    content: bytes
    checked: bool
    events: int
    number: int
    name: str
    timestamp_ns: int


@dataclass(frozen=True, slots=True)
class _Dictionary:
    """What a plane says once for all its events. The last kind is that of events whose number it does not explain."""

    wanted: Int64  # numbers of statistics, ascending
    slots: Int64  # the place of each one's name among `stats`
    stats: Sequence[str]
    references: Int64  # numbers of texts, ascending
    texts: Int64  # the place of each among the values, and at the end that of the empty text
    made: Made
    kinds: Int64  # numbers of kinds of events, ascending
    names: Sequence[str]  # by kind, as all below
    noise: Sequence[str | None]
    shared: Mapping[str, Column]


def plane_lines(plane: Any, texts: Mapping[int, str], count: Count) -> Iterator[Line]:
    """The lines of a plane, without the profiler's own events.

    Args:
        plane: An XPlaneOfBytes.
        texts: The names of statistics, and texts that are their values, by the numbers that stand for them.
        count: What was read and left out is added.

    Raises:
        DecodeError: A line is damaged.
    """
    dictionary = _dictionary(plane, texts)
    lines = [_counted(content) for content in plane.lines]
    names = distinct_names([(line.name, line.number) for line in lines])
    for line, name in zip(lines, names, strict=True):
        yield _line(line, name, dictionary, count)


def _counted(content: bytes, *, checked: bool = False) -> _Bytes:
    head = np.zeros(HEAD, np.int64)
    events = count_events(np.frombuffer(content, np.uint8), head, checked)
    if events == ODD:
        return _counted(_as_usual(content), checked=True)
    name = content[head[NAME_START] : head[NAME_STOP]].decode()
    return _Bytes(content, checked, events, int(head[LINE_ID]), name, int(head[TIMESTAMP_NS]))


def _as_usual(content: bytes) -> bytes:
    """The same line as profilers write it, without what nobody knows. Raises DecodeError where it is damaged."""
    line = message("XLine").FromString(content)
    line.DiscardUnknownFields()
    return bytes(line.SerializeToString())


def _dictionary(plane: Any, texts: Mapping[int, str]) -> _Dictionary:
    entries = {entry.key: entry.value for entry in plane.event_metadata}
    kinds, wanted = sorted(entries), sorted(number for number, text in texts.items() if text in WANTED)
    made = Made(len(kinds) + 1)
    names = [_named(entries[kind], row, texts, made) for row, kind in enumerate(kinds)]
    stats = sorted({texts[number] for number in wanted})
    references = sorted(number for number in texts if number >= 0)  # others nothing can refer to
    return _Dictionary(
        np.array(wanted, np.int64),
        np.array([stats.index(texts[number]) for number in wanted], np.int64),
        stats,
        np.array(references, np.int64),
        np.array([made.code(text) for text in (*(texts[number] for number in references), "")], np.int64),
        made,
        np.array(kinds, np.int64),
        [*names, ""],
        [*map(noise, names), "without a name"],
        {name: made.column(name) for name in {*stats, *made.columns()}},
    )


def _named(kind: Any, row: int, texts: Mapping[int, str], made: Made) -> str:
    """The name of a kind of events. A TPU operation's name is its HLO text, and its short name is for display."""
    for stat in kind.stats:
        if (name := texts.get(stat.metadata_id)) in WANTED:
            made.add(row, str(name), stat_value(texts, stat))
    if kind.display_name and " = " in kind.name:
        made.add(row, "long_name", kind.name)
    return str(kind.display_name or kind.name)


def stat_value(texts: Mapping[int, str], stat: Any) -> object:
    """What a statistic holds, None for nothing."""
    kind = stat.WhichOneof("value")
    if kind == "ref_value":
        return texts.get(stat.ref_value, "")
    return getattr(stat, kind) if kind else None


def _line(line: _Bytes, name: str, dictionary: _Dictionary, count: Count) -> Line:
    times = np.zeros((TIMES, line.events), np.int64)
    form = np.zeros((len(dictionary.stats), line.events), np.int8)
    word = np.zeros((len(dictionary.stats), line.events), np.int64)
    content = np.frombuffer(line.content, np.uint8)
    if scan_events(content, line.checked, dictionary.wanted, dictionary.slots, times, form, word) == ODD:
        return _line(_counted(_as_usual(line.content), checked=True), name, dictionary, count)
    count.read += line.events
    kind = _places(dictionary.kinds, times[METADATA])
    rows = _rows(kind, times, line.timestamp_ns, dictionary, count)
    offset_ps, duration_ps, kind = times[OFFSET_PS][rows], times[DURATION_PS][rows], kind[rows]
    columns = {
        stat: _column(form[at][rows], word[at][rows], line.content, dictionary)
        for at, stat in enumerate(dictionary.stats)
    }
    return Line(
        name,
        line.number,
        Texts(kind, dictionary.names),
        line.timestamp_ns + offset_ps // 1000,
        line.timestamp_ns + (offset_ps + duration_ps) // 1000,
        Stats(_with_shared(columns, kind, dictionary), len(kind)),
    )


def _places(numbers: Int64, sought: Int64) -> Int64:
    """Where each number is among ascending ones, behind the last for nowhere."""
    if not len(numbers):
        return np.zeros(len(sought), np.int64)
    place = np.searchsorted(numbers, sought)
    place[place == len(numbers)] = 0
    return np.where(numbers[place] == sought, place, len(numbers))


def _rows(kind: Int64, times: Int64, timestamp_ns: int, dictionary: _Dictionary, count: Count) -> Int64 | slice:
    """The events that are neither the profiler's own nor without a valid time; the others are counted."""
    noisy = Texts(kind, [reason or "" for reason in dictionary.noise])
    for reason, events in noisy.counted().items():
        if reason:
            count.drop(reason, events)
    quiet = noisy.each(lambda reason: not reason, bool)
    offset_ps, duration_ps = times[OFFSET_PS], times[DURATION_PS]
    timed: Bool = (offset_ps > -LONGEST) & (offset_ps < LONGEST) & (duration_ps >= 0) & (duration_ps < LONGEST)
    timed &= -LONGEST < timestamp_ns < LONGEST
    count.drop(WITHOUT_TIME, int((quiet & ~timed).sum()))
    kept = quiet & timed
    return slice(None) if kept.all() else np.flatnonzero(kept)


def _column(form: Int8, word: Int64, content: bytes, dictionary: _Dictionary) -> Column:
    """A statistic as the kernels left it, with values in place of what tells where they are."""
    form, word = form.copy(), word.copy()
    made = dictionary.made
    referring = form == REFERENCE
    word[referring] = dictionary.texts[_places(dictionary.references, word[referring])]
    for row in np.flatnonzero((form == NOTHING) | (form == DOUBLE) | (form == TEXT) | (form == BYTES)).tolist():
        word[row] = made.code(_read(int(form[row]), int(word[row]), content))
    form[(form == NOTHING) | (form == DOUBLE) | (form >= TEXT)] = CODED
    return Column(form, word, made.values)


def _read(form: int, word: int, content: bytes) -> object:
    if form == NOTHING:
        return None
    if form == DOUBLE:
        return struct.unpack("<d", struct.pack("<q", word))[0]
    start, length = word >> LENGTH_BITS, word & (1 << LENGTH_BITS) - 1
    found = content[start : start + length]
    return found.decode() if form == TEXT else found


def _with_shared(columns: dict[str, Column], kind: Int64, dictionary: _Dictionary) -> dict[str, Column]:
    """Statistics of the events, and where they have none, those of their kinds."""
    merged = {}
    for name, shared in dictionary.shared.items():
        own = columns.get(name)
        if (shared.form != NONE).any():
            merged[name] = shared.take(kind) if own is None else own.over(shared.take(kind))
        elif own is not None and (own.form != NONE).any():
            merged[name] = own
    return merged
