"""Who was late by their own doing, and what it cost: work that took longer than the same work elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from traceflow.analyzers.dependencies import Dependencies
from traceflow.analyzers.late_work import (
    GAP,
    LAUNCH,
    Work,
    as_each,
    as_in_stages,
    by_stage_ns,
    longest,
    on_path,
    shorter,
    work_of,
)
from traceflow.analyzers.stages import WHOLE_STEP, stage_of_events
from traceflow.analyzers.window import Window, in_window
from traceflow.graph import DependencyGraph, Float64, SliceKind
from traceflow.result import Finding, Json, Note, Provenance, Severity, Shown, Skipped
from traceflow.shortening import ends_if_shorter
from traceflow.trace.model import ABSENT, Int32, Int64, Rows, Trace

if TYPE_CHECKING:
    import pandas as pd

_CAUSES = {
    SliceKind.HOST: "host",
    SliceKind.COMPUTE: "compute",
    SliceKind.COPY: "copy",
    SliceKind.TRANSFER: "transfer",
    LAUNCH: "launch",
    GAP: "host",
}
_WORTH_A_FINDING = 0.01
_MOST_FINDINGS = 3
_ITS_OWN_WORK = "look at this rank's own work first; the others only wait for it"
_BETWEEN = "look at what this rank does in a step between operators, such as loading data; the others only wait for it"


@dataclass(frozen=True, slots=True)
class Straggler:
    """One cause: all work of one name on one participant, and what the window would save if it were as elsewhere."""

    rank: int
    device: int | None
    cost_ns: int
    cause: str  # host, compute, copy, transfer or launch
    lane: str
    name: str
    stage: str | None  # the innermost annotation around most of what is late, where the trace has one
    duration_ns: int
    peer_ns: int
    peers: int

    @property
    def place(self) -> str:
        """The name, and the stage where there is one."""
        return self.name if self.stage is None else f"{self.name} in {self.stage}"

    def to_dict(self) -> dict[str, Json]:
        """A row of `ranking`."""
        baseline = "the other rank" if self.peers == 1 else f"the median of {self.peers} peers"
        return {
            "rank": self.rank,
            "device": self.device,
            "cost_ns": self.cost_ns,
            "cause": self.cause,
            "lane": self.lane,
            "name": self.name,
            "stage": self.stage,
            "evidence": {"duration_ns": self.duration_ns, "baseline_ns": self.peer_ns, "baseline": baseline},
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Stragglers(Shown):
    """Causes of lateness, costliest first; whoever only waited is not among them."""

    kind: ClassVar[str] = "stragglers"
    window: Window
    ranking: tuple[Straggler, ...]
    findings: tuple[Finding, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    notes: tuple[Note, ...] = ()

    def to_dict(self) -> dict[str, Json]:
        """The `result` object of the JSON contract."""
        return {"window": {**self.window.to_dict()}, "ranking": [row.to_dict() for row in self.ranking]}

    def to_pandas(self) -> pd.DataFrame:
        """One row per cause."""
        import pandas as pd

        return pd.DataFrame([row.to_dict() for row in self.ranking])


def stragglers(trace: Trace, found: Dependencies, *, step: int | None = None) -> Stragglers:
    """Rank the causes of lateness by what they cost.

    cost = measured length of the window - its replayed length with the cause at the median of its peers (at the
    fastest where there are two ranks in all). A cause is all work of one name on one participant, or its launches, or
    what its threads did before it that left no event; its peers are
    the same name on the other ranks, compared occurrence by occurrence where the counts agree, elsewhere in sum,
    which is saved in the stages in which there is more of it than on the peers. Work of the host that no other rank
    does has peers, too, where it is done in a stage that others have: they do nothing of it. A rank that only waited
    costs nothing.

    Args:
        trace: The evidence, all ranks on one clock.
        found: Its dependencies.
        step: Which step; the whole capture where None.

    Raises:
        TraceflowError: TF104 without work, TF111 without such a step.
    """
    window, graph = in_window(trace, found, step)
    if len(trace.ranks) < 2:
        reason = "only one rank is present: it has no peers to be compared with"
        return Stragglers(window=window, ranking=(), skipped=(Skipped("/result/ranking", reason),), notes=found.notes)
    causes = _causes(trace, graph, stage_of_events(trace, found.launch_call))
    return ranked(trace, window, causes, found.notes)


def ranked(trace: Trace, window: Window, causes: Iterable[Straggler], notes: tuple[Note, ...]) -> Stragglers:
    """The causes that cost something, costliest first.

    Args:
        trace: The evidence, of which only the ranks are looked at.
        window: What is shortened.
        causes: In any order.
        notes: What limits the dependencies.
    """
    costs = [cause for cause in causes if cause.cost_ns > 0]
    ranking = tuple(sorted(costs, key=lambda row: (-row.cost_ns, row.rank, row.cause, row.name)))
    findings, skipped = _findings(ranking, window), _skipped(trace)
    return Stragglers(window=window, ranking=ranking, findings=findings, skipped=skipped, notes=notes)


def _skipped(trace: Trace) -> tuple[Skipped, ...]:
    """What the ranking cannot hold."""
    reasons, world = [], max(rank.world_size or 0 for rank in trace.ranks)
    if world > len(trace.ranks):
        reasons.append(f"{world - len(trace.ranks)} of {world} ranks are absent: whether they were late is unknown")
    if len({rank.clock for rank in trace.ranks}) > 1:
        reasons.append("ranks whose clocks are not linked are not compared with one another")
    return tuple(Skipped("/result/ranking", reason) for reason in reasons)


@dataclass(frozen=True, slots=True)
class _Late:
    """The rows of one cause on one participant, and how long each would take if it were as on its peers."""

    mine: Int64
    target_ns: Int64
    peers: int


def _causes(trace: Trace, graph: DependencyGraph, stage: Int32) -> Iterator[Straggler]:
    """Every cause on the critical path that took longer than its peers; nothing else can cost anything."""
    work = work_of(trace, graph, stage)
    late = list(_late(trace, graph, work))
    ends_ns = ends_if_shorter(graph, [shorter(work, one.mine, one.target_ns) for one in late])
    for one, end_ns in zip(late, ends_ns, strict=True):
        if end_ns < graph.end_ns:
            yield straggler(trace, graph, work, one.mine, one.target_ns, peers=one.peers, end_ns=end_ns)


def _late(trace: Trace, graph: DependencyGraph, work: Work) -> Iterator[_Late]:
    code = work.cause.astype(np.int64) * len(trace.strings) + work.name  # equal for one cause of one name
    by_code = np.argsort(code, kind="stable")
    sorted_code = code[by_code]
    clock, names = {rank.rank: rank.clock for rank in trace.ranks}, _host_names(trace)
    late = {(int(code[row]), int(work.rank[row])) for row in np.flatnonzero(on_path(graph, work, graph.path()))}
    for which, rank in sorted(late):
        first, last = np.searchsorted(sorted_code, (which, which + 1))
        same = by_code[first:last]
        mine = same[work.rank[same] == rank]
        comparable = [other for other in names if other != rank and clock[other] == clock[rank]]
        peers = [of for other in comparable if len(of := same[work.rank[same] == other])]
        if not peers and work.cause[mine[0]] == SliceKind.HOST:
            mine, peers = _done_here_alone(work, mine, [names[other] for other in comparable])
        if not peers:
            continue
        target = _as_peers(work, mine, peers)
        if target.sum() < work.duration_ns[mine].sum():
            yield _Late(mine, target, len(peers))


def _host_names(trace: Trace) -> dict[int, Rows]:
    """Codes of the names of each rank's host events."""
    e = trace.events
    rank, on_host = trace.lanes.rank[e.lane], trace.lanes.device[e.lane] == ABSENT
    return {one.rank: np.unique(e.name[on_host & (rank == one.rank)]) for one in trace.ranks}


def _done_here_alone(work: Work, mine: Int64, names: list[Rows]) -> tuple[Int64, list[Int64]]:
    """Of work that no other rank does, what is in a stage that others have, too, and as many peers without any of it."""
    have = np.array([np.isin(work.stage[mine], there) for there in names] or [np.zeros(len(mine), bool)])
    return mine[have.any(axis=0)], [mine[:0]] * int(have.any(axis=1).sum())


def _as_peers(work: Work, mine: Int64, peers: list[Int64]) -> Int64:
    """The durations that the cause would have if it were as its peers."""
    own = work.duration_ns[mine]
    choose = _median if len(peers) > 1 else np.min
    if all(len(other) == len(mine) for other in peers):
        return as_each(own, choose(np.stack([work.duration_ns[other] for other in peers]), axis=0))
    stages = np.unique(work.stage[mine])
    expected = choose(np.stack([by_stage_ns(work, other, stages) for other in peers]), axis=0)
    late_ns = max(own.sum() - choose(np.array([work.duration_ns[other].sum() for other in peers])), 0)
    return as_in_stages(work, mine, stages, expected, late_ns)


def _median(values: Int64 | Float64, axis: int = 0) -> Float64:
    """As numpy's, which takes far longer over few values."""
    ordered = np.sort(values, axis=axis)
    median: Float64 = (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2
    return median


def straggler(
    trace: Trace, graph: DependencyGraph, work: Work, mine: Int64, target: Int64, *, peers: int, end_ns: int
) -> Straggler:
    """A cause and what it costs.

    Args:
        trace: The evidence.
        graph: The dependencies of the window.
        work: What can be late.
        mine: The rows of the cause.
        target: How long each would take if it were as on its peers.
        peers: How many there are.
        end_ns: When the window would end then.
    """
    place = longest(work, mine, target)
    row = int(work.place[place]) >> int(work.is_lag[place])
    device, stage, cause = int(work.device[place]), int(work.stage[place]), int(work.cause[place])
    name = trace.strings[work.name[place]]
    return Straggler(
        int(work.rank[place]),
        None if device == ABSENT else device,
        graph.end_ns - end_ns,
        _CAUSES[cause],
        trace.lanes.name[graph.slices.lane[row]],
        f"gap before {name}" if cause == GAP else name,
        None if stage == ABSENT else trace.strings[stage],
        int(work.duration_ns[mine].sum()),
        int(target.sum()),
        peers,
    )


def _findings(ranking: tuple[Straggler, ...], window: Window) -> tuple[Finding, ...]:
    return tuple(
        Finding(
            code="TF202",
            severity=Severity.WARNING,
            title=f"rank {row.rank} is late: {row.place} ({row.cause}) takes longer than on its peers",
            provenance=Provenance.MODELLED,
            suggestion=_BETWEEN if row.name.startswith(WHOLE_STEP) else _ITS_OWN_WORK,
            cost_ns=row.cost_ns,
            evidence=row.to_dict(),
        )
        for row in _one_each(ranking)[:_MOST_FINDINGS]
        if row.cost_ns > _WORTH_A_FINDING * window.duration_ns
    )


def _one_each(ranking: tuple[Straggler, ...]) -> list[Straggler]:
    """The first of those in a stage that cost the same to the nanosecond: a call, and what another thread does for it."""
    first: dict[tuple[int, int | None, str | None, int], Straggler] = {}
    for row in ranking:
        first.setdefault((row.rank, row.device, row.stage, row.cost_ns), row)
    return list(first.values())
