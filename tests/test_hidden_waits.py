"""Idle time of a path that communication fills, where streams tell nothing of each other."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from traceflow.cli import main


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
