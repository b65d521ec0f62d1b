"""A file of tracks, slices and counters in Perfetto's protobuf.

Source of the numbers: Perfetto's `trace_packet.proto`, `track_descriptor.proto`, `track_event.proto`,
`debug_annotation.proto`, `interned_data.proto` and `clock_snapshot.proto`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain

import numpy as np

from traceflow.export._wire import Column, fixed64, message, number, one
from traceflow.trace.model import ABSENT, Bool, Int64, Rows

_PACKET = 1  # of Trace
_TIME, _TRACK_EVENT, _SEQUENCE, _INTERNED, _FLAGS, _DESCRIPTOR, _CLOCKS = 8, 11, 10, 12, 13, 60, 6  # of TracePacket
_FIRST, _CONTINUES = 1, 2  # sequence_flags: what was interned before is forgotten, or needed
_BEGIN, _END, _COUNTER = 1, 2, 4  # TrackEvent.Type
_REALTIME, _BOOTTIME = 1, 6  # BuiltinClock; the second is what times are in where a packet does not say
_EXPLICIT = 3  # ChildTracksOrdering
_CATEGORIES, _NAMES, _KEYS, _TEXTS = 1, 2, 3, 29  # of InternedData
UNITS = {"ns": 1, "count": 2, "bytes": 3}
"""Units of counters, as CounterDescriptor numbers them."""

_ROWS = 1 << 15  # encoded at a time


@dataclass(frozen=True, slots=True)
class Slices:
    """One row per slice, in any order. Numbers of texts come from `TrackFile.names`, ABSENT where there is none."""

    track: Int64
    start_ns: Int64
    end_ns: Int64
    name: Int64
    category: Int64
    texts: Mapping[str, Int64] = field(default_factory=dict)  # what more there is to say, as numbers of texts
    integers: Mapping[str, Int64] = field(default_factory=dict)  # the same as quantities
    flow: Int64 | None = None  # number of the arrow that leaves a slice, ABSENT where none does
    flow_end: Int64 | None = None  # number of the arrow that ends at it


class TrackFile:
    """What goes into a file: tracks are declared, slices and counters laid on them, and `packets` gives the bytes.

    Args:
        origin_ns: What all times are counted from; it is subtracted from them.
        epoch_ns: Absolute time of ns 0 since 1970, None where unknown.
    """

    def __init__(self, origin_ns: int, epoch_ns: int | None) -> None:
        self._origin_ns = origin_ns
        self._clock = b"" if epoch_ns is None else _clock_snapshot(epoch_ns + origin_ns)
        self._descriptors: list[bytes] = []
        self._siblings: list[bytes] = []  # of each track, the descriptor without its number
        self._texts: dict[str, int] = {}
        self._uses: dict[int, set[int]] = {use: set() for use in (_CATEGORIES, _NAMES, _KEYS, _TEXTS)}
        self._events: list[Iterator[bytes]] = []

    def process(self, name: str, number: int, labels: str = "") -> int:
        """Declare what stands at the top; processes are shown in order of their numbers."""
        # Perfetto takes process 0 for the idle task.
        told = one(1, number + 1) + one(6, name) + one(3, number) + (one(8, labels) if labels else b"")
        return self._declare(one(3, told) + one(11, _EXPLICIT))

    def track(self, name: str, parent: int = 0, order: int = 0) -> int:
        """Declare a track, and return its number; those of one parent are shown in order."""
        return self._declare(_child(name, parent, order) + one(11, _EXPLICIT))

    def counter(self, name: str, parent: int, unit: str, order: int = 0) -> int:
        """Declare a track of a quantity in one of `UNITS`."""
        return self._declare(_child(name, parent, order) + one(8, one(3, UNITS[unit])))

    def names(self, texts: tuple[str, ...]) -> Int64:
        """Numbers of texts."""
        return np.array([self._texts.setdefault(text, len(self._texts) + 1) for text in texts], np.int64)

    def slices(self, slices: Slices) -> None:
        """Lay slices on their tracks; those that overlap without nesting go to tracks of the same name beside them."""
        from traceflow.export._lanes import levels_of

        self._note_uses(slices)
        rows = _sorted(slices)
        track, start, end = slices.track[rows], slices.start_ns[rows], slices.end_ns[rows]
        level, order = levels_of(track, start, end, nest=True)
        order = order[np.argsort(np.where(order & 1, end[order >> 1], start[order >> 1]), kind="stable")]
        self._events.append(self._slice_packets(slices, rows, self._beside(track, level), order))

    def apart(self, track: Int64, start_ns: Int64, end_ns: Int64) -> Int64:
        """Tracks on which rows do not overlap: their own or, where need be, others of the same name."""
        from traceflow.export._lanes import levels_of

        rows = np.lexsort((-end_ns, start_ns, track))
        level, _ = levels_of(track[rows], start_ns[rows], end_ns[rows], nest=False)
        chosen = np.empty(len(track), np.int64)
        chosen[rows] = self._beside(track[rows], level)
        return chosen

    def counts(self, track: int, time_ns: Rows, values: Rows) -> None:
        """Lay a quantity on its track: it keeps each value until the next."""
        event = message(
            _TRACK_EVENT,
            (
                number(9, np.full(len(values), _COUNTER)),
                number(11, np.full(len(values), track)),
                number(30, values),
            ),
        )
        self._events.append(iter((self._packets(np.asarray(time_ns), event),)))

    def packets(self) -> Iterator[bytes]:
        """The bytes of the file, in pieces."""
        first = one(_FLAGS, _FIRST) + one(_SEQUENCE, 1) + one(_INTERNED, self._interned())
        yield one(_PACKET, first)
        yield self._clock
        yield b"".join(self._descriptors)
        yield from chain.from_iterable(self._events)

    def _declare(self, told: bytes) -> int:
        self._siblings.append(told)
        track = len(self._siblings)
        self._descriptors.append(one(_PACKET, one(_SEQUENCE, 1) + one(_DESCRIPTOR, one(1, track) + told)))
        return track

    def _beside(self, track: Int64, level: Rows) -> Int64:
        """The track of each row's level, declared where there is none yet."""
        chosen = track.copy()
        crowded = np.flatnonzero(level)
        pairs, which = np.unique(np.column_stack((track[crowded], level[crowded])), axis=0, return_inverse=True)
        made = np.array([self._declare(self._siblings[of - 1]) for of, _ in pairs.tolist()], np.int64)
        chosen[crowded] = made[which.ravel()]
        return chosen

    def _slice_packets(self, slices: Slices, rows: Rows, track: Int64, order: Int64) -> Iterator[bytes]:
        """Packets of beginnings and ends in the given order of 2 i and 2 i + 1, where i is a place in `rows`."""
        for first in range(0, len(order), _ROWS):
            part = order[first : first + _ROWS]
            row, begins = rows[part >> 1], part & 1 == 0
            time = np.where(begins, slices.start_ns[row], slices.end_ns[row])
            event = message(_TRACK_EVENT, _slice_event(slices, row, track[part >> 1], begins, self._texts))
            yield self._packets(time, event)

    def _packets(self, time_ns: Int64, event: Column) -> bytes:
        every = np.ones(len(time_ns), np.int64)
        head = number(_TIME, time_ns - self._origin_ns), number(_SEQUENCE, every), number(_FLAGS, every * _CONTINUES)
        return message(_PACKET, (*head, event)).tobytes()

    def _note_uses(self, slices: Slices) -> None:
        self._uses[_NAMES].update(np.unique(slices.name).tolist())
        self._uses[_CATEGORIES].update(np.unique(slices.category).tolist())
        self._uses[_KEYS].update(self.names((*slices.texts, *slices.integers)).tolist())
        for column in slices.texts.values():
            self._uses[_TEXTS].update(np.unique(column).tolist())

    def _interned(self) -> bytes:
        """Every text once for each use that is made of it."""
        entries = {iid: one(1, iid) + one(2, text) for text, iid in self._texts.items()}
        return b"".join(one(use, entries[iid]) for use, iids in self._uses.items() for iid in sorted(iids - {ABSENT}))


def _child(name: str, parent: int, order: int) -> bytes:
    return one(2, name) + (one(5, parent) if parent else b"") + one(12, order)


def _clock_snapshot(epoch_ns: int) -> bytes:
    """What the clock of day said when that of the trace was at 0."""
    clocks = one(1, one(1, _BOOTTIME) + one(2, 0)) + one(1, one(1, _REALTIME) + one(2, epoch_ns))
    return one(_PACKET, one(_SEQUENCE, 1) + one(_CLOCKS, clocks + one(2, _BOOTTIME)))


def _sorted(slices: Slices) -> Int64:
    """Rows by track and time, outer before inner; where that leaves a choice, in the order in which they were given."""
    return np.lexsort((-slices.end_ns, slices.start_ns, slices.track))


def _slice_event(
    slices: Slices, row: Rows, track: Int64, begins: Bool, number_of: Mapping[str, int]
) -> Iterator[Column]:
    """Fields of a TrackEvent; all but its type and track are said at the beginning."""
    yield number(9, np.where(begins, _BEGIN, _END))
    yield number(11, track)
    yield number(10, slices.name[row], begins)
    yield number(3, slices.category[row], begins)
    for field_number, flows in ((47, slices.flow), (48, slices.flow_end)):
        if flows is not None:
            yield fixed64(field_number, flows[row], begins & (flows[row] != ABSENT))
    for value_field, values in ((17, slices.texts), (4, slices.integers)):
        for key, column in values.items():
            known = begins & (column[row] != ABSENT)
            yield message(4, (number(1, np.full(len(row), number_of[key])), number(value_field, column[row])), known)
