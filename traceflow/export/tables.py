"""Everything that is known of a run as Arrow tables, column by column as `traceflow.export.schema` describes them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from traceflow.analyzers.attribution.purposes import UNKNOWN
from traceflow.analyzers.window import NO_STEP, step_of_events
from traceflow.export.schema import TABLES, VERSION, Column
from traceflow.export.subject import Answers
from traceflow.export.workload_tables import WORKLOAD, attributes
from traceflow.graph import EdgeKind, SliceKind
from traceflow.result import Result
from traceflow.trace.model import ABSENT, Int64, Kind, LaneKind, MemorySource, MemoryUse, Rows, Text

if TYPE_CHECKING:
    import pyarrow as pa

    from traceflow.analyzers.communication_rows import Collective, Message, Participant


@dataclass(frozen=True, slots=True)
class Coded:
    """A column of texts that repeat: numbers of texts, ABSENT where there is none."""

    codes: Rows
    texts: Sequence[str]


Values: TypeAlias = Rows | Text | Coded | Sequence[Any]
"""A column: integers with ABSENT for what is not known, or anything else with None for that."""


def table(of: Answers, name: str) -> pa.Table:
    """One table of a run; without rows where the run does not tell.

    Args:
        of: What the run answers.
        name: One of `traceflow.export.schema.TABLES`.

    Raises:
        TraceflowError: TF111 without such a step.
    """
    import pyarrow as pa

    columns = TABLES[name].columns
    values = _BUILDERS[name](of) if _told(of, name) else {column.name: () for column in columns}
    fields = [
        pa.field(c.name, pa.type_for_alias(c.type), c.nullable, {"unit": c.unit, "provenance": c.provenance})
        for c in columns
    ]
    about = {
        "traceflow.table": name,
        "traceflow.version": str(VERSION),
        "traceflow.inputs": "\n".join(of.run.inputs).encode("utf-8", "backslashreplace"),
        "traceflow.epoch_ns": "" if of.run.trace.epoch_ns is None else str(of.run.trace.epoch_ns),
    }
    arrays = [_arrow(column, values[column.name]) for column in columns]
    schema = pa.schema([f.with_type(a.type) for f, a in zip(fields, arrays, strict=True)], about)
    return pa.Table.from_arrays(arrays, schema=schema)


def _arrow(column: Column, values: Values) -> pa.Array:
    import pyarrow as pa

    kind = pa.type_for_alias(column.type)
    if isinstance(values, Coded):
        codes = pa.array(values.codes, pa.int32(), mask=values.codes == ABSENT)
        return pa.DictionaryArray.from_arrays(codes, pa.array(map(_valid, values.texts), kind))
    if column.type == "string":
        return pa.array([None if text is None else _valid(text) for text in values], kind)
    if isinstance(values, np.ndarray):
        return pa.array(values, kind, mask=values == ABSENT if column.nullable else None)
    return pa.array(values, kind)


def _valid(text: str) -> str:
    """A text as UTF-8 can hold it."""
    return text.encode("utf-8", "backslashreplace").decode()


_OF_EVENTS = frozenset({"events", "lanes", "steps"})
_OF_WORK = frozenset(
    {
        *("segments", "communication", "collectives", "participants", "messages", "slices", "edges", "operations"),
        *("moe_layers", "moe_experts", "moe_stages"),
    }
)


def _told(of: Answers, name: str) -> bool:
    """Whether a run tells what a table is about; of programs alone, nothing of work is known."""
    if name in _OF_WORK:
        return of.works
    return of.traced or name not in _OF_EVENTS


def _ranks(of: Answers) -> Mapping[str, Values]:
    ranks = of.run.trace.ranks
    return {name: [getattr(rank, name) for rank in ranks] for name in ("rank", "host", "world_size", "source", "clock")}


def _lanes(of: Answers) -> Mapping[str, Values]:
    lanes = of.run.trace.lanes
    return {
        "lane": np.arange(len(lanes)),
        "rank": lanes.rank,
        "device": lanes.device,
        "kind": Coded(lanes.kind, _labels(LaneKind)),
        "stream": lanes.stream,
        "name": lanes.name,
    }


def _labels(kinds: Iterable[LaneKind | Kind | SliceKind | MemorySource | MemoryUse]) -> list[str]:
    return [kind.name.lower() for kind in kinds]


def _events(of: Answers) -> Mapping[str, Values]:
    trace, found = of.run.trace, of.run.dependencies
    e, lanes, hlo = trace.events, trace.lanes, trace.hlo
    step = step_of_events(trace, found)
    names, name = np.unique(e.name, return_inverse=True)
    program, instruction, execution = np.full((3, len(e)), ABSENT, np.int64)
    program[hlo.event], instruction[hlo.event], execution[hlo.event] = hlo.program, hlo.instruction, hlo.run
    return {
        "event": np.arange(len(e)),
        "rank": lanes.rank[e.lane],
        "device": lanes.device[e.lane],
        "lane": e.lane,
        "name": Coded(name, [trace.strings[code] for code in names.tolist()]),
        "kind": Coded(e.kind, _labels(Kind)),
        "start_ns": e.start_ns,
        "end_ns": e.end_ns,
        "duration_ns": e.end_ns - e.start_ns,
        "step": np.where(step == NO_STEP, ABSENT, step),
        "correlation": np.where(e.correlation == 0, ABSENT, e.correlation),
        "launched_by": found.launch_call,
        "program": program,
        "instruction": instruction,
        "run": execution,
    }


def _steps(of: Answers) -> Mapping[str, Values]:
    return attributes("steps", of.summary.steps)


def _segments(of: Answers) -> Mapping[str, Values]:
    segments = of.critical_path.segments
    same = ("start_ns", "duration_ns", "kind", "rank", "device", "lane", "name", "operation", "scope", "source", "edge")
    return {
        "segment": np.arange(len(segments)),
        **{name: getattr(segments, name) for name in same},
        "waiting_for_rank": [None if who is None else who[0] for who in segments.waiting_for],
        "waiting_for_device": [None if who is None else who[1] for who in segments.waiting_for],
        "reason": segments.reason,
        "clipped": segments.clipped,
    }


def _communication(of: Answers) -> Mapping[str, Values]:
    rows = of.communication.participants
    figures = [column.name for column in TABLES["communication"].columns if column.unit]
    columns = {name: [getattr(row, name) for row in rows] for name in figures}
    return {**_who([row.participant for row in rows]), **columns}


def _who(participants: Sequence[Participant], prefix: str = "") -> dict[str, Values]:
    return {
        f"{prefix}rank": [rank for rank, _ in participants],
        f"{prefix}device": [device for _, device in participants],
    }


def _collectives(of: Answers) -> Mapping[str, Values]:
    rows = of.communication.collectives
    same = ("id", "op", "name", "payload_bytes", "start_skew_ns", "end_skew_ns")
    return {
        **{name: [getattr(row, name) for row in rows] for name in same},
        **_who([row.last for row in rows], "last_"),
        **_purposes(rows),
        "group_name": [row.group for row in rows],
        "participants": [len(row.calls) for row in rows],
    }


def _purposes(rows: Sequence[Collective | Message]) -> dict[str, Values]:
    """What calls are for, None where nothing tells."""
    told = [
        (None, None, None) if (of := row.attributed) is None else (of.dimension, of.purpose, of.phase) for row in rows
    ]
    known = [[None if text == UNKNOWN else text for text in row] for row in told]
    return {name: [row[i] for row in known] for i, name in enumerate(("dimension", "purpose", "phase"))}


def _participants(of: Answers) -> Mapping[str, Values]:
    rows = [(one.id, call) for one in of.communication.collectives for call in one.calls]
    figures = ("payload_bytes", "arrival_ns", "wait_ns", "transfer_ns", "end_ns", "exposed_ns")
    return {
        "id": [number for number, _ in rows],
        **_who([call.participant for _, call in rows]),
        **{name: [getattr(call, name) for _, call in rows] for name in figures},
    }


def _messages(of: Answers) -> Mapping[str, Values]:
    rows = of.communication.messages
    same = ("id", "payload_bytes", "posted_ns", "received_ns", "wait_ns")
    return {
        **{name: [getattr(row, name) for row in rows] for name in same},
        **_purposes(rows),
        **_who([row.source for row in rows], "source_"),
        **_who([row.destination for row in rows], "destination_"),
    }


def _slices(of: Answers) -> Mapping[str, Values]:
    slices = of.run.dependencies.graph.slices
    return {
        "slice": np.arange(len(slices)),
        "event": slices.event,
        "start_ns": slices.start_ns,
        "end_ns": slices.end_ns,
        "kind": Coded(slices.kind, _labels(SliceKind)),
    }


def _edges(of: Answers) -> Mapping[str, Values]:
    """Two slices each; the edge from the start of a slice to its own end says nothing."""
    graph = of.run.dependencies.graph
    rows = np.flatnonzero(graph.kind != EdgeKind.SELF)
    source, target = graph.source[rows], graph.targets()[rows]
    binds = graph.binding[target] == rows
    return {
        "source_slice": source >> 1,
        "source_end": source % 2 == 1,
        "target_slice": target >> 1,
        "target_end": target % 2 == 1,
        "kind": Coded(graph.kind[rows], [kind.label for kind in EdgeKind]),
        "binds": binds,
    }


def _programs(of: Answers) -> Mapping[str, Values]:
    rows = of.memory.programs
    same = ("program", "executed", *(column.name for column in TABLES["programs"].columns if column.unit))
    return {
        **{name: [getattr(row, name) for row in rows] for name in same},
        "name": [row.module for row in rows],
        "instruction_count": [len(of.run.programs[row.program]) for row in rows],
    }


def _instructions(of: Answers) -> Mapping[str, Values]:
    every = [(key, module, row) for key, module in of.run.programs.items() for row in range(len(module))]
    return {
        "program": [key for key, _, _ in every],
        "instruction": [row for _, _, row in every],
        "name": [module.instruction_name[row] for _, module, row in every],
        "opcode": [module.opcode[row] for _, module, row in every],
        "computation": [module.computation_name[module.computation[row]] for _, module, row in every],
        "shape": [module.shape[row] for _, module, row in every],
        "output_bytes": _stacked([module.output_bytes for module in of.run.programs.values()]),
        "scope": [module.operation_name[row] or None for _, module, row in every],
        "source": [module.source[row] or None for _, module, row in every],
        "sharding": [module.sharding.get(row) for _, module, row in every],
    }


def _stacked(columns: Sequence[Int64]) -> Int64:
    return np.concatenate(columns) if columns else np.empty(0, np.int64)


def _buffers(of: Answers) -> Mapping[str, Values]:
    rows = [(one.program, buffer) for one in of.memory.programs for buffer in one.live_at_peak]
    same = [column.name for column in TABLES["buffers"].columns[1:]]
    columns = {name: [getattr(buffer, name) for _, buffer in rows] for name in same}
    return {"program": [key for key, _ in rows], **columns, "source": [buffer.source or None for _, buffer in rows]}


def _memory_events(of: Answers) -> Mapping[str, Values]:
    memory = of.run.trace.memory
    same = ("time_ns", "rank", "device", "change_bytes", "allocated_bytes", "reserved_bytes")
    return {
        **{name: getattr(memory, name) for name in same},
        "source": Coded(memory.source, _labels(MemorySource)),
        "use": Coded(memory.use, _labels(MemoryUse)),
    }


def _findings(of: Answers) -> Mapping[str, Values]:
    results: list[Result] = [of.memory]
    if of.works:
        results = [of.summary, of.critical_path, of.communication, *results]
    return attributes("findings", [finding for result in results for finding in result.findings])


_BUILDERS: Mapping[str, Callable[[Answers], Mapping[str, Values]]] = {
    "ranks": _ranks,
    "lanes": _lanes,
    "events": _events,
    "steps": _steps,
    "segments": _segments,
    "communication": _communication,
    "collectives": _collectives,
    "participants": _participants,
    "messages": _messages,
    "slices": _slices,
    "edges": _edges,
    "programs": _programs,
    "instructions": _instructions,
    "buffers": _buffers,
    "memory_events": _memory_events,
    **WORKLOAD,
    "findings": _findings,
}
