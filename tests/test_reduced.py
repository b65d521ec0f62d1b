"""What random programs brought to light, each reduced to the smallest program that shows it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from handmade import Builder
from oracle import recorded
from simulator.changes import scaled
from simulator.engine import simulate
from simulator.program import (
    Clock,
    Exchange,
    HandOff,
    Instruction,
    Kernel,
    Launch,
    Operator,
    Part,
    Program,
    Record,
    Scope,
    Synchronise,
    Thread,
)

from traceflow.analyzers.changes import Drop, Scale
from traceflow.analyzers.critical_path import critical_path
from traceflow.analyzers.dependencies import dependencies
from traceflow.analyzers.matching import match
from traceflow.trace.model import Kind

MAIN, OTHER, ENGINE = 1, 2, 3


def rank(*body: Instruction | int) -> list[Thread]:
    """A rank with one thread."""
    return [Thread(MAIN, body)]


def operator(name: str, *body: Instruction | int) -> Operator:
    """An operator without time of its own around its calls, unless the body says so."""
    return Operator(name, body)


def launch(name: str, duration_ns: int, stream: int = 7, latency_ns: int = 0) -> Operator:
    """An operator that launches a kernel."""
    return operator(f"aten::{name}", 10, Launch(stream, (Kernel(name, duration_ns),), 20, latency_ns), 10)


def exchange(operation: str, ranks: int, splits: tuple[tuple[int, ...], ...] = ()) -> Exchange:
    """The first collective of everybody."""
    return Exchange(operation, "0", tuple(range(ranks)), 1, splits=splits)


def part(of: Exchange, duration_ns: int) -> Operator:
    """An operator that takes part in a collective."""
    work = Part(of, duration_ns)
    return Operator("record_param_comms", (10, Launch(20, (work,), 20)), part=work)


# Who needs whom.


def test_two_ranks_between_which_rows_go_one_way_only_wait_for_each_other(tmp_path: Path) -> None:
    rows = exchange("all_to_all", 2, splits=((3, 5), (0, 3)))
    run = recorded(simulate(Program([rank(part(rows, 7)), rank(100, part(rows, 7))])), tmp_path)
    (collective,) = run.communication().collectives
    assert [(call.wait_ns, call.transfer_ns) for call in collective.calls] == [(100, 7), (0, 7)]


def test_rows_that_a_rank_does_not_send_to_itself_leave_out_nobody(tmp_path: Path) -> None:
    rows = exchange("all_to_all", 2, splits=((0, 5), (5, 0)))
    program = Program([rank(part(rows, 7)), rank(100, part(rows, 7))], ["a", "b"], {"b": Clock(4_000_000)})
    assert recorded(simulate(program), tmp_path).clocks().offset_ns == {0: 0, 1: 4_000_000}


def test_splits_that_do_not_fit_the_group_say_nothing(tmp_path: Path) -> None:
    rows = exchange("all_to_all", 3, splits=((0, 5, 1), (5, 0, 1), (1, 1, 0)))
    run = recorded(
        simulate(Program([rank(50 * r, part(rows, 7)) if r else rank(part(rows, 7)) for r in range(3)])), tmp_path
    )
    trace = run.trace
    short = tuple(text.replace("[0, 5, 1]", "[0, 5]") for text in trace.strings)
    assert match(replace(trace, strings=short)).last_ns.tolist() == match(trace).last_ns.tolist()


@pytest.mark.parametrize(("device", "send_waits_until"), [(0, 30), (None, 10)])
def test_a_send_waits_for_its_receive_on_devices_only(device: int | None, send_waits_until: int) -> None:
    builder = Builder()
    lanes = [builder.lane(r, "7", *(() if device is None else (device,))) for r in range(2)]
    builder.collective(lanes, [10, 30], 40, "transfer")
    trace = builder.trace()
    operations = [*trace.strings, "send", "recv"]
    calls = trace.communications
    by_rank = trace.lanes.rank[trace.events.lane[calls.event]]
    trace = replace(
        trace,
        strings=tuple(operations),
        communications=replace(
            calls,
            operation=np.array([operations.index(("send", "recv")[r]) for r in by_rank], np.int32),
            source=np.zeros(2, np.int64),
            destination=np.ones(2, np.int64),
        ),
    )
    last_ns = dict(zip(by_rank.tolist(), match(trace).last_ns.tolist(), strict=True))
    first_ns = 10  # times count from the first event
    assert last_ns == {0: send_waits_until - first_ns, 1: 30 - first_ns}


# Latencies that hide.


@pytest.mark.parametrize("factor", [2, 1000])
def test_a_longer_launch_may_come_out_of_hiding(tmp_path: Path, factor: float) -> None:
    program = Program([rank(launch("long", 1000), launch("after", 500, latency_ns=5))])
    run = recorded(simulate(program), tmp_path)
    prediction, truth = run.what_if(Scale("@launch", factor)), simulate(program, scaled("@launch", factor)).makespan_ns
    assert not prediction.exact
    assert (prediction.predicted_ns == truth) == (factor == 2)


def test_a_launch_that_nothing_hides_can_be_scaled_exactly(tmp_path: Path) -> None:
    program = Program([rank(launch("only", 1000, latency_ns=5))])
    prediction = recorded(simulate(program), tmp_path).what_if(Scale("@launch", 100))
    assert (prediction.exact, prediction.saved_ns) == (True, -495)


def test_what_is_dropped_has_no_latency_left_to_hide(tmp_path: Path) -> None:
    program = Program([rank(launch("long", 1000, latency_ns=5), launch("after", 500, latency_ns=5))])
    prediction = recorded(simulate(program), tmp_path).what_if(Drop("^(long|after)$"))
    assert (prediction.exact, prediction.predicted_ns) == (True, 80)  # when the host is done


# Calls that wait for nothing.


@pytest.mark.parametrize(
    "wait",
    [
        (Synchronise(Scope.STREAM, 13, return_ns=3000),),
        (Record(1, 13, 20), Synchronise(Scope.EVENT, 1, return_ns=3000)),
    ],
)
@pytest.mark.parametrize("factor", [0, 2])
def test_a_call_that_waits_for_an_empty_stream_waits_for_no_other(
    tmp_path: Path, wait: tuple[Instruction, ...], factor: float
) -> None:
    program = Program([rank(launch("elsewhere", 2000), operator("aten::item", 10, *wait, 10), operator("last", 5000))])
    run = recorded(simulate(program), tmp_path)
    assert (
        run.what_if(Scale("elsewhere", factor)).predicted_ns
        == simulate(program, scaled("elsewhere", factor)).makespan_ns
    )
    assert run.dependencies.notes == ()


# Work that takes no time, and work that overlaps.


@pytest.mark.parametrize("factor", [0, 2])
@pytest.mark.parametrize("name", ["before", "after"])
def test_work_without_duration_comes_before_what_starts_with_it(tmp_path: Path, name: str, factor: float) -> None:
    program = Program([rank(launch("before", 1000), launch("nothing", 0), launch("after", 500), launch("end", 300))])
    run = recorded(simulate(program), tmp_path)
    assert run.critical_path().by_kind_ns == {"host": 10, "compute": 1800}
    assert run.what_if(Scale(name, factor)).predicted_ns == simulate(program, scaled(name, factor)).makespan_ns


def test_work_that_outlasts_the_next_binds_the_one_after() -> None:
    builder = Builder()
    stream = builder.lane(0, "stream 7", 0)
    for name, start_ns, end_ns in (("long", 0, 100), ("short", 50, 60), ("after", 100, 120)):
        builder.event(stream, start_ns, end_ns, name, Kind.COMPUTE)
    trace = builder.trace()
    path = critical_path(trace, dependencies(trace, {}))
    assert path.segments.name.tolist() == ["long", "after"]
    assert path.by_kind_ns == {"compute": 120}


# Work that one thread does for another.


def backward(name: str = "") -> Instruction:
    """A pass on the engine's thread, in an operator of the caller or in none."""
    body = operator("autograd::engine::evaluate_function: F", 900), 20, operator("AddBackward0", 400)
    given = HandOff(ENGINE, body, awake_ns=30, return_ns=40)
    return operator(name, given) if name else given


@pytest.mark.parametrize("name", ["", "backward"])
@pytest.mark.parametrize("pattern", ["AddBackward0", "^autograd", "@host"])
def test_the_caller_waits_for_the_engine_with_or_without_an_event_of_its_own(
    tmp_path: Path, name: str, pattern: str
) -> None:
    program = Program([rank(operator("forward", 500), backward(name), operator("optimizer", 300))])
    run = recorded(simulate(program), tmp_path)
    assert run.what_if(Scale(pattern, 2)).predicted_ns == simulate(program, scaled(pattern, 2)).makespan_ns
    lanes = run.critical_path().segments.lane.tolist()
    assert {str(MAIN), str(ENGINE)} == set(lanes)


def test_an_operator_that_contains_the_work_of_an_unrelated_thread_works_itself(tmp_path: Path) -> None:
    other = Thread(OTHER, (operator("load", 900),), start_ns=50)
    program = Program([[*rank(operator("forward", 1000), operator("end", 10)), other]])
    run = recorded(simulate(program), tmp_path)
    assert run.what_if(Scale("load", 0.1)).saved_ns == 0
    assert set(run.critical_path().segments.lane) == {str(MAIN)}


def test_a_thread_that_works_beside_another_is_handed_nothing_by_it(tmp_path: Path) -> None:
    loader = Thread(OTHER, (operator("load", 1005), 1000, operator("load", 5000)))
    main = operator("a", 1000), 20, operator("b", 800), 300, operator("c", 1000)
    run = recorded(simulate(Program([[*rank(*main), loader]])), tmp_path)
    assert run.what_if(Scale("^b$", 2)).saved_ns == 0  # it does not keep the loader waiting


def test_of_two_idle_threads_the_one_that_had_to_wait_for_the_work_gave_it(tmp_path: Path) -> None:
    loader = Thread(OTHER, (operator("load", 300), 2500, operator("load", 5000)))
    main = operator("forward", 500), backward(), operator("optimizer", 300)
    run = recorded(simulate(Program([[*rank(*main), loader]])), tmp_path)
    assert run.what_if(Scale("AddBackward0", 2)).saved_ns == 0


def test_work_is_handed_over_by_the_thread_that_its_data_comes_from(tmp_path: Path) -> None:
    forward = Operator("forward", (500,), sequence=1)
    taken_up = Operator("AddBackward0", (400,), sequence=1, backward=True)
    body = operator("autograd::engine::evaluate_function: F", 900), 20, taken_up
    main = forward, HandOff(ENGINE, body, awake_ns=300, return_ns=300), operator("optimizer", 5000)
    around = Thread(OTHER, (operator("load", 1400),), start_ns=750)  # it leaves less time around the pass
    program = Program([[*rank(*main), around]])
    run = recorded(simulate(program), tmp_path)
    for pattern in ("load", "AddBackward0", "forward"):
        assert run.what_if(Scale(pattern, 2)).predicted_ns == simulate(program, scaled(pattern, 2)).makespan_ns
    assert set(run.critical_path().segments.lane) == {str(MAIN), str(ENGINE)}
