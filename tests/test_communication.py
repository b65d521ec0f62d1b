"""Busy, exposed, overlapped, idle and removable time, against counting nanoseconds one by one."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kineto_builder import NCCL, KinetoTrace, opened
from told import told

from traceflow.analyzers.changes import Scale

Span = tuple[int, int]
spans = st.lists(st.tuples(st.integers(0, 90), st.integers(0, 40)).map(lambda s: (s[0], s[0] + s[1])), max_size=6)


def pair() -> tuple[KinetoTrace, KinetoTrace]:
    return KinetoTrace(0, 2), KinetoTrace(1, 2)


def counted(some: list[Span]) -> set[int]:
    return {ns for start, end in some for ns in range(start, end)}


@settings(max_examples=60)
@given(compute=spans, communication=spans, copies=spans)
def test_times_of_a_participant_equal_brute_force(
    compute: list[Span], communication: list[Span], copies: list[Span]
) -> None:
    card = KinetoTrace()
    card.kernel("first", 0, 1)
    card.kernel("last", 150, 151)
    for at, (start, end) in enumerate(compute):
        card.kernel(f"k{at}", start, end, stream=7 + at % 2)
    for at, (start, end) in enumerate(communication):
        card.all_reduce(start, end, sequence=at, stream=20 + at % 3)
    for start, end in copies:
        card.copy(start, end, stream=30)
    with TemporaryDirectory() as folder:
        (found,) = opened(Path(folder), card).communication().participants
    computing, busy, copying = counted([(0, 1), (150, 151), *compute]), counted(communication), counted(copies)
    assert found.compute_ns == len(computing)
    assert found.copy_ns == len(copying)
    assert found.busy_ns == len(busy)
    assert found.exposed_ns == len(busy - computing)
    assert found.overlapped_ns == len(busy & computing)
    assert found.idle_ns == len(set(range(151)) - computing - busy - copying)
    assert found.exposed_share == pytest.approx(len(busy - computing) / 151)


@settings(max_examples=40)
@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), min_size=1, max_size=4), st.integers(1, 30))
def test_wait_and_transfer_follow_from_the_arrivals(rounds: list[tuple[int, int]], transfer: int) -> None:
    """Two ranks arrive when they please; the end comes a transfer after the last of them."""
    cards, now = pair(), 0
    wanted = []
    for number, arrivals in enumerate(rounds):
        end = now + max(arrivals) + transfer
        for card, arrival in zip(cards, arrivals, strict=True):
            card.all_reduce(now + arrival, end, sequence=number)
        wanted.append([(max(arrivals) - arrival, transfer, end - now - arrival) for arrival in arrivals])
        now = end
    with TemporaryDirectory() as folder:
        answer = opened(Path(folder), *cards).communication()
    got = [[(c.wait_ns, c.transfer_ns, c.exposed_ns) for c in found.calls] for found in answer.collectives]
    assert got == wanted
    for found, arrivals in zip(answer.collectives, rounds, strict=True):
        assert found.last == (int(arrivals[1] > arrivals[0]), 0)


def test_exposed_is_not_removable(tmp_path: Path) -> None:
    """A collective beside a longer kernel of another stream: exposed for a while, yet nothing to win."""
    a, b = pair()
    for card in (a, b):
        card.kernel("short", 0, 10_000)
        card.all_reduce(10_000, 30_000, sequence=0, call=(0, 10))
        card.copy(0, 50_000, stream=9)
    answer = opened(tmp_path, a, b).communication()
    assert [p.exposed_ns for p in answer.participants] == [20_000, 20_000]
    assert (answer.removable_transfer_ns, answer.removable_communication_ns) == (0, 0)


def test_exposed_time_of_a_call_counts_compute_outside_the_window_too(tmp_path: Path) -> None:
    a, b = pair()
    for card in (a, b):
        card.step(1, 0, 10_000)
        card.step(2, 10_000, 30_000)
        card.kernel("hides it", 1_000, 12_000, call=(500, 600))
        card.all_reduce(2_000, 14_000, sequence=0, call=(700, 800))
        card.kernel("of step 2", 15_000, 20_000, call=(10_500, 10_600))
    answer = opened(tmp_path, a, b).communication(step=2)
    (found,) = answer.collectives
    assert [call.exposed_ns for call in found.calls] == [2_000, 2_000]
    assert [p.busy_ns for p in answer.participants] == [4_000, 4_000]


def test_a_step_that_ends_late_has_no_calls_of_the_next(tmp_path: Path) -> None:
    a, b = pair()
    for card, end in ((a, 25_000), (b, 12_000)):
        card.step(1, 0, 10_000)
        card.step(2, 10_000, 40_000)
        card.all_reduce(2_000, 4_000, sequence=0, call=(700, 800))
        card.kernel("ends late", 5_000, end, call=(900, 1_000), stream=9)
        card.all_reduce(20_000, 22_000, sequence=1, call=(15_000, 15_100))
    run = opened(tmp_path, a, b)
    assert run.communication(step=1).window.end_ns == 25_000
    assert [len(run.communication(step=step).collectives) for step in (1, 2)] == [1, 1]


def test_payload_is_what_one_participant_puts_in(tmp_path: Path) -> None:
    a, b = pair()
    a.collective("all_to_allv", 0, 10_000, sequence=0, elements=1_000, in_splits="[400, 600]", out_splits="[400, 300]")
    b.collective("all_to_allv", 0, 10_000, sequence=0, elements=500, in_splits="[300, 200]", out_splits="[600, 200]")
    (found,) = opened(tmp_path, a, b).communication().collectives
    assert [call.payload_bytes for call in found.calls] == [4_000, 2_000]
    assert found.payload_bytes == 4_000


def test_a_transfer_between_two_is_told_once(tmp_path: Path) -> None:
    a, b = pair()
    a.host("op", 0, 1_000)
    a.send(8_000, 11_000, to=1, elements=10)
    b.receive(2_000, 12_000, source=0, elements=10)
    answer = opened(tmp_path, a, b).communication()
    assert not answer.collectives
    assert [message.to_dict() for message in answer.messages] == [
        {
            "id": answer.messages[0].id,
            "source": {"rank": 0, "device": 0},
            "destination": {"rank": 1, "device": 0},
            "dimension": "unknown",
            "purpose": "unknown",
            "phase": None,
            "because": "neither annotations, nor its group, nor its payload tell",
            "payload_bytes": 40,
            "posted_ns": 8_000,
            "received_ns": 12_000,
            "wait_ns": 6_000,
        }
    ]


def test_removing_communication_leaves_each_receive_its_send(tmp_path: Path) -> None:
    a, b = pair()
    a.kernel("produce", 0, 8_000)
    a.send(8_000, 11_000, to=1, stream=7)
    b.receive(0, 11_000, source=0, stream=7)
    b.kernel("consume", 11_000, 15_000)
    run = opened(tmp_path, a, b)
    assert run.communication().removable_communication_ns == 3_000
    assert run.what_if(Scale("@transfer", 0)).predicted_ns == 12_000


def test_removable_is_what_replay_without_transfers_saves(tmp_path: Path) -> None:
    a, b = pair()
    for card, ready in ((a, 4_000), (b, 9_000)):
        card.kernel("compute", 0, ready)
        card.all_reduce(ready, 13_000, sequence=0, stream=7)
        card.kernel("tail", 13_000, 20_000)
    run = opened(tmp_path, a, b)
    answer = run.communication()
    assert answer.removable_transfer_ns == run.what_if(Scale("@transfer", 0)).saved_ns == 4_000
    assert answer.removable_communication_ns == 4_000, "rank 1 needs 9 + 7 us, whoever waits"


def test_without_device_events_device_quantities_are_unknown(tmp_path: Path) -> None:
    card = KinetoTrace()
    card.host("outer", 0, 10_000)
    card.host("leaf", 2_000, 5_000)
    card.host("other leaf", 12_000, 14_000)
    answer = opened(tmp_path, card).communication()
    (found,) = answer.participants
    assert found.participant == (0, None)
    assert (found.copy_ns, found.idle_ns) == (None, None)
    assert found.compute_ns == 5_000, "self time of operations without children"
    assert {skipped.what.rsplit("/", 1)[-1] for skipped in answer.skipped} == {"copy_ns", "idle_ns"}


def test_a_rank_without_communication_is_still_a_participant(tmp_path: Path) -> None:
    card = KinetoTrace()
    card.kernel("a", 0, 10_000)
    answer = opened(tmp_path, card).communication()
    assert [(p.participant, p.busy_ns, p.exposed_ns) for p in answer.participants] == [((0, 0), 0, 0)]
    assert (answer.removable_transfer_ns, answer.removable_communication_ns) == (0, 0)
    assert not answer.unmatched


def test_an_unmatched_call_is_busy_and_on_the_path(tmp_path: Path) -> None:
    card = KinetoTrace(0, 4)
    card.kernel("compute", 0, 4_000)
    card.all_reduce(4_000, 9_000, sequence=0, stream=7)
    run = opened(tmp_path, card)
    answer = run.communication()
    assert answer.participants[0].exposed_ns == 5_000
    assert [(row.start_ns, row.duration_ns) for row in answer.unmatched] == [(4_000, 5_000)]
    assert told(run.critical_path().segments)[-1] == ("communication", 0, "allreduce", 5_000)
    assert run.what_if(Scale("allreduce", 0)).predicted_ns == 4_000


def test_a_step_holds_the_calls_that_reach_into_it(tmp_path: Path) -> None:
    a, b = pair()
    for card in (a, b):
        card.step(1, 0, 10_000)
        card.step(2, 10_000, 30_000)
        card.all_reduce(1_000, 8_000, sequence=0, call=(0, 10), stream=NCCL)
        card.all_reduce(12_000, 18_000, sequence=1, call=(11_000, 11_010), stream=NCCL)
    run = opened(tmp_path, a, b)
    arrivals = [[c.calls[0].arrival_ns for c in run.communication(step=step).collectives] for step in (1, 2, None)]
    assert arrivals == [[1_000], [12_000], [1_000, 12_000]]
