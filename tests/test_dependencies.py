"""Every kind of edge, from traces that show it; and what no recording order, clock or repetition may change."""

from __future__ import annotations

import json
import random
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kineto_builder import MAIN, NCCL, RECORDING_NS, KinetoTrace, opened
from told import bindings, told

from traceflow.analyzers.changes import Scale
from traceflow.graph import EdgeKind
from traceflow.run import Run

AUTOGRAD = 4157  # a second host thread


@pytest.fixture
def card() -> KinetoTrace:
    return KinetoTrace()


# ---- the host ----


def test_program_order_binds_pieces_of_self_time(card: KinetoTrace, tmp_path: Path) -> None:
    card.host("outer", 0, 10_000)
    card.host("inner", 2_000, 6_000)
    card.host("next", 13_000, 14_000)
    run = opened(tmp_path, card)
    assert bindings(run, EdgeKind.PROGRAM_ORDER) == {
        ("outer ends", "inner starts"),
        ("inner ends", "outer starts"),
        ("outer ends", "next starts"),
    }
    assert told(run.critical_path().segments) == [
        ("host", 0, "outer", 2_000),
        ("host", 0, "inner", 4_000),
        ("host", 0, "outer", 4_000),
        ("host", 0, "next", 3_000),
        ("host", 0, "next", 1_000),
    ]


def test_threads_of_two_ranks_have_no_order(tmp_path: Path) -> None:
    one, two = KinetoTrace(0, 2), KinetoTrace(1, 2)
    one.host("a", 0, 1_000)
    two.host("b", 1_000, 2_000)
    run = opened(tmp_path, one, two)
    assert not bindings(run, EdgeKind.PROGRAM_ORDER)
    assert not bindings(run, EdgeKind.HAND_OFF)


def test_a_gap_that_another_thread_fills_is_a_hand_off(card: KinetoTrace, tmp_path: Path) -> None:
    card.host("forward", 0, 10_000)
    card.host("backward piece", 12_000, 20_000, thread=AUTOGRAD)
    card.host("backward end", 20_000, 28_000, thread=AUTOGRAD)
    card.host("optimizer", 30_000, 35_000)
    run = opened(tmp_path, card)
    assert bindings(run, EdgeKind.HAND_OFF) == {
        ("forward ends", "backward piece starts"),
        ("backward end ends", "optimizer starts"),
    }
    assert told(run.critical_path().segments) == [
        ("host", 0, "forward", 10_000),
        ("host", 0, "backward piece", 2_000),
        ("host", 0, "backward piece", 8_000),
        ("host", 0, "backward end", 8_000),
        ("host", 0, "optimizer", 2_000),
        ("host", 0, "optimizer", 5_000),
    ]


@pytest.mark.parametrize(
    ("start", "end", "why"),
    [
        (12_000, 20_999, "less than half of the gap is filled"),
        (9_000, 29_000, "the other thread was busy before"),
        (12_000, 31_000, "the other thread is busy still"),
    ],
)
def test_a_gap_that_another_thread_does_not_fill_is_none(
    card: KinetoTrace, tmp_path: Path, start: int, end: int, why: str
) -> None:
    card.host("forward", 0, 10_000)
    card.host("elsewhere", start, end, thread=AUTOGRAD)
    card.host("optimizer", 28_000, 35_000)
    assert not bindings(opened(tmp_path, card), EdgeKind.HAND_OFF), why


@pytest.mark.parametrize("pieces", [[(8_000, 12_000), (12_000, 27_000)], [(11_000, 27_000), (27_000, 31_000)]])
def test_nor_does_a_thread_that_only_happens_to_be_busy(
    card: KinetoTrace, tmp_path: Path, pieces: list[tuple[int, int]]
) -> None:
    card.host("forward", 0, 10_000)
    card.host("optimizer", 28_000, 35_000)
    for start, end in pieces:
        card.host("elsewhere", start, end, thread=AUTOGRAD)
    assert not bindings(opened(tmp_path, card), EdgeKind.HAND_OFF)


def test_half_of_a_gap_is_enough_to_fill_it(card: KinetoTrace, tmp_path: Path) -> None:
    card.host("forward", 0, 10_000)
    card.host("elsewhere", 12_000, 21_000, thread=AUTOGRAD)
    card.host("optimizer", 28_000, 35_000)
    assert bindings(opened(tmp_path, card), EdgeKind.HAND_OFF)


def test_a_thread_that_polls_does_not_work(card: KinetoTrace, tmp_path: Path) -> None:
    card.host("forward", 0, 10_000)
    for at in range(10_000, 30_000, 1_000):
        card.runtime("cudaEventQuery", at, at + 900, thread=AUTOGRAD)
    card.host("optimizer", 30_000, 35_000)
    run = opened(tmp_path, card)
    assert not bindings(run, EdgeKind.HAND_OFF)
    assert run.critical_path().by_kind_ns == {"host": 35_000}
    assert "cudaEventQuery" not in run.critical_path().segments.name


def test_a_backward_operator_needs_its_forward(card: KinetoTrace, tmp_path: Path) -> None:
    card.host("aten::mul", 0, 4_000)
    card.host("loss", 4_000, 6_000)
    card.host("MulBackward0", 9_000, 12_000, thread=AUTOGRAD)
    card.flow((MAIN, 0), (AUTOGRAD, 9_000))
    run = opened(tmp_path, card)
    assert bindings(run, EdgeKind.DATA) == {("aten::mul ends", "MulBackward0 starts")}


# ---- launches ----


def test_work_may_start_before_its_launch_call_returns(card: KinetoTrace, tmp_path: Path) -> None:
    card.host("op", 0, 20_000)
    card.kernel("early", 7_000, 30_000, call=(2_000, 9_000))
    run = opened(tmp_path, card)
    assert bindings(run, EdgeKind.LAUNCH) == {("cudaLaunchKernel starts", "early starts")}
    assert not run.dependencies.graph.contradicted
    assert told(run.critical_path().segments) == [
        ("host", 0, "op", 2_000),
        ("launch", 0, "early", 5_000),
        ("compute", 0, "early", 23_000),
    ]


def test_work_that_starts_before_its_launch_is_contradicted(card: KinetoTrace, tmp_path: Path) -> None:
    card.kernel("impossible", 1_000, 30_000, call=(5_000, 9_000))
    run = opened(tmp_path, card)
    assert dict(run.dependencies.graph.contradicted) == {EdgeKind.LAUNCH: 1}
    assert [note.code for note in run.dependencies.notes] == ["TF304"]


def test_work_launched_before_the_recording_is_bound_by_its_stream_only(card: KinetoTrace, tmp_path: Path) -> None:
    card.host("op", 0, 1_000)
    card.kernel("old", 2_000, 5_000)
    card.kernel("older still", 6_000, 9_000)
    run = opened(tmp_path, card)
    assert not bindings(run, EdgeKind.LAUNCH)
    assert told(run.critical_path().segments) == [
        ("idle", 0, "old", 2_000),
        ("compute", 0, "old", 3_000),
        ("idle", 0, "older still", 1_000),
        ("compute", 0, "older still", 3_000),
    ]


def test_a_graph_is_launched_at_its_roots(card: KinetoTrace, tmp_path: Path) -> None:
    nodes = [("a", 10_000, 20_000, 7), ("b", 20_000, 30_000, 7), ("side", 12_000, 15_000, 8), ("c", 33_000, 40_000, 7)]
    card.graph_launch((0, 5_000), nodes)
    run = opened(tmp_path, card)
    assert bindings(run, EdgeKind.GRAPH_LAUNCH) == {
        ("cudaGraphLaunch starts", "a starts"),
        ("cudaGraphLaunch starts", "side starts"),
    }
    assert bindings(run, EdgeKind.STREAM_ORDER) == {("a ends", "b starts"), ("b ends", "c starts")}
    assert run.critical_path().by_kind_ns == {"compute": 27_000, "launch": 10_000, "idle": 3_000}


# ---- streams ----


def test_stream_order_binds_ends_to_starts_and_overlap_starts_to_starts(card: KinetoTrace, tmp_path: Path) -> None:
    card.kernel("a", 0, 10_000)
    card.kernel("b", 7_000, 20_000)
    card.kernel("c", 21_000, 25_000)
    run = opened(tmp_path, card)
    assert bindings(run, EdgeKind.STREAM_ORDER) == {("a starts", "b starts"), ("b ends", "c starts")}


def test_long_work_behind_which_short_work_slips_still_binds_what_follows(card: KinetoTrace, tmp_path: Path) -> None:
    card.kernel("long", 0, 100_000)
    card.kernel("short", 10_000, 20_000)
    card.kernel("next", 100_000, 110_000)
    run = opened(tmp_path, card)
    assert ("long ends", "next starts") in bindings(run, EdgeKind.STREAM_ORDER)
    assert told(run.critical_path().segments) == [("compute", 0, "long", 100_000), ("compute", 0, "next", 10_000)]


def test_work_of_no_duration_does_not_hide_the_work_that_starts_with_it(card: KinetoTrace, tmp_path: Path) -> None:
    card.kernel("a", 0, 10_000)
    card.kernel("empty", 10_000, 10_000)
    card.kernel("b", 10_000, 20_000)
    card.kernel("c", 20_000, 30_000)
    run = opened(tmp_path, card)
    assert {("a ends", "empty starts"), ("b ends", "c starts")} <= bindings(run, EdgeKind.STREAM_ORDER)
    assert run.what_if(Scale("^b$", 3)).predicted_ns == 50_000


def test_streams_have_no_order_among_themselves(card: KinetoTrace, tmp_path: Path) -> None:
    card.kernel("a", 0, 10_000, stream=7)
    card.kernel("b", 10_000, 20_000, stream=8)
    assert not bindings(opened(tmp_path, card), EdgeKind.STREAM_ORDER)


def test_within_whole_microseconds_an_overlap_of_one_is_rounding(card: KinetoTrace, tmp_path: Path) -> None:
    card.kernel("a", 0, 10_000)
    card.kernel("b", 9_000, 20_000)
    run = opened(tmp_path, card)
    assert bindings(run, EdgeKind.STREAM_ORDER) == {("a ends", "b starts")}
    assert run.dependencies.graph.replay().tolist() == run.dependencies.graph.time_ns.tolist()
    assert sum(run.critical_path().segments.duration_ns) == 20_000
    assert run.what_if(Scale("^a$", 2)).predicted_ns == 30_000


def test_with_ns_digits_it_is_an_overlap(card: KinetoTrace, tmp_path: Path) -> None:
    card.kernel("a", 0, 10_000)
    card.kernel("b", 9_001, 20_000)
    assert bindings(opened(tmp_path, card), EdgeKind.STREAM_ORDER) == {("a starts", "b starts")}


# ---- events ----


def test_a_wait_binds_the_first_work_after_it_to_the_last_before_the_record(card: KinetoTrace, tmp_path: Path) -> None:
    card.kernel("first", 20_000, 30_000, call=(0, 500))
    card.kernel("last", 30_000, 40_000, call=(1_000, 1_500))
    event = card.record_event(2_000)
    card.kernel("unrelated", 40_000, 90_000, call=(3_000, 3_500))
    card.kernel("queued before", 20_000, 25_000, stream=NCCL, call=(3_600, 3_700))
    card.stream_wait(4_000, event, stream=NCCL)
    card.kernel("waiting", 40_000, 50_000, stream=NCCL, call=(5_000, 5_500))
    card.kernel("behind it", 50_000, 60_000, stream=NCCL, call=(6_000, 6_500))
    run = opened(tmp_path, card)
    assert bindings(run, EdgeKind.EVENT_WAIT) == {("last ends", "waiting starts")}


def test_launch_order_counts_not_the_order_in_which_work_ran(card: KinetoTrace, tmp_path: Path) -> None:
    """The awaited kernel starts long after the wait was issued."""
    card.kernel("slow", 0, 50_000)
    card.kernel("awaited", 50_000, 60_000, call=(1_000, 1_500))
    event = card.record_event(2_000)
    card.stream_wait(3_000, event, stream=NCCL)
    card.kernel("waiting", 60_000, 70_000, stream=NCCL, call=(4_000, 4_500))
    run = opened(tmp_path, card)
    assert bindings(run, EdgeKind.EVENT_WAIT) == {("awaited ends", "waiting starts")}
    assert told(run.critical_path().segments) == [
        ("compute", 0, "slow", 50_000),
        ("compute", 0, "awaited", 10_000),
        ("compute", 0, "waiting", 10_000),
    ]


def test_a_record_inherits_the_pending_waits_of_its_stream(card: KinetoTrace, tmp_path: Path) -> None:
    """Stream 8 has no work of its own between its wait and its record: it hands on what it waits for."""
    card.kernel("origin", 10_000, 40_000, stream=7, call=(0, 500))
    one = card.record_event(1_000, stream=7)
    card.stream_wait(2_000, one, stream=8)
    two = card.record_event(3_000, stream=8)
    card.stream_wait(4_000, two, stream=9)
    card.kernel("end of the chain", 40_000, 50_000, stream=9, call=(5_000, 5_500))
    run = opened(tmp_path, card)
    assert bindings(run, EdgeKind.EVENT_WAIT) == {("origin ends", "end of the chain starts")}
    assert run.critical_path().by_kind_ns == {"launch": 10_000, "compute": 40_000}


def test_a_record_behind_work_inherits_only_the_waits_after_it(card: KinetoTrace, tmp_path: Path) -> None:
    card.kernel("origin", 10_000, 40_000, stream=7, call=(0, 500))
    card.stream_wait(1_000, card.record_event(800, stream=7), stream=8)
    card.kernel("between", 40_000, 45_000, stream=8, call=(1_200, 1_700))
    card.kernel("later origin", 40_000, 44_000, stream=7, call=(2_000, 2_500))
    card.stream_wait(3_000, card.record_event(2_800, stream=7), stream=8)
    card.stream_wait(4_000, card.record_event(3_500, stream=8), stream=9)
    card.kernel("end of the chain", 45_000, 50_000, stream=9, call=(5_000, 5_500))
    assert bindings(opened(tmp_path, card), EdgeKind.EVENT_WAIT) == {
        ("origin ends", "between starts"),
        ("between ends", "end of the chain starts"),
        ("later origin ends", "end of the chain starts"),
    }


def test_an_event_recorded_before_the_recording_binds_nothing(card: KinetoTrace, tmp_path: Path) -> None:
    card.kernel("old", 0, 10_000)
    card.kernel("new", 10_000, 20_000, stream=NCCL, call=(2_000, 2_500))
    event = card.record_event(0)
    card.events.pop()
    card.stream_wait(1_000, event, stream=NCCL)
    assert not bindings(opened(tmp_path, card), EdgeKind.EVENT_WAIT)


def test_streams_that_wait_for_one_another_without_work_stay_cheap(card: KinetoTrace, tmp_path: Path) -> None:
    """Each record inherits all that its stream waits for; without care that doubles with every turn."""
    card.kernel("a", 200_000, 210_000, stream=7, call=(0, 10))
    card.kernel("b", 200_000, 220_000, stream=8, call=(20, 30))
    for at in range(1_000, 161_000, 4_000):
        card.stream_wait(at + 1_000, card.record_event(at, stream=7), stream=8)
        card.stream_wait(at + 3_000, card.record_event(at + 2_000, stream=8), stream=7)
    card.kernel("c", 220_000, 230_000, stream=7, call=(170_000, 170_500))
    assert bindings(opened(tmp_path, card), EdgeKind.EVENT_WAIT) >= {("b ends", "c starts")}


# ---- calls that block ----


def test_a_device_synchronisation_waits_for_every_stream(card: KinetoTrace, tmp_path: Path) -> None:
    card.kernel("a", 5_000, 30_000, stream=7, call=(0, 500))
    card.kernel("b", 6_000, 50_000, stream=8, call=(1_000, 1_500))
    card.device_synchronize(2_000, 52_000)
    card.kernel("later", 60_000, 70_000, stream=7, call=(53_000, 53_500))
    run = opened(tmp_path, card)
    assert bindings(run, EdgeKind.HOST_SYNCHRONISATION) == {
        ("a ends", "cudaDeviceSynchronize ends"),
        ("b ends", "cudaDeviceSynchronize ends"),
    }
    path = run.critical_path()
    assert told(path.segments) == [
        ("host", 0, "cudaLaunchKernel", 500),
        ("host", 0, "cudaLaunchKernel", 500),
        ("launch", 0, "b", 5_000),
        ("compute", 0, "b", 44_000),
        ("host", 0, "cudaDeviceSynchronize", 2_000),
        ("host", 0, "cudaLaunchKernel", 1_000),
        ("launch", 0, "later", 7_000),
        ("compute", 0, "later", 10_000),
    ]
    assert path.segments.waiting_for[4] == (0, 0)


def test_a_stream_synchronisation_waits_for_its_stream(card: KinetoTrace, tmp_path: Path) -> None:
    card.kernel("a", 5_000, 30_000, stream=7, call=(0, 500))
    card.kernel("b", 6_000, 29_000, stream=8, call=(1_000, 1_500))
    card.stream_synchronize(2_000, 32_000, stream=7)
    run = opened(tmp_path, card)
    assert bindings(run, EdgeKind.HOST_SYNCHRONISATION) == {("a ends", "cudaStreamSynchronize ends")}


def test_an_event_synchronisation_waits_for_what_was_recorded(card: KinetoTrace, tmp_path: Path) -> None:
    card.kernel("a", 5_000, 30_000, call=(0, 500))
    event = card.record_event(1_000)
    card.kernel("b", 30_000, 60_000, call=(2_000, 2_500))
    card.event_synchronize(3_000, 31_000, event)
    run = opened(tmp_path, card)
    assert bindings(run, EdgeKind.HOST_SYNCHRONISATION) == {("a ends", "cudaEventSynchronize ends")}


def test_a_pageable_copy_may_end_with_its_call(card: KinetoTrace, tmp_path: Path) -> None:
    card.copy(4_000, 52_000, call=(0, 52_000), name="Memcpy DtoH (Device -> Pageable)")
    assert bindings(opened(tmp_path, card), EdgeKind.HOST_SYNCHRONISATION)


def test_a_pageable_copy_blocks_its_caller(card: KinetoTrace, tmp_path: Path) -> None:
    card.copy(4_000, 50_000, call=(0, 52_000), name="Memcpy DtoH (Device -> Pageable)")
    card.host("next", 52_000, 60_000)
    run = opened(tmp_path, card)
    assert bindings(run, EdgeKind.HOST_SYNCHRONISATION) == {
        ("Memcpy DtoH (Device -> Pageable) ends", "cudaMemcpyAsync ends")
    }
    assert run.critical_path().by_kind_ns == {"copy": 46_000, "host": 10_000, "launch": 4_000}
    assert run.what_if(Scale("@copy", 0)).saved_ns == 46_000


def test_a_pinned_copy_does_not(card: KinetoTrace, tmp_path: Path) -> None:
    card.copy(4_000, 50_000, call=(0, 52_000), name="Memcpy DtoH (Device -> Pinned)")
    assert not bindings(opened(tmp_path, card), EdgeKind.HOST_SYNCHRONISATION)


def test_a_call_that_copies_synchronously_waits_for_its_copy(card: KinetoTrace, tmp_path: Path) -> None:
    card.copy(4_000, 50_000, call=(0, 51_000), call_name="cudaMemcpy")
    run = opened(tmp_path, card)
    assert bindings(run, EdgeKind.HOST_SYNCHRONISATION) == {("Memcpy HtoD (Pinned -> Device) ends", "cudaMemcpy ends")}


def test_without_records_a_call_waits_for_the_launched_work_that_ended_last(card: KinetoTrace, tmp_path: Path) -> None:
    card.kernel("a", 5_000, 30_000, stream=7, call=(0, 500))
    card.kernel("b", 6_000, 50_000, stream=8, call=(1_000, 1_500))
    card.stream_synchronize(2_000, 52_000, stream=8, recorded=False)
    run = opened(tmp_path, card)
    assert bindings(run, EdgeKind.HOST_SYNCHRONISATION) == {("b ends", "cudaStreamSynchronize ends")}
    assert [note.code for note in run.dependencies.notes] == ["TF303"]


def test_a_device_synchronisation_needs_no_record(card: KinetoTrace, tmp_path: Path) -> None:
    card.kernel("a", 5_000, 30_000, stream=7, call=(0, 500))
    card.kernel("b", 6_000, 50_000, stream=8, call=(1_000, 1_500))
    card.device_synchronize(2_000, 52_000, recorded=False)
    run = opened(tmp_path, card)
    assert bindings(run, EdgeKind.HOST_SYNCHRONISATION) == {
        ("a ends", "cudaDeviceSynchronize ends"),
        ("b ends", "cudaDeviceSynchronize ends"),
    }


def test_a_recorded_call_with_nothing_to_wait_for_waits_for_nothing(card: KinetoTrace, tmp_path: Path) -> None:
    """Stream 8 is empty; that a kernel of stream 7 ends during the call is chance."""
    card.kernel("elsewhere", 1_000, 3_000, stream=7, call=(0, 500))
    card.stream_synchronize(2_000, 4_000, stream=8)
    run = opened(tmp_path, card)
    assert not bindings(run, EdgeKind.HOST_SYNCHRONISATION)
    assert not run.dependencies.notes


def test_a_call_that_ends_with_what_it_calls_keeps_its_end(card: KinetoTrace, tmp_path: Path) -> None:
    """A blocking call around another call that returns in the same ns still waits for the device."""
    card.kernel("a", 5_000, 30_000, call=(0, 500))
    card.device_synchronize(2_000, 31_000)
    card.runtime("cuStreamIsCapturing", 29_000, 31_000)
    run = opened(tmp_path, card)
    assert bindings(run, EdgeKind.HOST_SYNCHRONISATION) == {("a ends", "cudaDeviceSynchronize ends")}
    assert not run.dependencies.notes, "it does not stick out either"


def test_an_event_that_sticks_out_of_its_parent_is_cut_and_counted(card: KinetoTrace, tmp_path: Path) -> None:
    card.host("outer", 0, 10_000)
    card.host("inner", 2_000, 12_000)
    card.host("next", 11_000, 15_000)
    run = opened(tmp_path, card)
    assert [note.code for note in run.dependencies.notes if note.code == "TF309"] == ["TF309"]
    assert sum(run.critical_path().segments.duration_ns) == 15_000


# ---- what may not matter ----


@st.composite
def recordings(draw: st.DrawFn) -> list[KinetoTrace]:
    """One to three ranks with nested host events on two threads, three streams, events and collectives.

    Times are multiples of 4 ns, so that no difference is as small as the clock's resolution.
    """
    chance = random.Random(draw(st.integers(0, 2**32)))
    size = draw(st.integers(1, 3))
    return [_recording(chance, rank, size) for rank in range(size)]


def _recording(chance: random.Random, rank: int, size: int) -> KinetoTrace:
    def span(longest: int) -> tuple[int, int]:
        start = 4 * chance.randrange(1_500)
        return start, start + 4 * chance.randrange(longest)

    card = KinetoTrace(rank, size)
    card.host("anchor", 0, 4)  # not a whole us: the clock counts ns
    card.host("anchor of step 2", 4 * 800, 4 * 801)
    for number in range(chance.randrange(12)):
        card.host(f"operator {number}", *span(200), thread=chance.choice((MAIN, AUTOGRAD)))
        launch = span(20) if chance.random() < 0.8 else None
        card.kernel(f"kernel {number}", *span(200), stream=chance.choice((7, 8, 20)), call=launch)
    for _ in range(chance.randrange(4)):
        event = card.record_event(span(1)[0], stream=chance.choice((7, 8, 20)))
        card.stream_wait(span(1)[0], event, stream=chance.choice((7, 8, 20)))
        card.event_synchronize(*span(100), event)
    for _ in range(chance.randrange(3)):
        card.copy(*span(50), call=span(60), name="Memcpy DtoH (Device -> Pageable)")
        card.stream_synchronize(*span(200), recorded=chance.random() < 0.7)
        card.device_synchronize(*span(200), recorded=chance.random() < 0.7)
    for number in range(3):
        at = 4 * (number * 700 + chance.randrange(300))
        card.all_reduce(at, at + 4 * (300 + chance.randrange(200)), sequence=number, call=span(10))
    card.step(1, 0, 4 * 800)
    card.step(2, 4 * 800, 4 * 1_700)
    return card


def answers(*cards: KinetoTrace) -> list[Any]:
    with TemporaryDirectory() as folder:
        run = opened(Path(folder), *cards)
        return [
            run.summary().to_dict(),
            run.critical_path(slack=True).to_dict(),
            run.communication().to_dict(),
            run.what_if(Scale("kernel", 3)).to_dict(),
            *(run.critical_path(step=step, slack=True).to_dict() for step in (1, 2)),
            run.communication(step=2).to_dict(),
        ]


@settings(max_examples=40)
@given(recordings(), st.randoms(use_true_random=False))
def test_the_order_of_events_in_a_file_changes_no_answer(cards: list[KinetoTrace], shuffle: random.Random) -> None:
    wanted = answers(*cards)
    for card in cards:
        shuffle.shuffle(card.events)
    assert answers(*cards) == wanted


@settings(max_examples=25)
@given(recordings(), st.randoms(use_true_random=False))
def test_events_written_twice_change_no_answer(cards: list[KinetoTrace], chance: random.Random) -> None:
    wanted = answers(*cards)
    for card in cards:
        card.events += [event for event in card.events if chance.random() < 0.5]
    assert answers(*cards) == wanted


@settings(max_examples=25)
@given(recordings(), st.integers(-(10**12), 10**12))
def test_when_the_recording_was_made_changes_no_answer(cards: list[KinetoTrace], later_ns: int) -> None:
    wanted = answers(*cards)
    for card in cards:
        for event in card.events:
            event["ts"] = round(event["ts"] + later_ns / 1000, 3)
    assert answers(*cards) == wanted


@settings(max_examples=25)
@given(recordings())
def test_twice_the_time_is_twice_every_duration(cards: list[KinetoTrace]) -> None:
    once = json.loads(json.dumps(answers(*cards)))
    for event in (event for card in cards for event in card.events):
        event["ts"] = round(2 * event["ts"] - RECORDING_NS / 1000, 3)
        event["dur"] = round(2 * event.get("dur", 0), 3)
    assert json.loads(json.dumps(answers(*cards))) == _doubled(once)


def _doubled(value: Any, key: str = "") -> Any:
    if isinstance(value, dict):
        return {k: _doubled(v, "ns" if key.endswith("_ns") else k) for k, v in value.items()}
    if isinstance(value, list):
        return [_doubled(v, key) for v in value]
    return 2 * value if isinstance(value, int) and key.endswith("ns") else value


@settings(max_examples=40)
@given(recordings())
def test_every_window_tiles_and_replays_to_the_nanosecond(cards: list[KinetoTrace]) -> None:
    with TemporaryDirectory() as folder:
        run = opened(Path(folder), *cards)
        for step in (None, 1, 2):
            check_window(run, step)


def check_window(run: Run, step: int | None) -> None:
    graph, path = run.graph(step=step), run.critical_path(step=step, slack=True)
    segments, slack = path.segments, path.slack
    assert graph.replay().tolist() == graph.time_ns.tolist()
    assert (graph.lag_ns >= 0).all()
    edges = [path.window.start_ns, *(segments.start_ns + segments.duration_ns).tolist()]
    assert segments.start_ns.tolist() == edges[:-1]
    assert edges[-1] == path.window.end_ns
    assert sum(path.by_kind_ns.values()) == sum(path.by_rank_ns.values()) == path.makespan_ns
    assert slack is not None
    assert (slack.slack_ns >= -1).all()
