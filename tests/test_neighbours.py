"""What a critical path waited for, and what waited for it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from handmade import MS, Builder, two_rounds
from hypothesis import given, settings
from hypothesis import strategies as st

from traceflow.analyzers.neighbours import MOST, Neighbour, neighbours
from traceflow.graph import EdgeKind
from traceflow.run import Run, open_run
from traceflow.trace.model import Kind


def called(found: tuple[Neighbour, ...]) -> list[tuple[str, int, int, int, int | None]]:
    """Name, rank, gap and slack in ms, and the segment of each."""
    return [(one.name, one.rank, one.gap_ns // MS, one.slack_ns // MS, one.segment) for one in found]


def test_two_rounds_have_the_neighbours_worked_out_by_hand() -> None:
    run = two_rounds().run()
    near = neighbours(run.trace, run.dependencies)
    assert near.segment == (0, 1, 2, 3)
    assert near.slack_ns == (0, 0, 0, 0)
    assert called(near.before[0]) == []
    assert called(near.after[0]) == [("all-reduce", 0, 0, 0, None)]
    # The transfer on rank 1 waited for rank 0, which came at once; rank 1 was there 8 ms before, and could come later.
    assert called(near.before[1]) == [("all-reduce", 0, 0, 0, None), ("all-reduce", 1, 8, 8, 1)]
    assert called(near.after[1]) == [("b2", 1, 0, 0, 2)]
    assert called(near.before[3]) == [("all-reduce", 1, 0, 0, None), ("all-reduce", 0, 8, 8, 3)]
    assert [one.edge for one in near.before[1]] == ["rendezvous", "rendezvous"]


def test_a_launch_is_what_idle_time_before_work_waited_for() -> None:
    build = Builder()
    host, stream = build.lane(0, "thread 1"), build.lane(0, "stream 7", 0)
    build.event(host, 0, 3_000, "cudaLaunchKernel", Kind.CALL, 1)
    build.event(stream, 5_000, 105_000, "gemm", Kind.COMPUTE, 1)
    run = build.run()
    near = neighbours(run.trace, run.dependencies)
    assert [[one.name for one in before] for before in near.before] == [["cudaLaunchKernel"], ["cudaLaunchKernel"]]
    assert near.before[1][0].device is None
    assert near.before[1][0].edge == "launch"


def test_only_the_segments_asked_for_are_answered() -> None:
    run = two_rounds().run()
    near, all_of_them = (
        neighbours(run.trace, run.dependencies, segments=[2, 0]),
        neighbours(run.trace, run.dependencies),
    )
    assert near.segment == (2, 0)
    assert near.before == (all_of_them.before[2], all_of_them.before[0])


@given(st.lists(st.integers(1, 40), min_size=1, max_size=12), st.integers(2, 4))
@settings(max_examples=25, deadline=None)
def test_neighbours_keep_to_what_the_graph_says(lengths: list[int], ranks: int) -> None:
    run = rounds(lengths, ranks)
    near, path = neighbours(run.trace, run.dependencies), run.critical_path().segments
    graph = run.graph()
    allowed = {EdgeKind(kind).label for kind in set(graph.kind.tolist())} - {"self"}
    for row, before, after in zip(near.segment, near.before, near.after, strict=True):
        assert len(before) <= MOST
        assert len(after) <= MOST
        assert [one.gap_ns for one in before] == sorted(one.gap_ns for one in before)
        for one in (*before, *after):
            assert one.edge in allowed
            assert one.gap_ns >= 0
            assert one.slack_ns >= 0
            if one.segment is not None:
                assert path.name[one.segment] == one.name
                assert one.segment <= row if one in before else one.segment >= row
    binding = [before[0].slack_ns for before in near.before if before]
    assert binding == [0] * len(binding)  # the last that a segment waited for could not have come later


def rounds(lengths: list[int], ranks: int) -> Run:
    """Ranks that compute for as long as it says, in turn, and reduce."""
    build = Builder()
    lanes = [build.lane(rank, "stream 7", 0) for rank in range(ranks)]
    now = 0
    for number, length in enumerate(lengths):
        arrivals = [now + length * (1 + (rank + number) % ranks) * 1_000 for rank in range(ranks)]
        for lane, arrival in zip(lanes, arrivals, strict=True):
            build.event(lane, now, arrival, f"compute_{number}", Kind.COMPUTE)
        now = max(arrivals) + 500
        build.collective(lanes, arrivals, now, "all-reduce")
    return build.run()


@pytest.mark.parametrize("name", ["kineto/a100_event_sync.json.gz", "kineto/a100_nccl_rank0of2.json.gz"])
def test_the_segments_of_recorded_paths_have_neighbours(name: str, corpus: Callable[[str], Path]) -> None:
    run = open_run(corpus(name))
    near, path = neighbours(run.trace, run.dependencies), run.critical_path().segments
    assert len(near.before) == len(path)
    explained = sum(bool(before) for before, edge in zip(near.before, path.edge, strict=True) if edge is not None)
    assert explained >= 0.9 * sum(edge is not None for edge in path.edge)
