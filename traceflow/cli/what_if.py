"""`traceflow what-if INPUT`: replay with something changed."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from traceflow.cli.answer import answer
from traceflow.cli.options import AnswerOptions, Source, Step, Top, Window

if TYPE_CHECKING:
    from traceflow.result import Json, Result
    from traceflow.run import Run


def what_if(
    options: AnswerOptions,
    source: Source,
    scale: Annotated[
        list[str] | None, typer.Option(metavar="PATTERN=FACTOR", help="Multiply the time of what matches. Repeatable.")
    ] = None,
    drop: Annotated[
        list[str] | None, typer.Option(metavar="PATTERN", help="Leave out what matches. Repeatable.")
    ] = None,
    rank: Annotated[list[int] | None, typer.Option(metavar="R", help="Only on this rank. Repeatable.")] = None,
    step: Step = None,
    window: Window = None,
    top: Top = 12,
) -> None:
    """How long the window would take if some work were faster, slower or gone.

    PATTERN is a regular expression on the names of device work and host slices, or one of @compute, @transfer,
    @host, @copy, @launch and, to drop, @rendezvous. Factors are applied in the order given; what is dropped takes
    no time, whatever its factor.
    """
    factors = [_factor(text) for text in scale or ()]
    patterns = list(drop or ())

    def ask(run: Run) -> Result:
        from traceflow.analyzers.changes import Drop, Scale

        changes: list[Scale | Drop] = [Scale(pattern, factor) for pattern, factor in factors]
        changes += [Drop(pattern) for pattern in patterns]
        return run.what_if(*changes, ranks=rank or None, step=step, window=window)

    request: dict[str, Json] = {
        "step": step,
        "window": window,
        "scale": [*(scale or ())],
        "drop": [*patterns],
        "rank": [*(rank or ())],
    }
    answer(options, source, ask, request=request, top=top)


def _factor(text: str) -> tuple[str, float]:
    """PATTERN and FACTOR, divided at the last "=", since a pattern may hold one itself."""
    pattern, _, factor = text.rpartition("=")
    with suppress(ValueError):
        if pattern:
            return pattern, float(factor)
    raise typer.BadParameter(f"{text!r} does not end in =FACTOR, as in matmul=0.5", param_hint="--scale")
