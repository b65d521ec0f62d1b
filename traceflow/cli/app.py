"""Which verbs there are."""

from __future__ import annotations

from typing import Annotated

import typer

from traceflow.cli.check import check
from traceflow.cli.demo import demo
from traceflow.cli.diff import diff
from traceflow.cli.doctor import doctor
from traceflow.cli.explain import explain
from traceflow.cli.export import export
from traceflow.cli.open import open_in
from traceflow.cli.options import verb
from traceflow.cli.plan import plan
from traceflow.cli.plan_check import plan_check
from traceflow.cli.plan_compare import plan_compare
from traceflow.cli.query import query
from traceflow.cli.report import report
from traceflow.cli.run import run
from traceflow.cli.show import show
from traceflow.cli.what_if import what_if

# Rich would double the time of --help.
app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False)


def _version(wanted: bool) -> None:
    if wanted:
        from traceflow import __version__

        typer.echo(f"traceflow {__version__}")
        raise typer.Exit


@app.callback()
def traceflow(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Why did this training step take so long, and what would shorten it?

    INPUT is a capture, a folder of per-rank traces, one trace file, or a quoted pattern.
    """
    del version


app.command()(verb(demo))
app.command(context_settings={"allow_interspersed_args": False})(verb(run))
app.command()(verb(report))
app.add_typer(show, name="show")
app.command("what-if")(verb(what_if))
app.command()(verb(diff))
app.command()(verb(check))
plan.command("compare")(verb(plan_compare))
plan.command("check")(verb(plan_check))
app.add_typer(plan, name="plan")
app.command("open")(verb(open_in))
app.add_typer(export, name="export")
app.command()(verb(query))
app.command()(verb(explain))
app.command()(verb(doctor))
