"""What goes wrong while a program records: the program goes on, and what is left opens or says why it does not."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import kills
import pytest
from sources import ROOT

import traceflow
from traceflow.capture import read_manifest
from traceflow.errors import TraceflowError

FRAMEWORKS = ("torch", "jax")
TESTS = str(ROOT / "tests")


def run(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a script in a process of its own, which finds the programs of `kills`."""
    environment = {**os.environ, "PYTHONPATH": TESTS, "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", script, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=300)


def told(done: subprocess.CompletedProcess[str]) -> list[str]:
    """The lines that traceflow wrote."""
    return [line for line in done.stderr.splitlines() if line.startswith("TF")]


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_whatever_moment_a_program_is_killed_at(framework: str) -> None:
    pytest.importorskip(framework)
    script = f"import sys, kills; kills.main([{framework!r}, '--kills', '4', '--seed', '7'])"
    done = run(script)
    assert done.returncode == 0, done.stderr
    assert sum(int(line.split()[0]) for line in done.stdout.splitlines()) == 4


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("largest_bytes", [500, 5000])
def test_on_a_full_disk_the_program_goes_on(framework: str, largest_bytes: int, tmp_path: Path) -> None:
    pytest.importorskip(framework)
    script = (
        "import resource, sys, kills\n"
        "from pathlib import Path\n"
        f"import {framework}\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), int(sys.argv[2])))\n"
        f"kills.PROGRAMS[{framework!r}](Path(sys.argv[1]))\n"
        "print('went on')\n"
    )
    done = run(script, str(tmp_path / "a"), str(largest_bytes))
    assert done.stdout.endswith("went on\n"), done.stderr
    (line,) = told(done)
    assert line.startswith("TF115: ")
    assert not (tmp_path / "a").exists()
    assert all("refused" in one or "says so" in one for one in kills.judged(tmp_path / "a"))
    assert not list(tmp_path.rglob(".*")), "a draft was left"


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_folder_that_vanishes_does_not_stop_the_program(framework: str, tmp_path: Path) -> None:
    pytest.importorskip(framework)
    script = (
        "import shutil, sys, kills, traceflow.recording\n"
        "from pathlib import Path\n"
        "enter = traceflow.recording.Recording.step\n"
        "def step(self):\n"
        "    if self.step_number == 1: shutil.rmtree(self._folder)\n"
        "    return enter(self)\n"
        "traceflow.recording.Recording.step = step\n"
        f"kills.PROGRAMS[{framework!r}](Path(sys.argv[1]))\n"
        "print('went on')\n"
    )
    done = run(script, str(tmp_path / "a"))
    assert done.stdout.endswith("went on\n"), done.stderr
    assert all(line.startswith("TF115: ") for line in told(done))
    assert kills.judged(tmp_path / "a") in (["complete"], ["nothing"], ["not complete, and says so"])


def test_where_nothing_can_be_written_recording_is_refused_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(TraceflowError, match="TF114") as refused, traceflow.record(tmp_path / "file" / "a"):
        pytest.fail("the body ran")
    assert "\n" not in str(refused.value)


def test_a_fork_leaves_the_recording_alone(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    script = (
        "import os, sys, torch, traceflow\n"
        "weights = torch.eye(8)\n"
        "with traceflow.record(sys.argv[1], framework='torch', steps=3) as recorder:\n"
        "    for number in range(4):\n"
        "        with recorder.step() as step:\n"
        "            if number == 2 and not os.fork():\n"
        "                break\n"
        "            step.ready(weights @ weights)\n"
        "    else:\n"
        "        print('went on', flush=True)\n"
        "os._exit(0)\n"
    )
    done = run(script, str(tmp_path / "a"))
    assert done.stdout == "went on\n", done.stderr
    assert not told(done)
    assert kills.judged(tmp_path / "a") == ["complete"]


def test_two_recorders_of_one_name_leave_one_capture_that_is_whole(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    script = "import sys, kills, torch; from pathlib import Path; kills.torch_program(Path(sys.argv[1]))"
    with ThreadPoolExecutor(2) as two:
        both = list(two.map(lambda _: run(script, str(tmp_path / "a")), range(2)))
    assert [done.returncode for done in both if not told(done)] == [0]
    outcomes = kills.judged(tmp_path / "a")
    assert outcomes.count("complete") == 1
    assert set(outcomes) <= {"complete", "complete, without its name yet", "not complete, and says so"}


def test_readers_of_one_capture_at_once_read_the_same(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    recorded = run(
        "import sys, kills, torch; from pathlib import Path; kills.torch_program(Path(sys.argv[1]))",
        str(tmp_path / "a"),
    )
    assert recorded.returncode == 0, recorded.stderr
    script = (
        "import sys; from traceflow.cli import main; sys.exit(main(['show', 'all', sys.argv[1], '--format', 'json']))"
    )
    with ThreadPoolExecutor(4) as four:
        read = list(four.map(lambda _: run(script, str(tmp_path / "a")), range(4)))
    assert {done.returncode for done in read} == {0}
    assert len({done.stdout for done in read}) == 1


def test_a_capture_without_the_trace_of_a_rank_says_so(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    recorded = run(
        "import sys, kills, torch; from pathlib import Path; kills.torch_program(Path(sys.argv[1]))",
        str(tmp_path / "a"),
    )
    assert recorded.returncode == 0, recorded.stderr
    manifest = read_manifest(tmp_path / "a")
    assert manifest is not None
    shutil.rmtree(tmp_path / "a" / "torch")
    with pytest.raises(TraceflowError, match="TF106"):
        traceflow.open(tmp_path / "a")


def test_however_the_making_of_a_cache_ends_the_trace_is_read_as_it_is() -> None:
    assert sum(kills.kills_of_readers(5, seed=3).values()) == 5
