"""Host lines of an XLA trace: host work, launches, step marks, and on CPU the devices' work as well."""

from __future__ import annotations

import re
from dataclasses import replace
from enum import IntEnum

import numpy as np

from traceflow.trace._xla_columns import Stats
from traceflow.trace._xla_lines import (
    Chunk,
    Count,
    HandOff,
    Hlo,
    LaneKey,
    Line,
    Mark,
    Start,
    programs_of,
)
from traceflow.trace.host_waits import waits_on_host
from traceflow.trace.model import ABSENT, Bool, Int8, Int64, Kind, LaneKind

# Calls that block until the device is done: traceflow's own spans, JAX's and PjRt's waits, the device runtimes'
# synchronisations and copies to the host.
_BLOCKS = re.compile(
    r"traceflow\.(ready|fetch)$"
    r"|(\$\S+ )?(block(_host)?_until_ready|try_to_block)$"
    r"|\S+::Await$|np\.asarray\(jax\.Array\)$"
    r"|(cu|cuda|hip)\w*Synchronize|(cuda|hip)Memcpy(WithStream)?$|(cu|hip)MemcpyDtoH(_v2)?$"
)
# How XLA's CPU runtime goes about its thunks: envelopes of HLO operations, and the waits between their threads.
_RUNTIME = re.compile(r"ThunkExecutor::|SlinkyThreadPool::|(Invoke)?Rendezvous$|Wait: |Wait for rendezvous")

# Statistics of the calls that start device work.
_STARTS = "correlation_id", "run_id", "global_device_id"


class _Role(IntEnum):
    HOST = 0
    DEVICE = 1  # an HLO operation of XLA CPU
    MARK = 2
    RUNTIME = 3
    INSIDE = 4
    LOST = 5


_LEFT_OUT = {
    _Role.MARK: "step annotation (kept as a mark)",
    _Role.RUNTIME: "envelope of device work",
    _Role.INSIDE: "inside an HLO operation",
    _Role.LOST: "without a valid device",
}


def host_chunks(line: Line, count: Count) -> tuple[list[Chunk], list[Mark]]:
    """Sort the events of a host thread into host work, device work by device, and step marks.

    An event with the statistic `hlo_op` and no correlation with a device's stream is the device's own work: XLA CPU
    executes on threads, and one thread serves several devices. What lies inside such an event is detail of it.
    """
    roles = _roles(line)
    device = roles == _Role.DEVICE
    roles[_inside(line, device) & (roles != _Role.MARK)] = _Role.INSIDE
    for role, reason in _LEFT_OUT.items():
        count.drop(reason, (roles == role).sum())
    host, marks = np.flatnonzero(roles == _Role.HOST), np.flatnonzero(roles == _Role.MARK)
    host_chunk = [_host_chunk(line, host)] if len(host) else []
    return host_chunk + _device_chunks(line, np.flatnonzero(device)), _marks(line, marks)


def _roles(line: Line) -> Int8:
    stats = line.stats
    works = stats.has("hlo_op") & ~stats.has("correlation_id")
    ordinal = stats.numbers_or("device_ordinal", 0)
    placed = (ordinal >= 0) & (ordinal < 2**31)
    runtime = line.names.each(lambda name: _RUNTIME.match(name) is not None, bool)
    conditions = [works & placed, works, stats.has("step_num"), runtime]
    return np.select(conditions, [_Role.DEVICE, _Role.LOST, _Role.MARK, _Role.RUNTIME], _Role.HOST).astype(np.int8)


def _inside(line: Line, device: Bool) -> Bool:
    """Events of the host that a device's event covers."""
    rows = np.flatnonzero(device)
    rows = rows[np.argsort(line.start_ns[rows], kind="stable")]
    latest_end = np.concatenate(([np.iinfo(np.int64).min], np.maximum.accumulate(line.end_ns[rows])))
    begun = np.searchsorted(line.start_ns[rows], line.start_ns, side="right")
    return ~device & (latest_end[begun] >= line.end_ns)


def _device_chunks(line: Line, rows: Int64) -> list[Chunk]:
    ordinal = line.stats.take(rows).numbers_or("device_ordinal", 0)
    return [_device_chunk(line, rows[ordinal == device], int(device)) for device in np.unique(ordinal)]


def _device_chunk(line: Line, rows: Int64, device: int) -> Chunk:
    stats = line.stats.take(rows)
    hlo = Hlo(np.arange(len(rows)), programs_of(stats), stats.numbers_or("run_id", 0), stats.texts("hlo_op"))
    return replace(Chunk.of(line, rows, LaneKey(device, LaneKind.WORKER, ABSENT, line.name)), hlo=hlo)


def _host_chunk(line: Line, rows: Int64) -> Chunk:
    stats, names = line.stats.take(rows), line.names.take(rows)
    waits = names.each(lambda name: _BLOCKS.match(name) is not None or waits_on_host(name), bool)
    kind = np.where(waits, Kind.WAIT, np.where(stats.has(*_STARTS), Kind.CALL, Kind.HOST)).astype(np.int8)
    launching: dict[str, list[int]] = {}
    launched = np.flatnonzero(stats.has("hlo_op"))
    for at, operation in zip(launched.tolist(), stats.take(launched).texts("hlo_op").listed(), strict=True):
        launching.setdefault(operation, []).append(at)
    return replace(
        Chunk.of(line, rows, LaneKey(ABSENT, LaneKind.THREAD, ABSENT, line.name)),
        kind=kind,
        correlation=stats.numbers_or("correlation_id", ABSENT),
        starts=_starts(stats),
        handed=tuple(_hand_offs(stats, "_pt", "_p").items()),
        taken=tuple(_hand_offs(stats, "_ct", "_c").items()),
        launching=launching,
    )


def _starts(stats: Stats) -> tuple[Start, ...]:
    run, numbered = stats.numbers("run_id")
    ordinal = stats.numbers_or("device_ordinal", ABSENT)
    device, placed = stats.numbers("global_device_id")
    taken = _hand_offs(stats, "_ct", "_c")
    starts = []
    for at in np.flatnonzero(numbered | placed).tolist():
        if numbered[at]:
            starts.append(Start(at, int(ordinal[at]), int(run[at]), None))
        elif at in taken:
            starts.append(Start(at, int(device[at]), None, taken[at]))
    return tuple(starts)


def _hand_offs(stats: Stats, kind: str, identifier: str) -> dict[int, HandOff]:
    """What relates rows to those of another thread, for those that are related."""
    one, told = stats.numbers(kind)
    other, numbered = stats.numbers(identifier)
    rows = np.flatnonzero(told & numbered)
    return dict(zip(rows.tolist(), zip(one[rows].tolist(), other[rows].tolist(), strict=True), strict=True))


def _marks(line: Line, rows: Int64) -> list[Mark]:
    step, known = line.stats.take(rows).numbers("step_num")
    rows = rows[known]
    columns = step[known].tolist(), line.start_ns[rows].tolist(), line.end_ns[rows].tolist()
    return list(map(Mark, *columns))
