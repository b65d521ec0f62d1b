"""Threads that wait for gloo: by hand, and on a recording of four ranks in which rank 2 was slow to begin."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from handmade import MS, Builder

import traceflow as tf
from traceflow.graph import EdgeKind, SliceKind
from traceflow.run import Run
from traceflow.trace.model import Kind

RECORDED = Path(__file__).parent / "data" / "gloo"


@dataclass
class Threads:
    """Two ranks that take part in the same all-reduces: what their threads do, in ms."""

    builder: Builder = field(default_factory=Builder)

    def __post_init__(self) -> None:
        self.main = [self.builder.lane(rank, "main") for rank in range(2)]
        self.gloo = [self.builder.lane(rank, "gloo") for rank in range(2)]

    def does(self, rank: int, name: str, start_ms: float, end_ms: float) -> int:
        """An event on the main thread."""
        return self.builder.event(self.main[rank], round(start_ms * MS), round(end_ms * MS), name, Kind.HOST)

    def reduces(self, rank: int, sequence: int, issued_ms: float, done_ms: float) -> None:
        """An all-reduce that the main thread issues, and the other executes."""
        start_ns = round((issued_ms + 0.1) * MS)
        call = self.does(rank, "c10d::allreduce_", issued_ms, issued_ms + 0.2)
        work = self.builder.event(self.gloo[rank], start_ns, round(done_ms * MS), "gloo:all_reduce", Kind.COMMUNICATION)
        self.builder.calls.append((work, sequence, rank, 64))
        self.builder.flows.append((call, work))

    def waits_ms(self, rank: int) -> list[tuple[str, float, float]]:
        """The slices in which the main thread waited."""
        run = self.builder.run()
        slices, trace = run.dependencies.graph.slices, run.trace
        waits = np.flatnonzero((slices.kind == SliceKind.BLOCKED) & (slices.lane >= 0))
        return [
            (trace.strings[trace.events.name[slices.event[row]]], slices.start_ns[row] / MS, slices.end_ns[row] / MS)
            for row in waits.tolist()
            if trace.lanes.rank[slices.lane[row]] == rank
        ]


def late_waits() -> Threads:
    """Both issue at 1 ms, compute until 3 and 9, and wait inside their step until it is done at 11 and 12."""
    threads = Threads()
    for rank, until_ms, done_ms in ((0, 3, 11), (1, 9, 12)):
        threads.does(rank, "backward", 0, 14)
        threads.reduces(rank, 0, 1, done_ms)
        threads.does(rank, "aten::mm", 1.2, until_ms)
        threads.does(rank, "aten::copy_", 13, 14)
    return threads


def test_a_thread_waits_long_after_it_issued_a_collective() -> None:
    threads = late_waits()
    assert threads.waits_ms(0) == [("backward", 3, 11)]
    assert threads.waits_ms(1) == [("backward", 9, 12)]
    graph = threads.builder.run().dependencies.graph
    assert (graph.replay() == graph.time_ns).all()


def test_what_a_thread_does_after_a_wait_is_its_own_work() -> None:
    threads = Threads()
    for rank, sleeps_until_ms in ((0, 5), (1, 40)):
        threads.does(rank, "step", 0, sleeps_until_ms)
        threads.reduces(rank, 0, 1, 4)
        threads.reduces(rank, 1, sleeps_until_ms + 1, 43)
        threads.does(rank, "aten::mm", 44, 45)
    assert threads.waits_ms(1) == [("step", 1.2, 4)]
    first = threads.builder.run().stragglers().ranking[0]
    assert (first.rank, first.name, first.cost_ns) == (1, "step", 35 * MS)


def test_a_thread_that_sleeps_while_a_collective_ends_does_not_wait_for_it() -> None:
    threads = Threads()
    for rank, awake_ms, done_ms in ((0, 53, 50), (1, 3, 50.5)):
        threads.does(rank, "backward", 0, 70)
        threads.reduces(rank, 0, 1, done_ms)
        threads.does(rank, "hook", 2, awake_ms)
        threads.does(rank, "aten::mm", awake_ms, awake_ms + 1)
    assert threads.waits_ms(0) == []  # rank 1 went on from its hook long before the collective was done
    assert threads.waits_ms(1) == [("backward", 4, 50.5)]


def test_what_takes_as_long_without_a_collective_does_not_wait() -> None:
    threads = Threads()
    for rank in range(2):
        for layer in range(5):
            threads.does(rank, "layer", 10 * layer, 10 * layer + 10)
        threads.reduces(rank, 0, 21, 38)
        threads.does(rank, "aten::mm", 60, 61)
    assert threads.waits_ms(0) == []


def test_who_goes_on_for_longer_did_not_wait() -> None:
    threads = Threads()
    for rank in range(2):
        threads.does(rank, "backward", 0, 40)
        threads.reduces(rank, 0, 1, 11)
        threads.does(rank, "aten::mm", 1.2, 3)
    assert threads.waits_ms(0) == []


def test_an_operator_does_not_wait() -> None:
    threads = Threads()
    for rank in range(2):
        threads.does(rank, "backward", 0, 20)
        threads.reduces(rank, 0, 1, 11)
        threads.does(rank, "aten::mm", 3, 12)
    assert threads.waits_ms(0) == []


@pytest.fixture(scope="module")
def run() -> Run:
    return tf.open(RECORDED)


def test_the_path_leads_through_the_rank_that_was_late(run: Run) -> None:
    path = run.critical_path()
    assert max(path.by_rank_ns, key=lambda rank: path.by_rank_ns[rank]) == 2
    assert path.by_kind_ns["transfer"] > 0
    assert len(path.by_rank_ns) > 1


def test_what_a_thread_waits_for_can_be_removed(run: Run) -> None:
    communication = run.communication()
    assert communication.removable_transfer_ns is not None
    assert communication.removable_communication_ns is not None
    assert 0 < communication.removable_transfer_ns <= communication.removable_communication_ns


def test_a_collective_binds_the_thread_that_issued_it(run: Run) -> None:
    graph, trace = run.dependencies.graph, run.trace
    bound = np.flatnonzero(graph.kind == EdgeKind.HOST_SYNCHRONISATION)
    done = trace.events.name[graph.slices.event[graph.source[bound] >> 1]]
    assert {trace.strings[code].partition(":")[0] for code in done.tolist()} == {"gloo"}
    target = graph.targets()[bound]
    assert (graph.time_ns[graph.source[bound]] <= graph.time_ns[target]).all()
    resumed = graph.slices.kind[target >> 1] == SliceKind.BLOCKED
    assert resumed.any()
    assert (graph.work_ns[target[resumed] >> 1] == 0).all()


def test_replay_gives_every_measured_time(run: Run) -> None:
    graph = run.dependencies.graph
    assert (graph.replay() == graph.time_ns).all()
    assert (graph.latest_ns() >= graph.time_ns).all()


def test_each_receive_waits_for_its_send(run: Run) -> None:
    found, trace = run.dependencies, run.trace
    received = np.array([trace.strings[code] == "recv" for code in trace.communications.operation])
    graph = found.graph
    bound = np.flatnonzero(graph.kind == EdgeKind.SEND_RECEIVE)
    waits = graph.slices.event[graph.targets()[bound] >> 1]
    assert sorted(waits) == sorted(trace.communications.event[received & (found.matches.instance >= 0)])
    assert len(waits) > 0
