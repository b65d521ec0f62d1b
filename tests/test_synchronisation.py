"""What streams and blocking calls wait for, against the definition worked out record by record."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from kineto_builder import KinetoTrace, opened

from traceflow.analyzers.dependencies.device import launched
from traceflow.analyzers.dependencies.slices import cut
from traceflow.analyzers.dependencies.synchronisation import synchronisation
from traceflow.analyzers.matching import match
from traceflow.trace.model import ABSENT, SyncKind, Trace

STREAMS = (7, 8, 20, 33)  # no kernel runs on the last
Pairs = set[tuple[int, int]]


class ByDefinition:
    """Streams of one rank by number, each with its work as (launch, event) in order, and the records of waits."""

    def __init__(self, trace: Trace) -> None:
        e, lanes, self.syncs, call_ns = trace.events, trace.lanes, trace.syncs, launched(trace).call_ns
        work = [(int(lanes.stream[e.lane[row]]), int(call_ns[row]), row) for row in range(len(e))]
        self.work = {stream: sorted(own[1:] for own in work if own[0] == stream) for stream in STREAMS}
        host = np.flatnonzero(lanes.device[e.lane] == ABSENT).tolist()
        calls = {int(e.correlation[row]): row for row in reversed(host) if e.correlation[row] >= 0}
        self.call = [calls[number] for number in self.syncs.correlation.tolist()]
        self.wait_ns = e.start_ns[self.call].tolist()
        records = [calls.get(number) for number in self.syncs.record_correlation.tolist()]
        self.record_ns = [None if call is None else int(e.start_ns[call]) for call in records]

    def pairs(self) -> tuple[Pairs, Pairs]:
        """Work and the work that waits for it; work and the call that does, of calls with a record."""
        streams, calls = set(), set()
        for row, kind in enumerate(self.syncs.kind.tolist()):
            stream, now = int(self.syncs.stream[row]), self.wait_ns[row]
            if kind == SyncKind.STREAM_WAIT:
                following = [event for launch_ns, event in self.work[stream] if launch_ns > now]
                streams |= {(event, following[0]) for event in self.events(self.awaited(row)) if following}
            elif kind == SyncKind.EVENT:
                calls |= {(event, self.call[row]) for event in self.events(self.awaited(row))}
            elif kind == SyncKind.STREAM:
                calls |= {(event, self.call[row]) for event in self.events(self.queued(stream, now, now))}
            else:
                last = {stream: self.before(stream, now) - 1 for stream in STREAMS if self.before(stream, now)}
                calls |= {(event, self.call[row]) for event in self.events(last)}
        return streams, calls

    def events(self, places: dict[int, int]) -> Iterator[int]:
        """What is at some places, by stream."""
        return (self.work[stream][place][1] for stream, place in places.items())

    def before(self, stream: int, now: int) -> int:
        """How much was launched on a stream before a moment."""
        return sum(launch_ns < now for launch_ns, _ in self.work[stream])

    def awaited(self, row: int) -> dict[int, int]:
        """What a record stands for; nothing before it was made."""
        record_ns = self.record_ns[row]
        if record_ns is None or record_ns > self.wait_ns[row]:
            return {}
        return self.queued(int(self.syncs.awaited_stream[row]), record_ns, record_ns - 1)

    def queued(self, stream: int, now: int, until: int) -> dict[int, int]:
        """The last work on a stream, and what the stream awaits by waits after it, up to a moment, that add something."""
        count, most = self.before(stream, now), dict[int, tuple[int, int]]()
        waits = [row for row, kind in enumerate(self.syncs.kind) if kind == SyncKind.STREAM_WAIT]
        for row in sorted(waits, key=self.wait_ns.__getitem__):
            if self.syncs.stream[row] == stream and self.wait_ns[row] <= until:
                for other, place in self.awaited(row).items():
                    if place > most.get(other, (-1, 0))[0]:
                        most[other] = place, self.wait_ns[row]
        since = self.work[stream][count - 1][0] if count else -1
        pending = {other: place for other, (place, issued_ns) in most.items() if issued_ns > since}
        return {**pending, stream: count - 1} if count else pending


@st.composite
def recordings(draw: st.DrawFn) -> KinetoTrace:
    """Kernels, and all that waits for them, issued at moments of which many are the same."""
    chance, card, events = draw(st.randoms(use_true_random=False)), KinetoTrace(), []
    for number in range(chance.randrange(1, 12)):
        at, stream = 1_000 * chance.randrange(25), chance.choice(STREAMS[:-1])
        card.kernel(f"kernel {number}", 50_000 + 1_000 * number, 90_000, stream=stream, call=(at, at + 100))
    for _ in range(chance.randrange(60)):
        at, stream, what = 1_000 * chance.randrange(25), chance.choice(STREAMS), chance.choice("rrrrwwwwesd")
        if what == "r":
            events.append(card.record_event(at, stream=stream))
        elif what == "w" and events:
            card.stream_wait(at, chance.choice(events), stream=stream)
        elif what == "e" and events:
            card.event_synchronize(at, at + 100, chance.choice(events))
        elif what == "s":
            card.stream_synchronize(at, at + 100, stream=stream)
        elif what == "d":
            card.device_synchronize(at, at + 100)
    return card


@given(recordings())
def test_waits_are_those_of_the_definition(card: KinetoTrace) -> None:
    with TemporaryDirectory() as folder:
        trace = opened(Path(folder), card).trace
    nothing = np.zeros(len(trace.events), bool)
    slices = cut(trace, match(trace), nothing)
    (streams, calls), inferred = synchronisation(trace, launched(trace), slices, nothing)
    event = slices.slices.event
    found = [
        {(int(event[s >> 1]), int(event[t >> 1])) for s, t in zip(e.source, e.target, strict=True)}
        for e in (streams, calls)
    ]
    assert tuple(found) == ByDefinition(trace).pairs()
    assert inferred == 0
