"""Threads that wait for gloo, on a recording of four ranks in which rank 2 was slow to begin."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import traceflow as tf
from traceflow.graph import EdgeKind, SliceKind
from traceflow.run import Run

RECORDED = Path(__file__).parent / "data" / "gloo"


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
