"""What each rank's own lateness costs all of them, from what the same work takes on the others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from traceflow.analyzers.across.part import View, walks
from traceflow.analyzers.across.reduced import Whole, edges_of
from traceflow.analyzers.late_work import Work, as_each, as_in_stages, changed, on_path, work_of
from traceflow.analyzers.stages import stage_of_events
from traceflow.analyzers.stragglers import Straggler, straggler
from traceflow.graph import Float64, Rows, SliceKind
from traceflow.trace.model import ABSENT, Int64

Cause: TypeAlias = tuple[int, str]
"""What kind of work, and its name."""


@dataclass(frozen=True, slots=True)
class Took:
    """How long the work of one cause took on a rank: each time, and in each stage, by its name ("" for none)."""

    each_ns: Int64
    in_stage_ns: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Middle:
    """The middle of the values of several ranks: what their median is without any one of them."""

    low: Float64
    high: Float64
    after_low: Float64
    after_high: Float64

    @classmethod
    def of(cls, values: Float64 | Int64) -> Middle:
        """Of one row of values for each rank, two rows or more."""
        ordered, peers = np.sort(values, axis=0), len(values) - 1
        low, high = (peers - 1) // 2, peers // 2
        return cls(ordered[low], ordered[high], ordered[low + 1], ordered[high + 1])

    def without(self, own: Float64 | Int64) -> Float64:
        """The median of the others, where one of the rows was `own`."""
        low = np.where(self.low < own, self.low, self.after_low)
        high = np.where(self.high < own, self.high, self.after_high)
        median: Float64 = (low + high) / 2
        return median


@dataclass(frozen=True, slots=True)
class Expected:
    """What a cause on one rank is compared with: its peers one by one, or by stage where their number differs."""

    cause: Cause
    peers: int
    each_ns: Middle | None = None
    in_stage_ns: Mapping[str, float] | None = None
    in_all_ns: float = 0.0
    only_in: frozenset[str] | None = None  # stages, where no other rank does such work


def causes_on(view: View, meetings: Sequence[int]) -> list[Cause]:
    """What lies on the ways from some arrivals of a rank."""
    work = _work(view)
    ways = walks(view, meetings)
    rows = np.flatnonzero(on_path(view.graph, work, np.concatenate([*ways, np.empty(0, np.int64)])))
    names = view.trace.strings
    return sorted({(int(work.cause[row]), names[work.name[row]]) for row in rows.tolist()})


def took(view: View, causes: Sequence[Cause]) -> list[Took | None]:
    """How long the work of each cause took on a rank; None where it did none of it."""
    work = _work(view)
    found = []
    for rows in _rows(view, work, causes):
        stages = {name: float(work.duration_ns[rows[of]].sum()) for name, of in _by_stage(view, work, rows)}
        found.append(Took(work.duration_ns[rows], stages) if len(rows) else None)
    return found


def names_on_host(view: View, names: Sequence[str]) -> list[bool]:
    """Which names events of the host have on a rank."""
    e = view.trace.events
    codes = np.unique(e.name[view.trace.lanes.device[e.lane] == ABSENT])
    there = {view.trace.strings[code] for code in codes.tolist()}
    return [name in there for name in names]


def costs(view: View, part: int, expected: Sequence[Expected], whole: Whole) -> list[Straggler]:
    """What each cause on a rank costs."""
    work, found = _work(view), []
    for one, rows in zip(expected, _rows(view, work, [one.cause for one in expected]), strict=True):
        mine = rows if one.only_in is None else _within(view, work, rows, one.only_in)
        if not len(mine):
            continue
        target = _target(view, work, mine, one)
        if target.sum() < work.duration_ns[mine].sum():
            end_ns = whole.end_with(part, edges_of(view, *changed(view.graph, work, mine, target)))
            found.append(straggler(view.trace, view.graph, work, mine, target, peers=one.peers, end_ns=end_ns))
    return found


def _work(view: View) -> Work:
    return work_of(view.trace, view.graph, stage_of_events(view.trace, view.launch_call))


def _rows(view: View, work: Work, causes: Sequence[Cause]) -> Iterator[Int64]:
    codes = {text: code for code, text in enumerate(view.trace.strings)}
    for cause, name in causes:
        yield np.flatnonzero((work.cause == cause) & (work.name == codes.get(name, ABSENT)))


def _by_stage(view: View, work: Work, rows: Int64) -> Iterator[tuple[str, Rows]]:
    stages, code = np.unique(work.stage[rows], return_inverse=True)
    for at, stage in enumerate(stages.tolist()):
        yield _stage_name(view, stage), np.flatnonzero(code.ravel() == at)


def _stage_name(view: View, stage: int) -> str:
    return "" if stage == ABSENT else view.trace.strings[stage]


def _within(view: View, work: Work, rows: Int64, stages: frozenset[str]) -> Int64:
    kept = [rows[of] for name, of in _by_stage(view, work, rows) if name in stages]
    return np.sort(np.concatenate([*kept, np.empty(0, np.int64)]))


def _target(view: View, work: Work, mine: Int64, one: Expected) -> Int64:
    own_ns = work.duration_ns[mine]
    if one.each_ns is not None:
        return as_each(own_ns, one.each_ns.without(own_ns))
    stages, usual = np.unique(work.stage[mine]), one.in_stage_ns or {}
    expected = np.array([usual.get(_stage_name(view, stage), 0.0) for stage in stages.tolist()])
    return as_in_stages(work, mine, stages, expected, max(own_ns.sum() - one.in_all_ns, 0))


def expectations(
    causes: Sequence[Cause], told: Sequence[Sequence[Took | None]], late: Sequence[set[Cause]], clocks: Sequence[int]
) -> tuple[list[list[Expected]], list[list[Cause]]]:
    """What each late cause is compared with, by rank, and those of the host that no other rank has.

    Args:
        causes: All that lie on the path.
        told: How long they took, by rank, in the order of `causes`.
        late: Which lie on the path of each rank.
        clocks: The clock of each rank; only those of one clock are compared.
    """
    expected: list[list[Expected]] = [[] for _ in told]
    alone: list[list[Cause]] = [[] for _ in told]
    for at, cause in enumerate(causes):
        for clock in sorted(set(clocks)):
            group = {i: one for i, tell in enumerate(told) if clocks[i] == clock and (one := tell[at]) is not None}
            asked = [i for i in group if cause in late[i]]
            if len(group) == 1 and cause[0] == SliceKind.HOST:
                for i in asked:
                    alone[i].append(cause)
            elif len(group) > 1 and asked:
                for i, comparison in _compared(cause, group, asked):
                    expected[i].append(comparison)
    return expected, alone


def _compared(cause: Cause, group: Mapping[int, Took], asked: Sequence[int]) -> Iterator[tuple[int, Expected]]:
    peers = len(group) - 1
    if len({len(one.each_ns) for one in group.values()}) == 1:
        middle = Middle.of(np.stack([one.each_ns for one in group.values()]))
        yield from ((i, Expected(cause, peers, middle)) for i in asked)
        return
    stages = sorted({name for one in group.values() for name in one.in_stage_ns})
    sums = {i: np.array([one.in_stage_ns.get(name, 0.0) for name in stages]) for i, one in group.items()}
    totals = {i: np.array([float(one.each_ns.sum())]) for i, one in group.items()}
    middle, in_all = Middle.of(np.stack(list(sums.values()))), Middle.of(np.stack(list(totals.values())))
    for i in asked:
        usual = dict(zip(stages, middle.without(sums[i]).tolist(), strict=True))
        yield i, Expected(cause, peers, None, usual, float(in_all.without(totals[i])[0]))


def done_alone(cause: Cause, stages: Sequence[str], there: Sequence[Sequence[bool]]) -> Expected | None:
    """What work that no other rank does is compared with: none of it, in the stages that others have, too.

    Args:
        cause: The work.
        stages: In which it is done.
        there: Per other rank, which of these it has.
    """
    has = np.array(there, bool).reshape(len(there), len(stages))
    peers = int(has.any(axis=1).sum())
    shared = frozenset(name for at, name in enumerate(stages) if has[:, at].any())
    return Expected(cause, peers, None, {}, 0.0, shared) if peers else None
