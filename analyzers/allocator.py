"""What allocators of PyTorch handed out: the peak of each device over time, by use and by phase of the step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from traceflow.result import Json, Skipped
from traceflow.trace.model import ABSENT, Int64, MemoryEvents, MemorySource, MemoryUse, Rows, Trace

_CURVE = 1_000
_PHASES = ("forward", "backward", "optimizer")
_BACKWARD = "autograd::engine::evaluate_function"
_OPTIMIZER = "Optimizer."


@dataclass(frozen=True, slots=True)
class AllocatorUse:
    """Memory of one device, or of a rank's host, that an allocator handed out."""

    rank: int
    device: int | None
    source: str  # event, snapshot or timeline
    events: int
    peak_bytes: int | None
    peak_ns: int | None
    reserved_peak_bytes: int | None
    by_category_bytes: Mapping[str, int] | None  # at the peak of what the timeline knows
    by_phase_bytes: Mapping[str, int] | None  # most in each phase
    live: tuple[tuple[int, int], ...] = ()  # moments in ns, and most bytes allocated until the next

    def to_dict(self) -> dict[str, Json]:
        """A row of `allocator`."""
        return {
            "rank": self.rank,
            "device": self.device,
            "source": self.source,
            "events": self.events,
            "peak_bytes": self.peak_bytes,
            "peak_ns": self.peak_ns,
            "reserved_peak_bytes": self.reserved_peak_bytes,
            "by_category_bytes": None if self.by_category_bytes is None else dict(self.by_category_bytes),
            "by_phase_bytes": None if self.by_phase_bytes is None else dict(self.by_phase_bytes),
            "live": [{"start_ns": start_ns, "allocated_bytes": size_bytes} for start_ns, size_bytes in self.live],
        }


def allocators(trace: Trace) -> tuple[tuple[AllocatorUse, ...], tuple[Skipped, ...]]:
    """The memory of each rank and device, and what cannot be told of it.

    The peak is the largest amount in all that a source tells, at its first moment. Of several sources of one device
    the one that tells most counts: each may miss memory, as events on the host miss what was there before the profiler,
    and none makes any up. Categories are those of the timeline, at its own peak.
    """
    memory = trace.memory
    pairs = sorted(set(zip(memory.rank.tolist(), memory.device.tolist(), strict=True)))
    found = tuple(_use(trace, memory, rank, device) for rank, device in pairs)
    return found, tuple(_skipped(found))


def _use(trace: Trace, memory: MemoryEvents, rank: int, device: int) -> AllocatorUse:
    mine = np.flatnonzero((memory.rank == rank) & (memory.device == device))
    sources = [mine[memory.source[mine] == source] for source in np.unique(memory.source[mine])]
    rows = max(sources, key=lambda rows: _told_bytes(memory.allocated_bytes[rows]))
    allocated, reserved = memory.allocated_bytes[rows], memory.reserved_bytes[rows]
    whole = bool((allocated >= 0).all())
    peak = int(allocated.argmax())
    timeline = mine[memory.source[mine] == MemorySource.TIMELINE]
    return AllocatorUse(
        rank=rank,
        device=None if device == ABSENT else device,
        source=MemorySource(int(memory.source[rows[0]])).name.lower(),
        events=len(rows),
        peak_bytes=int(allocated[peak]) if whole else None,
        peak_ns=int(memory.time_ns[rows[peak]]) if whole else None,
        reserved_peak_bytes=None if (most := int(reserved.max())) < 0 else most,
        by_category_bytes=_by_category(memory, timeline) if len(timeline) else None,
        by_phase_bytes=_by_phase(trace, rank, memory.time_ns[rows], allocated) if whole else None,
        live=_curve(memory.time_ns[rows], allocated) if whole else (),
    )


def _told_bytes(allocated: Int64) -> int:
    """The most that a source tells, ABSENT where it does not tell all."""
    return int(allocated.max()) if (allocated >= 0).all() else ABSENT


def _by_category(memory: MemoryEvents, rows: Rows) -> dict[str, int]:
    """Bytes of each use at the first moment at which the timeline holds most."""
    until = rows[: int(memory.allocated_bytes[rows].argmax()) + 1]
    sums = np.zeros(len(MemoryUse), np.int64)
    np.add.at(sums, memory.use[until], memory.change_bytes[until])
    return {use.name.lower(): int(sums[use]) for use in MemoryUse if sums[use]}


def _by_phase(trace: Trace, rank: int, time_ns: Int64, allocated: Int64) -> dict[str, int] | None:
    """Most bytes in each phase; a phase lasts until something of another begins. None where nothing tells phases."""
    moments, phases = _phases(trace, rank)
    if not len(moments):
        return None
    at = np.searchsorted(moments, time_ns, side="right") - 1
    phase = np.where(at < 0, 0, phases[np.maximum(at, 0)])
    return {name: int(allocated[phase == i].max()) for i, name in enumerate(_PHASES) if (phase == i).any()}


def _phases(trace: Trace, rank: int) -> tuple[Int64, Int64]:
    """Moments at which something of a phase begins, and its number; none without a backward pass.

    Forward are operators that a backward pass follows up, the beginning of a step, and the end of an optimizer's work.
    """
    events, marks = trace.events, trace.marks
    mine = trace.lanes.rank[events.lane] == rank if len(events) else np.empty(0, bool)
    backward, optimizer = (
        np.array([text.startswith(start) for text in trace.strings] or [False])[events.name] & mine
        for start in (_BACKWARD, _OPTIMIZER)
    )
    if not backward.any():
        return np.empty(0, np.int64), np.empty(0, np.int64)
    sources = np.unique(trace.flows.source)
    forward = np.concatenate(
        (events.start_ns[sources[mine[sources]]], marks.start_ns[marks.rank == rank], events.end_ns[optimizer])
    )
    begins = [forward, events.start_ns[backward], events.start_ns[optimizer]]
    moments = np.concatenate(begins)
    phases = np.repeat(np.arange(len(begins)), list(map(len, begins)))
    order = np.argsort(moments, kind="stable")
    return moments[order], phases[order]


def _curve(time_ns: Int64, allocated: Int64) -> tuple[tuple[int, int], ...]:
    """Amounts in all in at most `_CURVE` stretches of time, each as high as its highest moment."""
    span = int(time_ns[-1] - time_ns[0]) + 1
    cell = (time_ns - time_ns[0]) * min(_CURVE, span) // span
    first = np.flatnonzero(np.diff(cell, prepend=-1))
    carried = np.maximum(np.maximum.reduceat(allocated, first), np.append(allocated[:1], allocated[first[1:] - 1]))
    return tuple(zip(time_ns[first].tolist(), carried.tolist(), strict=True))


def _skipped(found: tuple[AllocatorUse, ...]) -> Iterator[Skipped]:
    if not found:
        yield Skipped("/result/allocator", "the capture holds no record of allocations")
        return
    if any(use.peak_bytes is None for use in found):
        reason = "history truncated: amounts in all cannot be told"
        for what in ("peak_bytes", "peak_ns"):
            yield Skipped(f"/result/allocator/*/{what}", reason)
    if any(use.reserved_peak_bytes is None for use in found):
        yield Skipped("/result/allocator/*/reserved_peak_bytes", "the source does not say what the allocator holds")
    if any(use.by_category_bytes is None for use in found):
        yield Skipped("/result/allocator/*/by_category_bytes", "no memory timeline says what memory was used for")
    if any(use.by_phase_bytes is None for use in found):
        yield Skipped("/result/allocator/*/by_phase_bytes", "nothing tells the phases, or no amount in all is known")
