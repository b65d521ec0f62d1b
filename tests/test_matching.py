"""Which calls of different ranks are one collective; what cannot be told is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from kineto_builder import KinetoTrace, opened

from traceflow.analyzers.communication import Collective, Communication
from traceflow.run import Run

ABSENT_PARTICIPANTS = "some of its participants are absent from the capture"
NO_SEQUENCE = "it carries no sequence number, and its group's calls do not agree on all participants"
NO_PARTNER = "the other end of the transfer was not found"
NO_ROOT = "the trace does not say which participant is its root"
TWICE = "one participant claims the same call twice"


def ranks(count: int, groups: dict[str, tuple[int, ...]] | None = None) -> list[KinetoTrace]:
    return [KinetoTrace(rank, count, groups=dict(groups or {})) for rank in range(count)]


def arrivals(collective: Collective) -> list[tuple[int, int]]:
    return [(call.participant[0], call.arrival_ns) for call in collective.calls]


def reasons(answer: Communication) -> set[str]:
    return {call.reason for call in answer.unmatched}


def test_the_sequence_number_decides_not_the_order(tmp_path: Path) -> None:
    """Two collectives of one group on two streams, which the ranks run in different orders."""
    a, b = ranks(2)
    for card, (first, second) in ((a, (0, 1)), (b, (1, 0))):
        card.all_reduce(0, 9_000, sequence=first, stream=20)
        card.all_reduce(1_000, 9_000, sequence=second, stream=21)
    answer = opened(tmp_path, a, b).communication()
    assert [arrivals(c) for c in answer.collectives] == [[(0, 0), (1, 1_000)], [(0, 1_000), (1, 0)]]


def test_groups_count_for_themselves(tmp_path: Path) -> None:
    groups = {"EP0": (0, 1), "EP1": (2, 3), "ALL": (0, 1, 2, 3)}
    cards = ranks(4, groups)
    for card in cards:
        card.all_reduce(1_000 * card.rank, 5_000, sequence=7, group="EP0" if card.rank < 2 else "EP1")
        card.all_reduce(6_000 + card.rank, 9_000, sequence=7, group="ALL")
    answer = opened(tmp_path, *cards).communication()
    assert [(c.group, [rank for rank, _ in arrivals(c)]) for c in answer.collectives] == [
        ("EP0", [0, 1]),
        ("EP1", [2, 3]),
        ("ALL", [0, 1, 2, 3]),
    ]
    assert [c.last[0] for c in answer.collectives] == [1, 3, 3]


def test_equal_names_of_different_groups_are_not_one(tmp_path: Path) -> None:
    """Each pair of ranks calls its own group "1"."""
    cards = [KinetoTrace(rank, 4, groups={"1": (0, 1) if rank < 2 else (2, 3)}) for rank in range(4)]
    for card in cards:
        card.all_reduce(1_000 * card.rank, 9_000, sequence=0, group="1")
    answer = opened(tmp_path, *cards).communication()
    assert [[rank for rank, _ in arrivals(c)] for c in answer.collectives] == [[0, 1], [2, 3]]


def test_without_a_sequence_the_kth_calls_belong_together(tmp_path: Path) -> None:
    cards = ranks(2)
    for card in cards:
        card.all_reduce(card.rank, 4_000)
        card.collective("_allgather_base", 5_000 + card.rank, 9_000)
    answer = opened(tmp_path, *cards).communication()
    assert [(c.op, arrivals(c)) for c in answer.collectives] == [
        ("allreduce", [(0, 0), (1, 1)]),
        ("_allgather_base", [(0, 5_000), (1, 5_001)]),
    ]


def test_without_a_sequence_other_operations_are_refused(tmp_path: Path) -> None:
    a, b = ranks(2)
    a.all_reduce(0, 4_000)
    b.collective("_allgather_base", 0, 4_000)
    assert reasons(opened(tmp_path, a, b).communication()) == {NO_SEQUENCE}


def test_without_a_sequence_other_counts_are_refused(tmp_path: Path) -> None:
    a, b = ranks(2)
    a.all_reduce(0, 4_000)
    a.all_reduce(5_000, 9_000)
    b.all_reduce(0, 4_000)
    answer = opened(tmp_path, a, b).communication()
    assert not answer.collectives
    assert reasons(answer) == {NO_SEQUENCE}


def test_without_a_sequence_a_window_cut_elsewhere_is_refused(tmp_path: Path) -> None:
    """Rank 0 was recorded one call earlier: the k-th calls are not one collective, as their times deny."""
    a, b = ranks(2)
    for k in range(5):
        if k < 4:
            a.all_reduce(10_000 * k + 1_000, 10_000 * k + 5_000)
        if k > 0:
            b.all_reduce(10_000 * k + 2_000, 10_000 * k + 5_000)
    answer = opened(tmp_path, a, b).communication()
    assert not answer.collectives
    assert answer.removable_transfer_ns is None


def test_a_rank_that_claims_a_call_twice_is_refused(tmp_path: Path) -> None:
    a, b = ranks(2)
    a.all_reduce(0, 4_000, sequence=0)
    a.all_reduce(5_000, 9_000, sequence=0)
    b.all_reduce(0, 4_000, sequence=0)
    assert reasons(opened(tmp_path, a, b).communication()) == {TWICE}


def test_only_the_incomplete_instance_is_refused(tmp_path: Path) -> None:
    a, b = ranks(2)
    for card in (a, b):
        card.all_reduce(0, 4_000, sequence=3)
    a.all_reduce(5_000, 9_000, sequence=4)
    answer = opened(tmp_path, a, b).communication()
    assert len(answer.collectives) == 1
    assert [(call.participant[0], call.reason) for call in answer.unmatched] == [(0, ABSENT_PARTICIPANTS)]
    assert answer.removable_transfer_ns is None


def test_messages_of_windows_cut_elsewhere_are_refused(tmp_path: Path) -> None:
    a, b = ranks(2)
    for k in range(5):
        if k > 0:
            a.send(10_000 * k + 1_000, 10_000 * k + 3_000, to=1)
        if k < 4:
            b.receive(10_000 * k + 2_000, 10_000 * k + 5_000, source=0)
    answer = opened(tmp_path, a, b).communication()
    assert not answer.messages
    assert reasons(answer) == {NO_PARTNER}


# ---- rooted and sparse collectives ----


def bound_to(answer: Communication) -> dict[int, tuple[int, int]]:
    """Per rank of the only collective, its wait and transfer."""
    (collective,) = answer.collectives
    return {call.participant[0]: (call.wait_ns, call.transfer_ns) for call in collective.calls}


def test_a_broadcast_binds_the_root_to_each_other(tmp_path: Path) -> None:
    """Rank 0 sends at 3 us and leaves at 5 us; that rank 2 comes at 9 us is none of its business, nor of rank 1's."""
    cards = ranks(3)
    for card, (arrival, end) in zip(cards, [(3_000, 5_000), (1_000, 6_000), (9_000, 11_000)], strict=True):
        card.broadcast(arrival, end, root=0, sequence=0)
    run = opened(tmp_path, *cards)
    assert bound_to(run.communication()) == {0: (0, 2_000), 1: (2_000, 3_000), 2: (0, 2_000)}
    assert not run.dependencies.graph.contradicted


def test_a_reduction_binds_each_to_the_root(tmp_path: Path) -> None:
    cards = ranks(3)
    for card, (arrival, end) in zip(cards, [(3_000, 11_000), (1_000, 2_000), (9_000, 10_000)], strict=True):
        card.collective("reduce", arrival, end, sequence=0, ends={"Rank": 0})
    run = opened(tmp_path, *cards)
    assert bound_to(run.communication()) == {0: (6_000, 2_000), 1: (0, 1_000), 2: (0, 1_000)}
    assert not run.dependencies.graph.contradicted


@pytest.mark.parametrize("operation", ["broadcast", "reduce", "scatter", "gather"])
def test_without_a_root_it_stays_whole(tmp_path: Path, operation: str) -> None:
    cards = ranks(2)
    for card in cards:
        card.collective(operation, 0, 5_000, sequence=0)
    assert reasons(opened(tmp_path, *cards).communication()) == {NO_ROOT}


def test_a_sparse_all_to_all_binds_only_pairs_that_exchange_rows(tmp_path: Path) -> None:
    """Nobody sends to rank 2 but itself; rank 2 sends to rank 0."""
    cards = ranks(3)
    splits = ["[2, 2, 0]", "[1, 3, 0]", "[2, 0, 1]"]
    for card, own, (arrival, end) in zip(cards, splits, [(0, 12_000), (2_000, 4_000), (9_000, 10_000)], strict=True):
        card.collective("all_to_allv", arrival, end, sequence=0, in_splits=own)
    run = opened(tmp_path, *cards)
    assert bound_to(run.communication()) == {0: (9_000, 3_000), 1: (0, 2_000), 2: (0, 1_000)}
    assert not run.dependencies.graph.contradicted


def test_a_full_all_to_all_binds_everybody(tmp_path: Path) -> None:
    cards = ranks(3)
    for card, arrival in zip(cards, [0, 2_000, 9_000], strict=True):
        card.collective("all_to_allv", arrival, 12_000, sequence=0, in_splits="[1, 1, 1]", out_splits="[1, 1, 1]")
    assert bound_to(opened(tmp_path, *cards).communication()) == {0: (9_000, 3_000), 1: (7_000, 3_000), 2: (0, 3_000)}


# ---- point to point ----


def messages(run: Run) -> list[tuple[int, int, int, int]]:
    return [(m.source[0], m.destination[0], m.posted_ns, m.received_ns) for m in run.communication().messages]


def test_messages_go_first_in_first_out_per_pair_and_direction(tmp_path: Path) -> None:
    a, b, c = ranks(3)
    a.send(0, 2_000, to=1, stream=20)
    a.send(3_000, 5_000, to=1, stream=20)
    a.send(0, 1_000, to=2, stream=21)
    b.receive(1_000, 2_500, source=0, stream=20)
    b.receive(3_500, 5_500, source=0, stream=20)
    b.send(0, 4_000, to=0, stream=22)
    a.receive(3_000, 4_500, source=1, stream=22)
    c.receive(0, 1_500, source=0, stream=21)
    assert sorted(messages(opened(tmp_path, a, b, c))) == [
        (0, 1, 0, 2_500),
        (0, 1, 3_000, 5_500),
        (0, 2, 0, 1_500),
        (1, 0, 0, 4_500),
    ]


def test_a_message_without_its_other_end_is_refused(tmp_path: Path) -> None:
    a, b = ranks(2)
    a.send(0, 2_000, to=1)
    a.send(3_000, 5_000, to=1)
    b.receive(0, 2_000, source=0)
    answer = opened(tmp_path, a, b).communication()
    assert not answer.messages
    assert reasons(answer) == {NO_PARTNER}


# ---- clocks ----


def test_ranks_of_two_hosts_meet_once_their_clocks_are_aligned(tmp_path: Path) -> None:
    """Host B is 1 ms ahead; the common ends of the collectives tell it."""
    a, b = KinetoTrace(0, 2, host_name="A"), KinetoTrace(1, 2, host_name="B")
    for k in range(4):
        a.all_reduce(10_000 * k + 1_001, 10_000 * k + 5_001, sequence=k)
        b.all_reduce(1_000_000 + 10_000 * k + 3_001, 1_000_000 + 10_000 * k + 5_001, sequence=k)
    run = opened(tmp_path, a, b)
    assert run.clocks().offset_ns == {0: 0, 1: 1_000_000}
    assert [[c.wait_ns for c in found.calls] for found in run.communication().collectives] == [[2_000, 0]] * 4


def test_what_shares_no_collective_is_compared_with_nothing(tmp_path: Path) -> None:
    a, b = KinetoTrace(0, 2, host_name="A"), KinetoTrace(1, 2, host_name="B")
    for card in (a, b):
        card.send(0, 4_000, to=1 - card.rank)
        card.receive(5_000, 9_000, source=1 - card.rank)
    answer = opened(tmp_path, a, b).communication()
    assert not answer.messages
    assert reasons(answer) == {"its participants' clocks are not aligned with one another"}
