"""From a question to its answer on stdout or in a file."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from traceflow.cli import output
from traceflow.cli.options import AnswerOptions, Format, Options, ReadOptions, WriteOptions
from traceflow.cli.progress import working
from traceflow.cli.project import project_communication

if TYPE_CHECKING:
    from traceflow.result import Json, Result
    from traceflow.run import Run

_OBJECTS = 100_000  # between searches for garbage: answers are made of millions of objects, which form no cycles


def opened(source: str, options: Options) -> Run:
    """Read an input and find the dependencies of its trace, which nearly every verb needs.

    Raises:
        TraceflowError: when the input cannot be read, TF112 when a pattern or the project's settings cannot be used.
    """
    gc.set_threshold(_OBJECTS)
    asked = (options.communication or []) if isinstance(options, ReadOptions) else []
    with working(f"reading {source}", options):
        run = _open(source, options, [*project_communication(), *asked])
        run = run.redacted() if isinstance(options, ReadOptions) and options.redact else run
    if run.is_here and len(run.evidence.trace.events):
        with working("finding dependencies", options):
            run.dependencies  # noqa: B018  # found when first asked for
    return run


def _open(source: str, options: Options, patterns: list[str]) -> Run:
    """Read with the workers of the cluster that is named, else with processes, where there is enough to do."""
    if isinstance(options, ReadOptions) and options.cluster:
        from traceflow.spread import open_spread

        return open_spread(source, options.cluster, communication=patterns)
    from traceflow.executors import Processes
    from traceflow.run import open_run

    with Processes() as executor:
        return open_run(source, communication=patterns, executor=executor)


def answer(
    options: AnswerOptions,
    source: str,
    ask: Callable[[Run], Result],
    *,
    request: Mapping[str, Json] | None = None,
    top: int = 12,
) -> None:
    """Ask a question of an input and write the answer as the options want it.

    Args:
        options: Format, output and the rest.
        source: What to read.
        ask: The question.
        request: What was asked, for the reader of the answer.
        top: Rows of the longest tables, in text.

    Raises:
        TraceflowError: when the input cannot be read or explained, or the output not written.
    """
    output.refuse_existing(options.output or output.STDOUT, source, force=options.force)
    run = opened(source, options)
    with working("explaining", options):
        document = enveloped(ask(run), run, request)
    tell(document, options, top=top)


def enveloped(result: Result, run: Run, request: Mapping[str, Json] | None = None) -> dict[str, Json]:
    """A result in its envelope; of a redacted run, what was asked is redacted, too."""
    from traceflow.report.json import envelope

    document = envelope(result, run.subject, request)
    return document if run.redaction is None else run.redaction.of(document)


def tell(document: Mapping[str, Json], options: WriteOptions, *, top: int = 12) -> None:
    """Write a result in its envelope as the options want it.

    Raises:
        TraceflowError: when the output cannot be written.
    """
    from traceflow.report.json import dumps

    place = options.output or output.STDOUT
    if options.format is Format.JSON:
        output.write(dumps(document), place)
        return
    from traceflow.report.text import render

    color = place == output.STDOUT and output.colored(no_color=options.no_color)
    output.write(render(document, top=top, width=output.width(), color=color), place)
