"""The simulator itself, on programs whose every moment was worked out by hand."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from handmade import MS
from hypothesis import given, settings
from hypothesis import strategies as st
from simulator.changes import lengthened, scaled
from simulator.engine import Attendance, Lane, Outcome, simulate
from simulator.kineto import BASE_NS, STARTS_NS, write
from simulator.program import (
    POINT_TO_POINT,
    BlockingCopy,
    Clock,
    Exchange,
    HandOff,
    Instruction,
    Kernel,
    Kind,
    Launch,
    Operator,
    Part,
    Program,
    Record,
    Scope,
    Step,
    StreamWait,
    Synchronise,
    Thread,
)
from simulator.random_programs import Recipe, random_program
from simulator.script import Latencies

MAIN = 1
Event = dict[str, Any]


def program(*bodies: tuple[Instruction | int, ...]) -> Program:
    """One thread per rank."""
    return Program([[Thread(MAIN, body)] for body in bodies])


def launch(name: str, duration_ns: int, stream: int = 7, **more: int) -> Launch:
    """A call of 1 ns that launches one kernel."""
    return Launch(stream, (Kernel(name, duration_ns),), 1, **more)


def meeting(operation: str, ranks: int, **more: Any) -> Exchange:
    """The first collective of everybody."""
    return Exchange(operation, "all", tuple(range(ranks)), 1, **more)


def when(outcome: Outcome, name: str, rank: int = 0) -> list[tuple[int, int]]:
    """Start and end of the spans of a name."""
    spans = [span for span in outcome.spans if span.lane.rank == rank and not isinstance(span.what, Step)]
    return [(span.start_ns, span.end_ns) for span in spans if getattr(span.what, "name", None) == name]


# Known answers.


def two_cards() -> Program:
    """Card 0 is ready at 4 ms, card 1 at 9 ms; the transfer takes 2."""
    parts = Part(meeting("allreduce", 2), 2 * MS)
    return program(
        (Launch(7, (Kernel("a", 4 * MS),), 1), Launch(7, (parts,), 1)),
        (Launch(7, (Kernel("b", 9 * MS),), 1), Launch(7, (parts,), 1)),
    )


def test_two_cards() -> None:
    outcome = simulate(two_cards())
    assert outcome.makespan_ns == 11 * MS
    assert outcome.exchanges[meeting("allreduce", 2)] == {
        0: Attendance(4 * MS, 9 * MS, 11 * MS),
        1: Attendance(9 * MS, 9 * MS, 11 * MS),
    }


@pytest.mark.parametrize(
    ("pattern", "factor", "ends_ms"), [("^a$", 0.5, 11), ("^b$", 1 / 3, 6), ("@transfer", 0, 9), ("@compute", 0, 2)]
)
def test_two_cards_in_other_runs(pattern: str, factor: float, ends_ms: int) -> None:
    assert simulate(two_cards(), scaled(pattern, factor)).makespan_ns == pytest.approx(ends_ms * MS, abs=1)


def test_changes_of_one_rank_and_of_one_piece() -> None:
    assert simulate(two_cards(), scaled("@compute", 2, {0})).makespan_ns == 11 * MS
    assert simulate(two_cards(), scaled("@compute", 2, {1})).makespan_ns == 20 * MS
    assert simulate(two_cards(), lengthened(Lane(1, True, 7), 0, 5)).makespan_ns == 11 * MS + 5


def test_two_rounds_with_and_without_rendezvous() -> None:
    first, second = (Part(Exchange("allreduce", "all", (0, 1), number), MS) for number in (1, 2))
    both = program(
        *(
            (launch("x", x * MS), Launch(7, (first,), 1), launch("y", y * MS), Launch(7, (second,), 1))
            for x, y in ((10, 2), (2, 10))
        )
    )
    assert simulate(both).makespan_ns == 22 * MS
    assert simulate(both, scaled("@transfer", 0)).makespan_ns == 20 * MS
    assert simulate(both, scaled("@transfer", 0), rendezvous=False).makespan_ns == 12 * MS


def test_a_latency_hides_behind_the_work_before_or_it_does_not() -> None:
    body = launch("long", 100, latency_ns=5), 10, launch("after", 50, latency_ns=5)
    outcome = simulate(program(body))
    assert when(outcome, "after") == [(105, 155)]
    assert when(simulate(program(body), scaled("long", 0)), "after") == [(16, 66)]
    assert when(simulate(program(body), scaled("@launch", 20)), "after") == [(200, 250)]


def test_a_latency_after_everything_is_never_hidden() -> None:
    work = (Kernel("after", 50, dispatch_ns=5),)
    outcome = simulate(program((launch("long", 100), 10, Launch(7, work, 1))))
    assert when(outcome, "after") == [(105, 155)]


def test_streams_are_queues_and_wait_for_events() -> None:
    outcome = simulate(program((
        launch("a", 100, 1),
        Record(1, 1, 1),
        launch("b", 50, 1),
        StreamWait(1, 2, 1),
        launch("c", 10, 2),
        launch("d", 10, 2),
    )))  # fmt: skip
    assert when(outcome, "b") == [(100, 150)]
    assert when(outcome, "c") == [(100, 110)]
    assert when(outcome, "d") == [(110, 120)]


def test_a_record_inherits_what_its_stream_waits_for() -> None:
    outcome = simulate(program((
        launch("a", 100, 1), Record(1, 1, 1), StreamWait(1, 2, 1), Record(2, 2, 1), StreamWait(2, 3, 1), launch("b", 5, 3)
    )))  # fmt: skip
    assert when(outcome, "b") == [(100, 105)]


def test_an_event_recorded_on_an_empty_stream_is_done() -> None:
    outcome = simulate(program((Record(1, 1, 3), StreamWait(1, 2, 3), launch("b", 5, 2))))
    assert when(outcome, "b") == [(6, 11)]


@pytest.mark.parametrize(
    ("call", "until_ns"),
    [
        (Synchronise(Scope.STREAM, 1), 100),
        (Synchronise(Scope.STREAM, 2, return_ns=7), 308),
        (Synchronise(Scope.STREAM, 3), 3),
        (Synchronise(Scope.EVENT, 1, awake_ns=4), 104),
        (Synchronise(Scope.DEVICE, awake_ns=4, return_ns=7), 312),
    ],
)
def test_synchronisation(call: Synchronise, until_ns: int) -> None:
    outcome = simulate(program((launch("a", 100, 1), launch("b", 300, 2), Record(1, 1, 1), call)))
    assert when(outcome, call.name) == [(3, until_ns)]


def test_a_copy_blocks() -> None:
    copy = BlockingCopy(1, Kernel("copy", 20, Kind.COPY), "cudaMemcpy", return_ns=3)
    outcome = simulate(program((launch("a", 100, 1), copy)))
    assert when(outcome, "copy") == [(100, 120)]
    assert when(outcome, "cudaMemcpy") == [(1, 123)]


def test_work_of_a_graph_is_in_order() -> None:
    outcome = simulate(program((Launch(1, (Kernel("a", 10), Kernel("b", 20, dispatch_ns=2)), 5, latency_ns=4),)))
    assert (when(outcome, "a"), when(outcome, "b")) == ([(4, 14)], [(16, 36)])


def test_an_operator_takes_its_own_time_and_that_of_its_calls() -> None:
    outcome = simulate(program((Operator("f", (10, Operator("g", (5,)), 20, launch("a", 1))), 3, Operator("h", (1,)))))
    assert (when(outcome, "f"), when(outcome, "g"), when(outcome, "h")) == ([(0, 36)], [(10, 15)], [(39, 40)])
    outcome = simulate(outcome.program, scaled("^f$", 2))
    assert (when(outcome, "f"), when(outcome, "g")) == ([(0, 66)], [(20, 25)])


def test_a_thread_goes_on_when_what_it_handed_over_is_done() -> None:
    given = HandOff(2, (Operator("there", (50,)),), awake_ns=3, return_ns=4)
    outcome = simulate(program((Operator("before", (10,)), given, Operator("after", (5,)))))
    assert (when(outcome, "there"), when(outcome, "after")) == ([(13, 63)], [(67, 72)])


def arrivals(exchange: Exchange, *durations_ns: int) -> dict[int, Attendance]:
    """Rank r arrives at 100 r."""
    parts = [Part(exchange, duration) for duration in durations_ns]
    bodies = [(launch("x", 100 * rank), Launch(7, (part,), 1)) for rank, part in enumerate(parts)]
    arrived = simulate(program(*bodies)).exchanges[exchange]
    return {rank: arrived[rank] for rank in exchange.members}


def test_of_a_broadcast_everybody_waits_for_the_root_only() -> None:
    assert arrivals(meeting("broadcast", 3, root=1), 7, 8, 9) == {
        0: Attendance(1, 100, 107),
        1: Attendance(100, 100, 108),
        2: Attendance(200, 200, 209),
    }


def test_of_a_reduce_only_the_root_waits() -> None:
    assert arrivals(meeting("reduce", 3, root=1), 7, 8, 9) == {
        0: Attendance(1, 1, 8),
        1: Attendance(100, 200, 208),
        2: Attendance(200, 200, 209),
    }


def test_in_an_exchange_of_rows_wait_those_between_whom_rows_go_either_way() -> None:
    exchange = meeting("all_to_all", 3, splits=((1, 0, 0), (4, 0, 0), (0, 5, 0)))
    assert [exchange.needs(rank) for rank in range(3)] == [(0, 1), (0, 1, 2), (1, 2)]
    assert [attendance.last_ns for attendance in arrivals(exchange, 1, 1, 1).values()] == [100, 200, 200]


def test_a_send_and_its_receive_wait_for_each_other() -> None:
    exchange = Exchange(POINT_TO_POINT, "all", (1, 0), 1)
    assert arrivals(exchange, 7, 7) == {1: Attendance(100, 100, 107), 0: Attendance(1, 100, 107)}


def test_a_receive_waits_for_its_send_though_nobody_else_waits() -> None:
    exchange = Exchange(POINT_TO_POINT, "all", (1, 0), 1)
    part = (Launch(7, (Part(exchange, 7),), 1),)
    outcome = simulate(program((50, *part), (20, *part)), rendezvous=False)
    assert outcome.exchanges[exchange] == {0: Attendance(50, 50, 57), 1: Attendance(20, 20, 27)}


def test_what_waits_for_ever_is_told() -> None:
    alone = program((Launch(7, (Part(meeting("allreduce", 2), 1),), 1),), (1,))
    with pytest.raises(RuntimeError, match="1 processes wait"):
        simulate(alone)


# What is written.


def written(outcome: Outcome, folder: Path, rank: int = 0, **more: Any) -> dict[str, Any]:
    """A rank's file, with decimal numbers as they stand there."""
    (path,) = write(outcome, folder, **more).glob(f"rank{rank}.*")
    data = path.read_bytes()
    text = gzip.decompress(data) if more.get("packed") else data
    parsed: dict[str, Any] = json.loads(text, parse_float=Decimal)
    return parsed


def times_ns(event: Event) -> tuple[int, int]:
    """Start and end by the simulation's clock."""
    start = event["ts"] * 1000 - STARTS_NS
    return int(start), int(start + event["dur"] * 1000)


def test_files_show_every_span_to_the_ns(tmp_path: Path) -> None:
    outcome = simulate(random_program(3))
    for rank in outcome.program.ranks:
        shown = [event for event in written(outcome, tmp_path, rank)["traceEvents"] if event["ph"] == "X"]
        names = [event["name"] for event in shown if event["cat"] != "cuda_sync"]
        spans = [span for span in outcome.spans if span.lane.rank == rank]
        assert sorted(times_ns(event) for event in shown if event["cat"] != "cuda_sync") == sorted(
            (span.start_ns, span.end_ns) for span in spans
        )
        expected = [span.what.name if not isinstance(span.what, Step) else "ProfilerStep#" for span in spans]
        assert sorted(name.rstrip("0123456789") for name in names) == sorted(
            name.rstrip("0123456789") for name in expected
        )


@pytest.mark.parametrize("packed", [False, True])
def test_a_clock_that_is_off_shows_other_times(tmp_path: Path, *, packed: bool) -> None:
    job = replace(two_cards(), hosts=["a", "b"], clocks={"b": Clock(-3_000_001, 1_000_000)})
    (shown,) = [
        event for event in written(simulate(job), tmp_path, 1, packed=packed)["traceEvents"] if event["name"] == "b"
    ]
    assert times_ns(shown) == (-3_000_001, 9 * MS - 3_000_001 + 9_000)


def test_times_may_count_from_1970(tmp_path: Path) -> None:
    file = written(simulate(two_cards()), tmp_path, base_ns=0)
    first = min(event["ts"] for event in file["traceEvents"] if event["ph"] == "X")
    assert (file["baseTimeNanoseconds"], first * 1000) == (0, BASE_NS + STARTS_NS)


def test_a_file_says_what_the_exporter_says(tmp_path: Path) -> None:
    exchange = Exchange("broadcast", "4", (0, 1), 9, elements=64, root=1)
    body = (
        Operator("aten::mm", (1, launch("k", 9)), sequence=5),
        Operator(
            "record_param_comms",
            (1, Record(1, 7, 1), StreamWait(1, 20, 1), Launch(20, (Part(exchange, 3),), 1)),
            part=Part(exchange, 3),
        ),
        Synchronise(Scope.EVENT, 1),
    )
    file = written(simulate(program((Step(2, body),), (Step(2, body),))), tmp_path)
    events = {event["name"].split("(")[0]: event for event in file["traceEvents"]}
    operator, call = events["record_param_comms"]["args"], events["cudaLaunchKernelExC"]["args"]
    kernel, wait, sync = (
        events[name]["args"] for name in ("ncclDevKernel_Broadcast_RING_LL", "Stream Wait Event", "Event Sync")
    )
    said = {
        "Collective name": "broadcast",
        "Process Group Name": "4",
        "Process Group Ranks": "[0, 1]",
        "Seq": 9,
        "In msg nelems": 64,
    }
    assert said.items() <= operator.items()
    assert said.items() <= kernel.items()
    assert (operator["Rank"], kernel["correlation"], kernel["External id"]) == (
        1,
        call["correlation"],
        operator["External id"],
    )
    assert (wait["stream"], wait["wait_on_stream"]) == (20, 7)
    assert (
        wait["wait_on_cuda_event_record_corr_id"]
        == sync["wait_on_cuda_event_record_corr_id"]
        == events["cudaEventRecord"]["args"]["correlation"]
    )
    assert sync["correlation"] == events["cudaEventSynchronize"]["args"]["correlation"]
    assert events["ProfilerStep#2"]["cat"] == "user_annotation"
    assert events["fwdbwd"]["id"] == 5
    assert file["distributedInfo"]["pg_config"][0]["ranks"] == [0, 1]


def test_arguments_are_those_of_recorded_traces(tmp_path: Path, corpus: Callable[[str], Path]) -> None:
    known: dict[str, set[str]] = {}
    for name in ("a100_alexnet", "a100_event_sync", "a100_nccl_rank0of2"):
        events = json.loads(gzip.decompress(corpus(f"kineto/{name}.json.gz").read_bytes()))["traceEvents"]
        known = {key: known.get(key, set()) | names for key, names in (known | arguments(events)).items()}
    newer = {"Seq", "Rank", "Src Rank", "Dst Rank", "Sequence number", "Fwd thread id"}  # than these traces
    for seed in range(5):
        own = arguments(written(simulate(random_program(seed)), tmp_path)["traceEvents"])
        assert {key: names - newer - known[key] for key, names in own.items() if not names - newer <= known[key]} == {}


def arguments(events: list[Event]) -> dict[str, set[str]]:
    """The names of the arguments of each category, and of each kind of synchronisation record."""
    names: dict[str, set[str]] = {}
    for event in events:
        if event.get("ph") == "X" and event.get("cat") != "Trace":
            key = event["name"] if event["cat"] == "cuda_sync" else event["cat"].lower()
            names.setdefault(key, set()).update(event["args"])
    return names


# Random programs.

seeds = st.integers(0, 2**32)
few = settings(max_examples=30)


@few
@given(seeds)
def test_a_seed_always_gives_the_same_run(seed: int) -> None:
    assert simulate(random_program(seed)).spans == simulate(random_program(seed)).spans


@few
@given(seeds)
def test_streams_run_one_thing_at_a_time_and_nothing_before_its_launch(seed: int) -> None:
    outcome = simulate(random_program(seed, Recipe(Latencies(hidden=True))))
    calls = {(span.lane.rank, span.correlation): span for span in outcome.spans if not span.lane.on_device}
    streams: dict[Lane, list[tuple[int, int]]] = {}
    for span in outcome.spans:
        if span.lane.on_device:
            streams.setdefault(span.lane, []).append((span.start_ns, span.end_ns))
            assert calls[span.lane.rank, span.correlation].start_ns <= span.start_ns
    for spans in streams.values():
        assert all(before[1] <= after[0] for before, after in pairwise(sorted(spans)))


@few
@given(seeds, st.integers(0, 5_000))
def test_ends_differ_by_the_jitter_at_most(seed: int, jitter_ns: int) -> None:
    outcome = simulate(random_program(seed, Recipe(jitter_ns=jitter_ns)))
    for exchange, attendances in outcome.exchanges.items():
        ends = [attendance.end_ns for attendance in attendances.values()]
        if exchange.is_symmetric and exchange.operation != POINT_TO_POINT:
            assert max(ends) - min(ends) <= jitter_ns


@few
@given(seeds)
def test_even_ranks_do_the_same_at_the_same_time(seed: int) -> None:
    outcome = simulate(random_program(seed, Recipe(even=True)))
    spans = [[span[2:4] for span in outcome.spans if span.lane.rank == rank] for rank in outcome.program.ranks]
    assert all(sorted(own) == sorted(spans[0]) for own in spans)


@few
@given(seeds)
def test_without_latencies_behind_one_cause_there_are_none(seed: int) -> None:
    outcome = simulate(random_program(seed, Recipe(Latencies(visible=True, hidden=False))))
    assert simulate(outcome.program, scaled("@launch", 1000)).makespan_ns == outcome.makespan_ns
