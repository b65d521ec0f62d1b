"""A run whose ranks stay on the workers of a cluster; what crosses ranks is answered there, to the byte as here."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import finalize

import numpy as np

from traceflow.analyzers.across import late, part, path, reduced
from traceflow.analyzers.across.part import NOWHERE, Told, Ways
from traceflow.analyzers.across.skeleton import Skeleton, placed, placements, skeleton, together
from traceflow.analyzers.clocks import Clocks, aligned, clocks
from traceflow.analyzers.critical_path import CriticalPath, first_of_all, path_of, path_times
from traceflow.analyzers.dependencies import notes_of, resolution_of
from traceflow.analyzers.matching import match
from traceflow.analyzers.stragglers import Stragglers, ranked
from traceflow.analyzers.window import Window
from traceflow.cluster import Held, Spread, connect, losses_told
from traceflow.errors import TraceflowError
from traceflow.evidence import Evidence, files_of_ranks, in_order_of_rank, read, read_rank
from traceflow.remote import is_url
from traceflow.run import Run, open_run
from traceflow.trace.communication_names import usable
from traceflow.trace.model import ABSENT, Trace
from traceflow.trace.one_run import signs_of_several_runs

if TYPE_CHECKING:
    from distributed import Client

    from traceflow.analyzers.operation_table import OperationStragglers
    from traceflow.report.json import Opened
    from traceflow.result import Note


def open_spread(source: str | Path, address: str, *, communication: Iterable[str] = ()) -> Run:
    """Open traces of many ranks on a Dask cluster, whose workers see them under the same paths.

    Clocks, the critical path and stragglers are found where the traces were read, and only collectives and summaries
    travel. For every other question, and for inputs that need to be seen as a whole, all ranks are brought here. The
    answers are the same.

    Args:
        source: As for `traceflow.open`.
        address: Of the scheduler.
        communication: As for `traceflow.open`.

    Raises:
        TraceflowError: As `traceflow.open`; TF127 where the cluster cannot be reached, or is lost.
    """
    client, patterns = connect(address), tuple(communication)
    usable(patterns)
    run = None if is_url(source) else _spread(Path(source), client, patterns)
    if run is None:
        with losses_told(client):
            run = open_run(source, communication=patterns, executor=client.get_executor())
    finalize(run, client.close)
    return run


def _spread(source: Path, client: Client, patterns: tuple[str, ...]) -> Run | None:
    try:
        files = files_of_ranks(source)
    except OSError:
        return None  # which is told when it is read
    return SpreadRun(source, client, patterns, files) if files else None


class SpreadRun(Run):
    """A run that is on a cluster, and comes here when it has to."""

    def __init__(self, source: Path, client: Client, patterns: tuple[str, ...], files: list[tuple[Path, int]]) -> None:
        given = {"inputs": (str(source),), "original": None, "redaction": None}
        own = {"_source": source, "_client": client, "_patterns": patterns, "_files": files}
        for name, value in {**given, **own}.items():
            object.__setattr__(self, name, value)

    _source: Path
    _client: Client
    _patterns: tuple[str, ...]
    _files: list[tuple[Path, int]]

    @cached_property
    def evidence(self) -> Evidence:
        """All ranks, brought here."""
        with losses_told(self._client):
            return read(self._source, communication=self._patterns, executor=self._client.get_executor())

    @cached_property
    def _ranks(self) -> _Ranks:
        by_rank = sorted(self._files, key=lambda named: named[1])
        try:
            return _Ranks.read(Spread(self._client, len(by_rank)), by_rank, usable(self._patterns))
        except TraceflowError:
            self.evidence  # noqa: B018  # of several errors, the one that is told without a cluster
            raise

    @property
    def is_here(self) -> bool:
        """Whether all ranks have been brought here."""
        return "evidence" in self.__dict__

    @property
    def subject(self) -> Opened:
        """What an answer has to know of the run: what all ranks have in common, as long as that was enough."""
        return self if self.is_here else Brief(self.inputs, self._ranks.trace)

    @cached_property
    def _clocks(self) -> Clocks:
        return self._ranks.clocks

    def clocks(self) -> Clocks:
        """Offsets between the clocks of the ranks' hosts, found from collectives alone."""
        return self._clocks

    def critical_path(self, *, step: int | None = None, window: str | None = None, slack: bool = False) -> CriticalPath:
        """The critical path, found by each rank for itself from one meeting to the next."""
        seen = None if window is not None or slack else self._ranks.seen(step)
        return super().critical_path(step=step, window=window, slack=slack) if seen is None else seen.critical_path()

    def stragglers(self, *, step: int | None = None, window: str | None = None) -> Stragglers | OperationStragglers:
        """Who was late by their own doing, replayed on what each rank is between meetings."""
        seen = None if window is not None else self._ranks.seen(step)
        answer = None if seen is None else seen.stragglers()
        return super().stragglers(step=step, window=window) if answer is None else answer


@dataclass(frozen=True)
class Brief:
    """What an answer has to know of a run."""

    inputs: tuple[str, ...]
    trace: Trace


def _read_part(file: Path, rank: int, patterns: tuple[str, ...]) -> tuple[Trace, Skeleton]:
    return skeleton(read_rank(file, rank, patterns))


def _placed(trace: Trace, at: Any) -> tuple[Trace, int]:
    moved = placed(trace, at)
    return moved, resolution_of(moved)


@dataclass(frozen=True)
class _Ranks:
    """All ranks on their workers, their graphs built, and what they have in common."""

    spread: Spread
    trace: Trace  # all skeletons, on one clock
    clocks: Clocks
    parts: Held | None  # None where they have to be seen as a whole
    told: tuple[Told, ...] = ()
    meetings: int = 0

    @classmethod
    def read(cls, spread: Spread, files: list[tuple[Path, int]], patterns: tuple[str, ...]) -> _Ranks:
        """Read all ranks, and build the graph of each if none needs more of others than their collectives.

        Raises:
            TraceflowError: As `traceflow.open`.
        """
        names = [file for file, _ in files]
        traces, skeletons = spread.kept_and_told(
            spread.each(_read_part, names, [rank for _, rank in files], shared=(patterns,))
        )
        order = in_order_of_rank(names, [one.trace.ranks[0].rank for one in skeletons])
        if order != sorted(order):  # the names told something else than the files
            return cls.read(spread, [files[at] for at in order], patterns)
        signs = signs_of_several_runs([(file, one.outline) for file, one in zip(names, skeletons, strict=True)])
        merged = together(skeletons, signs)
        found = clocks(merged)
        anchored = replace(merged, epoch_ns=merged.epoch_ns or 0)
        shared = aligned(anchored, found)
        places = placements(skeletons, merged, shared, found)
        if merged.epoch_ns is None:
            shared = replace(shared, epoch_ns=None)
        matches = match(shared)
        own = part.owned(shared, matches)
        if own is None or not all(one.separable for one in skeletons):
            return cls(spread, shared, found, None)
        moved, resolutions = spread.kept_and_told(spread.each(_placed, traces, places))
        parts, told = spread.kept_and_told(spread.each(part.part_of, moved, own, shared=(min(resolutions),)))
        complete = all(one.complete for one in told)
        meetings = int(matches.instance.max(initial=-1)) + 1
        return cls(spread, shared, found, parts if complete else None, tuple(told), meetings)

    @property
    def notes(self) -> tuple[Note, ...]:
        """What limits the graph of all ranks."""
        return notes_of([one.remarks for one in self.told], self.trace)

    def seen(self, step: int | None) -> _Seen | None:
        """All ranks in a window; None where they have to be seen as a whole."""
        if self.parts is None or not any(one.counted for one in self.told):
            return None
        if step is None:
            counted = [one for one in self.told if one.counted]
            start_ns, end_ns = min(one.start_ns for one in counted), max(one.end_ns for one in counted)
        else:
            extents = self.spread.told(self.spread.each(part.step_told, self.parts, shared=(step,)))
            start_ns, end_ns = min(start for start, _ in extents), max(end for _, end in extents)
            if step not in self.trace.marks.step or end_ns == np.iinfo(np.int64).min:
                return None  # which is told when all are here
        views = self.spread.each(part.view_of, self.parts, shared=(start_ns, end_ns, step))
        ways = self.spread.told(self.spread.each(part.ways, views))
        return _Seen(self, Window(start_ns, end_ns, step), views, ways)


@dataclass(frozen=True)
class _Seen:
    """All ranks in one window."""

    ranks: _Ranks
    window: Window
    views: Held
    ways: list[Ways]

    @cached_property
    def _last(self) -> dict[int, tuple[int, int, int]]:
        return path.last_arrivals(self.ways)

    @cached_property
    def _route(self) -> list[tuple[int, int]]:
        return path.route(self.ways, self._last)

    def _by_part(self) -> list[list[int]]:
        """Per rank, the meetings at which the path arrives there, in order of time."""
        legs: list[list[int]] = [[] for _ in self.ways]
        for at, meeting in self._route:
            legs[at].append(meeting)
        return legs

    def critical_path(self) -> CriticalPath:
        """The path from each rank's own ways."""
        spread, legs = self.ranks.spread, self._by_part()
        told = [iter(times) for times in spread.told(spread.each(path.way_times, self.views, legs))]
        ways = [next(told[at]) for at, _ in self._route]
        time_ns, previous_ns = path_times(np.concatenate(ways), self.window.start_ns)
        times: list[list[Any]] = [[] for _ in self.ways]
        first = 0
        for (at, _), way in zip(self._route, ways, strict=True):
            times[at].append((time_ns[first : first + len(way)], previous_ns[first : first + len(way)]))
            first += len(way)
        ranks = [int(rank.rank) for rank in sorted(self.ranks.trace.ranks, key=lambda one: one.rank)]
        met = {meeting for _, meeting in self._route} - {NOWHERE}
        who = {meeting: self._last[meeting] for meeting in met}
        last = {meeting: (ranks[at], None if device == ABSENT else device) for meeting, (at, _, device) in who.items()}
        found = [
            iter(one) for one in spread.told(spread.each(path.segments_on, self.views, legs, times, shared=(last,)))
        ]
        segments = path.joined([next(found[at]) for at, _ in self._route])
        return path_of(self.ranks.trace, self.window, first_of_all(segments), None, self.ranks.notes)

    def stragglers(self) -> Stragglers | None:
        """Costs from what each rank is between meetings."""
        spread, legs, trace = self.ranks.spread, self._by_part(), self.ranks.trace
        if len(trace.ranks) < 2:
            return None
        whole = reduced.whole_of(spread.told(spread.each(reduced.edges_of, self.views)), self.ranks.meetings)
        if whole is None or whole.end_ns(whole.longest_ns) != self.window.end_ns:
            return None
        own = spread.told(spread.each(late.causes_on, self.views, legs))
        causes = sorted({cause for some in own for cause in some})
        took = spread.told(spread.each(late.took, self.views, shared=(causes,)))
        clock = {rank.rank: rank.clock for rank in trace.ranks}
        clock_of = [clock[rank] for rank in sorted(clock)]
        expected, alone = late.expectations(causes, took, [set(some) for some in own], clock_of)
        self._compare_alone(alone, causes, took, clock_of, expected)
        shared = (spread.shared(whole),)
        rows = spread.told(spread.each(late.costs, self.views, list(range(len(own))), expected, shared=shared))
        found = [row for some in rows for row in some]
        return ranked(trace, self.window, found, self.ranks.notes)

    def _compare_alone(
        self, alone: list[Any], causes: list[Any], took: list[Any], clocks: list[int], expected: list[Any]
    ) -> None:
        """Ask the others for the stages of work that only one rank does."""
        place = {cause: at for at, cause in enumerate(causes)}
        stages = {
            (i, cause): sorted(took[i][place[cause]].in_stage_ns) for i, some in enumerate(alone) for cause in some
        }
        names = sorted({name for some in stages.values() for name in some if name})
        if not stages:
            return
        there = self.ranks.spread.told(self.ranks.spread.each(late.names_on_host, self.views, shared=(names,)))
        has = [dict(zip(names, some, strict=True)) for some in there]
        for (i, cause), of in stages.items():
            others = [has[j] for j in range(len(has)) if j != i and clocks[j] == clocks[i]]
            one = late.done_alone(cause, of, [[other.get(name, False) for name in of] for other in others])
            if one is not None:
                expected[i].append(one)
