"""The page on two runs: what `traceflow diff` says, above both runs explained."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from pages import Node, Page, rows, table_called
from test_comparison import GATHERED, kineto

from traceflow.cli import main

if TYPE_CHECKING:
    import pytest


def page_on(folder: Path, *words: str) -> Node:
    """The page that a comparison writes."""
    place = folder / "diff.html"
    assert main(["diff", *words, "-o", str(place), "-q"]) == 0
    return Page(place.read_text(encoding="utf-8")).root


def two_runs(folder: Path) -> tuple[str, str]:
    """One of 500 us a step, and one of 300 us whose results are in another order."""
    a = kineto(folder / "a", 500, 510, 520, 510, 500)
    b = kineto(folder / "b", 300, 310, 320, 310, 300)
    for run, values in ((a, [1.0, 2.0]), (b, [2.0, 1.0])):
        np.savez(Path(run) / "rank00000.outputs.npz", y=np.array(values))
    return a, b


def test_the_page_answers_first_and_explains_both_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = page_on(tmp_path, *two_runs(tmp_path), "--claim", "less step time", "--claim", "same outputs")
    assert capsys.readouterr().out == f"Wrote {tmp_path / 'diff.html'}\n"
    first = page.all("section")[0]
    assert first.attributes["id"] == "difference"
    assert [node.text for node in first.all("h1")] == ["A, a, against B, b"]
    assert [node.text.partition(":")[0] for node in first.all("p", "verdict")] == ["B computes something else"]
    assert [one.text.partition(":")[0] for one in first.all("li")] == ["confirmed", "refuted"]
    assert rows(table_called(first, "Results that differ")) == [["y", "the same values in another order, by up to 1"]]
    path = {row[0]: row[1:] for row in rows(table_called(first, "Critical path by kind, median of steps"))}
    assert path["compute"] == ["500.00", "300.00"]  # of a step, 10 us are outside of the kernel
    assert [node.attributes["id"] for node in page.all("article")] == ["run0", "run1"]
    assert len(page.all("canvas")) == 4


def test_programs_alone_are_compared_by_their_plans(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("a.txt", "b.txt")]
    for file, text in zip(files, (GATHERED, GATHERED.replace("{{0,1,2,3}}", "{{0,2},{1,3}}")), strict=True):
        file.write_text(text)
    first = page_on(tmp_path, *map(str, files)).all("section")[0]
    assert [row[0] for row in rows(table_called(first, "What changed in the plan"))] == ["collectives", "collectives"]
    assert "Results are not compared" in first.text
    assert rows(table_called(first, "Not available"))


def test_a_page_is_never_written_over_and_json_stays_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = two_runs(tmp_path)
    place = tmp_path / "diff.html"
    place.write_text("mine")
    assert main(["diff", a, b, "-o", str(place), "-q"]) == 1
    assert place.read_text() == "mine"
    assert "TF110" in capsys.readouterr().err
    assert main(["diff", a, b, "-o", str(place), "-q", "-f", "--format", "json"]) == 0
    assert json.loads(place.read_text())["kind"] == "diff"
