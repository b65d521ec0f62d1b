"""`traceflow doctor`: whether recording will work here, and how to mend what is in its way."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from traceflow.cli import output
from traceflow.cli.options import Format, WriteOptions
from traceflow.cli.progress import working


@dataclass(frozen=True)
class DoctorOptions(WriteOptions):
    """What the doctor can be told."""

    trial: Annotated[
        bool, typer.Option("--trial/--no-trial", help="Record a small product with each framework that is installed.")
    ] = True


def doctor(options: DoctorOptions) -> None:
    """Look at versions, profilers, disk, clock and viewers; exits with 1 where nothing can be recorded."""
    from traceflow.doctor import document_of, examined
    from traceflow.report.doctor import doctor_text
    from traceflow.report.json import dumps

    place = options.output or output.STDOUT
    output.refuse_existing(place, force=options.force)
    with working("trying the profilers", options):
        document = document_of(examined(Path(), trial=options.trial))
    color = place == output.STDOUT and output.colored(no_color=options.no_color)
    as_json = options.format is Format.JSON
    output.write(dumps(document) if as_json else doctor_text(document, width=output.width(), color=color), place)
    if document["blocked"]:
        raise SystemExit(1)
