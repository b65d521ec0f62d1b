"""A capture opened for questions: what scripts, notebooks and the command line work with."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import finalize

from traceflow.errors import TraceflowError

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from traceflow.analyzers.attribution import Attribution
    from traceflow.analyzers.budget import Budget
    from traceflow.analyzers.changes import Drop, Scale
    from traceflow.analyzers.clocks import Clocks
    from traceflow.analyzers.collective_matmul import CollectiveMatmul
    from traceflow.analyzers.communication import Communication
    from traceflow.analyzers.critical_path import CriticalPath
    from traceflow.analyzers.dependencies import Dependencies
    from traceflow.analyzers.join import Written
    from traceflow.analyzers.memory import Memory
    from traceflow.analyzers.moe import Moe
    from traceflow.analyzers.operation_table import OperationStragglers
    from traceflow.analyzers.padding import Padding
    from traceflow.analyzers.plan_check import PlanCheck
    from traceflow.analyzers.savings import Savings
    from traceflow.analyzers.sharding import Sharding
    from traceflow.analyzers.stragglers import Stragglers
    from traceflow.analyzers.summary import Summary
    from traceflow.analyzers.what_if import WhatIf
    from traceflow.digest import Digest
    from traceflow.evidence import Evidence
    from traceflow.export.query import QueryResult
    from traceflow.graph import DependencyGraph
    from traceflow.hardware import Hardware
    from traceflow.intent.intent import Intent
    from traceflow.intent.mesh import Mesh
    from traceflow.intent.plan import Plan
    from traceflow.program.compilation import Compilation
    from traceflow.program.module import Programs
    from traceflow.program.torch_audit import TorchAudit
    from traceflow.quality import Quality
    from traceflow.redaction import Redaction
    from traceflow.report.json import Opened
    from traceflow.report.path_view import PathView
    from traceflow.result import Note
    from traceflow.trace.model import Rows, Trace


@dataclass(frozen=True)
class Run:
    """Evidence of one run, and the questions that can be asked of it. Dependencies are found once, when needed.

    A question is about the whole capture, about a `step`, or about a `window` that an annotation of the program
    names: "forward" is its first occurrence, "forward#3" the fourth.

    Example:
        >>> import traceflow as tf
        >>> run = tf.open("runs/a")                      # doctest: +SKIP
        >>> run.critical_path(step=3).by_kind_ns         # doctest: +SKIP
    """

    evidence: Evidence
    inputs: tuple[str, ...]
    original: Run | None = None  # of a redacted run, what it was made of
    redaction: Redaction | None = None

    def __repr__(self) -> str:
        """One line, whatever the size of the trace."""
        trace = self.evidence.trace
        return f"<Run {', '.join(self.inputs)}: {len(trace.ranks)} ranks, {len(trace.events):,} events>"

    @property
    def is_here(self) -> bool:
        """Whether its evidence is in this process."""
        return True

    @property
    def subject(self) -> Opened:
        """What an answer has to know of the run."""
        return self

    @cached_property
    def _clocks(self) -> Clocks:
        from traceflow.analyzers.clocks import clocks

        return clocks(self.evidence.trace)

    def _check_traced(self) -> None:
        """Refuse a question about a run of which programs alone are known."""
        from traceflow.trace.untraced import FORMAT

        if self.evidence.trace.format == FORMAT:
            hint = "ask about the programs, or give the trace as well"
            raise TraceflowError("TF122", f"cannot explain {', '.join(self.inputs)}", "it holds no trace", hint)

    def clocks(self) -> Clocks:
        """Offsets between the clocks of the ranks' hosts; see :func:`traceflow.analyzers.clocks.clocks`."""
        self._check_traced()
        return self._clocks

    @cached_property
    def trace(self) -> Trace:
        """What the devices and the host did, all ranks on the reference rank's clock where that is known."""
        if self.evidence.operations is not None:  # its times are compared as they are, whatever that is worth
            return replace(self.evidence.trace, clock_error_ns=self._clocks.residual_ns)
        if not self.evidence.trace.ranks:  # there are programs alone, and no clocks
            return self.evidence.trace
        from traceflow.analyzers.clocks import aligned

        return aligned(self.evidence.trace, self._clocks)

    @property
    def programs(self) -> Programs:
        """What the compiler arranged, by program key."""
        return self.evidence.programs

    @cached_property
    def dependencies(self) -> Dependencies:
        """The dependency graph of the whole capture.

        Raises:
            TraceflowError: TF122 when the input holds no trace.
        """
        self._check_traced()
        if self.evidence.operations is not None:
            from traceflow.analyzers.operation_dependencies import operation_dependencies

            return operation_dependencies(self.evidence.operations)
        from traceflow.analyzers.dependencies import dependencies

        return dependencies(self.trace, self.programs)

    def quality(self) -> Quality:
        """Whether the evidence can be relied on; see :func:`traceflow.quality.quality`."""
        from traceflow.quality import quality

        return quality(self.evidence.trace.tally, self.notes)

    @property
    def notes(self) -> tuple[Note, ...]:
        """Remarks on the dependencies; those of the reader are in the tally."""
        return self.dependencies.notes if len(self.evidence.trace.events) else ()

    def graph(self, *, step: int | None = None, window: str | None = None) -> DependencyGraph:
        """The dependency graph of a window; see :func:`traceflow.analyzers.window.in_window`."""
        from traceflow.analyzers.window import in_window

        trace, step = self._chosen(step, window)
        return in_window(trace, self.dependencies, step)[1]

    def _chosen(self, step: int | None, window: str | None) -> tuple[Trace, int | None]:
        """The trace whose steps are meant, and which of them."""
        if window is None:
            return self.trace, step
        if step is not None:
            raise TraceflowError("TF112", f"cannot choose step {step} and window {window}", "they differ", "name one")
        from traceflow.analyzers.window import named

        return named(self.trace, window)

    def written(self, event: Rows) -> Written:
        """What the programs tell of some events; see :func:`traceflow.analyzers.join.written`."""
        from traceflow.analyzers.join import written

        return written(self.trace, self.programs, event)

    def summary(self) -> Summary:
        """Ranks, devices and step times; see :func:`traceflow.analyzers.summary.summary`."""
        from traceflow.analyzers.summary import summary

        return summary(self.trace, self.dependencies, self.programs)

    def critical_path(self, *, step: int | None = None, window: str | None = None, slack: bool = False) -> CriticalPath:
        """The critical path; see :func:`traceflow.analyzers.critical_path.critical_path`."""
        from traceflow.analyzers.critical_path import critical_path

        trace, step = self._chosen(step, window)
        return critical_path(trace, self.dependencies, step=step, slack=slack, programs=self.programs)

    def path_view(self, *, step: int | None = None, window: str | None = None) -> PathView:
        """The critical path to click through in a notebook; see :class:`traceflow.report.path_view.PathView`."""
        from traceflow.analyzers.critical_path import critical_path
        from traceflow.analyzers.neighbours import neighbours
        from traceflow.report.path_view import PathView, drawn_segments

        trace, step = self._chosen(step, window)
        path = critical_path(trace, self.dependencies, step=step, programs=self.programs)
        near = neighbours(trace, self.dependencies, step=step, segments=drawn_segments(path.segments))
        return PathView(path.segments, near, f"Critical path, {path.makespan_ns / 1e6:,.3f} ms")

    @cached_property
    def _meshes(self) -> Mapping[int, Mesh]:
        """The user's own meshes, by program."""
        if not self.evidence.stages:
            return {}
        from traceflow.intent.intent import written_intent

        written = [(one.compiled, one.written) for one in self.compilations if one.written is not None]
        found = {
            program: written_intent(before).mesh
            for program, module in self.programs.items()
            for compiled, before in written
            if compiled is module
        }
        return {program: mesh for program, mesh in found.items() if mesh is not None}

    def attribution(self, plan: Plan | None = None) -> Attribution:
        """What each communication call is for; see :func:`traceflow.analyzers.attribution.attribution`.

        Args:
            plan: The plan that the run was to follow, if there is one.
        """
        from traceflow.analyzers.attribution import attribution

        routing, programs = self.evidence.routing, self.programs
        return attribution(self.trace, self.dependencies, plan, routing, programs=programs, meshes=self._meshes)

    @cached_property
    def _attributed(self) -> Attribution:
        return self.attribution()

    def communication(
        self, *, step: int | None = None, window: str | None = None, plan: Plan | None = None
    ) -> Communication:
        """Exposed communication; see :func:`traceflow.analyzers.communication.communication`.

        Args:
            step: Which step; the whole capture where None.
            window: The same by the name of an annotation.
            plan: The plan that the run was to follow; it helps to tell what collectives are for.
        """
        from traceflow.analyzers.communication import communication

        trace, step = self._chosen(step, window)
        attributed = self._attributed if plan is None else self.attribution(plan)
        return communication(trace, self.dependencies, step=step, attributed=attributed)

    def plan_check(self, plan: Plan) -> PlanCheck:
        """A plan against what ran; see :func:`traceflow.analyzers.plan_check.plan_check`."""
        from traceflow.analyzers.plan_check import plan_check

        return plan_check(self.trace, self.attribution(plan), plan)

    def stragglers(self, *, step: int | None = None, window: str | None = None) -> Stragglers | OperationStragglers:
        """Who was late by their own doing; see :func:`traceflow.analyzers.stragglers.stragglers`.

        Of an operation table, what makes the job slow; see
        :func:`traceflow.analyzers.operation_table.operation_stragglers`.
        """
        trace, step = self._chosen(step, window)
        if self.evidence.operations is not None:
            from traceflow.analyzers.operation_table import operation_stragglers

            return operation_stragglers(self.evidence.operations, step=step)
        from traceflow.analyzers.stragglers import stragglers

        return stragglers(trace, self.dependencies, step=step)

    def memory(self, *, without: Sequence[str] = (), donate: Sequence[str] = ()) -> Memory:
        """What is in memory at the peak, and when; see :func:`traceflow.analyzers.memory.memory`."""
        from traceflow.analyzers.memory import memory

        return memory(self.trace, self.programs, stated=self.evidence.stated, without=without, donate=donate)

    def padding(self) -> Padding:
        """What is stored beyond the values themselves; see :func:`traceflow.analyzers.padding.padding`."""
        from traceflow.analyzers.padding import padding

        return padding(self.trace, self.programs, stated=self.evidence.stated, routing=self.evidence.routing)

    def moe(self, *, step: int | None = None) -> Moe:
        """How tokens went to experts, and what that cost; see :func:`traceflow.analyzers.moe.moe`."""
        from traceflow.analyzers.moe import moe

        return moe(self.trace, self.evidence.routing, self.dependencies, self.programs, step=step)

    def budget(
        self, *, hardware: str | Hardware | None = None, step: int | None = None, window: str | None = None
    ) -> Budget:
        """How far operations are from what hardware allows; see :func:`traceflow.analyzers.budget.budget`.

        Args:
            hardware: A name such as ``"h100"`` or ``"cpu"``, which measures this machine; told by the trace where None.
            step: Which step; the whole capture where None.
            window: The same by the name of an annotation, as for the other questions.

        Raises:
            TraceflowError: TF120 for hardware that is not known.
        """
        from traceflow.analyzers.budget import budget
        from traceflow.hardware import known

        on = known(hardware) if isinstance(hardware, str) else hardware
        trace, step = self._chosen(step, window)
        return budget(trace, self.programs, self.dependencies, hardware=on, step=step)

    @cached_property
    def compilations(self) -> tuple[Compilation, ...]:
        """The compiled programs with the stages of their compilation, as far as they were kept."""
        from traceflow.program.compilation import compilations_of

        found = compilations_of(self.evidence.stages, self.programs)
        return found if self.redaction is None else self.redaction.of(found)

    @cached_property
    def _audits(self) -> tuple[TorchAudit, ...]:
        """Of PyTorch's sharding, one for each rank."""
        from traceflow.program.torch_audit import read_torch_audit

        audits = tuple(read_torch_audit(file) for file in self.evidence.audits)
        return audits if self.redaction is None else self.redaction.of(audits)

    def sharding(self, intent: Intent | None = None, *, step: int | None = None, window: str | None = None) -> Sharding:
        """Intended against compiled sharding; see :func:`traceflow.analyzers.sharding.sharding`.

        Of a PyTorch program that was audited, see :func:`traceflow.analyzers.sharding.torch.torch_sharding`.

        Args:
            intent: What the programs do not say themselves.
            step: Which step mismatches cost something in; the whole capture where None.
            window: The same by the name of an annotation.
        """
        if self.evidence.audits:
            from traceflow.analyzers.sharding.torch import torch_sharding

            return torch_sharding(self._audits, intent)
        from traceflow.analyzers.sharding import sharding

        path = self.critical_path(step=step, window=window) if len(self.trace.hlo.event) else None
        return sharding(self.compilations, intent, trace=self.trace, path=path)

    def collective_matmul(
        self, *, step: int | None = None, window: str | None = None, undivided: Run | None = None
    ) -> CollectiveMatmul:
        """Products cut into rounds; see :func:`traceflow.analyzers.collective_matmul.collective_matmul`.

        Args:
            step: Which step; the whole capture where None. Programs alone have neither.
            window: The same by the name of an annotation, as for the other questions.
            undivided: A run of the same product in one piece, to tell what cutting it costs.
        """
        from traceflow.analyzers.collective_matmul import collective_matmul
        from traceflow.analyzers.rings.recorded import Recorded

        def recorded(run: Run, step: int | None = None, window: str | None = None) -> Recorded:
            trace, step = run._chosen(step, window)
            return Recorded.of(trace, run.programs, run.dependencies, step)

        own = recorded(self, step, window) if self.trace.ranks else None
        whole = None if undivided is None else recorded(undivided)
        return collective_matmul(self.programs, own, undivided=whole)

    def what_if(
        self,
        *changes: Scale | Drop,
        ranks: Sequence[int] | None = None,
        step: int | None = None,
        window: str | None = None,
    ) -> WhatIf:
        """Replay with changed work; see :func:`traceflow.analyzers.what_if.what_if`."""
        from traceflow.analyzers.what_if import what_if

        chosen = None if ranks is None else frozenset(ranks)
        trace, step = self._chosen(step, window)
        return what_if(trace, self.dependencies, changes, ranks=chosen, step=step, programs=self.programs)

    def savings(self, *, step: int | None = None, window: str | None = None, top: int = 3) -> Savings:
        """What would shorten a window most; see :func:`traceflow.analyzers.savings.savings`."""
        from traceflow.analyzers.savings import savings

        trace, step = self._chosen(step, window)
        return savings(trace, self.dependencies, step=step, top=top)

    def digest(self, *, step: int | None = None) -> Digest:
        """Every question at once, abridged; see :func:`traceflow.digest.digest`.

        Args:
            step: Which step, for the questions that are about a window; the whole capture where None.
        """
        from traceflow.digest import digest

        side_by_side = self.is_here and not self.programs  # explaining these is Python, in which threads take turns
        if side_by_side:
            with suppress(TraceflowError):
                self.notes  # noqa: B018  # so that not both threads find the dependencies
        return digest(
            {
                "summary": self.summary,
                "critical-path": partial(self.critical_path, step=step),
                "communication": partial(self.communication, step=step),
                "clocks": self.clocks,
                "stragglers": partial(self.stragglers, step=step),
                "savings": partial(self.savings, step=step),
                "budget": partial(self.budget, step=step),
                "memory": self.memory,
                "padding": self.padding,
                "moe": partial(self.moe, step=step),
                "sharding": partial(self.sharding, step=step),
                "collective-matmul": partial(self.collective_matmul, step=step),
            },
            side_by_side=side_by_side,
        )

    def redacted(self) -> Run:
        """The same run without paths, names of hosts and names of users; see :mod:`traceflow.redaction`.

        Answers, reports and exports of it can be shown to others.
        """
        from traceflow.redaction import Redaction

        redaction = Redaction.of_everything_in(self.evidence, self.inputs)
        return Run(redaction.of(self.evidence), tuple(map(redaction.name, self.inputs)), self, redaction)

    def report(
        self,
        path: str | Path,
        *,
        step: int | None = None,
        window: str | None = None,
        plan: Plan | None = None,
        force: bool = False,
    ) -> Path:
        """Write one offline HTML file that explains the run, and return its path.

        Args:
            path: The file to write.
            step: Which step; the whole capture where None.
            window: The same by the name of an annotation.
            plan: The plan that the run was to follow; the report then tells what differs from it.
            force: Whether to replace a file that is there.

        Raises:
            TraceflowError: TF110 when the file exists and `force` is not set.
        """
        from traceflow.report.html import write_report
        from traceflow.report.subject import Asked

        return write_report(self, Path(path), Asked(step, window, plan), force=force)

    def perfetto(self, *, step: int | None = None) -> Iterator[bytes]:
        """The run as a Perfetto trace, in pieces; see :func:`traceflow.export.perfetto.perfetto`."""
        from traceflow.export.perfetto import perfetto

        return perfetto(self, step=step)

    def to_perfetto(self, path: str | Path, *, step: int | None = None, force: bool = False) -> Path:
        """Write the run as a Perfetto trace; see :func:`traceflow.export.perfetto.write_perfetto`."""
        from traceflow.export.perfetto import write_perfetto

        return write_perfetto(self, Path(path), step=step, force=force)

    def to_parquet(self, folder: str | Path, *, step: int | None = None, force: bool = False) -> Path:
        """Write the tables of the run; see :func:`traceflow.export.parquet.write_parquet`."""
        from traceflow.export.parquet import write_parquet

        return write_parquet(self, Path(folder), step=step, force=force)

    def query(self, sql: str, *, step: int | None = None) -> QueryResult:
        """Ask the tables of the run in SQL; see :func:`traceflow.export.query.query`."""
        from traceflow.export.query import query
        from traceflow.export.subject import Answers

        return query(Answers(self, step), sql)


def open_run(source: str | Path, *, communication: Iterable[str] = (), executor: Executor | None = None) -> Run:
    """Open a capture, a folder of traces, one trace file, an operation table, or a glob; content tells the format.

    Args:
        source: What to read. A URL, as ``"s3://bucket/run"``, is copied to this machine for as long as the run is used.
        communication: Regular expressions for kernels that communicate, besides those of the libraries that are
            known, such as ``("^my_all_gather", "my_lib::put")``.
        executor: Who reads the traces of several ranks, as a ``concurrent.futures.ProcessPoolExecutor`` or that of a
            Dask cluster; this thread where None. It changes no result.

    Raises:
        TraceflowError: TF101 to TF108 where it cannot be read, TF112 for what is no regular expression, TF127 where
            the executor ended, TF128 where nothing knows how to reach a URL.
    """
    from traceflow.evidence import read
    from traceflow.remote import fetched, is_url

    if not is_url(source):
        return Run(read(source, communication=communication, executor=executor), (str(source),))
    copy = fetched(str(source))
    try:
        run = Run(read(copy.path, communication=communication, executor=executor), (str(source),))
    except TraceflowError as error:
        copy.discard()
        raise copy.named(error) from error
    finalize(run, copy.discard)  # programs are read when they are asked for
    return run
