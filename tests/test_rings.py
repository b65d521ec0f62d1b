"""Rings: programs that are right, and those that people get wrong, told apart by what was compiled alone."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest

import traceflow
from traceflow.analyzers.collective_matmul import CollectiveMatmul, collective_matmul
from traceflow.analyzers.rings.recorded import Recorded
from traceflow.analyzers.rings.walk import offsets
from traceflow.collectors.jax import compile_only
from traceflow.collectors.workloads.collective_matmul import (
    AXIS,
    LAYOUTS,
    matrices,
    place,
    record_collective_matmul,
)
from traceflow.collectors.workloads.line_mesh import line_mesh
from traceflow.evidence import Evidence
from traceflow.program.sharding import parse_sharding
from traceflow.run import Run
from traceflow.trace.untraced import untraced

jax = pytest.importorskip("jax", reason="the programs are JAX's")

import ring_programs  # noqa: E402

PROGRAMS = ring_programs.PROGRAMS
FLAWS = {
    "backwards": "TF260",
    "shifted": "TF260",
    "sum_travels": "TF261",
    "summed_again": "TF261",
    "sums_of_others": "TF261",
    "sums_end_elsewhere": "TF261",
    "assembled_elsewhere": "TF261",
    "one_round_less": "TF261",
    "one_too_many": "TF262",
    "loop_sends_in_vain": "TF262",
    "sums_loop": "TF262",
    "in_turn": "TF263",
    "sums_in_turn": "TF263",
}
RIGHT = PROGRAMS.keys() - FLAWS.keys()


@cache
def found(name: str) -> CollectiveMatmul:
    """What is told of a program that never ran."""
    module = ring_programs.compiled(name)
    return Run(Evidence(untraced(), {module.program_id: module}), (name,)).collective_matmul()


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_computes_the_product_or_not(name: str) -> None:
    a, w = matrices((8, 16, 32))
    equal = np.array_equal(ring_programs.product(name, a, w), a @ w)
    assert equal == PROGRAMS[name].correct


@pytest.mark.parametrize("name", sorted(RIGHT))
def test_every_round_of_a_right_ring_is_matched(name: str) -> None:
    result = found(name)
    (loop,) = result.loops
    assert [one.matches for one in loop.per_round] == [True] * 4
    assert {tuple(sorted(blocks)) for blocks in zip(*(one.block for one in loop.per_round), strict=True)} == {
        (0, 1, 2, 3)
    }
    assert loop.devices == 4
    assert loop.permutes == 3
    assert result.findings == ()
    assert result.candidates == ()


@pytest.mark.parametrize("name", FLAWS)
def test_a_wrong_ring_is_told_from_a_right_one(name: str) -> None:
    assert [finding.code for finding in found(name).findings] == [FLAWS[name]]
    assert all(str(PROGRAMS[name].body.__code__.co_filename) in loop.source for loop in found(name).loops)


def test_the_ring_of_the_notes_on_device_2() -> None:
    (loop,) = found("right").loops
    assert loop.travels == "blocks"
    rounds = [(one.number, one.block[2], one.begins and one.begins[2], one.length) for one in loop.per_round]
    assert rounds == [(0, 2, 8, 4), (1, 3, 12, 4), (2, 0, 0, 4), (3, 1, 4, 4)]  # width 4: rows 8:12, 12:16, 0:4, 4:8
    assert [one.permute is None for one in loop.per_round] == [True, False, False, False]
    assert loop.permute_bytes == 3 * 8 * 4 * 4  # three times a block of [8, 4] float32


def test_a_wrong_source_is_told_with_round_and_device() -> None:
    (finding,) = found("backwards").findings
    assert finding.severity == "error"
    assert finding.evidence["rounds"] == [1, 3]  # in rounds 0 and 2 of 4, index - t and index + t are the same
    assert (
        "2 of 4 rounds use rows of other blocks: in round 1 device 0 has the block of 1 and rows from 12"
        in finding.title
    )
    (shifted,) = found("shifted").findings
    assert shifted.evidence["rounds"] == [0, 1, 2, 3]


def test_sums_that_travel_end_where_they_belong() -> None:
    (loop,) = found("sums").loops
    assert loop.travels == "sums"
    assert [one.block[2] for one in loop.per_round] == [3, 0, 1, 2]  # device 2 ends with its own
    assert [one.begins and one.begins[2] for one in loop.per_round] == [24, 0, 8, 16]


def test_a_loop_is_told_from_rounds_that_are_written_out() -> None:
    assert [loop.form for loop in found("loop").loops + found("right").loops] == ["loop", "unrolled"]


def test_blocks_that_travel_both_ways_take_fewer_rounds() -> None:
    (loop,) = found("both_ways").loops
    assert loop.rounds == 3
    assert [one.number for one in loop.per_round] == [0, 1, 1, 2]


def test_what_is_sent_for_nothing_is_counted() -> None:
    (finding,) = found("one_too_many").findings
    assert finding.evidence["bytes"] == 8 * 4 * 4
    assert finding.evidence["permutes"] == [found("one_too_many").loops[0].per_round[-1].permute]


def test_a_dependency_that_rules_overlap_out_is_told_of_every_permute() -> None:
    (finding,) = found("in_turn").findings
    (loop,) = found("in_turn").loops
    assert finding.evidence["permutes"] == [one.permute for one in loop.per_round if one.permute]


def test_without_a_trace_there_is_only_the_order_of_the_source() -> None:
    result = found("right")
    (loop,) = result.loops
    assert loop.verdict == "source order only, no evidence of overlap"
    assert result.window is None
    assert (loop.exposed_ns, loop.overlapped_share, loop.matmul_ns, loop.chunk_efficiency_ratio) == (None,) * 4
    told = {skipped.what for skipped in result.skipped}
    assert {f"/result/loops/*/{name}" for name in ("exposed_ns", "overlapped_share", "chunk_efficiency_ratio")} <= told


@pytest.mark.parametrize(("layout", "form"), [("gather", "ring"), ("scatter", "scatter_ring")])
def test_every_round_of_the_workloads_is_matched_on_eight_devices(layout: str, form: str) -> None:
    mesh, (a, w) = line_mesh(8, AXIS), matrices((8, 64, 32))
    program = LAYOUTS[layout].forms[form](mesh)
    module = compile_only(program, *place(mesh, LAYOUTS[layout], a, w)).compiled
    assert module is not None
    result = collective_matmul({0: module})
    (loop,) = result.loops
    assert (loop.rounds, loop.permutes, loop.devices, result.findings) == (8, 7, 8, ())
    first = 1 if loop.travels == "sums" else 0
    for turn, one in enumerate(loop.per_round):
        assert one.block == tuple((device + turn + first) % 8 for device in range(8))
        assert one.begins == tuple(block * (8 if layout == "gather" else 4) for block in one.block)
        assert one.matches


@pytest.mark.parametrize(
    ("layout", "form", "operation"), [("gather", "gather", "all-gather"), ("scatter", "scatter", "reduce-scatter")]
)
def test_the_undivided_workloads_are_candidates(layout: str, form: str, operation: str) -> None:
    mesh, (a, w) = line_mesh(8, AXIS), matrices((8, 64, 32))
    module = compile_only(LAYOUTS[layout].forms[form](mesh), *place(mesh, LAYOUTS[layout], a, w)).compiled
    assert module is not None
    result = collective_matmul({0: module})
    assert result.loops == ()
    assert [(one.operation, one.members) for one in result.candidates] == [(operation, 8)]


def test_a_recorded_ring_has_times_for_every_round(tmp_path: Path) -> None:
    record_collective_matmul(tmp_path, devices=4, size=(64, 64, 64), steps=2)
    ring, gather = traceflow.open(tmp_path / "ring"), traceflow.open(tmp_path / "gather")
    result = ring.collective_matmul(undivided=gather)
    (loop,) = result.loops
    assert loop.executions == 2
    assert all(one.matches and one.product_ns for one in loop.per_round)
    assert all(one.permute_ns and one.exposed_ns is not None for one in loop.per_round[1:])
    assert loop.verdict != "source order only, no evidence of overlap"
    assert loop.chunk_efficiency_ratio is not None
    # Programs of the process that did not run in the trace are no candidates.
    others = {**gather.programs, -1: next(iter(ring.programs.values()))}
    assert collective_matmul(others, Recorded.of(gather.trace, others, gather.dependencies)).loops == ()
    (candidate,) = gather.collective_matmul(step=2).candidates
    assert candidate.exposed_ns is not None
    assert candidate.saved_ns is not None


@pytest.mark.parametrize(
    ("sharding", "shape", "expected"),
    [
        ("{devices=[2,2]<=[4]}", (3, 5), [[0, 0, 3, 3], [0, 5, 0, 5]]),
        ("{devices=[1,4]<=[2,2]T(1,0)}", (3, 5), [[0, 0, 0, 0], [0, 10, 5, 15]]),
        ("{devices=[2,1,2]<=[4] last_tile_dim_replicate}", (3, 5), [[0, 0, 3, 3], [0, 0, 0, 0]]),
        ("{replicated}", (3, 5), [[0] * 4, [0] * 4]),
    ],
)
def test_parts_of_whole_arrays_begin_where_their_sharding_says(
    sharding: str, shape: tuple[int, ...], expected: list[list[int]]
) -> None:
    places = offsets(parse_sharding(sharding), shape, 4)
    assert places is not None
    assert [place.tolist() for place in places] == expected


def test_a_sharding_of_other_devices_tells_no_place() -> None:
    assert offsets(parse_sharding("{devices=[8]<=[8]}"), (3,), 4) is None
    assert offsets(parse_sharding("{manual}"), (3,), 4) is None
