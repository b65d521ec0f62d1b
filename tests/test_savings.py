"""Savings on small traces whose replays were worked out by hand."""

from __future__ import annotations

import pytest
from handmade import MS, Builder, steps, two_cards, two_rounds
from hypothesis import given
from hypothesis import strategies as st
from sources import ROOT

import traceflow as tf
from traceflow.analyzers.changes import Drop, Scale
from traceflow.analyzers.savings import Savings
from traceflow.errors import TraceflowError
from traceflow.trace.model import Kind


def saved_ms(savings: Savings) -> dict[str, float]:
    """Saved milliseconds by title."""
    return {saving.candidate.title: saving.saved_ns / MS for saving in savings.savings}


def test_two_cards_gain_from_the_late_one_and_from_the_transfer() -> None:
    # Without card 1's 9 ms, card 0 arrives at 4 and the end is 6; without the transfer it is 9.
    savings = two_cards().run().savings()
    assert saved_ms(savings) == {"b took no time": 5, "the transfer of all-reduce took no time": 2}
    assert all(saving.exact for saving in savings.savings)


def test_what_is_off_the_path_saves_nothing_and_is_not_tried() -> None:
    titles = saved_ms(two_cards().run().savings(top=100))
    assert "a took no time" not in titles
    assert "nobody were late" not in titles  # card 1 would still end at 11 ms


def test_two_rounds_gain_as_much_from_either_late_rank() -> None:
    # Without A's 10 ms, B arrives at 2: 2 + 1 + 10 + 1 = 14 ms. Without waiting, each rank works 14 ms.
    savings = two_rounds().run().savings(top=4)
    assert saved_ms(savings) == {
        "a1 took no time": 8,
        "b2 took no time": 8,
        "nobody were late": 8,
        "the transfer of all-reduce took no time": 2,
    }


def test_a_class_that_saves_no_more_than_one_name_is_left_out() -> None:
    assert "transfers took no time" not in saved_ms(two_rounds().run().savings(top=100))


def test_a_class_that_saves_more_than_each_name_is_told() -> None:
    builder = Builder()
    stream = builder.lane(0, "stream 7", 0)
    other = builder.lane(1, "stream 7", 0)
    for lane in (stream, other):
        builder.event(lane, 0, 10, "matmul", Kind.COMPUTE)
    builder.collective([stream, other], [10, 10], 13, "all-reduce")
    builder.collective([stream, other], [13, 13], 18, "all-gather")
    assert {s.candidate.title: s.saved_ns for s in builder.run().savings(top=100).savings} == {
        "matmul took no time": 10,
        "transfers took no time": 8,
        "the transfer of all-gather took no time": 5,
        "the transfer of all-reduce took no time": 3,
    }


def test_savings_are_ranked_and_cut() -> None:
    assert list(saved_ms(two_rounds().run().savings(top=1)).values()) == [8]


def test_every_saving_can_be_asked_for_again() -> None:
    run = two_rounds().run()
    rows = run.savings(top=4).to_dict()["savings"]
    assert isinstance(rows, list)
    assert [(row["option"], row["argument"]) for row in rows if isinstance(row, dict)] == [
        ("--scale", "^a1$=0"),
        ("--scale", "^b2$=0"),
        ("--drop", "@rendezvous"),
        ("--scale", "^all\\-reduce$=0"),
    ]
    assert run.what_if(Scale("^all\\-reduce$", 0)).saved_ns == 2 * MS
    assert run.what_if(Drop("@rendezvous")).saved_ns == 8 * MS


def test_a_launch_latency_is_found() -> None:
    # The launch call starts at 0, the kernel at 90: that is the whole window but for the kernel.
    builder = Builder()
    thread, stream = builder.lane(0, "main"), builder.lane(0, "stream 7", 0)
    builder.event(thread, 0, 5, "launch", Kind.CALL, 1)
    builder.event(stream, 90, 100, "kernel", Kind.COMPUTE, 1)
    savings = builder.run().savings()
    assert {s.candidate.title: s.saved_ns for s in savings.savings} == {
        "launches took no time": 90,
        "kernel took no time": 10,
    }
    assert [(finding.code, finding.cost_ns) for finding in savings.findings] == [("TF203", 90)]


def test_a_late_participant_is_a_finding() -> None:
    finding = two_rounds().run().savings().findings[0]
    assert (finding.code, finding.cost_ns, finding.provenance) == ("TF202", 8 * MS, "modelled")
    assert "36%" in finding.title


def test_names_are_matched_as_they_are() -> None:
    builder = Builder()
    stream = builder.lane(0, "stream 7", 0)
    builder.event(stream, 0, 10, "f(a)", Kind.COMPUTE)
    builder.event(stream, 10, 15, "f.a.", Kind.COMPUTE)
    builder.event(stream, 15, 18, "[f(a)]", Kind.COMPUTE)
    assert {s.candidate.title: s.saved_ns for s in builder.run().savings().savings} == {
        "f(a) took no time": 10,
        "f.a. took no time": 5,
        "[f(a)] took no time": 3,
    }


def test_what_a_step_does_between_operators_is_no_operator_to_call_less_often() -> None:
    builder = Builder()
    lane = builder.lane(0, "main")
    builder.event(lane, 0, 9 * MS, "traceflow.call", Kind.HOST)
    builder.event(lane, 6 * MS, 9 * MS, "aten::mm", Kind.HOST)
    told = {saving.candidate.title: saving.candidate.suggestion for saving in builder.run().savings().savings}
    assert "loading data" in told["traceflow.call took no time"]
    assert "call it less often" in told["aten::mm took no time"]


def test_a_saving_is_held_against_the_spread_of_steps() -> None:
    savings = steps(10, 12, 17).run().savings(step=1)
    assert savings.spread_ns == 7 * MS
    within = {s.candidate.title: (s.saved_ns // MS, s.within_spread) for s in savings.savings}
    assert within["kernel took no time"] == (11, False)
    assert within["launches took no time"] == (1, True)


def test_the_whole_capture_has_no_spread() -> None:
    savings = steps(10, 12, 17).run().savings()
    assert savings.spread_ns is None
    assert {saving.within_spread for saving in savings.savings} == {None}
    assert [gap.what for gap in savings.skipped] == ["/result/spread_ns"]


def test_a_step_that_is_not_there_is_refused() -> None:
    with pytest.raises(TraceflowError, match="TF111"):
        steps(10, 12, 17).run().savings(step=7)


def test_a_table_of_savings() -> None:
    frame = two_cards().run().savings().to_pandas()
    assert frame["saved_ns"].tolist() == [5 * MS, 2 * MS]


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(1, 50), st.integers(1, 9)), min_size=1, max_size=5))
def test_savings_are_positive_sorted_and_no_larger_than_the_window(rounds: list[tuple[int, int, int]]) -> None:
    builder = Builder()
    lanes = [builder.lane(rank, "stream 7", 0) for rank in range(2)]
    now = 0
    for i, (*work, transfer) in enumerate(rounds):
        for rank, lane in enumerate(lanes):
            builder.event(lane, now, now + work[rank], f"work {rank} {i % 3}", Kind.COMPUTE)
        arrivals = [now + work[0], now + work[1]]
        now = max(arrivals) + transfer
        builder.collective(lanes, arrivals, now, f"all-reduce {i % 2}")
    result = builder.run().savings(top=100)
    saved = [saving.saved_ns for saving in result.savings]
    assert saved == sorted(saved, reverse=True)
    assert all(0 < ns <= result.window.duration_ns for ns in saved)
    # On a path without lags, the work of one rank alone can always be saved from.
    assert saved


def test_nothing_is_exact_where_collectives_are_unsplit() -> None:
    traces = ROOT.parent / "shared" / "cases" / "small_4_half_the_ranks" / "traces"
    if not traces.exists():
        pytest.skip("the shared cases are not there")
    found = tf.open(traces).savings(top=10)
    assert found.savings
    assert not any(saving.exact for saving in found.savings)
