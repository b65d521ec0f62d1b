"""Idle time on a path whose probable cause is told: threads that virtual devices share, and hidden communication."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from handmade import Builder

from traceflow.analyzers.critical_path import Segments
from traceflow.analyzers.idle_time import idle_time
from traceflow.cli import main
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
    return idle_time(
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
        unordered=False,
    )


def test_idle_time_that_the_thread_spent_on_other_work_is_told() -> None:
    [finding] = found(LaneKind.WORKER, (50, 950))
    assert finding.code == "TF216"
    assert finding.evidence == {"busy_ns": 800, "devices": 2, "threads": 1}
    assert finding.title.startswith("80% of the path")


@pytest.mark.parametrize(("kind", "idle_ns"), [(LaneKind.STREAM, (50, 950)), (LaneKind.WORKER, (850, 950))])
def test_devices_of_their_own_and_little_waiting_are_not(kind: LaneKind, idle_ns: tuple[int, int]) -> None:
    assert found(kind, idle_ns) == ()


def codes(capsys: pytest.CaptureFixture[str], verb: str, file: Path) -> dict[str, int | None]:
    assert main(["show", verb, str(file), "--format", "json"]) == 0
    return {finding["code"]: finding["cost_ns"] for finding in json.loads(capsys.readouterr().out)["findings"]}


def test_a_job_without_records_of_synchronisation_is_said_to_wait_for_communication(
    corpus: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    (file,) = corpus("kineto").glob("mi300_resnet_rank0of8*")
    cost_ns = codes(capsys, "critical-path", file)["TF223"]
    assert main(["show", "communication", str(file), "--format", "json"]) == 0
    [device] = [p for p in json.loads(capsys.readouterr().out)["result"]["per_participant"] if p["device"] is not None]
    assert cost_ns == pytest.approx(device["exposed_ns"], rel=0.02)


def test_no_best_case_is_given_where_streams_tell_nothing_of_each_other(
    corpus: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    (file,) = corpus("kineto").glob("mi300_resnet_rank0of8*")
    assert main(["show", "savings", str(file), "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    best = {case["title"]: case["predicted_ns"] for case in document["result"]["best_cases"]}
    assert best["no communication"] is None
    assert any("synchronisation" in skipped["reason"] for skipped in document["skipped"])


def test_a_job_with_records_of_synchronisation_is_not(
    corpus: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    (file,) = corpus("kineto").glob("a100_event_sync_multi_stream*")
    assert "TF223" not in codes(capsys, "critical-path", file)
