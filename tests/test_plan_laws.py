"""Laws of plans: nothing is lost, backward mirrors forward, and every gradient becomes the same mean."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from hypothesis import assume, given
from hypothesis import strategies as st
from plans import steps

from traceflow.intent.plan import (
    Batch,
    Model,
    ParallelPlan,
    Training,
    capacity,
    count_tokens,
    experts_held,
    gradient_scaling,
    mirrored,
    moves,
    payloads,
    place,
    plan_step,
    problems,
)
from traceflow.intent.plan.model import DISPATCHERS, OPTIMIZERS

Step = tuple[ParallelPlan, Model, Batch]
TRAININGS = st.builds(
    Training,
    dispatcher=st.sampled_from(DISPATCHERS),
    optimizer=st.sampled_from(OPTIMIZERS),
    balancing=st.sampled_from(["none", "local", "global"]),
)
RETURNS = {"all-gather": "reduce-scatter", "reduce-scatter": "all-gather"}
MATES = {"counts", "routing_map", "router_statistics"}  # nothing is differentiated


def of(step: Step, training: Training | None = None) -> dict[tuple[str, str], Any]:
    """Payloads by operation and direction."""
    return {(p.operation, p.direction): p for p in payloads(*step, training or Training())}


@given(steps())
def test_sizes_that_divide_are_no_problem(step: Step) -> None:
    parallel, model, batch = step
    assert [p for p in problems(parallel, model, batch) if p.severity == "error" and p.code != "TF252"] == []
    plan = plan_step(parallel, model, batch)
    assert plan.shapes
    assert plan.tokens is not None


@given(steps(drops=False))
def test_all_ranks_together_send_every_assignment_once(step: Step) -> None:
    parallel, model, batch = step
    assume(parallel.ep > 1)  # else nothing is sent
    sent = of(step)["dispatch", "forward"].bytes * parallel.ranks_per_stage
    samples = parallel.batch_parallel * batch.micro_batch
    assert sent == samples * batch.sequence * model.topk * model.routed_width * model.item_bytes


@given(steps())
def test_what_a_stage_sends_its_experts_compute(step: Step) -> None:
    parallel, model, _ = step
    tokens = count_tokens(*step)
    computed = tokens.rows_per_expert * model.experts * parallel.expert_data_parallel * parallel.egtp
    assert computed == tokens.sent_rows * parallel.ranks_per_stage


@given(steps())
def test_parts_of_experts_add_up_to_whole_experts(step: Step) -> None:
    parallel, model, batch = step
    (held,) = [w for w in plan_step(parallel, model, batch).weights if (w.name, w.of) == ("routed_experts", "a layer")]
    whole = model.experts * model.expert_parameters * parallel.expert_data_parallel
    assert held.parameters * parallel.ranks_per_stage == whole


@given(steps(), TRAININGS)
def test_backward_mirrors_forward(step: Step, training: Training) -> None:
    rows = [p for p in payloads(*step, training) if p.per != "layer and step" and "gtp" not in p.operation]
    forward = [p for p in rows if p.direction == "forward" and p.operation not in MATES]
    backward = [p for p in rows if p.direction == "backward"]
    assert [p.operation for p in backward] == [p.operation for p in reversed(forward)]
    for there, back in zip(forward, reversed(backward), strict=True):
        assert back.collective == RETURNS.get(there.collective, there.collective)
        assert (back.group, back.remote_bytes) == (there.group, there.remote_bytes)
        assert mirrored(back).bytes == there.bytes


@given(steps(), TRAININGS)
def test_what_leaves_a_rank_is_no_more_than_the_collective_needs(step: Step, training: Training) -> None:
    for p in payloads(*step, training):
        assert p.size == step[0].group_size(p.group) > 1
        if p.bytes is None or p.remote_bytes is None:
            assert p.operation.startswith("dense")
        elif p.collective in {"all-to-all", "reduce-scatter"}:
            assert 0 <= p.bytes - p.remote_bytes - p.bytes // p.size <= 1


@given(steps(one_matrix=True), st.data())
def test_every_gradient_becomes_the_mean_over_all_that_differ(step: Step, data: st.DataObject) -> None:
    """Each rank contributes a number to one dense and one expert parameter; reductions are done group by group."""
    parallel, _, _ = step
    ranks = range(parallel.world)
    own = [Fraction(data.draw(st.integers(-9, 9), label=f"rank {rank}")) for rank in ranks]
    mean = sum(own) / len(own)
    scaling = gradient_scaling(parallel)

    def over(name: str, values: list[Fraction], *, average: bool = False) -> list[Fraction]:
        found = list(values)
        for group in parallel.groups(name):
            total = sum((values[rank] for rank in group), Fraction(0))
            for rank in group:
                found[rank] = total / len(group) if average else total
        return found

    met = over("ETPxEP", own)  # what the tokens of its exchange group make of an expert
    for average, factors in ((False, scaling.sum), (True, scaling.avg)):
        dense = over("GTP", [factors.dense * value for value in own], average=True)
        expert = over("EGTP", [factors.expert * value for value in met], average=True)
        assert set(over("DPxCP", dense, average=average)) == {mean}
        assert set(over("EDP", expert, average=average)) == {mean}
    assert set(over("DPxCP", over("GTP", own))) == set(over("EDP", over("EGTP", met))) == {sum(own)}
    assert scaling.per_token.dense == scaling.per_token.expert == Fraction(1)


@given(steps())
def test_each_expert_has_one_place_before_and_after(step: Step) -> None:
    parallel, model, _ = step
    held = experts_held(model.experts, parallel.ep)
    assert [expert for block in held for expert in block] == list(range(model.experts))
    for expert, (before, after) in enumerate(moves(model.experts, parallel.ep, model.experts)):
        assert held[before.ep_rank][before.local] == expert
        assert before == place(expert, model.experts, parallel.ep)
        assert (after.ep_rank, after.local) == (expert, 0)


@given(st.integers(1, 500), st.integers(1, 8), st.integers(1, 64), st.sampled_from([0.5, 1.0, 1.1, 1.25, 2.0]))
def test_a_capacity_is_the_least_whole_number_that_suffices(n: int, k: int, experts: int, factor: float) -> None:
    room = capacity(n, k, experts, factor)
    exact = Fraction(str(factor)) * n * k / experts
    assert room - 1 < exact <= room
