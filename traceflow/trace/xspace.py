"""Read an XSpace (`*.xplane.pb`), as the JAX profiler writes it on CPU, GPU and TPU.

Planes hold lines, lines hold events, and texts are written once per plane. The time of an event is that of the
profile's start, plus its line's, plus its own offset; offsets and durations are in picoseconds, and both ends of
an event are rounded down to nanoseconds. The programs are a plane of their own, as serialised `HloProto`s.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from traceflow.errors import TraceflowError
from traceflow.evidence import Evidence
from traceflow.program.hlo_proto import read_hlo_proto
from traceflow.program.module import Programs
from traceflow.program.schema import message
from traceflow.result import Note
from traceflow.trace._xla_lines import (
    LONGEST,
    WITHOUT_TIME,
    Count,
    Line,
    Plane,
    Stats,
    distinct_names,
    noise,
    number,
    program_key,
)
from traceflow.trace._xla_trace import About, xla_trace
from traceflow.trace.model import Rank

_PROGRAMS = "/host:metadata"
_ENVIRONMENT = "Task Environment"
_REPLACEMENT = b"\xef\xbf\xbd"

# The statistics that are read; decoding only these spares most of the work.
_WANTED = frozenset(
    {
        "_c", "_ct", "_p", "_pt", "bytes_accessed", "correlation_id", "device_ordinal", "flops", "global_device_id",
        "hlo_module", "hlo_op", "long_name", "model_flops", "program_id", "run_id", "source", "source_stack",
        "step_num", "tf_op",
    }
)  # fmt: skip


def read_xspace(
    path: Path, *, rank: int = 0, communication: tuple[str, ...] = (), beside: Programs = MappingProxyType({})
) -> Evidence:
    """Read one XSpace file.

    Args:
        path: The file.
        rank: The process that recorded it; an XSpace does not say.
        communication: Patterns for more kernels that communicate, as for `recognise`.
        beside: Programs found elsewhere, for what did not come with its own.

    Returns:
        Its trace, whose participants are (rank, device), and the compiled programs that came with it.

    Raises:
        TraceflowError: TF103 when the file is damaged, TF104 when nothing happened in it.
    """
    space = _decoded(path)
    try:
        programs = _programs(space)
    except TraceflowError as error:
        why = f"a program in it is damaged ({error.why})"
        raise TraceflowError(error.code, f"cannot read {path}", why, error.hint) from error
    count = Count()
    planes = (Plane(plane.name, _lines(plane, count)) for plane in space.planes if plane.lines)
    trace, programs = xla_trace(planes, programs, _about(space, path, rank), count, communication, beside)
    if not len(trace.events):
        raise TraceflowError("TF104", f"cannot use {path}", "it holds no events", "record while the program works")
    return Evidence(trace, programs)


def _decoded(path: Path) -> Any:
    content = path.read_bytes()
    try:
        return message("XSpace").FromString(content)
    except DecodeError as error:
        as_text = content.count(_REPLACEMENT) * 100 > len(content)
        why = "it was saved as text, which replaced its bytes" if as_text else "it is cut short or overwritten"
        raise TraceflowError("TF103", f"cannot read {path}", why, "copy it again as it was recorded") from error


def _about(space: Any, path: Path, rank: int) -> About:
    said = {plane.name: _Dictionary.of(plane).all_of(plane.stats) for plane in space.planes}
    epoch_ns = number(said.get(_ENVIRONMENT, {}), "profile_start_time")
    host = space.hostnames[0] if space.hostnames else path.name.partition(".")[0]
    metadata = {name: str(value) for name, value in said.get(_PROGRAMS, {}).items()}
    metadata |= _hardware(said)
    if remarks := [*space.errors, *space.warnings]:
        metadata["profiler"] = "; ".join(remarks)
    cut = Note("TF302", "the trace does not say when it began, so it may have been cut short", ("/epoch",))
    return About(Rank(rank, host, None, path.name), epoch_ns, "xspace", metadata, () if epoch_ns else (cut,))


# What a device says of itself, by what a trace calls it.
_HARDWARE = {
    "device": "device_type_string",
    "device_vendor": "device_vendor",
    "device_units": "core_count",
    "device_memory": "memory_size",
}


def _hardware(said: Mapping[str, Mapping[str, object]]) -> dict[str, str]:
    """What the first device that says something of itself says."""
    devices = (stats for name, stats in sorted(said.items()) if name.startswith("/device:"))
    told = ({key: str(stats[name]) for key, name in _HARDWARE.items() if name in stats} for stats in devices)
    return next(filter(None, told), {})


def _programs(space: Any) -> Programs:
    """The modules of the metadata plane, by program key."""
    programs = {}
    for plane in space.planes:
        if plane.name == _PROGRAMS:
            dictionary = _Dictionary.of(plane)
            for entry in plane.event_metadata:
                stats = dictionary.all_of(entry.value.stats)
                content, identifier = stats.get("Hlo Proto"), number(stats, "program_id")
                if isinstance(content, bytes):
                    key = program_key(entry.key if identifier is None else identifier)
                    programs[key] = read_hlo_proto(content, key)
    return programs


@dataclass(frozen=True, slots=True)
class _Dictionary:
    """The texts of a plane, by the numbers that stand for them."""

    texts: Mapping[int, str]  # names of statistics, and texts that are their values
    wanted: Mapping[int, str]

    @classmethod
    def of(cls, plane: Any) -> _Dictionary:
        """The texts that a plane came with."""
        texts = {entry.key: entry.value.name for entry in plane.stat_metadata}
        return cls(texts, {key: text for key, text in texts.items() if text in _WANTED})

    def all_of(self, stats: Iterable[Any]) -> dict[str, object]:
        """Every statistic by name."""
        return {self.texts.get(stat.metadata_id, ""): self._value(stat) for stat in stats}

    def wanted_of(self, stats: Iterable[Any]) -> dict[str, object]:
        """The statistics that are read, by name."""
        wanted = self.wanted
        return {wanted[stat.metadata_id]: self._value(stat) for stat in stats if stat.metadata_id in wanted}

    def _value(self, stat: Any) -> object:
        kind = stat.WhichOneof("value")
        if kind == "ref_value":
            return self.texts.get(stat.ref_value, "")
        return getattr(stat, kind) if kind else None


@dataclass(frozen=True, slots=True)
class _Kind:
    """What events of one kind share."""

    name: str
    stats: Stats
    noise: str | None  # why events of this kind are left out

    @classmethod
    def of(cls, metadata: Any, dictionary: _Dictionary) -> _Kind:
        """A kind by its metadata. A TPU operation's name is its HLO text, and its short name is for display."""
        stats = dictionary.wanted_of(metadata.stats)
        if metadata.display_name and " = " in metadata.name:
            stats["long_name"] = metadata.name
        name = metadata.display_name or metadata.name
        return cls(name, stats, noise(name))


def _lines(plane: Any, count: Count) -> Iterator[Line]:
    """The lines of a plane, without the profiler's own events."""
    dictionary = _Dictionary.of(plane)
    kinds = {entry.key: _Kind.of(entry.value, dictionary) for entry in plane.event_metadata}
    names = distinct_names([(line.name, line.id) for line in plane.lines])
    for line, name in zip(plane.lines, names, strict=True):
        yield _line(line, name, kinds, dictionary, count)


def _line(line: Any, name: str, kinds: Mapping[int, _Kind], dictionary: _Dictionary, count: Count) -> Line:
    nameless = _Kind("", {}, "without a name")
    kind_of = [kinds.get(event.metadata_id, nameless) for event in line.events]
    count.read += len(kind_of)
    for reason, events in Counter(kind.noise for kind in kind_of if kind.noise).items():
        count.drop(reason, events)
    kept = [(kind, event) for kind, event in zip(kind_of, line.events, strict=True) if not kind.noise]
    offset_ps = np.array([event.offset_ps for _, event in kept], np.int64)
    duration_ps = np.array([event.duration_ps for _, event in kept], np.int64)
    timed = (offset_ps > -LONGEST) & (offset_ps < LONGEST) & (duration_ps >= 0) & (duration_ps < LONGEST)
    timed &= -LONGEST < line.timestamp_ns < LONGEST
    if not timed.all():
        count.drop(WITHOUT_TIME, len(kept) - timed.sum())
        kept = [pair for pair, valid in zip(kept, timed, strict=True) if valid]
    return Line(
        name,
        line.id,
        [kind.name for kind, _ in kept],
        line.timestamp_ns + offset_ps[timed] // 1000,
        line.timestamp_ns + (offset_ps + duration_ps)[timed] // 1000,
        [_merged(kind.stats, event.stats, dictionary) for kind, event in kept],
    )


def _merged(shared: Stats, own: Any, dictionary: _Dictionary) -> Stats:
    found = dictionary.wanted_of(own) if len(own) else None
    return {**shared, **found} if found else shared
