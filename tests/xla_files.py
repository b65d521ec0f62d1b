"""Small XSpaces and trace-event files, written event by event."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from traceflow.program.schema import message
from traceflow.trace.model import Kind, LaneKind, Trace

Value = int | str | bytes


@dataclass(frozen=True)
class Event:
    """An event in picoseconds; `stats` by name."""

    name: str
    start_ps: int
    duration_ps: int = 0
    stats: Mapping[str, Value] = field(default_factory=dict)


@dataclass(frozen=True)
class Line:
    name: str
    events: Sequence[Event]
    timestamp_ns: int = 0


@dataclass(frozen=True)
class Kinds:
    """What a plane says of all events of a name: name for display, and statistics."""

    display: str = ""
    stats: Mapping[str, Value] = field(default_factory=dict)


def xspace(
    planes: Mapping[str, Sequence[Line]],
    *,
    start_ns: int | None = 1_000,
    programs: Mapping[int, bytes] | None = None,
    kinds: Mapping[str, Kinds] | None = None,
) -> Any:
    """An XSpace message."""
    space = message("XSpace")(hostnames=["host"])
    if programs:
        plane = _Plane(space.planes.add(name="/host:metadata"))
        for key, content in programs.items():
            plane.describe(f"program({key})", Kinds(stats={"Hlo Proto": content, "program_id": key}))
    for name, lines in planes.items():
        plane = _Plane(space.planes.add(name=name))
        for described, kind in (kinds or {}).items():
            plane.describe(described, kind)
        for number, line in enumerate(lines, start=1):
            plane.add(number, line)
    if start_ns is not None:
        plane = _Plane(space.planes.add(name="Task Environment"))
        plane.stats(plane.plane.stats, {"profile_start_time": start_ns})
    return space


class _Plane:
    """Numbers the names of events and statistics as they come."""

    def __init__(self, plane: Any) -> None:
        self.plane = plane
        self._events: dict[str, int] = {}
        self._stats: dict[str, int] = {}

    def add(self, number: int, line: Line) -> None:
        added = self.plane.lines.add(id=number, name=line.name, timestamp_ns=line.timestamp_ns)
        for event in line.events:
            self.describe(event.name, Kinds())
            one = added.events.add(
                metadata_id=self._events[event.name], offset_ps=event.start_ps, duration_ps=event.duration_ps
            )
            self.stats(one.stats, event.stats)

    def describe(self, name: str, kind: Kinds) -> None:
        if name not in self._events:
            key = self._events[name] = len(self._events) + 1
            entry = self.plane.event_metadata.add(key=key)
            entry.value.id, entry.value.name, entry.value.display_name = key, name, kind.display
            self.stats(entry.value.stats, kind.stats)

    def stats(self, into: Any, stats: Mapping[str, Value]) -> None:
        for name, value in stats.items():
            if isinstance(value, int):
                into.add(metadata_id=self._stat(name), int64_value=value)
            elif isinstance(value, bytes):
                into.add(metadata_id=self._stat(name), bytes_value=value)
            else:
                into.add(metadata_id=self._stat(name), ref_value=self._stat(value))

    def _stat(self, name: str) -> int:
        if name not in self._stats:
            key = self._stats[name] = len(self._stats) + 1
            entry = self.plane.stat_metadata.add(key=key)
            entry.value.id, entry.value.name = key, name
        return self._stats[name]


def write(path: Path, space: Any) -> Path:
    """Write an XSpace."""
    path.write_bytes(space.SerializeToString())
    return path


def write_chrome(path: Path, planes: Mapping[str, Mapping[str, Sequence[Mapping[str, Any]]]]) -> Path:
    """Write spans by process and thread name as trace-event JSON, compressed where the name says so."""
    events: list[Mapping[str, Any]] = []
    for process, (plane, lines) in enumerate(planes.items(), start=1):
        events.append({"ph": "M", "pid": process, "name": "process_name", "args": {"name": plane}})
        for thread, (line, spans) in enumerate(lines.items(), start=1):
            events.append({"ph": "M", "pid": process, "tid": thread, "name": "thread_name", "args": {"name": line}})
            events += [{"ph": "X", "pid": process, "tid": thread, **span} for span in spans]
    text = json.dumps({"displayTimeUnit": "ns", "traceEvents": [*events, {}]}).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


def rows(trace: Trace) -> list[tuple[int, str, int, int, str, str]]:
    """Events as (device, lane, start, end, name, kind), in order."""
    events, lanes = trace.events, trace.lanes
    return [
        (
            int(lanes.device[lane]),
            lanes.name[lane],
            int(start),
            int(end),
            trace.strings[name],
            Kind(kind).name,
        )
        for lane, start, end, name, kind in zip(
            events.lane, events.start_ns, events.end_ns, events.name, events.kind, strict=True
        )
    ]


def everything(trace: Trace) -> dict[str, object]:
    """All of a trace, free of how texts, groups and rows are numbered."""
    named = rows(trace)
    c, h, n = trace.communications, trace.hlo, trace.launches
    group = [*(g.name for g in trace.groups), None]
    return {
        "events": list(zip(named, trace.events.correlation.tolist(), strict=True)),
        "lanes": [(LaneKind(kind).name, *lane) for kind, *lane in zip(
            trace.lanes.kind, trace.lanes.device.tolist(), trace.lanes.stream.tolist(), trace.lanes.name, strict=True
        )],
        "communications": sorted(
            (named[event], trace.strings[operation], str(group[of]), *rest)
            for event, operation, of, *rest in zip(
                c.event, c.operation, c.group, c.key.tolist(), c.sequence.tolist(), c.member.tolist(),
                c.payload_bytes.tolist(), c.source.tolist(), c.destination.tolist(), strict=True,
            )
        ),
        "hlo": sorted(
            (named[event], *rest)
            for event, *rest in zip(h.event, h.program.tolist(), h.instruction.tolist(), h.run.tolist(), strict=True)
        ),
        "launches": sorted(
            (named[event], *rest)
            for event, *rest in zip(n.event, n.program.tolist(), n.run.tolist(), n.device.tolist(), strict=True)
        ),
        "flows": sorted((named[a], named[b]) for a, b in zip(trace.flows.source, trace.flows.target, strict=True)),
        "marks": sorted(zip(trace.marks.step, trace.marks.start_ns, trace.marks.end_ns, strict=True)),
        "tally": (trace.tally.read, trace.tally.kept, dict(trace.tally.dropped)),
        "epoch": trace.epoch_ns,
    }  # fmt: skip
