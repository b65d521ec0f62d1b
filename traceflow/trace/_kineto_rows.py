"""From the bytes of a Kineto file to columns that have no meaning yet. Imported only inside functions."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from io import BufferedReader
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from isal import isal_zlib
from numpy.typing import NDArray

from traceflow.program.operators import COUNTED
from traceflow.trace import _kineto_scan as k
from traceflow.trace import _kineto_words as w
from traceflow.trace import _text_columns as t
from traceflow.trace._json_text import with_whole_characters
from traceflow.unpacking import most_bytes

if TYPE_CHECKING:
    from traceflow.result import Json
    from traceflow.trace.model import Bool, Int8, Int32, Int64

_PIECE = 1 << 20  # bytes read at a time; what is in work then stays in the caches
_TEXTS_PER_EVENT = 12  # name, process, thread, six of a collective, and three of an operator
_BATCH = 8192  # events taken at a time
_ROWS = 1 << 16  # of columns that are filled before others are begun
_PACKED = 1024  # bytes of a gzip file inflated at a time: of a damaged one, the piece with the damage is lost


@dataclass(frozen=True, slots=True)
class Spans:
    """One row per event with a start and an end, in the order of the file. Texts are codes in `Rows.texts`."""

    start_ns: Int64
    end_ns: Int64
    correlation: Int64
    external: Int64
    name: Int32  # that of the category, where it is not known
    owner: Int32  # process, or device of work on one
    track: Int32  # thread, or stream
    category: Int8  # OPERATOR to UNKNOWN


@dataclass(frozen=True, slots=True)
class Collectives:
    """One row per event that has arguments of a collective."""

    row: Int64  # in `Rows.spans`
    operation: Int32
    dtype: Int32
    elements: Int64
    in_splits: Int32
    out_splits: Int32
    group: Int32
    members: Int32
    size: Int64
    sequence: Int64
    root: Int64
    source: Int64
    destination: Int64


@dataclass(frozen=True, slots=True)
class Arguments:
    """One row per operator that tells what it costs: shapes, types and values of its arguments, as JSON."""

    row: Int64  # in `Rows.spans`
    shapes: Int32
    types: Int32
    values: Int32


@dataclass(frozen=True, slots=True)
class Copies:
    """One row per copy, or filling, of memory that has a size."""

    row: Int64  # in `Rows.spans`
    size_bytes: Int64


@dataclass(frozen=True, slots=True)
class FlowEnds:
    """One row per start or end of a flow from a forward to a backward operator."""

    number: Int64
    time_ns: Int64
    owner: Int32
    track: Int32
    phase: Int32


@dataclass(frozen=True, slots=True)
class SyncRecords:
    """One row per synchronisation record."""

    kind: Int32
    device: Int64
    stream: Int64
    awaited_stream: Int64
    correlation: Int64
    record_correlation: Int64


@dataclass(frozen=True, slots=True)
class Allocations:
    """One row per allocation or release, in the order of the file."""

    time_ns: Int64
    change_bytes: Int64
    allocated_bytes: Int64
    reserved_bytes: Int64
    device_kind: Int64
    device: Int64


Table = TypeVar("Table", Spans, Collectives, Arguments, Copies, FlowEnds, SyncRecords, Allocations)
Number = TypeVar("Number", bound=np.integer)


@dataclass(frozen=True, slots=True)
class Rows:
    """What a Kineto file holds."""

    spans: Spans
    collectives: Collectives
    arguments: Arguments
    copies: Copies
    flows: FlowEnds
    syncs: SyncRecords
    allocations: Allocations
    unfinished: Int64  # rows of `spans` that the end of the recording cut
    texts: tuple[str, ...]  # the last is empty, so that code -1 has a text, too
    odd_texts: Int64  # codes of those that are no JSON as the file spells them
    members: Mapping[str, Json]  # of the top-level object, without the events
    counts: Int64  # events by outcome
    without_duration: int
    bytes_read: int
    damaged_at: int | None  # where the first piece begins that cannot be understood
    is_complete: bool  # whether the text goes on to the bracket that closes the first
    is_open_list: bool  # whether it is a bare list that lacks only its closing bracket, which the format allows
    compression: str | None  # what is wrong with the gzip stream


def read_rows(path: Path) -> Rows:
    """Read a Kineto file in pieces, packed by gzip or not."""
    collector, buffer, held = _Collector(), bytearray(_PIECE), 0
    with path.open("rb") as file:
        packed = _Inflated(file) if file.peek(2)[:2] == b"\x1f\x8b" else None
        source = packed or file
        while True:
            if held + t.PADDING > len(buffer) // 2:  # one item fills half of it
                buffer.extend(bytes(len(buffer) + t.PADDING))
            count = source.readinto(memoryview(buffer)[held : -t.PADDING])
            end = held + count
            buffer[end : end + t.PADDING] = bytes(t.PADDING)
            used = collector.feed(np.frombuffer(buffer, np.uint8, end + t.PADDING), final=count == 0)
            held = end - used
            if count == 0:
                break
            buffer[:held] = buffer[used:end]
    return collector.rows(bytes(buffer[used:end]), packed.problem if packed else None)


class _Inflated:
    """A gzip file, read as far as it is sound."""

    def __init__(self, file: BufferedReader) -> None:
        self._file = file
        self._inflater = isal_zlib.decompressobj(wbits=31)
        self._most_bytes = most_bytes(os.fstat(file.fileno()).st_size)
        self._unpacked_bytes = 0
        self.problem: str | None = None

    def readinto(self, view: memoryview) -> int:
        """Fill the view; return how many bytes there were."""
        filled = 0
        while filled < len(view) and (piece := self._next(len(view) - filled)):
            view[filled : filled + len(piece)] = piece
            filled += len(piece)
        return filled

    def _next(self, limit: int) -> bytes:
        piece = b""
        while not piece and self.problem is None:
            ended, rest = self._inflater.eof, self._inflater.unused_data or self._inflater.unconsumed_tail
            packed = rest or self._file.read(_PACKED)
            if ended and not (packed := packed.lstrip(b"\0")):  # some tools fill the last block with zeros
                break
            if ended:
                self._inflater = isal_zlib.decompressobj(wbits=31)
            try:
                piece = self._inflater.decompress(packed, limit)
            except isal_zlib.error as error:  # type: ignore[misc]  # the stub takes the class for an instance
                self.problem = str(error)
            self._unpacked_bytes += len(piece)
            if self._unpacked_bytes > self._most_bytes:
                piece, self.problem = b"", "it unpacks to far more than a trace of its size"
            if not packed:
                self.problem = "the gzip stream ends early"
        return piece


class _Collector:
    """Takes a file piece by piece and keeps the columns of what it finds."""

    def __init__(self) -> None:
        self._state = np.zeros(k.STATE, np.int64)
        self._state[k.DAMAGE] = -1
        self._counts = np.zeros(w.OUTCOMES, np.int64)
        self._habits = np.zeros((k.HABITS, k.HABIT), np.int64)
        self._places = np.empty((_BATCH + 1, w.FIELDS, 2), np.int64)  # one more, for an event that is not kept
        self._kept = np.empty((_BATCH + 1, k.KEPT_COLUMNS), np.int64)
        self._texts = _Texts()
        self._members: dict[str, Json] = {}
        self._spans: list[Spans] = []
        self._collectives: list[Collectives] = []
        self._arguments: list[Arguments] = []
        self._copies: list[Copies] = []
        self._flows: list[FlowEnds] = []
        self._syncs: list[SyncRecords] = []
        self._allocations: list[Allocations] = []
        self._unfinished: list[Int64] = []
        self._row_count = 0
        self._start_rows()

    def feed(self, buffer: NDArray[np.uint8], *, final: bool) -> int:
        """Take what is complete in `buffer`, which ends in PADDING; return how much that was."""
        at = 0
        while True:
            self._make_room(len(buffer))
            columns = self._numbers, self._codes, self._places, self._kept
            known = self._counts, self._habits, *columns, self._texts.counted, *self._texts.held
            at = int(k.scan(buffer, at, final, self._state, *known))
            found, kept, member_stop = self._state[[k.FOUND, k.KEPT, k.MEMBER_STOP]].tolist()
            if member_stop:
                self._members |= _member(buffer[self._state[k.MEMBER_START] : member_stop].tobytes())
            elif not found:
                break
            if kept:
                self._take_kept()
        self._state[k.OFFSET] += at
        return at

    def rows(self, rest: bytes, compression: str | None) -> Rows:
        """Everything that was found."""
        self._take_rows()
        self._take_kept()  # so that there is one of each table
        mode, damage = int(self._state[k.MODE]), int(self._state[k.DAMAGE])
        return Rows(
            _stacked(self._spans),
            _stacked(self._collectives),
            _stacked(self._arguments),
            _stacked(self._copies),
            _stacked(self._flows),
            _stacked(self._syncs),
            _stacked(self._allocations),
            np.concatenate(self._unfinished),
            self._texts.decoded(),
            self._texts.odd(),
            self._members,
            self._counts,
            int(self._state[k.UNTIMED]),
            int(self._state[k.OFFSET]) + len(rest),
            damage if damage >= 0 else None,
            mode == k.END,
            mode == k.EVENTS and bool(self._state[k.BARE]) and not rest.strip(),
            compression,
        )

    def _make_room(self, size: int) -> None:
        """For as many events as are taken at a time, and for the texts that so many bytes can hold."""
        self._texts.make_room(min(_TEXTS_PER_EVENT * _BATCH, size), 2 * size)
        if self._state[k.SPANS] + self._state[k.FLOWS] + _BATCH > _ROWS:
            self._take_rows()
            self._start_rows()

    def _start_rows(self) -> None:
        self._numbers = np.empty((k.NUMBERS, _ROWS), np.int64)
        self._codes = np.empty((k.CODES, _ROWS), np.int32)
        self._state[[k.SPANS, k.FLOWS]] = 0

    def _take_rows(self) -> None:
        """Spans of time are the first rows, ends of flows the last, the latest of them first."""
        spans, flows = self._state[[k.SPANS, k.FLOWS]].tolist()
        start_ns, end_ns, correlation, external = self._numbers[:, :spans]
        name, owner, track, category = self._codes[:, :spans]
        kind = category.astype(np.int8)
        self._spans.append(Spans(start_ns, end_ns, correlation, external, name, owner, track, kind))
        time_ns, _, number, _ = self._numbers[:, _ROWS - flows :][:, ::-1]
        phase, owner, track, _ = self._codes[:, _ROWS - flows :][:, ::-1]
        self._flows.append(FlowEnds(number, time_ns, owner, track, phase))
        self._row_count += spans

    def _take_kept(self) -> None:
        """Read what kept events say beyond their rows, while the buffer is there."""
        row, outcome, said = self._kept[: self._state[k.KEPT]].T
        self._state[k.KEPT] = 0
        row = row + self._row_count
        self._take_collectives(np.flatnonzero(said & k.DESCRIBED), row)
        self._take_arguments(np.flatnonzero((said & k.SHAPED > 0) & (outcome == w.OPERATOR)), row)
        self._take_copies(np.flatnonzero(outcome == w.MEMORY), row)
        self._take_syncs(np.flatnonzero(outcome == w.SYNC_RECORD))
        self._take_allocations(np.flatnonzero(outcome == w.ALLOCATION))
        self._unfinished.append(row[said & k.CUT > 0])

    def _take_copies(self, events: Int64, row: Int64) -> None:
        if self._copies and not len(events):
            return
        (size_bytes,) = self._numbers_of(events, w.BYTES)
        told = size_bytes >= 0
        self._copies.append(Copies(row[events[told]], size_bytes[told]))

    def _take_collectives(self, events: Int64, row: Int64) -> None:
        if self._collectives and not len(events):
            return
        codes = self._codes_of(events, w.COLLECTIVE, w.DTYPE, w.IN_SPLITS, w.OUT_SPLITS, w.GROUP_NAME, w.GROUP_RANKS)
        numbers = self._numbers_of(events, w.NELEMS, w.GROUP_SIZE, w.SEQUENCE, w.ROOT, w.SOURCE, w.DESTINATION)
        named = ("operation", "dtype", "in_splits", "out_splits", "group", "members")
        counted = ("elements", "size", "sequence", "root", "source", "destination")
        columns: dict[str, Any] = dict(zip((*named, *counted), (*codes, *numbers), strict=True))
        self._collectives.append(Collectives(row=row[events], **columns))

    def _take_arguments(self, events: Int64, row: Int64) -> None:
        if self._arguments and not len(events):
            return
        (name,) = self._codes_of(events, w.NAME)
        events, name = events[name >= 0], name[name >= 0]
        events = events[self._texts.is_counted(name)]
        self._arguments.append(Arguments(row[events], *self._codes_of(events, w.SHAPES, w.TYPES, w.VALUES)))

    def _take_syncs(self, events: Int64) -> None:
        if self._syncs and not len(events):
            return
        device, owner, *others = self._numbers_of(
            events, w.DEVICE, w.PID, w.STREAM, w.AWAITED_STREAM, w.CORRELATION, w.RECORD_CORRELATION
        )
        always = np.ones((1, len(events)), bool)
        (kind,) = self._texts.codes(self._places, events, np.array([w.NAME]), np.array([w.SYNC]), always)
        self._syncs.append(SyncRecords(kind, np.where(device >= 0, device, owner), *others))

    def _take_allocations(self, events: Int64) -> None:
        if self._allocations and not len(events):
            return
        time_ns, _ = t.times(self._places, events, w.TS, w.DUR)
        columns = self._numbers_of(events, w.ALLOCATED, w.RESERVED, w.DEVICE_KIND, w.DEVICE_NUMBER)
        self._allocations.append(Allocations(time_ns, t.amounts(self._places, events, w.BYTES), *columns))

    def _numbers_of(self, events: Int64, *fields: int) -> Int64:
        """Per field and event, the number there."""
        return t.numbers(self._places, events, np.array(fields))

    def _codes_of(self, events: Int64, *fields: int) -> Int32:
        """Per field and event, the code of the text there."""
        columns = np.array(fields)
        return self._texts.codes(self._places, events, columns, columns, np.zeros((len(fields), len(events)), bool))


class _Texts:
    """Distinct texts by number, as the file spells them."""

    def __init__(self) -> None:
        self._filled = np.zeros(2, np.int64)  # texts, bytes
        self._table: Int64 = np.empty((0, t.TEXT_WIDTH), np.int64)
        self._slots = np.empty(0, np.int32)
        self._arena: NDArray[np.uint8] = np.empty(0, np.uint8)
        self.counted: Int8 = np.empty(
            0, np.int8
        )  # whether operators of this name tell what they cost; -1: not asked yet
        self.make_room(1, 1)

    @property
    def held(self) -> tuple[Int64, Int64, Int32, NDArray[np.uint8]]:
        """What kernels need to find texts and to add some."""
        return self._filled, self._table, self._slots, self._arena

    def make_room(self, count: int, size: int) -> None:
        """Prepare for so many more texts of so many bytes in all."""
        texts, held = self._filled.tolist()
        if texts + count > len(self._table):
            self._table = _with_room(self._table, texts + count)
            self._slots = np.full(2 * len(self._table), -1, np.int32)
            t.index(self._table, texts, self._slots)
            self.counted = np.append(self.counted, np.full(len(self._table) - len(self.counted), -1, np.int8))
        if held + size + t.PADDING > len(self._arena):
            self._arena = _with_room(self._arena, held + size + t.PADDING)

    def codes(self, places: Int64, events: Int64, fields: Int64, instead: Int64, wanted: Bool) -> Int32:
        """Per field and event, the number of the text there, or in `instead` where that is wanted and there; else -1."""
        found = np.empty((len(fields), len(events)), np.int32)
        t.codes(places, events, fields, instead, wanted, *self.held, found)
        return found

    def is_counted(self, names: Int32) -> Bool:
        """Whether operators of these names tell by their arguments what they cost."""
        for code in set(names[self.counted[names] < 0].tolist()):
            at, length = self._table[code, [t.AT, t.LENGTH]].tolist()
            self.counted[code] = _decoded(self._arena[at : at + length].tobytes()) in COUNTED
        return self.counted[names] > 0

    def decoded(self) -> tuple[str, ...]:
        """The texts by number, and an empty one."""
        held = self._arena.tobytes()
        rows = self._table[: self._filled[0]].tolist()
        return (*(_decoded(held[row[t.AT] : row[t.AT] + row[t.LENGTH]]) for row in rows), "")

    def odd(self) -> Int64:
        """Numbers of the texts that JSON does not allow, and that were taken for what they were meant to be."""
        held = self._arena.tobytes()
        rows = self._table[: self._filled[0]].tolist()
        is_odd = [_is_odd(held[row[t.AT] : row[t.AT] + row[t.LENGTH]]) for row in rows]
        return np.flatnonzero(np.array(is_odd, bool))


def _with_room(array: NDArray[Number], length: int) -> NDArray[Number]:
    """A copy with at least twice as many rows as are wanted, a power of two."""
    larger = np.empty((2 << length.bit_length(), *array.shape[1:]), array.dtype)
    larger[: len(array)] = array
    return larger


def _stacked(tables: list[Table]) -> Table:
    return type(tables[0])(*(np.concatenate([getattr(table, f.name) for table in tables]) for f in fields(tables[0])))


_ESCAPE = re.compile(r'\\(?:(["\\/bfnrt]|u[0-9a-fA-F]{4})|)')
_SUPERFLUOUS_COMMA = re.compile(r",(?=\s*[}\]])")


def _decoded(spelled: bytes) -> str:
    """The text that a file spells so: escapes undone, those that are none taken literally."""
    text = spelled.decode("utf-8", "replace")
    if "\\" not in text:
        return text
    try:
        undone: str = json.loads(f'"{_with_valid_escapes(text)}"', strict=False)
    except ValueError:  # an object or a list with texts of its own
        return text
    return undone.encode("utf-16", "surrogatepass").decode("utf-16", "replace")  # half a pair is no character


def _is_odd(spelled: bytes) -> bool:
    """Whether a text holds control characters, escapes that are none, or bytes that are no UTF-8."""
    if spelled.isascii() and b"\\" not in spelled:
        return not spelled.decode("ascii").isprintable()
    try:
        text = spelled.decode("utf-8")
    except UnicodeDecodeError:
        return True
    return any(c < " " for c in text) or _with_valid_escapes(text) != text


def _with_valid_escapes(text: str) -> str:
    return _ESCAPE.sub(lambda match: match[0] if match[1] else r"\\", text)


def _member(spelled: bytes) -> dict[str, Json]:
    """One member of the top-level object; nothing where it cannot be understood."""
    text = with_whole_characters(spelled).decode("utf-8", "replace")
    for attempt in (text, _SUPERFLUOUS_COMMA.sub("", _with_valid_escapes(text))):
        try:
            return dict(json.loads(f"{{{attempt}}}", strict=False))
        except (ValueError, RecursionError):
            continue
    return {}
