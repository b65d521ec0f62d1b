"""Waits between the streams of a GPU that a schedule implies: a done has no event, and yet what follows waits for it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from test_hlo_dependencies import BODY, ENTRY, Executed, module, needs, recording

from traceflow.analyzers.dependencies import dependencies
from traceflow.analyzers.dependencies.stream_waits import stream_waits
from traceflow.graph import EdgeKind
from traceflow.program.module import HloModule
from traceflow.trace.model import LaneKind

PROGRAM = 77


def waits(program: HloModule, *without_event: str) -> set[tuple[str, str]]:
    """Pairs (waiting, awaited) where all but parameters, dones and what is named have events."""
    silent = {"parameter", "get-tuple-element"}
    executed = np.array(
        [
            opcode not in silent and not opcode.endswith("-done") and name not in without_event
            for name, opcode in zip(program.instruction_name, program.opcode, strict=True)
        ]
    )
    names = program.instruction_name
    return {(names[waiting], names[awaited]) for waiting, awaited in stream_waits(program, executed)}


GATHER = module(
    [
        ("x", "parameter", (), ENTRY, 0),
        ("before", "fusion", ("x",), ENTRY, 0),
        ("start", "all-gather-start", ("x",), ENTRY, 0),
        ("meanwhile", "fusion", ("x",), ENTRY, 0),
        ("done", "all-gather-done", ("start",), ENTRY, 0),
        ("unrelated", "fusion", ("x",), ENTRY, 0),
        ("user", "fusion", ("done",), ENTRY, 0),
    ]
)


def test_a_start_waits_for_what_was_before_and_what_comes_after_a_done_for_the_start() -> None:
    assert waits(GATHER) == {("start", "before"), ("unrelated", "start")}


def test_without_a_schedule_nothing_is_said() -> None:
    assert waits(replace(GATHER, schedule=np.full(len(GATHER), -1, np.int32))) == set()


def test_a_done_that_has_an_event_speaks_for_itself() -> None:
    everything = np.ones(len(GATHER), bool)
    pairs = {(GATHER.instruction_name[a], GATHER.instruction_name[b]) for a, b in stream_waits(GATHER, everything)}
    assert ("unrelated", "start") not in pairs


def test_a_second_start_waits_for_the_first_when_that_is_done_before() -> None:
    chained = module(
        [
            ("x", "parameter", (), ENTRY, 0),
            ("one", "all-gather-start", ("x",), ENTRY, 0),
            ("one.done", "all-gather-done", ("one",), ENTRY, 0),
            ("two", "all-reduce-start", ("one.done",), ENTRY, 0),
            ("two.done", "all-reduce-done", ("two",), ENTRY, 0),
            ("user", "fusion", ("two.done",), ENTRY, 0),
        ]
    )
    assert waits(chained) == {("two", "one"), ("user", "one"), ("user", "two")}


WRAPPED = module(
    [
        ("x", "parameter", (), ENTRY, 0),
        ("start", "async-start", ("x",), ENTRY, 0),
        ("done", "async-done", ("start",), ENTRY, 0),
        ("user", "fusion", ("done",), ENTRY, 0),
        ("p", "parameter", (), BODY, 0),
        ("scatter", "reduce-scatter", ("p",), BODY, 0),
    ],
    roots=("user", "scatter"),
    calls={"start": (BODY,)},
)


def test_the_work_that_an_asynchronous_start_wraps_is_what_is_waited_for() -> None:
    assert waits(WRAPPED, "start") == {("user", "scatter")}


def test_a_user_of_wrapped_work_needs_it_on_any_lane() -> None:
    assert needs(WRAPPED, [("scatter", 0, 50, 0), ("user", 60, 70, 0)]) == {("scatter@50", "user@60")}


def on_streams(program: HloModule, executed: list[Executed]) -> set[tuple[int, int]]:
    trace = recording(program, executed)
    streams = replace(trace, lanes=replace(trace.lanes, kind=np.full(len(trace.lanes), LaneKind.STREAM, np.int8)))
    graph = dependencies(streams, {PROGRAM: program}).graph
    data = graph.kind == EdgeKind.DATA
    times = graph.time_ns
    return {(int(times[u]), int(times[v])) for u, v in zip(graph.source[data], graph.targets()[data], strict=True)}


def test_only_streams_are_told_by_the_schedule() -> None:
    executed = [("before", 0, 10, 0), ("start", 12, 60, 0), ("meanwhile", 61, 62, 0), ("unrelated", 65, 70, 0)]
    assert (60, 65) in on_streams(GATHER, executed)
    assert needs(GATHER, executed) == set()
