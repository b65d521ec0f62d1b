"""`traceflow query INPUT SQL`: the tables of a run, asked in SQL."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from enum import StrEnum
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from traceflow.cli import output as place
from traceflow.cli.answer import opened
from traceflow.cli.limits import tell_limits
from traceflow.cli.options import Force, Output, ReadOptions, Source, Step, Top
from traceflow.cli.progress import working

if TYPE_CHECKING:
    from traceflow.export.query import QueryResult
    from traceflow.run import Run


class Form(StrEnum):
    """How rows are written."""

    TEXT = "text"
    CSV = "csv"
    JSON = "json"


@dataclass(frozen=True)
class QueryOptions(ReadOptions):
    """What a query can be told."""

    format: Annotated[Form, typer.Option(help="Text to read, or CSV or JSON for scripts.")] = Form.TEXT
    output: Output = None
    force: Force = False


def query(
    options: QueryOptions,
    source: Source,
    sql: Annotated[str, typer.Argument(metavar="SQL", help="One statement in the SQL of DuckDB.")],
    step: Step = None,
    top: Top = 40,
) -> None:
    """Ask the tables of a run in SQL; INPUT may also be a folder that `export parquet` wrote."""
    from traceflow.export.query import holds_tables
    from traceflow.export.query import query as answered
    from traceflow.export.subject import Answers

    target = options.output or place.STDOUT
    place.refuse_existing(target, source, force=options.force)
    if options.redact and holds_tables(Path(source)):
        raise typer.BadParameter("tables are as they were written: give it to export parquet", param_hint="--redact")
    run = None if holds_tables(Path(source)) else opened(source, options)
    tables = Path(source) if run is None else Answers(run, step)
    with working("answering", options):
        answer = answered(tables, sql)
    told = (source, sql) if run is None or run.redaction is None else (run.inputs[0], run.redaction.text(sql))
    place.write(_written(answer, options, *told, top, run), target)
    if run is not None and options.format is not Form.JSON:
        tell_limits(run)


def _written(answer: QueryResult, options: QueryOptions, source: str, sql: str, top: int, run: Run | None) -> str:
    if options.format is Form.CSV:
        return _csv(answer)
    if options.format is Form.JSON:
        return _json(answer, source, sql, run)
    from traceflow.report.answer import answer_text

    color = options.output is None and place.colored(no_color=options.no_color)
    return answer_text(answer, top=top, width=place.width(), color=color)


def _csv(answer: QueryResult) -> str:
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([answer.columns, *answer.rows])
    return text.getvalue()


def _json(answer: QueryResult, source: str, sql: str, run: Run | None) -> str:
    """The answer in its envelope. Tables that were written before do not tell how good their evidence is."""
    from traceflow.report.json import SCHEMA_VERSION, data_quality, dumps

    return dumps(
        {
            "schema_version": SCHEMA_VERSION,
            "kind": "query",
            "inputs": [source],
            "request": {"sql": sql},
            "data_quality": None if run is None else data_quality(run.trace.tally, run.notes),
            "result": answer.to_dict(),
        }
    )
