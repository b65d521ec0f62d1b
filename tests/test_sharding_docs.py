"""The page on sharding: what a reader would copy runs, and says what the page says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("jax")

from sources import ROOT

from traceflow.cli import main
from traceflow.codes import CODES
from traceflow.intent.file import read_intent

PAGE = (ROOT / "docs" / "sharding.md").read_text(encoding="utf-8")


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


def test_every_program_of_the_page_runs_and_prints_what_is_stated(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    audit, assertion, stated = blocks("python")[:3]
    exec(audit, names)  # noqa: S102  # what a reader would copy
    assert capsys.readouterr().out == blocks("text")[0]
    exec(assertion, names)  # noqa: S102
    names["test_step_is_sharded_as_meant"]()
    exec(stated, names)  # noqa: S102
    assert names["stated"].batch == ("data",)


def test_the_commands_of_the_page_answer_with_the_intent_of_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names: dict[str, Any] = {}
    exec(blocks("python")[0], names)  # noqa: S102
    dump = {"xla_dump_to": str(tmp_path / "runs" / "a"), "xla_dump_hlo_as_proto": True}
    names["step"].lower(*names["arguments"]).compile(compiler_options={**dump, "xla_dump_hlo_pass_re": "spmd|shard"})
    (tmp_path / "sharding.toml").write_text(blocks("toml")[0], encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    plain, intended = [line.partition("#")[0].split()[2:] for line in blocks("console")[0].splitlines()[:2]]
    capsys.readouterr()
    assert main([*plain, "-q"]) == 0
    assert "TF231" in capsys.readouterr().out
    assert main([*intended, "-q"]) == 0
    assert "all-reduce(data) does not happen" in capsys.readouterr().out


def test_the_file_and_the_call_of_the_page_are_both_an_intent(tmp_path: Path) -> None:
    (tmp_path / "sharding.toml").write_text(blocks("toml")[0], encoding="utf-8")
    read = read_intent(tmp_path / "sharding.toml")
    names: dict[str, Any] = {}
    exec(blocks("python")[2], names)  # noqa: S102
    stated = names["stated"]
    assert (read.batch, read.mesh) == (stated.batch, stated.mesh)
    assert {pattern: spec.padded(2) for pattern, spec in read.params.items()} == dict(stated.params)
    assert read.activations == stated.activations


def test_every_finding_is_in_the_table() -> None:
    listed = set(re.findall(r"^\| \[(TF\d+)\]", PAGE, re.MULTILINE))
    assert listed == {code for code in CODES if "TF231" <= code <= "TF249"}
