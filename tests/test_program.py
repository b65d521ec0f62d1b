"""HLO programs: from protobuf and from text, with their replica groups, shapes and sources."""

from __future__ import annotations

import importlib
import itertools
import lzma
import math
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import traceflow
from traceflow.errors import TraceflowError
from traceflow.program.hlo_proto import read_hlo_proto
from traceflow.program.hlo_text import Line, read_hlo_lines
from traceflow.program.module import HloModule, kind_of_instruction, operation_of
from traceflow.program.replica_groups import groups_of, parse_groups
from traceflow.program.schema import message
from traceflow.program.shape import shape_bytes, shape_text
from traceflow.trace.model import Kind

FSDP_STEP = "hlo/fsdp4_a100/module_0040.pjit__wrapped_step_fn.sm_8.0_gpu_after_optimizations.hlo.pb.xz"


def row_of(module: HloModule, name: str) -> int:
    return module.instruction_name.index(name)


def operand_names(module: HloModule, name: str) -> list[str]:
    return [module.instruction_name[row] for row in module.operands_of(row_of(module, name))]


def hlo(*instructions: dict[str, Any], **module: Any) -> bytes:
    """A serialised HloProto of one computation, whose instructions have the ids 1, 2, ..."""
    proto = message("HloProto")()
    proto.hlo_module.name, proto.hlo_module.id, proto.hlo_module.entry_computation_id = "jit_f", 7, 1
    computation = proto.hlo_module.computations.add(name="main", id=1, root_id=len(instructions))
    for number, fields in enumerate(instructions, start=1):
        computation.instructions.add(**{"id": number, "name": f"i{number}", "opcode": "add", **fields})
    for name, value in module.items():
        getattr(proto.hlo_module, name).MergeFrom(value)
    return bytes(proto.SerializeToString())


# The schema


def test_unknown_fields_are_passed_over() -> None:
    content = hlo({"opcode": "parameter"}) + b"\xf2\x7f\x03abc"  # field 2046, three bytes
    assert read_hlo_proto(content).opcode == ("parameter",)


# Shapes


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("f32[]", 4),
        ("bf16[32,32,4096]", 8_388_608),
        ("pred[7]", 7),
        ("c128[2]", 32),
        ("u4[3]", 2),
        ("f8e4m3b11fnuz[10]", 10),
        ("s32[<=5,2]", 40),
        ("s32[?,2]", -1),
        ("f32[0,9]", 0),
        ("(f32[2], (s8[3], token[]))", 11),
        ("opaque[]", -1),
        ("(f32[2], opaque[])", -1),
        ("()", 0),
    ],
)
def test_bytes_of_a_shape(text: str, size: int) -> None:
    assert shape_bytes(text) == size


def test_shapes_of_the_proto_are_written_as_hlo_text() -> None:
    shape = message("ShapeProto")
    dynamic = shape(element_type=4, dimensions=[5, 2], is_dynamic_dimension=[True, False])
    pair = shape(
        element_type=13, tuple_shapes=[shape(element_type=16, dimensions=[3]), dynamic, shape(element_type=17)]
    )
    assert shape_text(pair) == "(bf16[3], s32[<=5,2], token[])"


# Replica groups

ENCODINGS = [
    ("{{0,3},{1,2}}", ((0, 3), (1, 2))),
    ("[2,4]<=[8]", ((0, 1, 2, 3), (4, 5, 6, 7))),
    ("[2,4]<=[4,2]T(1,0)", ((0, 2, 4, 6), (1, 3, 5, 7))),
    ("[1,2]<=[2]", ((0, 1),)),
    ("mesh['a'=4,'b'=2] {'b'}", ((0, 1), (2, 3), (4, 5), (6, 7))),
    ("mesh['a'=4,'b'=2] {'a'}", ((0, 2, 4, 6), (1, 3, 5, 7))),
    ("mesh['a'=4,'b'=2], device_ids=([2,4]T(1,0)) {'b'}", ((0, 4), (1, 5), (2, 6), (3, 7))),
    ("mesh['a'=8] {'a':(1)2}", ((0, 4), (1, 5), (2, 6), (3, 7))),
    ("mesh['a'=8] {'a':(2)2}", ((0, 2), (1, 3), (4, 6), (5, 7))),
    ("mesh['a'=2,'b'=4] {'b','a'}", ((0, 4, 1, 5, 2, 6, 3, 7),)),
    ("mesh['a'=4], device_ids=(3,1,2,0) {'a'}", ((3, 1, 2, 0),)),
    ("{}", ()),
]


@pytest.mark.parametrize(("text", "groups"), ENCODINGS, ids=[text for text, _ in ENCODINGS])
def test_replica_groups_as_text(text: str, groups: tuple[tuple[int, ...], ...]) -> None:
    assert parse_groups(f"channel_id=1, replica_groups={text}, use_global_device_ids=true") == groups


@pytest.mark.parametrize(("text", "groups"), ENCODINGS, ids=[text for text, _ in ENCODINGS])
def test_replica_groups_as_xla_itself_encodes_them(text: str, groups: tuple[tuple[int, ...], ...]) -> None:
    xla = pytest.importorskip("jaxlib", reason="XLA's parser comes with jaxlib") and importlib.import_module(
        "jaxlib._hlo"
    )
    source = f"""HloModule m, replica_count=1, num_partitions=8
    add {{ a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT s = f32[] add(a, b) }}
    ENTRY e {{
      x = f32[16]{{0}} parameter(0)
      ROOT r = f32[16]{{0}} all-reduce(x), channel_id=1, replica_groups={text}, use_global_device_ids=true, to_apply=add
    }}"""
    module = xla.hlo_module_from_text(source)
    proto = message("HloModuleProto").FromString(module.as_serialized_hlo_module_proto())
    (instruction,) = [i for c in proto.computations for i in c.instructions if i.opcode == "all-reduce"]
    assert (groups_of(instruction) or ()) == groups
    (line,) = [line for line in module.to_string().splitlines() if " all-reduce(" in line]
    assert parse_groups(line) == groups


def test_legacy_replica_groups() -> None:
    instruction = message("HloInstructionProto")()
    assert groups_of(instruction) is None
    instruction.replica_groups.add(replica_ids=[0, 2])
    instruction.replica_groups.add(replica_ids=[1, 3])
    assert groups_of(instruction) == ((0, 2), (1, 3))


@st.composite
def meshes(draw: st.DrawFn) -> tuple[list[int], list[int], list[int]]:
    """Sizes of axes, a permutation of the devices, and the axes of the groups in some order."""
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    devices = draw(st.permutations(range(math.prod(sizes))))
    axes = draw(st.lists(st.sampled_from(range(len(sizes))), min_size=1, unique=True))
    return sizes, list(devices), axes


@given(meshes())
def test_groups_along_mesh_axes_differ_in_these_axes_only(mesh: tuple[list[int], list[int], list[int]]) -> None:
    sizes, devices, axes = mesh
    instruction = message("HloInstructionProto")()
    listed = instruction.mesh_axes_replica_group_list
    listed.mesh.device_ids.extend(devices)
    for at, size in enumerate(sizes):
        listed.mesh.axes.add(name=f"axis_{at}", size=size)
    for at in axes:
        listed.axes.add(mesh_axis_index=at)
    coordinates = dict(zip(devices, itertools.product(*map(range, sizes)), strict=True))
    expected = Counter(
        frozenset(
            d
            for d in devices
            if all(coordinates[d][a] == coordinates[one][a] for a in range(len(sizes)) if a not in axes)
        )
        for one in devices
    )
    groups = groups_of(instruction)
    assert groups is not None
    assert {frozenset(group) for group in groups} == set(expected)
    for group in groups:
        along = [tuple(coordinates[d][a] for a in axes) for d in group]
        assert along == sorted(along)  # the last axis varies fastest


def test_groups_and_pairs_name_devices_by_the_device_assignment() -> None:
    instruction = message("HloInstructionProto")
    reduce = instruction(id=2, name="ar", opcode="all-reduce", operand_ids=[1])
    reduce.replica_groups.add(replica_ids=[0, 1])
    everyone = instruction(id=3, name="all", opcode="all-reduce", operand_ids=[1])
    everyone.collective_device_list.SetInParent()
    permute = instruction(id=4, name="permute", opcode="collective-permute", operand_ids=[1])
    permute.source_target_pairs.add(source=0, target=1)
    proto = message("HloProto")()
    proto.hlo_module.entry_computation_id = 1
    computation = proto.hlo_module.computations.add(id=1, root_id=4)
    computation.instructions.extend([instruction(id=1, name="x", opcode="parameter"), reduce, everyone, permute])
    proto.hlo_module.device_assignment.replica_count = 1
    for device in (5, 3):
        proto.hlo_module.device_assignment.computation_devices.add(replica_device_ids=[device])
    module = read_hlo_proto(proto.SerializeToString())
    assert module.replica_groups == {1: ((5, 3),), 2: ((5, 3),)}
    assert module.source_target_pairs == {3: ((5, 3),)}


# Modules from protobuf


def test_a_real_gpu_program(corpus: Callable[[str], Path]) -> None:
    module = read_hlo_proto(corpus("hlo/conv3d_gpu.hlo.pb").read_bytes())
    assert (module.name, module.program_id, len(module)) == ("jit_forward_3d_conv", 15, 19)
    assert module.computation_name[module.entry] == "main.4_spmd"
    assert operand_names(module, "cudnn-conv.1.0") == ["bitcast.39.0", "bitcast.46.0"]
    fusion = row_of(module, "loop_transpose_fusion")
    (called,) = module.called_by(fusion)
    assert module.computation_name[called] == "fused_transpose.1"
    assert module.opcode[module.computation_root[called]] == "transpose"
    convolution = row_of(module, "cudnn-conv.1.0")
    assert module.shape[convolution] == "(bf16[1,5120,34,31,53], u8[7150336])"
    assert module.output_bytes[convolution] == 2 * 5120 * 34 * 31 * 53 + 7_150_336
    assert module.operation_name[convolution] == "jit(forward_3d_conv)/jit(main)/conv_general_dilated"
    assert module.source[convolution].endswith("/jax_conv_profiling.py:77")
    assert module.tuple_index[row_of(module, "get-tuple-element.1.0")] == 0
    parameters = [row for row, opcode in enumerate(module.opcode) if opcode == "parameter"]
    in_entry = [row for row in parameters if module.computation[row] == module.entry]
    assert sorted(module.parameter_number[in_entry]) == [0, 1]


def test_the_schedule_puts_operands_first(corpus: Callable[[str], Path]) -> None:
    module = read_hlo_proto(lzma.decompress(corpus(FSDP_STEP).read_bytes()))
    assert len(module) == 37_026
    reader = np.repeat(np.arange(len(module)), np.diff(module.operand_offsets))
    scheduled = (module.schedule[reader] >= 0) & (module.schedule[module.operands] >= 0)
    assert scheduled.sum() > 5_000
    assert (module.computation[reader] == module.computation[module.operands]).all()
    assert (module.schedule[module.operands] < module.schedule[reader])[scheduled].all()
    entry = module.schedule[module.computation == module.entry]
    assert sorted(entry) == list(range(len(entry)))


def test_asynchronous_halves_know_their_operation(corpus: Callable[[str], Path]) -> None:
    module = read_hlo_proto(lzma.decompress(corpus(FSDP_STEP).read_bytes()))
    for name, operation in {
        "reduce-scatter-start": "reduce-scatter",
        "reduce-scatter-done": "reduce-scatter",
        "all-gather-start.2": "all-gather",
        "all-gather-done.2": "all-gather",
    }.items():
        assert operation_of(module, row_of(module, name)) == operation
        assert kind_of_instruction(module, row_of(module, name)) == Kind.COMMUNICATION
    start = row_of(module, "reduce-scatter-start")
    assert module.start_of(row_of(module, "reduce-scatter-done")) == start
    assert module.opcode[module.wrapped_by(start)] == "reduce-scatter"
    assert module.replica_groups[module.wrapped_by(start)] == ((0, 1, 2, 3),)
    groups = Counter(module.replica_groups.values())
    assert set(groups) == {((0, 1, 2, 3),)}


@pytest.mark.parametrize("name", ["before_optimizations", "sm_8.0_gpu_after_optimizations"])
def test_every_dumped_module_can_be_read(corpus: Callable[[str], Path], name: str) -> None:
    files = sorted(corpus("hlo/fsdp4_a100").glob(f"*{name}.hlo.pb.xz"))
    assert len(files) == 17
    for file in files:
        module = read_hlo_proto(lzma.decompress(file.read_bytes()), program_id=3)
        assert module.program_id == 3
        assert file.name.split(".")[1] == module.name
        assert len(set(module.instruction_name)) == len(module)


def test_a_source_is_the_innermost_line_outside_the_framework() -> None:
    index = message("StackFrameIndexProto")(file_names=["/lib/jax/_src/lax.py", "/my/model.py", "/my/train.py"])
    for file, line in ((1, 10), (2, 20), (3, 30)):
        index.file_locations.add(file_name_id=file, line=line)
    for location, parent in ((3, 0), (2, 1), (1, 2), (1, 0)):
        index.stack_frames.add(file_location_id=location, parent_frame_id=parent)
    metadata = message("OpMetadata")
    module = read_hlo_proto(
        hlo(
            {"metadata": metadata(stack_frame_id=3)},
            {"metadata": metadata(stack_frame_id=1)},
            {"metadata": metadata(stack_frame_id=4)},
            {"metadata": metadata(source_file="old.py", source_line=5)},
            {},
            stack_frame_index=index,
        )
    )
    assert module.source == ("/my/model.py:20", "/my/train.py:30", "/lib/jax/_src/lax.py:10", "old.py:5", "")


@pytest.mark.parametrize(
    "content",
    [b"\x0a\xff", hlo({"operand_ids": [99]}), b"", hlo({"metadata": message("OpMetadata")(stack_frame_id=3)})],
    ids=["bytes", "operand", "empty", "frame"],
)
def test_a_damaged_program_is_refused(content: bytes) -> None:
    with pytest.raises(TraceflowError, match="TF103: cannot read an HLO program"):
        read_hlo_proto(content)


# Modules from text

REDUCE = (
    "%all-reduce.1 = bf16[1024,5120]{1,0:T(8,128)(2,1)S(1)} all-reduce(bf16[1024,5120]{1,0:T(8,128)(2,1)S(1)} %fusion.7),"
    " channel_id=3, replica_groups=[1,2]<=[2], use_global_device_ids=true, to_apply=%add.2.clone"
)
SLICE_START = (
    "%slice-start = ((s8[64]{0:T(8)(4,1)}), s8[32]{0:T(8)(4,1)S(1)}, s32[]{:S(2)}) async-start("
    "s8[64]{0:T(8)(4,1)} %bitcast.1), calls=%async_computation"
)
SLICE_DONE = (
    "%slice-done = s8[32]{0:T(8)(4,1)S(1)} async-done(((s8[64]{0:T(8)(4,1)}), s8[32]{0:T(8)(4,1)S(1)}, s32[]{:S(2)})"
    " %slice-start)"
)


def test_instructions_from_text() -> None:
    fusion = "%fusion.7 = bf16[1024,5120]{1,0} fusion(bf16[8]{0} %param.2, /*index=1*/s32[]{:T(128)} %constant.5), kind=kLoop"
    module = read_hlo_lines(
        [
            Line(REDUCE, "jit(f)/psum", "f.py:3"),
            Line(fusion),
            Line(REDUCE, "again"),
            Line("not HLO"),
            Line("%x = f32[2"),
        ],
        "jit_f",
        9,
    )
    assert (module.name, module.program_id) == ("jit_f", 9)
    assert module.instruction_name == ("all-reduce.1", "fusion.7", "param.2", "constant.5")
    assert module.opcode == ("all-reduce", "fusion", "parameter", "constant")
    assert operand_names(module, "all-reduce.1") == ["fusion.7"]
    assert operand_names(module, "fusion.7") == ["param.2", "constant.5"]
    assert module.shape == ("bf16[1024,5120]", "bf16[1024,5120]", "bf16[8]", "s32[]")
    assert module.output_bytes.tolist() == [10_485_760, 10_485_760, 16, 4]
    assert module.replica_groups == {0: ((0, 1),)}
    assert (module.operation_name[0], module.source[0]) == ("jit(f)/psum", "f.py:3")


def test_an_asynchronous_wrapper_in_text_is_known_by_its_name() -> None:
    module = read_hlo_lines([Line(SLICE_START), Line(SLICE_DONE)], "jit_f", 1)
    done = row_of(module, "slice-done")
    assert operation_of(module, done) == "slice"
    assert module.opcode == ("async-start", "async-done", "bitcast")
    assert [kind_of_instruction(module, row) for row in (0, 1)] == [Kind.COPY, Kind.COPY]
    assert module.output_bytes.tolist() == [64 + 32 + 4, 32, 64]


def test_text_agrees_with_the_proto_of_the_same_module() -> None:
    pytest.importorskip("jaxlib", reason="XLA's printer comes with jaxlib")
    xla = importlib.import_module("jaxlib._hlo")
    module = xla.hlo_module_from_text("""HloModule m, num_partitions=4
    ENTRY main {
      p = (f32[8,4]{1,0}, s32[]) parameter(0)
      x = f32[8,4]{1,0} get-tuple-element(p), index=0
      g = f32[32,4]{1,0} all-gather(x), channel_id=1, replica_groups=[1,4]<=[4], dimensions={0}, use_global_device_ids=true
      q = f32[32,4]{1,0} collective-permute(g), channel_id=2, source_target_pairs={{0,1},{1,0}}
      ROOT t = (f32[32,4]{1,0}, f32[32,4]{1,0}) tuple(q, g)
    }""")
    proto = message("HloProto")()
    proto.hlo_module.ParseFromString(module.as_serialized_hlo_module_proto())
    one = read_hlo_proto(proto.SerializeToString())
    two = read_hlo_lines([Line(line) for line in module.to_string().splitlines()], "m", one.program_id)

    def facts(module: HloModule) -> list[object]:
        return [
            (name, module.opcode[row], module.shape[row], int(module.output_bytes[row]), operand_names(module, name),
             module.replica_groups.get(row), module.source_target_pairs.get(row))
            for row, name in sorted(enumerate(module.instruction_name), key=lambda pair: pair[1])
        ]  # fmt: skip

    assert facts(one) == facts(two)
    assert one.instruction_name[one.computation_root[one.entry]] == two.instruction_name[two.computation_root[0]]


def test_a_library_call_knows_what_it_multiplies(corpus: Callable[[str], Path]) -> None:
    module = read_hlo_proto(lzma.decompress(corpus(FSDP_STEP).read_bytes()))
    calls = [row for row, target in module.custom_call_target.items() if target == "__cublas$gemm"]
    assert len(calls) == 175
    assert set(calls) <= set(module.dots)
    row = calls[0]
    left, right = (module.shape[operand] for operand in module.operands_of(row))
    dot = module.dots[row]
    assert [sizes(left)[d] for d in dot.left_contracting] == [sizes(right)[d] for d in dot.right_contracting]


def sizes(shape: str) -> list[int]:
    return [int(size) for size in re.findall(r"\d+", shape.partition("[")[2])]


def test_a_stack_is_told_from_the_inside_out() -> None:
    index = message("StackFrameIndexProto")(file_names=["a.py", "b.py"], function_names=["f", "g"])
    for file, function, line in ((1, 1, 10), (2, 2, 20)):
        index.file_locations.add(file_name_id=file, function_name_id=function, line=line)
    index.stack_frames.add(file_location_id=2, parent_frame_id=0)
    index.stack_frames.add(file_location_id=1, parent_frame_id=1)
    module = read_hlo_proto(hlo({"metadata": message("OpMetadata")(stack_frame_id=2)}, {}, stack_frame_index=index))
    assert [(frame.place, frame.function) for frame in module.stack_of(0)] == [("a.py:10", "f"), ("b.py:20", "g")]
    assert module.stack_of(1) == ()


def test_a_stack_that_calls_itself_ends() -> None:
    index = message("StackFrameIndexProto")(file_names=["/lib/jax/_src/a.py"])
    index.file_locations.add(file_name_id=1, line=1)
    index.stack_frames.add(file_location_id=1, parent_frame_id=1)
    module = read_hlo_proto(hlo({"metadata": message("OpMetadata")(stack_frame_id=1)}, stack_frame_index=index))
    assert len(module.stack_of(0)) == 1
    assert module.source == ("/lib/jax/_src/a.py:1",)


def test_operations_of_a_tpu_tell_their_whole_stack(corpus: Callable[[str], Path]) -> None:
    programs = traceflow.open(corpus("xplane/tpu_2chips_a.trace.json.gz")).programs.values()
    stacks = [(module.source[row], module.stack_of(row)) for module in programs for row in module.frame]
    assert len(stacks) > 1_500
    assert {stack[0].place for _, stack in stacks if stack[0].place.endswith("attention.py:262")} != set()
    assert all(source == stack[0].place for source, stack in stacks if source)
    assert max(len(stack) for _, stack in stacks) == 10  # the profiler keeps no more
