"""What an XSpace and its Chrome twin have in common: planes of lines of events, and the lanes they end on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import NamedTuple, TypeAlias

import numpy as np

from traceflow.trace.model import ABSENT, Int8, Int64, LaneKind

Stats: TypeAlias = Mapping[str, object]
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
    names: list[str]
    start_ns: Int64
    end_ns: Int64
    stats: list[Stats]

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
    instruction: list[str]


@dataclass(frozen=True, slots=True)
class Chunk:
    """Events that share a lane. A kind that is ABSENT is that of the HLO instruction."""

    lane: LaneKey
    start_ns: Int64
    end_ns: Int64
    names: list[str]
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
            [line.names[row] for row in rows],
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


def number(stats: Stats, name: str) -> int | None:
    """A statistic as a signed 64-bit integer; Chrome traces write numbers as text.

    Example:
        >>> number({"run_id": "-7"}, "run_id"), number({"run_id": 2**64 - 7}, "run_id"), number({}, "run_id")
        (-7, -7, None)
    """
    value = stats.get(name)
    if isinstance(value, str) and value.removeprefix("-").isdecimal():
        value = int(value)
    return (value + 2**63) % 2**64 - 2**63 if isinstance(value, int) else None


def numbers(lines: Iterable[Stats], name: str, default: int = ABSENT) -> Int64:
    """A statistic of each event."""
    found = (number(stats, name) for stats in lines)
    return np.array([default if value is None else value for value in found], np.int64)


def program_key(identifier: int) -> int:
    """A program's 64-bit identifier as a key: the same whether the file wrote it signed or unsigned.

    Example:
        >>> program_key(-1) == program_key(2**64 - 1)
        True
    """
    return identifier % 2**63


def program_of(stats: Stats) -> int:
    """Key of the program that an event says it executes, by its number, else by its module's name."""
    identifier = number(stats, "program_id")
    return named_key(str(stats.get("hlo_module"))) if identifier is None else program_key(identifier)


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
