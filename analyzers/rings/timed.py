"""When the products and permutes of a ring ran, and how much of the sending nothing hid."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from traceflow.analyzers.communication import Participant
from traceflow.analyzers.matching import Matches
from traceflow.analyzers.window import Window
from traceflow.intervals import Intervals, union
from traceflow.trace.model import ABSENT, Int64, Trace

if TYPE_CHECKING:
    from traceflow.analyzers.rings.rounds import Ring
    from traceflow.program.module import HloModule


@dataclass(frozen=True, slots=True)
class Span:
    """One execution: from start to end, and from when on everything that it needs was there."""

    start_ns: int
    end_ns: int
    ready_ns: int
    event: int  # that ends it

    @property
    def duration_ns(self) -> int:
        """From start to end."""
        return self.end_ns - self.start_ns


@dataclass(frozen=True, slots=True)
class Times:
    """What one participant did for a ring within a window: executions by event of the ring."""

    participant: Participant
    spans: Mapping[int, Sequence[Span]]
    compute: Intervals

    def permutes(self, numbers: Iterable[int]) -> tuple[int, int, int]:
        """How long one of some permutes at least was under way, the part that no computation hides, and transfers.

        The last is the sum of their durations without waiting for others.
        """
        spans = [span for number in numbers for span in self.spans.get(number, ())]
        busy = union([span.start_ns for span in spans], [span.end_ns for span in spans])
        transfers = sum(span.end_ns - span.ready_ns for span in spans)
        return busy.total_ns, (busy - self.compute).total_ns, transfers

    def product_ns(self, number: int) -> int:
        """All executions of a product."""
        return sum(span.duration_ns for span in self.spans.get(number, ()))

    def executions(self, numbers: Iterable[int]) -> int:
        """How often the ring ran."""
        return min((len(self.spans.get(number, ())) for number in numbers), default=0)


@dataclass
class Timed:
    """The executions of the instructions of one program in a window, by participant."""

    trace: Trace
    matches: Matches
    program: int  # by what the trace calls it
    module: HloModule
    window: Window
    compute: Mapping[Participant, Intervals]
    _spans: dict[Participant, dict[int, list[tuple[int, Span]]]] = field(init=False)

    def __post_init__(self) -> None:
        self._spans = defaultdict(lambda: defaultdict(list))
        for who, row, run, span in self._executions():
            self._spans[who][row].append((run, span))

    def of(self, ring: Ring) -> Iterator[Times]:
        """The times of a ring on every participant that has any.

        Where an instruction is in the trace within what runs it, the innermost of both counts. Of a loop, the
        executions of an instruction belong to its rounds in turn.
        """
        numbers: dict[tuple[int, ...], list[int]] = defaultdict(list)
        for number in (*ring.products, *ring.permutes):
            numbers[ring.walk.events[number].rows].append(number)
        for who, by_row in self._spans.items():
            spans: dict[int, list[Span]] = {}
            for rows, own in numbers.items():
                row = next((row for row in rows if row in by_row), None)
                if row is not None:
                    spans |= _in_turn(own, by_row[row])
            if spans:
                yield Times(who, spans, self.compute.get(who, union([], [])))

    def of_row(self, *rows: int) -> dict[Participant, list[Span]]:
        """Executions of one instruction, or else of what runs it, the innermost first."""
        found = {}
        for who, by_row in self._spans.items():
            at = next((row for row in rows if row in by_row), None)
            if at is not None:
                found[who] = [span for _, span in by_row[at]]
        return found

    def _executions(self) -> Iterator[tuple[Participant, int, int, Span]]:
        """Executions in the window; of an asynchronous pair one, from its start to its end."""
        hlo, events = self.trace.hlo, self.trace.events
        start, end = events.start_ns[hlo.event], events.end_ns[hlo.event]
        here = (hlo.program == self.program) & (hlo.instruction >= 0)
        rows = np.flatnonzero(here & (start >= self.window.start_ns) & (start < self.window.end_ns))
        rows = rows[np.argsort(start[rows], kind="stable")]
        event, instruction = hlo.event[rows], hlo.instruction[rows]
        start, end = start[rows], end[rows]
        ready = np.minimum(np.maximum(self._ready()[event], start), end)
        lane = events.lane[event]
        spans = map(Span, start.tolist(), end.tolist(), ready.tolist(), event.tolist())
        device = [None if one == ABSENT else one for one in self.trace.lanes.device.tolist()]
        participants = list(zip(self.trace.lanes.rank.tolist(), device, strict=True))
        issued_of = {row: self.module.start_of(row) for row in np.unique(instruction).tolist()}
        begun: dict[tuple[Participant, int, int], list[Span]] = defaultdict(list)
        for on, row, run, span in zip(lane.tolist(), instruction.tolist(), hlo.run[rows].tolist(), spans, strict=True):
            who, issued = participants[on], issued_of[row]
            if self.module.opcode[row].endswith("-start"):
                begun[who, row, run].append(span)
            elif issued != row and begun[who, issued, run]:
                yield who, issued, run, _joined(begun[who, issued, run].pop(0), span)
            else:
                yield who, issued, run, span
        # Where the trace holds no ends, what the start launched is all of it.
        yield from ((who, row, run, span) for (who, row, run), spans in begun.items() for span in spans)

    def _ready(self) -> Int64:
        """Per event, when the last participant that a call needs had come; 0 where that is not known."""
        ready = np.zeros(len(self.trace.events), np.int64)
        ready[self.trace.communications.event] = self.matches.last_ns
        return ready


def _joined(start: Span, done: Span) -> Span:
    """An asynchronous pair: from the beginning of its start to the end of its done."""
    ready_ns = min(max(start.ready_ns, done.ready_ns if done.ready_ns > done.start_ns else 0), done.end_ns)
    return Span(start.start_ns, done.end_ns, ready_ns, done.event)


def _in_turn(numbers: Sequence[int], executed: Sequence[tuple[int, Span]]) -> dict[int, list[Span]]:
    """Executions of one instruction, dealt to the events that it stands for, run by run."""
    dealt: dict[int, list[Span]] = {number: [] for number in numbers}
    count: dict[int, int] = defaultdict(int)
    for run, span in executed:
        dealt[numbers[count[run] % len(numbers)]].append(span)
        count[run] += 1
    return dealt
