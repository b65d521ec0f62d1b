"""The verdict on the evidence of an answer, and how figures in doubt are marked."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from traceflow.quality import ORDER, quality, touching
from traceflow.report.touched import MARK, TouchedFloat, TouchedInt, has_touched, with_touched
from traceflow.report.units import duration_text, share_text, size_text, unit_for
from traceflow.result import Note, Tally

UNSURE = Note("TF303", "order unknown", ("/result/segments",))
REMARK = Note("TF301", "rank assumed")


@pytest.mark.parametrize(
    ("tally", "notes", "verdict", "reasons"),
    [
        (Tally(0, 0), (), "good", ()),
        (Tally(9, 9, {"nesting": 9}), (REMARK,), "good", ()),
        (Tally(9, 4, {}, {"metadata": 5}), (), "good", ()),
        (Tally(9, 9), (UNSURE, UNSURE), "limited", ("order unknown",)),
        (Tally(9, 9, notes=(UNSURE,)), (), "limited", ("order unknown",)),
        (Tally(9, 8, {}, {"no duration": 1}), (), "limited", ("1 of 9 events was lost: 1 no duration",)),
        (
            Tally(9, 4, {}, {"no duration": 3, "on no thread": 2}),
            (),
            "unusable",
            ("5 of 9 events were lost: 3 no duration, 2 on no thread",),
        ),
        (Tally(9, 4, {}, {"damaged event": 5}, (UNSURE,)), (), "unusable", ("order unknown",)),
        (Tally(9, 0, {}, {"metadata": 9}), (), "unusable", ("none of the 9 events is work",)),
    ],
)
def test_a_verdict_and_its_reasons(tally: Tally, notes: tuple[Note, ...], verdict: str, reasons: tuple[str]) -> None:
    judged = quality(tally, notes)
    assert (judged.verdict, judged.reasons) == (verdict, reasons)


@given(
    st.integers(0, 50),
    st.dictionaries(st.sampled_from(["no duration", "damaged event", "metadata", "counter"]), st.integers(0, 50)),
    st.lists(st.sampled_from([UNSURE, REMARK])),
)
def test_a_verdict_is_good_only_without_reasons_and_never_better_with_more_lost(
    kept: int, dropped: dict[str, int], notes: list[Note]
) -> None:
    order = ["good", "limited", "unusable"]
    judged = quality(Tally(kept + sum(dropped.values()), kept, {}, dropped), notes)
    assert (judged.verdict == "good") == (judged.reasons == ())
    worse = {**dropped, "no duration": dropped.get("no duration", 0) + 1}
    then = quality(Tally(kept + sum(worse.values()), kept, {}, worse), notes)
    assert order.index(then.verdict) >= order.index(judged.verdict)


def test_a_remark_keeps_the_figures_that_the_answer_has() -> None:
    note = Note("TF305", "ranks absent", ("/epoch", "/result/ranks", "/result/rows/*/wait_ns", *ORDER))
    answer: dict[str, Any] = {"epoch": None, "result": {"rows": [{"wait_ns": 3}], "by_kind_ns": {}, "removable": None}}
    (kept,) = touching([note, note], answer)
    assert kept.affects == ("/epoch", "/result/rows/*/wait_ns", "/result/by_kind_ns", "/result/removable")
    assert touching([note], {"result": {}})[0].affects == ()
    digest = {"result": {"questions": {"critical-path": {"figures": {"by_kind_ns": {"host": 7}, "makespan_ns": 9}}}}}
    (kept,) = touching([note], digest)
    assert kept.affects == ("/result/questions/*/figures/by_kind_ns",)
    marked = with_touched(document(digest["result"], *kept.affects))["result"]["questions"]["critical-path"]["figures"]
    assert (str(marked["by_kind_ns"]["host"]), str(marked["makespan_ns"])) == (f"7{MARK}", "9")


def document(result: dict[str, Any], *affects: str) -> dict[str, Any]:
    return {"data_quality": {"notes": [{"affects": list(affects)}]}, "result": result}


def test_figures_are_marked_where_a_pointer_leads_and_nowhere_else() -> None:
    result = {
        "window": {"start_ns": 0, "end_ns": 9},
        "rows": [{"rank": 1, "wait_ns": 5, "name": "a"}, {"rank": 2, "wait_ns": None, "name": "b"}],
        "by_kind_ns": {"host": 7},
        "makespan_ns": 9,
    }
    marked = with_touched(document(result, "/result/rows", "/result/by_kind_ns"))["result"]
    assert marked == result, "a mark changes no figure"
    assert f"{marked['rows'][0]['wait_ns']}" == f"5{MARK}"
    assert f"{marked['rows'][0]['rank']}" == "1", "the number of a rank has no unit"
    assert f"{marked['by_kind_ns']['host']:,.1f}" == f"7.0{MARK}"
    assert f"{marked['makespan_ns']}" == "9"
    assert not has_touched(with_touched(document(result, "/epoch")))
    whole = with_touched(document(result, "/result"))["result"]
    assert (str(whole["makespan_ns"]), str(whole["window"]["end_ns"])) == (f"9{MARK}", "9")


def test_one_column_of_a_table_is_marked() -> None:
    rows = {"rows": [{"wait_ns": 5, "took_ns": 6}]}
    (row,) = with_touched(document(rows, "/result/rows/*/wait_ns"))["result"]["rows"]
    assert (str(row["wait_ns"]), str(row["took_ns"])) == (f"5{MARK}", "6")


@given(st.integers(-(10**15), 10**15), st.integers(1, 10**15), st.sampled_from(["add", "sub", "mul", "truediv"]))
def test_what_follows_from_a_figure_in_doubt_is_equal_and_in_doubt(one: int, two: int, name: str) -> None:
    calculate: Callable[[Any, Any], Any] = getattr(operator, name)
    expected = calculate(one, two)
    for found in (calculate(TouchedInt(one), two), calculate(one, TouchedInt(two))):
        assert found == expected
        assert isinstance(found, TouchedInt | TouchedFloat)


def test_every_way_of_writing_a_figure_shows_the_mark() -> None:
    ns, size = TouchedInt(1_500), TouchedInt(2_048)
    assert unit_for([ns]).text(ns) == f"1.500{MARK}"
    assert duration_text(ns) == f"1.500{MARK} us"
    assert share_text(ns, 3_000) == f"50.0 %{MARK}"
    assert size_text(size) == f"2.0{MARK} KiB"
    assert sum([ns, ns]) == 3_000
    assert has_touched([sum([ns, 1])])
