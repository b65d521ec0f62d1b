"""What the rows of a Kineto file mean: lanes, kinds of events, synchronisation, data flows, steps."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from operator import eq

import numpy as np

from traceflow.result import Json, Note, Tally
from traceflow.trace import _kineto_words as k
from traceflow.trace._kineto_communications import Described, describe
from traceflow.trace._kineto_rows import Rows
from traceflow.trace._nesting import innermost
from traceflow.trace.canonical import canonical
from traceflow.trace.communication_names import recognise
from traceflow.trace.host_waits import waits_on_host
from traceflow.trace.model import (
    ABSENT,
    Communications,
    Copies,
    Events,
    Flows,
    HloEvents,
    Int8,
    Int32,
    Int64,
    Kind,
    LaneKind,
    Lanes,
    Launches,
    Marks,
    MemoryEvents,
    MemorySource,
    MemoryUse,
    Operands,
    Rank,
    Syncs,
    Trace,
    empty,
)

WAITS = re.compile(
    r"(?:cuda|hip)(?:Device|Stream|Event)Synchronize"
    r"|(?:cu|hip)(?:Ctx|Stream|Event)Synchronize"
    r"|(?:cuda|cu|hip)Memcpy(?!.*Async)"
    r"|ur(?:QueueFinish|EventWait)"
    r"|synchronize"
)
"""How the names of blocking calls start: they return when the device has done something.

A copy blocks unless its name says that it does not. The last two are those of XPU and MTIA.
"""

_POLLS = re.compile(r"(?:cuda|cu|hip)(?:Event|Stream)Query")
_STEP = re.compile(r"ProfilerStep#(\d+)")
_INTEGER = re.compile(r"-?\d{1,30}")
_LARGEST_DEVICE, _LARGEST_STREAM = np.iinfo(np.int32).max, np.iinfo(np.int64).max
_LATER_THAN_2001_NS = 10**18  # since 1970; what counts from a base of its own is smaller
_SYNC_KINDS = ("Stream Wait Event", "Event Sync", "Stream Sync", "Context Sync")  # in the order of `SyncKind`

# Why a span of time is no event; everything from 0 on is a `Kind`.
(_CUT_MARK, _STEP_MARK, _POLL, _QUEUE_RECORD, _NOWHERE, _UNKNOWN) = range(-6, 0)

_DROPPED = {
    _CUT_MARK: "step annotation, cut by the end of the recording",
    _STEP_MARK: "step annotation, kept as a mark",
    _POLL: "polling",
    _QUEUE_RECORD: "event record or wait of a device queue",
    _NOWHERE: "neither thread nor stream",
}
_PASSED_OVER = {
    k.LAUNCH_FLOW: "launch flow, redundant with correlation",
    k.DEVICE_ANNOTATION: "device annotation",
    k.PROFILER: "profiler span",
    k.OVERHEAD: "profiler overhead",
    k.INSTANT: "instant event",
    k.COUNTER: "counter",
    k.METADATA: "metadata",
    k.OTHER_PHASE: "phase not understood",
    k.EMPTY: "empty record",
    k.DAMAGED: "damaged event",
    k.ALLOCATION: "allocation or release, kept as such",
}


def trace_of(rows: Rows, rank: Rank, communication: tuple[str, ...] = ()) -> Trace:
    """The canonical trace of one file; its tally counts every event that was read.

    Args:
        rows: The file.
        rank: Whose it is.
        communication: Patterns for more kernels that communicate, as for `recognise`.
    """
    lane, flow_lane, lanes = _lanes(rows, rank.rank)
    kind = _kinds(rows, lane, communication)
    kept, marked = np.flatnonzero(kind >= 0), np.flatnonzero(kind == _STEP_MARK)
    spans = rows.spans
    starts = np.concatenate((spans.start_ns[kept], spans.start_ns[marked]))
    first_ns = int(starts.min()) if len(starts) else 0
    talks = np.flatnonzero(kind[kept] == Kind.COMMUNICATION)
    told = describe(rows, kept[talks], lane, rank.rank, communication)
    spelled = _spelled(rows)
    strings, name = _strings(rows, kept, told, spelled)
    on_device = (spans.category[kept] >= k.RUNTIME) & (spans.correlation[kept] > 0)
    trace = Trace(
        events=Events(
            spans.start_ns[kept] - first_ns,
            spans.end_ns[kept] - first_ns,
            lane[kept].astype(np.int32),
            name,
            kind[kept],
            np.where(on_device, spans.correlation[kept], ABSENT),
        ),
        lanes=lanes,
        strings=strings,
        groups=told.groups,
        communications=_communications(talks, told, strings, rank.rank),
        syncs=_syncs(rows, rank.rank),
        flows=empty(Flows),
        hlo=empty(HloEvents),
        launches=empty(Launches),
        marks=_marks(rows, marked, rank.rank, first_ns),
        ranks=(rank,),
        epoch_ns=_epoch_ns(rows.members, first_ns),
        format="kineto",
        tally=_tally(rows, kind),
        metadata=_metadata(rows.members),
        memory=_memory(rows, rank.rank, first_ns),
        operands=_operands(rows, kept, strings, spelled),
        copies=_copies(rows, kept),
    )
    return _with_flows(canonical(trace), rows, flow_lane, lanes, first_ns)


def _lanes(rows: Rows, rank: int) -> tuple[Int64, Int64, Lanes]:
    """The lane of each span and of each end of a flow, -1 where its numbers are words; and the lanes."""
    spans, flows = rows.spans, rows.flows
    owner, owners = _numbered(np.concatenate((spans.owner, flows.owner)))
    track, tracks = _numbered(np.concatenate((spans.track, flows.track)))
    category = np.concatenate((spans.category, np.full(len(flows.owner), k.OPERATOR, np.int8)))
    on_device = (category >= k.KERNEL) & (category <= k.QUEUE)
    number, distinct = _numbered((owner * len(tracks) + track) * 2 + on_device)
    pairs = [
        (rows.texts[owners[key // 2 // len(tracks)]], rows.texts[tracks[key // 2 % len(tracks)]]) for key in distinct
    ]
    keys = [_lane_key(*pair, bool(key % 2)) for pair, key in zip(pairs, distinct, strict=True)]
    known = [key for key in keys if key]
    place: dict[object, int] = {key: i for i, key in enumerate(known)}
    lane = np.array([place.get(key, -1) for key in keys], np.int64)[number]
    return lane[: len(spans.owner)], lane[len(spans.owner) :], _lane_table(known, rank)


def _lane_key(owner: str, track: str, on_device: bool) -> tuple[bool, int, int] | None:  # noqa: FBT001
    """Process and thread, or device and stream; None where one is a word, as with the profiler's own lanes."""
    if not _INTEGER.fullmatch(owner) or not _INTEGER.fullmatch(track):
        return None
    key = on_device, int(owner), int(track)
    fits = abs(key[1]) <= _LARGEST_DEVICE and abs(key[2]) <= _LARGEST_STREAM
    return key if fits or not on_device else None


def _numbered(values: Int64 | Int32) -> tuple[Int64, Int64]:
    """Count distinct integers from 0 on; and what they are, ascending."""
    low = int(values.min(initial=0))
    extent = int(values.max(initial=0)) - low + 1
    if extent > 4 * len(values) + 64:
        distinct, inverse = np.unique(values, return_inverse=True)
        return inverse.reshape(-1), distinct.astype(np.int64)
    seen = np.zeros(extent, bool)
    seen[values - low] = True
    number: Int64 = (np.cumsum(seen) - 1)[values - low]
    return number, np.flatnonzero(seen) + low


def _lane_table(keys: list[tuple[bool, int, int]], rank: int) -> Lanes:
    """Lanes from (on a device, process or device, thread or stream). A thread of several processes is told by both."""
    processes = Counter(track for on_device, _, track in keys if not on_device)
    return Lanes(
        rank=np.full(len(keys), rank, np.int32),
        device=np.array([owner if on_device else ABSENT for on_device, owner, _ in keys], np.int32),
        kind=np.array([LaneKind.STREAM if on_device else LaneKind.THREAD for on_device, _, _ in keys], np.int8),
        stream=np.array([track if on_device else ABSENT for on_device, _, track in keys], np.int64),
        name=tuple(
            f"{owner}/{track}" if not on_device and processes[track] > 1 else str(track)
            for on_device, owner, track in keys
        ),
    )


def _kinds(rows: Rows, lane: Int64, communication: tuple[str, ...]) -> Int8:
    """Per span its `Kind`, or why it is none."""
    spans, collectives = rows.spans, rows.collectives
    kind = np.full(len(lane), Kind.HOST, np.int8)
    kind[spans.category == k.MEMORY] = Kind.COPY
    kind[spans.category == k.UNKNOWN] = _UNKNOWN
    meanings: dict[int, Callable[[str], int]] = {**_MEANINGS, k.KERNEL: partial(_kind_of_kernel, communication)}
    for category, meaning in meanings.items():
        of = np.flatnonzero(spans.category == category)
        kind[of] = _by_name(rows.texts, spans.name[of], meaning)
    named = collectives.row[[bool(rows.texts[code]) for code in collectives.operation]]
    kind[named[spans.category[named] == k.KERNEL]] = Kind.COMMUNICATION
    kind[rows.unfinished[kind[rows.unfinished] == _STEP_MARK]] = _CUT_MARK
    kind[lane < 0] = np.where(kind[lane < 0] == _UNKNOWN, _UNKNOWN, _NOWHERE)
    return _without_idle_polls(kind, lane)


def _by_name(texts: tuple[str, ...], name: Int32, meaning: Callable[[str], int]) -> Int8:
    number, distinct = _numbered(name)
    return np.array([meaning(texts[code]) for code in distinct], np.int8)[number] if len(name) else np.empty(0, np.int8)


def _kind_of_operator(name: str) -> int:
    return _STEP_MARK if _STEP.match(name) else Kind.HOST


def _kind_of_python(name: str) -> int:
    return Kind.WAIT if waits_on_host(name) else Kind.HOST


def _kind_of_annotation(name: str) -> int:
    return Kind.COMMUNICATION if name.startswith("gloo:") else _kind_of_operator(name)


def _kind_of_call(name: str) -> int:
    return Kind.WAIT if WAITS.match(name) else _POLL if _POLLS.match(name) else Kind.CALL


def _kind_of_kernel(communication: tuple[str, ...], name: str) -> int:
    return Kind.COMMUNICATION if recognise(name, communication) else Kind.COMPUTE


def _kind_in_queue(name: str) -> int:
    return Kind.COPY if name.startswith("dma_") else _QUEUE_RECORD if name.startswith("event_") else Kind.COMPUTE


_MEANINGS: Mapping[int, Callable[[str], int]] = {
    k.OPERATOR: _kind_of_operator,
    k.ANNOTATION: _kind_of_annotation,
    k.PYTHON: _kind_of_python,
    k.RUNTIME: _kind_of_call,
    k.QUEUE: _kind_in_queue,
}


def _without_idle_polls(kind: Int8, lane: Int64) -> Int8:
    """Queries are calls like others, except on a thread that does nothing else: that one only watches."""
    polls = np.flatnonzero(kind == _POLL)
    lanes = int(lane.max(initial=-1)) + 1
    works = np.bincount(lane[kind >= 0], minlength=lanes) > 0
    kind[polls[works[lane[polls]]]] = Kind.CALL
    return kind


def _epoch_ns(members: Mapping[str, Json], first_ns: int) -> int | None:
    """Absolute time of the first event. Times since 1970 need no base, whatever the header says."""
    base = members.get("baseTimeNanoseconds")
    if first_ns >= _LATER_THAN_2001_NS:
        return first_ns
    return base + first_ns if isinstance(base, int) and base > 0 else None


def _strings(rows: Rows, kept: Int64, told: Described, spelled: Mapping[int, str]) -> tuple[tuple[str, ...], Int32]:
    """All strings of the trace in their order, and the code of each event's name."""
    number, distinct = _numbered(rows.spans.name[kept])
    names = [rows.texts[code] for code in distinct]
    others = (text for text in (*told.operation, *told.in_splits, *told.out_splits) if text is not None)
    strings = tuple(sorted({*names, *others, *spelled.values()}))
    return strings, _codes(strings, names)[number] if len(kept) else np.empty(0, np.int32)


def _spelled(rows: Rows) -> dict[int, str]:
    """The texts of arguments by their codes, spelled alike whatever white space a file has."""
    found = rows.arguments
    codes = np.unique(np.concatenate((found.shapes, found.types, found.values))).tolist()
    return {code: _compact(rows.texts[code]) for code in codes if code >= 0}


def _compact(text: str) -> str:
    try:
        return json.dumps(json.loads(text))
    except (ValueError, RecursionError):
        return text


def _copies(rows: Rows, kept: Int64) -> Copies:
    """The sizes of copies that were kept."""
    place = np.full(len(rows.spans.name), ABSENT, np.int32)
    place[kept] = np.arange(len(kept))
    event = place[rows.copies.row]
    return Copies(event[event >= 0], rows.copies.size_bytes[event >= 0])


def _operands(rows: Rows, kept: Int64, strings: tuple[str, ...], spelled: Mapping[int, str]) -> Operands:
    """The arguments of operators that were kept."""
    found, place = rows.arguments, np.full(len(rows.spans.name), ABSENT, np.int32)
    place[kept] = np.arange(len(kept))
    told = np.flatnonzero(place[found.row] >= 0)
    code = {text: number for number, text in enumerate(strings)}
    number = np.full(len(rows.texts), ABSENT, np.int32)  # the last is that of no text, whose code is -1
    number[list(spelled)] = [code[text] for text in spelled.values()]
    return Operands(place[found.row[told]], *(number[c[told]] for c in (found.shapes, found.types, found.values)))


def _codes(strings: tuple[str, ...], texts: list[str] | list[str | None]) -> Int32:
    place: dict[str | None, int] = {text: code for code, text in enumerate(strings)}
    return np.array([place.get(text, ABSENT) for text in texts], np.int32)


def _communications(events: Int64, told: Described, strings: tuple[str, ...], rank: int) -> Communications:
    return Communications(
        event=events.astype(np.int32),
        operation=_codes(strings, told.operation),
        group=told.group.astype(np.int32),
        key=np.zeros(len(events), np.int64),
        sequence=told.sequence,
        member=np.full(len(events), rank, np.int64),
        payload_bytes=told.payload_bytes,
        source=told.source,
        destination=told.destination,
        in_splits=_codes(strings, told.in_splits),
        out_splits=_codes(strings, told.out_splits),
    )


def _syncs(rows: Rows, rank: int) -> Syncs:
    """Synchronisation records whose kind is known, in order of their calls."""
    kind, records = _sync_kinds(rows), rows.syncs
    order = np.lexsort((records.stream, records.device, kind, records.correlation))
    order = order[kind[order] >= 0]
    return Syncs(
        kind=kind[order],
        rank=np.full(len(order), rank, np.int32),
        device=np.where(records.device > _LARGEST_DEVICE, ABSENT, records.device)[order].astype(np.int32),
        stream=records.stream[order],
        awaited_stream=records.awaited_stream[order],
        correlation=records.correlation[order],
        record_correlation=records.record_correlation[order],
    )


def _sync_kinds(rows: Rows) -> Int8:
    known = {text: kind for kind, text in enumerate(_SYNC_KINDS)}
    return np.array([known.get(rows.texts[code], -1) for code in rows.syncs.kind], np.int8)


def _marks(rows: Rows, marked: Int64, rank: int, first_ns: int) -> Marks:
    spans = rows.spans
    order = marked[np.lexsort((spans.end_ns[marked], spans.start_ns[marked]))]
    steps = [_STEP.match(rows.texts[code]) for code in spans.name[order]]
    return Marks(
        step=np.array([int(step[1]) for step in steps if step], np.int64),
        rank=np.full(len(order), rank, np.int32),
        start_ns=spans.start_ns[order] - first_ns,
        end_ns=spans.end_ns[order] - first_ns,
    )


def _memory(rows: Rows, rank: int, first_ns: int) -> MemoryEvents:
    """Allocations and releases, those of the host without a device."""
    found = rows.allocations
    timed = np.flatnonzero(found.time_ns >= 0)
    on_host = (found.device_kind == 0) | (found.device > _LARGEST_DEVICE)
    return MemoryEvents(
        time_ns=found.time_ns[timed] - first_ns,
        rank=np.full(len(timed), rank, np.int32),
        device=np.where(on_host, ABSENT, found.device)[timed].astype(np.int32),
        source=np.full(len(timed), MemorySource.EVENT, np.int8),
        change_bytes=found.change_bytes[timed],
        allocated_bytes=found.allocated_bytes[timed],
        reserved_bytes=found.reserved_bytes[timed],
        use=np.full(len(timed), MemoryUse.UNKNOWN, np.int8),
    )


def _tally(rows: Rows, kind: Int8) -> Tally:
    """What became of the events; the ends of data flows are counted when these are known."""
    unknown = Counter(rows.texts[code] for code in rows.spans.name[kind == _UNKNOWN])
    unordered = int((_sync_kinds(rows) < 0).sum())
    dropped = {
        **{reason: int(rows.counts[outcome]) for outcome, reason in _PASSED_OVER.items()},
        **{reason: int((kind == code).sum()) for code, reason in _DROPPED.items()},
        **{f"category not understood: {category or 'none'}": count for category, count in unknown.items()},
        "no duration": rows.without_duration,
        "synchronisation record, kept as such": len(rows.syncs.kind) - unordered,
        "synchronisation record not understood": unordered,
    }
    dropped = {reason: count for reason, count in sorted(dropped.items()) if count}
    odd = int(np.isin(rows.spans.name[kind >= 0], rows.odd_texts).sum())
    repaired = {"name that is no JSON, taken as it stands": odd} if odd else {}
    return Tally(int(rows.counts.sum()), int((kind >= 0).sum()), repaired, dropped, _cut_steps(rows, kind))


def _cut_steps(rows: Rows, kind: Int8) -> tuple[Note, ...]:
    names = sorted({rows.texts[code] for code in rows.spans.name[kind == _CUT_MARK]})
    return (Note("TF311", f"the recording ended within {', '.join(names)}, which counts as no step"),) if names else ()


def _metadata(members: Mapping[str, Json]) -> Mapping[str, str]:
    """What the header says in a word, and the backend and the device."""
    distributed, devices = members.get("distributedInfo"), members.get("deviceProperties")
    device = devices[0] if isinstance(devices, list) and devices else None
    said = {
        **{key: value for key, value in members.items() if key not in _NOT_METADATA},
        **({key: distributed.get(key) for key in ("backend", "nccl_version")} if isinstance(distributed, dict) else {}),
        "device": device.get("name") if isinstance(device, dict) else None,
        "device_units": device.get("numSms") if isinstance(device, dict) else None,
        "device_memory": device.get("totalGlobalMem") if isinstance(device, dict) else None,
    }
    return {key: str(value) for key, value in sorted(said.items()) if isinstance(value, str | int | float)}


_NOT_METADATA = frozenset({"schemaVersion", "displayTimeUnit", "baseTimeNanoseconds", "traceName", "host_name"})


def _with_flows(trace: Trace, rows: Rows, flow_lane: Int64, lanes: Lanes, first_ns: int) -> Trace:
    """Bind both ends of each data flow to the innermost operator around them, and pair the ends."""
    ends = rows.flows
    event = _operators_at(trace, _moved_lanes(lanes, trace.lanes)[flow_lane], ends.time_ns - first_ns)
    opens, closes = (_by_name(rows.texts, ends.phase, partial(eq, word)) > 0 for word in ("s", "f"))
    bound = (event >= 0) & (ends.time_ns >= 0) & (ends.number >= 0)
    starts, stops = np.flatnonzero(bound & opens), np.flatnonzero(bound & closes)
    starts = starts[np.argsort(ends.number[starts], kind="stable")]
    place = np.searchsorted(ends.number[starts], ends.number[stops])
    met = np.append(ends.number[starts], -1)[place] == ends.number[stops]
    source, target = event[starts[place[met]]], event[stops[met]]
    joined = int(np.count_nonzero(np.bincount(place[met])) + np.count_nonzero(met))
    pairs = np.sort(source * np.int64(len(trace.events)) + target)
    pairs = pairs[np.diff(pairs, prepend=-1) > 0]
    counts = {"data flow, kept as such": joined, "data flow without operators": len(event) - joined}
    dropped = {reason: count for reason, count in counts.items() if count}
    return replace(
        trace,
        flows=Flows(*(column.astype(np.int32) for column in np.divmod(pairs, max(len(trace.events), 1)))),
        tally=trace.tally + Tally(dropped=dropped),
    )


def _moved_lanes(before: Lanes, after: Lanes) -> Int64:
    """New numbers of threads by their old ones, -1 for lanes that have no events or are no threads."""
    number = {name: i for i, name in enumerate(after.name) if after.kind[i] == LaneKind.THREAD}
    threads = zip(before.name, before.kind == LaneKind.THREAD, strict=True)
    return np.array([*(number.get(name, -1) if is_thread else -1 for name, is_thread in threads), -1], np.int64)


def _operators_at(trace: Trace, at_lane: Int64, at_ns: Int64) -> Int64:
    """Row of the innermost host event at each moment on a thread, -1 for none."""
    events = trace.events
    host = np.flatnonzero(events.kind == Kind.HOST)
    order = np.lexsort((at_ns, at_lane))
    order = order[at_lane[order] >= 0]
    spans = events.lane[host].astype(np.int64), events.start_ns[host], events.end_ns[host]
    found = np.full(len(at_ns), -1, np.int64)
    found[order] = np.append(host, -1)[innermost(*spans, at_lane[order], at_ns[order])]
    return found
