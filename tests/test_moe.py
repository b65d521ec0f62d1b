"""Mixture of experts: rows, traffic, stages, balance and combination, by known answers and by laws."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from handmade import MS, Builder
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from test_json_contract import problems

from traceflow.analyzers.moe import Moe, RoutedLayer, Verdict, check_combine, routed_layers
from traceflow.analyzers.moe.rows import Rows, complete_calls, count_rows
from traceflow.evidence import Evidence
from traceflow.intent.routing import CombineValues, LayerRouting, Routing, Shape
from traceflow.report.html import render_report
from traceflow.report.json import dumps, envelope
from traceflow.report.text import render
from traceflow.run import Run
from traceflow.trace.model import ABSENT, Kind

Groups = tuple[tuple[int, ...], ...]


def layer_of(
    assigned: Any,
    *,
    ep: Groups | None = None,
    etp: Groups | None = None,
    topk: int = 2,
    layer: int = 0,
    order: Any = None,
    step: Any = None,
    occurrence: Any = None,
    dropped: Any = None,
    expert_rows: Any = None,
    **shape: int,
) -> LayerRouting:
    """A layer by its counts [C, S, E], or [S, E] for one call."""
    counts = np.array(assigned, np.int32)
    counts = counts[None] if counts.ndim == 2 else counts
    calls, sources, experts = counts.shape
    return LayerRouting(
        layer=layer,
        shape=Shape(experts, topk, **shape),
        step=np.arange(calls) if step is None else np.array(step),
        occurrence=np.zeros(calls, np.int64) if occurrence is None else np.array(occurrence),
        rank=np.arange(sources),
        device=np.full(sources, ABSENT),
        order=np.zeros((calls, sources), np.int64) if order is None else np.array(order),
        assigned=counts,
        dropped=None if dropped is None else np.array(dropped, np.int32),
        expert_rows=None if expert_rows is None else np.array(expert_rows, np.int32),
        sent=None,
        received=None,
        ep_groups=ep or (tuple(range(sources)),) * sources,
        etp_groups=etp or tuple((s,) for s in range(sources)),
    )


def rows_of(layer: LayerRouting) -> Rows:
    return count_rows(layer, complete_calls(layer))


def summed(layer: LayerRouting) -> RoutedLayer:
    (one,) = routed_layers(Routing((layer,)))
    return one


def kinds(rows: Rows) -> list[int]:
    """Kept, padded to a capacity, padded to an alignment, masked."""
    parts = rows.kept, rows.capacity_padding, rows.alignment_padding, rows.masked
    return [int(part[:, list(rows.first)].sum()) for part in parts]


# Rows.


def test_splits_of_two_ranks() -> None:
    """Token a goes to experts 0 and 2, b to 1 and 2 on rank 0; c to 0 and 3, d to 2 and 3 on rank 1."""
    rows = rows_of(layer_of([[1, 1, 2, 0], [1, 0, 1, 2]]))
    assert rows.sent[0].tolist() == [[2, 2], [1, 3]]
    assert rows.sent[0].T.tolist() == [[2, 1], [2, 3]]  # what each receives
    assert rows.executed[0].sum(axis=1).tolist() == [3, 5]


def test_a_capacity_of_three_has_two_empty_rows() -> None:
    one = summed(layer_of([[1, 3]], topk=1, capacity=3))
    assert (one.tokens, one.dropped, one.executed_rows, one.capacity_padding_rows) == (4, 0, 6, 2)


def test_a_capacity_of_each_source() -> None:
    one = summed(layer_of(np.full((1, 384), 64), topk=6, capacity=80))
    assert (one.tokens, one.assignments, one.executed_rows) == (4096, 24_576, 30_720)
    assert one.capacity_padding_rows / one.executed_rows == pytest.approx(0.2)


def test_what_exceeds_a_capacity_is_dropped() -> None:
    padded, bare = (summed(layer_of([[5, 1], [0, 2]], topk=1, capacity=3, padded=p)) for p in (1, 0))
    assert (padded.dropped, padded.executed_rows, padded.capacity_padding_rows) == (2, 12, 6)
    assert (bare.dropped, bare.executed_rows, bare.capacity_padding_rows) == (2, 6, 0)


def test_a_layer_over_64_ranks() -> None:
    """DeepSeek-V4-Pro in an EP group of 64: 4096 tokens per rank, top 6 of 384."""
    layer = layer_of(np.full((64, 384), 64), topk=6, hidden=7168, itemsize=2, combine_itemsize=2, ffn_hidden=3072)
    one = summed(layer)
    assert (one.tokens, one.assignments) == (262_144, 1_572_864)
    assert set(one.tokens_per_expert) == {4096}
    assert set(one.rows_per_rank) == {24_576}
    assert one.dispatch_bytes == 64 * 352_321_536
    assert one.remote_bytes == one.useful_bytes == 64 * 2 * 346_816_512
    assert one.executed_flops == 2 * 66_060_288 * 1_572_864
    assert (one.hot_expert_ratio, one.rank_imbalance_ratio, one.wasted_flops) == (1, 1, 0)


MEASURED = [1324, 1021, 732, 417, 327, 175, 70, 30]


def halves(counts: list[int]) -> list[list[int]]:
    return [[count - count // 2 for count in counts], [count // 2 for count in counts]]


def test_a_measured_layer_of_two_ranks() -> None:
    one = summed(layer_of(halves(MEASURED)))
    assert one.rows_per_rank == (3494, 602)
    assert one.rank_imbalance_ratio == pytest.approx(1.71, abs=0.005)
    assert (one.hot_expert, one.hot_expert_ranks, one.hot_rank) == (0, (0,), 0)
    assert one.hot_expert_ratio == pytest.approx(2.59, abs=0.005)


def test_rows_filled_up_to_multiples() -> None:
    one = summed(layer_of(halves(MEASURED), align=16))
    assert (one.executed_rows, one.alignment_padding_rows, one.capacity_padding_rows) == (4144, 48, 0)
    assert one.rows_per_expert == (1328, 1024, 736, 432, 336, 176, 80, 32)


def test_copies_of_an_expert_share_its_tokens() -> None:
    layer = layer_of([[4, 0], [2, 2], [1, 1], [0, 6]], ep=((0, 1), (0, 1), (2, 3), (2, 3)))
    one = summed(layer)
    assert one.rows_per_rank == (6, 2, 1, 7)
    assert one.rows_per_expert == one.tokens_per_expert == (7, 9)
    assert one.hot_expert_ranks == (1, 3)


def test_ranks_that_share_an_expert_multiply_the_rows_of_all() -> None:
    layer = layer_of([[1, 3], [2, 0], [1, 1], [0, 2]], ep=((0, 2), (1, 3)) * 2, etp=((0, 1), (0, 1), (2, 3), (2, 3)))
    one = summed(layer)
    assert one.rows_per_rank == (4, 4, 6, 6)
    assert one.executed_rows == 10  # each once


def test_rows_that_an_expert_tells_itself() -> None:
    one = summed(layer_of([[1, 3], [2, 0]], expert_rows=[[[8], [4]]], align=4))
    assert (one.executed_rows, one.alignment_padding_rows) == (12, 6)


def test_a_mask_multiplies_what_was_not_chosen() -> None:
    one = summed(layer_of([[1, 3], [2, 2]], dispatcher=2, expert_rows=[[[4, 4], [4, 4]]]))
    assert (one.executed_rows, one.masked_rows, one.alignment_padding_rows) == (16, 8, 0)
    assert one.rows_per_expert == (8, 8)


def test_a_gather_moves_every_token_to_everybody() -> None:
    one = summed(layer_of([[1, 3], [4, 4]], dispatcher=1, hidden=2, itemsize=1, combine_itemsize=1))
    assert one.dispatch_bytes == 2 * (2 + 2 + 4 + 4)  # 2 tokens and 4, to two processes
    assert one.remote_bytes == 2 * 2 * (2 + 4)
    assert one.useful_bytes is None


def test_the_way_back_may_be_wider() -> None:
    one = summed(layer_of([[1, 3], [4, 4]], hidden=10, itemsize=1, combine_itemsize=2))
    assert (one.dispatch_bytes, one.combine_bytes, one.remote_bytes) == (120, 240, 30 * (3 + 4))


counts = st.lists(st.lists(st.integers(0, 20), min_size=8, max_size=8), min_size=4, max_size=4)
grids = st.sampled_from(
    [
        (((0, 1), (0, 1), (2, 3), (2, 3)), ((0,), (1,), (2,), (3,))),
        (((0, 1, 2, 3),) * 4, ((0,), (1,), (2,), (3,))),
        (((0, 2), (1, 3), (0, 2), (1, 3)), ((0, 1), (0, 1), (2, 3), (2, 3))),
        (((0,), (1,), (2,), (3,)), ((0,), (1,), (2,), (3,))),
    ]
)


@given(counts, grids, st.sampled_from([ABSENT, 1, 3, 30]), st.integers(0, 1), st.sampled_from([ABSENT, 1, 4]))
@settings(max_examples=100, deadline=None)
def test_every_row_is_accounted_for(
    assigned: list[list[int]], grid: tuple[Groups, Groups], capacity: int, padded: int, align: int
) -> None:
    layer = layer_of(assigned, ep=grid[0], etp=grid[1], capacity=capacity, padded=padded, align=align)
    rows = rows_of(layer)
    total = sum(map(sum, assigned))
    kept, empty, filled, masked = kinds(rows)
    assert kept == total - rows.dropped.sum()
    assert masked == 0
    assert (rows.kept <= rows.executed).all()
    assert rows.sent.sum() == kept + empty  # each row is sent once and met by one expert
    assert filled >= 0
    if align != ABSENT:
        assert (rows.executed % align == 0).all()
    else:
        assert filled == 0
    if capacity != ABSENT:
        assert ((rows.assigned - rows.dropped) <= capacity).all()
    assert rows.useful is not None
    assert rows.useful.sum() == kept
    one = summed(layer)
    assert sum(one.rows_per_expert) == one.executed_rows == kept + empty + filled
    assert one.hot_expert_ratio is None or one.hot_expert_ratio >= 1


def test_calls_that_some_ranks_did_not_record_are_left_out() -> None:
    layer = layer_of([[[1, 1], [ABSENT, ABSENT]], [[2, 2], [3, 1]]])
    assert summed(layer).assignments == 8
    trace = exchanging(steps=2).trace()
    result = Run(Evidence(trace, {}, routing=Routing((layer,), overwritten=3)), ("a",)).moe()
    assert [note.code for note in result.notes].count("TF317") == 2
    assert [call.step for call in result.calls] == [1]


# The trace.


def exchanging(rows: tuple[int, int] = (5, 1), steps: int = 1) -> Builder:
    """Two hosts whose experts take 2 ms per row and twice that backward, each followed by an exchange of 1 ms."""
    build, now = Builder(), 0
    threads = [build.lane(rank, "main") for rank in range(2)]
    for step in range(steps):
        start = now
        for name, per_row in (("experts", 2), ("experts backward", 4)):
            ends = [now + per_row * count * MS for count in rows]
            for thread, end in zip(threads, ends, strict=True):
                build.event(thread, now, end, name, Kind.HOST)
            build.collective(threads, ends, max(ends) + MS, "gloo:all_to_all")
            now = max(ends) + MS
        for rank in range(2):
            build.mark(step, rank, start, now)
    return build


def run_of(build: Builder, *layers: LayerRouting, combines: tuple[CombineValues, ...] = ()) -> Run:
    return Run(Evidence(build.trace(), {}, routing=Routing(layers, combines=combines)), ("runs/moe",))


def uneven() -> Moe:
    return run_of(exchanging(), layer_of([[4, 1], [1, 0]], topk=1)).moe()


def test_perfect_balance_is_replayed_with_the_mean_of_the_rows() -> None:
    result = uneven()
    assert result.balance is not None
    assert result.balance.measured_ns == 32 * MS  # 10 + 1 + 20 + 1
    assert result.balance.prediction.predicted_ns == 20 * MS  # 3 rows each: 6 + 1 + 12 + 1
    assert result.layers[0].balance_saved_ns == 12 * MS


def test_rows_that_are_alike_save_nothing() -> None:
    result = run_of(exchanging((3, 3)), layer_of([[2, 2], [1, 1]], topk=1)).moe()
    assert result.balance is not None
    assert result.balance.saved_ns == 0
    assert not [finding for finding in result.findings if finding.code == "TF217"]


def test_a_slow_rank_with_as_many_rows_is_no_matter_of_balance() -> None:
    result = run_of(exchanging((5, 1)), layer_of([[2, 2], [1, 1]], topk=1)).moe()
    assert result.balance is not None
    assert result.balance.saved_ns == 0


def test_the_hot_expert_is_named_with_its_cost() -> None:
    build = exchanging((5, 1))
    result = run_of(build, layer_of([[40, 5, 2, 3], [40, 5, 2, 3]], topk=1)).moe()
    (finding,) = [finding for finding in result.findings if finding.code == "TF217"]
    assert "expert 0 of layer 0 on rank 0 gets 80% of the assignments, 3.2 times the mean" in finding.title
    assert finding.cost_ns == result.layers[0].balance_saved_ns == 12 * MS
    assert finding.evidence["rank"] == 0
    assert finding.evidence["experts_on_path_ns"] == {"0": 30 * MS}


def test_whose_experts_are_on_the_path() -> None:
    stages = {(s.direction, s.rank): s for s in uneven().stages}
    assert stages["forward", 0].path_ns == stages["forward", 0].work_ns == 10 * MS
    assert stages["backward", 0].path_ns == 20 * MS
    assert stages["backward", 1].path_ns == 0
    assert stages["backward", 1].duration_ns == 4 * MS


def test_a_step_is_explained_alone() -> None:
    layer = layer_of([[[4, 1], [1, 0]], [[2, 1], [2, 1]]], topk=1)
    result = run_of(exchanging(steps=2), layer).moe(step=0)
    assert [one.assignments for one in result.layers] == [6]
    assert [call.step for call in result.calls] == [0]
    assert result.balance is not None
    assert result.balance.measured_ns == 32 * MS


def micro_batches() -> Builder:
    """Two micro-batches through two layers on two ranks; the second layer's experts are slow on rank 1, in all calls."""
    build, now = Builder(), 0
    threads = [build.lane(rank, "main") for rank in range(2)]
    works = [("experts", 0), ("experts", 1), ("experts backward", 1), ("experts backward", 0)] * 2
    for name, layer in works:
        ends = [now + (1 + layer * 8 * rank) * MS for rank in range(2)]
        for thread, end in zip(threads, ends, strict=True):
            build.event(thread, now, end, name, Kind.HOST)
        build.collective(threads, ends, max(ends) + MS, "gloo:all_to_all")
        now = max(ends) + MS
    for rank in range(2):
        build.mark(0, rank, 0, now)
    return build


def test_work_belongs_to_the_call_of_its_layer_in_both_directions() -> None:
    when: dict[str, Any] = {"step": [0, 0], "occurrence": [0, 1]}
    first = layer_of([[[1, 1], [1, 1]]] * 2, topk=1, order=[[0, 0], [2, 2]], **when)
    second = layer_of([[[1, 5], [0, 4]]] * 2, topk=1, layer=1, order=[[1, 1], [3, 3]], **when)
    result = run_of(micro_batches(), first, second).moe()
    assert result.balance is not None
    assert result.balance.by_layer_ns == (0, 4 * 4 * MS)  # 1 and 9 ms become 5 each, four times


def test_without_as_many_stages_as_calls_nothing_is_replayed() -> None:
    result = run_of(exchanging(steps=2), layer_of([[[4, 1], [1, 0]]], topk=1, order=[[1, 1]])).moe()
    assert result.balance is not None  # one call, one occurrence
    twice = layer_of([[[4, 1], [1, 0]]] * 2, topk=1, step=[0, 0], occurrence=[0, 1], order=[[0, 0], [1, 1]])
    result = run_of(exchanging(), twice).moe()
    assert result.balance is None
    assert "as often" in {gap.what: gap.reason for gap in result.skipped}["/result/balance"]


def test_waits_of_the_host_inside_the_exchange_are_found() -> None:
    build = Builder()
    thread, stream = build.lane(0, "main"), build.lane(0, "stream 7", 0)
    build.event(thread, 0, 9 * MS, "dispatch", Kind.HOST)
    build.event(thread, 0, MS, "cudaLaunchKernel", Kind.CALL, 1)
    build.event(stream, MS, 8 * MS, "count", Kind.COMPUTE, 1)
    build.event(thread, 2 * MS, 8 * MS, "cudaStreamSynchronize", Kind.WAIT, 2)
    build.event(thread, 10 * MS, 12 * MS, "cudaStreamSynchronize", Kind.WAIT, 3)  # outside
    result = run_of(build).moe()
    assert result.synchronisations is not None
    ((wait),) = result.synchronisations
    assert (wait.stage, wait.direction, wait.count, wait.duration_ns) == ("dispatch", "forward", 1, 6 * MS)
    assert [finding.code for finding in result.findings] == ["TF220"]
    (stage,) = result.stages
    assert (stage.stage, stage.device, stage.duration_ns) == ("dispatch", 0, 7 * MS)


def test_nothing_recorded_is_said_with_a_reason() -> None:
    result = Run(Evidence(exchanging().trace(), {}), ("a",)).moe()
    reasons = {gap.what: gap.reason for gap in result.skipped}
    assert "call traceflow.moe" in reasons["/result/layers"]
    assert len(result.stages) == 4
    assert result.balance is None


# Combination.


@st.composite
def combinations(draw: st.DrawFn) -> CombineValues:
    """Results of top-2 that come back in any order, rightly combined."""
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    tokens, weighted = draw(st.integers(2, 6)), draw(st.booleans())
    gates = random.uniform(0.1, 0.9, (tokens, 2))
    results = random.normal(0, 1, (tokens, 2, 3))
    places = np.argwhere(np.ones((tokens, 2)))[random.permutation(2 * tokens)]
    gated = results * gates[:, :, None]
    returned = (gated if weighted else results)[places[:, 0], places[:, 1]]
    return CombineValues(0, 4, returned, places[:, 0], places[:, 1], gates, gated.sum(axis=1), weighted)


def test_results_in_any_order_are_combined_by_token() -> None:
    """Of two tokens: u = E1(h1), v = E0(h0), w = E1(h0), z = E0(h1)."""
    u, v, w, z = np.array([[2.0], [3.0], [5.0], [7.0]])
    gates = np.array([[0.7, 0.3], [0.2, 0.8]])
    out = np.array([0.7 * v + 0.3 * w, 0.2 * z + 0.8 * u])
    values = CombineValues(
        0, 0, np.array([u, v, w, z]), np.array([1, 0, 0, 1]), np.array([1, 0, 1, 0]), gates, out, False
    )
    assert check_combine(values).verdict is Verdict.RIGHT
    wrong = replace(values, combined=np.array([0.7 * u + 0.3 * v, 0.2 * w + 0.8 * z]))
    assert check_combine(wrong).verdict is not Verdict.RIGHT


@given(combinations())
@settings(max_examples=60, deadline=None)
def test_each_mistake_is_told(values: CombineValues) -> None:
    assert check_combine(values).verdict is Verdict.RIGHT
    gate = values.gates[values.token, values.choice][:, None]
    bare = values.returned / gate if values.weighted else values.returned
    for verdict, rows in ((Verdict.GATE_TWICE, bare * gate**2), (Verdict.NO_GATE, bare)):
        check = check_combine(replace(values, combined=by_token(values, rows)))
        assert check.verdict is verdict
        finding = check.finding()
        assert finding is not None
        assert (finding.code, finding.evidence["layer"]) == ("TF221", 4)
    assert check_combine(replace(values, combined=values.combined + 1)).verdict is Verdict.WRONG


def by_token(values: CombineValues, rows: NDArray[np.float64]) -> NDArray[np.float64]:
    combined = np.zeros_like(values.combined)
    for token, row in zip(values.token, rows, strict=True):
        combined[token] += row
    return combined


@given(combinations())
@settings(max_examples=60, deadline=None)
def test_rows_taken_in_order_are_told(values: CombineValues) -> None:
    tokens = len(values.combined)
    gated = values.returned if values.weighted else values.returned * np.sort(values.gates, axis=0)[0, 0]
    if not values.weighted:
        values = replace(values, gates=np.full_like(values.gates, np.sort(values.gates, axis=0)[0, 0]))
    in_order = gated.reshape(tokens, 2, -1).sum(axis=1)
    shuffled = (values.token != np.repeat(np.arange(tokens), 2)).any()
    found = check_combine(replace(values, combined=in_order)).verdict
    assert found is (Verdict.BY_POSITION if shuffled else Verdict.RIGHT)


# What is printed and drawn.


def shown() -> Run:
    values = CombineValues(
        1, 0, np.ones((1, 1)), np.zeros(1, int), np.zeros(1, int), np.full((1, 1), 0.5), np.ones((1, 1)), weighted=False
    )
    layer = layer_of([[40, 5, 2, 3], [40, 5, 2, 3]], topk=1, capacity=30, hidden=8, itemsize=2, combine_itemsize=2)
    return run_of(exchanging(), layer, combines=(values,))


def test_the_json_keeps_to_its_schema() -> None:
    run = shown()
    for result in (run.moe(), run.moe(step=0), run.padding()):
        assert problems(json.loads(dumps(envelope(result, run)))) == []


def test_padding_is_filled_from_the_record() -> None:
    padding: Any = shown().padding().to_dict()["moe"]
    (row,) = padding
    assert (row["executed_rows"], row["capacity_padding_rows"], row["wasted_flops"]) == (240, 160, None)


def test_the_terminal_tells_the_hot_expert_and_what_is_wrong() -> None:
    run = shown()
    text = render(json.loads(dumps(envelope(run.moe(), run))), width=120)
    assert "expert 0 of layer 0 on rank 0 gets 80% of the assignments" in text
    assert "Combination in layer 0 on rank 1: gate not applied" in text
    assert "TF218 warning: layer 0 drops 20.0% of its assignments" in text
    assert "experts backward" in text


def test_a_page_has_heat_maps_of_experts_and_ranks() -> None:
    page = render_report(shown())
    assert "layer 0, expert 0: 80 assignments, 3.20 times the mean" in page
    assert "layer 0, rank 0, host: 120 rows, 1.00 times the mean" in page
    assert "run0-moe" in page
    assert "run0-moe" not in render_report(Run(Evidence(exchanging().trace(), {}), ("a",)))
