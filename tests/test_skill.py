"""What comes with the package for coding agents: every command in it exists, and answers."""

from __future__ import annotations

import json
import re
import shlex
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

import pytest
from test_cli import kineto
from test_docs import VERBS, options

from traceflow.cli import main
from traceflow.codes import CODES

Capture = pytest.CaptureFixture[str]

SKILL = files("traceflow").joinpath("skills", "traceflow.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^\s*\$ (traceflow .+)$", SKILL, re.MULTILINE)
RECORDS = ("traceflow run", "traceflow doctor")


def verb_of(command: str) -> str:
    """The longest name of a verb that a command begins with."""
    return max((verb for verb in VERBS if f"{command} ".startswith(f"{verb} ")), key=len)


def test_it_is_printed_as_it_is(capsys: Capture) -> None:
    assert main(["explain", "--skill"]) == 0
    assert capsys.readouterr().out == SKILL
    assert SKILL.startswith("---\nname: traceflow\n")


def test_it_is_short() -> None:
    assert len(COMMANDS) >= 12
    assert len(SKILL.encode()) < 6_000


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_and_option_exists(command: str) -> None:
    own = shlex.split(command.partition(" -- ")[0])
    assert {word for word in own if word.startswith("-")} <= options(VERBS[verb_of(command)])


@pytest.mark.parametrize("command", [command for command in COMMANDS if verb_of(command) not in RECORDS])
def test_every_command_that_reads_answers(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    if " query " in command and find_spec("duckdb") is None:
        pytest.skip("DuckDB is not installed")
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        folder = tmp_path / "runs" / name
        folder.mkdir(parents=True)
        (folder / "rank0.json").write_text(json.dumps(kineto(steps=5)))
    assert main(shlex.split(command)[1:]) == 0
    assert capsys.readouterr().out


def test_what_it_says_of_codes_and_options_is_so() -> None:
    assert set(re.findall(r"TF\d{3}", SKILL)) <= CODES.keys()
    assert set(re.findall(r"`(--[a-z-]+)", SKILL)) <= {"--help", *(o for verb in VERBS.values() for o in options(verb))}
