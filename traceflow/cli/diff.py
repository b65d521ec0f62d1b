"""`traceflow diff A B`: two runs side by side."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from traceflow.cli import output
from traceflow.cli.answer import opened, tell
from traceflow.cli.limits import tell_limits
from traceflow.cli.mistakes import mistakes_told
from traceflow.cli.options import AnswerOptions, Format, Top
from traceflow.cli.progress import working

if TYPE_CHECKING:
    from traceflow.result import Json
    from traceflow.run import Run
    from traceflow.trace.model import Trace


def diff(
    options: AnswerOptions,
    a: Annotated[str, typer.Argument(metavar="A", help="The reference: a capture, or whatever can be read.")],
    b: Annotated[str, typer.Argument(metavar="B", help="What is compared with it.")],
    claim: Annotated[
        list[str] | None, typer.Option(metavar="CLAIM", help='What is said to have changed: "less all-gather bytes".')
    ] = None,
    atol: Annotated[
        float, typer.Option(metavar="X", min=0, max=1e18, help="What recorded outputs may differ by.")
    ] = 1e-8,
    rtol: Annotated[
        float, typer.Option(metavar="X", min=0, max=1e18, help="The same in relation to those of A.")
    ] = 1e-5,
    top: Top = 12,
) -> None:
    """Whether two runs computed the same, what changed in the plan, and whether it helped.

    With -o and a name that ends in .html, a page that also explains both runs, without need of a network.

    A difference inside the spread of steps is none. A claim is "less QUANTITY", "more", "no" or "same", or a comparison
    such as "exposed_share < 0.05" or "b.step_ns < 0.9 * a.step_ns"; each is confirmed, refuted or undecided.
    """
    from traceflow.analyzers.comparison.claims import read_claim
    from traceflow.report.json import envelope

    texts = list(claim or ())
    with mistakes_told("--claim"):
        claims = [read_claim(text) for text in texts]
    output.refuse_existing(options.output or output.STDOUT, a, b, force=options.force)
    runs = opened(a, options), opened(b, options)
    with working("comparing", options):
        from traceflow.asking import diff as compare

        result = compare(*runs, claims, atol=atol, rtol=rtol)
    request: dict[str, Json] = {"claim": [*texts], "atol": atol, "rtol": rtol}
    document = envelope(result, _Both.of(*runs), request)
    document = document if runs[0].redaction is None else runs[0].redaction.of(document)
    if options.output and options.output.endswith(".html") and options.format is Format.TEXT:
        with working("writing the report", options):
            _write_page(document, runs, Path(options.output), force=options.force)
        for run in runs:
            tell_limits(run)
    else:
        tell(document, options, top=top)


def _write_page(document: Mapping[str, Json], runs: tuple[Run, Run], path: Path, *, force: bool) -> None:
    from traceflow.report.difference_section import difference_section
    from traceflow.report.html import Part, called, write_comparison

    parts = [Part(", ".join(map(called, run.inputs)), run) for run in runs]
    output.tell_written(write_comparison(parts, path, difference_section(document), force=force))


@dataclass(frozen=True)
class _Both:
    """Two runs as one input: the quality of the evidence is that of both."""

    inputs: tuple[str, ...]
    trace: Trace

    @classmethod
    def of(cls, a: Run, b: Run) -> _Both:
        return cls((*a.inputs, *b.inputs), replace(a.trace, tally=a.trace.tally + b.trace.tally))
