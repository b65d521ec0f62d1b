"""Host lines of an XLA trace: host work, launches, step marks, and on CPU the devices' work as well."""

from __future__ import annotations

import re
from dataclasses import replace
from enum import IntEnum
from functools import cache

import numpy as np

from traceflow.trace._xla_lines import (
    Chunk,
    Count,
    HandOff,
    Hlo,
    LaneKey,
    Line,
    Mark,
    Start,
    Stats,
    number,
    numbers,
    program_of,
)
from traceflow.trace.host_waits import waits_on_host
from traceflow.trace.model import ABSENT, Bool, Int64, Kind, LaneKind

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
_STARTS = frozenset({"correlation_id", "run_id", "global_device_id"})


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
    roles = np.fromiter((_role(*event) for event in zip(line.names, line.stats, strict=True)), np.int8, len(line))
    device = roles == _Role.DEVICE
    roles[_inside(line, device) & (roles != _Role.MARK)] = _Role.INSIDE
    for role, reason in _LEFT_OUT.items():
        count.drop(reason, (roles == role).sum())
    host, marks = np.flatnonzero(roles == _Role.HOST), np.flatnonzero(roles == _Role.MARK)
    host_chunk = [_host_chunk(line, host)] if len(host) else []
    return host_chunk + _device_chunks(line, np.flatnonzero(device)), _marks(line, marks)


def _role(name: str, stats: Stats) -> _Role:
    if "hlo_op" in stats and "correlation_id" not in stats:
        return _Role.DEVICE if 0 <= (number(stats, "device_ordinal") or 0) < 2**31 else _Role.LOST
    if "step_num" in stats:
        return _Role.MARK
    return _Role.RUNTIME if _is_runtime(name) else _Role.HOST


@cache
def _is_runtime(name: str) -> bool:
    return _RUNTIME.match(name) is not None


@cache
def _blocks(name: str) -> bool:
    return _BLOCKS.match(name) is not None


def _inside(line: Line, device: Bool) -> Bool:
    """Events of the host that a device's event covers."""
    rows = np.flatnonzero(device)
    rows = rows[np.argsort(line.start_ns[rows], kind="stable")]
    latest_end = np.concatenate(([np.iinfo(np.int64).min], np.maximum.accumulate(line.end_ns[rows])))
    begun = np.searchsorted(line.start_ns[rows], line.start_ns, side="right")
    return ~device & (latest_end[begun] >= line.end_ns)


def _device_chunks(line: Line, rows: Int64) -> list[Chunk]:
    ordinal = numbers([line.stats[row] for row in rows], "device_ordinal", default=0)
    return [_device_chunk(line, rows[ordinal == device], int(device)) for device in np.unique(ordinal)]


def _device_chunk(line: Line, rows: Int64, device: int) -> Chunk:
    stats = [line.stats[row] for row in rows]
    hlo = Hlo(
        np.arange(len(rows)),
        np.array([program_of(found) for found in stats], np.int64),
        numbers(stats, "run_id", default=0),
        [str(found["hlo_op"]) for found in stats],
    )
    return replace(Chunk.of(line, rows, LaneKey(device, LaneKind.WORKER, ABSENT, line.name)), hlo=hlo)


def _host_chunk(line: Line, rows: Int64) -> Chunk:
    described = [(at, line.stats[row]) for at, row in enumerate(rows) if line.stats[row]]
    handed = ((at, _hand_off(stats, "_pt", "_p")) for at, stats in described)
    taken = ((at, _hand_off(stats, "_ct", "_c")) for at, stats in described)
    starts = (_start(at, stats) for at, stats in described)
    launching: dict[str, list[int]] = {}
    for at, stats in described:
        if "hlo_op" in stats:
            launching.setdefault(str(stats["hlo_op"]), []).append(at)
    return replace(
        Chunk.of(line, rows, LaneKey(ABSENT, LaneKind.THREAD, ABSENT, line.name)),
        kind=np.array([_kind(line.names[row], line.stats[row]) for row in rows], np.int8),
        correlation=numbers([line.stats[row] for row in rows], "correlation_id"),
        starts=tuple(start for start in starts if start),
        handed=tuple((at, key) for at, key in handed if key),
        taken=tuple((at, key) for at, key in taken if key),
        launching=launching,
    )


def _kind(name: str, stats: Stats) -> Kind:
    if _blocks(name) or waits_on_host(name):
        return Kind.WAIT
    return Kind.CALL if not stats.keys().isdisjoint(_STARTS) else Kind.HOST


def _start(at: int, stats: Stats) -> Start | None:
    run, device = number(stats, "run_id"), number(stats, "device_ordinal")
    if run is not None:
        return Start(at, ABSENT if device is None else device, run, None)
    device, handed = number(stats, "global_device_id"), _hand_off(stats, "_ct", "_c")
    return None if device is None or handed is None else Start(at, device, None, handed)


def _hand_off(stats: Stats, kind: str, identifier: str) -> HandOff | None:
    one, other = number(stats, kind), number(stats, identifier)
    return None if one is None or other is None else (one, other)


def _marks(line: Line, rows: Int64) -> list[Mark]:
    found = ((number(line.stats[row], "step_num"), row) for row in rows)
    return [Mark(step, int(line.start_ns[row]), int(line.end_ns[row])) for step, row in found if step is not None]
