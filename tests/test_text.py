"""Text for a terminal: the figures that are shown, where they stand, and what becomes of names."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kineto_builder import KinetoTrace
from rich.cells import cell_len
from sources import ROOT

from traceflow.cli import main
from traceflow.report.tables import Rows, printed
from traceflow.report.text import render
from traceflow.report.units import TimeUnit, duration_text, share_text, size_text, unit_for

CASES = ROOT.parent / "shared" / "cases"


@pytest.mark.parametrize(
    ("largest_ns", "name", "text"),
    [
        (0, "us", "0.000"),
        (99_999, "us", "99.999"),
        (100_000, "us", "100.00"),
        (9_999_999, "us", "10,000.0"),
        (10_000_000, "ms", "10.000"),
        (9_999_000_000, "ms", "9,999.0"),
        (10_000_000_000, "s", "10.000"),
        (86_400_000_000_000, "s", "86,400.0"),
        (-162_200, "us", "-162.20"),
    ],
)
def test_a_unit_suits_the_largest_figure(largest_ns: int, name: str, text: str) -> None:
    unit = unit_for([1, None, largest_ns])
    assert (unit.name, unit.text(largest_ns)) == (name, text)


def test_what_is_unknown_is_never_zero() -> None:
    assert TimeUnit("us", 1_000, 3).text(None) == "n/a"
    assert share_text(None, 10) == share_text(0, 0) == size_text(None) == "n/a"
    assert unit_for([None]).text(0) == "0.000"


@pytest.mark.parametrize(
    ("ns", "text"), [(162_200, "162.200 us"), (8_812_200, "8,812.200 us"), (-12_000_000, "-12.000 ms")]
)
def test_one_duration(ns: int, text: str) -> None:
    assert duration_text(ns) == text


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0 B"),
        (1023, "1,023 B"),
        (1024, "1.0 KiB"),
        (352_321_536, "336.0 MiB"),
        (2**40, "1.0 TiB"),
        (2**60, "1,048,576.0 TiB"),
    ],
)
def test_a_size(size_bytes: int, text: str) -> None:
    assert size_text(size_bytes) == text


@given(st.lists(st.tuples(st.integers(0, 10**9), st.text(max_size=300)), max_size=5))
def test_a_table_fits_and_keeps_its_figures(rows: list[tuple[int, str]]) -> None:
    text = printed([Rows(("took", "name"), [(f"{ns:,}", name) for ns, name in rows])], width=40, color=False)
    lines = text.splitlines()
    assert len(lines) == 2 + len(rows)
    assert all(cell_len(line) <= 40 and line == line.rstrip() for line in lines)
    assert [line.split()[0] for line in lines[2:]] == [f"{ns:,}" for ns, _ in rows]


def test_names_are_neither_markup_nor_commands_to_the_terminal() -> None:
    text = printed([Rows(("took", "name"), [("1", "[bold]a[/bold] \x1b[31mred\x1b[0m")])], width=80, color=False)
    assert "[bold]a[/bold] \\x1b[31mred\\x1b[0m" in text
    assert "\x1b" not in text


def segment(start_ns: int, duration_ns: int, kind: str, name: str, **other: Any) -> dict[str, Any]:
    """One segment of a path; on device 0 of rank 0 unless told otherwise."""
    base = {"rank": 0, "device": 0, "lane": "stream 7", "source": None, "edge": "stream-order", "waiting_for": None}
    return {"start_ns": start_ns, "duration_ns": duration_ns, "kind": kind, "name": name, **base, **other}


def document(kind: str, result: dict[str, Any], **other: Any) -> dict[str, Any]:
    """A result in the plainest envelope."""
    quality = {
        "verdict": "good",
        "reasons": [],
        "events_read": 5,
        "events_kept": 5,
        "events_repaired": 0,
        "events_dropped": 0,
        "notes": [],
    }
    quality |= {"repaired_by_reason": {}, "dropped_by_reason": {}}
    envelope: dict[str, Any] = {
        "kind": kind,
        "inputs": ["runs/a"],
        "request": {},
        "epoch": None,
        "skipped": [],
        "findings": [],
    }
    return {**envelope, "data_quality": quality, "result": result, **other}


def path_of(*segments: dict[str, Any], **other: Any) -> dict[str, Any]:
    """A critical path in its envelope."""
    end_ns = segments[-1]["start_ns"] + segments[-1]["duration_ns"]
    by_kind: dict[str, int] = {}
    for row in segments:
        by_kind[row["kind"]] = by_kind.get(row["kind"], 0) + row["duration_ns"]
    window = {"start_ns": segments[0]["start_ns"], "end_ns": end_ns}
    makespan = end_ns - window["start_ns"]
    result = {"window": window, "makespan_ns": makespan, "segments": list(segments), "by_kind_ns": by_kind}
    return document("critical-path", {**result, "by_rank_ns": {"0": makespan}, "error_ns": 0, **other})


def test_neighbours_of_a_path_are_joined_and_the_longest_shown_in_order_of_time() -> None:
    host = {"device": None, "lane": "thread 1"}
    text = render(
        path_of(
            segment(0, 2_000, "host", "aten::empty", **host),
            segment(2_000, 5_000, "host", "aten::mm", **host),
            segment(7_000, 1_000, "launch", "gemm"),
            segment(8_000, 40_000, "compute", "gemm"),
            segment(48_000, 10_000, "compute", "gemm"),
            segment(58_000, 2_000, "transfer", "nccl", waiting_for={"rank": 3, "device": 1}),
        ),
        top=3,
    )
    pieces = text.partition("Longest pieces")[2].splitlines()[3:6]
    assert [line.split() for line in pieces] == [
        ["0.000", "7.000", "11.7", "%", "host", "0:host", "71%", "aten::mm,", "29%", "aten::empty"],
        ["8.000", "50.000", "83.3", "%", "compute", "0:0", "gemm"],
        ["58.000", "2.000", "3.3", "%", "transfer", "0:0", "nccl", "(last:", "3:1)"],
    ]
    assert "and 1 shorter ones, together 1.000 us" in text


def test_a_path_is_summed_by_name() -> None:
    rows = [
        segment(0, 3_000, "compute", "gemm"),
        segment(3_000, 1_000, "idle", "gemm"),
        segment(4_000, 4_000, "compute", "gemm"),
    ]
    text = render(path_of(*rows))
    names = text.partition("The path by name (us)")[2].splitlines()[3:5]
    assert [line.split() for line in names] == [
        ["7.000", "87.5", "%", "compute", "gemm"],
        ["1.000", "12.5", "%", "idle", "before", "gemm"],
    ]


def test_kinds_stand_in_order_of_their_time() -> None:
    text = render(path_of(segment(0, 1_000, "host", "a"), segment(1_000, 3_000, "compute", "b")))
    assert text.index("compute  3.000  75.0 %") < text.index("host     1.000  25.0 %")


def test_slack_names_the_least_above_zero_and_leaves_blocking_calls_out() -> None:
    rows = [("a", 0), ("b", 7_000), ("c", 2_000), ("sync", None)]
    rows += [("b", 9_000)]
    slack = [{"rank": 0, "device": 0, "lane": "l", "name": name, "start_ns": 0, "slack_ns": ns} for name, ns in rows]
    text = render(path_of(segment(0, 9_000, "compute", "a"), slack=slack))
    assert "1 of 4 slices have none" in text
    assert text.index("2.000       1    0:0  c") < text.index("7.000       2    0:0  b")
    assert "sync" not in text


def test_what_is_unknown_is_written_with_its_reason() -> None:
    participant = {"rank": 0, "device": None, "compute_ns": 4_000, "copy_ns": None, "busy_ns": 0, "exposed_ns": 0}
    result = {
        "window": {"start_ns": 0, "end_ns": 4_000},
        "per_participant": [{**participant, "overlapped_ns": 0, "idle_ns": None, "exposed_share": 0.0}],
        "removable": {"transfer_ns": None, "communication_ns": None},
        "by_purpose": [],
        "overlaps": [],
        "collectives": [],
        "point_to_point": [],
        "unmatched": [{"rank": 0, "device": None, "name": "nccl", "reason": "its group is unknown"}] * 2,
    }
    text = render(
        document("communication", result, skipped=[{"what": "/result/removable", "reason": "1 call is unsplit"}])
    )
    assert "Removable (modelled by replay)\nn/a (1 call is unsplit)\n" in text
    assert "0:host    4.000   n/a  0.000" in text
    assert "2 calls stay whole: its group is unknown\ncalls  name\n-----------\n    2  nccl\n" in text


def test_evidence_and_findings_are_told() -> None:
    quality = {"verdict": "limited", "events_read": 9, "events_kept": 7, "events_repaired": 1, "events_dropped": 5}
    quality |= {"repaired_by_reason": {"nesting": 1}, "dropped_by_reason": {"a": 2, "b, c": 3}}
    quality["notes"] = [
        {"code": "TF303", "text": "order unknown", "affects": ["/result/segments"]},
        {"code": "TF309", "text": "nesting repaired", "affects": []},
    ]
    quality["reasons"] = ["order unknown"]
    finding = {"code": "TF201", "severity": "warning", "title": "exposed", "cost_ns": 5_000, "provenance": "measured"}
    text = render(
        {
            **path_of(segment(0, 9_000, "compute", "a")),
            "data_quality": quality,
            "findings": [{**finding, "suggestion": "send less", "evidence": {}}],
        }
    )
    assert "Limited (TF303): order unknown (~ marks figures that this touches)\n" in text
    assert "Evidence: limited. 9 events read, 7 kept, 1 repaired, 5 left out\nTF309 nesting repaired\n" in text
    assert text.count("order unknown") == 1
    assert "/result" not in text
    assert "TF201 warning: exposed (measured, 5.000 us)\n      send less\n" in text


@pytest.mark.parametrize(
    ("saved_ns", "said"), [(2_000, "saves          2.000 us, 20.0 %"), (-5_000, "costs          5.000 us, 50.0 %")]
)
def test_a_what_if_says_what_it_saves_or_costs(saved_ns: int, said: str) -> None:
    result = {"window": {"start_ns": 0, "end_ns": 10_000}, "baseline_ns": 10_000, "predicted_ns": 10_000 - saved_ns}
    result |= {"low_ns": 7_000, "high_ns": 9_500, "saved_ns": saved_ns, "exact": saved_ns < 0}
    result |= {"segments": [segment(0, 10_000 - saved_ns, "compute", "a")]}
    text = render(document("what-if", result, request={"step": 3, "scale": ["a=0.8"], "drop": ["b"], "rank": [1]}))
    assert said in text
    assert "What if: step 3, runs/a" in text
    assert "--scale a=0.8 --drop b --rank 1" in text
    assert ("a bound" in text) is (saved_ns > 0)
    assert ("between        7.000 and 9.500 us" in text) is (saved_ns > 0)


def test_colour_only_where_it_is_wanted() -> None:
    path = path_of(segment(0, 9_000, "compute", "a"))
    assert "\x1b[" in render(path, color=True)
    assert "\x1b" not in render(path)


QUESTIONS = {
    "summary": ("show", "summary", "traces"),
    "critical-path": ("show", "critical-path", "traces", "--slack"),
    "communication": ("show", "communication", "traces"),
    "what-if": ("what-if", "traces", "--scale", "long_matmul=0"),
}


@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.parametrize("case", ["small_2_hidden_launch", "small_3_long_sync", "small_4_half_the_ranks"])
def test_a_case_is_shown_as_expected(
    case: str,
    question: str,
    golden: Callable[[str, str], None],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if not CASES.exists():
        pytest.skip("no cases beside the checkout")
    monkeypatch.chdir(CASES / case)
    monkeypatch.setenv("COLUMNS", "80")
    assert main(QUESTIONS[question]) == 0
    golden(f"{case}/{question}.txt", capsys.readouterr().out)


def test_a_gate_is_told_in_few_digits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    card = KinetoTrace()
    card.kernel("gemm", 9_000, 109_000, call=(2_000, 5_400))
    card.all_reduce(109_000, 142_333, call=(6_000, 7_000))
    card.write(tmp_path / "rank0.json")
    assert main(["check", str(tmp_path / "rank0.json"), "--require", "exposed_share < 1 / 7"]) == 3
    told = capsys.readouterr().out
    assert "does not hold: it is 0.237" in told
    assert not re.search(r"\d[.]\d{7}", told)


def test_durations_of_one_line_are_in_one_unit() -> None:
    figures = {"by_kind_ns": {"host": 1_733_501_000, "launch": 21_000}, "makespan_ns": 1_733_522_000}
    result = {"questions": {"critical-path": {"figures": figures, "left_out": {}}}, "unavailable": []}
    text = render(document("all", {**result, "left_out": {"findings": {}}}))
    assert "by kind: host 1,733.5 ms, launch 0.0 ms" in text
