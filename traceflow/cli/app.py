"""Which verbs there are, and where each is."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, Any

import typer

from traceflow.cli.options import asked_for, verb

_VERBS = {
    "demo": "demo.demo",
    "run": "run.run",
    "report": "report.report",
    "what-if": "what_if.what_if",
    "diff": "diff.diff",
    "check": "check.check",
    "open": "open.open_in",
    "query": "query.query",
    "explain": "explain.explain",
    "doctor": "doctor.doctor",
}
"""The function of each verb, and the module of this package that has it."""

_GROUPS = {"show": "show.show_verbs", "plan": "plan.plan_verbs", "export": "export.export_verbs"}
"""What makes each group of verbs, likewise."""

_SETTINGS = {"run": {"allow_interspersed_args": False}}


def application(line: Sequence[str] = ()) -> typer.Typer:
    """The command line; where it is known which verb is asked for, with that one alone.

    To load all verbs takes longer than to read a small trace.

    Args:
        line: What was typed after the name of the program.
    """
    # Rich would double the time of --help.
    app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.callback()(traceflow)
    names = asked_for(line, [*_VERBS, *_GROUPS])
    rest = line[1:] if len(names) == 1 else ()
    for name in names:
        if name in _VERBS:
            app.command(name, context_settings=_SETTINGS.get(name))(verb(_found(_VERBS[name])))
        else:
            app.add_typer(_found(_GROUPS[name])(rest), name=name)
    return app


def _found(place: str) -> Any:
    module, _, name = place.partition(".")
    return getattr(import_module(f"traceflow.cli.{module}"), name)


def _version(wanted: bool) -> None:
    if wanted:
        from traceflow import __version__

        typer.echo(f"traceflow {__version__}")
        raise typer.Exit


def traceflow(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Why did this training step take so long, and what would shorten it?

    INPUT is a capture, a folder of per-rank traces, one trace file, or a quoted pattern.
    """
    del version
