"""The examples of the page on plans, executed."""

from __future__ import annotations

import doctest
import re

import pytest
from sources import ROOT

from traceflow.cli import main

PAGE = (ROOT / "docs" / "plan.md").read_text(encoding="utf-8")
CONSOLE = re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)
PYTHON = re.findall(r"```pycon\n(.*?)```", PAGE, re.DOTALL)


def commands() -> list[tuple[list[str], str]]:
    """Every command, with what the page says that it prints; nothing where it does not show it."""
    found = []
    for block in CONSOLE:
        for command, printed in re.findall(r"^\$ traceflow ([^\n]*)\n((?:[^$\n].*\n|\n)*)", block, re.MULTILINE):
            found.append((command.partition("  #")[0].split(), printed))
    return found


@pytest.mark.parametrize(("words", "printed"), commands(), ids=lambda value: " ".join(value)[:40])
def test_a_command_prints_what_the_page_shows(
    words: list[str], printed: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(words) == 0
    out = capsys.readouterr().out
    assert out == printed if printed else out


def test_the_page_shows_commands_and_their_output() -> None:
    assert sum(bool(printed) for _, printed in commands()) == 1
    assert len(commands()) == 4
    assert len(PYTHON) == 2


@pytest.mark.parametrize("block", PYTHON)
def test_python_says_what_the_page_shows(block: str) -> None:
    test = doctest.DocTestParser().get_doctest(block, {}, "plan.md", "plan.md", 0)
    assert doctest.DocTestRunner().run(test) == doctest.TestResults(0, len(test.examples))
