"""Tables of an SQLite export of Nsight Systems, column by column. Its schema grows: what is missing reads as unknown."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np

from traceflow.errors import TraceflowError
from traceflow.trace.model import Int64, Text

UNKNOWN = np.iinfo(np.int64).min
"""A number that a table does not say."""

LATEST_NS = 1 << 56
"""No session takes two years."""

_ROWS_AT_ONCE = 1 << 16
_VERSIONED = re.compile(r"(.+)_V(\d{1,3})", re.IGNORECASE)
_PLAIN = 1_000  # more than any version
_OWN = ("CUPTI_ACTIVITY_KIND_", "NVTX_EVENTS", "TARGET_INFO_", "OSRT_API")


class Tables:
    """The tables of one file. Only plain tables are read: what a view or a trigger would run, is not."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        found = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        self._named = _latest(str(name) for (name,) in found.fetchall())
        self._columns = {name: self._columns_of(name) for name in self._named}

    def __contains__(self, table: str) -> bool:
        return table in self._columns

    @property
    def names(self) -> frozenset[str]:
        """Names of all tables."""
        return frozenset(self._columns)

    def has(self, table: str, column: str) -> bool:
        """Whether a table has a column."""
        return column in self._columns.get(table, frozenset())

    def integers(self, table: str, columns: Sequence[str]) -> dict[str, Int64]:
        """Columns of whole numbers, UNKNOWN where a cell, a column or the table has none, in order of the file."""
        asked = [column for column in columns if self.has(table, column)]
        cells = (
            f"CASE typeof({_quoted(column)}) WHEN 'integer' THEN {_quoted(column)} ELSE {UNKNOWN} END"
            for column in asked
        )
        parts = [np.array(rows, np.int64).reshape(-1, len(asked)) for rows in self._rows(table, list(cells))]
        if not asked:
            parts = [np.empty((self._count(table), 0), np.int64)]
        whole = np.concatenate(parts) if parts else np.empty((0, len(asked)), np.int64)
        found = {column: np.ascontiguousarray(whole[:, at]) for at, column in enumerate(asked)}
        return {column: found.get(column, np.full(len(whole), UNKNOWN, np.int64)) for column in columns}

    def texts(self, table: str, column: str) -> Text:
        """A column of texts, None where a cell has none; as long as `integers` of the same table."""
        if not self.has(table, column):
            return np.full(self._count(table), None, object)
        cell = f"CASE typeof({_quoted(column)}) WHEN 'text' THEN {_quoted(column)} END"
        return np.array([text for rows in self._rows(table, [cell]) for (text,) in rows], object)

    def blobs(self, table: str, column: str) -> list[bytes | None]:
        """A column of binary values, None where a cell has none; as long as `integers` of the same table."""
        if not self.has(table, column):
            return [None] * self._count(table)
        cell = f"CASE typeof({_quoted(column)}) WHEN 'blob' THEN {_quoted(column)} END"
        return [blob if isinstance(blob, bytes) else None for rows in self._rows(table, [cell]) for (blob,) in rows]

    def texts_used(self, columns: Iterable[tuple[str, str]]) -> dict[int, str]:
        """Numbered texts, as far as columns of other tables name them: an export may hold millions more."""
        there = [(table, column) for table, column in columns if self.has(table, column)]
        uses = [f"SELECT {_quoted(column)} FROM {self._quoted(table)}" for table, column in there]  # noqa: S608 - quoted
        if not uses or not (self.has("StringIds", "id") and self.has("StringIds", "value")):
            return {}
        asked = f"SELECT id, value FROM {self._quoted('StringIds')} WHERE typeof(value) = 'text' AND id IN ({' UNION '.join(uses)})"  # noqa: S608 - quoted
        return {int(number): str(text) for number, text in self._connection.execute(asked) if isinstance(number, int)}

    def _columns_of(self, table: str) -> frozenset[str]:
        return frozenset(str(row[1]) for row in self._connection.execute(f"PRAGMA table_info({self._quoted(table)})"))

    def _quoted(self, table: str) -> str:
        """A table as the file calls it."""
        return _quoted(self._named[table])

    def _count(self, table: str) -> int:
        if table not in self:
            return 0
        return int(self._connection.execute(f"SELECT count(*) FROM {self._quoted(table)}").fetchone()[0])  # noqa: S608 - quoted

    def _rows(self, table: str, cells: list[str]) -> Iterator[list[tuple[object, ...]]]:
        if not cells:
            return
        found = self._connection.execute(f"SELECT {', '.join(cells)} FROM {self._quoted(table)}")  # noqa: S608 - quoted
        while rows := found.fetchmany(_ROWS_AT_ONCE):
            yield rows


@contextmanager
def opened(path: Path) -> Iterator[Tables]:
    """The tables of a file, which is not changed, whatever it holds.

    Raises:
        TraceflowError: TF103 when the file is damaged.
    """
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)) as connection:
            connection.execute("PRAGMA trusted_schema = OFF")
            connection.text_factory = lambda raw: raw.decode(errors="replace")
            yield Tables(connection)
    except sqlite3.Error as error:
        why = f"the database is damaged ({error})"
        raise TraceflowError("TF103", f"cannot read {path}", why, "export it again with nsys export") from error


def looks_like_nsight(file: Path) -> bool:
    """Whether an SQLite file is an export of Nsight Systems, by its tables."""
    try:
        with opened(file) as tables:
            return "StringIds" in tables and any(name.startswith(_OWN) for name in tables.names)
    except TraceflowError:
        return file.suffix == ".sqlite"  # a rank whose export is damaged must not vanish without a word


def _latest(tables: Iterable[str]) -> dict[str, str]:
    """Tables by their names without the version that some exporters append, of several the one without, or the latest.

    Example:
        >>> _latest(["NVTX_EVENTS_V3", "NVTX_EVENTS_V2", "StringIds", "StringIds_V2"])
        {'NVTX_EVENTS': 'NVTX_EVENTS_V3', 'StringIds': 'StringIds'}
    """
    found: dict[str, tuple[int, str]] = {}
    for table in tables:
        match = _VERSIONED.fullmatch(table)
        name, version = (table, _PLAIN) if match is None else (match[1], int(match[2]))
        found[name] = max((version, table), found.get(name, (-1, "")))
    return {name: table for name, (_, table) in found.items()}


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
