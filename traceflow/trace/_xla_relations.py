"""How the host events of an XLA trace relate: which call started a run, which thread handed work to which."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from traceflow.trace._xla_columns import numbered_pairs
from traceflow.trace._xla_lines import Chunk, HandOff, Hlo, LaneKey
from traceflow.trace._xla_tpu import Execution
from traceflow.trace.model import ABSENT, Flows, Int64, LaneKind, Launches


def launches(
    chunks: Sequence[Chunk],
    offsets: Int64,
    on_tpus: Iterable[tuple[int, Execution]],
    rank: int,
) -> Launches:
    """The host event that started each run on each device.

    A call names the run by its number, on CPU the same on all devices, on TPU the device's own; or it took the work
    over from the call that does. On GPU the first kernel's launch call started the run.

    Args:
        chunks: All events, of which `offsets` says at which row they begin.
        offsets: One per chunk.
        on_tpus: Pairs of device and execution.
        rank: Of the process.
    """
    programs = _programs_of_runs(chunks, on_tpus)
    numbers = _handed_runs(chunks)
    calls: dict[tuple[int, int, int], list[tuple[int, int]]] = {}
    for offset, chunk in zip(offsets, chunks, strict=True):
        for start in chunk.starts:
            run = start.run if start.handed is None else numbers.get(start.handed)
            found = programs.get((start.device, run)) or programs.get((ABSENT, run))
            if found:
                call = int(chunk.start_ns[start.row]), int(offset) + start.row
                calls.setdefault((*found, start.device), []).append(call)
    first = _first_launches(chunks, offsets) | {key: min(found)[1] for key, found in calls.items()}
    rows = np.array([(*key, event) for key, event in first.items()], np.int64).reshape(-1, 4)
    program, runs, device, event = rows.T
    return Launches(program, runs, np.full(len(rows), rank, np.int32), device.astype(np.int32), event.astype(np.int32))


def flows(chunks: Sequence[Chunk], offsets: Int64) -> Flows:
    """Work that one thread took over from another: pairs of the event that handed it on and the one that took it.

    Of several events that handed on under one number, the latest before counts.
    """
    handed: dict[HandOff, list[tuple[int, int, LaneKey]]] = {}
    for offset, chunk in zip(offsets, chunks, strict=True):
        for row, key in chunk.handed:
            handed.setdefault(key, []).append((int(chunk.start_ns[row]), int(offset) + row, chunk.lane))
    pairs = []
    for offset, chunk in zip(offsets, chunks, strict=True):
        for row, key in chunk.taken:
            before = [one for one in handed.get(key, ()) if one[0] <= chunk.start_ns[row]]
            _, source, lane = max(before, default=(0, ABSENT, chunk.lane))
            if lane != chunk.lane:
                pairs.append((source, int(offset) + row))
    sources, targets = np.array(pairs, np.int32).reshape(-1, 2).T
    return Flows(sources, targets)


def _handed_runs(chunks: Sequence[Chunk]) -> dict[HandOff, int]:
    """The run that was handed on under each number."""
    runs = {}
    for chunk in chunks:
        numbered = {start.row: start.run for start in chunk.starts if start.run is not None}
        runs.update({key: numbered[row] for row, key in chunk.handed if row in numbered})
    return runs


def _programs_of_runs(
    chunks: Sequence[Chunk], on_tpus: Iterable[tuple[int, Execution]]
) -> dict[tuple[int, int | None], tuple[int, int]]:
    """Program and run by the number that launches use: per device on TPU, for all devices (ABSENT) on CPU."""
    found: dict[tuple[int, int | None], tuple[int, int]] = {
        (device, execution.number): (execution.program, execution.run) for device, execution in on_tpus
    }
    for chunk in chunks:
        if chunk.hlo and chunk.lane.kind == LaneKind.WORKER:
            for row in numbered_pairs(chunk.hlo.program, chunk.hlo.run)[1].tolist():
                program, run = int(chunk.hlo.program[row]), int(chunk.hlo.run[row])
                found[ABSENT, run] = program, run
    return found


def _first_launches(chunks: Sequence[Chunk], offsets: Int64) -> dict[tuple[int, int, int], int]:
    """By program, run and GPU, the call that launched the run's first kernel."""
    first: dict[tuple[int, int, int], int] = {}
    for chunk in chunks:
        if chunk.hlo and chunk.lane.kind == LaneKind.STREAM:
            _note_first(chunk, chunk.hlo, first)
    call_of = _calls(chunks, offsets, np.array(list(first.values()), np.int64))
    return {key: call_of[at] for key, at in first.items() if at in call_of}


def _note_first(chunk: Chunk, hlo: Hlo, first: dict[tuple[int, int, int], int]) -> None:
    """The smallest correlation of the kernels of each run."""
    correlation = chunk.correlation[hlo.row]
    rows = np.flatnonzero(correlation >= 0)
    pair, of = numbered_pairs(hlo.program[rows], hlo.run[rows])
    least = np.full(len(of), np.iinfo(np.int64).max)
    np.minimum.at(least, pair, correlation[rows])
    for at in np.argsort(of).tolist():
        row = rows[of[at]]
        key = int(hlo.program[row]), int(hlo.run[row]), chunk.lane.device
        first[key] = min(first.get(key, int(least[at])), int(least[at]))


def _calls(chunks: Sequence[Chunk], offsets: Int64, sought: Int64) -> dict[int, int]:
    """The earliest call with each correlation that is sought."""
    calls = sorted(
        (int(chunk.start_ns[row]), int(chunk.correlation[row]), int(offset + row))
        for offset, chunk in zip(offsets, chunks, strict=True)
        if chunk.lane.kind == LaneKind.THREAD
        for row in np.flatnonzero(np.isin(chunk.correlation, sought))
    )
    return {correlation: event for _, correlation, event in reversed(calls)}
