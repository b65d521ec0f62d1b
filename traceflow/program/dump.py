"""Programs in files: what XLA dumps (`--xla_dump_to`), what a recording keeps, and what was saved by hand.

A dump holds a program many times: as it came to the compiler, between its passes, and in its final form. They are
told apart by their names. Only the final form is what runs; the others are read when they are named themselves.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from traceflow.errors import TraceflowError
from traceflow.result import Note
from traceflow.unpacking import unpacked

if TYPE_CHECKING:
    from traceflow.program.module import HloModule, Programs

_PACKED = r"(?:\.gz|\.xz)?$"
_PROTO = re.compile(rf"\.hlo(?:_proto)?\.pb{_PACKED}")
_TEXT = re.compile(rf"(?:after_optimizations|\.hlo)\.txt{_PACKED}")
_MODULE = re.compile(r"\s*HloModule [\w.\-<>]")
_UNFINISHED = re.compile(r"\.before_optimizations\.|\.\d{4,}\.[^/]+\.(?:after|before)_")
_HEAD_BYTES = 4096


def is_program(file: Path) -> bool:
    """Whether a file is a program by its name, in any form.

    Example:
        >>> [is_program(Path(name)) for name in ("m.jit_f.after_optimizations.hlo.pb.xz", "f.hlo.txt", "f.xplane.pb")]
        [True, True, False]
    """
    return _PROTO.search(file.name) is not None or _TEXT.search(file.name) is not None


def looks_like_hlo_text(head: str) -> bool:
    """Whether a text begins as an HLO module does.

    Example:
        >>> looks_like_hlo_text("HloModule jit_f, is_scheduled=true"), looks_like_hlo_text("{}")
        (True, False)
    """
    return _MODULE.match(head) is not None


def is_final(file: Path) -> bool:
    """Whether a program's name says that it is as it runs.

    Example:
        >>> passes = "module_0008.jit_f.0002.spmd-partitioner.after_spmd-partitioning.before_x.hlo.pb"
        >>> [is_final(Path(name)) for name in (passes, "m.jit_f.before_optimizations.hlo.pb", "jit_f.hlo.pb")]
        [False, False, True]
    """
    return is_program(file) and not _UNFINISHED.search(file.name)


def final_programs(files: Iterable[Path]) -> list[Path]:
    """The programs among files that are as they run; of one that is there as protobuf and as text, the protobuf."""
    final = [file for file in files if is_final(file)]
    protos = {_stem(file) for file in final if _PROTO.search(file.name)}
    return [file for file in final if _PROTO.search(file.name) or _stem(file) not in protos]


def _stem(file: Path) -> Path:
    return file.with_name(re.sub(rf"(?:\.hlo(?:_proto)?)?\.(?:pb|txt){_PACKED}", "", file.name))


def read_program(file: Path) -> HloModule:
    """Read one program, packed or not.

    Returns:
        The module. Its key is the number that XLA gave it, or, since a text has none, one made of its content.

    Raises:
        TraceflowError: TF102 when the file is empty, TF103 when it is no program, TF105 when its compression is
            damaged.
    """
    content = unpacked(file)
    if not content:
        raise TraceflowError("TF102", f"cannot read {file}", "the file is empty", "dump it again")
    try:
        if looks_like_hlo_text(content[:_HEAD_BYTES].decode(errors="replace")):
            from traceflow.program.hlo_module_text import read_hlo_text

            return read_hlo_text(content.decode(errors="replace"), _key_of(content))
        from traceflow.program.hlo_proto import read_hlo_proto

        return read_hlo_proto(content)
    except TraceflowError as error:
        raise TraceflowError(error.code, f"cannot read {file}", error.why, error.hint) from error


def _key_of(content: bytes) -> int:
    from hashlib import blake2b

    return int.from_bytes(blake2b(content, digest_size=8).digest()) % 2**63


def same_program(one: HloModule, other: HloModule) -> bool:
    """Whether two modules are one program by content, whatever their numbers and wherever they were read from."""
    if (one.name, len(one)) != (other.name, len(other)):
        return False
    if one.instruction_name == other.instruction_name:
        return one.full_shape == other.full_shape
    return _content(one) == _content(other)  # a text lists computations in another order


def _content(module: HloModule) -> set[tuple[str, str, str]]:
    return set(zip(module.instruction_name, module.opcode, module.full_shape, strict=True))


def add_program(programs: dict[int, HloModule], module: HloModule, key: int) -> int:
    """Add a module to others, once.

    Args:
        programs: What is there, which is changed: of two that are one by content, the one with buffers stays.
        module: What to add.
        key: Its number, which another one may have.

    Returns:
        The key under which it is found: the first free one from its own on, or that of its equal.
    """
    equal = (other for other, known in programs.items() if same_program(known, module))
    key = next(equal, key % 2**63)
    while key in programs and not same_program(programs[key], module):
        key = (key + 1) % 2**63
    known = programs.setdefault(key, replace(module, program_id=key))
    if known.buffers is None and module.buffers is not None and known.instruction_name == module.instruction_name:
        programs[key] = replace(known, buffers=module.buffers)
    return key


def executed_among(programs: Programs, executed: Mapping[int, AbstractSet[str]]) -> dict[int, HloModule]:
    """The programs that a trace executed, among those that did not come with it.

    Numbers and names of programs repeat from process to process, so that a program must hold every instruction that
    was executed. Of several that do, the one of the same number is taken, else none.

    Args:
        programs: What was found elsewhere.
        executed: Names of executed instructions, by the trace's own key of the program.

    Returns:
        Modules by the trace's keys.
    """
    holds = {key: frozenset(module.instruction_name) for key, module in programs.items()}
    found = {}
    for key, names in executed.items():
        fitting = [other for other, known in holds.items() if names <= known]
        chosen = [key] if key in fitting else fitting
        if len(chosen) == 1:
            found[key] = replace(programs[chosen[0]], program_id=key)
    return found


def programs_among(files: Iterable[Path]) -> tuple[dict[int, HloModule], tuple[Note, ...]]:
    """The programs that run, among files of a dump or a capture, each once by content.

    Returns:
        Modules by number, and a note where some could not be read.
    """
    programs: dict[int, HloModule] = {}
    problems = []
    for file in final_programs(files):
        try:
            module = read_program(file)
        except TraceflowError as error:
            problems.append(f"{file.name} ({error.why})")
        else:
            add_program(programs, module, module.program_id)
    if not problems:
        return programs, ()
    text = f"{len(problems)} programs could not be read: {', '.join(problems[:3])}"
    return programs, (Note("TF314", text, ("/result/programs",)),)
