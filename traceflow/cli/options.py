"""Options that verbs share, and how a function becomes a verb."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from functools import wraps
from typing import Annotated, Any, TypeAlias, get_type_hints

import typer

from traceflow.cli.boundary import errors_told

Source: TypeAlias = Annotated[
    str, typer.Argument(metavar="INPUT", help="A capture, a folder of traces, a trace file, or a quoted pattern.")
]
Step: TypeAlias = Annotated[
    int | None, typer.Option(metavar="N", help="Look at one step; without it, at the whole capture.")
]
Window: TypeAlias = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Look at what an annotation of the program names, NAME#k for occurrence k."),
]
StatedPlan: TypeAlias = Annotated[
    str | None,
    typer.Option(metavar="PLAN", help="What the run was to follow: a preset's name, or sizes as in world=8,ep=4."),
]
Top: TypeAlias = Annotated[int, typer.Option(metavar="N", min=1, help="Rows of the longest tables, in text.")]
Output: TypeAlias = Annotated[
    str | None, typer.Option("--output", "-o", metavar="FILE", help="Where to write; - is stdout.")
]
Force: TypeAlias = Annotated[bool, typer.Option("--force", "-f", help="Replace an output that exists.")]


class Format(StrEnum):
    """How a result is written."""

    TEXT = "text"
    JSON = "json"


@dataclass(frozen=True)
class Options:
    """What every verb can be told."""

    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False
    no_color: Annotated[bool, typer.Option("--no-color", help="Plain text, as with NO_COLOR.")] = False
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False


@dataclass(frozen=True)
class ReadOptions(Options):
    """What a verb that reads an input can be told."""

    communication: Annotated[
        list[str] | None,
        typer.Option(metavar="REGEX", help="Kernels that communicate, besides those that are known. Repeatable."),
    ] = None
    redact: Annotated[
        bool, typer.Option("--redact", help="Leave out paths and the names of hosts and users, to show it to others.")
    ] = False
    cluster: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Let the workers of a Dask cluster read the ranks.")
    ] = None


@dataclass(frozen=True)
class WriteOptions(Options):
    """What a verb that prints a result can be told."""

    format: Annotated[Format, typer.Option(help="Text to read, or JSON for scripts.")] = Format.TEXT
    output: Output = None
    force: Force = False


@dataclass(frozen=True)
class AnswerOptions(WriteOptions, ReadOptions):
    """What a verb that reads an input and prints a result can be told."""


def asked_for(line: Sequence[str], verbs: Iterable[str]) -> list[str]:
    """The verb that a command line begins with; all verbs where it begins with none.

    Example:
        >>> asked_for(["diff", "a", "b"], ["show", "diff"]), asked_for(["--help"], ["show", "diff"])
        (['diff'], ['show', 'diff'])
    """
    return [name for name in verbs if name in line[:1]] or [*verbs]


def group(text: str, verbs: Mapping[str, Callable[..., None]], line: Sequence[str]) -> typer.Typer:
    """Verbs below another, whose help is `text`; where a command line begins with one of them, that one alone."""
    below = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help=text)
    for name in asked_for(line, verbs):
        below.command(name)(verb(verbs[name]))
    return below


def verb(function: Callable[..., None]) -> Callable[..., None]:
    """Make a command of a function whose first parameter is `Options`, or a class derived from it.

    Each field of that class becomes an option of the command, after the function's own. Errors end here.
    """
    first, *own = inspect.signature(function, eval_str=True).parameters.values()
    types = get_type_hints(first.annotation, include_extras=True)  # a class may come from another module than its base
    fielded = inspect.signature(first.annotation).parameters.values()
    shared = [parameter.replace(annotation=types[parameter.name]) for parameter in fielded]

    @wraps(function)
    def command(**given: Any) -> None:
        options = first.annotation(**{field.name: given.pop(field.name) for field in fields(first.annotation)})
        with errors_told(debug=options.debug):
            function(options, **given)

    parameters = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in (*own, *shared)]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command
