"""Read an XSpace (`*.xplane.pb`), as the JAX profiler writes it on CPU, GPU and TPU.

Planes hold lines, lines hold events, and texts are written once per plane. The time of an event is that of the
profile's start, plus its line's, plus its own offset; offsets and durations are in picoseconds, and both ends of
an event are rounded down to nanoseconds. The programs are a plane of their own, as serialised `HloProto`s.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from google.protobuf.message import DecodeError

from traceflow.errors import TraceflowError
from traceflow.evidence import Evidence
from traceflow.program.hlo_proto import read_hlo_proto
from traceflow.program.module import Programs
from traceflow.program.schema import message
from traceflow.result import Note
from traceflow.trace._xla_columns import number
from traceflow.trace._xla_decoded import plane_lines, stat_value
from traceflow.trace._xla_lines import Count, Plane, program_key
from traceflow.trace._xla_trace import About, xla_trace
from traceflow.trace.model import Rank

_PROGRAMS = "/host:metadata"
_ENVIRONMENT = "Task Environment"
_REPLACEMENT = b"\xef\xbf\xbd"


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
    planes = (Plane(plane.name, plane_lines(plane, _texts(plane), count)) for plane in space.planes if plane.lines)
    try:
        trace, programs = xla_trace(planes, programs, _about(space, path, rank), count, communication, beside)
    except DecodeError as error:
        raise _refusal(path) from error
    if not len(trace.events):
        raise TraceflowError("TF104", f"cannot use {path}", "it holds no events", "record while the program works")
    return Evidence(trace, programs)


def _decoded(path: Path) -> Any:
    content = path.read_bytes()
    try:
        return message("XSpaceOfBytes").FromString(content)
    except DecodeError as error:
        raise _refusal(path) from error


def _refusal(path: Path) -> TraceflowError:
    content = path.read_bytes()
    as_text = content.count(_REPLACEMENT) * 100 > len(content)
    why = "it was saved as text, which replaced its bytes" if as_text else "it is cut short or overwritten"
    return TraceflowError("TF103", f"cannot read {path}", why, "copy it again as it was recorded")


def _about(space: Any, path: Path, rank: int) -> About:
    said = {plane.name: _said(_texts(plane), plane.stats) for plane in space.planes}
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
            texts = _texts(plane)
            for entry in plane.event_metadata:
                stats = _said(texts, entry.value.stats)
                content, identifier = stats.get("Hlo Proto"), number(stats, "program_id")
                if isinstance(content, bytes):
                    key = program_key(entry.key if identifier is None else identifier)
                    programs[key] = read_hlo_proto(content, key)
    return programs


def _texts(plane: Any) -> dict[int, str]:
    """The names of statistics, and texts that are their values, by the numbers that stand for them."""
    return {entry.key: entry.value.name for entry in plane.stat_metadata}


def _said(texts: Mapping[int, str], stats: Iterable[Any]) -> dict[str, object]:
    """Statistics of what there are few of, by name."""
    return {texts.get(stat.metadata_id, ""): stat_value(texts, stat) for stat in stats}
