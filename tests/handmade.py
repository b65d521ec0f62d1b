"""Traces written by hand, event by event, for tests that need evidence but no file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TypeVar

import numpy as np

from traceflow.evidence import Evidence
from traceflow.result import Tally
from traceflow.run import Run
from traceflow.trace.canonical import canonical
from traceflow.trace.model import (
    ABSENT,
    Communications,
    Events,
    Flows,
    Group,
    HloEvents,
    Kind,
    LaneKind,
    Lanes,
    Launches,
    Marks,
    Rank,
    Syncs,
    Trace,
    empty,
)

MS = 1_000_000

_WIDTHS = {"Int64": np.int64, "Int32": np.int32, "Int8": np.int8}

Table = TypeVar("Table", Events, Marks, Communications, Flows)


def table(kind: type[Table], rows: Iterable[Sequence[object]]) -> Table:
    """A struct of arrays from rows that hold its columns in order."""
    columns = list(zip(*rows, strict=True)) or [()] * len(fields(kind))
    widths = (_WIDTHS[str(column.type)] for column in fields(kind))
    return kind(*(np.array(c, width) for c, width in zip(columns, widths, strict=True)))


@dataclass
class Builder:
    """Collects events in any order; `trace` puts them in the canonical one."""

    lanes: list[tuple[int, int, LaneKind, str]] = field(default_factory=list)
    events: list[tuple[int, int, int, str, Kind, int]] = field(default_factory=list)
    calls: list[tuple[int, int, int, int]] = field(default_factory=list)  # event, sequence, member, payload
    marks: list[tuple[int, int, int, int]] = field(default_factory=list)
    flows: list[tuple[int, int]] = field(default_factory=list)  # events
    metadata: Mapping[str, str] = field(default_factory=dict)

    def lane(self, rank: int, name: str, device: int = ABSENT, kind: LaneKind | None = None) -> int:
        """Add a lane: a thread without a device, else a stream, unless told otherwise."""
        usual = LaneKind.THREAD if device == ABSENT else LaneKind.STREAM
        self.lanes.append((rank, device, usual if kind is None else kind, name))
        return len(self.lanes) - 1

    def event(self, lane: int, start_ns: int, end_ns: int, name: str, kind: Kind, correlation: int = 0) -> int:
        """Add an event and return its row."""
        self.events.append((start_ns, end_ns, lane, name, kind, correlation))
        return len(self.events) - 1

    def collective(
        self, lanes: Sequence[int], starts: Sequence[int], end_ns: int, name: str, payload_bytes: int = 1 << 20
    ) -> None:
        """Add one all-reduce among all members of the one group, each on its lane."""
        sequence = len({call[1] for call in self.calls})
        for member, (lane, start_ns) in enumerate(zip(lanes, starts, strict=True)):
            event = self.event(lane, start_ns, end_ns, name, Kind.COMMUNICATION)
            self.calls.append((event, sequence, member, payload_bytes))

    def mark(self, step: int, rank: int, start_ns: int, end_ns: int) -> None:
        """Mark a step on a rank's host."""
        self.marks.append((step, rank, start_ns, end_ns))

    def trace(self) -> Trace:
        """The trace of what was added."""
        strings = sorted({name for *_, name, _, _ in self.events} | {"allreduce"})
        code = {text: i for i, text in enumerate(strings)}
        members = tuple(sorted({member for *_, member, _ in self.calls}))
        ranks = sorted({rank for rank, *_ in self.lanes})
        return canonical(
            Trace(
                events=table(Events, [(*row[:3], code[row[3]], *row[4:]) for row in self.events]),
                lanes=self._lanes(),
                strings=tuple(strings),
                groups=(Group("world", members, len(members)),),
                communications=table(
                    Communications,
                    [
                        (event, code["allreduce"], 0, 0, sequence, member, payload, ABSENT, ABSENT, ABSENT, ABSENT)
                        for event, sequence, member, payload in self.calls
                    ],
                ),
                syncs=empty(Syncs),
                flows=table(Flows, self.flows),
                hlo=empty(HloEvents),
                launches=empty(Launches),
                marks=table(Marks, self.marks),
                ranks=tuple(Rank(rank, "host", len(ranks), f"rank{rank}.json") for rank in ranks),
                epoch_ns=None,
                format="kineto",
                tally=Tally(read=len(self.events), kept=len(self.events)),
                metadata=self.metadata,
            )
        )

    def run(self, *inputs: str) -> Run:
        """The trace opened for questions."""
        return Run(Evidence(self.trace(), {}), inputs or ("handmade",))

    def _lanes(self) -> Lanes:
        rank, device, kind, name = zip(*self.lanes, strict=True)
        return Lanes(
            np.array(rank, np.int32),
            np.array(device, np.int32),
            np.array(kind, np.int8),
            np.array([ABSENT if d == ABSENT else i for i, d in enumerate(device)], np.int64),
            tuple(name),
        )


def two_cards() -> Builder:
    """Card 0 computes 4 ms, card 1 computes 9, then both reduce for 2: the end is at 11 ms."""
    builder = Builder()
    cards = [builder.lane(rank, "stream 7", 0) for rank in range(2)]
    builder.event(cards[0], 0, 4 * MS, "a", Kind.COMPUTE)
    builder.event(cards[1], 0, 9 * MS, "b", Kind.COMPUTE)
    builder.collective(cards, [4 * MS, 9 * MS], 11 * MS, "all-reduce")
    return builder


def two_rounds() -> Builder:
    """A computes 10 then 2 ms, B 2 then 10, and both reduce for 1 ms after each: the end is at 22 ms."""
    builder = Builder()
    a, b = (builder.lane(rank, "stream 7", 0) for rank in range(2))
    builder.event(a, 0, 10 * MS, "a1", Kind.COMPUTE)
    builder.event(b, 0, 2 * MS, "b1", Kind.COMPUTE)
    builder.collective([a, b], [10 * MS, 2 * MS], 11 * MS, "all-reduce")
    builder.event(a, 11 * MS, 13 * MS, "a2", Kind.COMPUTE)
    builder.event(b, 11 * MS, 21 * MS, "b2", Kind.COMPUTE)
    builder.collective([a, b], [13 * MS, 21 * MS], 22 * MS, "all-reduce")
    return builder


def steps(*lengths_ms: int) -> Builder:
    """Steps of the given lengths, each a launch call of 1 ms and the kernel that it starts when it returns."""
    builder = Builder()
    thread, stream = builder.lane(0, "main"), builder.lane(0, "stream 7", 0)
    now = 0
    for step, length in enumerate(lengths_ms):
        builder.event(thread, now, now + MS, "launch", Kind.CALL, step + 1)
        builder.event(stream, now + MS, now + length * MS, "kernel", Kind.COMPUTE, step + 1)
        builder.mark(step, 0, now, now + MS)
        now += length * MS + MS
    return builder


HOSTILE = [
    "</script><script>window.harmed = 1</script>",
    "<img src=x onerror='window.harmed = 1'>",
    '"><svg onload=window.harmed=1>',
    "{{ 7 * 7 }}",
    "\u202egnp.exe\u2066",
    "void " + "very_long<" * 1000 + ">()",
    "]]> <!-- -->",
]
"""Names that try to get out of where they are shown."""


def hostile() -> Builder:
    """Two ranks whose every name tries to get out."""
    builder = Builder(metadata={HOSTILE[1]: HOSTILE[0]})
    lanes = [builder.lane(rank, HOSTILE[rank], 0) for rank in range(2)]
    thread = builder.lane(0, HOSTILE[2])
    for i, name in enumerate(HOSTILE):
        builder.event(thread, 100 * i, 100 * i + 10, name, Kind.CALL, i + 1)
        builder.event(lanes[0], 100 * i + 20, 100 * i + 60, name, Kind.COMPUTE, i + 1)
        builder.collective(lanes, [100 * i + 60, 100 * i + 50], 100 * i + 90, name)
    return builder
