"""Read HLO instructions from their text, as TPU traces carry it with each operation.

One line says what an instruction produces, its opcode and its operands with their shapes:
`%copy.1 = bf16[8]{0:T(8)} copy(bf16[8]{0:T(8)} %param)`. Lines of executed instructions are not the whole module:
operands that never execute, such as parameters and bitcasts, appear only by name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np

from traceflow.program.frames import frames_of_stacks
from traceflow.program.hlo_line import Instruction, parse_instruction
from traceflow.program.hlo_module_text import told_by
from traceflow.program.module import HloModule
from traceflow.program.shape import shape_bytes
from traceflow.trace.model import ABSENT

_STEM = re.compile(r"[a-z][a-z\-]*[a-z]")
_PREFIXES = {"param": "parameter", "parameter": "parameter", "arg": "parameter", "constant": "constant"}
# What takes no time and therefore appears as an operand without ever having been executed.
_SILENT = frozenset({"bitcast", "get-tuple-element", "tuple", "iota", "partition-id", "replica-id", "after-all"})
UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Line:
    """One instruction as text, with what the trace says beside it."""

    text: str
    operation_name: str = ""
    source: str = ""
    flops: int | None = None  # the cost that the compiler states
    bytes_accessed: int | None = None
    stack: str = ""  # `file:line:column` per line, innermost first


def read_hlo_lines(lines: Iterable[Line], name: str, program_id: int) -> HloModule:
    """Put the instructions of one program together from their texts.

    Args:
        lines: One per instruction; a text that cannot be understood is passed over, a repeated one counts once.
        name: Of the module.
        program_id: By what the trace calls the program.

    Returns:
        A module of one computation, without schedule. Operands that have no line of their own follow after the
        instructions that have; their opcode is told by their name, or `unknown`.

    Example:
        >>> text = "%all-reduce.1 = f32[4]{0} all-reduce(f32[4]{0} %param.2), replica_groups=[1,2]<=[2], to_apply=%add"
        >>> module = read_hlo_lines([Line(text)], "jit_f", 7)
        >>> module.opcode, module.replica_groups
        (('all-reduce', 'parameter'), {0: ((0, 1),)})
    """
    parsed: dict[str, Instruction] = {}
    known: dict[str, Line] = {}
    for line in lines:
        instruction = parse_instruction(line.text)
        if instruction:
            told = replace(instruction, operation_name=line.operation_name, source=line.source)
            parsed.setdefault(instruction.name, told)
            known.setdefault(instruction.name, line)
    mentioned = {operand: shape for i in parsed.values() for shape, operand in i.operands if operand not in parsed}
    silent = [Instruction(operand, _opcode_of(operand), shape) for operand, shape in mentioned.items()]
    frames, innermost = frames_of_stacks(line.stack for line in known.values())
    return replace(
        _module([*parsed.values(), *silent], name, program_id),
        frames=frames,
        frame={row: frame for row, frame in enumerate(innermost) if frame != ABSENT},
        stated_flops={row: line.flops for row, line in enumerate(known.values()) if line.flops is not None},
        stated_bytes={
            row: line.bytes_accessed for row, line in enumerate(known.values()) if line.bytes_accessed is not None
        },
    )


def _module(instructions: list[Instruction], name: str, program_id: int) -> HloModule:
    rows = {instruction.name: row for row, instruction in enumerate(instructions)}
    count = len(instructions)
    operands = [[rows[operand] for _, operand in instruction.operands] for instruction in instructions]
    none = np.zeros(count + 1, np.int64)
    root = next((row for row, instruction in enumerate(instructions) if instruction.root), ABSENT)
    return HloModule(
        name=name,
        program_id=program_id,
        instruction_name=tuple(rows),
        opcode=tuple(instruction.opcode for instruction in instructions),
        computation=np.zeros(count, np.int32),
        operand_offsets=np.fromiter(accumulate(map(len, operands), initial=0), np.int64, count + 1),
        operands=np.array([row for own in operands for row in own], np.int32),
        control_offsets=none,
        controls=np.empty(0, np.int32),
        called_offsets=none,
        called=np.empty(0, np.int32),
        parameter_number=np.full(count, ABSENT, np.int32),
        tuple_index=np.full(count, ABSENT, np.int32),
        schedule=np.full(count, ABSENT, np.int32),
        shape=tuple(instruction.shape for instruction in instructions),
        full_shape=tuple(instruction.full_shape for instruction in instructions),
        output_bytes=np.array([shape_bytes(i.shape) if i.shape else ABSENT for i in instructions], np.int64),
        operation_name=tuple(instruction.operation_name for instruction in instructions),
        source=tuple(instruction.source for instruction in instructions),
        **told_by(instructions),
        computation_name=(name,),
        computation_root=np.array([root], np.int32),
        entry=0,
    )


def _opcode_of(name: str) -> str:
    """The opcode of an instruction that is known by name only."""
    stem = match[0] if (match := _STEM.match(name)) else name
    return _PREFIXES.get(stem, stem if stem in _SILENT else UNKNOWN)
