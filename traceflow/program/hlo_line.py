"""One line of HLO text: `%copy.1 = bf16[8]{0:T(8)} copy(bf16[8]{0:T(8)} %param), metadata={...}`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from traceflow.program.shape import without_comments, without_layout

_HEAD = re.compile(r"\s*(ROOT )?%?([\w.\-]+) = ")
_OPCODE = re.compile(r"\s*([a-z][a-z\d\-]*)\(")
_OPERAND = re.compile(r"([^%]*)%([\w.\-]+)")
_PARENTHESIS = re.compile(r"[()]")


@dataclass(frozen=True, slots=True)
class Instruction:
    """An instruction as its text tells it."""

    name: str
    opcode: str
    full_shape: str
    operands: tuple[tuple[str, str], ...] = ()  # shape, where it is written, and name
    arguments: str = ""  # what stands between the parentheses
    attributes: str = ""  # what follows them
    root: bool = False
    operation_name: str = ""
    source: str = ""

    @property
    def shape(self) -> str:
        """The shape without layout."""
        return without_layout(self.full_shape)


def parse_instruction(text: str) -> Instruction | None:
    """Take a line apart; None where it is no instruction. One that is cut short is read as far as it goes.

    Example:
        >>> parse_instruction("ROOT %add.1 = f32[4]{0} add(f32[4]{0} %x, f32[4]{0} %y)").operands
        (('f32[4]{0}', 'x'), ('f32[4]{0}', 'y'))
    """
    head = _HEAD.match(text)
    if not head:
        return None
    rest = text[head.end() :]
    shape_end = _closing(rest) if rest.startswith("(") else rest.find(" ")
    opcode = _OPCODE.match(rest, shape_end) if shape_end > 0 else None
    if not opcode:
        return None
    end = _closing(rest, opcode.end() - 1)
    arguments = rest[opcode.end() : end - 1]
    return Instruction(
        name=head[2],
        opcode=opcode[1],
        full_shape=without_comments(rest[:shape_end]),
        operands=tuple((without_comments(shape).strip(", "), name) for shape, name in _OPERAND.findall(arguments)),
        arguments=arguments,
        attributes=rest[end:],
        root=bool(head[1]),
    )


def _closing(text: str, start: int = 0) -> int:
    """Position after the parenthesis that closes the one at `start`; the end of a text that is cut before it."""
    depth = 0
    for match in _PARENTHESIS.finditer(text, start):
        depth += 1 if match[0] == "(" else -1
        if not depth:
            return match.end()
    return len(text)
