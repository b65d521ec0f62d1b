"""Host threads that an XLA trace shows twice: once with the calls into the device's runtime, once with all else.

The runtime's own tracer numbers threads in its own way, so that its lines cannot be joined by number. But XLA names
the span in which it launches an operation after the operation, and the calls inside carry that name: the thread of a
line of calls is the one whose spans hold each of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from traceflow.trace._xla_lines import Chunk
from traceflow.trace.model import Int64, LaneKind


def rejoined(chunks: Sequence[Chunk]) -> list[Chunk]:
    """Move lines of runtime calls to the lane of their thread, where exactly one fits all their calls."""
    calls = [chunk for chunk in chunks if _is_calls_only(chunk)]
    threads = [chunk for chunk in chunks if chunk.lane.kind == LaneKind.THREAD and not _is_calls_only(chunk)]
    named = {operation for chunk in calls for operation in chunk.launching}
    spans = [_spans(thread, named) for thread in threads]
    lane = {}
    for chunk in calls:
        fitting = [thread.lane for thread, own in zip(threads, spans, strict=True) if _holds(own, chunk)]
        if len(fitting) == 1:
            lane[chunk.lane] = fitting[0]
    return [replace(chunk, lane=lane.get(chunk.lane, chunk.lane)) for chunk in chunks]


def _is_calls_only(chunk: Chunk) -> bool:
    return bool(chunk.launching) and chunk.lane.kind == LaneKind.THREAD and bool((chunk.correlation >= 0).all())


def _spans(thread: Chunk, named: set[str]) -> dict[str, tuple[Int64, Int64]]:
    """Start and end of a thread's spans that are named after operations, by name and in order."""
    rows: dict[str, list[int]] = {}
    found = np.flatnonzero(thread.names.each(lambda name: name in named, bool)) if named else np.empty(0, np.int64)
    for row, name in zip(found.tolist(), thread.names.take(found).listed(), strict=True):
        rows.setdefault(name, []).append(row)
    ordered = {name: np.array(own)[np.argsort(thread.start_ns[own], kind="stable")] for name, own in rows.items()}
    return {name: (thread.start_ns[own], thread.end_ns[own]) for name, own in ordered.items()}


def _holds(spans: dict[str, tuple[Int64, Int64]], calls: Chunk) -> bool:
    """Whether each call that launches an operation lies in a span of the operation's name."""
    for operation, rows in calls.launching.items():
        if operation not in spans:
            return False
        start_ns, end_ns = spans[operation]
        at = np.searchsorted(start_ns, calls.start_ns[rows], side="right") - 1
        if (at < 0).any() or (end_ns[at] < calls.end_ns[rows]).any():
            return False
    return True
