"""How much slower a job is than it would be if all its workers were alike, and which part of it explains that.

Definitions follow "Understanding Stragglers in Large Model Training Using What-if Analysis" (OSDI 2025).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from traceflow.analyzers.operation_graph import OperationGraph, operation_graph
from traceflow.analyzers.window import Window
from traceflow.errors import TraceflowError
from traceflow.result import Finding, Json, Note, Provenance, Severity, Shown, Skipped
from traceflow.trace.model import Bool, Int64
from traceflow.trace.operation_types import COMMUNICATION
from traceflow.trace.operations import OperationTable

if TYPE_CHECKING:
    import pandas as pd

NOTABLE_RATIO = 0.1
"""A stage or a worker that explains less of the excess than this is not to blame."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The operations of one worker, stage or type, and what comes of changing them alone; None where it is any."""

    rank: int | None = None
    dp_rank: int | None = None
    stage: int | None = None
    type: str | None = None
    cost_ns: int  # replayed step - the same with this part at typical durations; negative where it makes up for others
    explained_ratio: float | None  # cost / (replayed - ideal step); above 1 where others are faster than typical
    slowdown_ratio: float | None  # ideal step with this part as measured / ideal step

    def to_dict(self) -> dict[str, Json]:
        """What changing the part does."""
        return {
            "cost_ns": self.cost_ns,
            "explained_ratio": self.explained_ratio,
            "slowdown_ratio": self.slowdown_ratio,
        }


@dataclass(frozen=True, slots=True)
class Step:
    """One step: as measured, replayed without lags, and with every operation at its typical duration."""

    step: int
    measured_ns: int
    replayed_ns: int
    ideal_ns: int

    def to_dict(self) -> dict[str, Json]:
        """A row of `by_step`."""
        return {
            "step": self.step,
            "measured_ns": self.measured_ns,
            "replayed_ns": self.replayed_ns,
            "ideal_ns": self.ideal_ns,
            "slowdown_ratio": _ratio(self.replayed_ns, self.ideal_ns),
        }


@dataclass(frozen=True, slots=True)
class Cause:
    """A stage or a worker that explains a notable part of the excess, with the type of its work that costs most."""

    part: Part
    name: str  # the type
    name_cost_ns: int

    @property
    def rank(self) -> int | None:
        """The worker, None for a stage."""
        return self.part.rank

    @property
    def cost_ns(self) -> int:
        """What the part costs."""
        return self.part.cost_ns

    @property
    def cause(self) -> str:
        """Which sort of work it is."""
        return "transfer" if self.name in COMMUNICATION else "compute"

    @property
    def lane(self) -> str:
        """On which lane of its workers it is."""
        return "communication" if self.name in COMMUNICATION else "operations"

    def to_dict(self) -> dict[str, Json]:
        """A row of `ranking`; a stage is of no rank."""
        return {
            "rank": self.rank,
            "device": None,
            "cost_ns": self.cost_ns,
            "cause": self.cause,
            "lane": self.lane,
            "name": self.name,
            "stage": None if self.part.stage is None else str(self.part.stage),
            "evidence": {
                **self.part.to_dict(),
                "name_cost_ns": self.name_cost_ns,
                "baseline": "the typical duration of each type of operation",
            },
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationStragglers(Shown):
    """The slowdown of a job and the parts that explain it. Lengths of steps and costs are means over the steps."""

    kind: ClassVar[str] = "stragglers"
    window: Window
    measured_ns: int
    replayed_ns: int
    ideal_ns: int
    slowdown_ratio: float | None
    ranking: tuple[Cause, ...]
    by_worker: tuple[Part, ...]
    by_stage: tuple[Part, ...]
    by_type: tuple[Part, ...]
    by_step: tuple[Step, ...]
    typical_ns: tuple[int, ...]  # of each row of `by_type`
    findings: tuple[Finding, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    notes: tuple[Note, ...] = ()

    def to_dict(self) -> dict[str, Json]:
        """The `result` object of the JSON contract."""
        typed = zip(self.by_type, self.typical_ns, strict=True)
        return {
            "window": {**self.window.to_dict()},
            "ranking": [cause.to_dict() for cause in self.ranking],
            "slowdown_ratio": self.slowdown_ratio,
            "measured_ns": self.measured_ns,
            "replayed_ns": self.replayed_ns,
            "ideal_ns": self.ideal_ns,
            "by_worker": [_worker_row(part) for part in self.by_worker],
            "by_stage": [{"stage": part.stage, **part.to_dict()} for part in self.by_stage],
            "by_type": [{"type": part.type, "typical_ns": typical, **part.to_dict()} for part, typical in typed],
            "by_step": [step.to_dict() for step in self.by_step],
        }

    def to_pandas(self) -> pd.DataFrame:
        """One row per worker, in order of rank: what a heat map of the job shows."""
        import pandas as pd

        return pd.DataFrame([_worker_row(part) for part in self.by_worker])


def _worker_row(part: Part) -> dict[str, Json]:
    return {"rank": part.rank, "dp_rank": part.dp_rank, "stage": part.stage, **part.to_dict()}


def operation_stragglers(table: OperationTable, *, step: int | None = None) -> OperationStragglers:
    """Compare a job with itself as if all of its operations took as long as is typical of their type.

    S = mean replayed step / mean ideal step, both without lags that the schedule does not explain. Ideal is every
    computation at the mean, every transfer at the median of its type over all workers and steps; a transfer runs
    from the latest start among those who take part in it. A part costs what the replayed step is shorter with that
    part alone at typical durations.

    Args:
        table: As the reader gives it.
        step: Which step, with what is typical of it; all where None.

    Raises:
        TraceflowError: TF107 if the schedule cannot be followed for lack of the stages, TF111 without such a step.

    Complexity: two replays of the whole table, each linear in it, per worker, stage and type.
    """
    table = table if step is None else _step(table, step)
    job = _job(operation_graph(table))
    by_stage = tuple(_by_stage(job))
    by_worker = tuple(_by_worker(job))
    ranking = tuple(_ranking(job, by_stage, by_worker))
    nothing = Skipped("/result/ranking", "the steps are no longer than with every operation at its typical duration")
    return OperationStragglers(
        window=Window(int(table.start_ns.min()), int(table.end_ns.max()), step),
        measured_ns=round(float(job.measured_ns.mean())),
        replayed_ns=round(job.replayed),
        ideal_ns=round(job.ideal),
        slowdown_ratio=_ratio(job.replayed, job.ideal),
        ranking=ranking,
        by_worker=by_worker,
        by_stage=by_stage,
        by_type=tuple(job.part(table.type == code, type=name) for code, name in enumerate(table.types)),
        by_step=tuple(_by_step(job)),
        typical_ns=job.typical_of_type_ns,
        findings=_findings(ranking, job.replayed),
        skipped=() if job.replayed > job.ideal else (nothing,),
        notes=job.graph.notes,
    )


def _step(table: OperationTable, step: int) -> OperationTable:
    chosen = table.step == step
    if not chosen.any():
        known = ", ".join(str(s) for s in np.unique(table.step)[:20])
        raise TraceflowError("TF111", f"no step {step}", f"the table has these steps: {known}", "use one, or none")
    return table.take(chosen)


@dataclass(frozen=True, slots=True)
class _Job:
    """A job's graph, what is typical of it, and its steps as they are and as they would be."""

    graph: OperationGraph
    typical_ns: Int64  # of each operation's type
    typical_of_type_ns: tuple[int, ...]
    measured_ns: Int64  # of each step, as the two below
    replayed_ns: Int64
    ideal_ns: Int64

    @property
    def replayed(self) -> float:
        return float(self.replayed_ns.mean())

    @property
    def ideal(self) -> float:
        return float(self.ideal_ns.mean())

    def cost(self, rows: Bool) -> float:
        """What the mean step saves with these operations alone at typical durations."""
        repaired_ns = self.graph.replay_ns(np.where(rows, self.typical_ns, self.graph.work_ns))
        return self.replayed - float(repaired_ns.mean())

    def part(
        self,
        rows: Bool,
        *,
        rank: int | None = None,
        dp_rank: int | None = None,
        stage: int | None = None,
        type: str | None = None,  # noqa: A002 - as the column is named
    ) -> Part:
        cost = self.cost(rows)
        alone_ns = self.graph.replay_ns(np.where(rows, self.graph.work_ns, self.typical_ns))
        excess = self.replayed - self.ideal
        return Part(
            rank=rank,
            dp_rank=dp_rank,
            stage=stage,
            type=type,
            cost_ns=round(cost),
            explained_ratio=cost / excess if excess > 0 else None,
            slowdown_ratio=_ratio(float(alone_ns.mean()), self.ideal),
        )


def _job(graph: OperationGraph) -> _Job:
    table = graph.table
    typical = tuple(_typical_ns(graph.work_ns[table.type == code], name) for code, name in enumerate(table.types))
    typical_ns = np.array(typical, np.int64)[table.type]
    return _Job(
        graph,
        typical_ns,
        typical,
        graph.measured_ns,
        graph.replay_ns(graph.work_ns),
        graph.replay_ns(typical_ns),
    )


def _typical_ns(work_ns: Int64, name: str) -> int:
    """Transfers have a long tail that a mean would follow; imbalance of computation is what the mean spreads evenly."""
    if not len(work_ns):
        return 0
    return round(float(np.median(work_ns) if name in COMMUNICATION else work_ns.mean()))


def _ratio(value: float, baseline: float) -> float | None:
    return value / baseline if baseline > 0 else None


def _known(value: int) -> int | None:
    return value if value >= 0 else None


def _by_worker(job: _Job) -> Iterator[Part]:
    table = job.graph.table
    for rank, row in zip(*np.unique(table.rank, return_index=True), strict=True):
        dp_rank, stage = _known(int(table.dp_rank[row])), _known(int(table.stage[row]))
        yield job.part(table.rank == rank, rank=int(rank), dp_rank=dp_rank, stage=stage)


def _by_stage(job: _Job) -> Iterator[Part]:
    table = job.graph.table
    for stage in np.unique(table.stage[table.stage >= 0]):
        yield job.part(table.stage == stage, stage=int(stage))


def _by_step(job: _Job) -> Iterator[Step]:
    lengths = (job.measured_ns, job.replayed_ns, job.ideal_ns)
    for step, *row in zip(job.graph.steps, *lengths, strict=True):
        yield Step(int(step), *map(int, row))


def _ranking(job: _Job, by_stage: Sequence[Part], by_worker: Sequence[Part]) -> list[Cause]:
    """Stages and workers to blame, costliest first; not a stage that one worker explains, nor all there is."""
    notable = [part for part in by_worker if (part.explained_ratio or 0) >= NOTABLE_RATIO]
    for part in by_stage if len(by_stage) > 1 else ():
        alone = max((worker.cost_ns for worker in notable if worker.stage == part.stage), default=0)
        if (part.explained_ratio or 0) >= NOTABLE_RATIO and 2 * alone < part.cost_ns:
            notable.append(part)
    return [_cause(job, part) for part in sorted(notable, key=lambda part: -part.cost_ns)]


def _cause(job: _Job, part: Part) -> Cause:
    """The part with the type of its work that would save most if it alone were repaired."""
    table = job.graph.table
    rows = table.rank == part.rank if part.rank is not None else table.stage == part.stage
    codes = np.unique(table.type[rows])
    costs = [job.cost(rows & (table.type == code)) for code in codes]
    most = int(np.argmax(costs))
    return Cause(part, table.types[codes[most]], round(costs[most]))


def _findings(ranking: Sequence[Cause], replayed: float) -> tuple[Finding, ...]:
    return tuple(_finding(cause) for cause in ranking[:3] if cause.part.cost_ns > 0.01 * replayed)


def _finding(cause: Cause) -> Finding:
    part = cause.part
    if part.rank is None:
        title = f"stage {part.stage} takes longer than the others: mostly {cause.name}"
        suggestion = "move work from this stage to the others: they wait for it in every step"
    else:
        title = f"rank {part.rank} is late: mostly {cause.name} takes longer than on the other workers"
        suggestion = "look at this rank's own work and machine first; the others only wait for it"
    return Finding(
        code="TF202",
        severity=Severity.WARNING,
        title=title,
        provenance=Provenance.MODELLED,
        suggestion=suggestion,
        cost_ns=part.cost_ns,
        evidence=cause.to_dict(),
    )
