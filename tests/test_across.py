"""Ranks that stay apart: clocks, paths and costs from collectives and summaries are those of all ranks together."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulator.engine import simulate
from simulator.kineto import write
from simulator.random_programs import Recipe, random_program

import traceflow
from traceflow.analyzers.across.late import Middle
from traceflow.analyzers.across.part import View
from traceflow.analyzers.across.reduced import Edges, edges_of, whole_of
from traceflow.cluster import Held, Spread
from traceflow.evidence import files_of_ranks
from traceflow.report.json import dumps, envelope
from traceflow.run import Run
from traceflow.spread import Brief, _Ranks


class Here(Spread):
    """Does what a cluster does, at once and in this process, and counts what would travel."""

    def __init__(self, ranks: int) -> None:
        object.__setattr__(self, "ranks", ranks)

    def each(self, function: Callable[..., Any], *columns: Sequence[Any] | Held, shared: tuple[Any, ...] = ()) -> Held:
        rows = zip(*(c.futures if isinstance(c, Held) else c for c in columns), strict=True)
        return Held(tuple(function(*row, *shared) for row in rows))

    def kept_and_told(self, held: Held) -> tuple[Held, list[Any]]:
        return Held(tuple(kept for kept, _ in held.futures)), [told for _, told in held.futures]

    def told(self, held: Held) -> list[Any]:
        return list(held.futures)

    def shared(self, value: Any) -> Any:
        return value


def apart(folder: Path) -> _Ranks:
    files = files_of_ranks(folder)
    return _Ranks.read(Here(len(files)), files, ())


def simulated(seed: int, recipe: Recipe, folder: str) -> Path:
    return write(simulate(random_program(seed, recipe)), Path(folder) / "run")


def told(result: Any, run: Run | Brief) -> str:
    return dumps(envelope(result, run))


RECIPES = st.builds(
    Recipe,
    jitter_ns=st.sampled_from((0, 300)),
    clocks_ns=st.sampled_from((0, 70_000)),
    drift_ppb=st.sampled_from((0, 20_000)),
    symmetric=st.just(value=True),
)


@settings(max_examples=12)
@given(seed=st.integers(0, 10_000), recipe=RECIPES, step=st.sampled_from((None, 1)))
def test_answers_are_those_of_all_ranks_together(seed: int, recipe: Recipe, step: int | None) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        folder = simulated(seed, recipe, scratch)
        together, ranks = traceflow.open(folder), apart(folder)
    brief = Brief(together.inputs, ranks.trace)
    assert told(ranks.clocks, brief) == told(together.clocks(), together)
    seen = ranks.seen(step)
    assert seen is not None
    assert told(seen.critical_path(), brief) == told(together.critical_path(step=step), together)
    late = seen.stragglers()
    assert late is not None
    assert told(late, brief) == told(together.stragglers(step=step), together)


@pytest.mark.parametrize("seed", range(6))
def test_what_needs_more_of_each_other_is_not_answered_apart(seed: int, tmp_path: Path) -> None:
    folder = simulated(seed, Recipe(), str(tmp_path))
    trace, ranks = traceflow.open(folder), apart(folder)
    assert told(ranks.clocks, Brief(trace.inputs, ranks.trace)) == told(trace.clocks(), trace)
    pairs = len(trace.dependencies.matches.pair_source) > 0
    assert (ranks.parts is None) == pairs


@settings(max_examples=6)
@given(seed=st.integers(0, 10_000), factor=st.sampled_from((0.0, 0.5, 3.0)))
def test_replay_between_meetings_is_the_replay_of_everything(seed: int, factor: float) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        folder = simulated(seed, Recipe(symmetric=True), scratch)
        together, ranks = traceflow.open(folder), apart(folder)
    seen = ranks.seen(None)
    assert seen is not None
    views: list[View] = list(seen.views.futures)
    parts = [edges_of(view) for view in views]
    whole = whole_of(parts, ranks.meetings)
    assert whole is not None
    graph = together.dependencies.graph
    assert whole.end_ns(whole.longest_ns) == graph.end_ns
    changed = np.rint(views[0].graph.work_ns * factor).astype(np.int64)
    of_first = np.append(together.trace.lanes.rank, -1)[graph.slices.lane] == 0
    work_ns = np.where(of_first, np.rint(graph.work_ns * factor).astype(np.int64), graph.work_ns)
    expected_ns = graph.end_of(graph.replay(work_ns=work_ns))
    assert whole.end_with(0, edges_of(views[0], work_ns=changed)) == expected_ns


def test_a_vertex_that_too_many_meetings_reach_becomes_a_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = simulated(3, Recipe(symmetric=True, phases=(12, 14)), str(tmp_path))
    seen = apart(folder).seen(None)
    assert seen is not None
    few = [edges_of(view) for view in seen.views.futures]
    monkeypatch.setattr("traceflow.analyzers.across.reduced._MOST", 1)
    many = [edges_of(view) for view in seen.views.futures]
    assert any((part.target < 0).any() for part in many)
    wholes = whole_of(few, seen.ranks.meetings), whole_of(many, seen.ranks.meetings)
    assert all(whole is not None and whole.end_ns(whole.longest_ns) == seen.window.end_ns for whole in wholes)


def test_parts_that_wait_for_each_other_at_one_moment_are_no_whole() -> None:
    around = Edges(np.array([2, 3]), np.array([3, 2]), np.zeros(2, np.int64))
    assert whole_of([around], 2) is None


@given(st.lists(st.lists(st.integers(0, 9), min_size=3, max_size=3), min_size=2, max_size=9))
def test_the_median_of_the_others(rows: list[list[int]]) -> None:
    values = np.array(rows)
    middle = Middle.of(values)
    for at in range(len(values)):
        assert middle.without(values[at]).tolist() == np.median(np.delete(values, at, axis=0), axis=0).tolist()


def test_only_collectives_and_summaries_leave_a_rank(tmp_path: Path) -> None:
    folder = simulated(8, Recipe(symmetric=True), str(tmp_path))
    ranks = apart(folder)
    everything = traceflow.open(folder).trace
    assert len(ranks.trace.events) < len(everything.events) / 2
    kept = set(zip(ranks.trace.events.start_ns.tolist(), ranks.trace.events.end_ns.tolist(), strict=True))
    times = zip(everything.events.start_ns.tolist(), everything.events.end_ns.tolist(), strict=True)
    assert kept <= set(times)
    seen = ranks.seen(None)
    assert seen is not None
    legs = seen._route
    assert legs[-1][1] == -1  # the end of the window
    assert all(later != earlier for earlier, later in pairwise(meeting for _, meeting in legs))
