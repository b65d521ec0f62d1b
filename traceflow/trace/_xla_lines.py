"""What an XSpace and its Chrome twin have in common: planes of lines of events, and the lanes they end on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import NamedTuple, TypeAlias

import numpy as np

from traceflow.trace._xla_columns import Said, Stats, Texts
from traceflow.trace.model import ABSENT, Int8, Int64, LaneKind

HandOff: TypeAlias = tuple[int, int]
"""What relates an event of one thread to the event of another that continues it: a kind and a number."""

DERIVED_LINE = "on a derived line"
WITHOUT_TIME = "without a valid time"
LONGEST = 2**62  # of times, whatever their unit: sums of two still fit 64 bits

_NOISE = {
    "ThreadpoolListener::": "thread-pool listener",
    "end: ": "end marker",
    "PythonRefManager::": "look for garbage of JAX",
}


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a plane, noise left out; rows in the order of the file, `number` as the file numbers it."""

    name: str
    number: int
    names: Texts
    start_ns: Int64
    end_ns: Int64
    stats: Stats

    @classmethod
    def of(
        cls, name: str, number: int, names: Iterable[str], start_ns: Int64, end_ns: Int64, stats: Sequence[Said]
    ) -> Line:
        """A line whose events are given one by one."""
        return cls(name, number, Texts.of(names), start_ns, end_ns, Stats.of(stats))

    def __len__(self) -> int:
        return len(self.names)


@dataclass(slots=True)
class Count:
    """How many events the file holds, and how many of them are left out, by reason."""

    read: int = 0
    dropped: Counter[str] = field(default_factory=Counter)

    def drop(self, reason: str, events: int) -> None:
        """Leave events out."""
        if events:
            self.dropped[reason] += int(events)


class Plane(NamedTuple):
    """A device, or the host."""

    name: str
    lines: Iterable[Line]


class LaneKey(NamedTuple):
    """What makes a lane of one rank."""

    device: int
    kind: LaneKind
    stream: int
    name: str


class Start(NamedTuple):
    """A host event that started a run: on one device, or (ABSENT) on all of the rank.

    The run is known by its number, or by the hand-off through which the event learnt of it.
    """

    row: int
    device: int
    run: int | None
    handed: HandOff | None


@dataclass(frozen=True, slots=True)
class Hlo:
    """The rows of a chunk that execute HLO instructions."""

    row: Int64
    program: Int64
    run: Int64
    instruction: Texts


@dataclass(frozen=True, slots=True)
class Chunk:
    """Events that share a lane. A kind that is ABSENT is that of the HLO instruction."""

    lane: LaneKey
    start_ns: Int64
    end_ns: Int64
    names: Texts
    kind: Int8
    correlation: Int64
    hlo: Hlo | None = None
    starts: tuple[Start, ...] = ()
    handed: tuple[tuple[int, HandOff], ...] = ()  # row, and what it hands to another thread
    taken: tuple[tuple[int, HandOff], ...] = ()  # row, and what it takes from another thread
    launching: Mapping[str, list[int]] = field(default_factory=dict)  # rows that launch each HLO operation

    @classmethod
    def of(cls, line: Line, rows: Int64, lane: LaneKey) -> Chunk:
        """Rows of a line, of kinds that their instructions tell, and without correlation."""
        return cls(
            lane,
            line.start_ns[rows],
            line.end_ns[rows],
            line.names.take(rows),
            np.full(len(rows), ABSENT, np.int8),
            np.full(len(rows), ABSENT, np.int64),
        )


class Mark(NamedTuple):
    """A step annotation."""

    step: int
    start_ns: int
    end_ns: int


def noise(name: str) -> str | None:
    """Why events of a name are left out at once: the profiler itself makes them. None for all others.

    Example:
        >>> noise("ThreadpoolListener::Record"), noise("fusion.3")
        ('thread-pool listener', None)
    """
    return next((reason for start, reason in _NOISE.items() if name.startswith(start)), None)


def program_key(identifier: int) -> int:
    """A program's 64-bit identifier as a key: the same whether the file wrote it signed or unsigned.

    Example:
        >>> program_key(-1) == program_key(2**64 - 1)
        True
    """
    return identifier % 2**63


def programs_of(stats: Stats) -> Int64:
    """Key of the program that each row says it executes, by its number, else by its module's name."""
    found, known = stats.numbers("program_id")
    key = found & np.iinfo(np.int64).max  # as `program_key` has it
    if not known.all():
        key[~known] = _named(stats.take(~known))
    return key


def _named(stats: Stats) -> Int64:
    key = np.full(stats.rows, named_key("None"), np.int64)
    told = stats.has("hlo_module")
    key[told] = stats.take(told).texts("hlo_module").each(named_key, np.int64)
    return key


def named_key(text: str) -> int:
    """A key for what has no number, the same in every process."""
    return program_key(int.from_bytes(blake2b(text.encode(), digest_size=8).digest()))


def distinct_names(named: list[tuple[str, int]]) -> list[str]:
    """Names of lines, told apart by their numbers where several share one.

    Example:
        >>> distinct_names([("python", 7), ("worker", 1), ("worker", 2), ("", 3)])
        ['python', 'worker/1', 'worker/2', 'thread/3']
    """
    named = [(name or "thread", line_number) for name, line_number in named]
    repeated = Counter(name for name, _ in named)
    return [f"{name}/{line_number}" if repeated[name] > 1 or name == "thread" else name for name, line_number in named]
