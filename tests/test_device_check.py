"""The checks of a GPU, held against traces that are as they should be and against such that are not."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from kineto_builder import KinetoTrace, opened
from sources import ROOT
from test_torch_memory import allocation

import traceflow
from traceflow.run import Run

GPU = {"platform": "gpu", "plain_step_ns": 1_000, "recorded_step_ns": 1_100, "max_memory_allocated": 1_000}


@pytest.fixture(scope="module")
def checks() -> ModuleType:
    """The script's checks, which are no part of the package."""
    spec = importlib.util.spec_from_file_location("device_checks", ROOT / "scripts" / "device_checks.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def recorded(folder: Path, *, whole: bool) -> Run:
    """A step with a graph, a wait between streams and an allocation; or one that lacks all of these."""
    trace = KinetoTrace(rank=0)
    trace.step(0, 0, 20_000)
    trace.kernel("gemm", 1_000, 4_000, call=(100, 200) if whole else None)
    if whole:
        trace.graph_launch((300, 400), [("a", 4_000, 5_000, 7), ("b", 5_000, 6_000, 7)])
        trace.stream_wait(500, trace.record_event(450), stream=20)
        trace.kernel("copy", 6_000, 7_000, call=(600, 700), stream=20)
        trace.device_synchronize(800, 7_100)
    told = allocation(0, 500, 995 if whole else 1_100)
    trace.events.append({**told, "ts": trace.events[0]["ts"]})
    return opened(folder, trace)


@pytest.mark.parametrize("name", ["tiles", "replays", "launched", "graphs", "synchronised", "peaks", "cheap"])
def test_a_trace_as_it_should_be_passes(name: str, checks: ModuleType, tmp_path: Path) -> None:
    found: dict[str, Any] = getattr(checks, name)(recorded(tmp_path, whole=True), GPU)
    assert found


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("launched", "of the work of devices has its launch"),
        ("graphs", "no call launched more than one kernel"),
        ("synchronised", "no synchronisation was recorded"),
        ("peaks", "the peak is 1100 bytes, and PyTorch counted 1000"),
        ("budgeted", "no product has a budget"),
        ("holds", "no program tells its memory"),
    ],
)
def test_a_trace_that_lacks_something_does_not(name: str, why: str, checks: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=why):
        getattr(checks, name)(recorded(tmp_path, whole=False), GPU)


def test_a_recording_that_costs_too_much_does_not_pass(checks: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="takes 60% longer"):
        checks.cheap(recorded(tmp_path, whole=True), {**GPU, "recorded_step_ns": 1_600})


def test_every_program_has_its_checks(checks: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    programs = importlib.import_module("device_programs")
    script = importlib.import_module("device_check")
    assert set(checks.CHECKS) == {name for name in script.commands(Path("x"), "cpu") if name.startswith("product-")}
    assert {name.replace("-", "_") for name in checks.CHECKS} <= set(vars(programs))
    for name in ("device_programs", "device_check", "device_checks"):
        sys.modules.pop(name)


@pytest.mark.parametrize("name", ["torch", "jax"])
def test_on_a_cpu_all_checks_that_it_can_have_pass(
    name: str, checks: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(name)
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    programs = importlib.import_module("device_programs")
    monkeypatch.setattr(programs, "TIMED", 1)
    getattr(programs, f"product_{name}")("cpu", tmp_path / "capture")
    told = json.loads((tmp_path / "told.json").read_text())
    run = traceflow.open(tmp_path / "capture")
    for check in checks.CHECKS[f"product-{name}"]:
        assert check(run, told)
    sys.modules.pop("device_programs")
