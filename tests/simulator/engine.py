"""The event loop: when everything in a program happens.

Host threads and pieces of queued work are processes: generators that yield how long they take, or the signal that
they wait for. Streams are chains of signals, each fired when what was queued is done.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import NamedTuple, TypeAlias, assert_never

from simulator.program import (
    POINT_TO_POINT,
    BlockingCopy,
    Body,
    Call,
    Exchange,
    HandOff,
    Instruction,
    Kind,
    Launch,
    Operator,
    Part,
    Program,
    Record,
    Scope,
    Step,
    StreamWait,
    Synchronise,
    Work,
)

_LONG_AGO_NS = -(10**15)  # when everything on an empty stream was done

Process: TypeAlias = "Generator[int | Signal, None, None]"


class Lane(NamedTuple):
    """A host thread, or a stream of the rank's device."""

    rank: int
    on_device: bool
    number: int


class Piece(NamedTuple):
    """A part of a lane's work that has a duration of its own."""

    lane: Lane
    place: int  # on its lane, in the order of the program; -1 for a latency
    name: str
    kind: Kind
    duration_ns: int


class Done(NamedTuple):
    """When a piece was worked on."""

    piece: Piece
    start_ns: int
    end_ns: int


class Span(NamedTuple):
    """Something that a profiler sees."""

    what: Operator | Step | Call | Work
    lane: Lane
    start_ns: int
    end_ns: int
    correlation: int
    operator: int  # external id of the operator itself, or of the one that made the call
    awaited: tuple[int, int] = (-1, -1)  # stream and correlation of the record that it waits for


class Attendance(NamedTuple):
    """One participant in an exchange."""

    arrival_ns: int
    last_ns: int  # the latest arrival among those it needs
    end_ns: int


Change: TypeAlias = Callable[[Piece], int]
"""Gives a piece the duration that it has in a run."""


def unchanged(piece: Piece) -> int:
    """As the program says."""
    return piece.duration_ns


@dataclass(slots=True)
class Outcome:
    """Everything that happened, in true time."""

    program: Program
    spans: list[Span] = field(default_factory=list)
    pieces: list[Done] = field(default_factory=list)
    exchanges: dict[Exchange, dict[int, Attendance]] = field(default_factory=lambda: defaultdict(dict))

    @property
    def start_ns(self) -> int:
        """The first moment of any work."""
        return min(span.start_ns for span in self.spans if not isinstance(span.what, Step))

    @property
    def end_ns(self) -> int:
        """The last moment of any work."""
        return max(span.end_ns for span in self.spans if not isinstance(span.what, Step))

    @property
    def makespan_ns(self) -> int:
        """From the first to the last moment of any work."""
        return self.end_ns - self.start_ns


def simulate(program: Program, change: Change = unchanged, *, rendezvous: bool = True) -> Outcome:
    """Run a program.

    Args:
        program: What to run.
        change: The duration of each piece.
        rendezvous: Whether participants wait for each other. A receive waits for its send in any case.

    Raises:
        RuntimeError: When it comes to a standstill before everything is done.
    """
    return _Simulation(program, change, rendezvous=rendezvous).run()


class Signal:
    """Something that happens once, and who waits for it."""

    def __init__(self, time_ns: int | None = None) -> None:
        self.time_ns = time_ns
        self.waiting: list[Process] = []


class _Timeline:
    """Lets processes go on when their time has come."""

    def __init__(self) -> None:
        self.now_ns = 0
        self._due: list[tuple[int, int, Process]] = []
        self._started = self._ended = 0
        self._turn = 0

    def start(self, process: Process, at_ns: int) -> None:
        self._started += 1
        self._later(process, at_ns)

    def fire(self, signal: Signal) -> None:
        signal.time_ns = self.now_ns
        for process in signal.waiting:
            self._later(process, self.now_ns)

    def run(self) -> None:
        while self._due:
            self.now_ns, _, process = heappop(self._due)
            self._go_on(process)
        if self._ended != self._started:
            message = f"{self._started - self._ended} processes wait for what never happens"
            raise RuntimeError(message)

    def _later(self, process: Process, at_ns: int) -> None:
        self._turn += 1
        heappush(self._due, (at_ns, self._turn, process))

    def _go_on(self, process: Process) -> None:
        try:
            wanted = next(process)
        except StopIteration:
            self._ended += 1
            return
        if isinstance(wanted, int):
            self._later(process, self.now_ns + wanted)
        elif wanted.time_ns is None:
            wanted.waiting.append(process)
        else:
            self._later(process, self.now_ns)


class _Recorded(NamedTuple):
    """What an event stands for since its last record."""

    done: Signal
    stream: int
    correlation: int


class _Simulation:
    def __init__(self, program: Program, change: Change, *, rendezvous: bool) -> None:
        self.program, self.change, self.rendezvous = program, change, rendezvous
        self.outcome = Outcome(program)
        self.time = _Timeline()
        self.tails: dict[Lane, Signal] = {}
        self.events: dict[tuple[int, int], _Recorded] = {}
        self.arrivals: dict[tuple[Exchange, int], Signal] = defaultdict(Signal)
        self.counted: Counter[Lane] = Counter()
        self.identifiers: Counter[int] = Counter()

    def run(self) -> Outcome:
        for rank, threads in enumerate(self.program.threads):
            for thread in threads:
                self.time.start(self.host(Lane(rank, False, thread.number), thread.body), thread.start_ns)
        self.time.run()
        return self.outcome

    # Host threads.

    def host(self, lane: Lane, body: Body) -> Process:
        for item in body:
            if isinstance(item, int):
                yield item
            else:
                yield from self.perform(lane, item, 0)

    def perform(self, lane: Lane, item: Instruction, operator: int) -> Process:
        match item:
            case Operator():
                yield from self.operator(lane, item)
            case Step():
                start_ns = self.time.now_ns
                yield from self.host(lane, item.body)
                self.see(item, lane, start_ns, operator=self.identifier(lane.rank))
            case HandOff():
                yield item.awake_ns
                yield from self.host(lane._replace(number=item.thread), item.body)
                yield item.return_ns
            case BlockingCopy() | Synchronise():
                yield from self.blocking(lane, item, operator)
            case Launch() | Record() | StreamWait():
                yield from self.call(lane, item, operator)
            case _:
                assert_never(item)

    def operator(self, lane: Lane, item: Operator) -> Process:
        identifier, start_ns = self.identifier(lane.rank), self.time.now_ns
        for part in item.body:
            if isinstance(part, int):
                yield from self.work(lane, item.name, Kind.HOST, part)
            else:
                yield from self.perform(lane, part, identifier)
        self.see(item, lane, start_ns, operator=identifier)

    def call(self, lane: Lane, item: Launch | Record | StreamWait, operator: int) -> Process:
        correlation, start_ns = self.identifier(lane.rank), self.time.now_ns
        awaited = (-1, -1)
        stream = Lane(lane.rank, True, item.stream)
        if isinstance(item, Launch):
            self.queue(stream, item.work, item.latency_ns, (correlation, operator))
        elif isinstance(item, Record):
            done = self.tails.get(stream) or Signal(_LONG_AGO_NS)
            self.events[lane.rank, item.event] = _Recorded(done, item.stream, correlation)
        else:
            recorded = self.events[lane.rank, item.event]
            awaited = recorded.stream, recorded.correlation
            self.wait(stream, recorded.done)
        yield from self.work(lane, item.name, Kind.HOST, item.call_ns)
        self.see(item, lane, start_ns, correlation, operator, awaited)

    def blocking(self, lane: Lane, item: BlockingCopy | Synchronise, operator: int) -> Process:
        correlation, start_ns = self.identifier(lane.rank), self.time.now_ns
        awaited = (-1, -1)
        if isinstance(item, BlockingCopy):
            stream = Lane(lane.rank, True, item.stream)
            signals = [self.queue(stream, (item.work,), item.latency_ns, (correlation, operator))]
        else:
            signals = self.awaited_by(lane.rank, item)
            if item.scope is Scope.EVENT:
                awaited = self.events[lane.rank, item.target][1:]
        yield from signals
        done_ns = [signal.time_ns or 0 for signal in signals]
        until_ns = max(start_ns, *(moment + item.awake_ns for moment in done_ns), self.time.now_ns)
        yield until_ns - self.time.now_ns
        yield item.return_ns
        yield from self.work(lane, item.name, Kind.HOST, 0)
        self.see(item, lane, start_ns, correlation, operator, awaited)

    def awaited_by(self, rank: int, item: Synchronise) -> list[Signal]:
        if item.scope is Scope.EVENT:
            return [self.events[rank, item.target].done]
        return [
            done
            for lane, done in self.tails.items()
            if lane.rank == rank and (item.scope is Scope.DEVICE or lane.number == item.target)
        ]

    # Streams.

    def queue(self, stream: Lane, work: Sequence[Work], latency_ns: int, origin: tuple[int, int]) -> Signal:
        """Put work on a stream, and return the signal of its end."""
        previous, done = self.tails.get(stream), Signal()
        self.tails[stream] = done
        self.time.start(self.execute(stream, work, latency_ns, previous, done, origin), self.time.now_ns)
        return done

    def wait(self, stream: Lane, until: Signal) -> None:
        previous, done = self.tails.get(stream), Signal()
        self.tails[stream] = done
        self.time.start(self.held(previous, until, done), self.time.now_ns)

    def held(self, previous: Signal | None, until: Signal, done: Signal) -> Process:
        if previous:
            yield previous
        yield until
        self.time.fire(done)

    def execute(
        self,
        stream: Lane,
        work: Sequence[Work],
        latency_ns: int,
        previous: Signal | None,
        done: Signal,
        origin: tuple[int, int],
    ) -> Process:
        yield self.change(Piece(stream, -1, "", Kind.LAUNCH, latency_ns))
        if previous:
            yield previous
        for item in work:
            yield item.dispatch_ns
            start_ns = self.time.now_ns
            if isinstance(item, Part):
                yield from self.meet(item.exchange, stream.rank)
            last_ns = self.time.now_ns
            yield from self.work(stream, item.name, item.kind, item.duration_ns)
            if isinstance(item, Part):
                attendance = Attendance(start_ns, last_ns, self.time.now_ns)
                self.outcome.exchanges[item.exchange][stream.rank] = attendance
            self.see(item, stream, start_ns, *origin)
        self.time.fire(done)

    def meet(self, exchange: Exchange, rank: int) -> Process:
        """Arrive, and wait for the arrival of those that are needed."""
        self.time.fire(self.arrivals[exchange, rank])
        receives = exchange.operation == POINT_TO_POINT and rank == exchange.members[1]
        needed = exchange.needs(rank) if self.rendezvous else exchange.members[: int(receives)]
        for member in needed:
            yield self.arrivals[exchange, member]

    # What both do.

    def work(self, lane: Lane, name: str, kind: Kind, duration_ns: int) -> Process:
        piece = Piece(lane, self.counted[lane], name, kind, duration_ns)
        self.counted[lane] += 1
        start_ns = self.time.now_ns
        yield self.change(piece)
        self.outcome.pieces.append(Done(piece, start_ns, self.time.now_ns))

    def see(
        self,
        what: Operator | Step | Call | Work,
        lane: Lane,
        start_ns: int,
        correlation: int = 0,
        operator: int = 0,
        awaited: tuple[int, int] = (-1, -1),
    ) -> None:
        self.outcome.spans.append(Span(what, lane, start_ns, self.time.now_ns, correlation, operator, awaited))

    def identifier(self, rank: int) -> int:
        self.identifiers[rank] += 1
        return self.identifiers[rank] + 10
