"""Clock offsets between hosts, from the moments at which collectives ended."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from traceflow.analyzers.matching import match
from traceflow.result import Finding, Json, Note, Shown, Skipped
from traceflow.trace.canonical import canonical
from traceflow.trace.model import Bool, Int64, Rows, Trace

if TYPE_CHECKING:
    import pandas as pd

_ROUNDS = 20
_ENOUGH_FOR_DRIFT = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Clocks(Shown):
    """Per rank, what to subtract from its timestamps to read the reference rank's clock; None where unknown."""

    kind: ClassVar[str] = "clocks"
    reference_rank: int
    offset_ns: dict[int, int | None]  # at the start of the capture
    drift_ppb: dict[int, int | None]  # growth of the offset, ns per s; 0 where the capture shows none
    residual_ns: int
    unaligned: tuple[tuple[int, ...], ...]
    findings: tuple[Finding, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    notes: tuple[Note, ...] = ()

    def to_dict(self) -> dict[str, Json]:
        """The `result` object of the JSON contract."""
        return {
            "reference_rank": self.reference_rank,
            "offset_ns": {str(rank): offset for rank, offset in self.offset_ns.items()},
            "drift_ppb": {str(rank): drift for rank, drift in self.drift_ppb.items()},
            "residual_ns": self.residual_ns,
            "unaligned": [list(ranks) for ranks in self.unaligned],
        }

    def to_pandas(self) -> pd.DataFrame:
        """One row per rank."""
        import pandas as pd

        ranks = list(self.offset_ns)
        columns = {"rank": ranks, "offset_ns": self.offset_ns.values(), "drift_ppb": self.drift_ppb.values()}
        return pd.DataFrame({name: pd.array(list(values), dtype="Int64") for name, values in columns.items()})


@dataclass(frozen=True, slots=True)
class _Observations:
    """When symmetric collectives arrived and ended, one row per participant, on each participant's own clock."""

    collective: Int64
    clock: Int64
    arrival_ns: Int64
    end_ns: Int64


def clocks(trace: Trace) -> Clocks:
    """Estimate the offset of every clock from the ends of symmetric collectives.

    Ranks of one host share a clock. Participants of a symmetric collective end it together, so that with T_k the
    common end of collective k, offset_c = median over k of (end_kc - T_k); both are found in turn, outward from
    the reference rank's clock through overlapping groups. Nobody ends before the last arrival, which bounds each
    offset from both sides. A drift is told where a line through the ends leaves a quarter of the spread. The
    residual is the 95th percentile of abs(end_kc - offset_c - T_k): the error bar of every cross-rank figure.

    Args:
        trace: All ranks, each on its own host's clock.

    Complexity: O(rounds x participants of collectives).
    """
    seen = _observed(trace)
    clock_of = {rank.rank: rank.clock for rank in trace.ranks}
    reference = min(clock_of)
    offset, drift, residual = _solved(seen, clock_of[reference], max(clock_of.values()) + 1)
    component = _components(seen, max(clock_of.values()) + 1)
    known = {rank: component[clock] == component[clock_of[reference]] for rank, clock in clock_of.items()}
    lost = sorted({component[clock] for rank, clock in clock_of.items() if not known[rank]})
    unaligned = tuple(tuple(sorted(r for r, c in clock_of.items() if component[c] == island)) for island in lost)
    return Clocks(
        reference_rank=reference,
        offset_ns={rank: int(offset[clock]) if known[rank] else None for rank, clock in sorted(clock_of.items())},
        drift_ppb={rank: int(drift[clock]) if known[rank] else None for rank, clock in sorted(clock_of.items())},
        residual_ns=residual,
        unaligned=unaligned,
        skipped=tuple(
            Skipped(f"/result/offset_ns/{rank}", "no collective in common links it to the reference rank")
            for rank, linked in sorted(known.items())
            if not linked
        ),
    )


def aligned(trace: Trace, found: Clocks) -> Trace:
    """The trace on the reference rank's clock; ranks without a link keep their own.

    Args:
        trace: What `found` was estimated from.
        found: The offsets.
    """
    reference = clock_of_reference(trace, found)
    if reference is None:
        return trace
    origin = int(trace.events.start_ns.min(initial=0))
    joined = tuple(r if found.offset_ns[r.rank] is None else replace(r, clock=reference) for r in trace.ranks)
    return canonical(replace(shifted(trace, found, origin), ranks=joined, clock_error_ns=found.residual_ns))


def clock_of_reference(trace: Trace, found: Clocks) -> int | None:
    """The clock that the reference rank reads; None where all ranks read one.

    Args:
        trace: What `found` was estimated from.
        found: The offsets.
    """
    if len({rank.clock for rank in trace.ranks}) < 2:
        return None
    return next(rank.clock for rank in trace.ranks if rank.rank == found.reference_rank)


def shifted(trace: Trace, found: Clocks, origin_ns: int) -> Trace:
    """The trace of some ranks with the times that their reference's clock showed, its rows in the order they were.

    Args:
        trace: Some ranks of what `found` was estimated from.
        found: The offsets.
        origin_ns: The moment at which they hold; later they grow by the drift.
    """
    e, marks, memory = trace.events, trace.marks, trace.memory
    rank = trace.lanes.rank[e.lane]
    return replace(
        trace,
        events=replace(
            e,
            start_ns=_shifted(e.start_ns, rank, found, origin_ns),
            end_ns=_shifted(e.end_ns, rank, found, origin_ns),
        ),
        marks=replace(
            marks,
            start_ns=_shifted(marks.start_ns, marks.rank, found, origin_ns),
            end_ns=_shifted(marks.end_ns, marks.rank, found, origin_ns),
        ),
        memory=replace(memory, time_ns=_shifted(memory.time_ns, memory.rank, found, origin_ns)),
    )


def _shifted(time_ns: Int64, rank: Rows, found: Clocks, origin_ns: int) -> Int64:
    ranks = np.array(sorted(found.offset_ns))
    at = np.searchsorted(ranks, rank)
    offset = np.array([found.offset_ns[r] or 0 for r in ranks.tolist()], np.int64)[at]
    drift = np.array([found.drift_ppb[r] or 0 for r in ranks.tolist()], np.int64)[at]
    grown: Int64 = np.rint((time_ns - origin_ns) * (drift / 1e9)).astype(np.int64)
    return time_ns - offset - grown


def _observed(trace: Trace) -> _Observations:
    """Participants of the collectives in which everybody waits for everybody."""
    matches = match(trace, across_clocks=True)
    rows = np.flatnonzero(matches.joined)
    event = trace.communications.event[rows]
    clock_of = {rank.rank: rank.clock for rank in trace.ranks}
    of_lane = np.array([clock_of[rank] for rank in trace.lanes.rank.tolist()], np.int64)
    clock = of_lane[trace.events.lane[event]]
    collective = np.unique(matches.instance[rows], return_inverse=True)[1].ravel()
    return _Observations(collective, clock, trace.events.start_ns[event], trace.events.end_ns[event])


def _components(seen: _Observations, clocks: int) -> list[int]:
    """A number per clock, equal where collectives link them."""
    component, one = np.arange(clocks), _per_clock(seen)
    while True:
        lowest = np.full(int(one.collective.max(initial=-1)) + 1, clocks)
        np.minimum.at(lowest, one.collective, component[one.clock])
        before = component.copy()
        np.minimum.at(component, one.clock, lowest[one.collective])
        if (component == before).all():
            return [int(number) for number in component]


def _per_clock(seen: _Observations) -> _Observations:
    """One row for all participants of a collective who read one clock: the last to arrive, and the first to end."""
    order = np.lexsort((seen.clock, seen.collective))
    collective, clock = seen.collective[order], seen.clock[order]
    first = np.ones(len(order), bool)
    first[1:] = (collective[1:] != collective[:-1]) | (clock[1:] != clock[:-1])
    at = np.flatnonzero(first)
    if not len(at):
        return seen
    arrival_ns = np.maximum.reduceat(seen.arrival_ns[order], at)
    end_ns = np.minimum.reduceat(seen.end_ns[order], at)
    return _Observations(collective[at], clock[at], arrival_ns, end_ns)


def _by_clock(seen: _Observations) -> dict[int, Int64]:
    """The rows of each clock."""
    order = np.argsort(seen.clock, kind="stable")
    clocks, first = np.unique(seen.clock[order], return_index=True)
    return dict(zip(clocks.tolist(), np.split(order, first[1:]), strict=True)) if len(order) else {}


def _solved(seen: _Observations, reference: int, clocks: int) -> tuple[Int64, Int64, int]:
    """Offset and drift of each clock, and the residual."""
    offset, drift = np.zeros(clocks, np.int64), np.zeros(clocks, np.int64)
    placed = np.zeros(clocks, bool)
    placed[reference] = True
    rows, bounding = _by_clock(seen), _per_clock(seen)
    for _ in range(_ROUNDS + clocks):
        before = offset.copy(), placed.sum()
        end_ns = _common_end(seen, offset, placed)
        for clock, own in rows.items():
            mine = own[end_ns[seen.collective[own]] > np.iinfo(np.int64).min]
            if clock != reference and len(mine):
                estimate = _median(seen.end_ns[mine] - end_ns[seen.collective[mine]])
                offset[clock] = _feasible(bounding, offset, placed, clock, estimate)
                placed[clock] = True
        if (offset == before[0]).all() and placed.sum() == before[1]:
            break
    end_ns = _common_end(seen, offset, placed)
    error_ns = seen.end_ns - offset[seen.clock] - end_ns[seen.collective]
    usable = placed[seen.clock] & (end_ns[seen.collective] > np.iinfo(np.int64).min)
    for clock, own in rows.items():
        mine = own[usable[own]]
        if not len(mine):
            continue
        drift[clock], offset[clock], error_ns[mine] = _drift(seen.end_ns[mine], error_ns[mine], int(offset[clock]))
    residual = int(np.percentile(np.abs(error_ns[usable]), 95)) if usable.any() else 0
    return offset, drift, residual


def _common_end(seen: _Observations, offset: Int64, placed: Bool) -> Int64:
    """Median end of each collective over the participants whose clock is placed; the minimum where none is."""
    end_ns = np.full(int(seen.collective.max(initial=-1)) + 1, np.iinfo(np.int64).min)
    rows = np.flatnonzero(placed[seen.clock])
    times = seen.end_ns[rows] - offset[seen.clock[rows]]
    order = np.lexsort((times, seen.collective[rows]))
    which, first, count = np.unique(seen.collective[rows][order], return_index=True, return_counts=True)
    end_ns[which] = times[order][first + (count - 1) // 2]
    return end_ns


def _feasible(seen: _Observations, offset: Int64, placed: Bool, clock: int, estimate: int) -> int:
    """The estimate, moved as little as needed so that nobody ends before the last arrival, if that is possible."""
    other = placed[seen.clock] & (seen.clock != clock)
    mine = seen.clock == clock
    size = int(seen.collective.max()) + 1
    low, high = np.iinfo(np.int64).min // 2, np.iinfo(np.int64).max // 2
    arrival, end = np.full(size, low), np.full(size, high)
    np.maximum.at(arrival, seen.collective[other], seen.arrival_ns[other] - offset[seen.clock[other]])
    np.minimum.at(end, seen.collective[other], seen.end_ns[other] - offset[seen.clock[other]])
    linked = mine & (arrival[seen.collective] > low)
    if not linked.any():
        return estimate
    upper = int((seen.end_ns[linked] - arrival[seen.collective[linked]]).min())
    lower = int((seen.arrival_ns[linked] - end[seen.collective[linked]]).max())
    return min(max(estimate, lower), upper) if lower <= upper else estimate


def _drift(end_ns: Int64, error_ns: Int64, offset: int) -> tuple[int, int, Int64]:
    """Slope of the error in ppb, the offset at the capture's origin, and the error that remains."""
    if len(end_ns) < _ENOUGH_FOR_DRIFT or end_ns.max() == end_ns.min():
        return 0, offset, error_ns
    slope, level = np.polyfit(end_ns.astype(float), error_ns.astype(float), 1)
    remaining = error_ns - np.rint(slope * end_ns + level).astype(np.int64)
    if 4 * np.median(np.abs(remaining)) >= np.median(np.abs(error_ns)):
        return 0, offset, error_ns
    return round(slope * 1e9), offset + round(level), remaining


def _median(values: Int64) -> int:
    """Lower median, so that equal observations give their own value."""
    return int(np.sort(values)[(len(values) - 1) // 2])
