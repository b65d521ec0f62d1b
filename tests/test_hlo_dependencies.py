"""Data edges of compiled programs: operands, through whatever has no event of its own, run by run, round by round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from test_canonical import trace_of

from traceflow.analyzers.dependencies import dependencies
from traceflow.graph import EdgeKind
from traceflow.program.module import HloModule
from traceflow.trace.canonical import canonical
from traceflow.trace.model import HloEvents, LaneKind, Trace

PROGRAM = 77
ENTRY, BODY, CONDITION = range(3)

Instruction = tuple[str, str, tuple[str, ...], int, int]  # name, opcode, operands, computation, parameter or element
Executed = tuple[str, int, int, int]  # instruction, start, end, run


def module(
    instructions: Sequence[Instruction],
    *,
    roots: tuple[str, ...] = (),
    calls: dict[str, tuple[int, ...]] | None = None,
    controls: dict[str, tuple[str, ...]] | None = None,
) -> HloModule:
    """A module from its instructions; an entry computation alone unless roots name more."""
    names = [row[0] for row in instructions]
    operands = [[names.index(name) for name in row[2]] for row in instructions]
    called = [list((calls or {}).get(name, ())) for name in names]
    before = [[names.index(other) for other in (controls or {}).get(name, ())] for name in names]
    number = np.array([row[4] for row in instructions], np.int32)
    opcode = tuple(row[1] for row in instructions)
    blank = ("",) * len(names)
    return HloModule(
        name="m",
        program_id=PROGRAM,
        instruction_name=tuple(names),
        opcode=opcode,
        computation=np.array([row[3] for row in instructions], np.int32),
        operand_offsets=offsets(operands),
        operands=flat(operands),
        control_offsets=offsets(before),
        controls=flat(before),
        called_offsets=offsets(called),
        called=flat(called),
        parameter_number=np.where(np.array(opcode) == "parameter", number, -1).astype(np.int32),
        tuple_index=np.where(np.array(opcode) == "get-tuple-element", number, -1).astype(np.int32),
        schedule=np.arange(len(names), dtype=np.int32),
        shape=blank,
        full_shape=blank,
        output_bytes=np.full(len(names), -1),
        operation_name=blank,
        source=blank,
        replica_groups={},
        source_target_pairs={},
        computation_name=("entry", "body", "condition"),
        computation_root=np.array([names.index(root) for root in roots or names[-1:]], np.int32),
        entry=ENTRY,
    )


def flat(lists: list[list[int]]) -> NDArray[np.int32]:
    return np.array([i for some in lists for i in some], np.int32)


def offsets(lists: list[list[int]]) -> NDArray[np.int64]:
    return np.cumsum([0, *map(len, lists)])


def recording(program: HloModule, executed: Sequence[Executed]) -> Trace:
    """A virtual device that ran instructions on one worker, where order alone is no dependency."""
    raw = trace_of([(1, start, end - start, name, -1) for name, start, end, _ in executed])
    lanes = replace(raw.lanes, kind=np.full(len(raw.lanes), LaneKind.WORKER, np.int8))
    rows = [program.instruction_name.index(name) for name, *_ in executed]
    hlo = HloEvents(
        np.arange(len(executed), dtype=np.int32),
        np.full(len(executed), PROGRAM),
        np.array(rows, np.int32),
        np.array([run for *_, run in executed]),
    )
    return canonical(replace(raw, lanes=lanes, hlo=hlo))


def needs(program: HloModule, executed: Sequence[Executed]) -> set[tuple[str, str]]:
    """Data edges as ("producer@end", "consumer@start")."""
    trace = recording(program, executed)
    graph = dependencies(trace, {PROGRAM: program}).graph
    names = [trace.strings[trace.events.name[event]] for event in graph.slices.event]
    data = graph.kind == EdgeKind.DATA
    return {
        (f"{names[u >> 1]}@{graph.time_ns[u]}", f"{names[v >> 1]}@{graph.time_ns[v]}")
        for u, v in zip(graph.source[data].tolist(), graph.targets()[data].tolist(), strict=True)
    }


CHAIN = module(
    [
        ("x", "parameter", (), ENTRY, 0),
        ("a", "fusion", ("x",), ENTRY, 0),
        ("view", "bitcast", ("a",), ENTRY, 0),
        ("b", "fusion", ("x",), ENTRY, 0),
        ("both", "tuple", ("view", "b"), ENTRY, 0),
        ("first", "get-tuple-element", ("both",), ENTRY, 0),
        ("second", "get-tuple-element", ("both",), ENTRY, 1),
        ("c", "fusion", ("first",), ENTRY, 0),
        ("d", "fusion", ("second", "c"), ENTRY, 0),
    ],
    controls={"b": ("a",)},
)


def test_operands_are_followed_to_the_producers_of_each_element() -> None:
    run = [("a", 0, 10, 1), ("b", 10, 20, 1), ("c", 20, 30, 1), ("d", 30, 40, 1)]
    assert needs(CHAIN, run) == {("a@10", "c@20"), ("b@20", "d@30"), ("c@30", "d@30"), ("a@10", "b@10")}


def test_an_instruction_without_an_event_is_followed_through() -> None:
    run = [("a", 0, 10, 1), ("b", 10, 20, 1), ("d", 30, 40, 1)]
    assert needs(CHAIN, run) == {("a@10", "d@30"), ("b@20", "d@30"), ("a@10", "b@10")}


def test_runs_do_not_mix() -> None:
    runs = [("a", 0, 10, 1), ("c", 10, 20, 1), ("a", 20, 30, 2), ("c", 30, 40, 2)]
    assert needs(CHAIN, runs) == {("a@10", "c@10"), ("a@30", "c@30")}


def test_what_was_cut_off_at_the_start_binds_nothing() -> None:
    assert needs(CHAIN, [("c", 0, 10, 1), ("d", 10, 20, 1)]) == {("c@10", "d@10")}


LOOP = module(
    [
        ("x", "parameter", (), ENTRY, 0),
        ("start", "fusion", ("x",), ENTRY, 0),
        ("init", "tuple", ("start", "x"), ENTRY, 0),
        ("loop", "while", ("init",), ENTRY, 0),
        ("out", "get-tuple-element", ("loop",), ENTRY, 0),
        ("end", "fusion", ("out",), ENTRY, 0),
        ("state", "parameter", (), BODY, 0),
        ("value", "get-tuple-element", ("state",), BODY, 0),
        ("other", "get-tuple-element", ("state",), BODY, 1),
        ("step", "fusion", ("value", "other"), BODY, 0),
        ("next", "tuple", ("step", "other"), BODY, 0),
        ("again", "parameter", (), CONDITION, 0),
        ("go", "constant", (), CONDITION, 0),
    ],
    roots=("end", "next", "go"),
    calls={"loop": (BODY, CONDITION)},
)


def test_a_loop_takes_its_first_value_from_outside_and_each_other_from_the_round_before() -> None:
    rounds = [("start", 0, 10, 1), ("step", 10, 20, 1), ("step", 20, 30, 1), ("step", 30, 40, 1)]
    assert needs(LOOP, rounds) == {("start@10", "step@10"), ("step@20", "step@20"), ("step@30", "step@30")}


def test_what_follows_a_loop_waits_for_all_of_it() -> None:
    run = [("start", 0, 10, 1), ("loop", 10, 45, 1), ("step", 12, 22, 1), ("step", 22, 32, 1), ("end", 45, 50, 1)]
    assert ("loop@45", "end@45") in needs(LOOP, run)


def test_a_loop_has_no_work_of_its_own() -> None:
    run = [("start", 0, 10, 1), ("loop", 10, 45, 1), ("step", 12, 22, 1), ("step", 25, 35, 1)]
    graph = dependencies(recording(LOOP, run), {PROGRAM: LOOP}).graph
    assert graph.work_ns.sum() == 10 + 2 * 10


ASYNC = module(
    [
        ("x", "parameter", (), ENTRY, 0),
        ("gather-start", "all-gather-start", ("x",), ENTRY, 0),
        ("matmul", "fusion", ("x",), ENTRY, 0),
        ("gather-done", "all-gather-done", ("gather-start",), ENTRY, 0),
        ("sum", "fusion", ("matmul", "gather-done"), ENTRY, 0),
    ]
)


def test_an_asynchronous_start_binds_its_done() -> None:
    run = [("gather-start", 0, 2, 1), ("matmul", 2, 20, 1), ("gather-done", 20, 25, 1), ("sum", 25, 30, 1)]
    assert needs(ASYNC, run) == {
        ("gather-start@2", "gather-done@20"),
        ("matmul@20", "sum@25"),
        ("gather-done@25", "sum@25"),
    }
