"""The page on collective matmul: what a reader would copy runs, and says what the page says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("jax")

from sources import ROOT

from traceflow.analyzers.rings.result import HIDDEN, NOT_HIDDEN, SOURCE_ORDER, TOO_SMALL
from traceflow.cli import main
from traceflow.codes import CODES
from traceflow.collectors.workloads.collective_matmul import record_collective_matmul

PAGE = (ROOT / "docs" / "collective-matmul.md").read_text(encoding="utf-8")


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


def without_numbers_of_instructions(text: str) -> str:
    return re.sub(r"ppermute\.\d+", "ppermute", text)


def test_the_program_of_the_page_prints_what_is_stated(capsys: pytest.CaptureFixture[str]) -> None:
    exec(blocks("python")[0], {})  # noqa: S102  # what a reader would copy
    printed, stated = capsys.readouterr().out, blocks("text")[0]
    assert without_numbers_of_instructions(printed) == without_numbers_of_instructions(stated)


def test_the_commands_of_the_page_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    record_collective_matmul(tmp_path / "runs", devices=2, size=(16, 16, 16), steps=2)
    monkeypatch.chdir(tmp_path)
    commands = [line.partition("#")[0].split()[2:] for line in blocks("console")[0].splitlines()]
    assert len(commands) == 3
    for command in commands:
        assert main([*command, "-q"]) == 0
        assert "2 rounds, 1 permute" in capsys.readouterr().out


def test_every_finding_and_verdict_is_in_a_table() -> None:
    listed = set(re.findall(r"^\| \[(TF\d+)\]", PAGE, re.MULTILINE))
    assert listed == {code for code in CODES if "TF260" <= code <= "TF269"}
    assert {f"`{verdict}`" for verdict in (HIDDEN, NOT_HIDDEN, TOO_SMALL, SOURCE_ORDER)} <= set(
        re.findall(r"^\| (`[^|]*`) \|", PAGE, re.MULTILINE)
    )
