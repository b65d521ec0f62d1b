"""Reads a Perfetto trace with Perfetto's own protobuf classes and rebuilds its slices, as its viewer would."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb

__all__ = ["Read", "pb", "read"]

Event = pb.TrackEvent


@dataclass
class Slice:
    """One slice that was begun and ended."""

    track: int
    name: str
    category: str
    start_ns: int
    end_ns: int
    depth: int
    notes: dict[str, str | int]
    flows: tuple[int, ...]
    flow_ends: tuple[int, ...]

    @property
    def span(self) -> tuple[str, int, int]:
        """What it is and when."""
        return self.name, self.start_ns, self.end_ns


@dataclass
class Read:
    """What a trace holds."""

    tracks: dict[int, Any] = field(default_factory=dict)  # descriptors by number
    slices: list[Slice] = field(default_factory=list)
    counts: dict[int, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))
    clocks: dict[int, int] = field(default_factory=dict)

    def path(self, track: int) -> tuple[str, ...]:
        """Names from the top down to a track."""
        told = self.tracks[track]
        own = told.process.process_name if told.HasField("process") else told.name
        return (*(self.path(told.parent_uuid) if told.parent_uuid else ()), own)

    def on(self, *path: str) -> list[Slice]:
        """Slices of the tracks of that path, by time."""
        return sorted((s for s in self.slices if self.path(s.track) == path), key=lambda s: (s.start_ns, s.depth))

    def arrows(self) -> list[tuple[Slice, Slice]]:
        """Slices that are connected, from where an arrow leaves to where it ends."""
        leaves = {number: s for s in self.slices for number in s.flows}
        arrives = {number: s for s in self.slices for number in s.flow_ends}
        assert leaves.keys() == arrives.keys()
        assert len(leaves) == sum(len(s.flows) for s in self.slices)
        assert len(arrives) == sum(len(s.flow_ends) for s in self.slices)
        return [(leaves[number], arrives[number]) for number in sorted(leaves)]

    def counter(self, *path: str) -> list[tuple[int, int]]:
        """Moments and values of the one counter of that path."""
        (found,) = (counts for track, counts in self.counts.items() if self.path(track) == path)
        return found


def read(content: bytes) -> Read:
    """Rebuild what a trace holds.

    An end without a beginning is an error, and so is a beginning without an end, time that runs backwards on a track,
    and an arrow that does not lead from one slice to a later one.
    """
    trace = pb.Trace.FromString(content)
    known = pb.Trace.FromString(content)
    known.DiscardUnknownFields()
    assert known.ByteSize() == trace.ByteSize(), "fields that Perfetto does not know"
    found, texts = Read(), _texts(trace)
    open_slices: dict[int, list[Slice]] = defaultdict(list)
    _check_order(trace)
    for packet in sorted(trace.packet, key=lambda packet: packet.timestamp):
        assert packet.trusted_packet_sequence_id == 1
        if packet.HasField("track_descriptor"):
            assert packet.track_descriptor.uuid not in found.tracks
            found.tracks[packet.track_descriptor.uuid] = packet.track_descriptor
        if packet.HasField("clock_snapshot"):
            found.clocks = {clock.clock_id: clock.timestamp for clock in packet.clock_snapshot.clocks}
        if packet.HasField("track_event"):
            assert packet.sequence_flags == pb.TracePacket.SEQ_NEEDS_INCREMENTAL_STATE
            _take(found, open_slices[packet.track_event.track_uuid], packet, texts)
    assert not any(open_slices.values()), "a slice without an end"
    assert {s.track for s in found.slices} | found.counts.keys() <= found.tracks.keys()
    assert all(s.start_ns <= s.end_ns for s in found.slices)
    for leaves, arrives in found.arrows():
        assert leaves.end_ns <= arrives.start_ns
    return found


def _check_order(trace: Any) -> None:
    """On each track, events stand in the file in the order of time."""
    last: dict[int, int] = {}
    for packet in trace.packet:
        if packet.HasField("track_event"):
            track = packet.track_event.track_uuid
            assert packet.timestamp >= last.get(track, packet.timestamp)
            last[track] = packet.timestamp


def _texts(trace: Any) -> dict[str, dict[int, str]]:
    first = trace.packet[0]
    assert first.sequence_flags == pb.TracePacket.SEQ_INCREMENTAL_STATE_CLEARED
    interned = first.interned_data
    return {
        "name": {one.iid: one.name for one in interned.event_names},
        "category": {one.iid: one.name for one in interned.event_categories},
        "key": {one.iid: one.name for one in interned.debug_annotation_names},
        "text": {one.iid: one.str.decode() for one in interned.debug_annotation_string_values},
    }


def _take(found: Read, open_here: list[Slice], packet: Any, texts: dict[str, dict[int, str]]) -> None:
    event, time = packet.track_event, packet.timestamp
    if event.type == Event.TYPE_COUNTER:
        found.counts[event.track_uuid].append((time, event.counter_value))
    elif event.type == Event.TYPE_SLICE_BEGIN:
        notes = {
            texts["key"][note.name_iid]: texts["text"][note.string_value_iid]
            if note.HasField("string_value_iid")
            else note.int_value
            for note in event.debug_annotations
        }
        (category,) = event.category_iids
        name, kind = texts["name"][event.name_iid], texts["category"][category]
        flows, ends = tuple(event.flow_ids), tuple(event.terminating_flow_ids)
        open_here.append(Slice(event.track_uuid, name, kind, time, -1, len(open_here), notes, flows, ends))
    else:
        assert event.type == Event.TYPE_SLICE_END
        ended = open_here.pop()
        ended.end_ns = time
        found.slices.append(ended)
