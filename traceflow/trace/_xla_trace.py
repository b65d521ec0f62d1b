"""Put the planes of an XLA trace together into one canonical trace."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from traceflow.program.dump import executed_among
from traceflow.program.module import HloModule, Programs, kind_of, kind_of_instruction, operation_of_name
from traceflow.result import Note, Tally
from traceflow.trace import _xla_gpu, _xla_tpu
from traceflow.trace._xla_columns import Texts, first_of_pairs, numbered_pairs
from traceflow.trace._xla_communication import Executed, communications
from traceflow.trace._xla_host import host_chunks
from traceflow.trace._xla_lines import DERIVED_LINE, Chunk, Count, LaneKey, Mark, Plane
from traceflow.trace._xla_relations import flows, launches
from traceflow.trace._xla_threads import rejoined
from traceflow.trace.canonical import canonical
from traceflow.trace.model import (
    ABSENT,
    Events,
    HloEvents,
    Int8,
    Int64,
    Kind,
    Lanes,
    Marks,
    Rank,
    Syncs,
    Trace,
    empty,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class About:
    """What the file says of the whole trace."""

    rank: Rank
    epoch_ns: int | None
    format: str
    metadata: Mapping[str, str]
    notes: tuple[Note, ...] = ()


@dataclass(slots=True)
class _Content:
    """What the planes hold, before it is related."""

    chunks: list[Chunk] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    tpus: list[_xla_tpu.TpuPlane] = field(default_factory=list)
    gpus: list[list[Chunk]] = field(default_factory=list)

    def executed(self) -> dict[int, set[str]]:
        """Names of the instructions that were executed, by program."""
        names: dict[int, set[str]] = {}
        for hlo in (chunk.hlo for chunks in (self.chunks, *self.gpus) for chunk in chunks if chunk.hlo):
            for at in first_of_pairs(hlo.program, hlo.instruction.code).tolist():
                names.setdefault(int(hlo.program[at]), set()).add(hlo.instruction.at(at))
        return names


class _Instructions(dict[tuple[int, str], tuple[int, Kind]]):
    """Row and kind of each instruction by program and name, found when first asked for."""

    def __init__(self, programs: Programs) -> None:
        super().__init__()
        self._programs = programs
        self._rows: dict[int, dict[str, int]] = {}

    def __missing__(self, key: tuple[int, str]) -> tuple[int, Kind]:
        program, name = key
        module = self._programs.get(program)
        row = ABSENT if module is None else self._rows_of(module, program).get(name, ABSENT)
        by_name = kind_of(operation_of_name(name))
        self[key] = row, by_name if module is None or row == ABSENT else kind_of_instruction(module, row)
        return self[key]

    def _rows_of(self, module: HloModule, program: int) -> dict[str, int]:
        if program not in self._rows:
            self._rows[program] = {name: row for row, name in enumerate(module.instruction_name)}
        return self._rows[program]


def xla_trace(
    planes: Iterable[Plane],
    programs: Programs,
    about: About,
    count: Count,
    communication: tuple[str, ...] = (),
    beside: Programs = MappingProxyType({}),
) -> tuple[Trace, Programs]:
    """Interpret the planes of one process.

    Args:
        planes: Devices and host, in any order.
        programs: Modules that came with the trace.
        about: What the file says of the whole.
        count: What was read and left out so far; what is left out here is added.
        communication: Patterns for more kernels that communicate, as for `recognise`.
        beside: Programs found elsewhere, for what did not come with its own.

    Returns:
        The canonical trace; the programs, those from elsewhere that it executed, and those besides that only the
        operations' own texts describe.
    """
    content = _Content()
    for plane in planes:
        _read_plane(plane, content, count, communication)
    executed = {program: names for program, names in content.executed().items() if program not in programs}
    programs = {**_xla_tpu.text_programs(content.tpus), **executed_among(beside, executed), **programs}
    for chunks in content.gpus:
        content.chunks += _xla_gpu.with_runs(chunks, programs)
    return _assembled(content, programs, about, count), programs


def _read_plane(plane: Plane, content: _Content, count: Count, communication: tuple[str, ...]) -> None:
    if match := _xla_gpu.PLANE.match(plane.name):
        content.gpus.append(_xla_gpu.gpu_chunks(plane, int(match[1]), count, communication))
    elif match := _xla_tpu.PLANE.match(plane.name):
        content.tpus.append(_xla_tpu.tpu_plane(plane, int(match[1]), count))
        content.chunks += content.tpus[-1].chunks
    elif plane.name.startswith(("/device:", "#", "/host:__")):  # parts of a device, counters, call stacks
        count.drop(DERIVED_LINE, sum(len(line) for line in plane.lines))
    else:
        for line in plane.lines:
            chunks, marks = host_chunks(line, count)
            content.chunks += chunks
            content.marks += marks


def _assembled(content: _Content, programs: Programs, about: About, count: Count) -> Trace:
    chunks, rank = rejoined(content.chunks), about.rank.rank
    offsets = np.cumsum([0, *(len(chunk.names) for chunk in chunks)])[:-1]
    strings: dict[str, int] = {}
    keys = list(dict.fromkeys(chunk.lane for chunk in chunks))
    events = _events(chunks, keys, strings)
    hlo, instructions, kinds = _executed(chunks, offsets, programs)
    untold = events.kind[hlo.event] == ABSENT
    events.kind[hlo.event[untold]] = kinds[untold]
    talking, groups = communications(_talking(hlo, events, keys, instructions), programs, strings)
    on_tpus = ((plane.device, execution) for plane in content.tpus for execution in plane.executions)
    return canonical(
        Trace(
            events=events,
            lanes=_lanes(keys, rank),
            strings=tuple(strings),
            groups=groups,
            communications=talking,
            syncs=empty(Syncs),
            flows=flows(chunks, offsets),
            hlo=hlo,
            launches=launches(chunks, offsets, on_tpus, rank),
            marks=_marks(content.marks, rank),
            ranks=(about.rank,),
            epoch_ns=about.epoch_ns,
            format=about.format,
            tally=Tally(count.read, len(events), {}, dict(count.dropped), about.notes),
            metadata=about.metadata,
        )
    )


def _events(chunks: Sequence[Chunk], keys: Sequence[LaneKey], strings: dict[str, int]) -> Events:
    """All events, chunk by chunk; their names are added to the strings."""
    place = {key: at for at, key in enumerate(keys)}
    lane = np.repeat([place[chunk.lane] for chunk in chunks], [len(chunk.names) for chunk in chunks])
    names = _column([chunk.names.coded_in(strings) for chunk in chunks])
    return Events(
        _column([chunk.start_ns for chunk in chunks]),
        _column([chunk.end_ns for chunk in chunks]),
        lane.astype(np.int32),
        names.astype(np.int32),
        _column([chunk.kind for chunk in chunks]).astype(np.int8),
        _column([chunk.correlation for chunk in chunks]),
    )


def _column(parts: Sequence[NDArray[np.integer[Any]]]) -> Int64:
    return np.concatenate([np.empty(0, np.int64), *parts])


def _executed(chunks: Sequence[Chunk], offsets: Int64, programs: Programs) -> tuple[HloEvents, Texts, Int8]:
    """Executed instructions, their names and their kinds."""
    parts = [(offset, chunk.hlo) for offset, chunk in zip(offsets, chunks, strict=True) if chunk.hlo]
    event = _column([offset + hlo.row for offset, hlo in parts])
    program = _column([hlo.program for _, hlo in parts])
    run = _column([hlo.run for _, hlo in parts])
    places: dict[str, int] = {}
    names = Texts(_column([hlo.instruction.coded_in(places) for _, hlo in parts]), list(places))
    known = _Instructions(programs)
    pair, first = numbered_pairs(program, names.code)
    found = np.array([known[int(program[at]), names.at(at)] for at in first], np.int32).reshape(-1, 2)[pair]
    return HloEvents(event.astype(np.int32), program, found[:, 0], run), names, found[:, 1].astype(np.int8)


def _talking(hlo: HloEvents, events: Events, keys: Sequence[LaneKey], names: Texts) -> Executed:
    """The executed instructions that communicate."""
    device = _column([np.array([key.device for key in keys], np.int64)])[events.lane[hlo.event]]
    rows = np.flatnonzero(events.kind[hlo.event] == Kind.COMMUNICATION)
    everyone = {
        int(program): tuple(np.unique(device[hlo.program == program]).tolist())
        for program in np.unique(hlo.program[rows])
    }
    return Executed(
        hlo.event[rows],
        events.start_ns[hlo.event[rows]],
        device[rows],
        hlo.program[rows],
        hlo.run[rows],
        hlo.instruction[rows],
        names.take(rows).listed(),
        everyone,
    )


def _lanes(keys: Sequence[LaneKey], rank: int) -> Lanes:
    return Lanes(
        np.full(len(keys), rank, np.int32),
        np.array([key.device for key in keys], np.int32),
        np.array([key.kind for key in keys], np.int8),
        np.array([key.stream for key in keys], np.int64),
        tuple(key.name for key in keys),
    )


def _marks(marks: Sequence[Mark], rank: int) -> Marks:
    step, start_ns, end_ns = np.array(marks, np.int64).reshape(-1, 3).T
    return Marks(step, np.full(len(marks), rank, np.int32), start_ns, end_ns)
