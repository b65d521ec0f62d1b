"""The report's section on memory: charts that hold what the result says, and tables that add up."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from handmade import HOSTILE
from pages import Node, page_of
from test_memory import executing, small

from traceflow.evidence import Evidence
from traceflow.report.memory_section import memory_section
from traceflow.run import Run

NOTHING: dict[str, Any] = {"layout": [], "shards": None}


def section_of(run: Run) -> Node:
    (found,) = [node for node in page_of(run).all("section") if node.attributes["id"] == "run0-memory"]
    return found


def test_a_page_draws_live_bytes_and_lists_what_is_alive() -> None:
    program = small()
    section = section_of(Run(Evidence(executing(program), {7: program}), ("a",)))
    (chart,) = section.all("svg", "in-use")
    *bars, kept = chart.all("rect")
    assert [float(bar.attributes["height"]) for bar in bars] == [90.91, 100, 81.82, 72.73]
    assert "kept" in kept.classes
    assert float(kept.attributes["height"]) == 72.73  # 16 of 22 bytes
    assert [title.text for title in chart.all("title")][:2] == ["a: 20 B", "b: 22 B"]
    said = section.text
    for words in ("Alive at the peak of jit_step, at b", "22 B", "model/a.py:1", "temporary", "argument"):
        assert words in said


def test_a_page_without_evidence_of_memory_has_no_such_section() -> None:
    bare = replace(small(), buffers=None)
    page = page_of(Run(Evidence(executing(bare), {7: bare}), ("a",)))
    assert "run0-memory" not in {node.attributes["id"] for node in page.all("section")}
    empty: dict[str, Any] = {"programs": [], "allocator": [], "traffic": []}
    assert memory_section(empty, NOTHING) is None


def test_long_records_stay_small_and_keep_their_peak() -> None:
    live = [{"start_ns": 1000 * i, "allocated_bytes": (7919 * i) % 1009} for i in range(1000)]
    peak = max(at["allocated_bytes"] for at in live)
    use = {
        "rank": 0, "device": 0, "source": "event", "events": 1000, "peak_bytes": peak, "peak_ns": 5,
        "reserved_peak_bytes": None, "by_category_bytes": {"parameter": 3}, "by_phase_bytes": None, "live": live,
    }  # fmt: skip
    found = memory_section({"programs": [], "allocator": [use], "traffic": []}, NOTHING)
    assert found is not None
    (chart,) = found.charts
    assert len(chart.bars) <= 400
    assert max(bar.height for bar in chart.bars) == 100
    assert abs(sum(bar.width for bar in chart.bars) - 100) < 0.5


def test_ten_thousand_buffers_are_a_table_of_the_largest_and_others() -> None:
    program = small()
    run = Run(Evidence(executing(program), {7: program}), ("a",))
    told: dict[str, Any] = run.memory().to_dict()
    row = told["programs"][0]
    row["live_at_peak"] = [{**row["live_at_peak"][0], "bytes": 10_000 - i} for i in range(10_000)]
    row["live_peak_bytes"] = sum(buffer["bytes"] for buffer in row["live_at_peak"])
    found = memory_section(told, NOTHING)
    assert found is not None
    grid = next(grid for grid in found.grids if grid.title.startswith("Alive at the peak"))
    assert len(grid.rows) == 26
    assert grid.rows[-1][0] == "9,975 others"


def test_no_name_gets_out() -> None:
    program = small()
    hostile = replace(program, name=HOSTILE[0], instruction_name=tuple(HOSTILE[:4]))
    page = page_of(Run(Evidence(executing(hostile), {7: hostile}), ("a",)))
    assert page.all("img") == []
    assert all(
        "window.harmed" not in script.text for script in page.all("script") if script.attributes.get("type") is None
    )
