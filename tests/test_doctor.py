"""The doctor: what it finds on this machine, on others as far as they can be imitated, and its exit code."""

from __future__ import annotations

import json
import os
import shutil
import time
import webbrowser
from collections import namedtuple
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from traceflow import doctor
from traceflow.cli import main
from traceflow.doctor import Checkup, State, examined
from traceflow.schemas import schema

Capture = pytest.CaptureFixture[str]
Usage = namedtuple("Usage", "total used free")  # noqa: PYI024  # as shutil's, which has no public name


@pytest.fixture(autouse=True)
def ordinary(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing in the environment that is in the way, and no GPU."""
    for variable in ("TRACEFLOW", "XLA_FLAGS", "CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(doctor, "_DRIVER", tmp_path / "driver")


def checked(folder: Path, *, trial: bool = False) -> dict[str, Checkup]:
    """The checks by name."""
    return {check.name: check for check in examined(folder, trial=trial)}


def installed_without(monkeypatch: pytest.MonkeyPatch, *missing: str) -> None:
    """Let some packages be absent."""
    monkeypatch.setattr(doctor, "find_spec", lambda name: None if name in missing else find_spec(name))


@pytest.mark.parametrize("framework", ["jax", "torch"])
def test_a_trial_records_with_the_framework_that_is_here(framework: str, tmp_path: Path, capsys: Capture) -> None:
    del capsys
    if find_spec(framework) is None:
        pytest.skip(f"{framework} is not installed")
    check = doctor._tried(framework)
    assert (check.state, check.fix) == (State.GOOD, None)
    assert int(check.found.split()[0].replace(",", "")) > 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("program", "found"),
    [
        ("raise SystemExit('no CUDA driver')", "no CUDA driver"),
        ("pass", "nothing was recorded, and nothing says why"),
        ("import sys, pathlib; p = pathlib.Path(sys.argv[1]); p.mkdir(); (p / 'traceflow.json').write_text('{')", None),
    ],
)
def test_a_trial_that_fails_says_why(program: str, found: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(doctor._TRIALS, "jax", program)
    check = doctor._tried("jax")
    assert check.state is State.BLOCKS
    assert check.fix
    assert found is None or check.found == found


def test_a_trial_that_never_ends_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(doctor._TRIALS, "jax", "import time; time.sleep(60)")
    monkeypatch.setattr(doctor, "_PATIENCE_S", 0.2)
    check = doctor._tried("jax")
    assert (check.state, check.found) == (State.BLOCKS, "a small product took more than 0.2 s")


def test_nothing_to_record_with_blocks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    installed_without(monkeypatch, "jax", "torch")
    assert checked(tmp_path)["frameworks"].state is State.BLOCKS
    installed_without(monkeypatch, "jax")
    assert "frameworks" not in checked(tmp_path)


def test_recording_that_is_switched_off_blocks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert checked(tmp_path)["switch"].state is State.GOOD
    monkeypatch.setenv("TRACEFLOW", "0")
    assert checked(tmp_path)["switch"] == Checkup(
        "switch", State.BLOCKS, "TRACEFLOW=0 switches recording off", "unset TRACEFLOW"
    )


def test_a_dump_of_ones_own_is_a_warning(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=8")
    assert checked(tmp_path)["dump flags"].state is State.GOOD
    monkeypatch.setenv("XLA_FLAGS", "--xla_dump_to=dumps")
    assert checked(tmp_path)["dump flags"].state is State.WARNING


@pytest.mark.parametrize(
    ("admin_only", "user", "state"), [("1", 1000, State.NOTE), ("1", 0, State.GOOD), ("0", 1000, State.GOOD)]
)
def test_counters_may_be_kept_to_administrators(
    admin_only: str, user: int, state: State, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    driver = tmp_path / "driver"
    driver.mkdir()
    (driver / "params").write_text(f"ResmanDebugLevel: 4294967295\nRmProfilingAdminOnly: {admin_only}\n")
    monkeypatch.setattr(os, "geteuid", lambda: user)
    assert checked(tmp_path)["GPU"].state is state


def test_another_profiler_of_the_gpu_is_a_warning(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "driver").mkdir()
    monkeypatch.setenv("CUDA_INJECTION64_PATH", "libToolsInjection64.so")
    assert checked(tmp_path)["other profilers"].state is State.WARNING
    assert checked(tmp_path)["GPU"].state is State.GOOD  # settings that cannot be read restrict nothing


@pytest.mark.parametrize(
    ("free_bytes", "state"), [(1 << 40, State.GOOD), (1 << 30, State.WARNING), (1 << 20, State.BLOCKS)]
)
def test_room_on_the_disk(free_bytes: int, state: State, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(1 << 41, 0, free_bytes))
    assert checked(tmp_path)["disk"].state is state


def test_a_folder_that_cannot_be_written_blocks(tmp_path: Path) -> None:
    assert checked(tmp_path / "absent")["disk"].state is State.BLOCKS


@pytest.mark.parametrize(
    ("times_ns", "state"),
    [
        ((1_796_040_000_000_000_000, 1_796_040_000_000_000_500), State.GOOD),
        ((1_796_040_000_000_000_000, 1_796_040_000_500_000_000), State.WARNING),  # it jumped by half a second
        ((5_000, 5_500), State.WARNING),  # 1970
    ],
)
def test_clocks_that_disagree_are_a_warning(
    times_ns: tuple[int, int], state: State, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    told, counted = iter(times_ns), iter((70, 570))
    monkeypatch.setattr(doctor, "time", Clocks(told, counted))
    assert checked(tmp_path)["clock"].state is state


class Clocks:
    """The module `time` with clocks of our own."""

    get_clock_info = staticmethod(time.get_clock_info)

    def __init__(self, told: Any, counted: Any) -> None:
        self.time_ns, self.perf_counter_ns = told.__next__, counted.__next__

    def sleep(self, _: float) -> None:
        """Wait for nothing."""


def test_viewers_that_are_missing_are_noted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def none() -> None:
        raise webbrowser.Error

    installed_without(monkeypatch, "xprof", "duckdb")
    monkeypatch.setattr(webbrowser, "get", none)
    checks = checked(tmp_path)
    assert checks["viewers"] == Checkup(
        "viewers", State.NOTE, "report and perfetto; without xprof", "pip install 'traceflow-ml[xprof]'"
    )
    assert checks["queries"].state is State.NOTE
    assert checks["browser"].state is State.NOTE


def test_only_what_blocks_recording_makes_the_exit_code(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XLA_FLAGS", "--xla_dump_to=dumps")
    assert main(["doctor", "--no-trial"]) == 0
    text = capsys.readouterr().out
    assert "-> take it out of XLA_FLAGS" in " ".join(text.split())
    assert text.endswith("Recording can begin.\n")
    monkeypatch.setenv("TRACEFLOW", "0")
    assert main(["doctor", "--no-trial", "--format", "json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert [*Draft202012Validator(schema("doctor")).iter_errors(document)] == []
    assert document["blocked"]
    assert document["versions"]["traceflow-ml"]
