"""What a path says of its segments: kinds, edges, participants, windows, slack."""

from __future__ import annotations

from pathlib import Path

import pytest
from kineto_builder import NCCL, KinetoTrace, opened
from told import told

from traceflow.errors import TraceflowError
from traceflow.graph import EdgeKind


@pytest.fixture
def card() -> KinetoTrace:
    return KinetoTrace()


def pair() -> tuple[KinetoTrace, KinetoTrace]:
    return KinetoTrace(0, 2), KinetoTrace(1, 2)


def test_kinds_of_work_and_of_lags(card: KinetoTrace, tmp_path: Path) -> None:
    card.host("op", 0, 2_000)
    card.copy(6_000, 9_000, call=(3_000, 4_000))
    card.kernel("a", 10_000, 20_000, call=(4_000, 5_000))
    card.all_reduce(20_000, 30_000, stream=7)  # without a sequence number, but alone in its group
    path = opened(tmp_path, card).critical_path()
    assert told(path.segments) == [
        ("host", 0, "op", 2_000),
        ("host", 0, "cudaMemcpyAsync", 1_000),
        ("launch", 0, "Memcpy HtoD (Pinned -> Device)", 3_000),
        ("copy", 0, "Memcpy HtoD (Pinned -> Device)", 3_000),
        ("idle", 0, "a", 1_000),
        ("compute", 0, "a", 10_000),
        ("transfer", 0, "allreduce", 10_000),
    ]
    assert path.segments.device.tolist() == [-1, -1, 0, 0, 0, 0, 0]
    assert path.segments.lane.tolist() == ["4000", "4000", "7", "7", "7", "7", "7"]
    assert path.segments.edge.tolist() == [
        None, "program-order", "launch", "launch", "stream-order", "stream-order", "rendezvous"
    ]  # fmt: skip
    assert path.by_kind_ns == {
        "compute": 10_000, "transfer": 10_000, "copy": 3_000, "host": 3_000, "launch": 3_000, "idle": 1_000
    }  # fmt: skip
    assert path.by_rank_ns == {0: 30_000}


def test_a_launch_segment_begins_with_the_call(card: KinetoTrace, tmp_path: Path) -> None:
    card.host("op", 0, 10_000)
    card.kernel("a", 12_000, 20_000, call=(4_000, 7_000))
    path = opened(tmp_path, card).critical_path()
    assert told(path.segments) == [("host", 0, "op", 4_000), ("launch", 0, "a", 8_000), ("compute", 0, "a", 8_000)]


def test_after_stream_order_a_lag_is_idle_however_recent_the_launch(card: KinetoTrace, tmp_path: Path) -> None:
    card.kernel("a", 0, 10_000)
    card.kernel("b", 12_000, 20_000, call=(9_000, 9_500))
    path = opened(tmp_path, card).critical_path()
    assert told(path.segments)[1] == ("idle", 0, "b", 2_000)
    assert path.segments.edge[1] == "stream-order"


def test_of_a_launch_and_a_stream_at_one_moment_the_stream_binds(card: KinetoTrace, tmp_path: Path) -> None:
    card.kernel("a", 0, 10_000)
    card.kernel("b", 12_000, 20_000, call=(10_000, 10_500))
    assert told(opened(tmp_path, card).critical_path().segments)[0] == ("compute", 0, "a", 10_000)


def test_a_blocking_call_that_nothing_is_known_to_have_kept_is_host(card: KinetoTrace, tmp_path: Path) -> None:
    card.host("op", 0, 1_000)
    card.device_synchronize(1_000, 9_000)
    path = opened(tmp_path, card).critical_path()
    assert told(path.segments) == [("host", 0, "op", 1_000), ("host", 0, "cudaDeviceSynchronize", 8_000)]
    assert path.segments.edge.tolist() == [None, "program-order"]
    assert path.segments.waiting_for.tolist() == [None, None]


def test_edges_have_the_names_of_the_contract() -> None:
    labels = {kind.label for kind in EdgeKind} - {EdgeKind.SELF.label}
    assert labels == {
        "program-order", "launch", "graph-launch", "stream-order", "event-wait", "host-synchronisation",
        "hand-off", "data", "rendezvous", "send-receive",
    }  # fmt: skip


def test_a_transfer_belongs_to_the_participant_whose_end_the_path_came_from(tmp_path: Path) -> None:
    """Rank 0 comes last, but what follows the transfer runs on rank 1."""
    a, b = pair()
    a.kernel("late", 0, 9_000)
    a.all_reduce(9_000, 12_000, sequence=0, stream=7)
    b.kernel("early", 0, 3_000)
    b.all_reduce(3_000, 12_000, sequence=0, stream=7)
    b.kernel("after", 12_000, 20_000)
    path = opened(tmp_path, a, b).critical_path()
    assert told(path.segments) == [
        ("compute", 0, "late", 9_000),
        ("transfer", 1, "allreduce", 3_000),
        ("compute", 1, "after", 8_000),
    ]
    assert path.segments.waiting_for.tolist() == [None, (0, 0), None]
    assert path.by_rank_ns == {0: 9_000, 1: 11_000}


def test_of_equal_arrivals_everybody_names_the_same_last(tmp_path: Path) -> None:
    a, b = pair()
    for trace in (a, b):
        trace.kernel("compute", 0, 9_000)
        trace.all_reduce(9_000, 12_000, sequence=0, stream=7)
    b.kernel("after", 12_000, 20_000)
    run = opened(tmp_path, a, b)
    assert run.critical_path().segments.waiting_for[1] == (0, 0)
    assert run.communication().collectives[0].last == (0, 0)


def test_a_lag_belongs_to_its_later_vertex(tmp_path: Path) -> None:
    """Rank 0's last arrival is itself late after its compute; the gap is rank 0's."""
    a, b = pair()
    a.kernel("compute", 0, 5_000)
    a.all_reduce(9_000, 12_000, sequence=0, stream=7)
    b.all_reduce(0, 12_000, sequence=0, stream=7)
    assert told(opened(tmp_path, a, b).critical_path().segments) == [
        ("compute", 0, "compute", 5_000),
        ("idle", 0, "allreduce", 4_000),
        ("transfer", 0, "allreduce", 3_000),
    ]


def test_a_receive_waits_for_its_send(tmp_path: Path) -> None:
    a, b = pair()
    a.kernel("produce", 0, 8_000)
    a.send(8_000, 11_000, to=1, stream=7)
    b.receive(2_000, 11_000, source=0, stream=7)
    b.kernel("consume", 11_000, 15_000)
    path = opened(tmp_path, a, b).critical_path()
    assert told(path.segments) == [
        ("compute", 0, "produce", 8_000),
        ("transfer", 1, "recv", 3_000),
        ("compute", 1, "consume", 4_000),
    ]
    assert path.segments.edge.tolist() == [None, "send-receive", "stream-order"]
    assert path.segments.waiting_for[1] == (0, 0)


def test_a_device_send_waits_for_its_receive(tmp_path: Path) -> None:
    a, b = pair()
    a.send(0, 11_000, to=1, stream=7)
    b.kernel("busy", 0, 9_000)
    b.receive(9_000, 10_000, source=0, stream=7)
    path = opened(tmp_path, a, b).critical_path()
    assert told(path.segments) == [("compute", 1, "busy", 9_000), ("transfer", 0, "send", 2_000)]
    assert path.segments.edge[1] == "rendezvous"


def test_an_end_before_the_last_arrival_is_flagged(tmp_path: Path) -> None:
    a, b = pair()
    a.all_reduce(0, 5_000, sequence=0)
    b.all_reduce(8_000, 12_000, sequence=0)
    run = opened(tmp_path, a, b)
    assert dict(run.dependencies.graph.contradicted) == {EdgeKind.RENDEZVOUS: 1}
    assert "TF304" in {note.code for note in run.critical_path().notes}
    early = run.communication().collectives[0].calls[0]
    assert (early.wait_ns, early.transfer_ns) == (5_000, 0)


# ---- windows ----


def test_a_step_ends_with_the_last_of_the_work_that_it_launched(card: KinetoTrace, tmp_path: Path) -> None:
    card.step(1, 0, 10_000)
    card.step(2, 10_000, 20_000)
    card.host("op 1", 0, 9_000)
    card.kernel("of step 1", 12_000, 30_000, call=(2_000, 3_000))
    card.host("op 2", 10_000, 19_000)
    card.kernel("of step 2", 30_000, 45_000, call=(11_000, 12_000))
    run = opened(tmp_path, card)
    assert run.critical_path(step=1).window.to_dict() == {"start_ns": 0, "end_ns": 30_000}
    assert run.critical_path(step=2).window.to_dict() == {"start_ns": 10_000, "end_ns": 45_000}
    assert run.critical_path().window.to_dict() == {"start_ns": 0, "end_ns": 45_000}


def test_a_step_spans_its_marks_on_all_ranks(tmp_path: Path) -> None:
    a, b = pair()
    for trace, late in ((a, 0), (b, 4_000)):
        trace.step(1, 1_000 + late, 9_000 + late)
        trace.host("op", 1_000 + late, 8_000 + late)
    a.host("before", 0, 500)
    path = opened(tmp_path, a, b).critical_path(step=1)
    assert path.window.to_dict() == {"start_ns": 1_000, "end_ns": 12_000}
    assert told(path.segments) == [("host", 1, "op", 4_000), ("host", 1, "op", 7_000)]


def test_what_was_launched_before_the_recording_belongs_to_the_step_it_begins_in(
    card: KinetoTrace, tmp_path: Path
) -> None:
    card.step(1, 0, 10_000)
    card.kernel("old", 2_000, 15_000)
    card.kernel("later", 20_000, 25_000)
    assert opened(tmp_path, card).critical_path(step=1).window.end_ns == 15_000


def test_work_at_the_mark_belongs_to_the_step_that_begins(card: KinetoTrace, tmp_path: Path) -> None:
    card.step(1, 0, 10_000)
    card.step(2, 10_000, 20_000)
    card.host("first", 0, 5_000)
    card.host("second", 10_000, 15_000)
    card.host("behind the last mark", 20_000, 25_000)
    run = opened(tmp_path, card)
    assert (run.critical_path(step=1).makespan_ns, run.critical_path(step=2).makespan_ns) == (5_000, 5_000)


def test_a_window_that_opens_in_a_transfer_names_nobody(tmp_path: Path) -> None:
    """The wait lies before the window; whoever ended it is not part of the window's story."""
    a, b = pair()
    for trace, late in ((a, 0), (b, 5_000)):
        trace.step(1, 0, 12_000)
        trace.step(2, 12_000, 30_000)
        trace.kernel("compute", 0, 4_000 + late)
        trace.all_reduce(4_000 + late, 20_000, sequence=0, stream=7)
        trace.kernel("next", 20_000, 25_000, call=(13_000, 14_000))
    segments = opened(tmp_path, a, b).critical_path(step=2).segments
    assert told(segments) == [("transfer", 0, "allreduce", 8_000), ("compute", 0, "next", 5_000)]
    assert segments.waiting_for.tolist() == [None, None]
    assert segments.edge.tolist() == [None, "stream-order"]


def test_a_window_that_opens_in_a_wait_keeps_who_is_waited_for(tmp_path: Path) -> None:
    a, b = pair()
    for trace, late in ((a, 0), (b, 11_000)):
        trace.step(1, 0, 12_000)
        trace.step(2, 12_000, 30_000)
        trace.kernel("compute", 0, 4_000 + late)
        trace.all_reduce(4_000 + late, 20_000, sequence=0, stream=7)
        trace.kernel("next", 20_000, 25_000, call=(13_000, 14_000))
    segments = opened(tmp_path, a, b).critical_path(step=2).segments
    assert told(segments) == [
        ("compute", 1, "compute", 3_000),
        ("transfer", 0, "allreduce", 5_000),
        ("compute", 0, "next", 5_000),
    ]
    assert segments.waiting_for.tolist() == [None, (1, 0), None]


@pytest.mark.parametrize(("step", "code"), [(7, "TF111"), (2, "TF111")])
def test_a_step_that_is_not_there_is_refused(card: KinetoTrace, tmp_path: Path, step: int, code: str) -> None:
    card.step(1, 0, 10_000)
    card.step(2, 10_000, 20_000)
    card.host("op", 0, 9_000)
    with pytest.raises(TraceflowError) as refused:
        opened(tmp_path, card).critical_path(step=step)
    assert refused.value.code == code


def test_marks_alone_are_no_work(card: KinetoTrace, tmp_path: Path) -> None:
    card.step(1, 0, 10_000)
    card.device_annotation("ProfilerStep#1", 0, 10_000)
    with pytest.raises(TraceflowError) as refused:
        opened(tmp_path, card).critical_path()
    assert refused.value.code == "TF104"


# ---- slack ----


def test_slack_of_work_beside_the_path(card: KinetoTrace, tmp_path: Path) -> None:
    card.kernel("long", 0, 50_000, stream=7, call=None)
    card.kernel("short", 0, 10_000, stream=8, call=None)
    event = card.record_event(20_000, stream=8)
    card.stream_wait(21_000, event, stream=7)
    card.kernel("joined", 52_000, 60_000, stream=7, call=(22_000, 23_000))
    card.kernel("loose", 10_000, 15_000, stream=8, call=None)
    slack = opened(tmp_path, card).critical_path(slack=True).slack
    assert slack is not None
    of = dict(zip(slack.name, slack.slack_ns.tolist(), strict=True))
    assert (of["long"], of["joined"]) == (0, 0)
    assert of["loose"] == 35_000, "it may end as late as long does, for joined keeps its lag of 2 us"
    assert of["short"] == 35_000


def test_slack_is_only_told_when_asked_for(card: KinetoTrace, tmp_path: Path) -> None:
    card.kernel("a", 0, 10_000, stream=NCCL)
    run = opened(tmp_path, card)
    assert "slack" not in run.critical_path().to_dict()
    assert run.critical_path(slack=True).to_dict()["slack"] == [
        {"rank": 0, "device": 0, "lane": "20", "name": "a", "start_ns": 0, "slack_ns": 0}
    ]


# ---- what cannot be known is said ----


def test_without_synchronisation_records_the_order_of_streams_is_said_to_be_unknown(
    card: KinetoTrace, tmp_path: Path
) -> None:
    card.kernel("a", 0, 10_000, stream=7)
    card.kernel("b", 11_000, 20_000, stream=8)
    skipped = opened(tmp_path, card).critical_path().skipped
    assert [row.what for row in skipped] == ["/result/segments"]
    assert "stream" in skipped[0].reason


def test_with_one_stream_there_is_no_such_order_to_know(card: KinetoTrace, tmp_path: Path) -> None:
    card.kernel("a", 0, 10_000)
    assert not opened(tmp_path, card).critical_path().skipped
