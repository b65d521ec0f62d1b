"""Groups of a parallel plan: known answers, and that they partition the ranks."""

from __future__ import annotations

from math import prod
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from traceflow.errors import TraceflowError
from traceflow.intent.plan import ParallelPlan

LARGE = ParallelPlan(world=1024, pp=8, cp=2, ep=64)
KINDS = tuple(LARGE.all_groups())


def of_rank_0(plan: ParallelPlan, name: str) -> list[int]:
    return list(next(group for group in plan.groups(name) if 0 in group))


@pytest.mark.parametrize(
    ("name", "members"),
    [
        ("CP", [0, 1]),
        ("DP", list(range(0, 128, 2))),
        ("DPxCP", list(range(128))),
        ("EP", list(range(64))),
        ("EDP", [0, 64]),
        ("PP", list(range(0, 1024, 128))),
    ],
)
def test_groups_of_rank_0_on_1024_ranks(name: str, members: list[int]) -> None:
    assert of_rank_0(LARGE, name) == members


def test_folding_leaves_64_samples_and_2_copies_of_each_expert() -> None:
    assert (LARGE.ranks_per_stage, LARGE.data_parallel, LARGE.expert_data_parallel) == (128, 64, 2)
    assert LARGE.batch_parallel == 64


def test_a_rank_has_two_sets_of_coordinates() -> None:
    for rank in (0, 1, 64, 77, 127):
        at = LARGE.coordinates(rank)
        assert rank == at["cp"] + 2 * at["dp"] == at["ep"] + 64 * at["edp"]


def test_expert_matrices_count_before_experts() -> None:
    plan = ParallelPlan(world=4, etp=2, ep=2)
    assert plan.groups("ETP") == ((0, 1), (2, 3))
    assert plan.groups("EP") == ((0, 2), (1, 3))


def test_weights_that_are_gathered_may_share_a_sequence() -> None:
    plan = ParallelPlan(world=128, gtp=64, cp=2, gtp_sequence_shards=64)
    assert (plan.context_parallel_runtime, plan.data_parallel, plan.batch_parallel) == (128, 1, 1)


def test_weights_that_are_gathered_count_after_tp_where_the_order_does_not_name_them() -> None:
    sizes = {"world": 16, "tp": 2, "gtp": 2, "cp": 2, "etp": 2, "egtp": 4, "ep": 2}
    short, long = (ParallelPlan(**sizes, order=order) for order in ("tp-cp-ep-dp-pp", "tp-gtp-cp-ep-dp-pp"))  # type: ignore[arg-type]
    assert short.all_groups() == long.all_groups()
    assert short.groups("GTP")[0] == (0, 2)
    assert short.strides("expert") == {"etp": 1, "egtp": 2, "ep": 8, "edp": 16, "pp": 16}


def test_a_rank_is_the_sum_of_strides_and_coordinates() -> None:
    for rank in (0, 1, 77, 1023):
        at = LARGE.coordinates(rank)
        for mesh in ("dense", "expert"):
            assert rank == sum(stride * at[axis] for axis, stride in LARGE.strides(mesh).items())


@pytest.mark.parametrize(
    "sizes",
    [
        {"world": 100, "tp": 8},
        {"world": 8, "ep": 3},
        {"world": 8, "tp": 0},
        {"world": 8, "order": "tp-cp"},
        {"world": 8, "gtp": 4, "gtp_sequence_shards": 3},
    ],
)
def test_what_is_no_plan_is_refused(sizes: dict[str, Any]) -> None:
    with pytest.raises(TraceflowError, match="TF148"):
        ParallelPlan(**sizes)


@st.composite
def plans(draw: st.DrawFn) -> ParallelPlan:
    small = st.sampled_from([1, 2, 3])
    dense = {name: draw(small) for name in ("tp", "cp", "gtp")}
    pp, copies = draw(small), draw(small)
    stage = prod(dense.values()) * copies
    divisors = [d for d in range(1, stage + 1) if stage % d == 0]
    ep = draw(st.sampled_from(divisors))
    etp = draw(st.sampled_from([d for d in divisors if stage % (ep * d) == 0]))
    order = "-".join(draw(st.permutations(["tp", "gtp", "cp", "ep", "dp", "pp"])))
    return ParallelPlan(
        world=stage * pp, pp=pp, ep=ep, etp=etp, order=order, tp=dense["tp"], cp=dense["cp"], gtp=dense["gtp"]
    )


@given(plans(), st.sampled_from(KINDS))
def test_groups_of_a_kind_partition_the_ranks(plan: ParallelPlan, name: str) -> None:
    groups = plan.groups(name)
    assert sorted(rank for group in groups for rank in group) == list(range(plan.world))
    assert len({len(group) for group in groups}) == 1


@given(plans())
def test_both_meshes_fill_a_stage(plan: ParallelPlan) -> None:
    size = {name: len(plan.groups(name)[0]) for name in KINDS}
    assert plan.ranks_per_stage == size["TP"] * size["GTP"] * size["CP"] * size["DP"]
    assert plan.ranks_per_stage == size["ETP"] * size["EGTP"] * size["EP"] * size["EDP"]
    assert size["DPxCP"] == size["DP"] * size["CP"]


@given(plans(), st.sampled_from(KINDS), st.data())
def test_members_of_a_group_differ_along_its_axes_only(plan: ParallelPlan, name: str, data: st.DataObject) -> None:
    group = data.draw(st.sampled_from(plan.groups(name)))
    own = {"DPxCP": {"dp", "cp"}, "TPxCP": {"tp", "cp"}, "TPxDPxCP": {"tp", "dp", "cp"}, "ETPxEP": {"etp", "ep"}}
    axes = own.get(name, {name.lower()})
    mesh = {"tp", "gtp", "cp", "dp", "pp"} if name in {"TP", "GTP", "CP", "DP", "DPxCP", "TPxCP", "TPxDPxCP", "PP"} else {
        "etp", "egtp", "ep", "edp"
    }  # fmt: skip
    places = [plan.coordinates(rank) for rank in group]
    assert all(len({place[axis] for place in places}) == 1 for axis in mesh - axes)
