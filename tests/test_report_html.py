"""The HTML report as text: what it holds, in which order, and that nothing in a trace can break it."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from handmade import HOSTILE, MS, Builder, hostile, steps, two_cards, two_rounds
from hypothesis import given
from hypothesis import strategies as st
from pages import Page, page_of, rows, section, table_called, timeline_of
from test_memory import executing, small

from traceflow.errors import TraceflowError
from traceflow.evidence import Evidence
from traceflow.report.definitions import PROVENANCES
from traceflow.report.figures import path_figure
from traceflow.report.html import Part, called, render_comparison, render_report, write_comparison, write_report
from traceflow.report.names import figure_called, printable
from traceflow.report.subject import Asked
from traceflow.report.timeline import merged, timeline
from traceflow.report.verdict import whole_percents
from traceflow.run import Run
from traceflow.trace.model import Kind, LaneKind
from traceflow.trace.untraced import untraced


def test_the_sections_come_in_order() -> None:
    names = [
        "verdict",
        "findings",
        "what-if",
        "steps",
        "timeline",
        "path",
        "communication",
        "budget",
        "quality",
        "method",
    ]
    assert [node.attributes["id"] for node in page_of(two_rounds().run()).all("section")] == [
        f"run0-{n}" for n in names
    ]


def test_the_verdict_is_one_sentence() -> None:
    page = page_of(two_rounds().run())
    (sentence,) = page.all("p", "verdict")
    assert sentence.text == "The whole capture took 22.00 ms: 91 % compute, 9 % transfer."
    (described,) = [m for m in page.all("meta") if m.attributes.get("name") == "description"]
    assert " ".join(described.attributes["content"].split()) == sentence.text


def test_the_three_largest_savings_say_what_they_suppose() -> None:
    page = page_of(two_rounds().run())
    saved = page.all("ol", "savings")[0].all("li")
    assert [row.all("p", "if")[0].text for row in saved] == [
        "if a1 took no time",
        "if b2 took no time",
        "if nobody were late",
    ]
    assert all(
        "\N{MINUS SIGN}8.000 ms" in row.text and "exact" in row.text and "It supposes that" in row.text for row in saved
    )


def test_ten_savings_are_predicted_in_advance_and_can_be_predicted_again() -> None:
    page = page_of(two_rounds().run())
    panel = rows(table_called(page, "One change at a time"))
    assert [row[:4] for row in panel[:3]] == [
        ["a1 took no time", "8.000", "14.000", "36.4"],
        ["b2 took no time", "8.000", "14.000", "36.4"],
        ["nobody were late", "8.000", "14.000", "36.4"],
    ]
    assert [row[-1] for row in panel[:3]] == ["--scale '^a1$=0'", "--scale '^b2$=0'", "--drop @rendezvous"]
    assert 3 < len(panel) <= 10
    assert "traceflow what-if" in section(page, "what-if").text


def test_the_first_screen_says_how_good_the_evidence_is() -> None:
    page = page_of(two_rounds().run())
    (evidence,) = page.all("p", "evidence")
    assert evidence.text == "Evidence: good. 8 of 8 events are kept. See data quality."
    assert section(page, "verdict").all("p", "evidence") == [evidence]


def test_captures_have_telling_titles() -> None:
    assert called("/jobs/run7/traces") == "run7/traces"
    assert called("/jobs/run7/traces/") == "run7/traces"
    assert called("/jobs/run7") == "run7"
    assert called("traces") == "traces"
    assert called("/jobs/run7/plugins/profile") == "run7/plugins/profile"


def test_a_figure_that_is_missing_is_called_by_its_name() -> None:
    assert figure_called("/result/best_cases/0/predicted_ns") == "predicted of best cases"
    assert figure_called("/result/operations/*/flops") == "FLOPs of operations"
    assert "/result" not in section(page_of(two_cards().run()), "quality").text


def test_a_wait_of_a_lane_knows_whom_it_is_for() -> None:
    data = timeline_of(page_of(two_rounds().run()))
    first = data["lanes"][0]
    waits = [i for i, kind in enumerate(first["kind"]) if data["kinds"][kind] == "wait"]
    assert [data["participants"][first["who"][i]] for i in waits] == ["rank 1, device 0, stream 7"]
    assert {first["who"][i] for i in range(len(first["kind"])) if i not in waits} == {-1}
    path = data["path"]
    assert [data["participants"][i] if i >= 0 else None for i in path["who"]] == [
        None,
        "rank 0, device 0",
        None,
        "rank 1, device 0",
    ]


def test_the_drawn_path_tells_what_the_program_tells() -> None:
    program = small()
    run = Run(Evidence(executing(program), {7: program}), ("a",))
    segments, data = run.critical_path().segments, timeline_of(page_of(run))
    expected = [told for told in zip(segments.operation, segments.scope, segments.source, strict=True) if any(told)]
    assert [told_of(data, i) for i in data["path"]["written"] if i >= 0] == expected
    assert any(source for _, _, source in expected)


def told_of(data: dict[str, Any], number: int) -> tuple[str | None, ...]:
    """What the programs tell of a row."""
    return tuple(None if name < 0 else data["names"][name] for name in data["written"][number])


def test_slices_off_the_path_tell_what_the_program_tells() -> None:
    program = small()
    run = Run(Evidence(executing(program), {7: program}), ("a",))
    data = timeline_of(page_of(run))
    lanes = [lane for lane in data["lanes"] if "written" in lane]
    told = {
        data["names"][name]: told_of(data, number)
        for lane in lanes
        for name, number in zip(lane["name"], lane["written"], strict=True)
        if number >= 0
    }
    assert told
    for row, name in enumerate(program.instruction_name):
        if name in told:
            assert told[name][1:] == (program.operation_name[row] or None, program.source[row] or None)


def test_programs_without_a_trace_are_explained_by_what_the_compiler_alone_decides() -> None:
    run = Run(Evidence(untraced(), {7: small()}), ("dump",))
    page = page_of(run)
    names = [node.attributes["id"] for node in page.all("section")]
    assert names == [f"run0-{name}" for name in ("verdict", "findings", "memory", "quality", "method")]
    assert page.all("p", "verdict")[0].text == "1 compiled program; jit_step needs 22 B at its peak."
    assert "Evidence: limited to programs. Nothing is known of when anything ran" in page.text
    assert [link.text for link in page.all("nav")[0].all("a")] == ["verdict", "findings", "memory", "quality", "method"]
    with pytest.raises(TraceflowError, match="TF122"):
        render_report(run, Asked(0))


def test_many_times_the_first_is_no_percentage() -> None:
    parts = [Part("first", two_cards().run()), Part("second", steps(10_000, 12_000).run())]
    changes = [row[4] for row in rows(Page(render_comparison(parts)).root.all("table")[0])]
    assert changes[0] == "> 1,000"


def test_a_step_is_explained_and_compared_with_the_spread() -> None:
    page = page_of(steps(10, 12, 17).run(), Asked(1))
    assert page.all("p", "verdict")[0].text.startswith("Step 1 took 12.00 ms: 92 % compute")
    assert "Within the spread of steps (7.000 ms)" in page.all("ol", "savings")[0].text
    assert "the median of 3 steps, from 10.00 ms to 17.00 ms; spread 7.000 ms." in section(page, "steps").text


def test_the_path_is_told_by_kind_and_by_stretch() -> None:
    page = page_of(two_rounds().run())
    assert [row[:3] for row in rows(table_called(page, "By kind"))] == [
        ["compute", "20.000", "90.9"],
        ["transfer", "2.000", "9.1"],
    ]
    stretches = rows(table_called(page, "Longest stretches of the path"))
    assert [(*row[:2], *row[4:6], row[8]) for row in stretches] == [
        ("0.000", "10.000", "a1", "rank 0, device 0", ""),
        ("11.000", "10.000", "b2", "rank 1, device 0", ""),
        ("10.000", "1.000", "all-reduce", "rank 1, device 0", "rank 0, device 0"),
        ("21.000", "1.000", "all-reduce", "rank 0, device 0", "rank 1, device 0"),
    ]


def test_communication_is_sorted_by_what_is_exposed() -> None:
    page = page_of(two_rounds().run())
    collectives = rows(table_called(page, "Most exposed collectives"))
    assert [row[6:9] for row in collectives] == [["8,000.0", "1,000.0", "9,000.0"]] * 2
    assert [row[5] for row in collectives] == ["rank 0, device 0", "rank 1, device 0"]
    participants = rows(table_called(page, "Participants"))
    assert [row[1:6] for row in participants] == [["12.000", "10.000", "10.000", "0.000", "0.000"]] * 2


def test_what_is_unknown_says_why() -> None:
    page = page_of(two_cards().run())
    assert "Steps: not available, because the trace marks no steps." in section(page, "steps").text
    gaps = rows(table_called(page, "Not available"))
    assert ["steps", "the trace marks no steps"] in gaps


def test_a_host_without_devices_has_no_device_figures() -> None:
    builder = Builder()
    builder.event(builder.lane(0, "main"), 0, 10, "work", Kind.HOST)
    page = page_of(builder.run())
    (row,) = rows(table_called(page, "Participants"))
    assert row[0] == "rank 0, host"
    assert row[1:5] == ["0.010", "0.000", "0.000", "0.000"]
    assert "Copy, idle: not available, because the rank has no device events." in section(page, "communication").text


@pytest.mark.parametrize(("kind", "simulated"), [(LaneKind.WORKER, True), (LaneKind.STREAM, False)])
def test_virtual_devices_are_no_evidence_about_accelerators(kind: LaneKind, *, simulated: bool) -> None:
    builder = Builder()
    builder.event(builder.lane(0, "worker", 0, kind), 0, 10, "dot", Kind.COMPUTE)
    page = page_of(builder.run())
    assert ("TF206" in section(page, "verdict").text) == simulated
    assert ("simulation and no evidence about accelerators" in section(page, "verdict").text) == simulated
    assert ("TF206" in section(page, "findings").text) == simulated


def test_every_figure_of_a_table_has_a_unit_a_definition_and_a_provenance() -> None:
    numbers = 0
    for table in page_of(steps(10, 12, 17).run(), Asked(1)).all("table"):
        for heading in table.all("th", "number"):
            assert heading.all("small")[0].text
            assert len(heading.all("span", "tip")[0].text) > 10
            assert heading.all("b")[0].text in set(PROVENANCES)
            numbers += 1
    assert numbers > 10


def test_every_figure_in_a_sentence_has_a_unit_a_definition_and_a_provenance() -> None:
    page = page_of(two_rounds().run())
    figures = [node for p in page.all("p") for node in p.all("span", "figure")]
    assert len(figures) > 8
    for node in figures:
        assert node.attributes["data-provenance"] in set(PROVENANCES)
        assert len(node.all("span", "tip")[0].text) > 10
        shown = "".join(child for child in node.children if isinstance(child, str)).strip()
        assert re.fullmatch(r"exact|bound|\u2212?[\d.,]+\xa0(ns|µs|ms|s|%( \w+)?)", shown)


def test_the_downloaded_results_are_those_of_the_analyzers() -> None:
    run = two_rounds().run()
    (link,) = page_of(run).all("a", "download")
    kind, packed = link.attributes["href"].split(",")
    assert kind == "data:application/gzip;base64"
    results = json.loads(gzip.decompress(base64.b64decode(packed)))
    assert set(results) == {"summary", "critical-path", "communication", "savings", "budget", "stragglers"}
    assert results["critical-path"]["result"] == json.loads(json.dumps(run.critical_path().to_dict()))
    assert results["critical-path"]["schema_version"] == 1


def test_the_drawn_path_tiles_the_window() -> None:
    data = timeline_of(page_of(two_rounds().run()))
    path = data["path"]
    starts = np.cumsum(path["start"]).tolist()
    assert starts == [0, 10 * MS, 11 * MS, 21 * MS]
    assert path["length"] == [10 * MS, MS, 10 * MS, MS]
    assert [data["names"][i] for i in path["name"]] == ["a1", "all-reduce", "b2", "all-reduce"]


def test_the_drawn_lanes_are_the_slices() -> None:
    data = timeline_of(page_of(two_rounds().run()))
    first = data["lanes"][0]
    assert (first["group"], first["label"]) == ("rank 0, device 0", "stream 7")
    assert np.cumsum(first["start"]).tolist() == [0, 10 * MS, 11 * MS, 13 * MS, 21 * MS]
    assert [data["kinds"][kind] for kind in first["kind"]] == ["compute", "transfer", "compute", "wait", "transfer"]
    assert first["path"] == [1, 0, 0, 0, 1]
    assert first["slack"] == [0, 8 * MS, 8 * MS, -1, 0]


def test_the_page_asks_no_network_for_anything() -> None:
    text = render_report(hostile().run(HOSTILE[0], "\ud800"))
    page = Page(text).root
    (policy,) = [m.attributes["content"] for m in page.all("meta") if "http-equiv" in m.attributes]
    assert policy.startswith("default-src 'none'; ")
    links = [node.attributes[name] for node in page._below() for name in ("src", "href") if name in node.attributes]
    assert all(link.startswith(("#", "data:")) for link in links)
    assert "url(" not in text


def test_only_the_scripts_and_styles_of_the_page_itself_are_allowed() -> None:
    text = render_report(hostile().run(HOSTILE[0], "\ud800"))
    for tag in ("script", "style"):
        (body,) = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(body.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in text
    assert "style=" not in re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL)


def test_hostile_names_stay_text() -> None:
    text = render_report(hostile().run(HOSTILE[0], "\ud800"))
    page = Page(text).root
    assert page.all("img") == []
    assert [node.attributes.get("type") for node in page.all("script")] == ["application/json", None]
    assert {name for node in page._below() for name in node.attributes if name.startswith("on")} == set()
    assert "{{ 7 * 7 }}" in page.text
    assert not set(text) & {"\u202e", "\u2066", "\ud800"}
    assert len(text.encode("utf-8")) < 400_000


def test_names_in_the_timeline_are_shown_as_they_are_or_escaped() -> None:
    names = timeline_of(page_of(hostile().run(HOSTILE[0], "\ud800")))["names"]
    assert HOSTILE[0] in names
    assert "\\u202egnp.exe\\u2066" in names
    assert all(len(name) <= 2000 for name in names)


def test_the_same_evidence_gives_the_same_bytes() -> None:
    builder = hostile()
    expected = render_report(builder.run("\ud800"))
    assert render_report(builder.run("\ud800")) == expected
    last = len(builder.events) - 1
    builder.events.reverse()
    builder.calls = [(last - event, sequence, member, size) for event, sequence, member, size in builder.calls]
    assert render_report(builder.run("\ud800")) == expected


def test_a_report_is_not_overwritten_unless_asked(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text("mine")
    with pytest.raises(TraceflowError, match="TF110"):
        write_report(two_cards().run(), path)
    assert path.read_text() == "mine"
    assert write_report(two_cards().run(), path, force=True) == path
    assert path.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert list(tmp_path.iterdir()) == [path]


def test_a_report_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(TraceflowError, match="TF114"):
        write_report(two_cards().run(), tmp_path / "absent" / "report.html")
    with pytest.raises(TraceflowError, match="TF111"):
        write_report(two_cards().run(), tmp_path / "report.html", Asked(3))
    (tmp_path / "folder").mkdir()
    with pytest.raises(TraceflowError, match="TF114"):
        write_report(two_cards().run(), tmp_path / "folder", force=True)
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_two_runs_are_compared(tmp_path: Path) -> None:
    parts = [Part("before", steps(10, 12, 17).run(), Asked(1)), Part("after", steps(6, 8, 9).run(), Asked(1))]
    page = Page(write_comparison(parts, tmp_path / "both.html").read_text(encoding="utf-8")).root
    assert [node.attributes["id"] for node in page.all("article")] == ["run0", "run1"]
    table = page.all("section")[0].all("table")[0]
    assert rows(table)[0] == ["window", "12.000", "8.000", "-4.000", "-33.3", "within the spread of steps", "measured"]
    assert ["removable transfer", "0.000", "0.000", "0.000", "n/a", "", "modelled"] in rows(table)


def test_runs_of_different_aims_are_not_compared() -> None:
    made = [(10, "product"), (20, "experts"), (11, "product"), (24, "experts"), (7, "alone")]
    parts = [Part(f"{aim} {ms}", steps(ms, ms, ms).run(), Asked(1), aim) for ms, aim in made]
    tables = Page(render_comparison(parts)).root.all("section")[0].all("table")
    windows = [next(row for row in rows(table) if row[0] == "window") for table in tables]
    assert [row[1:5] for row in windows] == [
        ["10.000", "11.000", "1.000", "10.0"],
        ["20.000", "24.000", "4.000", "20.0"],
    ]


def test_a_page_of_several_runs_has_no_id_twice() -> None:
    page = Page(render_comparison([Part("x", two_cards().run()), Part("x", two_rounds().run())])).root
    ids = [node.attributes["id"] for node in page._below() if "id" in node.attributes]
    assert len(ids) == len(set(ids))
    assert {n.attributes["data-timeline"] for n in page.all("button", "jump")} <= set(ids)


def crowded(events: int) -> Builder:
    """Many short kernels on one stream, each with a name of its own."""
    builder = Builder()
    stream = builder.lane(0, "stream 7", 0)
    for i in range(events):
        builder.event(stream, 100 * i, 100 * i + 60, f"kernel_{i:06}", Kind.COMPUTE)
    return builder


def test_a_large_trace_makes_a_small_page() -> None:
    run = crowded(60_000).run()
    assert len(render_report(run)) < 8_000_000
    drawn = timeline(run.trace, run.graph(), run.critical_path().segments, run.written, budget=2_000)
    assert drawn.rows <= 2_000
    assert drawn.merged_below_ns == 4096  # 31 cells of 2048 ns would hold 2929 blocks, half as many hold 1465
    data: Any = drawn.data
    assert sum(data["lanes"][0]["count"]) == 60_000
    assert len(json.dumps(drawn.data)) < 700_000


def test_a_merged_block_says_how_much_of_it_is_covered() -> None:
    run = crowded(1_000).run()
    drawn = timeline(run.trace, run.graph(), run.critical_path().segments, run.written, budget=10)
    data: Any = drawn.data
    assert all(59 <= share <= 61 for share in data["lanes"][0]["covered"])


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 500), st.integers(1, 90)), min_size=1, max_size=80),
    st.integers(1, 40),
)
def test_merging_loses_nothing(parts: list[tuple[int, int, int]], budget: int) -> None:
    lane, start, length = (np.array(column) for column in zip(*sorted(parts), strict=True))
    blocks = merged(lane, start, start + length, budget)
    assert len(blocks.first) <= max(budget, len(set(lane.tolist())))
    assert blocks.first[0] == 0
    for rows_of in np.split(np.arange(len(lane)), blocks.first[1:]):
        assert len(set(lane[rows_of].tolist())) == 1
        assert len(rows_of) == 1 or length[rows_of].max() < blocks.threshold_ns
        assert start[rows_of].max() - start[rows_of].min() < blocks.threshold_ns


@given(st.lists(st.integers(0, 10**12), min_size=1, max_size=9))
def test_percentages_sum_to_a_hundred(parts: list[int]) -> None:
    percents = whole_percents(parts)
    assert sum(percents) == (100 if sum(parts) else 0)
    assert all(abs(p - 100 * part / max(sum(parts), 1)) < 1 for p, part in zip(percents, parts, strict=True))


@given(st.text(), st.integers(3, 50))
def test_printable_names_are_short_and_visible(text: str, limit: int) -> None:
    shown = printable(text, limit)
    assert len(shown) <= 10 * limit
    assert shown == shown.encode("utf-8").decode("utf-8")
    assert not re.search(r"[\x00-\x1f\u200e\u200f\u202a-\u202e\u2028\u2029\u2066-\u2069]", shown)


def test_a_real_trace_of_two_chips(corpus: Any) -> None:
    import traceflow

    text = render_report(traceflow.open(corpus("xplane/tpu_2chips_a.trace.json.gz")))
    page = Page(text).root
    assert len(text) < 3_000_000
    assert "rank 0, device 1" in [row[0] for row in rows(table_called(page, "Participants"))]
    data = timeline_of(page)
    assert sum(data["path"]["length"]) == data["duration_ns"]


def test_the_figure_of_a_path_has_one_bar_per_segment() -> None:
    figure = path_figure(two_rounds().run().critical_path())
    bars = {bar.name: (list(bar.base), list(bar.x), list(bar.y)) for bar in figure.data}
    a, b = "rank 0, device 0, stream 7", "rank 1, device 0, stream 7"
    assert bars == {"compute": ([0, 11], [10, 10], [a, b]), "transfer": ([10, 21], [1, 1], [b, a])}
    assert figure.layout.title.text == "Critical path, 22.000 ms"


def test_the_figure_of_a_long_path_says_what_it_leaves_out() -> None:
    figure = path_figure(crowded(3_000).run().critical_path())
    assert sum(len(bar.x) for bar in figure.data) == 4_000
    assert figure.layout.title.text.endswith("without its 1,999 shortest segments")


def test_names_of_templates_keep_their_arguments_in_a_figure() -> None:
    builder = Builder()
    builder.event(builder.lane(0, "stream 7", 0), 0, 10, "gemm<float, 128>", Kind.COMPUTE)
    (bar,) = path_figure(builder.run().critical_path()).data
    assert bar.customdata[0][0] == "gemm&lt;float, 128&gt;"


def test_the_best_cases_say_what_they_suppose_and_how_sure_they_are() -> None:
    page = page_of(two_rounds().run())
    best = [row.text for row in page.all("ul", "best-cases")[0].all("li")]
    assert best[0].startswith("With no communication it would take 12.00 ms (exact): communication takes no time")
    assert best[1].startswith("With perfect balance it would take 14.00 ms (exact): before each collective")
    assert best[2].startswith("With no launch overhead it would take 22.00 ms (exact): launch calls take no time")
