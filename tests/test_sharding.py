"""Intended against compiled sharding: programs that are wrong, and twins of them that are right."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("jax")

import sharding_automatic_programs  # noqa: F401  # each adds its programs to CASES
import sharding_expert_programs  # noqa: F401
import sharding_manual_programs  # noqa: F401
from sharding_programs import CASES, Case

import traceflow
from traceflow.analyzers.sharding import Sharding, sharding
from traceflow.collectors.jax import compile_only
from traceflow.errors import TraceflowError
from traceflow.intent.file import read_intent
from traceflow.intent.intent import intent
from traceflow.program.compilation import Compilation

_COMPILED: dict[str, Compilation] = {}


def compiled(case: Case) -> Compilation:
    """Each program is compiled once, whatever is asked of it."""
    if case.name not in _COMPILED:
        function, arguments = case.build()
        _COMPILED[case.name] = compile_only(function, *arguments)
    return _COMPILED[case.name]


def found(name: str) -> Sharding:
    return sharding(compiled(CASES[name]), CASES[name].stated)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_wrong_programs_are_found_and_right_ones_are_left_alone(case: Case) -> None:
    result = sharding(compiled(case), case.stated)
    assert {finding.code for finding in result.findings} == case.codes


def test_every_kind_of_mismatch_has_a_program_and_right_ones_are_as_many() -> None:
    codes = {code for case in CASES.values() for code in case.codes}
    assert codes == {f"TF{n}" for n in (231, 232, 233, 234, 235, 236, 237, 238, 239, 244)}
    assert sum(not case.codes for case in CASES.values()) >= len(codes)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.codes])
def test_a_mismatch_names_the_line_that_it_comes_from(name: str) -> None:
    for finding in found(name).findings:
        source = finding.evidence["source"]
        assert isinstance(source, str)
        assert "_programs.py:" in source or finding.evidence.get("array") == "x"


def test_a_gathered_parameter_tells_axes_bytes_and_instructions() -> None:
    [finding] = found("weight_gathered_over_another_axis").findings
    assert finding.evidence["array"] == "w"
    assert finding.evidence["instructions"] == ["collective-permute", "all-gather"]
    # A permute of a quarter of a half, [256, 512], and a gather of four of those: 1 + 3 blocks of 512 KiB leave each device.
    assert finding.evidence["bytes"] == 4 * 256 * 512 * 4
    assert "lies over data, the gather runs over model" in finding.title


def test_a_rematerialisation_is_pinned_to_its_instruction_and_collectives() -> None:
    [finding] = found("rematerialised_in_full").findings
    assert finding.evidence["instructions"] == ["all-gather", "all-gather.1"]
    assert finding.evidence["from"] == "{devices=[2,3]<=[6]}"


TWELVE = """
import json, sys
import jax, jax.numpy as jnp
from jax import lax
from sharding_programs import array, grid, on
from traceflow.analyzers.sharding import sharding
from traceflow.collectors.jax import compile_only

def found(sizes, names, before, after):
    mesh = grid(*sizes, names=names)
    def f(x):
        y = lax.with_sharding_constraint(jnp.sin(x), on(mesh, *before))
        return lax.with_sharding_constraint(y * 2, on(mesh, *after))
    result = sharding(compile_only(jax.jit(f), array(mesh, (48, 48), *before)))
    return [(one.code, one.evidence["instructions"], one.evidence["source"]) for one in result.findings]

flat, cube = ("a", "b"), ("a", "b", "c")
print(json.dumps([
    found((3, 4), flat, ("a", "b"), ("b", "a")),
    found((3, 4), flat, ("a", "b"), ("a", "b")),
    found((2, 2, 3), cube, ("c", ("a", "b")), (("a", "b"), "c")),
    found((2, 2, 3), cube, ("c", ("a", "b")), ("c", ("a", "b"))),
]))
"""


def test_rematerialisations_on_twelve_devices_are_pinned_to_a_line(tmp_path: Path) -> None:
    program = tmp_path / "twelve.py"
    program.write_text(TWELVE)
    paths = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    devices = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "", "JAX_NUM_CPU_DEVICES": "12"}
    done = subprocess.run(
        [sys.executable, str(program)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **devices, "PYTHONPATH": paths},
    )
    assert done.returncode == 0, done.stderr
    flat, flat_twin, cube, cube_twin = json.loads(done.stdout)
    line = next(n for n, text in enumerate(TWELVE.splitlines(), 1) if "y * 2" in text)
    assert [(code, Path(source).name) for code, _, source in flat] == [("TF235", f"twelve.py:{line}")]
    assert [(code, Path(source).name) for code, _, source in cube] == [("TF235", f"twelve.py:{line}")]
    assert all(instructions for _, instructions, _ in (*flat, *cube))
    assert flat_twin == cube_twin == []


def test_a_pair_that_a_backend_turned_into_a_reduce_scatter_is_left_alone() -> None:
    program = compiled(CASES["reduced_and_then_cut"])
    module = program.compiled
    assert module is not None
    fused = replace(module, opcode=tuple("reduce-scatter" if o == "all-reduce" else o for o in module.opcode))
    assert {f.code for f in sharding(program).findings} == {"TF232"}
    assert sharding(replace(program, compiled=fused)).findings == ()


def test_uneven_columns_tell_local_shape_and_padding() -> None:
    [finding] = found("columns_that_do_not_divide").findings
    assert finding.evidence["local_shape"] == [256, 251]
    assert finding.evidence["bytes"] == 512 * 4


def test_arrays_are_shown_as_meant_and_as_compiled() -> None:
    rows = {row.name: row for row in found("tensor_parallel_layers").arrays}
    w1 = rows["w1"].to_dict()
    assert (w1["intended"], w1["compiled"], w1["local_shape"], w1["matches"]) == (
        "P(None, 'model')",
        "P(None, 'model')",
        [512, 512],
        True,
    )


def test_collectives_are_named_by_the_users_axes() -> None:
    [row] = found("data_parallel_gradient").collectives
    assert (row.operation, row.mesh_axes, row.expected, row.written) == ("all-reduce", ("data",), True, False)
    assert row.groups == ((0, 4), (1, 5), (2, 6), (3, 7))
    assert row.bytes == 512 * 512 * 4  # each of two sends half, twice


def test_redundancy_of_a_right_program_has_a_reason_and_is_no_finding() -> None:
    result = found("data_parallel_gradient")
    assert result.redundancy_ratio == pytest.approx(4, rel=0.01)
    assert result.redundancy_reason == "model splits no array"
    assert result.findings == ()


def test_what_the_author_states_of_an_argument_is_held_against_it() -> None:
    stated = intent(params={"w*": "P('data', None)"})
    result = sharding(compiled(CASES["tensor_parallel_layers"]), stated)
    assert [(f.code, f.evidence["array"]) for f in result.findings] == [("TF245", "w1"), ("TF245", "w2")]


def test_a_pattern_that_names_no_argument_is_told() -> None:
    stated = intent(params={"W1": "P('data', None)", "x": "P('data', None)"})
    told = sharding(compiled(CASES["tensor_parallel_layers"]), stated).findings
    assert [(f.code, f.title, f.suggestion) for f in told] == [
        ("TF247", "'W1' is the name of no argument or parameter", "There are 'x', 'w1', 'w2'.")
    ]


def test_an_axis_that_no_mesh_has_is_refused() -> None:
    program = compiled(CASES["tensor_parallel_layers"])
    for stated in (intent(batch="dta"), intent(params={"w*": "P('dta')"}), intent(activations={"*": "P(None, 'dta')"})):
        with pytest.raises(TraceflowError, match=r"TF142.*'dta': the mesh has data, model"):
            sharding(program, stated)


def test_a_program_without_a_mesh_has_no_batch_beside_one_with_a_mesh() -> None:
    import jax

    helper = compile_only(jax.jit(lambda key: key * 2.0), jax.ShapeDtypeStruct((64, 64), jax.numpy.float32))
    step = compiled(CASES["tensor_parallel_layers"])
    stated = intent(batch="data")
    assert [f.code for f in sharding(helper, stated).findings] == ["TF233"]
    assert "TF233" not in {f.code for f in sharding([helper, step], stated).findings}


def test_without_stages_nothing_is_guessed() -> None:
    whole = compiled(CASES["data_parallel_gradient"])
    result = sharding(Compilation(whole.name, compiled=whole.compiled))
    assert result.findings == ()
    assert result.redundancy_ratio is None
    assert [row.expected for row in result.collectives] == [None]
    assert [skipped.what for skipped in result.skipped] == [
        "/result/redundancy_ratio",
        "/result/collectives/*/expected",
    ]
    assert "of 1 of 1: " in result.skipped[1].reason


def test_a_gather_is_taken_for_that_of_full_sharding_where_its_product_is_not_known_but_the_batch_is() -> None:
    whole = compiled(CASES["fully_sharded_layers"])
    result = sharding(Compilation(whole.name, written=whole.written, compiled=whole.compiled))
    assert result.findings == ()
    assert {row.expected for row in result.collectives} == {True}
    assert [row.assembles for row in result.collectives] == [("up",), ("down",)]
    assert result.redundancy_ratio == pytest.approx(1, rel=0.01)


def test_collectives_are_held_against_the_list_of_those_that_may_happen() -> None:
    program = compiled(CASES["tensor_parallel_layers"])
    assert sharding(program, intent(expect=["all-reduce(model)"])).findings == ()
    [unexpected, missing] = sharding(program, intent(expect=["reduce-scatter( model )"])).findings
    assert unexpected.title == "all-reduce over model is not among the collectives that may happen"
    assert missing.title == "reduce-scatter( model ) does not happen, though it is expected"
    with pytest.raises(TraceflowError, match="TF146"):
        sharding(program, intent(expect=["all-reduce over model"]))


def test_a_gather_that_is_expected_is_no_mismatch() -> None:
    program = compiled(CASES["weight_gathered_for_the_result"])
    assert sharding(program, intent(expect=["all-gather(model)"])).findings == ()


def test_an_intent_is_read_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "intent.toml"
    file.write_text('batch = "data"\nexpect = []\n[mesh]\ndata = 2\n[params]\n"w*" = "P(\'data\')"\n')
    read = read_intent(file)
    assert (read.batch, read.expected, dict(read.mesh.axes) if read.mesh else None) == (("data",), (), {"data": 2})
    assert str(read.params["w*"]) == "P('data')"
    file.write_text("batches = 3\n")
    with pytest.raises(TraceflowError, match=r"TF147.*batches"):
        read_intent(file)
    with pytest.raises(TraceflowError, match="TF101"):
        read_intent(tmp_path / "none.toml")


def test_a_real_job_before_and_after_compilation(corpus: Callable[[str], Path]) -> None:
    """Four A100s, fully sharded: the gathers of parameters are told from the others, and nothing is wrong."""
    result = traceflow.open(corpus("hlo/fsdp4_a100")).sharding()
    assert result.mesh is not None
    arrays = {row.name: row for row in result.arrays if row.program == "pjit__wrapped_step_fn"}
    qkv = arrays["state.mdl_vars['params']['lm']['transformer']['x_layers_0']['self_attention']['combined_qkv']['w']"]
    assert (str(qkv.intended), qkv.local_shape, qkv.matches) == ("P(None, 'data')", (3, 192, 12, 64), True)
    gathers = [row for row in result.collectives if row.operation == "all-gather"]
    assert {row.mesh_axes for row in gathers} == {("data",)}
    assembled = {name for row in gathers for name in row.assembles}
    weights = {row.name for row in arrays.values() if "mdl_vars" in row.name and row.intended and row.intended.axes}
    assert weights <= assembled
    large = {row.operation: row.expected for row in result.collectives if (row.bytes or 0) > 1 << 20}
    assert large == {"all-gather": True, "reduce-scatter": True}
    assert [row.expected for row in gathers if row.assembles == ("inputs['labels']",)] == [None]
    assert result.redundancy_ratio == pytest.approx(1, abs=0.02)
    assert not result.findings
