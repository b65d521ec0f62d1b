"""Live ranges and peaks of programs: worked examples, laws against a simulator, and XProf's own figures."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from traceflow.analyzers.live_ranges import live_ranges, unsimulated
from traceflow.program.buffers import Allocations, BufferEventKind, Buffers, HeapEvents, Values

ALLOCATE, FREE, SHARE = BufferEventKind.ALLOCATE, BufferEventKind.FREE, BufferEventKind.SHARE


def places(*rows: tuple[int, str], space: int = 0) -> Allocations:
    """Allocations by size and by what they hold: argument, constant, result, donated, temporary, stack or table."""
    kinds = [kind for _, kind in rows]

    def of(*names: str) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        return np.array([kind in names for kind in kinds], np.bool_)

    return Allocations(
        np.array([size for size, _ in rows], np.int64),
        np.full(len(rows), space),
        np.where(of("argument", "donated"), np.arange(len(rows)), -1).astype(np.int32),
        of("constant"),
        of("result", "donated", "result table"),
        of("stack"),
        of("table", "result table"),
        of("donated"),
    )


def heap(*events: tuple[int, BufferEventKind, int] | tuple[int, BufferEventKind, int, int]) -> HeapEvents:
    """Events as (instruction, kind, value, shared with)."""
    rows = [(*event, -1)[:4] for event in events]
    columns = [np.array([row[i] for row in rows], np.int32) for i in range(4)]
    instruction, kind, value, shared = columns if rows else [np.empty(0, np.int32)] * 4
    return HeapEvents(np.zeros(len(rows), np.int32), kind.astype(np.int8), value, shared, instruction)


def buffers(allocations: Allocations, sizes: list[int], at: list[int], events: HeapEvents) -> Buffers:
    """Values by size and by the allocation that they are in."""
    none = np.full(len(sizes), -1, np.int32)
    empty = ((),) * len(sizes)
    space = allocations.space[at] if sizes else np.empty(0, np.int64)
    values = Values(
        np.array(sizes, np.int64), none, empty, space, np.array(at, np.int32), np.zeros(len(sizes), np.int64)
    )
    return Buffers(values, allocations, events)


def test_two_temporaries_in_turn_use_the_room_of_one() -> None:
    events = heap((0, ALLOCATE, 1), (1, FREE, 1), (1, ALLOCATE, 2), (2, FREE, 2))
    found = live_ranges(buffers(places((8, "argument"), (4, "temporary")), [8, 4, 4], [0, 1, 1], events))
    assert found.live_bytes().tolist() == [12, 8, 12, 8]


def test_a_shared_place_is_free_when_nobody_uses_it_any_more() -> None:
    events = heap((0, ALLOCATE, 0), (1, SHARE, 1, 0), (2, FREE, 0), (3, FREE, 1))
    found = live_ranges(buffers(places((4, "temporary")), [4, 4], [0, 0], events))
    assert found.live_bytes().tolist() == [4, 4, 4, 0]
    assert len(found) == 1


def test_a_place_that_is_shared_after_it_was_freed_is_there_again() -> None:
    events = heap((0, ALLOCATE, 0), (1, FREE, 0), (2, SHARE, 1, 0), (3, FREE, 1))
    found = live_ranges(buffers(places((4, "temporary")), [4, 4], [0, 0], events))
    assert found.live_bytes().tolist() == [4, 0, 4, 0]


def test_what_is_never_freed_lives_to_the_end() -> None:
    found = live_ranges(buffers(places((4, "temporary")), [4], [0], heap((0, ALLOCATE, 0))))
    assert found.live_bytes().tolist() == [4]
    assert (found.born.tolist(), found.dies.tolist(), found.persistent.tolist()) == ([0], [1], [False])


@pytest.mark.parametrize(
    ("kind", "held"),
    [("argument", 8), ("constant", 8), ("result", 8), ("donated", 8), ("result table", 8), ("stack", 0), ("table", 0)],
)
def test_what_stays_for_the_whole_program(kind: str, held: int) -> None:
    assert live_ranges(buffers(places((8, kind)), [8], [0], heap())).live_bytes().tolist() == [held]


def test_a_temporary_without_a_life_is_told() -> None:
    without = buffers(places((8, "argument"), (4, "temporary"), (8, "table")), [8, 4, 8], [0, 1, 2], heap())
    assert unsimulated(without).tolist() == [1]
    simulated = replace(without, heap=heap((0, ALLOCATE, 1), (1, FREE, 1)))
    assert unsimulated(simulated).tolist() == []


def test_an_argument_that_the_simulation_reuses_counts_as_simulated() -> None:
    events = heap((0, ALLOCATE, 0), (1, FREE, 0))
    found = live_ranges(buffers(places((8, "argument")), [8], [0], events))
    assert found.live_bytes().tolist() == [8, 0]


def test_other_memory_spaces_do_not_count() -> None:
    events = heap((0, ALLOCATE, 0), (1, FREE, 0))
    assert live_ranges(buffers(places((8, "temporary"), space=1), [8], [0], events)).live_bytes().tolist() == [0]
    assert live_ranges(buffers(places((8, "argument"), space=1), [8], [0], heap())).live_bytes().tolist() == [0]


def test_what_is_on_a_stack_does_not_count() -> None:
    on_stack = replace(places((8, "constant")), thread_local=np.ones(1, np.bool_))
    assert live_ranges(buffers(on_stack, [8], [0], heap())).live_bytes().tolist() == [0]


def test_a_release_belongs_to_the_instruction_that_was_reached() -> None:
    events = heap((7, ALLOCATE, 0), (8, ALLOCATE, 1), (7, FREE, 0), (8, FREE, 1))
    found = live_ranges(buffers(places((8, "temporary")), [4, 4], [0, 0], events))
    assert found.instruction.tolist() == [7, 8, 8, 8]


@st.composite
def programs(draw: st.DrawFn) -> Buffers:
    """Programs in which values are made, share places, and are freed, each once."""
    kept = draw(
        st.lists(
            st.tuples(st.integers(1, 50), st.sampled_from(["argument", "constant", "result", "stack"])), max_size=4
        )
    )
    sizes = [size for size, _ in kept]
    rows: list[tuple[int, BufferEventKind, int, int]] = []
    first: list[int] = []  # values that have a place of their own
    live: list[int] = []
    for instruction in range(draw(st.integers(1, 12))):
        value = len(sizes)
        other = draw(st.sampled_from([None, *first]))
        if other is not None:
            sizes.append(sizes[other])
            rows.append((instruction, SHARE, value, other))
        else:
            sizes.append(draw(st.integers(1, 100)))
            first.append(value)
            rows.append((instruction, ALLOCATE, value, -1))
        live.append(value)
        for dead in draw(st.lists(st.sampled_from(live), unique=True, max_size=2)):
            live.remove(dead)
            rows.append((dead, FREE, dead, -1))
    rows += [(dead, FREE, dead, -1) for dead in live]
    at = [*range(len(kept)), *[len(kept)] * (len(sizes) - len(kept))]
    return buffers(places(*kept, (sum(sizes), "temporary")), sizes, at, heap(*rows))


def simulated(program: Buffers) -> list[int]:
    """Bytes after each event, by keeping the set of users of each place."""
    users: dict[int, set[int]] = {}
    place: dict[int, int] = {}
    always = sum(
        int(size)
        for size, stack, kept in zip(
            program.allocations.size_bytes,
            program.allocations.thread_local,
            (program.allocations.parameter >= 0) | program.allocations.constant | program.allocations.live_out,
            strict=True,
        )
        if kept and not stack
    )
    amounts = []
    for kind, value, other in zip(program.heap.kind, program.heap.value, program.heap.shared_with, strict=True):
        if kind == FREE:
            users[place[value]].discard(value)
        else:
            place[value] = other if kind == SHARE else value
            users.setdefault(place[value], set()).add(value)
        amounts.append(always + sum(int(program.values.size_bytes[p]) for p, using in users.items() if using))
    return amounts


@given(programs())
def test_live_bytes_are_those_of_a_simulation(program: Buffers) -> None:
    assert live_ranges(program).live_bytes().tolist() == simulated(program)


@given(programs())
def test_the_peak_holds_what_is_alive_and_no_buffer_is_larger(program: Buffers) -> None:
    found = live_ranges(program)
    live_bytes = found.live_bytes()
    event = int(live_bytes.argmax())
    alive = found.at(event)
    assert found.size_bytes[alive].sum() == live_bytes[event]
    assert live_bytes[event] >= found.size_bytes.max()
    assert (np.diff(found.size_bytes[alive]) <= 0).all()


@given(programs(), st.randoms())
def test_the_order_of_the_values_does_not_matter(program: Buffers, random: object) -> None:
    order = list(range(len(program.values)))
    random.shuffle(order)  # type: ignore[attr-defined]
    new = np.empty(len(order), np.int32)
    new[order] = np.arange(len(order))
    values, events = program.values, program.heap
    shuffled = Buffers(
        Values(
            values.size_bytes[order], values.instruction[order], values.shape_index, values.space[order],
            values.allocation[order], values.offset_bytes[order],
        ),
        program.allocations,
        replace(
            events,
            value=new[events.value],
            shared_with=np.where(events.shared_with < 0, -1, new[events.shared_with]).astype(np.int32),
        ),
    )  # fmt: skip
    assert live_ranges(shuffled).live_bytes().tolist() == live_ranges(program).live_bytes().tolist()
