"""Read an HLO module from the `HloProto` that XLA writes into traces and dumps."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from traceflow.errors import TraceflowError
from traceflow.program.buffers import Buffers, buffers_of
from traceflow.program.module import Convolution, Dot, HloModule, WindowDimension
from traceflow.program.replica_groups import Groups, groups_of
from traceflow.program.schema import message
from traceflow.program.shape import full_shape_text, shape_bytes, shape_text
from traceflow.trace.model import ABSENT, Int32, Int64

_TRIP_COUNT = re.compile(rb'"known_trip_count"\s*:\s*\{\s*"n"\s*:\s*"(\d+)"')
# Frames of the framework between the user's line and XLA.
_FRAMEWORK = re.compile(r"/jax/_src/|/jaxlib/|/jax/interpreters/")


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
    except (DecodeError, ValueError, LookupError) as error:
        why = str(error).partition("\n")[0] or type(error).__name__
        raise TraceflowError("TF103", "cannot read an HLO program", why, "record or dump it again") from error


@dataclass(frozen=True, slots=True)
class _Rows:
    """Where instructions and computations are, by the ids that refer to them."""

    instruction: Mapping[int, int]
    computation: Mapping[int, int]

    def csr(self, references: Iterable[Sequence[int]], rows: Mapping[int, int]) -> tuple[Int64, Int32]:
        """Offsets and rows of a list of ids per instruction."""
        lists = list(references)
        offsets = np.fromiter(accumulate(map(len, lists), initial=0), np.int64, len(lists) + 1)
        return offsets, np.fromiter((rows[i] for ids in lists for i in ids), np.int32, int(offsets[-1]))


def _module(proto: Any, program_id: int) -> HloModule:
    module = proto.hlo_module
    computations = list(module.computations)
    instructions = [i for computation in computations for i in computation.instructions]
    rows = _Rows(
        {instruction.id: row for row, instruction in enumerate(instructions)},
        {computation.id: row for row, computation in enumerate(computations)},
    )
    opcodes = tuple(instruction.opcode for instruction in instructions)
    shapes = _texts(instructions, shape_text)
    operand_offsets, operands = rows.csr((i.operand_ids for i in instructions), rows.instruction)
    control_offsets, controls = rows.csr((i.control_predecessor_ids for i in instructions), rows.instruction)
    called_offsets, called = rows.csr((i.called_computation_ids for i in instructions), rows.computation)
    devices = _devices(module)
    return HloModule(
        name=module.name,
        program_id=program_id,
        instruction_name=tuple(instruction.name for instruction in instructions),
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
        parameter_number=_only(instructions, opcodes, "parameter", "parameter_number"),
        tuple_index=_only(instructions, opcodes, "get-tuple-element", "tuple_index"),
        schedule=_schedule(module, rows),
        shape=shapes,
        full_shape=_texts(instructions, full_shape_text),
        output_bytes=np.array([shape_bytes(shape) for shape in shapes], np.int64),
        operation_name=tuple(instruction.metadata.op_name for instruction in instructions),
        source=_sources(module.stack_frame_index, instructions),
        replica_groups=_replica_groups(instructions, devices),
        source_target_pairs=_pairs(instructions, devices),
        computation_name=tuple(computation.name for computation in computations),
        computation_root=np.array([rows.instruction[c.root_id] for c in computations], np.int32),
        entry=rows.computation[module.entry_computation_id],
        trip_count=_trip_counts(instructions),
        dots={row: _dot(i) for row, i in enumerate(instructions) if i.HasField("dot_dimension_numbers")},
        convolutions={
            row: _convolution(i) for row, i in enumerate(instructions) if i.HasField("convolution_dimension_numbers")
        },
        dimensions={row: tuple(i.dimensions) for row, i in enumerate(instructions) if i.dimensions},
        fusion_kind={row: i.fusion_kind for row, i in enumerate(instructions) if i.fusion_kind},
        custom_call_target={row: i.custom_call_target for row, i in enumerate(instructions) if i.custom_call_target},
        buffers=_buffers(proto, instructions, rows),
    )


def _trip_counts(instructions: Sequence[Any]) -> dict[int, int]:
    """How often the body of each while loop runs, where XLA's analysis could tell."""
    found = {}
    for row, instruction in enumerate(instructions):
        if instruction.opcode == "while" and (match := _TRIP_COUNT.search(instruction.backend_config)):
            found[row] = int(match[1])
    return found


def _dot(instruction: Any) -> Dot:
    numbers = instruction.dot_dimension_numbers
    return Dot(
        tuple(numbers.lhs_contracting_dimensions),
        tuple(numbers.rhs_contracting_dimensions),
        tuple(numbers.lhs_batch_dimensions),
        tuple(numbers.rhs_batch_dimensions),
    )


def _convolution(instruction: Any) -> Convolution:
    numbers = instruction.convolution_dimension_numbers
    window = tuple(
        WindowDimension(
            d.size, d.stride, d.padding_low, d.padding_high, max(d.window_dilation, 1), max(d.base_dilation, 1)
        )
        for d in instruction.window.dimensions
    )
    return Convolution(
        window,
        tuple(numbers.input_spatial_dimensions),
        tuple(numbers.kernel_spatial_dimensions),
        tuple(numbers.output_spatial_dimensions),
        numbers.kernel_input_feature_dimension,
        numbers.kernel_output_feature_dimension,
        max(instruction.feature_group_count, 1),
        max(instruction.batch_group_count, 1),
    )


def _buffers(proto: Any, instructions: Sequence[Any], rows: _Rows) -> Buffers | None:
    if not proto.HasField("buffer_assignment"):
        return None
    named = {instruction.name: row for row, instruction in enumerate(instructions)}
    return buffers_of(proto.buffer_assignment, named, rows.instruction)


def _texts(instructions: Sequence[Any], write: Callable[[Any], str]) -> tuple[str, ...]:
    """Shapes as text, each written once."""
    known: dict[bytes, str] = {}
    texts = []
    for instruction in instructions:
        key = instruction.shape.SerializeToString()
        text = known.get(key)
        if text is None:
            text = known[key] = write(instruction.shape)
        texts.append(text)
    return tuple(texts)


def _only(instructions: Sequence[Any], opcodes: Sequence[str], opcode: str, attribute: str) -> Int32:
    """An attribute of the instructions of one opcode, ABSENT on all others."""
    pairs = zip(instructions, opcodes, strict=True)
    return np.array([getattr(i, attribute) if op == opcode else ABSENT for i, op in pairs], np.int32)


def _schedule(module: Any, rows: _Rows) -> Int32:
    position = np.full(len(rows.instruction), ABSENT, np.int32)
    for entry in module.schedule.sequences:
        ids = entry.value.instruction_ids
        position[[rows.instruction[i] for i in ids]] = np.arange(len(ids))
    return position


def _sources(index: Any, instructions: Sequence[Any]) -> tuple[str, ...]:
    """Where each instruction was written, by its stack frame, else by the file and line beside it."""
    lines = _lines(index)
    texts = []
    for instruction in instructions:
        metadata = instruction.metadata
        line = lines[metadata.stack_frame_id]
        plain = f"{metadata.source_file}:{metadata.source_line}" if metadata.source_file else ""
        texts.append(line or plain)
    return tuple(texts)


def _lines(index: Any) -> list[str]:
    """The line of each frame id: of the innermost frame outside the framework, else of the frame itself."""
    files = list(index.file_names)
    places = [f"{files[place.file_name_id - 1]}:{place.line}" for place in index.file_locations]
    own = ["", *(places[frame.file_location_id - 1] for frame in index.stack_frames)]  # ids count from 1, 0 is none
    parents: list[int] = [0, *(frame.parent_frame_id for frame in index.stack_frames)]
    lines = []
    for frame in range(len(own)):
        outer, seen = frame, set[int]()
        while outer not in seen and _FRAMEWORK.search(own[outer]):
            seen.add(outer)
            outer = parents[outer]
        lines.append(own[outer] if own[outer] and outer not in seen else own[frame])
    return lines


def _devices(module: Any) -> dict[int, int]:
    """Device id of each logical id, replica * partitions + partition."""
    assigned = module.device_assignment
    columns = [column.replica_device_ids for column in assigned.computation_devices]
    return {
        replica * len(columns) + partition: int(device)
        for partition, column in enumerate(columns)
        for replica, device in enumerate(column)
    }


def _replica_groups(instructions: Sequence[Any], devices: Mapping[int, int]) -> dict[int, Groups]:
    found = {}
    for row, instruction in enumerate(instructions):
        groups = groups_of(instruction)
        if groups is not None:
            groups = groups or (tuple(devices),)
            found[row] = tuple(tuple(devices.get(i, i) for i in group) for group in groups if group)
    return found


def _pairs(instructions: Sequence[Any], devices: Mapping[int, int]) -> dict[int, tuple[tuple[int, int], ...]]:
    return {
        row: tuple((devices.get(p.source, p.source), devices.get(p.target, p.target)) for p in pairs)
        for row, instruction in enumerate(instructions)
        if len(pairs := instruction.source_target_pairs)
    }
