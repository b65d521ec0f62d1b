"""Cases worked out by hand before there was any code. Times in the traces are ns; the cases speak of ms."""

from __future__ import annotations

from pathlib import Path

import pytest
from kineto_builder import NCCL, KinetoTrace, opened
from told import told

from traceflow.analyzers.changes import Drop, Scale
from traceflow.run import Run

MS = 1_000_000
US = 1_000


def card(rank: int, *, world_size: int = 2, rounds: list[tuple[int, int]], ends: list[int]) -> KinetoTrace:
    """A rank that computes from one moment to another and then meets the others in an all-reduce, round by round."""
    trace = KinetoTrace(rank, world_size)
    for number, ((start, stop), end) in enumerate(zip(rounds, ends, strict=True)):
        trace.kernel(f"compute {number}", start * MS, stop * MS)
        trace.all_reduce(stop * MS, end * MS, sequence=number, stream=7)
    return trace


class TestTwoCardAllReduce:
    """Card 0 is ready at 4 ms, card 1 at 9 ms; the transfer takes 2 ms once both are."""

    @pytest.fixture
    def run(self, tmp_path: Path) -> Run:
        return opened(tmp_path, card(0, rounds=[(0, 4)], ends=[11]), card(1, rounds=[(0, 9)], ends=[11]))

    def test_the_call_is_wait_and_transfer(self, run: Run) -> None:
        (collective,) = run.communication().collectives
        calls = {call.participant: call for call in collective.calls}
        assert (calls[0, 0].wait_ns, calls[0, 0].transfer_ns) == (5 * MS, 2 * MS)
        assert (calls[1, 0].wait_ns, calls[1, 0].transfer_ns) == (0, 2 * MS)
        assert collective.last == (1, 0)
        assert {call.end_ns for call in collective.calls} == {11 * MS}

    def test_the_path_is_the_late_card_then_the_transfer(self, run: Run) -> None:
        path = run.critical_path()
        assert [(kind, ns) for kind, _, _, ns in told(path.segments)] == [("compute", 9 * MS), ("transfer", 2 * MS)]
        assert path.segments.rank[0] == 1
        assert path.segments.waiting_for[1] == (1, 0)
        assert path.segments.edge[1] == "rendezvous"
        assert path.makespan_ns == 11 * MS

    def test_the_early_card_has_slack(self, run: Run) -> None:
        slack = run.critical_path(slack=True).slack
        assert slack is not None
        by_rank = {
            rank: ns
            for rank, name, ns in zip(slack.rank.tolist(), slack.name, slack.slack_ns.tolist(), strict=True)
            if name == "compute 0"
        }
        assert by_rank == {0: 5 * MS, 1: 0}

    def test_a_faster_early_card_waits_longer(self, run: Run) -> None:
        faster = run.what_if(Scale("compute", 0.5), ranks=[0])
        assert (faster.predicted_ns, faster.saved_ns, faster.exact) == (11 * MS, 0, True)
        assert told(faster.segments)[0] == ("compute", 1, "compute 0", 9 * MS)

    def test_a_faster_late_card_moves_the_path_to_the_other(self, run: Run) -> None:
        faster = run.what_if(Scale("compute", 3 / 9), ranks=[1])
        assert (faster.predicted_ns, faster.exact) == (6 * MS, True)
        assert [(kind, rank, ns) for kind, rank, _, ns in told(faster.segments)] == [
            ("compute", 0, 4 * MS),
            ("transfer", 0, 2 * MS),
        ]

    def test_only_the_transfer_can_be_removed(self, run: Run) -> None:
        nothing = run.what_if(Scale("@transfer", 0))
        assert (nothing.predicted_ns, nothing.exact) == (9 * MS, True)
        answer = run.communication()
        assert answer.removable_transfer_ns == 2 * MS
        assert sum(p.busy_ns for p in answer.participants) == 9 * MS


def test_the_early_card_at_2_ms_measured_says_the_same(tmp_path: Path) -> None:
    """Measured instead of supposed: the call of card 0 grows to 9 ms, and the network is no slower."""
    run = opened(tmp_path, card(0, rounds=[(0, 2)], ends=[11]), card(1, rounds=[(0, 9)], ends=[11]))
    (collective,) = run.communication().collectives
    early = collective.calls[0]
    assert early.end_ns - early.arrival_ns == 9 * MS
    assert (early.wait_ns, early.transfer_ns) == (7 * MS, 2 * MS)
    assert run.critical_path().by_kind_ns == {"compute": 9 * MS, "transfer": 2 * MS}


def test_two_ranks_two_rounds(tmp_path: Path) -> None:
    """A computes 10 then 2 ms, B 2 then 10, with an all-reduce of 1 ms after each."""
    a = card(0, rounds=[(0, 10), (11, 13)], ends=[11, 22])
    b = card(1, rounds=[(0, 2), (11, 21)], ends=[11, 22])
    run = opened(tmp_path, a, b)
    path = run.critical_path()
    assert path.makespan_ns == 22 * MS
    assert [(kind, rank, ns) for kind, rank, _, ns in told(path.segments) if kind == "compute"] == [
        ("compute", 0, 10 * MS),
        ("compute", 1, 10 * MS),
    ]
    assert [kind for kind, _, _, _ in told(path.segments)] == ["compute", "transfer", "compute", "transfer"]
    assert path.by_kind_ns == {"compute": 20 * MS, "transfer": 2 * MS}
    answer = run.communication()
    assert answer.removable_transfer_ns == 2 * MS
    assert answer.removable_communication_ns == 10 * MS
    alone = run.what_if(Scale("@transfer", 0), Drop("@rendezvous"))
    assert (alone.predicted_ns, alone.exact) == (12 * MS, True)


def test_a_hidden_launch_makes_a_bound(tmp_path: Path) -> None:
    """The second kernel was launched 5 us before it could start, behind the first."""
    trace = KinetoTrace()
    trace.kernel("long", 10 * US, 110 * US, call=(0, 3 * US))
    trace.kernel("queued", 110 * US, 120 * US, call=(105 * US, 108 * US))
    run = opened(tmp_path, trace)
    gone = run.what_if(Drop("^long$"))
    assert not gone.exact
    assert gone.predicted_ns == 115 * US, "by the launch's start, for no launch latency was seen"
    assert run.what_if(Scale("^queued$", 0)).exact, "nothing hides behind the last kernel"


def test_a_long_synchronisation_is_no_work(tmp_path: Path) -> None:
    """A call of 8 ms waits for a kernel: the path runs through the kernel, and back to the host with a small lag."""
    trace = KinetoTrace()
    trace.kernel("long", 20 * US, 8 * MS, call=(0, 10 * US))
    trace.device_synchronize(10 * US, 8 * MS + 10 * US)
    run = opened(tmp_path, trace)
    path = run.critical_path(slack=True)
    assert told(path.segments) == [
        ("launch", 0, "long", 20 * US),
        ("compute", 0, "long", 8 * MS - 20 * US),
        ("host", 0, "cudaDeviceSynchronize", 10 * US),
    ]
    assert path.segments.edge.tolist() == [None, "launch", "host-synchronisation"]
    assert path.segments.waiting_for[2] == (0, 0)
    assert path.slack is not None
    assert path.slack.slack_ns[path.slack.name == "cudaDeviceSynchronize"].tolist() == [-1]
    assert path.to_dict()["slack"][-2]["slack_ns"] is None  # type: ignore[index, call-overload]


def test_with_half_the_ranks_nothing_is_split(tmp_path: Path) -> None:
    run = opened(tmp_path, *(card(rank, world_size=4, rounds=[(0, 4 + 5 * rank)], ends=[11]) for rank in (0, 1)))
    answer = run.communication()
    assert not answer.collectives
    assert [call.participant for call in answer.unmatched] == [(0, 0), (1, 0)]
    assert {call.reason for call in answer.unmatched} == {"some of its participants are absent from the capture"}
    assert answer.removable_transfer_ns is None
    assert answer.removable_communication_ns is None
    unknown = ["/result/removable", "/result/collectives/*/purpose", "/result/by_purpose/*/removable"]
    assert [skipped.what for skipped in answer.skipped] == unknown
    assert run.critical_path().by_kind_ns == {"compute": 4 * MS, "communication": 7 * MS}


def test_a_kernel_that_runs_when_the_window_opens_is_clipped_and_binds(tmp_path: Path) -> None:
    trace = KinetoTrace()
    trace.step(1, 0, 10 * US)
    trace.step(2, 10 * US, 30 * US)
    trace.kernel("of step 1", 5 * US, 40 * US, call=(1 * US, 2 * US))
    trace.kernel("of step 2", 40 * US, 50 * US, call=(12 * US, 13 * US))
    run = opened(tmp_path, trace)
    path = run.critical_path(step=2)
    assert path.window.to_dict() == {"start_ns": 10 * US, "end_ns": 50 * US}
    assert told(path.segments) == [("compute", 0, "of step 1", 30 * US), ("compute", 0, "of step 2", 10 * US)]
    assert run.communication(step=2).participants[0].compute_ns == 40 * US
    assert run.what_if(Scale("of step 1", 2), step=2).predicted_ns == 70 * US
    assert run.critical_path(step=1).window.to_dict() == {"start_ns": 0, "end_ns": 40 * US}


def test_three_endpoints_are_three_moments(tmp_path: Path) -> None:
    """Call-return, ready and fetched; a step that compiles is no part of the steady state."""
    trace = KinetoTrace()
    for number, (at, compile_ns) in enumerate([(0, 500 * US), (1 * MS, 0), (2 * MS, 0)]):
        trace.step(number, at, at + 900 * US)
        if compile_ns:
            trace.host("backend_compile", at, at + compile_ns)
        began = at + compile_ns
        trace.host("traceflow.call", began, began + 50 * US, category="user_annotation")
        trace.host("traceflow.ready", began + 50 * US, began + 200 * US, category="user_annotation")
        trace.host("traceflow.fetch", began + 200 * US, began + (230 + number) * US, category="user_annotation")
    answer = opened(tmp_path, trace).summary()
    returned, ready, fetched = (
        [getattr(step, name) - step.start_ns for step in answer.steps]
        for name in ("returned_ns", "ready_ns", "fetched_ns")
    )
    assert returned == [550 * US, 50 * US, 50 * US]
    assert ready == [700 * US, 200 * US, 200 * US]
    assert fetched == [730 * US, 231 * US, 232 * US]
    assert answer.steady_state is not None
    assert (answer.steady_state.steps, answer.steady_state.maximum_ns) == (2, 232 * US)
    assert [finding.code for finding in answer.findings] == ["TF205"]


def test_one_operation_on_two_tracks_counts_once(tmp_path: Path) -> None:
    """A source-scope track covers the kernels that run below it."""
    trace = KinetoTrace()
    trace.kernel("a", 0, 4 * US)
    trace.kernel("b", 6 * US, 10 * US)
    trace.device_annotation("layer 1", 0, 10 * US)
    trace.device_annotation("ProfilerStep#1", 0, 10 * US)
    run = opened(tmp_path, trace)
    (participant,) = run.communication().participants
    assert (participant.compute_ns, participant.idle_ns) == (8 * US, 2 * US)
    assert run.summary().event_count == 2
    assert run.critical_path().by_kind_ns == {"compute": 8 * US, "idle": 2 * US}


def test_a_collective_and_its_annotation_count_once(tmp_path: Path) -> None:
    trace = KinetoTrace()
    trace.all_reduce(0, 10 * US, sequence=0, stream=NCCL)
    trace.device_annotation("nccl:all_reduce", 0, 10 * US, stream=NCCL)
    (participant,) = opened(tmp_path, trace).communication().participants
    assert participant.busy_ns == 10 * US
