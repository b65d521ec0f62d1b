"""All that a page says about one run, as plain values that a template only has to lay out."""

from __future__ import annotations

import base64
import gzip
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from traceflow.quality import losses, quality
from traceflow.report.budget import budget_grid, hardware_text, total_text
from traceflow.report.communication import communication_grids
from traceflow.report.comparison import Compared
from traceflow.report.grid import Grid, Piece, duration
from traceflow.report.json import dumps, envelope, epoch_text
from traceflow.report.memory_section import MemorySection, memory_section
from traceflow.report.moe_section import MoeSection, moe_section
from traceflow.report.names import printable
from traceflow.report.plan_section import PlanSection, plan_section
from traceflow.report.rounds_section import RoundsSection, rounds_section
from traceflow.report.sections import input_grids, path_grids, quality_grids, steps_chart, steps_grid
from traceflow.report.sharding_section import ShardingSection, sharding_section
from traceflow.report.simulation import SIMULATION, simulates, simulation_finding
from traceflow.report.subject import WHOLE, Asked, Subject
from traceflow.report.timeline import Timeline, timeline
from traceflow.report.units import size_text
from traceflow.report.verdict import Verdict, verdict
from traceflow.report.what_if_panel import MOST_SAVINGS, what_if_grid
from traceflow.report.workers import Workers, workers
from traceflow.result import Finding, Json, Note, Result, Severity, Skipped, Tally

_LOUDEST_FIRST = (Severity.ERROR, Severity.WARNING, Severity.INFO)
_LONG_LISTS = (
    "segments",
    "collectives",
    "unmatched",
    "point_to_point",
    "operations",
    "layout",
    "programs",
    "allocator",
    "arrays",
    "calls",
    "stages",
    "layers",
    "loops",
    "candidates",
    "rows",
)
_RAW_BYTES = 600_000
_LITTLE = 0.02  # of the window
_OF_PROGRAMS = ("verdict", "findings", "memory", "rounds", "sharding", "quality", "method")
_SECTIONS = (
    *("verdict", "findings", "what-if", "workers", "steps", "timeline", "path", "communication", "budget"),
    *("memory", "moe", "rounds", "sharding", "plan", "quality", "method"),
)
_NOT_ALWAYS = frozenset({"workers", "memory", "moe", "rounds", "sharding", "plan"})


@dataclass(frozen=True, slots=True)
class Budget:
    """What operations took, beside what hardware allows."""

    hardware: str
    total: str
    operations: Grid | None

    @classmethod
    def of(cls, result: Mapping[str, Any]) -> Budget:
        """From the `result` of `traceflow show budget`."""
        return cls(hardware_text(result["hardware"]), total_text(result), budget_grid(result))


@dataclass(frozen=True, slots=True, kw_only=True)
class Chapter:
    """One run explained."""

    id: str
    title: str
    asked: Asked
    facts: tuple[str, ...]
    verdict: Verdict
    savings: Mapping[str, Any]
    what_if: Grid | None
    predicts: str  # the command that predicts again what the rows of the grid say
    findings: tuple[Finding, ...]
    steady_state: Mapping[str, Any] | None
    workers: Workers | None
    steps: Grid | None
    step_chart: tuple[Piece, ...]
    timeline: Timeline
    path: tuple[Grid, ...]
    removable: Mapping[str, Any]
    communication: tuple[Grid, ...]
    budget: Budget
    memory: MemorySection | None
    moe: MoeSection | None
    rounds: RoundsSection | None
    sharding: ShardingSection | None
    plan: PlanSection | None
    clock: str
    quality: str
    events: str
    limits: tuple[Note, ...]  # the remarks that say what is not to be trusted
    evidence: tuple[Grid, ...]
    inputs: tuple[Grid, ...]
    command: str
    raw: str  # gzipped JSON in base64
    compared: Compared
    skipped: Mapping[str, str]
    template: ClassVar[str] = "chapter.html"

    @property
    def sentence(self) -> str:
        """The page in one sentence."""
        return self.verdict.sentence

    @property
    def loudest(self) -> tuple[Finding, ...]:
        """The findings that the first screen names; a simulation is told of beside the verdict."""
        told = SIMULATION in self.verdict.remarks
        return tuple(finding for finding in self.findings if not (told and finding.code == "TF206"))

    @property
    def findings_first(self) -> bool:
        """Whether findings say better what to do: no change that was tried saves much, and something costs much."""
        saved_ns = max((row["saved_ns"] for row in self.savings["savings"]), default=0)
        cost_ns = max((finding.cost_ns or 0 for finding in self.loudest), default=0)
        return saved_ns < _LITTLE * self.verdict.makespan_ns < cost_ns

    @property
    def sections(self) -> tuple[str, ...]:
        """The sections that the page has, in order."""
        return tuple(name for name in _SECTIONS if name not in _NOT_ALWAYS or getattr(self, name))

    def why(self, what: str) -> str:
        """Why a figure is not available."""
        return self.skipped.get(what, "the evidence for it is absent")


@dataclass(frozen=True, slots=True)
class _Sections:
    """What not every run has something to say of, and the results behind it."""

    memory: MemorySection | None
    moe: MoeSection | None
    rounds: RoundsSection | None
    sharding: ShardingSection | None
    plan: PlanSection | None
    results: tuple[Result, ...]

    @classmethod
    def of(cls, run: Subject, asked: Asked) -> _Sections:
        """Ask for each, and keep those that say something."""
        held, padding, routed = run.memory(), run.padding(), run.moe(step=asked.step)
        cut, lies = run.collective_matmul(**asked.about), run.sharding(**asked.about)
        followed = None if asked.plan is None else run.plan_check(asked.plan)
        memory, moe = memory_section(held.to_dict(), padding.to_dict()), moe_section(routed.to_dict())
        rounds, sharding = rounds_section(cut.to_dict()), sharding_section(lies.to_dict(), lies.findings, lies.mesh)
        said: tuple[tuple[object, tuple[Result, ...]], ...] = (
            (memory, (held, padding)),
            (moe, (routed,)),
            (rounds, (cut,)),
            (sharding or lies.findings, (lies,)),
        )
        results = tuple(result for something, behind in said if something for result in behind)
        if followed is None:
            return cls(memory, moe, rounds, sharding, None, results)
        return cls(memory, moe, rounds, sharding, plan_section(followed.to_dict()), (*results, followed))


@dataclass(frozen=True, slots=True, kw_only=True)
class Programs:
    """Compiled programs explained, of which no run is known."""

    id: str
    title: str
    facts: tuple[str, ...]
    sentence: str
    findings: tuple[Finding, ...]
    memory: MemorySection | None
    rounds: RoundsSection | None
    sharding: ShardingSection | None
    quality: str
    evidence: tuple[Grid, ...]
    inputs: tuple[Grid, ...]
    command: str
    raw: str  # gzipped JSON in base64
    template: ClassVar[str] = "programs.html"

    @property
    def sections(self) -> tuple[str, ...]:
        """The sections that the page has, in order."""
        return tuple(name for name in _OF_PROGRAMS if name not in _NOT_ALWAYS or getattr(self, name))


def programs(title: str, run: Subject, *, number: int) -> Programs:
    """Ask programs without a trace what the compiler alone decides: memory, padding, sharding.

    Args:
        title: What the reader calls them.
        run: The run, without a trace.
        number: Position on the page.
    """
    memory, padding, lies, cut = run.memory(), run.padding(), run.sharding(), run.collective_matmul()
    held, rounds = memory.to_dict(), rounds_section(cut.to_dict())
    results: tuple[Result, ...] = (memory, padding, lies, *((cut,) if rounds else ()))
    return Programs(
        id=f"run{number}",
        title=title,
        facts=(", ".join(printable(name, 80) for name in run.inputs), "programs without a trace"),
        sentence=_peak(held),
        findings=_sorted(finding for result in results for finding in result.findings),
        memory=memory_section(held, padding.to_dict()),
        rounds=rounds,
        sharding=sharding_section(lies.to_dict(), lies.findings, lies.mesh),
        quality="limited to programs",
        evidence=tuple(quality_grids(run.trace.tally, _notes(run, results), _skipped(results))),
        inputs=(),
        command=_command("report", run, WHOLE),
        raw=_raw(results, run, WHOLE),
    )


def _peak(memory: Mapping[str, Any]) -> str:
    """How many programs there are, and what the largest needs."""
    found = memory["programs"]
    known = [one for one in found if one["live_peak_bytes"] is not None]
    told = f"{len(found):,} compiled program{'s' * (len(found) != 1)}"
    if not known:
        return f"{told}; how much memory they need is not told."
    largest = max(known, key=lambda one: int(one["live_peak_bytes"]))
    return f"{told}; {printable(largest['module'], 60)} needs {size_text(largest['live_peak_bytes'])} at its peak."


def chapter(title: str, run: Subject, asked: Asked, *, number: int, budget: int) -> Chapter:
    """Ask a run everything, and gather the answers.

    Args:
        title: What the reader calls the run.
        run: The run.
        asked: What of it is explained.
        number: Position on the page.
        budget: Most rows that its timeline may have.
    """
    about = asked.about
    summary, path = run.summary(), run.critical_path(**about)
    communication = run.communication(**about, plan=asked.plan)
    savings = run.savings(**about, top=MOST_SAVINGS)
    trace, simulated, costs = run.trace, simulates(run.trace), run.budget(**about)
    late = (run.stragglers(**about),) if len(trace.ranks) > 1 else ()
    more = _Sections.of(run, asked)
    results: tuple[Result, ...] = (summary, path, communication, savings, costs, *late, *more.results)
    said: Mapping[str, Any] = summary.to_dict()
    talked: Mapping[str, Any] = communication.to_dict()
    graph = run.graph(**about)
    findings = [finding for result in results for finding in result.findings]
    return Chapter(
        id=f"run{number}",
        title=title,
        asked=asked,
        facts=_facts(run, said),
        verdict=verdict(path, said, asked, simulated=simulated),
        savings=savings.to_dict(),
        what_if=what_if_grid(savings.to_dict()),
        predicts=_command("what-if", run, asked),
        findings=_sorted([*findings, simulation_finding()] if simulated else findings),
        steady_state=said["steady_state"],
        workers=next(filter(None, (workers(result.to_dict()) for result in late)), None),
        steps=steps_grid(said),
        step_chart=steps_chart(said, asked.step),
        timeline=timeline(trace, graph, path.segments, run.written, budget=budget),
        path=tuple(path_grids(path)),
        removable=talked["removable"],
        communication=tuple(communication_grids(talked, graph.start_ns)),
        budget=Budget.of(costs.to_dict()),
        memory=more.memory,
        moe=more.moe,
        rounds=more.rounds,
        sharding=more.sharding,
        plan=more.plan,
        clock=_clock(len(trace.ranks), path.error_ns),
        quality=_quality(run, results),
        events=_events(trace.tally),
        limits=tuple(note for note in _notes(run, results) if note.affects),
        evidence=tuple(quality_grids(trace.tally, _notes(run, results), _skipped(results))),
        inputs=tuple(input_grids(trace)),
        command=_command("report", run, asked),
        raw=_raw(results, run, asked),
        compared=Compared(path, said, talked),
        skipped={gap.what: gap.reason for gap in _skipped(results)},
    )


def _facts(run: Subject, summary: Mapping[str, Any]) -> tuple[str, ...]:
    """What was read, in a few words."""
    ranks, devices = len(summary["ranks"]), len(summary["devices"])
    return (
        ", ".join(printable(name, 80) for name in run.inputs),
        summary["format"],
        f"{ranks} rank{'s' * (ranks != 1)}",
        f"{devices} device{'s' * (devices != 1)}" if devices else "no devices",
        f"{summary['event_count']:,} events",
        epoch_text(run.trace.epoch_ns) or "not told when it was recorded",
    )


def _sorted(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """The most serious first, then the costliest."""
    return tuple(sorted(findings, key=lambda f: (_LOUDEST_FIRST.index(f.severity), -(f.cost_ns or 0), f.code)))


def _notes(run: Subject, results: Iterable[Result]) -> tuple[Note, ...]:
    tally = run.trace.tally
    return tuple(dict.fromkeys((*losses(tally), *tally.notes, *(note for result in results for note in result.notes))))


def _skipped(results: Iterable[Result]) -> tuple[Skipped, ...]:
    return tuple(dict.fromkeys(gap for result in results for gap in result.skipped))


def _quality(run: Subject, results: Iterable[Result]) -> str:
    """The verdict on the evidence, with the analyzers' remarks."""
    return quality(run.trace.tally, _notes(run, results)).verdict


def _events(tally: Tally) -> str:
    """How many of the events that were read the page explains.

    Example:
        >>> _events(Tally(1000, 900, {}, {"metadata": 100}))
        '900 of 1,000 events are kept; 100 are left out for known reasons'
    """
    changed = {"repaired": sum(tally.repaired.values()), "left out for known reasons": sum(tally.dropped.values())}
    told = "".join(f"; {count:,} are {what}" for what, count in changed.items() if count)
    return f"{tally.kept:,} of {tally.read:,} events are kept{told}"


def _clock(ranks: int, error_ns: int | None) -> str:
    """How far the lanes of several ranks can be compared."""
    if ranks < 2:
        return ""
    if error_ns is None:
        return "Nothing links the clocks of some ranks: how far their lanes are shifted is not known."
    within = f", to within {duration(error_ns)}" if error_ns else ""
    return f"All ranks are drawn on one clock{within}."


def _command(verb: str, run: Subject, asked: Asked) -> str:
    """A command on the same window."""
    return printable(shlex.join(["traceflow", verb, *run.inputs, *asked.options]), 2000)


def _raw(results: Iterable[Result], run: Subject, asked: Asked) -> str:
    """The JSON of every result; the longest lists give way, and say so, where the page would grow too large."""
    request: dict[str, Json] = {key: value for key, value in asked.about.items() if value is not None}
    documents = {result.kind: envelope(result, run, request) for result in results}
    packed = _packed(documents)
    for key in _LONG_LISTS:
        if len(packed) <= _RAW_BYTES:
            break
        packed = _packed({kind: _without(document, key) for kind, document in documents.items()})
        documents = {kind: _without(document, key) for kind, document in documents.items()}
    return packed


def _packed(documents: dict[str, dict[str, Json]]) -> str:
    return base64.b64encode(gzip.compress(dumps({**documents}).encode(), mtime=0)).decode("ascii")


def _without(document: dict[str, Json], key: str) -> dict[str, Json]:
    """A document in which one list of the result is null, with the reason."""
    result, skipped = document["result"], document["skipped"]
    if not isinstance(result, dict) or not isinstance(skipped, list) or key not in result:
        return document
    reason = f"left out of the page for its size; `traceflow show {document['kind']} --format json` prints it"
    return {
        **document,
        "result": {**result, key: None},
        "skipped": [*skipped, {"what": f"/result/{key}", "reason": reason}],
    }
