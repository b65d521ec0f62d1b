"""`traceflow export`: everything that was found, in files that other tools read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from traceflow.cli import output as place
from traceflow.cli.answer import opened
from traceflow.cli.limits import tell_limits
from traceflow.cli.options import Force, Output, ReadOptions, Source, Step, group
from traceflow.cli.progress import working
from traceflow.cli.report import capture_name


def perfetto(
    options: ReadOptions, source: Source, step: Step = None, output: Output = None, force: Force = False
) -> None:
    """A Perfetto trace: all ranks on one clock, the critical path with arrows, collectives split, counters."""
    target = output or f"traceflow-{capture_name(source)}.pftrace"
    place.refuse_existing(target, source, force=force)
    run = opened(source, options)
    with working("writing the trace", options):
        if target == place.STDOUT:
            place.write_bytes(run.perfetto(step=step))
        else:
            place.tell_written(run.to_perfetto(target, step=step, force=force))
    tell_limits(run)


def parquet(
    options: ReadOptions,
    source: Source,
    step: Step = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", metavar="DIR", help="The folder to make.")] = None,
    force: Force = False,
) -> None:
    """Parquet tables that DuckDB, Polars, pandas and Spark read."""
    from traceflow.export.parquet import check_folder

    target = output or Path(f"traceflow-{capture_name(source)}")
    check_folder(target, force=force)
    run = opened(source, options)
    with working("writing the tables", options):
        folder = run.to_parquet(target, step=step, force=force)
    place.tell_written(folder)
    tell_limits(run)


_VERBS: Mapping[str, Callable[..., None]] = {"perfetto": perfetto, "parquet": parquet}


def export_verbs(line: Sequence[str]) -> typer.Typer:
    """The verbs below `export`; where one is asked for, that one alone."""
    return group("Write everything that was found, in files that other tools read.", _VERBS, line)
