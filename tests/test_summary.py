"""What a capture holds, and how long its steps took."""

from __future__ import annotations

from pathlib import Path

import pytest
from kineto_builder import KinetoTrace, opened


def test_a_summary_counts_ranks_devices_events_and_steps(tmp_path: Path) -> None:
    cards = [KinetoTrace(rank, 2) for rank in (0, 1)]
    for card in cards:
        card.step(4, 0, 10_000)
        card.host("op", 0, 8_000)
        card.kernel("a", 5_000, 15_000, call=(1_000, 2_000))
        card.device_annotation("ProfilerStep#4", 5_000, 15_000)
    answer = opened(tmp_path, *cards).summary()
    assert answer.ranks == (0, 1)
    assert answer.devices == ((0, 0), (1, 0))
    assert answer.event_count == 6
    assert answer.format == "kineto"
    assert [(step.step, step.rank, step.start_ns) for step in answer.steps] == [(4, 0, 0), (4, 1, 0)]


def test_a_step_lasts_until_the_work_that_it_launched_is_done(tmp_path: Path) -> None:
    card = KinetoTrace()
    card.step(1, 0, 10_000)
    card.host("op", 0, 8_000)
    card.kernel("a", 5_000, 35_000, call=(1_000, 2_000))
    card.step(2, 10_000, 20_000)
    card.host("op", 10_000, 18_000)
    assert [step.duration_ns for step in opened(tmp_path, card).summary().steps] == [35_000, 8_000]


def test_without_annotations_the_endpoints_are_unknown(tmp_path: Path) -> None:
    card = KinetoTrace()
    card.step(1, 0, 10_000)
    card.host("op", 0, 8_000)
    (step,) = opened(tmp_path, card).summary().steps
    assert (step.returned_ns, step.ready_ns, step.fetched_ns) == (None, None, None)


def test_steps_that_compile_are_no_steady_state(tmp_path: Path) -> None:
    card = KinetoTrace()
    for number, length in enumerate([90_000, 10_000, 14_000, 12_000]):
        card.step(number, 100_000 * number, 100_000 * number + length)
        card.host("op", 100_000 * number, 100_000 * number + length)
        card.host("TorchDynamo Cache Lookup", 100_000 * number + 1_000, 100_000 * number + 2_000)
    card.host("_compile.compile_inner (dynamo_timed)", 3_000, 80_000)
    answer = opened(tmp_path, card).summary()
    assert [step.compiled for step in answer.steps] == [True, False, False, False]
    steady = answer.steady_state
    assert steady is not None
    assert (steady.steps, steady.minimum_ns, steady.median_ns, steady.maximum_ns) == (3, 10_000, 12_000, 14_000)
    (finding,) = answer.findings
    assert (finding.code, finding.evidence) == ("TF205", {"steps": [0]})


def test_of_several_ranks_the_slowest_counts(tmp_path: Path) -> None:
    cards = [KinetoTrace(rank, 2) for rank in (0, 1)]
    for card in cards:
        card.step(1, 0, 50_000)
        card.host("op", 0, 20_000 + 10_000 * card.rank)
    steady = opened(tmp_path, *cards).summary().steady_state
    assert steady is not None
    assert steady.maximum_ns == 30_000


def test_a_step_that_the_end_of_the_recording_cut_is_none(tmp_path: Path) -> None:
    cards = [KinetoTrace(rank, 2) for rank in (0, 1)]
    for card in cards:
        for number in (1, 2, 3):
            card.step(number, 100_000 * number, 100_000 * number + 50_000)
            card.host("op", 100_000 * number, 100_000 * number + 10_000 * number)
    cards[0].events[-2]["args"]["finished"] = False
    run = opened(tmp_path, *cards)
    answer = run.summary()
    assert [(step.step, step.rank) for step in answer.steps] == [(1, 0), (1, 1), (2, 0), (2, 1), (3, 1)]
    steady = answer.steady_state
    assert steady is not None
    assert (steady.steps, steady.maximum_ns) == (2, 20_000)
    (note,) = run.trace.tally.notes
    assert (note.code, note.text) == ("TF311", "the recording ended within ProfilerStep#3, which counts as no step")
    assert run.trace.tally.dropped["step annotation, cut by the end of the recording"] == 1
    assert answer.event_count == 6  # its work stays


def test_without_a_step_that_all_ranks_mark_there_is_no_steady_state(tmp_path: Path) -> None:
    cards = [KinetoTrace(rank, 2) for rank in (0, 1)]
    for card in cards:
        card.step(card.rank, 0, 50_000)
        card.host("op", 0, 20_000)
    answer = opened(tmp_path, *cards).summary()
    assert answer.steady_state is None
    assert "/result/steady_state" in {skipped.what for skipped in answer.skipped}


def test_a_trace_without_steps_says_so(tmp_path: Path) -> None:
    card = KinetoTrace()
    card.host("op", 0, 8_000)
    answer = opened(tmp_path, card).summary()
    assert answer.steps == ()
    assert answer.steady_state is None
    assert {skipped.what for skipped in answer.skipped} == {"/result/steps", "/result/steady_state"}


@pytest.mark.parametrize("times", [1, 3])
def test_a_mark_that_is_written_again_is_one_step(tmp_path: Path, times: int) -> None:
    card = KinetoTrace()
    for _ in range(times):
        card.step(1, 0, 10_000)
    card.host("op", 0, 8_000)
    assert len(opened(tmp_path, card).summary().steps) == 1
