"""`traceflow explain CODE`: what a code means and what to do about it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from textwrap import fill, indent
from typing import TYPE_CHECKING, Annotated

import typer

from traceflow.cli import output
from traceflow.cli.options import Options

if TYPE_CHECKING:
    from traceflow.codes import Code

_SKILL = "traceflow.md"
_NEAR = 5  # codes to suggest


def explain(
    options: Options,
    code: Annotated[str | None, typer.Argument(metavar="CODE", help="Such as TF201, or 201.")] = None,
    skill: Annotated[
        bool, typer.Option("--skill", help="How a coding agent works with traceflow, as Markdown.")
    ] = False,
) -> None:
    """What a code means, and what to do about it."""
    del options
    if skill == (code is not None):
        raise typer.BadParameter("give a code such as TF201, or --skill", param_hint="CODE")
    output.write(_skill() if code is None else _explained(code))


def _skill() -> str:
    from importlib.resources import files

    return files("traceflow").joinpath("skills", _SKILL).read_text(encoding="utf-8")


def _explained(asked: str) -> str:
    """All that there is to say of a code, in lines as wide as the terminal.

    Raises:
        typer.BadParameter: For a code that there is not, with those that are near.
    """
    from traceflow.codes import CODES

    name = re.sub(r"^(TF)?[-_ ]?(?=\d)", "TF", asked.strip().upper())
    known = CODES.get(name)
    if known is None:
        raise typer.BadParameter(f"no code {asked!r}; {_nearest(name)}", param_hint="CODE")
    paragraphs = _paragraphs(known, output.width())
    return "\n\n".join(paragraph for paragraph in paragraphs if paragraph) + "\n"


def _paragraphs(code: Code, width: int) -> Iterator[str]:
    """What is said, wrapped; and the command of the example as one line, to be copied, above what it prints."""
    yield fill(f"{code.code}: {code.title}", width)
    yield fill(code.explanation, width)
    yield fill(f"Formula: {code.formula}", width) if code.formula else ""
    yield fill(f"Example: {code.example}", width) if code.example else ""
    yield f"  $ {code.command}\n{indent(fill(code.output, width - 2), '  ')}" if code.command else ""
    yield fill(f"What to do: {code.remedy}", width)


def _nearest(name: str) -> str:
    """Of a number the codes next to it, of a word those with it in their title."""
    from traceflow.codes import CODES

    if name.removeprefix("TF").isdecimal():
        number = int(name.removeprefix("TF"))
        near = sorted(CODES, key=lambda code: abs(int(code.removeprefix("TF")) - number))
    else:
        near = [code for code, entry in CODES.items() if name.lower() in entry.title.lower()]
    listed = ", ".join(f"{code} ({CODES[code].title})" for code in sorted(near[:_NEAR]))
    return f"near it are {listed}" if near else f"codes go from {min(CODES)} to {max(CODES)}"
