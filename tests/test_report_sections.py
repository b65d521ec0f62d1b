"""Sections of a page that only some runs have, and what of a run a page is asked to explain."""

from __future__ import annotations

from pathlib import Path

import pytest
import test_round_times as rounds
from handmade import MS, Builder, steps, two_rounds
from kineto_builder import opened
from pages import Node, Page, page_of, rows, section, table_called
from test_window import card

from traceflow.cli import main
from traceflow.errors import TraceflowError
from traceflow.evidence import Evidence
from traceflow.intent.plan import ParallelPlan, plan_step
from traceflow.report.subject import Asked
from traceflow.run import Run
from traceflow.trace.model import Kind
from traceflow.trace.untraced import untraced


def test_rounds_are_told_one_by_one() -> None:
    page = page_of(rounds.traced(rounds.windowed(rounds.synchronous), rounds.PARTLY))
    here = section(page, "rounds")
    (loop,) = rows(table_called(here, "Cut into rounds"))
    assert loop[1:4] == ["decomposed but not hidden", "unrolled", "2"]
    assert loop[5:9] == ["8.000", "2.000", "20.000", "75.0"]
    told = [row[:4] for row in rows(here.all("table")[1])]
    assert told == [["0", "0", "0:4", "yes"], ["1", "1", "4:8", "yes"]]
    assert "TF264" in section(page, "findings").text


def test_rounds_of_programs_without_a_trace_are_told() -> None:
    module = rounds.windowed(rounds.synchronous)
    page = page_of(Run(Evidence(untraced(), {7: module}), ("a",)))
    assert "source order only" in section(page, "rounds").text
    assert "not available, because" in section(page, "rounds").text


def test_a_page_without_rounds_has_no_section_on_them() -> None:
    assert all(node.attributes["id"] != "run0-rounds" for node in page_of(two_rounds().run()).all("section"))


def test_a_page_on_a_window_explains_what_the_annotation_names(tmp_path: Path) -> None:
    run = opened(tmp_path, card(0), card(1))
    page = page_of(run, Asked(window="forward#1"))
    assert "The window forward#1 took 100.0 µs" in section(page, "verdict").text
    assert "--window 'forward#1'" in section(page, "method").text
    assert "--window 'forward#1'" in section(page, "what-if").text
    names = [row[0] for row in rows(table_called(page, "Costliest names on the path"))]
    assert "gemm 1" in names
    assert "gemm 0" not in names


def test_the_command_line_takes_a_window_and_a_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    opened(tmp_path, card(0), card(1))
    words = ["report", str(tmp_path), "-o", "-", "-q", "--window", "forward#1", "--plan", "world=8,ep=2"]
    assert main(words) == 0
    page = Page(capsys.readouterr().out).root
    assert "The window forward#1 took" in section(page, "verdict").text
    assert section(page, "plan").all("table")


def test_a_window_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceflowError, match="TF111"):
        opened(tmp_path, card(0), card(1)).report(tmp_path / "report.html", window="backward")
    assert not (tmp_path / "report.html").exists()


def test_a_plan_is_told_with_what_differs_first(tmp_path: Path) -> None:
    plan = plan_step(ParallelPlan(world=8, ep=2))
    page = page_of(opened(tmp_path, card(0), card(1)), Asked(plan=plan))
    told = rows(table_called(section(page, "plan"), "Plan against trace"))
    assert told[0] == ["differs", "ranks", "the run", "8", "2"]
    assert [row[0] for row in told] == sorted(
        (row[0] for row in told), key=["differs", "cannot be told", "agrees"].index
    )
    assert "differ," in section(page, "plan").text


def test_a_whole_capture_says_how_to_look_at_less() -> None:
    assert "Nothing marks steps" in section(page_of(two_rounds().run()), "verdict").text
    assert "It holds 3 steps" in section(page_of(steps(10, 12, 17).run()), "verdict").text
    assert "--step" not in section(page_of(steps(10, 12, 17).run(), Asked(1)), "verdict").text
    assert "Nothing marks" not in section(page_of(steps(10).run()), "verdict").text


def first_screen(page: Node) -> dict[str, list[str]]:
    """The headings of the first screen, each with the entries below it."""
    columns = [node for node in section(page, "verdict").all("div") if node.all("h3") and not node.classes]
    return {column.all("h3")[0].text: [one.text for one in column.all("li")] for column in columns}


def test_what_would_shorten_it_comes_first_where_something_does() -> None:
    first = first_screen(page_of(two_rounds().run()))
    assert list(first) == ["What to do next: what would shorten it most", "What stands out"]
    assert [text[1:8] for text in first["What to do next: what would shorten it most"]] == ["8.000 m"] * 3
    assert [text[:5] for text in first["What stands out"]] == ["TF201", "TF202"]


def test_what_costs_most_comes_first_where_no_change_saves_much() -> None:
    builder = Builder()
    compute, network = builder.lane(0, "stream 0", 0), builder.lane(0, "stream 1", 0)
    builder.event(compute, 0, MS // 2, "before", Kind.COMPUTE)
    builder.event(network, MS, 90 * MS, "nccl", Kind.COMMUNICATION)
    builder.event(compute, 90 * MS, 91 * MS, "after", Kind.COMPUTE)
    first = first_screen(page_of(builder.run()))
    assert list(first) == ["What to do next: what costs most", "What would shorten it"]
    exposed, idle = first["What to do next: what costs most"]
    assert exposed.startswith("89.00 ms97.8 % of the window TF201 98% of the window is exposed communication See which")
    assert idle.startswith("89.00 ms97.8 % of the window TF223")
    assert [text[1:8] for text in first["What would shorten it"]] == ["1.000 m", "500.0 µ"]
