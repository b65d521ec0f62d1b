"""Every finding has its meaning, its formula and an example, and its example is what the command prints."""

from __future__ import annotations

import os
import re
import runpy
import shlex
from pathlib import Path

import pytest
from finding_scenes import SCENES
from sources import PACKAGE_FILES, ROOT

from traceflow.cli import main
from traceflow.codes import ALL, CODES, Code

RETIRED = {"TF204"}
FOUND = [entry for entry in ALL if entry.code.startswith("TF2") and entry.code not in RETIRED]
_LAID: dict[str, Path] = {}


@pytest.fixture
def laid(entry: Code, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the scene of an example; one for all that share it."""
    scene = SCENES[entry.code]
    if scene.cores is not None and (os.cpu_count() or 1) > scene.cores:
        pytest.skip(f"more than {scene.cores} cores: threads need not wait for one another")
    if scene.name not in _LAID:
        folder = tmp_path_factory.mktemp("scene")
        scene.lay(folder)
        _LAID[scene.name] = folder
    return _LAID[scene.name]


def with_group(entry: Code) -> object:
    """A test that runs where others with its scene do."""
    return pytest.param(entry, id=entry.code, marks=pytest.mark.xdist_group(f"scene {SCENES[entry.code].name}"))


def run(command: str, capsys: pytest.CaptureFixture[str]) -> str:
    """What a command prints, in one line."""
    program, *words = shlex.split(command)
    capsys.readouterr()
    if program == "python":
        runpy.run_path(words[0])
    else:
        assert program == "traceflow"
        assert main(words) in {0, 3}
    return " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("entry", FOUND, ids=lambda entry: entry.code)
def test_a_finding_is_told_in_full(entry: Code) -> None:
    assert entry.formula.endswith(".")
    assert entry.example.endswith(".")
    assert entry.command
    assert entry.output


def test_only_what_is_printed_needs_an_example() -> None:
    elsewhere = [path for path in PACKAGE_FILES if (ROOT / "traceflow" / "codes") not in path.parents]
    named = set(re.findall(r"TF2\d\d", "".join(path.read_text(encoding="utf-8") for path in elsewhere)))
    assert named & RETIRED == set()
    assert {entry.code for entry in FOUND} <= named
    assert SCENES.keys() == {entry.code for entry in FOUND}


@pytest.mark.parametrize("entry", [with_group(entry) for entry in FOUND])
def test_the_command_prints_the_line(
    entry: Code, laid: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(laid)
    printed, stated = run(entry.command, capsys), entry.output
    if SCENES[entry.code].live:
        printed, stated = (re.sub(r"\d", "#", text) for text in (printed, stated))
    assert stated in printed


@pytest.mark.parametrize("code", ["TF201", "TF204", "TF101"])
def test_explain_shows_the_same(code: str, capsys: pytest.CaptureFixture[str]) -> None:
    entry = CODES[code]
    told = run(f"traceflow explain {code}", capsys)
    for text in (
        entry.title,
        entry.explanation,
        entry.formula,
        entry.example,
        entry.command,
        entry.output,
        entry.remedy,
    ):
        assert " ".join(text.split()) in told
