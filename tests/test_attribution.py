"""What collectives are for, in situations written by hand: each kind of evidence, and where there is none."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from kineto_builder import MAIN, KinetoTrace, opened
from sources import ROOT

import traceflow
from traceflow.analyzers.attribution import Attribution, Phase, Purpose, attribution
from traceflow.analyzers.attribution.dimensions import Grids, described, on_mesh, planned, recorded
from traceflow.analyzers.attribution.purposes import Kind, kind_of_operation
from traceflow.cli import main
from traceflow.intent.mesh import Mesh
from traceflow.intent.plan import Batch, Model, ParallelPlan, Training, plan_step
from traceflow.intent.routing import LayerRouting, Routing, Shape
from traceflow.run import Run
from traceflow.schemas import schema
from traceflow.trace.model import Group

CORPUS = ROOT.parent / "shared" / "corpus"
ENGINE = 4001  # the thread of autograd
EVALUATE = "autograd::engine::evaluate_function: "


def kineto(name: str) -> Run:
    path = CORPUS / "kineto" / f"{name}.json.gz"
    if not path.exists():
        pytest.skip(f"{name} is not here: the corpus lies beside the project")
    return traceflow.open(path)


def told(of: Attribution) -> Counter[tuple[str, str, str | None]]:
    """How many calls have each dimension, purpose and pass."""
    return Counter((call.dimension, call.purpose.value, call.phase and call.phase.value) for call in of.calls)


class Step:
    """One marked step of one rank: forward until 100 us, backward until 200 us, and what comes after."""

    def __init__(self, world_size: int = 4, rank: int = 0, **groups: tuple[int, ...]) -> None:
        self.trace = KinetoTrace(rank=rank, world_size=world_size, groups=dict(groups))
        self.trace.step(1, 0, 400_000)
        self.sequence = 0

    def issue(self, operation: str, at: int, *scopes: str, **how: object) -> None:
        """An all-to-all and the like at `at` us, inside of scopes, the outermost first; backward on another thread."""
        start, thread = at * 1000, ENGINE if 100 <= at < 200 else MAIN
        around = [
            *([f"{EVALUATE}SomeBackward"] if thread == ENGINE and EVALUATE not in "".join(scopes) else []),
            *scopes,
        ]
        for depth, scope in enumerate(around):
            self.trace.host(scope, start + depth * 10, start + 900 - depth * 10, thread=thread)
        self.sequence += 1
        self.trace.collective(operation, start + 500, start + 800, sequence=self.sequence, **how)  # type: ignore[arg-type]
        kernel = self.trace.events[-1]
        call = start + 300, start + 400
        kernel["args"]["correlation"] = self.trace.runtime("cudaLaunchKernel", *call, thread=thread)

    def attributed(self, folder: Path, **how: object) -> Attribution:
        run = opened(folder, self.trace)
        return attribution(run.trace, run.dependencies, **how)  # type: ignore[arg-type]


def layer(sent: list[list[int]], groups: tuple[tuple[int, ...], ...], *, experts: int = 8) -> Routing:
    """The record of one call of a layer in step 1, by what each rank sends."""
    ranks = len(sent)
    assigned = np.zeros((1, ranks, experts), np.int32)
    here = experts // len(groups[0])
    for source, rows in enumerate(sent):
        for place, count in enumerate(rows):
            assigned[0, source, place * here] = count
    one = LayerRouting(
        layer=0,
        shape=Shape(experts=experts, topk=2, hidden=16, itemsize=4),
        step=np.array([1]),
        occurrence=np.array([0]),
        rank=np.arange(ranks),
        device=np.full(ranks, -1),
        order=np.zeros((1, ranks), np.int64),
        assigned=assigned,
        dropped=None,
        expert_rows=None,
        sent=None,
        received=None,
        ep_groups=groups,
        etp_groups=tuple((rank,) for rank in range(ranks)),
    )
    return Routing((one,))


def test_operations_by_any_spelling() -> None:
    texts = ["allreduce", "_allgather_base", "reduce_scatter_tensor", "all_to_allv", "alltoall_base", "all-to-all"]
    assert [kind_of_operation(text).value for text in texts] == [
        "all-reduce",
        "all-gather",
        "reduce-scatter",
        "all-to-all",
        "all-to-all",
        "all-to-all",
    ]
    assert kind_of_operation("send_recv") is Kind.OTHER  # what NCCL's kernel of that name does is not known


# Groups.


def test_groups_of_the_example_with_1024_ranks_have_their_names() -> None:
    grids = planned(ParallelPlan(world=1024, pp=8, cp=2, ep=64))
    named = [
        (range(2), "CP", "EP"),
        (range(0, 128, 2), "DP", None),
        (range(128), "DPxCP", "EPxEDP"),
        (range(64), None, "EP"),
        ((0, 64), None, "EDP"),
        (range(0, 1024, 128), "PP", "PP"),
    ]
    for members, dense, expert in named:
        if members != range(2):
            assert grids.expert is not None
            assert grids.expert.name_of(members) == expert
        assert grids.dense is not None
        assert grids.dense.name_of(members) == dense


sizes = st.sampled_from([1, 2, 3, 4])


@given(pp=sizes, tp=sizes, cp=sizes, dp=sizes, etp=sizes, ep=sizes)
def test_every_group_of_a_plan_is_called_by_its_axes(pp: int, tp: int, cp: int, dp: int, etp: int, ep: int) -> None:
    world = pp * tp * cp * dp * etp * ep
    plan = ParallelPlan(world=world, pp=pp, tp=tp, cp=cp, ep=ep, etp=etp)
    grids = planned(plan)
    for name, groups in plan.all_groups().items():
        grid = grids.expert if name.startswith("E") else grids.dense
        axes = {"TP": tp, "CP": cp, "DP": plan.data_parallel, "PP": pp, "ETP": etp, "EP": ep, "GTP": 1, "EGTP": 1}
        axes["EDP"] = plan.expert_data_parallel
        own = [
            axis for axis in ("TP", "ETP", "EP", "DP", "CP", "EDP", "PP") if axis in name.split("x") and axes[axis] > 1
        ]
        assert grid is not None
        assert {grid.name_of(group) for group in groups} == {"x".join(own) if own else None}


def test_a_group_that_is_not_whole_has_no_name() -> None:
    grids = planned(ParallelPlan(world=8, tp=4))
    assert grids.dense is not None
    assert grids.dense.name_of((0, 1, 2)) is None
    assert grids.dense.name_of((0, 1), whole=False) == "TP"
    assert grids.dense.name_of((0, 9)) is None
    assert Grids().dense is None


def test_the_mesh_of_a_record() -> None:
    routing = layer([[1, 1]] * 4, ((0, 1), (0, 1), (2, 3), (2, 3)))
    grid = recorded(routing.layers[0])
    assert [grid.name_of(members) for members in ((0, 1), (0, 2), (0, 1, 2, 3))] == ["EP", "EDP", "EPxEDP"]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("EXPERT_MODEL_PARALLEL_GROUP", "EP"),
        ("TENSOR_MODEL_PARALLEL_GROUP", "TP"),
        ("DATA_PARALLEL_GROUP_WITH_CP", "DPxCP"),
        ("EXPERT_DATA_PARALLEL_GROUP_GLOO", "EDP"),
        ("mesh_dp_shard", "DP"),
        ("mesh_pp", "PP"),
        ("ETPxEP", "ETPxEP"),
        ("default_pg", None),
        ("undefined", None),
        ("", None),
    ],
)
def test_what_programs_call_their_groups(text: str, name: str | None) -> None:
    assert described(Group("7", (0, 1), 2, text)) == name


def test_axes_of_the_users_own_mesh() -> None:
    mesh = Mesh.of({"data": 2, "model": 4})
    assert [on_mesh(mesh, members) for members in ((0, 4), (4, 5, 6, 7), tuple(range(8)), (0, 5))] == [
        "data",
        "model",
        "dataxmodel",
        None,
    ]


# Evidence.


def test_gradients_are_known_by_where_they_are_reduced(tmp_path: Path) -> None:
    step = Step()
    step.issue("allreduce", 150, f"{EVALUATE}torch::autograd::AccumulateGrad")
    step.issue("allreduce", 160, f"{EVALUATE}LinearBackward")
    assert told(step.attributed(tmp_path)) == {
        ("DP", "dense gradient reduction", "backward"): 1,
        ("DP", "unknown", "backward"): 1,  # of the same group, for no known purpose
    }


def test_gathers_of_one_name_are_told_apart_by_group_and_pass(tmp_path: Path) -> None:
    """Tokens of ETP, parameters of DP, and activations of TP: all by a kernel called AllGather."""
    step = Step(world_size=8, tp=(0, 1), etp=(0, 1, 2, 3), dp=(0, 2, 4, 6))
    for at, group in ((10, "tp"), (20, "etp"), (30, "dp")):
        step.issue("_allgather_base", at, group=group)
    step.issue("_allgather_base", 40, group="dp", elements=7)  # of which no gradient comes back
    step.issue("_reduce_scatter_base", 150, group="dp", elements=4 * 1024)
    plan = plan_step(ParallelPlan(world=8, tp=2, etp=4))
    found = step.attributed(tmp_path, plan=plan)
    assert [(call.dimension, call.purpose) for call in found.calls] == [
        ("TP", Purpose.ACTIVATION_GATHER),
        ("ETP", Purpose.ETP_GATHER),
        ("DP", Purpose.PARAMETER_GATHER),
        ("DP", Purpose.UNKNOWN),
        ("DP", Purpose.DENSE_GRADIENT),
    ]


def test_one_group_for_tokens_and_for_gradients(tmp_path: Path) -> None:
    """EP and DP have the same members: what is exchanged in both passes is tokens, what is summed late is gradients."""
    step = Step()
    for at in (10, 20, 110, 120):
        step.issue("all_to_allv", at, in_splits="[2,2,2,2]", out_splits="[2,2,2,2]", elements=128)
    step.issue("allreduce", 250)
    found = step.attributed(tmp_path, plan=plan_step(ParallelPlan(world=4, ep=4)))
    assert [(call.dimension, call.purpose, call.phase) for call in found.calls] == [
        ("EP", Purpose.DISPATCH, Phase.FORWARD),
        ("EP", Purpose.COMBINE, Phase.FORWARD),
        ("EP", Purpose.COMBINE, Phase.BACKWARD),
        ("EP", Purpose.DISPATCH, Phase.BACKWARD),
        ("DP", Purpose.DENSE_GRADIENT, Phase.UPDATE),
    ]


def test_splits_of_the_record_tell_dispatch_from_combine(tmp_path: Path) -> None:
    routing = layer([[3, 5], [6, 2]], ((0, 1), (0, 1)))
    there, back = "[3,5]", "[3,6]"  # rank 1 sends six rows here
    step = Step(world_size=2)
    step.issue("all_to_allv", 10, in_splits=there, out_splits=back)
    step.issue("all_to_allv", 20, in_splits=back, out_splits=there)
    step.issue("all_to_allv", 110, in_splits=there, out_splits=back)
    step.issue("all_to_allv", 120, in_splits=back, out_splits=there)
    step.issue("all_to_allv", 130, in_splits="[1,7]", out_splits="[4,4]")
    assert [call.purpose.value for call in step.attributed(tmp_path, routing=routing).calls] == [
        "token dispatch",
        "combine",
        "combine",
        "token dispatch",
        "unknown",
    ]


def test_without_any_record_exchanged_splits_in_one_pass_are_tokens(tmp_path: Path) -> None:
    step = Step(world_size=2)
    step.issue("all_to_allv", 10, in_splits="[3,5]", out_splits="[3,6]", elements=8 * 16)
    step.issue("all_to_allv", 20, in_splits="[3,6]", out_splits="[3,5]", elements=9 * 16)
    step.issue("all_to_allv", 30, in_splits="[4,4]", out_splits="[4,4]")  # may be anything
    step.issue("all_to_allv", 110, in_splits="[9,1]", out_splits="[2,8]")  # nothing comes home in this pass
    step.issue("all_to_allv", 250, in_splits="[3,5]", out_splits="[3,6]")  # nor after the passes
    assert [call.purpose.value for call in step.attributed(tmp_path).calls] == [
        "token dispatch",
        "combine",
        "unknown",
        "unknown",
        "unknown",
    ]


def test_an_exchange_for_muon_is_none_of_tokens(tmp_path: Path) -> None:
    step = Step()
    step.issue("all_to_allv", 150, in_splits="[1,2,3,4]", out_splits="[4,3,2,1]")
    step.issue("all_to_allv", 250, "Optimizer.step#Muon.step", elements=4096)
    calls = step.attributed(tmp_path).calls
    assert [call.purpose for call in calls] == [Purpose.UNKNOWN, Purpose.MUON]
    assert calls[1].phase is Phase.UPDATE


def test_a_library_of_expert_parallelism_is_known_in_both_passes(tmp_path: Path) -> None:
    step = Step()
    at = {"dispatch": (10, 120), "combine": (20, 110)}
    for name, moments in at.items():
        for moment in moments:
            thread = ENGINE if moment >= 100 else MAIN
            if thread == ENGINE:
                step.trace.host(f"{EVALUATE}FusedBackward", moment * 1000, moment * 1000 + 900, thread=thread)
            call = (moment * 1000 + 100, moment * 1000 + 200)
            kernel = f"void deep_ep::intranode::{name}<8, 512>(int4*)"
            step.trace.kernel(kernel, moment * 1000 + 300, moment * 1000 + 800, call=call, thread=thread)
    assert told(step.attributed(tmp_path)) == {
        ("EP", "token dispatch", "forward"): 1,
        ("EP", "combine", "forward"): 1,
        ("EP", "token dispatch", "backward"): 1,  # by a combine, which brings slopes home
        ("EP", "combine", "backward"): 1,
    }


def test_a_few_numbers_are_statistics_and_transfers_along_pp_are_boundaries(tmp_path: Path) -> None:
    ranks = []
    for rank in (0, 2):
        step = Step(rank=rank, pp=(0, 2))
        step.issue("allreduce", 250, elements=1)
        how = {"to": 2} if rank == 0 else {"source": 0}
        at = (20_000, 30_000)
        (step.trace.send if rank == 0 else step.trace.receive)(*at, group="pp", call=(18_000, 19_000), **how)
        step.trace.host(f"{EVALUATE}MulBackward", 100_000, 101_000, thread=ENGINE)
        ranks.append(step.trace)
    run = opened(tmp_path, *ranks)
    plan = plan_step(ParallelPlan(world=4, pp=2))
    found = Counter((call.dimension, call.purpose) for call in run.attribution(plan).calls)
    assert found == {("DPxPP", Purpose.SCALARS): 2, ("PP", Purpose.BOUNDARY): 2}
    unplanned = Counter((call.dimension, call.purpose) for call in run.attribution().calls)
    assert unplanned == {("unknown", Purpose.SCALARS): 2, ("PP", Purpose.BOUNDARY): 2}  # its name says so


def test_what_ranks_know_differently_is_not_told(tmp_path: Path) -> None:
    """One rank says dispatch, the other combine, of one collective; a third collective only one of them knows."""
    ranks = []
    for rank, name in enumerate(("dispatch", "combine")):
        step = Step(world_size=2, rank=rank)
        step.issue("all_to_allv", 10, name)
        step.issue("all_to_allv", 20, *(["dispatch"] if rank else []))
        ranks.append(step.trace)
    found = opened(tmp_path, *ranks).attribution()
    assert [call.purpose.value for call in found.calls] == ["unknown", "token dispatch"] * 2
    assert found.calls[0].because == "its participants disagree: combine, token dispatch"
    assert sum(found.unknown.values()) == 2


# Overlap.


@pytest.mark.parametrize(
    ("issue", "compute", "kind"),
    [
        (("all_to_allv", 10, "dispatch"), (10, "shared_experts"), "shared expert"),
        (("all_to_allv", 10, "dispatch"), (110, f"{EVALUATE}MmBackward"), "batch-level EP"),
        (("all_to_allv", 110, "combine"), (10, "mlp"), "batch-level EP"),
        (("all_to_allv", 110, "dispatch"), (110, "backward_dw"), "dgrad/wgrad"),
        (("allreduce", 110, f"{EVALUATE}torch::autograd::AccumulateGrad"), (110, f"{EVALUATE}Mm"), "DP bucket"),
        (("_allgather_base", 10, "FSDP::all_gather (0)"), (10, "mlp"), "parameter prefetch"),
        (("all_to_allv", 10, "dispatch"), (10, "mlp"), None),
    ],
)
def test_kinds_of_overlap(
    issue: tuple[str, int, str], compute: tuple[int, str], kind: str | None, tmp_path: Path
) -> None:
    """A collective that is half hidden behind a kernel of some part of the program."""
    step = Step()
    step.issue(*issue)
    communicates = next(event for event in step.trace.events if event["cat"] == "kernel")
    start = round(communicates["ts"] * 1000) - 5_634_017_431_000
    at, scope = compute
    thread = ENGINE if at >= 100 else MAIN
    call = at * 1000 + 1200
    step.trace.host(scope, call - 50, call + 300, thread=thread)
    step.trace.host(f"{EVALUATE}Last", 198_000, 199_000, thread=ENGINE)
    step.trace.kernel("gemm", start + 150, start + 400, call=(call, call + 100), thread=thread)
    run = opened(tmp_path, step.trace)
    answer = run.communication()
    assert [overlap.kind for overlap in answer.overlaps] == ([] if kind is None else [kind])
    if kind is not None:
        (overlap,) = answer.overlaps
        assert (overlap.calls, overlap.busy_ns, overlap.overlapped_ns) == (1, 300, 150)


# Real traces.


def test_exchanges_of_embeddings_are_no_pipeline() -> None:
    """Its SendRecv kernels carry out all-to-alls of a recommender, before and in the passes."""
    calls = kineto("a100_pipeline_rank3of8").attribution().calls
    assert Counter((call.call.kind.value, call.dimension, call.purpose.value) for call in calls) == {
        ("all-to-all", "unknown", "unknown"): 42,
        ("all-reduce", "DP", "dense gradient reduction"): 18,
    }


def test_an_all_reduce_by_another_kernel_is_known_by_its_operator() -> None:
    calls = kineto("sampled_rank0of128").attribution().calls
    names = {call.call.kind.value for call in calls}
    assert names == {"all-reduce", "all-to-all", "all-gather"}  # every kernel is called SendRecv
    assert Counter(call.purpose.value for call in calls) == {"dense gradient reduction": 4, "unknown": 6}


def test_buckets_of_ddp_hide_behind_the_backward_pass() -> None:
    run = kineto("a100_nccl_rank0of2")
    assert told(run.attribution()) == {
        ("DP", "dense gradient reduction", "backward"): 15,
        ("DP", "unknown", "forward"): 6,  # buffers that are broadcast
    }
    answer = run.communication()
    assert [overlap.kind for overlap in answer.overlaps] == ["DP bucket"]
    assert sum(share.exposed_ns for share in answer.shares) == answer.participants[0].exposed_ns


@pytest.mark.parametrize("name", ["v100_ddp_rank1of2", "cpu_only_rank34"])
def test_where_nothing_tells_nothing_is_told(name: str) -> None:
    assert {call.purpose for call in kineto(name).attribution().calls} == {Purpose.UNKNOWN}


@pytest.mark.parametrize("name", ["a100_pipeline_rank3of8", "a100_nccl_rank0of2", "mi300_resnet_rank0of8"])
def test_renaming_kernels_changes_nothing(name: str) -> None:
    run = kineto(name)
    trace, before = run.trace, run.attribution()
    events = trace.events.name[trace.communications.event]
    renamed = np.array(trace.events.name)
    renamed[trace.communications.event] = len(trace.strings)
    after = attribution(
        replace(trace, events=replace(trace.events, name=renamed), strings=(*trace.strings, "k")), run.dependencies
    )
    assert len(set(events.tolist())) > 0
    assert [(c.dimension, c.purpose, c.because) for c in after.calls] == [
        (c.dimension, c.purpose, c.because) for c in before.calls
    ]


def test_types_of_an_operation_table_are_what_its_author_says() -> None:
    path = CORPUS / "cluster" / "trace-ST.parquet"
    if not path.exists():
        pytest.skip("the corpus lies beside the project")
    found = Counter((call.dimension, call.purpose.value) for call in traceflow.open(path).attribution().calls)
    assert found["PP", "PP boundary"] == 3072
    assert found["DP", "parameter gather"] == found["DP", "dense gradient reduction"] == 256


# A plan against a trace.


def test_a_plan_for_other_ranks_is_told(tmp_path: Path) -> None:
    step = Step(ep=(0, 2))
    step.issue("all_to_allv", 10, "dispatch", group="ep", elements=64)
    run = opened(tmp_path, step.trace)
    model = Model(hidden=16, experts=8, topk=2, expert_hidden=8, dtype="f32")
    plan = plan_step(ParallelPlan(world=8, ep=2), model, Batch(sequence=1, global_batch=8), Training())
    found = run.plan_check(plan)
    rows = {(row.subject.value, row.name, row.direction): row for row in found.rows}
    assert rows["ranks", "the run", None].agrees is False
    groups = rows["groups", "token dispatch", None]
    assert (groups.planned, groups.observed, groups.agrees) == ([[0, 1], [2, 3], [4, 5], [6, 7]], [[0, 2]], False)
    payload = rows["payload", "dispatch", "forward"]
    assert (payload.planned, payload.observed, payload.agrees) == (2 * 16 * 4, 256, False)
    assert rows["count", "dispatch", "forward"].agrees is True
    assert rows["count", "combine", "forward"].agrees is False
    assert {finding.code for finding in found.findings} == {"TF254", "TF255", "TF256"}
    assert len(found.findings) == sum(row.agrees is False for row in found.rows)


def asked(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main([*arguments, "-q"]) == 0
    return capsys.readouterr().out


def test_a_plan_is_given_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    step = Step()
    for at in (10, 20):
        step.issue("all_to_allv", at, in_splits="[2,2,2,2]", out_splits="[2,2,2,2]", elements=128)
    step.issue("allreduce", 150, f"{EVALUATE}torch::autograd::AccumulateGrad")
    step.trace.write(tmp_path / "rank0.pt.trace.json")
    plan = ["--world", "4", "--ep", "4"]
    checked = json.loads(asked(capsys, "plan", "check", str(tmp_path), *plan, "--format", "json"))
    assert list(Draft202012Validator(schema("plan-check")).iter_errors(checked)) == []
    assert checked["result"]["differences"] == 0
    assert [row["name"] for row in checked["result"]["rows"]] == [
        "the run",
        "token dispatch",
        "combine",
        "dense gradient reduction",
    ]
    differs = asked(capsys, "plan", "check", str(tmp_path), "--world", "4", "--ep", "2")
    assert "1 agree, 0 differ" not in differs
    assert "TF254" not in differs  # with that plan, nothing says that these are tokens
    named = asked(capsys, "show", "communication", str(tmp_path), "--plan", "world=4,ep=4")
    assert "EP: token dispatch" in named
    assert "DP: dense gradient reduction" in named
    assert "EP: token dispatch" not in asked(capsys, "show", "communication", str(tmp_path))


@pytest.mark.parametrize("text", ["nothing", "world=a", "world=²", f"world={'9' * 5000}", "size=4", "world=4,ep"])
def test_what_is_no_plan_is_refused(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "communication", str(tmp_path), "--plan", text]) == 2
    assert "--plan" in capsys.readouterr().err
