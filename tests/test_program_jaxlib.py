"""Programs against jaxlib itself: its descriptors, its printer, its analyses."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from dataclasses import astuple
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf import descriptor_pb2

from traceflow.errors import TraceflowError
from traceflow.program.executable import read_executable
from traceflow.program.hlo_module_text import read_hlo_text
from traceflow.program.hlo_proto import read_hlo_proto
from traceflow.program.module import HloModule
from traceflow.program.schema import message
from traceflow.trace.model import ABSENT

jax = pytest.importorskip("jax", reason="the compiler comes with JAX")
jnp = jax.numpy

# The descriptors inside jaxlib

Field = descriptor_pb2.FieldDescriptorProto
FILES = (b"xla/service/hlo.proto", b"xla/xla_data.proto", b"tsl/profiler/protobuf/xplane.proto")
GONE = {("CollectiveDeviceListProto", "iota_replica_group_list")}  # removed since; older files have it


def varint(data: bytes, at: int) -> tuple[int, int]:
    """A number and where it ends."""
    value, shift = 0, 0
    while True:
        byte = data[at]
        value, shift, at = value | (byte & 0x7F) << shift, shift + 7, at + 1
        if byte < 0x80:
            return value, at


def carved(data: bytes, start: int) -> descriptor_pb2.FileDescriptorProto:
    """The file descriptor that begins at a place; it ends where no field of one follows."""
    known = {field.number for field in descriptor_pb2.FileDescriptorProto.DESCRIPTOR.fields}
    end = start
    while data[end] >> 3 in known and data[end] & 7 in {0, 2}:
        tag, at = varint(data, end)
        length, at = varint(data, at)
        end = at + length if tag & 7 == 2 else at
    return descriptor_pb2.FileDescriptorProto.FromString(data[start:end])


@cache
def of_jaxlib() -> dict[str, descriptor_pb2.DescriptorProto]:
    """Messages by full name, from the descriptors that protobuf's generated code keeps in the library."""
    files = {}
    for library in Path(importlib.import_module("jaxlib").__file__ or "").parent.glob("*.so"):
        data = library.read_bytes()
        for name in FILES:
            start = data.find(b"\n" + bytes([len(name)]) + name + b"\x12")
            if start >= 0:
                files[name] = carved(data, start)
    assert set(files) == set(FILES)
    return {name: one for file in files.values() for name, one in messages(f".{file.package}", file.message_type)}


def messages(scope: str, declared: Any) -> Iterator[tuple[str, descriptor_pb2.DescriptorProto]]:
    for one in declared:
        yield f"{scope}.{one.name}", one
        yield from messages(f"{scope}.{one.name}", one.nested_type)


def differences(ours: Any, theirs: str, seen: set[str]) -> Iterator[str]:
    """Where a message of the table, or one below it, departs from XLA's own."""
    xla = {field.number: field for field in of_jaxlib()[theirs].field}
    seen.add(ours.name)
    for field in ours.fields:
        if (ours.name, field.name) in GONE:
            continue
        other = xla.get(field.number)
        if other is None or other.name != field.name:
            yield f"{ours.name}.{field.name}: field {field.number} is {other and other.name}"
        elif (other.label == Field.LABEL_REPEATED) != field.is_repeated:
            yield f"{ours.name}.{field.name}: repeated or not"
        elif field.message_type is not None and other.type == Field.TYPE_MESSAGE:
            if field.message_type.name not in seen:
                yield from differences(field.message_type, other.type_name, seen)
        elif field.type != (Field.TYPE_INT32 if other.type == Field.TYPE_ENUM else other.type):
            yield f"{ours.name}.{field.name}: of type {other.type}"


def test_fields_are_those_of_the_installed_xla() -> None:
    seen: set[str] = set()
    for name, theirs in {"HloProto": ".xla.HloProto", "XSpace": ".tensorflow.profiler.XSpace"}.items():
        assert list(differences(message(name).DESCRIPTOR, theirs, seen)) == []
    assert {"HeapSimulatorTrace", "MeshAxesReplicaGroupListProto", "TileProto", "FileLocation", "XEvent"} <= seen


def test_a_wrong_number_would_be_noticed() -> None:
    ours = descriptor_pb2.FileDescriptorProto(name="wrong.proto", package="wrong", syntax="proto3")
    ours.message_type.add(name="TileProto").field.add(name="dimensions", number=2, label=3, type=3)
    pool = importlib.import_module("google.protobuf.descriptor_pool").DescriptorPool()
    pool.Add(ours)
    (difference,) = differences(pool.FindMessageTypeByName("wrong.TileProto"), ".xla.TileProto", set())
    assert difference == "TileProto.dimensions: field 2 is None"


# Programs that it compiled


def step(x: Any, w: Any) -> Any:
    """A matmul in a loop of 3 in a loop of 5."""

    def inner(_: int, carry: Any) -> Any:
        return jnp.tanh(carry @ w)

    def body(carry: Any, _: None) -> tuple[Any, Any]:
        return jax.lax.fori_loop(0, 3, inner, carry), carry.sum()

    return jax.lax.scan(body, x, None, length=5)


def convolved(image: Any, kernel: Any) -> Any:
    return jax.lax.conv_general_dilated(image, kernel, (2, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def sharded(x: Any, w: Any) -> Any:
    """A contraction over a sharded dimension, which takes a collective."""
    return jnp.maximum(x @ w, 0).astype(jnp.bfloat16)


def assorted(i: Any, x: Any) -> tuple[Any, ...]:
    """Branches, a sort, a scatter, a reduction of pairs and random numbers."""
    y = jax.lax.switch(i, [jnp.sin, jnp.cos, lambda a: a @ a], x)
    return jnp.sort(y, axis=0), jnp.argmax(y), y.at[i].set(3.0), jax.random.normal(jax.random.key(0), (3,))


def on_mesh(shape: tuple[int, ...], *axes: str | None) -> Any:
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*axes))
    return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=sharding)


PROGRAMS = {
    "loops": (step, ((64, 64), (64, 64)), (0,)),
    "convolution": (convolved, ((2, 16, 16, 8), (3, 3, 8, 32)), ()),
}


@cache
def compiled(name: str) -> Any:
    if name == "sharded":
        return jax.jit(sharded).lower(on_mesh((64, 128), "data", "model"), on_mesh((128, 32), "model", None)).compile()
    if name == "assorted":
        return jax.jit(assorted).lower(jnp.int32(1), jnp.ones((8, 8))).compile()
    function, shapes, donated = PROGRAMS[name]
    arguments = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    return jax.jit(function, donate_argnums=donated).lower(*arguments).compile()


def runtime_module(name: str) -> Any:
    return compiled(name).runtime_executable().hlo_modules()[0]


@cache
def read(name: str) -> HloModule:
    """A program as traceflow reads it from the live executable, with its buffer assignment."""
    return read_executable(compiled(name))


ALL = ["loops", "convolution", "sharded", "assorted"]
INSTRUCTION = re.compile(r"^ *(?:ROOT )?%(\S+) = (\(.*?\)|\S+) ([a-z-]+)\((.*)$", re.MULTILINE)


@pytest.mark.parametrize("name", ALL)
def test_shapes_are_written_as_jaxlib_writes_them(name: str) -> None:
    module = read(name)
    text = re.sub(r"/\*.*?\*/", "", runtime_module(name).to_string())  # as /*index=5*/ in long tuples
    printed = {match[1]: (match[2], match[3]) for match in INSTRUCTION.finditer(text)}
    ours = zip(module.full_shape, module.opcode, strict=True)
    assert dict(zip(module.instruction_name, ours, strict=True)) == printed


TILED = """HloModule tiled
ENTRY main {
  a = bf16[1024,64]{1,0:T(8,128)(2,1)S(1)} parameter(0)
  b = s4[16,16]{0,1:T(8,128)E(4)} parameter(1)
  c = f32[]{:T(128)S(6)} parameter(2)
  d = f32[<=5,2]{1,0:T(2,128)} parameter(3)
  e = pred[7]{0:T(1024)L(1024)} parameter(4)
  f = (f32[3]{0:T(128)}, (u8[], token[])) parameter(5)
  ROOT t = (bf16[1024,64]{1,0:T(8,128)(2,1)S(1)}, f32[]{:T(128)S(6)}) tuple(a, c)
}"""


def test_tiles_and_memory_spaces_are_written_as_jaxlib_writes_them() -> None:
    xla = importlib.import_module("jaxlib._hlo").hlo_module_from_text(TILED)
    proto = message("HloProto")()
    proto.hlo_module.ParseFromString(xla.as_serialized_hlo_module_proto())
    module = read_hlo_proto(proto.SerializeToString())
    printed = {match[1]: match[2] for match in INSTRUCTION.finditer(xla.to_string())}
    assert dict(zip(module.instruction_name, module.full_shape, strict=True)) == printed
    assert printed["a"] == "bf16[1024,64]{1,0:T(8,128)(2,1)S(1)}"


def test_loops_know_how_often_they_run() -> None:
    module = read("loops")
    assert sorted(module.trip_count.values()) == [3, 5]
    assert {module.opcode[row] for row in module.trip_count} == {"while"}
    (outer,) = [row for row, count in module.trip_count.items() if count == 5]
    (inner,) = [row for row, count in module.trip_count.items() if count == 3]
    assert module.computation[outer] == module.entry
    assert module.computation[inner] in module.called_by(outer)


def test_a_loop_whose_end_depends_on_data_has_no_count() -> None:
    def halved(x: Any) -> Any:
        return jax.lax.while_loop(lambda y: y.sum() > 1, lambda y: y / 2, x)

    executable = jax.jit(halved).lower(jax.ShapeDtypeStruct((4,), jnp.float32)).compile().runtime_executable()
    proto = message("HloProto")()
    proto.hlo_module.ParseFromString(executable.hlo_modules()[0].as_serialized_hlo_module_proto())
    module = read_hlo_proto(proto.SerializeToString())
    assert "while" in module.opcode
    assert module.trip_count == {}


@pytest.mark.parametrize("name", ALL)
def test_contractions_are_those_of_the_text(name: str) -> None:
    module = read(name)
    printed = {}
    for match in INSTRUCTION.finditer(runtime_module(name).to_string()):
        if match[3] == "dot":
            found = [re.search(rf"{kind}={{([\d,]*)}}", match[4]) for kind in DIMENSIONS]
            printed[match[1]] = tuple(one[1] if one else "" for one in found)
    ours = {
        module.instruction_name[row]: tuple(
            ",".join(map(str, numbers))
            for numbers in (dot.left_contracting, dot.right_contracting, dot.left_batch, dot.right_batch)
        )
        for row, dot in module.dots.items()
    }
    assert ours == printed
    assert len(ours) == (name != "convolution")  # the one of `assorted` is in a branch


DIMENSIONS = ("lhs_contracting_dims", "rhs_contracting_dims", "lhs_batch_dims", "rhs_batch_dims")


def test_a_convolution_knows_its_window() -> None:
    module = read("convolution")
    ((row, convolution),) = module.convolutions.items()
    (printed,) = [
        m[4] for m in INSTRUCTION.finditer(runtime_module("convolution").to_string()) if m[3] == "convolution"
    ]
    assert module.opcode[row] == "convolution"
    assert [dimension.size for dimension in convolution.window] == [3, 3]
    assert [dimension.stride for dimension in convolution.window] == [2, 1]
    # 16 rows in steps of 2 under a window of 3 need one row more; 16 columns in steps of 1 one on either side.
    assert [(d.padding_low, d.padding_high) for d in convolution.window] == [(0, 1), (1, 1)]
    assert "window={size=3x3 stride=2x1 pad=0_1x1_1}" in printed
    assert "dim_labels=b01f_01io->b01f" in printed
    assert (convolution.input_spatial, convolution.kernel_spatial, convolution.output_spatial) == (
        (1, 2),
        (0, 1),
        (1, 2),
    )
    assert (convolution.kernel_input_feature, convolution.kernel_output_feature) == (2, 3)


@pytest.mark.parametrize("name", ALL)
def test_the_schedule_is_the_order_of_the_text(name: str) -> None:
    module = read(name)
    text = runtime_module(name).to_string()
    assert "is_scheduled=true" in text
    order = {match[1]: at for at, match in enumerate(INSTRUCTION.finditer(text))}
    scheduled = np.flatnonzero(module.schedule >= 0)
    by_schedule = sorted(scheduled, key=lambda row: (module.computation[row], module.schedule[row]))
    by_text = sorted(scheduled, key=lambda row: (module.computation[row], order[module.instruction_name[row]]))
    assert by_schedule == by_text
    assert module.entry in module.computation[scheduled]


@pytest.mark.parametrize("name", ALL)
def test_allocations_sum_to_what_memory_analysis_says(name: str) -> None:
    buffers, said = read(name).buffers, compiled(name).memory_analysis()
    assert buffers is not None
    allocations = buffers.allocations
    arguments = allocations.parameter != ABSENT
    assert allocations.size_bytes[arguments].sum() == said.argument_size_in_bytes
    assert allocations.size_bytes[allocations.donated].sum() == said.alias_size_in_bytes
    temporary = ~arguments & ~allocations.constant & ~allocations.live_out & ~allocations.thread_local
    assert allocations.size_bytes[temporary].sum() == said.temp_size_in_bytes
    results = allocations.live_out & ~allocations.tuple
    tables = allocations.live_out & allocations.tuple
    assert allocations.size_bytes[results | tables].sum() == said.output_size_in_bytes
    if name == "loops":
        assert said.alias_size_in_bytes == 64 * 64 * 4


@pytest.mark.parametrize("name", ALL)
def test_values_lie_within_their_allocations(name: str) -> None:
    module = read(name)
    assert module.buffers is not None
    values, allocations = module.buffers.values, module.buffers.allocations
    assert (values.allocation >= 0).all()
    end = values.offset_bytes + values.size_bytes
    assert (end <= allocations.size_bytes[values.allocation]).all()
    whole = [row for row, path in enumerate(values.shape_index) if path == () and values.instruction[row] >= 0]
    arrays = [row for row in whole if not module.shape[values.instruction[row]].startswith("(")]
    assert len(arrays) >= 3
    assert (values.size_bytes[arrays] == module.output_bytes[values.instruction[arrays]]).all()


MAPPINGS = (
    "replica_groups", "source_target_pairs", "trip_count", "dots", "convolutions", "windows", "dimensions", "fusion_kind",
    "custom_call_target", "sharding",
)  # fmt: skip


def told(module: HloModule) -> dict[str, Any]:
    """A module by names, so that the order of rows does not matter."""
    names, computations = module.instruction_name, module.computation_name

    def row(i: int) -> tuple[Any, ...]:
        controls = module.controls[module.control_offsets[i] : module.control_offsets[i + 1]]
        return (
            names[i], module.opcode[i], computations[module.computation[i]], module.full_shape[i], module.shape[i],
            int(module.output_bytes[i]), int(module.parameter_number[i]), int(module.tuple_index[i]),
            int(module.schedule[i]), module.operation_name[i], module.source[i], module.stack_of(i),
            [names[o] for o in module.operands_of(i)], [computations[c] for c in module.called_by(i)],
            sorted(names[c] for c in controls),
        )  # fmt: skip

    return {
        "name": module.name,
        "entry": computations[module.entry],
        "rows": sorted(map(row, range(len(module)))),
        "roots": {computations[c]: names[root] for c, root in enumerate(module.computation_root)},
        **{kind: {names[i]: value for i, value in getattr(module, kind).items()} for kind in MAPPINGS},
    }


@pytest.mark.parametrize("name", ALL)
def test_the_text_of_a_program_tells_the_same_as_its_protobuf(name: str) -> None:
    expected = told(read(name))
    if name == "sharded":  # a text names logical devices, all of them by nothing
        assert any(expected["replica_groups"].values())
    for text in (compiled(name).as_text(), runtime_module(name).to_string()):
        assert told(read_hlo_text(text, 0)) == expected


def test_a_text_without_percent_signs_is_read_too() -> None:
    text = compiled("assorted").as_text()
    assert told(read_hlo_text(text.replace("%", ""), 0)) == told(read("assorted"))


def test_tiled_shapes_and_strange_names_in_text() -> None:
    xla = importlib.import_module("jaxlib._hlo").hlo_module_from_text(TILED)
    module = read_hlo_text(xla.to_string(), 3)
    assert module.program_id == 3
    assert module.full_shape[module.instruction_name.index("a")] == "bf16[1024,64]{1,0:T(8,128)(2,1)S(1)}"
    assert (module.schedule == ABSENT).all()


POOLED = """HloModule pooled
add { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT s = f32[] add(a, b) }
ENTRY main {
  x = f32[8,8]{1,0} parameter(0)
  zero = f32[] constant(0)
  ROOT r = f32[4,8]{1,0} reduce-window(x, zero), window={size=3x2 stride=2x1 pad=1_0x1_0}, to_apply=add
}"""


def test_the_text_of_what_the_cpu_does_not_compile_to() -> None:
    xla = importlib.import_module("jaxlib._hlo").hlo_module_from_text(POOLED)
    proto = message("HloProto")()
    proto.hlo_module.ParseFromString(xla.as_serialized_hlo_module_proto())
    expected = told(read_hlo_proto(proto.SerializeToString()))
    ((size, stride, low, high, *_), _) = map(astuple, expected["windows"]["r"])
    assert (size, stride, low, high) == (3, 2, 1, 0)
    assert told(read_hlo_text(xla.to_string(), 0)) == expected


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("HloModul jit_f", "does not begin"),
        ("HloModule jit_f\n", "no entry"),
        ("HloModule f\nENTRY e {\n  x = f32[] add(y, y)\n}", "'y'"),
        ("HloModule f\nENTRY e {\n  x = f32[] call(), to_apply=g\n}", "'g'"),
    ],
)
def test_a_text_that_is_no_program_is_refused(text: str, why: str) -> None:
    with pytest.raises(TraceflowError, match=f"TF103: cannot read an HLO text.*{why}"):
        read_hlo_text(text, 0)


def test_a_stack_leads_from_the_line_to_its_callers() -> None:
    module = read("loops")
    (tanh,) = [row for row, name in enumerate(module.operation_name) if name.endswith("/tanh")][:1]
    stack = module.stack_of(tanh)
    functions = [frame.function for frame in stack if frame.place.startswith(__file__)]
    assert functions[0] == "step.<locals>.inner"
    assert functions.index("step.<locals>.body") < functions.index("step")
    line = next(at for at, text in enumerate(Path(__file__).read_text().splitlines(), 1) if "jnp.tanh(carry" in text)
    assert stack[0].place == module.source[tanh] == f"{__file__}:{line}"
    assert module.stack_of(module.opcode.index("parameter")) == ()
