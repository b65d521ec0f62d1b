"""`traceflow check INPUT`: a gate for continuous integration."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from traceflow.cli import output
from traceflow.cli.answer import enveloped, opened, tell
from traceflow.cli.mistakes import mistakes_told
from traceflow.cli.options import AnswerOptions, Source, Step, Top, Window
from traceflow.cli.progress import working
from traceflow.cli.project import project_requirements

if TYPE_CHECKING:
    from traceflow.analyzers.gate import Check
    from traceflow.result import Json

FAILED = 3  # the exit code of a gate that does not hold


def check(
    options: AnswerOptions,
    source: Source,
    require: Annotated[
        list[str] | None,
        typer.Option(metavar="EXPRESSION", help='What has to hold, such as "exposed_share < 15 %". Repeatable.'),
    ] = None,
    baseline: Annotated[
        str | None, typer.Option(metavar="CAPTURE", help="What `baseline` means in the expressions.")
    ] = None,
    step: Step = None,
    window: Window = None,
    junit: Annotated[str | None, typer.Option(metavar="FILE", help="Write the gates as JUnit XML, too.")] = None,
    markdown: Annotated[str | None, typer.Option(metavar="FILE", help="Write them as Markdown, too.")] = None,
    top: Top = 40,
) -> None:
    """Hold figures of a run against limits; exits with 3 where one does not hold. What is not known never passes.

    Without --require, the limits are those of [tool.traceflow] in pyproject.toml. Names are those of the JSON output.
    """
    from traceflow.analyzers.gate import read_requirement

    texts = list(require or project_requirements())
    if not texts:
        raise typer.BadParameter("give one, or list some in [tool.traceflow] of pyproject.toml", param_hint="--require")
    with mistakes_told("--require" if require else "require in [tool.traceflow]"):
        requirements = [read_requirement(text, with_baseline=baseline is not None) for text in texts]
    files = [place for place in (options.output, junit, markdown) if place]
    for place in files:
        output.refuse_existing(place, source, *filter(None, [baseline]), force=options.force)
    run = opened(source, options)
    before = None if baseline is None else opened(baseline, options)
    with working("checking", options):
        from traceflow.asking import check as hold

        result = hold(run, requirements, baseline=before, step=step, window=window)
        request: dict[str, Json] = {"require": [*texts], "baseline": baseline, "step": step, "window": window}
        document = enveloped(result, run, request)
    tell(document, options, top=top)
    _write_files(result, run.inputs[0], junit, markdown)
    if not result.passed:
        raise SystemExit(FAILED)


def _write_files(result: Check, source: str, junit: str | None, markdown: str | None) -> None:
    from traceflow.report.gates import gates_as_junit, gates_as_markdown

    if junit:
        output.write(gates_as_junit(result.to_dict(), source), junit)
    if markdown:
        output.write(gates_as_markdown(result.to_dict(), source), markdown)
