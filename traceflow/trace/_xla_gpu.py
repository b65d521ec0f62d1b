"""Device planes of GPUs in an XLA trace: kernels and copies on streams."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from traceflow.program.module import HloModule, Programs
from traceflow.trace._xla_lines import DERIVED_LINE, Chunk, Count, Hlo, LaneKey, Line, Plane, programs_of
from traceflow.trace.communication_names import recognise
from traceflow.trace.model import ABSENT, Kind, LaneKind

PLANE = re.compile(r"/device:GPU:(\d{1,9})$")
_UNNUMBERED = np.iinfo(np.int64).min
_STREAM = re.compile(r"Stream #(\d{1,18})")
_COPIES = re.compile(r"(?i)mem(cpy|set)|__amd_rocclr_(copy|fill)Buffer")


def gpu_chunks(plane: Plane, device: int, count: Count, communication: tuple[str, ...] = ()) -> list[Chunk]:
    """Kernels and copies by stream. All other lines of the plane show the same work again."""
    chunks = []
    for line in plane.lines:
        stream = _STREAM.match(line.name)
        if stream:
            lane = LaneKey(device, LaneKind.STREAM, int(stream[1]), line.name)
            chunks.append(_stream_chunk(line, lane, communication))
        else:
            count.drop(DERIVED_LINE, len(line))
    return chunks


def _stream_chunk(line: Line, lane: LaneKey, communication: tuple[str, ...]) -> Chunk:
    chunk = Chunk.of(line, np.arange(len(line)), lane)
    executes = line.stats.has("hlo_op")
    rows = np.flatnonzero(executes)
    kind = line.names.each(lambda name: _kind(name, communication), np.int8)
    kind[(kind == ABSENT) & ~executes] = Kind.COMPUTE
    described = line.stats.take(rows)
    run = described.numbers_or("run_id", _UNNUMBERED)
    hlo = Hlo(rows, programs_of(described), run, described.texts("hlo_op"))
    return replace(chunk, kind=kind, correlation=line.stats.numbers_or("correlation_id", ABSENT), hlo=hlo)


def _kind(name: str, communication: tuple[str, ...]) -> int:
    """What the name of a kernel tells; ABSENT where its instruction has to."""
    if _COPIES.match(name):
        return Kind.COPY
    return Kind.COMMUNICATION if recognise(name, communication) else ABSENT


def with_runs(chunks: list[Chunk], programs: Programs) -> list[Chunk]:
    """Number the executions of each program on one device, over all its streams, where the trace has no numbers.

    They are told apart by order of launch: a new run begins where the schedule of the entry computation falls back,
    or, in a program of one operation, where a kernel of it is launched again.
    """
    tables = [(chunk, chunk.hlo) for chunk in chunks if chunk.hlo]
    if not tables:
        return chunks
    program = np.concatenate([hlo.program for _, hlo in tables])
    start_ns = np.concatenate([chunk.start_ns[hlo.row] for chunk, hlo in tables])
    correlation = np.concatenate([chunk.correlation[hlo.row] for chunk, hlo in tables])
    launches = [
        pair
        for chunk, hlo in tables
        for pair in zip(hlo.instruction.listed(), chunk.names.take(hlo.row).listed(), strict=True)
    ]
    run = np.concatenate([hlo.run for _, hlo in tables])
    unnumbered = run == _UNNUMBERED
    for key in np.unique(program[unnumbered]):
        own = np.flatnonzero(unnumbered & (program == key))
        launched = correlation[own] if (correlation[own] >= 0).all() else start_ns[own]
        own = own[np.lexsort((start_ns[own], launched))]
        run[own] = _runs([launches[i] for i in own], programs.get(int(key)))
    bounds = np.cumsum([len(hlo.row) for _, hlo in tables])[:-1]
    return [
        replace(chunk, hlo=replace(hlo, run=part))
        for (chunk, hlo), part in zip(tables, np.split(run, bounds), strict=True)
    ]


def _runs(launches: list[tuple[str, str]], module: HloModule | None) -> list[int]:
    """The run of each (instruction, kernel), in order of launch."""
    position = _positions([instruction for instruction, _ in launches], module)
    alone = len(position) == 1
    runs, run, last, seen = [], 0, -1, set[str]()
    for instruction, kernel in launches:
        at = position[instruction]
        if at is not None:
            if at < last or (alone and kernel in seen):
                run, seen = run + 1, set()
            last = at
            seen.add(kernel)
        runs.append(run)
    return runs


def _positions(instructions: list[str], module: HloModule | None) -> Mapping[str, int | None]:
    """Where instructions stand in the entry's schedule, None inside loops; without a schedule, as first launched."""
    first = {name: at for at, name in reversed(list(enumerate(instructions)))}
    if module is None or not (module.schedule >= 0).any():
        return first
    in_entry = np.flatnonzero((module.computation == module.entry) & (module.schedule >= 0))
    scheduled = {module.instruction_name[row]: int(module.schedule[row]) for row in in_entry}
    return {name: scheduled.get(name) for name in first}
