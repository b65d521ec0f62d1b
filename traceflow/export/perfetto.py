"""A run as a Perfetto trace: all ranks on one clock, the critical path with arrows, collectives split, counters.

Tracks, from the top:

- `critical path`: the segments that tile the window, and below them the same by participant, where an arrow leads from
  the segment that ends on one participant to the one that begins on another;
- `steps`: what each rank marks;
- one process per rank, with its devices and its host. A device has its collectives, each split into the wait for the
  last participant and the transfer, its counters: exposed communication, which is 1 while the device communicates and
  computes nothing, and live bytes; and its streams or lines, with every event.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from traceflow.analyzers.attribution.purposes import UNKNOWN
from traceflow.analyzers.communication_rows import Collective
from traceflow.analyzers.critical_path import KINDS, CriticalPath, Segments
from traceflow.errors import TraceflowError
from traceflow.export._counters import Counter, counters
from traceflow.export._track_file import Slices, TrackFile
from traceflow.export.subject import Subject
from traceflow.trace.model import ABSENT, Int64, Kind, Rows, Text, Trace

_COLLECTIVES, _COUNTERS, _LANES = range(3)  # what stands above what
_HOST_LAST = 1 << 20


def write_perfetto(run: Subject, path: Path, *, step: int | None = None, force: bool = False) -> Path:
    """Write a run as a Perfetto trace. The file appears complete or not at all.

    Args:
        run: The run.
        path: The file to write.
        step: Which step the critical path and the collectives are of; the whole capture where None.
        force: Whether to replace a file that is there.

    Returns:
        `path`.

    Raises:
        TraceflowError: TF110 when the file exists and `force` is not set, TF114 when it cannot be written, and
            what the analyzers raise: TF104 without work, TF111 without such a step.
    """
    if path.exists() and not force:
        hint = "give -f to replace it, or another name"
        raise TraceflowError("TF110", f"cannot write {path}", "it exists already", hint)
    pieces = perfetto(run, step=step)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with draft.open("wb") as file:
            file.writelines(pieces)
        draft.replace(path)
    except OSError as error:
        why = error.strerror or type(error).__name__
        raise TraceflowError("TF114", f"cannot write {path}", why, "choose another place") from error
    finally:
        draft.unlink(missing_ok=True)
    return path


def perfetto(run: Subject, *, step: int | None = None) -> Iterator[bytes]:
    """The bytes of a run as a Perfetto trace, in pieces.

    Args:
        run: The run.
        step: Which step the critical path and the collectives are of; the whole capture where None.
    """
    trace = run.trace
    file = TrackFile(min(0, int(trace.memory.time_ns.min(initial=0))), trace.epoch_ns)
    _put_path(file, run.critical_path(step=step))
    places = _places(file, trace)
    _put_steps(file, trace)
    _put_events(file, trace, places)
    _put_collectives(file, run.communication(step=step).collectives, places)
    for counter in counters(run, step=step):
        _put_counter(file, counter, places[counter.rank, counter.device])
    return file.packets()


def _places(file: TrackFile, trace: Trace) -> dict[tuple[int, int], int]:
    """A track for each rank's host and for each of its devices, beneath a process for the rank."""
    rows = {rank.rank: rank for rank in trace.ranks}
    pairs = {*zip(trace.lanes.rank.tolist(), trace.lanes.device.tolist(), strict=True)}
    pairs |= {*zip(trace.memory.rank.tolist(), trace.memory.device.tolist(), strict=True)}
    pairs |= {(rank, ABSENT) for rank in (*rows, *trace.marks.rank.tolist())}
    process = {rank: file.process(f"rank {rank}", rank, _host(trace, rank)) for rank in sorted({r for r, _ in pairs})}
    return {
        (rank, device): file.track("host", process[rank], _HOST_LAST)
        if device == ABSENT
        else file.track(f"device {device}", process[rank], device + 1)
        for rank, device in sorted(pairs)
    }


def _host(trace: Trace, rank: int) -> str:
    return next((known.host or "" for known in trace.ranks if known.rank == rank), "")


def _put_events(file: TrackFile, trace: Trace, places: dict[tuple[int, int], int]) -> None:
    """Every event, on the track of its lane."""
    e, lanes = trace.events, trace.lanes
    where = zip(lanes.rank.tolist(), lanes.device.tolist(), lanes.name, strict=True)
    tracks = np.array(
        [file.track(name, places[rank, device], _LANES + i) for i, (rank, device, name) in enumerate(where)], np.int64
    )
    kinds = file.names(tuple(kind.name.lower() for kind in Kind))
    file.slices(Slices(tracks[e.lane], e.start_ns, e.end_ns, _numbered(file, trace.strings, e.name), kinds[e.kind]))


def _numbered(file: TrackFile, strings: tuple[str, ...], codes: Rows) -> Int64:
    """Numbers in the file of the strings behind codes; only those that occur go into it."""
    used, which = np.unique(codes, return_inverse=True)
    return file.names(tuple(strings[code] for code in used.tolist()))[which.ravel()]


def _put_steps(file: TrackFile, trace: Trace) -> None:
    marks = trace.marks
    if not len(marks.step):
        return
    root = file.track("steps")
    tracks = {rank: file.track(f"rank {rank}", root, rank) for rank in np.unique(marks.rank).tolist()}
    category = np.repeat(file.names(("step",)), len(marks.step))
    names = file.names(tuple(f"step {step}" for step in marks.step.tolist()))
    track = np.array([tracks[rank] for rank in marks.rank.tolist()], np.int64)
    file.slices(Slices(track, marks.start_ns, marks.end_ns, names, category))


def _put_path(file: TrackFile, path: CriticalPath) -> None:
    segments = path.segments
    root = file.track("critical path", order=-1)
    category = file.names(KINDS)[[KINDS.index(kind) for kind in segments.kind]]
    texts = {
        "lane": _texts(file, segments.lane),
        "reached by": _texts(file, segments.edge),
        "waiting for": _texts(file, [_who(who) for who in segments.waiting_for]),
        "operation": _texts(file, segments.operation),
        "scope": _texts(file, segments.scope),
        "source": _texts(file, segments.source),
        "cause not known": _texts(file, segments.reason),
    }
    start, end, name = segments.start_ns, segments.start_ns + segments.duration_ns, _texts(file, segments.name)
    file.slices(Slices(np.full(len(segments), root), start, end, name, category, texts))
    leaves, arrives = _hops(segments)
    file.slices(Slices(_participants(file, segments, root), start, end, name, category, {}, {}, leaves, arrives))


def _texts(file: TrackFile, column: Text | list[str | None]) -> Int64:
    """Numbers of texts, ABSENT for None."""
    known = list(dict.fromkeys(text for text in column if text is not None))
    number_of: dict[str | None, int] = dict(zip(known, file.names(tuple(known)).tolist(), strict=True))
    return np.array([number_of.get(text, ABSENT) for text in column], np.int64)


def _who(who: tuple[int, int | None] | None) -> str | None:
    return None if who is None else _participant(who[0], ABSENT if who[1] is None else who[1])


def _participant(rank: int, device: int) -> str:
    return f"rank {rank}, host" if device == ABSENT else f"rank {rank}, device {device}"


def _participants(file: TrackFile, segments: Segments, root: int) -> Int64:
    """A track for each participant on the path, beneath it."""
    pairs, which = np.unique(np.column_stack((segments.rank, segments.device)), axis=0, return_inverse=True)
    tracks = [file.track(_participant(*pair), root, order) for order, pair in enumerate(pairs.tolist())]
    return np.array(tracks, np.int64)[which.ravel()]


def _hops(segments: Segments) -> tuple[Int64, Int64]:
    """Numbers of the arrows from segments to the next, where that is on another participant."""
    hops = np.flatnonzero((np.diff(segments.rank) != 0) | (np.diff(segments.device) != 0))
    leaves, arrives = np.full((2, len(segments)), ABSENT, np.int64)
    leaves[hops] = arrives[hops + 1] = np.arange(len(hops)) + 1
    return leaves, arrives


def _put_collectives(file: TrackFile, collectives: tuple[Collective, ...], places: dict[tuple[int, int], int]) -> None:
    """Each participant's part in each collective, with the wait for the last and the transfer within it."""
    calls = [(one, call) for one in collectives for call in one.calls]
    if not calls:
        return
    where = [(call.participant[0], _device(call.participant)) for _, call in calls]
    tracks = {place: file.track("collectives", places[place], _COLLECTIVES) for place in dict.fromkeys(where)}
    arrival, wait, end = (
        np.array([getattr(call, what) for _, call in calls], np.int64) for what in ("arrival_ns", "wait_ns", "end_ns")
    )
    wholes = Slices(
        file.apart(np.array([tracks[place] for place in where], np.int64), arrival, end),
        arrival,
        end,
        file.names(tuple(one.name for one, _ in calls)),
        file.names(tuple(one.op for one, _ in calls)),
        {
            "group": file.names(tuple(one.group for one, _ in calls)),
            "purpose": _texts(file, [_told(one, "purpose") for one, _ in calls]),
            "dimension": _texts(file, [_told(one, "dimension") for one, _ in calls]),
            "last to arrive": file.names(tuple(_participant(one.last[0], _device(one.last)) for one, _ in calls)),
        },
        {"payload_bytes": np.array([_or_absent(call.payload_bytes) for _, call in calls], np.int64)},
    )
    waits, transfers = (_part(wholes, name) for name in file.names(("wait", "transfer")).tolist())
    waits = replace(waits, end_ns=arrival + wait)
    transfers = replace(transfers, start_ns=arrival + wait)
    file.slices(_joined(wholes, _lasting(waits), _lasting(transfers)))


def _told(one: Collective, what: str) -> str | None:
    """What a collective is attributed to, None where nothing tells."""
    told = UNKNOWN if one.attributed is None else str(getattr(one.attributed, what))
    return None if told == UNKNOWN else told


def _device(participant: tuple[int, int | None]) -> int:
    return _or_absent(participant[1])


def _or_absent(value: int | None) -> int:
    return ABSENT if value is None else value


def _part(wholes: Slices, name: int) -> Slices:
    """Slices like the given ones, of which nothing but a name is said."""
    unsaid = np.full(len(wholes.track), ABSENT, np.int64)
    texts, integers = (dict.fromkeys(said, unsaid) for said in (wholes.texts, wholes.integers))
    return replace(wholes, name=np.full(len(unsaid), name, np.int64), texts=texts, integers=integers)


def _lasting(slices: Slices) -> Slices:
    """Those that take time."""
    lasts = slices.end_ns > slices.start_ns
    return _mapped([slices], lambda columns: columns[0][lasts])


def _joined(*parts: Slices) -> Slices:
    return _mapped(parts, np.concatenate)


def _mapped(parts: Sequence[Slices], function: Callable[[list[Int64]], Int64]) -> Slices:
    """Slices whose columns are made of those of others, which say the same things."""
    return Slices(
        track=function([part.track for part in parts]),
        start_ns=function([part.start_ns for part in parts]),
        end_ns=function([part.end_ns for part in parts]),
        name=function([part.name for part in parts]),
        category=function([part.category for part in parts]),
        texts={key: function([part.texts[key] for part in parts]) for key in parts[0].texts},
        integers={key: function([part.integers[key] for part in parts]) for key in parts[0].integers},
    )


def _put_counter(file: TrackFile, counter: Counter, place: int) -> None:
    track = file.counter(counter.name, place, counter.unit, _COUNTERS)
    file.counts(track, counter.time_ns, counter.value)
