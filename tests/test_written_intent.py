"""Intent as a program states it in Shardy's attributes, and as its author adds to it."""

from __future__ import annotations

from typing import Any

import pytest

from traceflow.errors import TraceflowError
from traceflow.intent.intent import Intent, Role, intent, written_intent
from traceflow.intent.mesh import Mesh
from traceflow.intent.shardy import manual_axes, meshes, stated
from traceflow.intent.spec import Spec
from traceflow.program.hlo_proto import read_hlo_proto
from traceflow.program.schema import message


def test_meshes_are_read_from_attributes_and_from_stablehlo() -> None:
    found = meshes('{a = #sdy.mesh<["data"=2, "model"=4]>, b = #sdy.mesh<["x"=2, "y"=2], device_ids=[2, 0, 1, 3]>}')
    assert found == {"a": Mesh.of({"data": 2, "model": 4}), "b": Mesh.of({"x": 2, "y": 2}, [2, 0, 1, 3])}
    line = 'sdy.mesh @mesh = <["data"=2]> {stablehlo.mesh = {axes = [{name = "data", size = 2 : i64}]}}'
    assert meshes(line) == {"mesh": Mesh.of({"data": 2})}


@pytest.mark.parametrize(
    ("text", "specs", "opened"),
    [
        ('#sdy.sharding<@mesh, [{"data"}, {}]>', ["P('data')"], 0),
        ('#sdy.sharding_per_value<[<@mesh, [{}, {"model", ?}]>]>', ["P(None, 'model')"], 1),
        ('[<@m, [{"a", "b"}]>, <@m, []>]', ["P(('a', 'b'))", "P()"], 0),
        ('#sdy.sharding<@mesh, [{"model":(1)2}], replicated={"data"}>', ["P('model:(1)2')"], 0),
        ("", [], 0),
    ],
)
def test_shardings_are_read_with_parts_of_axes(text: str, specs: list[str], opened: int) -> None:
    found = stated(text)
    assert [str(one.spec) for one in found] == specs
    assert sum(one.open for one in found) == opened


def test_partial_sums_and_manual_axes_are_read() -> None:
    assert stated('#sdy.sharding<@mesh, [{}], unreduced={"data"}>')[0].spec.unreduced == ("data",)
    assert manual_axes({"xla.sdy.manual_axes": '#sdy<manual_axes{"data", "model"}>'}) == ("data", "model")


def program(*instructions: dict[str, Any]) -> bytes:
    proto = message("HloProto")()
    module = proto.hlo_module
    module.name, module.id, module.entry_computation_id = "jit_f", 1, 1
    module.frontend_attributes.map.add(key="xla.sdy.meshes", value='{mesh = #sdy.mesh<["data"=2, "model"=4]>}')
    computation = module.computations.add(name="main", id=1, root_id=len(instructions))
    for number, given in enumerate(instructions, start=1):
        fields = dict(given)
        said, scope = fields.pop("said", None), fields.pop("scope", "")
        added = computation.instructions.add(id=number, name=f"i{number}", **fields)
        added.shape.element_type, added.metadata.op_name = 11, scope
        added.shape.dimensions.extend([8, 16])
        if said:
            added.frontend_attributes.map.add(key="xla.sdy.sharding", value=f"#sdy.sharding<@mesh, [{said}]>")
    return bytes(proto.SerializeToString())


def test_arguments_constraints_and_results_state_how_they_lie() -> None:
    module = read_hlo_proto(
        program(
            {"opcode": "parameter", "scope": "x", "said": '{"data"}, {}'},
            {"opcode": "parameter", "parameter_number": 1, "scope": "w"},
            {"opcode": "custom-call", "custom_call_target": "Sharding", "said": '{}, {"model"}', "operand_ids": [1]},
            {"opcode": "custom-call", "custom_call_target": "xla.sdy.FuncResultSharding", "operand_ids": [3]},
        )
    )
    found = written_intent(module)
    assert found.mesh == Mesh.of({"data": 2, "model": 4})
    assert [(a.name, a.role, a.spec, a.number) for a in found.arrays] == [
        ("x", Role.ARGUMENT, Spec.of("data", None), 0),
        ("w", Role.ARGUMENT, None, 1),
        ("i3", Role.CONSTRAINT, Spec.of(None, "model"), None),
        ("i4", Role.RESULT, None, None),
    ]
    assert {(a.dtype, a.shape) for a in found.arrays} == {("f32", (8, 16))}


def test_what_the_author_adds_comes_on_top_of_what_is_read() -> None:
    read = Intent(mesh=Mesh.of({"data": 2}), expected=("all-reduce(data)",))
    both = read | intent(batch="data", params={"w*": "P('data')"})
    assert both.mesh == read.mesh
    assert both.batch == ("data",)
    assert both.params == {"w*": Spec.of("data")}
    assert both.expected == ("all-reduce(data)",)
    assert (both | intent(expect=[])).expected == ()


def test_a_spec_that_cannot_be_read_is_refused() -> None:
    with pytest.raises(TraceflowError, match="TF143"):
        intent(params={"w": "data"})
