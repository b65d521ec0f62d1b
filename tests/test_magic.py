"""The magic `%%traceflow`, in a shell of IPython that runs in another process."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from sources import ROOT

pytest.importorskip("jax")

PREPARE = "import os, jax\nx = jax.numpy.ones((64, 64))\nstep = jax.jit(lambda x: x @ x / 64)\nn = 0"
CELLS = {
    "loaded": "%load_ext traceflow",
    "prepared": PREPARE,
    "once": "%%traceflow -o run\nn += 1\nstep(x).sum()",
    "asked": "run.critical_path().makespan_ns > 0, len(run.summary().steps), run.summary().steps[0].compiled, n",
    "often": "%%traceflow runs/often -o often --steps 3 --warmup 2\nx = step(x)\nn += 1",
    "counted": "len(often.summary().steps), n, os.path.isdir('runs/often'), type(often).__name__",
    "raising": "%%traceflow runs/raising -o part --steps 3\nn += 1\nx = step(x)\nassert n < 8, 'enough'",
    "kept": "len(part.summary().steps), n, os.path.exists('runs/raising'), len(part.trace.events) > 0",
    "taken": "%%traceflow runs/often -o other\nn += 1",
    "untouched": "'other' in globals(), n",
    "forced": "%%traceflow runs/often -f\nx = step(x)",
    "no steps": "%%traceflow --steps 0\nn += 1",
    "misspelt": "%%traceflow --stps 2\nn += 1",
    "no name": "%%traceflow -o 3x\nn += 1",
    "syntax": "%%traceflow\nn += 1\nn +",
    "never ran": "n",
    "nested": "%%traceflow runs/nested -o nested\nimport traceflow as tf\ntf.open('nowhere')",
    "plain": "import traceflow as tf\ndef opened():\n    return tf.open('nowhere')\n\nopened()",
    "other magics": "%%traceflow runs/magics\nfolder = %pwd\ny = step(x)",
    "off": "os.environ['TRACEFLOW'] = '0'",
    "not recorded": "%%traceflow runs/off -o off\nn += 1\nn",
    "no variable": "'off' in globals(), os.path.exists('runs/off')",
}


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What became of each cell."""
    folder = tmp_path_factory.mktemp("notebook")
    done = subprocess.run(
        [sys.executable, ROOT / "tests" / "magic_cells.py"],
        input=json.dumps([*CELLS.values()]),
        cwd=folder,
        env={**os.environ, "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "2"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return dict(zip(CELLS, json.loads(done.stdout.splitlines()[-1]), strict=True))


def test_a_cell_runs_once_and_its_run_is_opened(told: dict[str, dict[str, Any]]) -> None:
    assert told["once"]["raised"] == "NoneType"
    assert told["once"]["result"].startswith("Array(4096")
    said = (
        "traceflow: recorded 1 step, with its compilation (--warmup 1 runs the cell once before), in traceflow-cell-1"
    )
    assert said in told["once"]["out"]
    assert "opened as run" in told["once"]["out"]
    assert any("<b>summary</b>" in shown for shown in told["once"]["shown"])
    assert told["asked"]["result"] == "(True, 1, True, 1)"


def test_a_cell_runs_as_often_as_is_wanted(told: dict[str, dict[str, Any]]) -> None:
    assert "recorded 3 steps in runs/often, opened as often" in told["often"]["out"]
    assert told["counted"]["result"] == "(3, 6, True, 'Run')"


def test_what_a_cell_raises_is_shown_as_ever_and_what_was_recorded_is_kept(told: dict[str, dict[str, Any]]) -> None:
    raised = told["raising"]
    assert raised["raised"] == "AssertionError"
    assert "----> 4 assert n < 8, 'enough'" in raised["out"]  # the line that the notebook calls the fourth
    number = [*CELLS].index("raising") + 1
    assert f"In[{number}], line 4" in raised["out"]
    assert "magic.py" not in raised["out"]
    assert re.search(r"recorded 2 steps in runs/raising\.incomplete-\d+, opened as part", raised["out"])
    assert told["kept"]["result"] == "(2, 8, False, True)"


def test_nothing_is_overwritten_unless_that_is_said(told: dict[str, dict[str, Any]]) -> None:
    (line,) = told["taken"]["err"].strip().splitlines()
    assert line.startswith("UsageError: TF110: cannot record to ")
    assert line.endswith("it exists already; name another one, or give -f to replace it")
    assert told["untouched"]["result"] == "(False, 8)"
    assert told["forced"]["raised"] == "NoneType"
    assert "recorded 1 step" in told["forced"]["out"]


@pytest.mark.parametrize(
    ("cell", "line"),
    [
        ("no steps", "%%traceflow records at least one step (--steps 1) after no less than --warmup 0"),
        ("misspelt", "unrecognized arguments: --stps"),
        ("no name", "%%traceflow cannot call a variable '3x': -o takes a name such as run"),
    ],
)
def test_a_mistake_is_told_in_one_line(cell: str, line: str, told: dict[str, dict[str, Any]]) -> None:
    assert told[cell]["err"] == f"UsageError: {line}\n"
    assert told[cell]["out"] == ""


def test_a_cell_that_is_no_python_is_not_run(told: dict[str, dict[str, Any]]) -> None:
    assert told["syntax"]["raised"] == "SyntaxError"
    assert told["never ran"]["result"] == "8"


def test_an_error_of_traceflow_is_two_lines_in_a_notebook(told: dict[str, dict[str, Any]]) -> None:
    what = "TF101: cannot read nowhere: no such file or folder; check the path"
    assert told["plain"]["out"].strip().splitlines() == ["----> return tf.open('nowhere')", what]
    assert told["nested"]["raised"] == "TraceflowError"
    assert told["nested"]["out"].strip().splitlines()[-2:] == ["----> tf.open('nowhere')", what]


def test_a_cell_may_use_other_magics(told: dict[str, dict[str, Any]]) -> None:
    assert "recorded 1 step in runs/magics" in told["other magics"]["out"]


def test_where_recording_is_off_the_cell_runs_as_it_is(told: dict[str, dict[str, Any]]) -> None:
    assert told["not recorded"]["out"].startswith("traceflow: nothing is recorded while TRACEFLOW=0\n")
    assert told["not recorded"]["result"] == "9"
    assert told["no variable"]["result"] == "(False, False)"


def test_captures_without_a_name_are_numbered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: dict[str, dict[str, Any]]
) -> None:
    from traceflow.magic import _next_free

    assert "traceflow-cell-1" in told["once"]["out"]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "traceflow-cell-1").mkdir()
    assert _next_free() == Path("traceflow-cell-2")
