"""Who was late, and in which stage of the program: rank 1 of three, each of which reduces once at the end."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from handmade import MS, Builder

from traceflow.analyzers.stragglers import Stragglers, stragglers
from traceflow.trace.model import Kind

Work = Sequence[tuple[str, str, Sequence[int]]]
"""Annotation, operator in it, and how many ms that takes each time."""

EVEN: Work = [("forward", "aten::mm", [4]), ("backward", "aten::mm", [6]), ("optimiser", "aten::add_", [1])]


def ranked(*works: Work) -> Stragglers:
    """The stragglers among ranks that do these things, one after another, and then an all-reduce for 1 ms."""
    builder = Builder()
    lanes = [builder.lane(rank, "main") for rank in range(len(works))]
    arrived = []
    for lane, work in zip(lanes, works, strict=True):
        now = 0
        for annotation, operator, times in work:
            start, now = now, now + MS  # the annotation's own time
            for took in times:
                builder.event(lane, now, now + took * MS, operator, Kind.HOST)
                now += took * MS
            builder.event(lane, start, now, annotation, Kind.HOST)
        arrived.append(now)
    builder.collective(lanes, arrived, max(arrived) + MS, "gloo:all_reduce")
    return of(builder)


def of(builder: Builder) -> Stragglers:
    run = builder.run()
    return stragglers(run.trace, run.dependencies)


MORE = [2] * 5


@pytest.mark.parametrize(
    ("stage", "late"),
    [
        ("forward", [("forward", "aten::mm", [4, *MORE]), *EVEN[1:]]),
        ("backward", [EVEN[0], ("backward", "aten::mm", [6, *MORE]), EVEN[2]]),
        ("optimiser", [*EVEN, ("optimiser", "aten::mm", MORE)]),
    ],
)
def test_more_of_the_same_is_found_in_its_stage(stage: str, late: Work) -> None:
    first = ranked(EVEN, late, EVEN).ranking[0]
    assert (first.rank, first.name, first.stage, first.duration_ns) == (1, "aten::mm", stage, 20 * MS)
    assert (first.cost_ns, first.peer_ns) == pytest.approx((10 * MS, 10 * MS), abs=10)  # each piece is rounded


def test_longer_work_is_found_in_its_stage() -> None:
    late = [("forward", "aten::mm", [9]), *EVEN[1:]]
    (only,) = ranked(EVEN, late, EVEN).ranking
    assert (only.rank, only.name, only.stage, only.cost_ns) == (1, "aten::mm", "forward", 5 * MS)


def test_work_that_only_one_rank_does_is_late_where_others_have_its_stage() -> None:
    late = [EVEN[0], ("backward", "aten::sort", [3, 4]), *EVEN[1:]]
    first = ranked(EVEN, late, EVEN).ranking[0]
    assert (first.rank, first.name, first.stage) == (1, "aten::sort", "backward")
    assert (first.cost_ns, first.duration_ns, first.peer_ns, first.peers) == (7 * MS, 7 * MS, 0, 2)


def test_nothing_is_known_of_a_stage_that_only_one_rank_has() -> None:
    late = [*EVEN, ("checkpoint", "aten::sort", [3])]
    assert ranked(EVEN, late, EVEN).ranking == ()


def test_stages_may_have_different_names_on_each_rank() -> None:
    works = [[(f"{stage} of rank {rank}", name, times) for stage, name, times in EVEN] for rank in range(3)]
    works[1] += [("more of rank 1", "aten::mm", [7])]
    first = ranked(*works).ranking[0]
    assert (first.rank, first.name, first.cost_ns) == (1, "aten::mm", 7 * MS)


@pytest.mark.parametrize("around", ["aten::linear", "AddmmBackward0", "train.py(3): step", "traceflow.call"])
def test_operators_functions_and_whole_steps_are_no_stages(around: str) -> None:
    even: Work = [(around, "aten::mm", [4])]
    first = ranked(even, [(around, "aten::mm", [30])], even).ranking[0]
    assert (first.name, first.stage, first.place) == ("aten::mm", None, "aten::mm")


def test_a_step_is_not_in_the_annotation_that_it_begins_in() -> None:
    """The hook that ends a step runs within optimizer.step(), whose annotation ends a little later."""
    builder = Builder()
    lanes = [builder.lane(rank, "main") for rank in range(3)]
    for lane, took in zip(lanes, (5, 5, 25), strict=True):
        builder.event(lane, 0, 2 * MS, "traceflow.call", Kind.HOST)
        builder.event(lane, MS, 4 * MS, "Optimizer.step#SGD.step", Kind.HOST)
        builder.event(lane, 3 * MS, (3 + took) * MS, "traceflow.call", Kind.HOST)
    builder.collective(lanes, [8 * MS, 8 * MS, 28 * MS], 29 * MS, "gloo:all_reduce")
    found = of(builder)
    (only,) = found.ranking
    assert (only.rank, only.name, only.stage, only.cost_ns) == (2, "traceflow.call", None, 20 * MS)
    assert "between operators, such as loading data" in found.findings[0].suggestion


def test_device_work_belongs_to_the_stage_that_launched_it() -> None:
    builder = Builder()
    streams = []
    for rank, took in ((0, 5), (1, 25)):
        main, stream = builder.lane(rank, "main"), builder.lane(rank, "stream 7", 0)
        builder.event(main, 0, 3 * MS, "forward", Kind.HOST)
        builder.event(main, MS, 2 * MS, "cudaLaunchKernel", Kind.CALL, 1)
        builder.event(stream, 2 * MS, (2 + took) * MS, "gemm", Kind.COMPUTE, 1)
        streams.append(stream)
    builder.collective(streams, [7 * MS, 27 * MS], 28 * MS, "all-reduce")
    first = of(builder).ranking[0]
    assert (first.rank, first.name, first.stage, first.place) == (1, "gemm", "forward", "gemm in forward")
    assert first.cost_ns == 20 * MS


def test_a_gap_on_a_thread_is_named_by_what_follows() -> None:
    builder = Builder()
    lanes = [builder.lane(rank, "main") for rank in range(3)]
    for rank, pause in enumerate((1, 1, 21)):
        builder.event(lanes[rank], 0, MS, "load", Kind.HOST)
        builder.event(lanes[rank], (1 + pause) * MS, (4 + pause) * MS, "forward", Kind.HOST)
    builder.collective(lanes, [5 * MS, 5 * MS, 25 * MS], 26 * MS, "gloo:all_reduce")
    (only,) = of(builder).ranking
    assert (only.rank, only.cause, only.name, only.cost_ns) == (2, "host", "gap before forward", 20 * MS)


def test_a_finding_names_the_stage() -> None:
    late = [("forward", "aten::mm", [40]), *EVEN[1:]]
    finding = ranked(EVEN, late, EVEN).findings[0]
    assert finding.title == "rank 1 is late: aten::mm in forward (host) takes longer than on its peers"


def test_what_costs_the_same_in_a_stage_is_one_finding_and_in_two_stages_two() -> None:
    call, inside = ("exchange", "Collective", [1]), ("exchange", "all_to_all", [1])
    late_call, late_inside = ("exchange", "Collective", [6]), ("exchange", "all_to_all", [6])
    one_stage = ranked([*EVEN, call, inside], [*EVEN, late_call, late_inside], [*EVEN, call, inside])
    told = [row for row in one_stage.ranking if row.rank == 1]
    assert [(row.name, row.cost_ns) for row in told] == [("Collective", 5 * MS), ("all_to_all", 5 * MS)]
    assert [finding.evidence["name"] for finding in one_stage.findings] == ["Collective"]
    apart = ranked(
        [*EVEN, call, ("return", "all_to_all", [1])],
        [*EVEN, late_call, ("return", "all_to_all", [6])],
        [*EVEN, call, ("return", "all_to_all", [1])],
    )
    assert [finding.evidence["name"] for finding in apart.findings] == ["Collective", "all_to_all"]
