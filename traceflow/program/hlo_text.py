"""Read HLO instructions from their text, as TPU traces carry it with each operation.

One line says what an instruction produces, its opcode and its operands with their shapes:
`%copy.1 = bf16[8]{0:T(8)} copy(bf16[8]{0:T(8)} %param)`. Lines of executed instructions are not the whole module:
operands that never execute, such as parameters and bitcasts, appear only by name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from traceflow.program.module import COLLECTIVES, HloModule, base_opcode
from traceflow.program.replica_groups import Groups, parse_groups, parse_pairs
from traceflow.program.shape import shape_bytes, without_comments, without_layout
from traceflow.trace.model import ABSENT

_HEAD = re.compile(r"\s*(ROOT )?%?([\w.\-]+) = ")
_OPCODE = re.compile(r"\s*([a-z][a-z\d\-]*)\(")
_OPERAND = re.compile(r"([^%]*)%([\w.\-]+)")
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


@dataclass(frozen=True, slots=True)
class _Instruction:
    name: str
    opcode: str
    full_shape: str
    operands: tuple[tuple[str, str], ...] = ()  # shape and name
    attributes: str = ""
    root: bool = False
    operation_name: str = ""
    source: str = ""

    @property
    def shape(self) -> str:
        return without_layout(self.full_shape)


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
    parsed: dict[str, _Instruction] = {}
    for line in lines:
        instruction = _parsed(line)
        if instruction:
            parsed.setdefault(instruction.name, instruction)
    mentioned = {operand: shape for i in parsed.values() for shape, operand in i.operands if operand not in parsed}
    silent = [_Instruction(operand, _opcode_of(operand), shape) for operand, shape in mentioned.items()]
    return _module([*parsed.values(), *silent], name, program_id)


def _module(instructions: list[_Instruction], name: str, program_id: int) -> HloModule:
    rows = {instruction.name: row for row, instruction in enumerate(instructions)}
    count = len(instructions)
    operands = [[rows[operand] for _, operand in instruction.operands] for instruction in instructions]
    none = np.zeros(count + 1, np.int64)
    root = next((row for row, instruction in enumerate(instructions) if instruction.root), ABSENT)
    pairs = {row: parse_pairs(instruction.attributes) for row, instruction in enumerate(instructions)}
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
        replica_groups=_groups(instructions),
        source_target_pairs={row: found for row, found in pairs.items() if found},
        computation_name=(name,),
        computation_root=np.array([root], np.int32),
        entry=0,
    )


def _groups(instructions: list[_Instruction]) -> Mapping[int, Groups]:
    found = {
        row: parse_groups(instruction.attributes)
        for row, instruction in enumerate(instructions)
        if base_opcode(instruction.opcode) in COLLECTIVES
    }
    return {row: groups for row, groups in found.items() if groups is not None}


def _parsed(line: Line) -> _Instruction | None:
    head = _HEAD.match(line.text)
    if not head:
        return None
    rest = line.text[head.end() :]
    shape_end = _closing(rest) if rest.startswith("(") else rest.find(" ")
    opcode = _OPCODE.match(rest, shape_end) if shape_end > 0 else None
    if not opcode:
        return None
    end = _closing(rest, opcode.end() - 1)
    found = _OPERAND.findall(rest[opcode.end() : end - 1])
    return _Instruction(
        name=head[2],
        opcode=opcode[1],
        full_shape=without_comments(rest[:shape_end]),
        operands=tuple((without_comments(shape).strip(", "), name) for shape, name in found),
        attributes=rest[end:],
        root=bool(head[1]),
        operation_name=line.operation_name,
        source=line.source,
    )


def _closing(text: str, start: int = 0) -> int:
    """Position after the parenthesis that closes the one at `start`; the end of a text that is cut before it."""
    depth = 0
    for match in re.compile(r"[()]").finditer(text, start):
        depth += 1 if match[0] == "(" else -1
        if not depth:
            return match.end()
    return len(text)


def _opcode_of(name: str) -> str:
    """The opcode of an instruction that is known by name only."""
    stem = match[0] if (match := _STEM.match(name)) else name
    return _PREFIXES.get(stem, stem if stem in _SILENT else UNKNOWN)
