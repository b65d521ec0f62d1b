"""The pages on comparing and on gates: everything that they show is run."""

from __future__ import annotations

import ast
import re
import tomllib

import pytest
from sources import ROOT

from traceflow.analyzers.comparison.claims import read_claim
from traceflow.analyzers.comparison.observation import QUANTITIES
from traceflow.analyzers.gate import read_requirement
from traceflow.cli import main

COMPARING = (ROOT / "docs" / "comparing.md").read_text(encoding="utf-8")
GATE = (ROOT / "docs" / "gate.md").read_text(encoding="utf-8")
LIMITS = tomllib.loads("".join(re.findall(r"```toml\n(.*?)```", GATE, re.DOTALL)))["tool"]["traceflow"]["require"]
IN_PYTHON = [
    text
    for block in re.findall(r"\.require\((.*)\)", GATE)
    for text in ast.literal_eval(f"[{block}]")
    if "..." not in text
]


@pytest.mark.parametrize("claim", re.findall(r'--claim "(.*?)"', COMPARING))
def test_every_claim_that_is_shown_can_be_made(claim: str) -> None:
    assert read_claim(claim).text == claim


@pytest.mark.parametrize("text", [*re.findall(r'--require "(.*?)"', GATE), *LIMITS, *IN_PYTHON])
def test_every_requirement_that_is_shown_can_be_made(text: str) -> None:
    assert read_requirement(text, with_baseline=True).text == text


def test_every_quantity_of_the_table_is_one_and_none_is_left_out() -> None:
    table = COMPARING.partition("| quantity | is |")[2].partition("\n\n")[0]
    named = set(re.findall(r"`(\w+)`", table))
    assert named <= set(QUANTITIES)
    patterns = ("path_", "communication_", *(f"{name}_" for name in re.findall(r"`(\w+)`", COMPARING)))
    assert {name for name in QUANTITIES if name not in named and not name.startswith(patterns)} == set()


def test_plan_compare_prints_what_is_shown(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    command, shown = re.findall(r"\$ traceflow (plan compare [^\n]*)\n(.*?)```", COMPARING, re.DOTALL)[0]
    assert main(command.split()) == 0
    assert capsys.readouterr().out.startswith(shown)


def test_a_mistake_is_told_as_shown(capsys: pytest.CaptureFixture[str]) -> None:
    shown = re.findall(r"```text\n(Error.*?)```", GATE, re.DOTALL)[0]
    assert main(["check", "runs/a", "--require", "exposed_share << 0.15"]) == 2
    assert capsys.readouterr().err.endswith(shown)


def test_the_python_that_is_shown_is_python() -> None:
    blocks = re.findall(r"```python\n(.*?)```", COMPARING + GATE, re.DOTALL)
    assert len(blocks) == 2
    assert all(ast.parse(block).body for block in blocks)
