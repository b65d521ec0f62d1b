"""Many cases of shorter work and lags over one graph, against plain recursion for each."""

from __future__ import annotations

import random
from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_graph import Arrow, Row, graph_of, graphs, longest

from traceflow import shortening
from traceflow.graph import DependencyGraph, EdgeKind, SliceKind
from traceflow.shortening import Shorter, ends_if_shorter

COMPUTE = SliceKind.COMPUTE


def shorter(graph: DependencyGraph, draw: random.Random) -> Shorter:
    """Some of the work, or some of the lags, or all of it, by some of what there is."""
    is_lag = draw.random() < 0.5
    whole_ns, share = graph.lag_ns if is_lag else graph.work_ns, draw.choice([0.1, 0.1, 1])
    place = [at for at, ns in enumerate(whole_ns.tolist()) if ns and draw.random() < share]
    less_ns = [draw.choice([0, int(whole_ns[at]), draw.randint(0, int(whole_ns[at]))]) for at in place]
    return Shorter(np.array(place, np.int64), is_lag, np.array(less_ns, np.int64))


def by_recursion(graph: DependencyGraph, case: Shorter) -> int:
    work_ns, lag_ns = graph.work_ns.copy(), graph.lag_ns.copy()
    (lag_ns if case.is_lag else work_ns)[case.place] -= case.less_ns
    return max(end for end, counts in zip(longest(graph, work_ns, lag_ns)[1::2], graph.counted, strict=True) if counts)


@given(graphs(), st.integers(0, 2), st.sampled_from([1, 8]), st.randoms(use_true_random=False))
def test_ends_are_those_of_a_replay_of_each_case(
    of: tuple[list[Row], list[Arrow]], resolution_ns: int, changed: int, draw: random.Random
) -> None:
    graph = graph_of(*of, resolution_ns=resolution_ns)
    counted = np.array([draw.random() < 0.6 for _ in of[0]])
    counted[draw.randrange(len(counted))] = True
    graph = replace(graph, counted=counted)
    cases = [shorter(graph, draw) for _ in range(12)]
    with patch.object(shortening, "_CHANGED", changed):  # with 1, cases share a contracted graph
        assert ends_if_shorter(graph, cases) == [by_recursion(graph, case) for case in cases]


def test_the_other_path_decides_as_soon_as_the_first_is_shorter() -> None:
    graph = graph_of([(0, 70, 0, COMPUTE), (0, 100, 1, COMPUTE)], [])
    cases = [Shorter(np.array([at]), False, np.array([less])) for at, less in [(0, 60), (1, 20), (1, 30), (1, 90)]]
    assert ends_if_shorter(graph, cases) == [100, 80, 70, 70]


def test_a_lag_is_shorter_for_all_that_waits_behind_it() -> None:
    after = [(1, 2, EdgeKind.LAUNCH)]  # the second slice starts 20 after the end of the first
    graph = graph_of([(0, 50, 0, COMPUTE), (70, 90, 1, COMPUTE), (0, 85, 2, COMPUTE)], after)
    cases = [Shorter(np.array([2]), True, np.array([less])) for less in (0, 4, 20)]
    assert ends_if_shorter(graph, cases) == [90, 86, 85]


@pytest.mark.parametrize("cases", [[], [Shorter(np.empty(0, np.int64), False, np.empty(0, np.int64))]])
def test_nothing_shorter(cases: list[Shorter]) -> None:
    assert ends_if_shorter(graph_of([(0, 9, 0, COMPUTE)], []), cases) == [9 for _ in cases]
