"""Intended against actual sharding of PyTorch: programs that are wrong, twins that are right, each run once."""

from __future__ import annotations

import json
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import pytest

if find_spec("torch") is None:
    pytest.skip("PyTorch is not installed", allow_module_level=True)

from test_json_contract import problems
from torch_sharding_programs import CASES, PROCESSES, Case, Outcome, run_all

import traceflow
from traceflow.analyzers.sharding import Sharding
from traceflow.analyzers.sharding.torch import torch_sharding
from traceflow.cli import main
from traceflow.collectors.workloads import torch_processes
from traceflow.errors import TraceflowError
from traceflow.intent.intent import intent
from traceflow.program.torch_audit import Parameter, TorchAudit, TorchMesh, encoded, read_torch_audit

_SPELLED = {  # as PyTorch counts them
    "all_gather_into_tensor": "all-gather",
    "_allgather_base_": "all-gather",
    "all_reduce": "all-reduce",
    "allreduce_": "all-reduce",
    "reduce_scatter_tensor": "reduce-scatter",
    "_reduce_scatter_base_": "reduce-scatter",
}
_OF_UNCOUNTED = {
    "batches_in_two_parts": {"all-reduce": 2},  # one each
    # Those of the model that keeps its activations, and again the inputs of attention and MLP, and what leaves attention.
    "language_model_that_computes_activations_again": {"all-reduce": 25, "all-gather": 7 + 2, "reduce-scatter": 6 + 1},
}


@pytest.fixture(scope="module")
def outcomes() -> list[dict[str, Outcome]]:
    """Of each process, by program."""
    return torch_processes.run(run_all, PROCESSES)


def result_of(outcomes: list[dict[str, Outcome]], name: str, case: Case | None = None) -> Sharding:
    stated = (case or CASES[name]).stated
    return torch_sharding([outcome[name].audit for outcome in outcomes], stated)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_wrong_programs_are_found_and_right_ones_are_left_alone(outcomes: list[dict[str, Outcome]], case: Case) -> None:
    result = result_of(outcomes, case.name)
    assert {finding.code for finding in result.findings} == case.codes, result.findings
    assert [skipped.what for skipped in result.skipped] == ["/result/redundancy_ratio"]


@pytest.mark.parametrize("name", CASES)
def test_a_step_computes_what_it_does_without_the_audit(outcomes: list[dict[str, Outcome]], name: str) -> None:
    for outcome in outcomes:
        assert outcome[name].watched == outcome[name].unwatched


@pytest.mark.parametrize("name", CASES)
def test_every_collective_is_seen_that_pytorch_counts(outcomes: list[dict[str, Outcome]], name: str) -> None:
    for outcome in outcomes:
        seen: Counter[str] = Counter()
        for call in outcome[name].audit.collectives:
            seen[call.operation] += call.count
        counted: Counter[str] = Counter()
        for spelled, count in (outcome[name].counts or {}).items():
            counted[_SPELLED[spelled]] += count
        assert seen == counted or (outcome[name].counts is None and seen == _OF_UNCOUNTED[name])


def test_every_kind_of_mismatch_has_a_program_and_right_ones_are_as_many() -> None:
    codes = {code for case in CASES.values() for code in case.codes}
    assert codes == {f"TF{n}" for n in (232, 234, 236, 245, 246, 247, 248, 249)}
    assert sum(not case.codes for case in CASES.values()) >= len(codes)


def test_a_gather_that_is_cut_again_tells_modules_bytes_and_the_line(outcomes: list[dict[str, Outcome]]) -> None:
    [finding] = result_of(outcomes, "gathered_between_columns_and_rows").findings
    evidence = finding.evidence
    assert finding.title == "between up and down, a tensor is gathered and cut again, which nobody asked for"
    # [4, 32] of float32 in four parts; forward and backward each sends its part to three others.
    assert (evidence["bytes"], evidence["occurrences"]) == (2 * 3 * 4 * 8 * 4, 2)
    assert (evidence["from"], evidence["to"], evidence["cut_in"]) == ("S(1)", "R", "down")
    assert "torch_sharding_programs.py:" in str(evidence["source"])


def test_a_misspelt_key_suggests_the_nearest_names(outcomes: list[dict[str, Outcome]]) -> None:
    [finding] = result_of(outcomes, "misspelt_plan").findings
    assert (finding.title, finding.suggestion) == ("plan key 'upp' matches no module", "Did you mean 'up'?")
    rows = {row.name: row for row in result_of(outcomes, "misspelt_plan").arrays}
    assert (str(rows["up.weight"].compiled), rows["up.weight"].local_shape) == ("P()", (32, 8))
    assert (str(rows["down.weight"].compiled), rows["down.weight"].local_shape) == ("P(None, 'tp')", (8, 8))


def test_an_implicit_redistribution_tells_operator_placements_and_the_line(outcomes: list[dict[str, Outcome]]) -> None:
    [finding] = result_of(outcomes, "sum_of_tensors_that_lie_differently").findings
    assert finding.title == "aten.add.Tensor lays an operand out anew, from S(1) to S(0)"
    assert finding.evidence["operands"] == ["S(0)", "S(1)"]
    assert finding.evidence["bytes"] == 3 * 8 * 2 * 4  # gloo has no all-to-all here, so PyTorch gathers
    source = str(finding.evidence["source"])
    line = Path(source.rpartition(":")[0]).read_text(encoding="utf-8").splitlines()[int(source.rpartition(":")[2]) - 1]
    assert "lambda a, b: a + b" in line


def test_collectives_are_named_by_axes_of_the_mesh_with_all_groups(outcomes: list[dict[str, Outcome]]) -> None:
    result = result_of(outcomes, "fully_sharded_and_tensor_parallel")
    assert result.mesh is not None
    assert dict(result.mesh.axes) == {"data": 2, "tensor": 2}
    groups = {(row.operation, row.mesh_axes, row.groups) for row in result.collectives}
    assert groups == {
        ("all-gather", ("data",), ((0, 2), (1, 3))),
        ("reduce-scatter", ("data",), ((0, 2), (1, 3))),
        ("all-reduce", ("tensor",), ((0, 1), (2, 3))),
    }
    assert {row.expected for row in result.collectives} == {True}
    rows = {row.name: row for row in result.arrays}
    assert str(rows["0.up.weight"].compiled) == "P(('tensor', 'data'))"
    assert (rows["0.up.weight"].global_shape, rows["0.up.weight"].local_shape) == ((24, 16), (6, 16))
    assert str(rows["0.down.weight"].compiled) == "P('data', 'tensor')"


def test_modules_of_collectives_are_told_forward_and_backward(outcomes: list[dict[str, Outcome]]) -> None:
    rows = result_of(outcomes, "sequence_parallel_blocks").collectives
    gathers = [row.scope for row in rows if row.operation == "all-gather"]
    assert gathers == ["0.mlp", "1.mlp", "1.mlp.2 backward", "0.mlp.2 backward"]
    assert {row.occurrences for row in rows} == {PROCESSES}


def test_the_parameter_that_full_sharding_gathers_is_named(outcomes: list[dict[str, Outcome]]) -> None:
    rows = result_of(outcomes, "parameter_gathered_as_full_sharding_means_it").collectives
    assert {row.assembles for row in rows if row.operation == "all-gather"} == {("weight",)}
    assert {(row.expected, row.written) for row in rows if row.operation == "all-gather"} == {(True, False)}


def test_values_that_differ_name_ranks_and_array(outcomes: list[dict[str, Outcome]]) -> None:
    [finding] = result_of(outcomes, "parameter_that_began_differently").findings
    assert (finding.evidence["array"], finding.evidence["ranks"]) == ("0.weight", [0, 1, 2, 3])
    [finding] = result_of(outcomes, "batches_that_differ_claimed_alike").findings
    assert finding.evidence["array"] == "operand 0 of aten.mm.default"


def test_of_one_rank_values_are_not_compared(outcomes: list[dict[str, Outcome]]) -> None:
    one = torch_sharding(outcomes[2]["parameter_that_began_differently"].audit)
    assert one.findings == ()
    assert [skipped.reason for skipped in one.skipped][1:] == [
        "1 of 4 ranks were audited, so not all values were compared"
    ]


def test_uneven_shards_tell_what_each_rank_holds(outcomes: list[dict[str, Outcome]]) -> None:
    [finding] = result_of(outcomes, "rows_that_do_not_divide").findings
    assert finding.title == "the pieces of weight do not divide it: 6 over 4"
    held = [outcome["rows_that_do_not_divide"].audit.parameters[0].local_shape for outcome in outcomes]
    assert held == [(2, 8), (2, 8), (2, 8), (0, 8)]
    assert finding.evidence["bytes"] == 2 * 8 * 4


def test_the_list_of_collectives_also_tells_what_does_not_happen(outcomes: list[dict[str, Outcome]]) -> None:
    audits = [outcome["columns_then_rows"].audit for outcome in outcomes]
    result = torch_sharding(audits, intent(expect=["all-reduce(tp)", "all-gather(tp)"]))
    assert [finding.title for finding in result.findings] == ["all-gather(tp) does not happen, though it is expected"]


def test_saved_audits_are_shown(
    outcomes: list[dict[str, Outcome]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for outcome in outcomes:
        audit = outcome["gathered_between_columns_and_rows"].audit
        (tmp_path / f"rank{audit.rank:05d}.sharding_audit.json").write_bytes(encoded(audit))
    assert main(["show", "sharding", str(tmp_path), "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert problems(document) == []
    assert document["kind"] == "sharding"
    assert [finding["code"] for finding in document["findings"]] == ["TF234"]
    assert document["result"]["mesh"] == {"tp": 4}
    assert main(["show", "sharding", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert "TF234" in text
    assert "up.weight" in text
    run = traceflow.open(tmp_path / "rank00001.sharding_audit.json")
    assert [finding.code for finding in run.sharding().findings] == ["TF234"]


def test_a_damaged_audit_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "rank00000.sharding_audit.json"
    file.write_bytes(encoded(TorchAudit(rank=0, world_size=1, modules=(), plan=None, parameters=()))[:-9])
    with pytest.raises(TraceflowError, match="TF103"):
        traceflow.open(tmp_path).sharding()


@pytest.mark.parametrize(
    ("key", "found"),
    [
        ("layers.*.wq", False),
        ("layers.0.wq", False),
        ("layers.*.wk", True),
        ("layer.*.wq", True),
        ("wq", True),
        ("", False),
        ("layers.*", False),
        ("*.0.wq", False),
    ],
)
def test_keys_of_a_plan_are_read_as_pytorch_does(key: str, found: bool) -> None:  # noqa: FBT001
    modules = ("layers", "layers.0", "layers.0.wq", "layers.1", "layers.1.wq")
    audit = TorchAudit(rank=0, world_size=1, modules=modules, plan={key: "Colwise"}, parameters=())
    assert [finding.code for finding in torch_sharding(audit).findings] == ["TF247"] * found


def test_a_plan_for_each_part_of_a_model_is_right_where_the_parts_are_split() -> None:
    mesh = TorchMesh(("tp",), (2,), (0, 1))
    weight = Parameter(
        name="layers.0.wq.weight", dtype="float32", shape=(4, 4), local_shape=(2, 4), mesh=mesh, placements=("S(0)",)
    )
    modules = ("layers", "layers.0", "layers.0.wq")
    audit = TorchAudit(rank=0, world_size=1, modules=modules, plan={"wq": "Colwise"}, parameters=(weight,))
    assert torch_sharding(audit).findings == ()


def test_placements_of_a_capture_are_read_where_nothing_was_audited(tmp_path: Path) -> None:
    rows = [
        {
            "name": "up.weight",
            "dtype": "float32",
            "shape": [6, 8],
            "local_shape": [2, 8],
            "placements": ["Replicate()", "Shard(dim=0)"],
            "mesh": {"names": ["data", "tensor"], "ranks": [[0, 1, 2, 3], [4, 5, 6, 7]]},
        },
        {
            "name": "bias",
            "dtype": "float32",
            "shape": [8],
            "local_shape": [8],
            "placements": None,
            "mesh": None,
        },
    ]
    (tmp_path / "rank00000.placements.json").write_text(json.dumps(rows))
    result = traceflow.open(tmp_path).sharding(intent(params={"bias": "P('tensor')"}))
    assert [(f.code, f.evidence["array"]) for f in result.findings] == [("TF245", "bias"), ("TF236", "up.weight")]
    assert result.mesh is not None
    assert dict(result.mesh.axes) == {"data": 2, "tensor": 4}
    assert [(row.name, str(row.compiled)) for row in result.arrays] == [("up.weight", "P('tensor')"), ("bias", "P()")]
    assert "placements alone" in result.skipped[1].reason


def test_of_a_step_that_raises_what_it_did_until_then_is_saved(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from traceflow.collectors.torch_sharding import audit

    model = torch.nn.Linear(4, 4)
    with pytest.raises(RuntimeError, match="shapes"), audit(model, folder=tmp_path):
        model(torch.ones(2, 3))
    (file,) = tmp_path.iterdir()
    kept = read_torch_audit(file)
    assert [one.name for one in kept.parameters] == ["weight", "bias"]
    assert kept.missing == ("the rest of the step: it raised RuntimeError",)
