"""PyTorch's flight recorder, which knows of a collective what gloo does not write into a trace.

In a trace of gloo an operator `c10d::...` issues a collective, and later an annotation `gloo:...` on another thread
executes it, without a word on its process group. The recorder notes group and sequence number of each collective
while it is issued, which is inside its operator.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np

from traceflow.quality import ORDER
from traceflow.result import Json, Note, Tally
from traceflow.trace._gloo import Call, Found, Operators, Record, find_collectives, find_transfers
from traceflow.trace._gloo_transfers import with_posts
from traceflow.trace._json_text import with_whole_characters
from traceflow.trace._kineto_arguments import Arguments, elements, read_arguments
from traceflow.trace.model import ABSENT, Communications, Flows, Group, Int64, Kind, Trace
from traceflow.trace.recorder_dump import dump_beside

Given: TypeAlias = Mapping[tuple[str, int], Arguments]
"""What operators were given, by name and start in ns since 1970."""

_NOTHING: Given = MappingProxyType({})
_UNKNOWN = Arguments(None, ())
_LARGEST = 2**61


def with_recording_beside(trace: Trace, file: Path) -> Trace:
    """A trace of gloo, completed by the recorder's dump that lies beside its file or in the folder above.

    Without one, or where nothing is missing, the trace is returned as it is.
    """
    dump = dump_beside(file)
    rank = trace.ranks[0].rank
    if dump is None or not _executions(trace, rank, _NOTHING):
        return trace
    return with_flight_recorder(trace, dump.read_bytes(), rank, read_arguments(file))


def with_flight_recorder(
    trace: Trace,
    dump: bytes | Mapping[str, Json],
    rank: int,
    arguments: Given = _NOTHING,
) -> Trace:
    """Fill in groups, sequence numbers, payloads and splits of what gloo executed on a rank, and who issued it.

    Collectives are found by the order in which a group executes them. Each gets a flow from the operator that issued
    it. Transfers from one process to another get their ends, their tag as key, and the start of the operator that
    posted them: their own event starts a little later, when the other end may already have been served. They no longer
    cover what their thread did before it waited for them.

    Args:
        trace: As the Kineto reader gives it.
        dump: The recorder's dump as JSON, version 2.10, with the process groups of this rank as `pg_config`.
        rank: Whose dump it is.
        arguments: What operators were given, by name and start in ns since 1970; it tells sizes, splits, roots, and
            the ends of transfers.

    Returns:
        The trace with the rows of `communications`, `groups` and `flows` completed. What cannot be told stays as it
        was, and a note counts it.
    """
    executions = _executions(trace, rank, arguments)
    groups, records = _read(dump)
    operators = Operators(_calls(trace, _events(trace, rank, Kind.HOST, "c10d::"), arguments))
    found = [
        *find_collectives(executions, operators, records, groups, trace.epoch_ns or 0),
        *find_transfers(executions, operators, records, groups, rank),
    ]
    completed = with_posts(_with_flows(_with_rows(trace, found, groups), found), found, rank)
    return replace(completed, tally=completed.tally + _missing(len(executions) - len(found), len(executions), rank))


def _executions(trace: Trace, rank: int, arguments: Given) -> list[Call]:
    """What gloo executed on a rank for a group that the trace does not tell, in order of start."""
    known = trace.communications.event[trace.communications.group >= 0]
    return _calls(trace, np.setdiff1d(_events(trace, rank, Kind.COMMUNICATION, "gloo:"), known), arguments)


def _events(trace: Trace, rank: int, kind: Kind, prefix: str) -> Int64:
    """Rows of the events of a rank whose names begin so."""
    events, codes = trace.events, [code for code, text in enumerate(trace.strings) if text.startswith(prefix)]
    of_rank = trace.lanes.rank[events.lane] == rank
    return np.flatnonzero(np.isin(events.name, codes) & (events.kind == kind) & of_rank)


def _calls(trace: Trace, rows: Int64, arguments: Given) -> list[Call]:
    """Events with their arguments, in order of start."""
    events, epoch_ns = trace.events, trace.epoch_ns or 0
    calls = []
    for row in rows[np.argsort(events.start_ns[rows], kind="stable")].tolist():
        name, start_ns, end_ns = trace.strings[events.name[row]], int(events.start_ns[row]), int(events.end_ns[row])
        thread = int(trace.lanes.name[events.lane[row]].rpartition("/")[2])
        given = arguments.get((name, epoch_ns + start_ns), _UNKNOWN)
        calls.append(Call(row, name, thread, epoch_ns + start_ns, epoch_ns + end_ns, given.elements, given.values))
    return calls


def _read(dump: bytes | Mapping[str, Json]) -> tuple[list[Group], list[Record]]:
    """The groups in the order in which the process made them, and what it issued with gloo; nothing if damaged."""
    try:
        held: Any = json.loads(with_whole_characters(dump)) if isinstance(dump, bytes) else dump
        entries = [entry for entry in held["entries"] if entry["profiling_name"].startswith("gloo:")]
        configured = held.get("pg_config", {})
        used = [entry["process_group"][0] for entry in sorted(entries, key=lambda entry: entry["pg_id"])]
        names = list(dict.fromkeys(str(name) for name in (*used, *configured) if name))
        records = [_record(entry, names.index(str(entry["process_group"][0]))) for entry in entries]
        return [_group(name, configured.get(name, {})) for name in names], records
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError, IndexError):
        return [], []


def _record(entry: Mapping[str, Any], group: int) -> Record:
    return Record(
        group=group,
        name=entry["profiling_name"],
        sequence=_whole(entry["collective_seq_id"]),
        position=_whole(entry["op_id"]),
        created_ns=_whole(entry["time_created_ns"]),
        elements=elements(entry["input_sizes"]),
        payload_bytes=_payload_bytes(entry["input_sizes"], entry["input_dtypes"]),
    )


def _whole(value: object) -> int:
    if type(value) is not int or abs(value) > _LARGEST:
        raise TypeError("a number of the recorder is none")
    return value


def _payload_bytes(shapes: Sequence[Any], dtypes: Sequence[str]) -> int:
    from traceflow.trace._kineto_communications import _ITEM_BYTES

    sizes = [(elements([shape]), _ITEM_BYTES.get(dtype)) for shape, dtype in zip(shapes, dtypes, strict=True)]
    known = [count * item_bytes for count, item_bytes in sizes if count is not None and item_bytes is not None]
    return sum(known) if len(known) == len(sizes) else ABSENT


def _group(name: str, configured: Mapping[str, Any]) -> Group:
    members = tuple(map(int, re.findall(r"\d{1,9}", str(configured.get("ranks", "")))))
    return Group(name, members, len(members) or ABSENT, str(configured.get("desc", "")))


def _with_rows(trace: Trace, found: Sequence[Found], groups: Sequence[Group]) -> Trace:
    """The trace with what was found in `communications`, and the groups that this needs."""
    needed = {groups[one.group] for one in found}
    every = sorted({*trace.groups, *needed}, key=lambda group: (group.name, group.members, group.size))
    moved = [every.index(group) for group in trace.groups]
    strings = dict.fromkeys((*trace.strings, *(s for f in found for s in (f.in_splits, f.out_splits) if s)))
    code = {text: place for place, text in enumerate(strings)}
    c = trace.communications
    columns = {field.name: getattr(c, field.name).copy() for field in fields(c)}
    columns["group"] = np.array([*moved, ABSENT], np.int32)[c.group]
    row = {event: place for place, event in enumerate(c.event.tolist())}
    for one in found:
        at = row[one.event]
        columns["group"][at] = every.index(groups[one.group])
        columns["in_splits"][at] = code[one.in_splits] if one.in_splits else ABSENT
        columns["out_splits"][at] = code[one.out_splits] if one.out_splits else ABSENT
        for name in ("key", "sequence", "payload_bytes", "source", "destination"):
            columns[name][at] = getattr(one, name)
    return replace(trace, strings=tuple(strings), groups=tuple(every), communications=Communications(**columns))


def _with_flows(trace: Trace, found: Sequence[Found]) -> Trace:
    """The trace with a flow from each operator to what it issued."""
    pairs = [(one.operator, one.event) for one in found if one.operator is not None]
    both = np.concatenate(
        (np.column_stack((trace.flows.source, trace.flows.target)), np.array(pairs, np.int64).reshape(-1, 2))
    )
    source, target = np.unique(both, axis=0).T.astype(np.int32)
    return replace(trace, flows=Flows(source, target))


def _missing(missing: int, executed: int, rank: int) -> Tally:
    if not missing:
        return Tally()
    text = f"rank {rank}: the flight recorder does not tell the group of {missing} of {executed} calls of gloo"
    return Tally(notes=(Note("TF310", text, ("/result/collectives", *ORDER)),))
