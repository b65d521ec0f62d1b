"""Read an HLO module from the `HloProto` that XLA writes into traces and dumps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from operator import attrgetter
from typing import Any, TypeVar

import numpy as np
from google.protobuf.message import DecodeError

from traceflow.errors import TraceflowError
from traceflow.program.backend_config import contraction, trip_count
from traceflow.program.buffers import Buffers, buffers_of
from traceflow.program.frames import read_frames, user_places
from traceflow.program.module import (
    COLLECTIVES,
    LARGEST_TABLE,
    WINDOWED,
    Convolution,
    Dot,
    Frame,
    HloModule,
    WindowDimension,
    base_opcode,
)
from traceflow.program.replica_groups import Groups, groups_of
from traceflow.program.schema import message
from traceflow.program.shape import full_shape_text, shape_bytes, shape_text
from traceflow.program.sharding import sharding_text
from traceflow.trace.model import ABSENT, Int32, Int64

_Identifier = TypeVar("_Identifier", int, str)
_INTEGERS = ("preds", "s32s", "s64s", "u32s", "u64s")
_ID, _NAME = attrgetter("id"), attrgetter("name")


def read_hlo_proto(content: bytes, program_id: int | None = None) -> HloModule:
    """Decode a serialised `HloProto`.

    Args:
        content: As a trace's metadata or an XLA dump (`*.hlo.pb`) holds it.
        program_id: By what the trace calls the program; without it, the module's own id.

    Returns:
        The module. Replica groups and permute pairs name devices, by the module's device assignment.

    Raises:
        TraceflowError: TF103 when the bytes are no `HloProto` or contradict themselves.
    """
    try:
        proto = message("HloProto").FromString(content)
        return _module(proto, proto.hlo_module.id if program_id is None else program_id)
    except (DecodeError, ValueError, LookupError, OverflowError) as error:
        why = str(error).partition("\n")[0] or type(error).__name__
        raise TraceflowError("TF103", "cannot read an HLO program", why, "record or dump it again") from error


@dataclass(frozen=True, slots=True)
class _Rows:
    """Where instructions and computations are, by the ids that refer to them."""

    instruction: Mapping[int, int]
    computation: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class _Kinds:
    """Instructions, and where those of each opcode are."""

    instructions: Sequence[Any]
    by_opcode: Mapping[str, Sequence[int]]

    @classmethod
    def of(cls, instructions: Sequence[Any], opcodes: Iterable[str]) -> _Kinds:
        """Look all of them over once."""
        by_opcode: dict[str, list[int]] = {}
        for row, opcode in enumerate(opcodes):
            by_opcode.setdefault(opcode, []).append(row)
        return cls(instructions, by_opcode)

    def rows(self, *opcodes: str) -> list[tuple[int, Any]]:
        """The instructions of some opcodes, with their rows, in order."""
        rows = sorted(row for opcode in opcodes for row in self.by_opcode.get(opcode, ()))
        return [(row, self.instructions[row]) for row in rows]

    def column(self, opcode: str, attribute: str) -> Int32:
        """An attribute of the instructions of one opcode, ABSENT on all others."""
        values = np.full(len(self.instructions), ABSENT, np.int32)
        for row, instruction in self.rows(opcode):
            values[row] = getattr(instruction, attribute)
        return values


def _module(proto: Any, program_id: int) -> HloModule:
    module = proto.hlo_module
    computations = list(module.computations)
    instructions = [i for computation in computations for i in computation.instructions]
    rows = _Rows(_rows_of(map(_ID, instructions)), _rows_of(map(_ID, computations)))
    opcodes = tuple(map(attrgetter("opcode"), instructions))
    kinds = _Kinds.of(instructions, opcodes)
    shapes, full_shapes, output_bytes = _shapes(instructions)
    operand_offsets, operands = _csr(map(attrgetter("operand_ids"), instructions), rows.instruction)
    control_offsets, controls = _csr(map(attrgetter("control_predecessor_ids"), instructions), rows.instruction)
    called_offsets, called = _csr(map(attrgetter("called_computation_ids"), instructions), rows.computation)
    names = tuple(map(_NAME, instructions))
    metadata = list(map(attrgetter("metadata"), instructions))
    frames = read_frames(module.stack_frame_index)
    frame = {row: one.stack_frame_id - 1 for row, one in enumerate(metadata) if one.stack_frame_id}
    return HloModule(
        name=module.name,
        program_id=program_id,
        instruction_name=names,
        opcode=opcodes,
        computation=np.repeat(
            np.arange(len(computations), dtype=np.int32), [len(c.instructions) for c in computations]
        ),
        operand_offsets=operand_offsets,
        operands=operands,
        control_offsets=control_offsets,
        controls=controls,
        called_offsets=called_offsets,
        called=called,
        parameter_number=kinds.column("parameter", "parameter_number"),
        tuple_index=kinds.column("get-tuple-element", "tuple_index"),
        schedule=_schedule(module, rows),
        shape=shapes,
        full_shape=full_shapes,
        output_bytes=output_bytes,
        operation_name=tuple(map(attrgetter("op_name"), metadata)),
        source=_sources(frames, metadata),
        **_communicating(module, kinds),
        computation_name=tuple(map(_NAME, computations)),
        computation_root=np.array([rows.instruction[c.root_id] for c in computations], np.int32),
        entry=rows.computation[module.entry_computation_id],
        **_described(kinds),
        frames=frames,
        frame=frame,
        sharding={row: sharding_text(i.sharding) for row, i in enumerate(instructions) if i.HasField("sharding")},
        attributes={
            row: _attributes(attributes)
            for row, attributes in enumerate(map(attrgetter("frontend_attributes"), instructions))
            if attributes.map
        },
        module_attributes=_attributes(module.frontend_attributes),
        parameter_shardings=tuple(map(sharding_text, module.spmd_parameters_shardings)),
        output_sharding=sharding_text(module.spmd_output_sharding) if module.HasField("spmd_output_sharding") else "",
        buffers=_buffers(proto, names, rows.instruction),
    )


def _rows_of(identifiers: Iterable[_Identifier]) -> dict[_Identifier, int]:
    return {identifier: row for row, identifier in enumerate(identifiers)}


def _csr(references: Iterable[Sequence[int]], rows: Mapping[int, int]) -> tuple[Int64, Int32]:
    """Offsets and rows of a list of ids per instruction."""
    lists = list(references)
    offsets = np.fromiter(accumulate(map(len, lists), initial=0), np.int64, len(lists) + 1)
    ids = chain.from_iterable(filter(None, lists))
    return offsets, np.fromiter(map(rows.__getitem__, ids), np.int32, int(offsets[-1]))


def _described(kinds: _Kinds) -> dict[str, Any]:
    """What only some instructions have, by row."""
    calls = kinds.rows("custom-call")
    trips = ((row, trip_count(_text(loop.backend_config))) for row, loop in kinds.rows("while"))
    dots = {row: _dot(i.dot_dimension_numbers) for row, i in kinds.rows("dot", "scaled-dot")}
    ragged = kinds.rows("ragged-dot")
    dots |= {row: _dot(i.ragged_dot_dimension_numbers.dot_dimension_numbers) for row, i in ragged}
    products = ((row, contraction(_text(i.backend_config))) for row, i in calls)
    convolutions = [*kinds.rows("convolution"), *calls]
    return {
        "trip_count": {row: count for row, count in trips if count is not None},
        "dots": dots | {row: dot for row, dot in products if dot},
        "convolutions": {
            row: _convolution(i) for row, i in convolutions if i.HasField("convolution_dimension_numbers")
        },
        "windows": {row: _window(i) for row, i in kinds.rows(*WINDOWED)},
        "dimensions": {row: tuple(found) for row, i in enumerate(kinds.instructions) if (found := i.dimensions)},
        "fusion_kind": {row: i.fusion_kind for row, i in kinds.rows("fusion")},
        "custom_call_target": {row: i.custom_call_target for row, i in calls},
        "integers": {row: found for row, i in kinds.rows("constant") if (found := _integers(i.literal))},
        "comparison": {row: i.comparison_direction for row, i in kinds.rows("compare")},
        "slices": {
            row: tuple((d.start, d.limit, d.stride) for d in i.slice_dimensions) for row, i in kinds.rows("slice")
        },
    }


def _integers(literal: Any) -> tuple[int, ...]:
    """Elements of a constant of whole numbers or truths, where these are few enough to be indices or a table of them."""
    found = next((v for kind in _INTEGERS if (v := getattr(literal, kind))), ())
    return tuple(map(int, found)) if len(found) <= LARGEST_TABLE else ()


def _attributes(attributes: Any) -> dict[str, str]:
    return {entry.key: entry.value for entry in attributes.map}


def _text(config: bytes) -> str:
    return config.decode(errors="replace")


def _dot(numbers: Any) -> Dot:
    return Dot(
        tuple(numbers.lhs_contracting_dimensions),
        tuple(numbers.rhs_contracting_dimensions),
        tuple(numbers.lhs_batch_dimensions),
        tuple(numbers.rhs_batch_dimensions),
    )


def _convolution(instruction: Any) -> Convolution:
    numbers = instruction.convolution_dimension_numbers
    return Convolution(
        _window(instruction),
        tuple(numbers.input_spatial_dimensions),
        tuple(numbers.kernel_spatial_dimensions),
        tuple(numbers.output_spatial_dimensions),
        numbers.kernel_input_feature_dimension,
        numbers.kernel_output_feature_dimension,
        max(instruction.feature_group_count, 1),
        max(instruction.batch_group_count, 1),
    )


def _window(instruction: Any) -> tuple[WindowDimension, ...]:
    return tuple(
        WindowDimension(
            d.size, d.stride, d.padding_low, d.padding_high, max(d.window_dilation, 1), max(d.base_dilation, 1)
        )
        for d in instruction.window.dimensions
    )


def _buffers(proto: Any, names: Sequence[str], numbered: Mapping[int, int]) -> Buffers | None:
    if not proto.HasField("buffer_assignment"):
        return None
    return buffers_of(proto.buffer_assignment, _rows_of(names), numbered)


def _shapes(instructions: Sequence[Any]) -> tuple[tuple[str, ...], tuple[str, ...], Int64]:
    """Shapes as text without and with layouts, and their logical sizes, each found once."""
    shapes = list(map(attrgetter("shape"), instructions))
    keys = [shape.SerializeToString() for shape in shapes]
    short: dict[bytes, str] = {}
    full: dict[bytes, str] = {}
    for key, shape in zip(keys, shapes, strict=True):
        if key not in short:
            short[key], full[key] = shape_text(shape), full_shape_text(shape)
    sizes = {key: shape_bytes(text) for key, text in short.items()}
    size_bytes = np.fromiter(map(sizes.__getitem__, keys), np.int64, len(keys))
    return tuple(map(short.__getitem__, keys)), tuple(map(full.__getitem__, keys)), size_bytes


def _schedule(module: Any, rows: _Rows) -> Int32:
    position = np.full(len(rows.instruction), ABSENT, np.int32)
    for entry in module.schedule.sequences:
        ids = entry.value.instruction_ids
        position[[rows.instruction[i] for i in ids]] = np.arange(len(ids))
    return position


def _sources(frames: Sequence[Frame], metadata: Sequence[Any]) -> tuple[str, ...]:
    """Where each instruction was written, by its stack frame, else by the file and line beside it."""
    lines = ["", *user_places(frames)]  # ids count from 1, 0 is none
    return tuple(
        lines[one.stack_frame_id] or (f"{one.source_file}:{one.source_line}" if one.source_file else "")
        for one in metadata
    )


def _devices(module: Any) -> dict[int, int]:
    """Device id of each logical id, replica * partitions + partition."""
    assigned = module.device_assignment
    columns = [column.replica_device_ids for column in assigned.computation_devices]
    return {
        replica * len(columns) + partition: int(device)
        for partition, column in enumerate(columns)
        for replica, device in enumerate(column)
    }


def _communicating(module: Any, kinds: _Kinds) -> dict[str, Any]:
    """Replica groups and permute pairs of the instructions that communicate."""
    devices = _devices(module)
    collectives = kinds.rows(*(opcode for opcode in kinds.by_opcode if base_opcode(opcode) in COLLECTIVES))
    return {
        "replica_groups": _replica_groups(collectives, devices),
        "source_target_pairs": _pairs(collectives, devices),
        "devices": tuple(devices[logical] for logical in sorted(devices)),
    }


def _replica_groups(collectives: Iterable[tuple[int, Any]], devices: Mapping[int, int]) -> dict[int, Groups]:
    found = {}
    for row, instruction in collectives:
        groups = groups_of(instruction)
        if groups is not None:
            groups = groups or (tuple(devices),)
            found[row] = tuple(tuple(devices.get(i, i) for i in group) for group in groups if group)
    return found


def _pairs(
    collectives: Iterable[tuple[int, Any]], devices: Mapping[int, int]
) -> dict[int, tuple[tuple[int, int], ...]]:
    return {
        row: tuple((devices.get(p.source, p.source), devices.get(p.target, p.target)) for p in pairs)
        for row, instruction in collectives
        if len(pairs := instruction.source_target_pairs)
    }
