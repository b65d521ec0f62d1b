"""SQL on the tables of a run, answered by DuckDB. A query reads these tables alone: no file, no network."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from traceflow.errors import TraceflowError
from traceflow.export.schema import TABLES
from traceflow.export.subject import Answers
from traceflow.result import Json

if TYPE_CHECKING:
    import pandas as pd

_BEYOND_JSON = 1 << 63
_FIRST = ("ranks", "lanes", "events", "segments", "slices", "edges")  # tables that every version wrote
_ISOLATED = {
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "python_enable_replacements": "false",
}


@dataclass(frozen=True, slots=True)
class QueryResult:
    """The rows that a query found."""

    columns: tuple[str, ...]
    types: tuple[str, ...]  # as DuckDB names them
    rows: tuple[tuple[Any, ...], ...]

    @property
    def is_number(self) -> tuple[bool, ...]:
        """Which columns hold numbers."""
        return tuple(re.match(r"[A-Z]*INT|DECIMAL|DOUBLE|FLOAT", kind) is not None for kind in self.types)

    def to_dict(self) -> dict[str, Json]:
        """The columns with their types, and rows by column; what JSON has no form for is text."""
        columns: list[Json] = [
            {"name": name, "type": kind} for name, kind in zip(self.columns, self.types, strict=True)
        ]
        rows = [dict(zip(self.columns, map(_plain, row), strict=True)) for row in self.rows]
        return {"columns": columns, "rows": [*rows]}

    def to_pandas(self) -> pd.DataFrame:
        """The rows."""
        import pandas as pd

        return pd.DataFrame.from_records(self.rows, columns=list(self.columns))

    def _repr_html_(self) -> str:
        """As a notebook shows a data frame."""
        return self.to_pandas().to_html(max_rows=20)


def _plain(value: object) -> Json:
    if isinstance(value, int) and abs(value) >= _BEYOND_JSON:
        return str(value)
    if isinstance(value, Decimal):
        return float(value)
    return value if value is None or isinstance(value, int | float | str) else str(value)


def query(source: Answers | Path, sql: str) -> QueryResult:
    """Answer a query on the tables of a run.

    Args:
        source: What the run answers, or a folder into which `write_parquet` wrote its tables.
        sql: One statement in DuckDB's SQL. Only the tables that it names are made.

    Raises:
        TraceflowError: TF112 when it cannot be understood or carried out, TF123 without DuckDB, and what asking raises.
    """
    duckdb = _duckdb()
    with duckdb.connect(":memory:", config=_ISOLATED) as connection:
        for name in _named(sql, source):
            connection.register(name, _content(source, name))
        connection.execute("SET enable_external_access = false")
        connection.execute("SET lock_configuration = true")
        try:
            statements = connection.extract_statements(sql)
            if len(statements) != 1:
                raise _refused(sql, f"it holds {len(statements)} statements", "give one")
            found = connection.execute(statements[0])
            told = found.description or ()
            names, types = tuple(str(column[0]) for column in told), tuple(str(column[1]) for column in told)
            return QueryResult(names, types, tuple(found.fetchall()))
        except duckdb.Error as error:
            hint = f"correct it; the tables are {', '.join(_named('', source))}"
            raise _refused(sql, " ".join(str(error).split("\n\nLINE")[0].split()), hint) from error


def holds_tables(folder: Path) -> bool:
    """Whether `write_parquet` wrote into a folder, be it an earlier version's, which has fewer tables."""
    return all((folder / f"{name}.parquet").is_file() for name in _FIRST)


def _duckdb() -> Any:
    try:
        import duckdb
    except ImportError as error:
        what, hint = "cannot answer a query", "pip install 'traceflow-ml[query]'"
        raise TraceflowError("TF123", what, "DuckDB is not installed", hint) from error
    return duckdb


def _named(sql: str, source: Answers | Path) -> Iterable[str]:
    """The tables that a query may be about; all where it names none, as in SHOW TABLES."""
    words = {word.lower() for word in re.findall(r"\w+", sql)}
    there = [name for name in TABLES if isinstance(source, Answers) or (source / f"{name}.parquet").is_file()]
    return [name for name in there if name in words] or there


def _content(source: Answers | Path, name: str) -> object:
    if isinstance(source, Answers):
        from traceflow.export.tables import table

        return table(source, name)
    import pyarrow.dataset

    return pyarrow.dataset.dataset(source / f"{name}.parquet", format="parquet")


def _refused(sql: str, why: str, hint: str) -> TraceflowError:
    return TraceflowError("TF112", f"cannot answer {' '.join(sql.split())!r}", why, hint)
