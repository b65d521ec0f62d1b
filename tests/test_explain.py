"""`traceflow explain`, and what completes a command line."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from traceflow.cli import main

Capture = pytest.CaptureFixture[str]


@pytest.mark.parametrize("asked", ["TF201", "tf201", "201", "TF-201", " tf 201 "])
def test_a_code_is_known_by_its_number(asked: str, capsys: Capture) -> None:
    assert main(["explain", asked]) == 0
    out = capsys.readouterr().out
    assert out.startswith("TF201: exposed communication\n")
    assert out.index("Formula: ") < out.index("Example: ") < out.index("What to do: ")


def test_what_has_no_formula_shows_none(capsys: Capture) -> None:
    assert main(["explain", "101"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("TF101: ")
    assert "Formula" not in out


@pytest.mark.parametrize(
    ("asked", "suggested"),
    [
        ("TF240", "TF239 (claimed replication)"),
        ("1", "TF101 (input not found)"),
        ("experts", "TF217 (experts have unequal work)"),
        ("weather", "codes go from TF101 to TF900"),
        ("²", "codes go from TF101 to TF900"),
    ],
)
def test_codes_near_to_one_that_there_is_not_are_told(asked: str, suggested: str, capsys: Capture) -> None:
    assert main(["explain", asked]) == 2
    assert suggested in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("arguments", [[], ["201", "--skill"]])
def test_either_a_code_or_the_skill_is_asked_for(arguments: list[str], capsys: Capture) -> None:
    assert main(["explain", *arguments]) == 2
    assert "give a code such as TF201, or --skill" in capsys.readouterr().err


def test_a_shell_completes_verbs() -> None:
    asked = {"_TRACEFLOW_COMPLETE": "complete_bash", "COMP_WORDS": "traceflow show cr", "COMP_CWORD": "2"}
    program = "import sys; from traceflow.cli import main; sys.exit(main([]))"
    done = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, **asked}, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["critical-path"]
