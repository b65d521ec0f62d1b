"""Device planes of TPUs in an XLA trace: one line of operations, and one that says which program they belong to."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from traceflow.program.hlo_text import Line as HloLine
from traceflow.program.hlo_text import read_hlo_lines
from traceflow.program.module import HloModule, kind_of, operation_of_name
from traceflow.trace._xla_columns import Said, first_of_pairs, number
from traceflow.trace._xla_lines import (
    DERIVED_LINE,
    Chunk,
    Count,
    Hlo,
    LaneKey,
    Line,
    Plane,
    named_key,
    program_key,
)
from traceflow.trace.model import ABSENT, Int64, LaneKind

PLANE = re.compile(r"/device:TPU:(\d{1,9})$")
_OPERATIONS, _MODULES = "XLA Ops", "XLA Modules"
_MODULE = re.compile(r"(.*)\((\d+)\)$")


@dataclass(frozen=True, slots=True)
class Execution:
    """One run of a program on one device, as the line of modules shows it."""

    program: int
    name: str
    run: int  # how many times the program had run on this device: equal on all devices, unlike the file's own number
    number: int | None  # the file's own number, which the host's launch repeats
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class TpuPlane:
    """What one device did."""

    device: int
    chunks: list[Chunk]
    executions: list[Execution]
    texts: dict[int, dict[str, HloLine]]  # by program and instruction, in order of execution


def tpu_plane(plane: Plane, device: int, count: Count) -> TpuPlane:
    """Operations of a device and the runs they belong to. Other lines show the same work again, or count.

    An operation belongs to the run during which it starts; of one that belongs to none, only the name tells more.
    """
    lines = list(plane.lines)
    executions = _executions([line for line in lines if line.name == _MODULES])
    count.drop("program span (kept as a run)", sum(len(line) for line in lines if line.name == _MODULES))
    count.drop(DERIVED_LINE, sum(len(line) for line in lines if line.name not in {_MODULES, _OPERATIONS}))
    texts: dict[int, dict[str, HloLine]] = {}
    chunks = []
    for line in lines:
        if line.name == _OPERATIONS:
            hlo = _hlo(line, executions)
            chunk = Chunk.of(line, np.arange(len(line)), LaneKey(device, LaneKind.LINE, ABSENT, line.name))
            stray = np.setdiff1d(np.arange(len(line)), hlo.row)
            chunk.kind[stray] = line.names.take(stray).each(lambda name: kind_of(operation_of_name(name)), np.int8)
            chunks.append(replace(chunk, hlo=hlo))
            _collect(line, hlo, texts)
    return TpuPlane(device, chunks, executions, texts)


def text_programs(planes: Iterable[TpuPlane]) -> dict[int, HloModule]:
    """The programs that the operations' own texts describe, put together from all devices."""
    texts: dict[int, dict[str, HloLine]] = {}
    names: dict[int, str] = {}
    for plane in sorted(planes, key=lambda plane: plane.device):
        names |= {execution.program: execution.name for execution in plane.executions}
        for program, lines in plane.texts.items():
            known = texts.setdefault(program, {})
            known.update((name, line) for name, line in lines.items() if name not in known)
    return {program: read_hlo_lines(lines.values(), names[program], program) for program, lines in texts.items()}


def _executions(lines: list[Line]) -> list[Execution]:
    spans = [
        (int(start), int(end), name, int(run) if known else None)
        for line in lines
        for start, end, name, run, known in zip(
            line.start_ns, line.end_ns, line.names.listed(), *line.stats.numbers("run_id"), strict=True
        )
    ]
    spans.sort(key=lambda span: span[:3])
    runs: dict[str, int] = {}
    executions = []
    for start_ns, end_ns, name, identifier in spans:
        run = runs[name] = runs.get(name, -1) + 1
        match = _MODULE.match(name)
        program, plain = (program_key(int(match[2])), match[1]) if match else (named_key(name), name)
        executions.append(Execution(program, plain, run, identifier, start_ns, end_ns))
    return executions


def _hlo(line: Line, executions: list[Execution]) -> Hlo:
    starts = np.array([execution.start_ns for execution in executions], np.int64)
    ends = np.array([execution.end_ns for execution in executions], np.int64)
    at = np.searchsorted(starts, line.start_ns, side="right") - 1
    rows = np.flatnonzero(at >= 0)
    rows = rows[line.start_ns[rows] <= ends[at[rows]]]
    owner = at[rows]
    return Hlo(
        rows,
        np.array([execution.program for execution in executions], np.int64)[owner],
        np.array([execution.run for execution in executions], np.int64)[owner],
        line.names.take(rows),
    )


def _collect(line: Line, hlo: Hlo, texts: dict[int, dict[str, HloLine]]) -> None:
    """Note each instruction's text, in order of first execution."""
    order: Int64 = np.lexsort((hlo.row, line.start_ns[hlo.row]))
    for at in first_of_pairs(hlo.program[order], np.zeros(len(order), np.int64)).tolist():
        texts.setdefault(int(hlo.program[order[at]]), {})
    rows = hlo.row[order]
    described = line.stats.holds("long_name")[rows]
    order, rows = order[described], rows[described]
    for at in first_of_pairs(hlo.program[order], hlo.instruction.code[order]).tolist():
        known, name = texts[int(hlo.program[order[at]])], hlo.instruction.at(order[at])
        if name not in known:
            known[name] = _text(line.stats.said(rows[at]))


def _text(said: Said) -> HloLine:
    return HloLine(
        str(said["long_name"]),
        str(said.get("tf_op", "")).rpartition(":")[0],
        str(said.get("source", "")),
        flops=number(said, "model_flops" if "model_flops" in said else "flops"),
        bytes_accessed=number(said, "bytes_accessed"),
        stack=str(said.get("source_stack", "")),
    )
