"""Every known kind of bad input is repaired and counted, left out and counted, or refused with a reason."""

from __future__ import annotations

import json
import resource
from pathlib import Path
from typing import Any

import pytest
from bad_input import CASES, Case, recording, sound
from sources import ROOT
from xla_files import write_chrome

import traceflow
from traceflow.cli import main

Capture = pytest.CaptureFixture[str]
PAGE = ROOT / "docs" / "input.md"
_FIGURES = ("makespan_ns", "by_kind_ns", "by_rank_ns")


def asked(path: Path, capsys: Capture, *verb: str) -> tuple[Any, str]:
    """The answer of the command line as JSON, None where it is refused; and what stands on stderr."""
    code = main([*(verb or ("show", "critical-path")), str(path), "--format", "json"])
    told = capsys.readouterr()
    assert code == (0 if told.out else 1)
    return (json.loads(told.out) if told.out else None), told.err


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.wrong)
def test_bad_input(case: Case, tmp_path: Path, capsys: Capture) -> None:
    answer, refusal = asked(case.make(tmp_path), capsys)
    if answer is None:
        assert refusal.startswith(f"error: {case.told}: ")
        assert refusal.count("\n") == 1
        assert case.shows in refusal
        return
    quality = answer["data_quality"]
    assert quality["verdict"] == case.told, quality
    assert case.shows in json.dumps(quality)
    assert (quality["reasons"] == []) == (case.told == "good")
    assert quality["events_read"] == quality["events_kept"] + quality["events_dropped"]
    if case.same:
        expected, _ = asked(sound(_folder(tmp_path, "sound")), capsys)
        assert {key: answer["result"][key] for key in _FIGURES} == {key: expected["result"][key] for key in _FIGURES}


def _folder(parent: Path, name: str) -> Path:
    folder = parent.parent / f"{parent.name}-{name}"
    folder.mkdir()
    return folder


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.told == "limited" and "JAX" not in case.wrong], ids=lambda case: case.wrong
)
def test_what_limits_an_answer_is_told_first_and_marks_its_figures(
    case: Case, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    assert main(["show", "critical-path", str(case.make(tmp_path))]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].startswith("Limited")
    assert case.shows in lines[2]
    assert "(~ marks figures that this touches)" in lines[2]
    by_kind = lines[lines.index("") : lines.index("", lines.index("") + 1)]
    assert all("~" in line for line in by_kind[3:])
    assert "/result" not in "\n".join(lines)


def test_a_good_answer_is_quiet(tmp_path: Path, capsys: Capture) -> None:
    assert main(["show", "critical-path", str(sound(tmp_path))]) == 0
    told = capsys.readouterr().out
    assert "~" not in told
    assert "imited" not in told
    assert told.splitlines()[-1] == "Evidence: good. 30 events read, 24 kept, 6 left out"


def test_a_report_tells_what_is_lost_and_escapes_names(tmp_path: Path) -> None:
    told = {case.wrong: case for case in CASES}
    lost = told["an event without a duration"].make(_folder(tmp_path, "lost"))
    page = traceflow.open(lost).report(tmp_path / "lost.html").read_text()
    assert "Evidence: limited" in page
    assert "1 of 30 events was lost: 1 no duration" in page
    named = told["HTML and script in names"].make(_folder(tmp_path, "named"))
    assert "<script>alert(1)" not in traceflow.open(named).report(tmp_path / "named.html").read_text()


@pytest.mark.parametrize("verb", ["query", "report", "perfetto", "parquet"])
def test_files_and_rows_come_with_a_verdict_on_stderr(verb: str, tmp_path: Path, capsys: Capture) -> None:
    file = recording(1, 2).write(tmp_path / "rank1.json")
    arguments = {
        "query": ["query", str(file), "SELECT 1"],
        "report": ["report", str(file), "-o", str(tmp_path / "a.html")],
        "perfetto": ["export", "perfetto", str(file), "-o", str(tmp_path / "a.pftrace")],
        "parquet": ["export", "parquet", str(file), "-o", str(tmp_path / "tables")],
    }
    assert main(arguments[verb]) == 0
    assert capsys.readouterr().err.startswith("evidence: limited: 1 of 2 ranks present")


def test_a_trace_that_its_exporter_cut_is_told(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("traceflow.trace.chrome._MOST_EVENTS", 10)
    spans = [{"name": f"op{i}", "ts": 2 * i, "dur": 1} for i in range(10)]
    whole = write_chrome(tmp_path / "whole.trace.json", {"/host:CPU": {"python": spans[:9]}})
    cut = write_chrome(tmp_path / "cut.trace.json", {"/host:CPU": {"python": spans}})
    assert "TF323" not in [note["code"] for note in asked(whole, capsys)[0]["data_quality"]["notes"]]
    assert "TF323" in [note["code"] for note in asked(cut, capsys)[0]["data_quality"]["notes"]]


def test_a_bomb_takes_no_memory(tmp_path: Path, capsys: Capture) -> None:
    case = next(case for case in CASES if case.wrong == "a bomb of gzip")
    file = case.make(tmp_path)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    asked(file, capsys)
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < 2**28


def test_what_is_behind_a_link_is_not_shown(tmp_path: Path, capsys: Capture) -> None:
    case = next(case for case in CASES if "links" in case.wrong)
    assert main(["show", "all", str(case.make(tmp_path))]) == 0
    told = capsys.readouterr()
    assert "hunter2" not in told.out + told.err


def test_no_name_commands_the_terminal(tmp_path: Path, capsys: Capture) -> None:
    case = next(case for case in CASES if "control" in case.wrong)
    file = case.make(tmp_path)
    for verb in (["show", "all"], ["show", "critical-path"], ["show", "savings"], ["show", "budget"]):
        assert main([*verb, str(file)]) == 0
    named = file.rename(tmp_path / "rank0\x1b[2J.json")
    assert main(["report", str(named), "-o", str(tmp_path / "a\x1b[2J.html")]) == 0
    assert main(["export", "parquet", str(named), "-o", str(tmp_path / "a\x1b[2J")]) == 0
    assert main(["show", "\x1b[2J", str(file)]) == 2
    assert main(["show", "summary", "\x1b[2J"]) == 1
    told = capsys.readouterr()
    assert "\x1b" not in told.out + told.err


def test_the_page_tells_every_kind() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for case in CASES:
        assert f"| {case.wrong} | {case.becomes} | {case.told} |" in page
