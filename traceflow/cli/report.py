"""`traceflow report INPUT`: one HTML file that explains a run."""

from __future__ import annotations

import re
from pathlib import Path

from traceflow.cli import output as place
from traceflow.cli.answer import opened
from traceflow.cli.limits import tell_limits
from traceflow.cli.options import Force, Output, ReadOptions, Source, StatedPlan, Step, Window
from traceflow.cli.progress import working

_SUFFIXES = re.compile(r"(\.(csv|gz|json|parquet|pb|pt|trace|xplane))+$")


def report(
    options: ReadOptions,
    source: Source,
    step: Step = None,
    window: Window = None,
    plan: StatedPlan = None,
    output: Output = None,
    force: Force = False,
) -> None:
    """Write one HTML file that opens without a network."""
    from traceflow.cli.plan import plan_named
    from traceflow.report.html import render_report, write_report
    from traceflow.report.subject import Asked

    asked = Asked(step, window, None if plan is None else plan_named(plan))

    target = output or report_name(source)
    place.refuse_existing(target, source, force=force)
    run = opened(source, options)
    with working("writing the report", options):
        if target == place.STDOUT:
            place.write(render_report(run, asked))
        else:
            place.tell_written(write_report(run, Path(target), asked, force=force))
    tell_limits(run)


def report_name(source: str) -> str:
    """The name of a report, after what it explains.

    Example:
        >>> report_name("runs/a/rank0.pt.trace.json.gz"), report_name("runs/a/"), report_name("runs/a/*.json")
        ('traceflow-report-rank0.html', 'traceflow-report-a.html', 'traceflow-report-a.html')
    """
    return f"traceflow-report-{capture_name(source)}.html"


def capture_name(source: str) -> str:
    """What an input is called, without folders and suffixes."""
    plain = [part for part in Path(source).resolve().parts if not re.search(r"[*?\[]", part)]
    return _SUFFIXES.sub("", Path(*plain).name) or "capture"
