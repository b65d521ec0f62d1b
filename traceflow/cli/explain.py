"""`traceflow explain CODE`: what a code means and what to do about it."""

from __future__ import annotations

from textwrap import fill
from typing import Annotated

import typer

from traceflow.cli import output
from traceflow.cli.options import Options


def explain(options: Options, code: Annotated[str, typer.Argument(metavar="CODE", help="Such as TF201.")]) -> None:
    """What a code means, and what to do about it."""
    from traceflow.codes import CODES

    del options
    known = CODES.get(code.upper())
    if known is None:
        raise typer.BadParameter(f"no code {code!r}; there are {', '.join(CODES)}", param_hint="CODE")
    width = output.width()
    paragraphs = (f"{known.code}: {known.title}", known.explanation, f"What to do: {known.remedy}")
    output.write("\n\n".join(fill(paragraph, width) for paragraph in paragraphs) + "\n")
