"""Read a whole HLO module from its text, as `compiled.as_text()` and XLA's dumps (`*after_optimizations.txt`) hold it.

The protobuf tells more: devices, buffers, and every literal. Text is for those who have nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, TypeVar

import numpy as np

from traceflow.errors import TraceflowError
from traceflow.program.backend_config import contraction, trip_count
from traceflow.program.frames import user_places
from traceflow.program.hlo_line import Instruction, parse_instruction
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
from traceflow.program.replica_groups import parse_groups, parse_pairs
from traceflow.program.shape import shape_bytes
from traceflow.trace.model import ABSENT, Int32, Int64

_MODULE = re.compile(r"\s*HloModule ([\w.\-<>]+)")
_COMPUTATION = re.compile(r"(ENTRY )?%?([\w.\-]+) (?:\(.*\) -> .*)?\{$")
_NAME = re.compile(r"%?([\w.\-]+)$")
_BRACKETS = re.compile(r"[(){}\[\],]")
_CALLS = re.compile(
    r"\b(calls|to_apply|body|condition|true_computation|false_computation|branch_computations|called_computations)="
    r"(\{[^}]*\}|%?[\w.\-]+)"
)
_CALL_ORDER = ("true_computation", "false_computation", "body", "condition")  # as XLA numbers them
_OPERATION = re.compile(r'op_name="((?:[^"\\]|\\.)*)"')
_SOURCE = re.compile(r'source_file="([^"]*)"(?: source_line=(\d+))?')
_WHOLE = re.compile(r"(pred|[su](8|16|32|64))\[")
_NUMBER = re.compile(r"-?\d+|true|false")
_TRUTHS = {"true": 1, "false": 0}
_TABLE_ROW = re.compile(r"(\d+) (.*)")

_Found = TypeVar("_Found")


@dataclass(slots=True)
class _Text:
    """The parts of a text: computations by name, and the tables of stack frames by title."""

    computations: dict[str, list[Instruction]] = field(default_factory=dict)
    tables: dict[str, dict[int, str]] = field(default_factory=dict)
    entry: str = ""


def read_hlo_text(text: str, program_id: int) -> HloModule:
    """Decode the text of a module.

    Args:
        text: The whole module; shapes of operands and `%` before names may be there or not.
        program_id: By what the trace calls the program; a text does not tell.

    Returns:
        The module, without buffers. Its groups and pairs name logical devices, replica * partitions + partition.

    Raises:
        TraceflowError: TF103 when the text is no HLO module.

    Example:
        >>> module = read_hlo_text('''HloModule jit_f, is_scheduled=true
        ... ENTRY %main (x: f32[4]) -> f32[4] {
        ...   %x = f32[4]{0} parameter(0)
        ...   ROOT %y = f32[4]{0} add(%x, %x), metadata={op_name="jit(f)/add"}
        ... }''', 1)
        >>> module.name, module.opcode, module.operation_name, module.schedule.tolist()
        ('jit_f', ('parameter', 'add'), ('', 'jit(f)/add'), [0, 1])
    """
    head = _MODULE.match(text)
    if not head:
        raise _damaged("it does not begin with HloModule")
    parts = _parts(text)
    if parts.entry not in parts.computations:
        raise _damaged("it has no entry computation")
    try:
        return _module(head[1], program_id, parts, scheduled="is_scheduled=true" in text.partition("\n")[0])
    except OverflowError as error:
        raise _damaged("it has a number that is too large") from error
    except (LookupError, ValueError) as error:
        raise _damaged(f"it refers to {error}, which is not in it") from error


def _damaged(why: str) -> TraceflowError:
    return TraceflowError("TF103", "cannot read an HLO text", why, "give the text of a whole module")


def _parts(text: str) -> _Text:
    parts, inside, title = _Text(), False, ""
    for line in text.splitlines():
        if inside and line.startswith("}"):
            inside = False
        elif inside and (instruction := parse_instruction(line)):
            parts.computations[title].append(instruction)
        elif match := _COMPUTATION.match(line):
            inside, title = True, match[2]
            parts.computations[title] = []
            parts.entry = title if match[1] else parts.entry
        elif not inside and (row := _TABLE_ROW.match(line)):
            parts.tables.setdefault(title, {})[int(row[1])] = row[2]
        elif not inside and line:
            title = line.strip()
    return parts


def _module(name: str, program_id: int, parts: _Text, *, scheduled: bool) -> HloModule:
    instructions = [instruction for lines in parts.computations.values() for instruction in lines]
    lengths = [len(lines) for lines in parts.computations.values()]
    computations = {title: row for row, title in enumerate(parts.computations)}
    first = np.cumsum([0, *lengths])[:-1]
    operands = _operands(parts.computations.values())
    owners = np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)
    called = [[computations[title] for title in _called(i.attributes)] for i in instructions]
    roots = [_root(lines) for lines in parts.computations.values()]
    frames, frame = _frames(parts.tables), _where(instructions, _frame_row)
    places = user_places(frames)
    operand_offsets, operand_rows = _csr(operands)
    control_offsets, controls = _csr(_controls(parts.computations.values()))
    called_offsets, called_rows = _csr(called)
    shapes = tuple(i.shape for i in instructions)
    return HloModule(
        name=name,
        program_id=program_id,
        instruction_name=tuple(i.name for i in instructions),
        opcode=tuple(i.opcode for i in instructions),
        computation=owners,
        operand_offsets=operand_offsets,
        operands=operand_rows,
        control_offsets=control_offsets,
        controls=controls,
        called_offsets=called_offsets,
        called=called_rows,
        parameter_number=_numbers(instructions, "parameter", lambda i: i.arguments),
        tuple_index=_numbers(instructions, "get-tuple-element", lambda i: _attribute(i, "index")),
        schedule=_schedule(instructions, owners, called, scheduled=scheduled),
        shape=shapes,
        full_shape=tuple(i.full_shape for i in instructions),
        output_bytes=np.array([shape_bytes(shape) for shape in shapes], np.int64),
        operation_name=tuple(_operation(i) for i in instructions),
        source=tuple(
            places[frame[row]] if row in frame else _source(i.attributes) for row, i in enumerate(instructions)
        ),
        computation_name=tuple(computations),
        computation_root=np.array([at + root for at, root in zip(first, roots, strict=True)], np.int32),
        entry=computations[parts.entry],
        **told_by(instructions),
        frames=frames,
        frame=frame,
    )


def told_by(instructions: Sequence[Instruction]) -> dict[str, Any]:
    """What only some instructions have, by row, as `HloModule` names it."""
    return {
        "replica_groups": _where(instructions, _groups),
        "source_target_pairs": _where(instructions, lambda i: parse_pairs(i.attributes) or None),
        "trip_count": _where(instructions, lambda i: trip_count(i.attributes) if i.opcode == "while" else None),
        "dots": _where(instructions, _dot),
        "convolutions": _where(instructions, _convolution),
        "windows": _where(instructions, lambda i: _window(i.attributes) if i.opcode in WINDOWED else None),
        "dimensions": _where(instructions, _dimensions),
        "fusion_kind": _where(instructions, lambda i: _attribute(i, "kind") if i.opcode == "fusion" else None),
        "custom_call_target": _where(instructions, lambda i: _attribute(i, "custom_call_target")),
        "sharding": _where(instructions, lambda i: _sharding(i.attributes)),
        "integers": _where(instructions, _integers),
        "comparison": _where(instructions, lambda i: _attribute(i, "direction") if i.opcode == "compare" else None),
        "slices": _where(instructions, lambda i: _slice(i.attributes) if i.opcode == "slice" else None),
    }


def _integers(instruction: Instruction) -> tuple[int, ...] | None:
    """Elements of a constant of whole numbers or truths."""
    if instruction.opcode != "constant" or not _WHOLE.match(instruction.full_shape):
        return None
    words = _NUMBER.findall(instruction.arguments)
    few = 0 < len(words) <= LARGEST_TABLE
    return tuple(_TRUTHS[word] if word in _TRUTHS else int(word) for word in words) if few else None


def _slice(attributes: str) -> tuple[tuple[int, int, int], ...]:
    """`slice={[0:16], [0:8:2]}`."""
    match = re.search(r"\bslice=\{([^}]*)\}", attributes)
    bounds = re.findall(r"\[(\d+):(\d+)(?::(\d+))?\]", match[1]) if match else []
    return tuple((int(start), int(limit), int(stride or 1)) for start, limit, stride in bounds)


def _where(instructions: Iterable[Instruction], find: Callable[[Instruction], _Found | None]) -> dict[int, _Found]:
    """What some instructions have, by row."""
    found = ((row, find(instruction)) for row, instruction in enumerate(instructions))
    return {row: value for row, value in found if value is not None}


def _csr(lists: Sequence[Sequence[int]]) -> tuple[Int64, Int32]:
    offsets = np.fromiter(accumulate(map(len, lists), initial=0), np.int64, len(lists) + 1)
    return offsets, np.array([row for rows in lists for row in rows], np.int32)


def _operands(computations: Iterable[list[Instruction]]) -> list[list[int]]:
    """Rows of operands; names are looked up within their computation, since other arguments look like names."""
    found, first = [], 0
    for lines in computations:
        rows = {instruction.name: first + at for at, instruction in enumerate(lines)}
        for instruction in lines:
            names = [match[1] for piece in _pieces(instruction.arguments) if (match := _NAME.search(piece))]
            literal = instruction.opcode in {"constant", "parameter"}
            found.append([] if literal else [rows[name] for name in names])
        first += len(lines)
    return found


def _pieces(arguments: str) -> Iterator[str]:
    """Arguments apart, by the commas that stand in no bracket."""
    depth, start = 0, 0
    for match in _BRACKETS.finditer(arguments):
        if match[0] == "," and not depth:
            yield arguments[start : match.start()].strip()
            start = match.end()
        elif match[0] != ",":
            depth += 1 if match[0] in "([{" else -1
    yield arguments[start:].strip()


def _controls(computations: Iterable[list[Instruction]]) -> list[list[int]]:
    found, first = [], 0
    for lines in computations:
        rows = {instruction.name: first + at for at, instruction in enumerate(lines)}
        found += [[rows[name] for name in _names(i.attributes, "control-predecessors")] for i in lines]
        first += len(lines)
    return found


def _names(attributes: str, attribute: str) -> list[str]:
    match = re.search(rf"\b{attribute}=\{{([^}}]*)\}}", attributes)
    return [name.strip().removeprefix("%") for name in match[1].split(",")] if match else []


def _called(attributes: str) -> list[str]:
    """Names of called computations, in the order in which XLA numbers them."""
    found = {
        kind: [name.strip().removeprefix("%") for name in names.strip("{}").split(",")]
        for kind, names in _CALLS.findall(attributes.partition(", metadata={")[0])
    }
    order = [kind for kind in _CALL_ORDER if kind in found] + [kind for kind in found if kind not in _CALL_ORDER]
    return [name for kind in order for name in found[kind]]


def _root(lines: Sequence[Instruction]) -> int:
    """The instruction that a computation returns; XLA leaves the mark out where only one is there."""
    return next((at for at, instruction in enumerate(lines) if instruction.root), len(lines) - 1)


def _numbers(instructions: Iterable[Instruction], opcode: str, tell: Callable[[Instruction], str | None]) -> Int32:
    return np.array([int(tell(i) or ABSENT) if i.opcode == opcode else ABSENT for i in instructions], np.int32)


def _attribute(instruction: Instruction, name: str) -> str | None:
    match = re.search(rf'[ ,]{name}="?([\w.$<>:/\-]+)', instruction.attributes)
    return match[1] if match else None


def _dimensions(instruction: Instruction) -> tuple[int, ...] | None:
    if instruction.opcode == "iota":
        return (int(_attribute(instruction, "iota_dimension") or 0),)
    return _listed(instruction.attributes, "dimensions") or None


def _listed(attributes: str, name: str) -> tuple[int, ...]:
    match = re.search(rf"[ ,]{name}=\{{([\d,]*)\}}", attributes)
    return tuple(map(int, match[1].split(","))) if match and match[1] else ()


def _schedule(
    instructions: Sequence[Instruction], owners: Int32, called: Sequence[Sequence[int]], *, scheduled: bool
) -> Int32:
    """Positions in the order of the text, except inside fusions, which run as one."""
    if not scheduled:
        return np.full(len(instructions), ABSENT, np.int32)
    inside = {inner for i, inners in zip(instructions, called, strict=True) if i.opcode == "fusion" for inner in inners}
    first = np.searchsorted(owners, owners)
    position = np.arange(len(instructions)) - first
    return np.where(np.isin(owners, list(inside)), ABSENT, position).astype(np.int32)


def _operation(instruction: Instruction) -> str:
    match = _OPERATION.search(instruction.attributes)
    return re.sub(r"\\(.)", r"\1", match[1]) if match else ""


def _source(attributes: str) -> str:
    match = _SOURCE.search(attributes)
    return f"{match[1]}:{match[2] or 0}" if match else ""


def _frame_row(instruction: Instruction) -> int | None:
    match = re.search(r"\bstack_frame_id=(\d+)", instruction.attributes)
    return int(match[1]) - 1 if match and match[1] != "0" else None


def _frames(tables: Mapping[str, Mapping[int, str]]) -> tuple[Frame, ...]:
    """The frames; a text numbers a frame's caller one higher than the protobuf, so that 1 is none."""
    files, functions, locations, frames = (
        tables.get(title, {}) for title in ("FileNames", "FunctionNames", "FileLocations", "StackFrames")
    )

    def number(row: str, name: str) -> int:
        return int(match[1]) if (match := re.search(rf"\b{name}=(\d+)", row)) else 0

    def frame(row: str) -> Frame:
        at = locations[number(row, "file_location_id")]
        place = f"{files[number(at, 'file_name_id')].strip(chr(34))}:{number(at, 'line')}"
        function = functions.get(number(at, "function_name_id"), "").strip('"')
        return Frame(place, function, number(row, "parent_frame_id") - 2)

    return tuple(frame(frames[at]) for at in sorted(frames))


def _sharding(attributes: str) -> str | None:
    _, found, rest = attributes.partition(", sharding=")
    return next(_pieces(rest)) if found else None


def _groups(instruction: Instruction) -> tuple[tuple[int, ...], ...] | None:
    collective = base_opcode(instruction.opcode) in COLLECTIVES
    return parse_groups(instruction.attributes) if collective else None


def _dot(instruction: Instruction) -> Dot | None:
    if instruction.opcode == "dot":
        kinds = ("lhs_contracting", "rhs_contracting", "lhs_batch", "rhs_batch")
        return Dot(*(_listed(instruction.attributes, f"{kind}_dims") for kind in kinds))
    return contraction(instruction.attributes) if instruction.opcode == "custom-call" else None


def _convolution(instruction: Instruction) -> Convolution | None:
    labels = re.search(r"dim_labels=([\w?]+)_([\w?]+)->([\w?]+)", instruction.attributes)
    if not labels:
        return None
    inputs, kernel, outputs = (_spatial(label) for label in labels.groups())
    return Convolution(
        _window(instruction.attributes),
        inputs,
        kernel,
        outputs,
        labels[2].index("i"),
        labels[2].index("o"),
        int(_attribute(instruction, "feature_group_count") or 1),
        int(_attribute(instruction, "batch_group_count") or 1),
    )


def _spatial(label: str) -> tuple[int, ...]:
    """Where the spatial dimensions stand, in their own order."""
    return tuple(label.index(digit) for digit in sorted(filter(str.isdigit, label)))


def _window(attributes: str) -> tuple[WindowDimension, ...]:
    """`window={size=3x3 stride=2x1 pad=0_1x2_2 rhs_dilate=1x2}`."""
    match = re.search(r"window=\{([^}]*)\}", attributes)
    said = dict(part.split("=") for part in match[1].split()) if match else {}
    sizes = said["size"].split("x") if "size" in said else []
    if not sizes:
        return ()
    plain = "x".join("1" for _ in sizes)
    strides, dilations, base = (said.get(k, plain).split("x") for k in ("stride", "rhs_dilate", "lhs_dilate"))
    pads = [pad.split("_") for pad in said.get("pad", "x".join("0_0" for _ in sizes)).split("x")]
    return tuple(
        WindowDimension(int(size), int(stride), int(low), int(high), int(dilation), int(spread))
        for size, stride, (low, high), dilation, spread in zip(sizes, strides, pads, dilations, base, strict=True)
    )
