"""Operations of virtual devices that wait for threads: what is told of idle time on the path."""

from __future__ import annotations

import numpy as np
import pytest
from handmade import Builder

from traceflow.analyzers.critical_path import Segments
from traceflow.analyzers.thread_pool import waits_for_threads
from traceflow.result import Finding
from traceflow.trace.model import Kind, LaneKind


def found(kind: LaneKind, idle_ns: tuple[int, int]) -> tuple[Finding, ...]:
    """Device 1's operation ends the path; before it, its thread runs device 0's work from 100 to 900 ns."""
    build = Builder()
    other, own = build.lane(0, "pool/1", 0, kind), build.lane(0, "pool/1", 1, kind)
    build.event(other, 100, 900, "dot", Kind.COMPUTE)
    build.event(own, idle_ns[1], 1_000, "add", Kind.COMPUTE)
    durations = [idle_ns[0], idle_ns[1] - idle_ns[0], 1_000 - idle_ns[1]]
    count = len(durations)
    none = np.full(count, None, object)
    return waits_for_threads(
        build.trace(),
        Segments(
            np.cumsum([0, *durations[:-1]]),
            np.array(durations),
            np.array(["host", "idle", "compute"], object),
            np.zeros(count, np.int32),
            np.array([-1, 1, 1], np.int32),
            np.array(["main", "pool/1", "pool/1"], object),
            np.array(["call", "before add", "add"], object),
            *(none,) * 6,
            np.zeros(count, bool),
        ),
    )


def test_idle_time_that_the_thread_spent_on_other_work_is_told() -> None:
    [finding] = found(LaneKind.WORKER, (50, 950))
    assert finding.code == "TF216"
    assert finding.evidence == {"busy_ns": 800, "devices": 2, "threads": 1}
    assert finding.title.startswith("80% of the path")


@pytest.mark.parametrize(("kind", "idle_ns"), [(LaneKind.STREAM, (50, 950)), (LaneKind.WORKER, (850, 950))])
def test_devices_of_their_own_and_little_waiting_are_not(kind: LaneKind, idle_ns: tuple[int, int]) -> None:
    assert found(kind, idle_ns) == ()
