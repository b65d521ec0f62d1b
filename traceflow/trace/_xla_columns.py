"""Columns of texts and of statistics, as the lines of an XLA trace hold them: no Python object per event."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from traceflow.trace.model import Bool, Int8, Int64

Said: TypeAlias = Mapping[str, object]
"""The statistics of one event, by name."""

# The statistics that are read; decoding only these spares most of the work.
WANTED = frozenset(
    {
        "_c", "_ct", "_p", "_pt", "bytes_accessed", "correlation_id", "device_ordinal", "flops", "global_device_id",
        "hlo_module", "hlo_op", "long_name", "model_flops", "program_id", "run_id", "source", "source_stack",
        "step_num", "tf_op",
    }
)  # fmt: skip

NONE, CODED, UNSIGNED, SIGNED = 0, 1, 3, 4
"""How a statistic is held: not at all, as the place of its value in a list, or as an integer's 64 bits."""


def number(said: Said, name: str) -> int | None:
    """A statistic as a signed 64-bit integer; Chrome traces write numbers as text.

    Example:
        >>> number({"run_id": "-7"}, "run_id"), number({"run_id": 2**64 - 7}, "run_id"), number({}, "run_id")
        (-7, -7, None)
    """
    return number_of(said.get(name))


def number_of(value: object) -> int | None:
    """A value as a signed 64-bit integer, None where it is none."""
    if isinstance(value, str) and value.removeprefix("-").isdecimal():
        value = int(value)
    return (value + 2**63) % 2**64 - 2**63 if isinstance(value, int) else None


@dataclass(frozen=True, slots=True)
class Texts:
    """A text per row, by its place among all texts."""

    code: Int64
    values: Sequence[str]

    @classmethod
    def of(cls, texts: Iterable[str]) -> Texts:
        """Texts given one by one."""
        places: dict[str, int] = {}
        code = np.array([places.setdefault(text, len(places)) for text in texts], np.int64)
        return cls(code, list(places))

    def __len__(self) -> int:
        return len(self.code)

    def take(self, rows: Int64 | Bool) -> Texts:
        """The texts of some rows."""
        return Texts(self.code[rows], self.values)

    def at(self, row: int) -> str:
        """The text of a row."""
        return self.values[int(self.code[row])]

    def each(self, function: Callable[[str], Any], kind: type[Any]) -> NDArray[Any]:
        """What a function says of the text of each row; it is asked once for each text."""
        return each(self.code, self.values, function, kind)

    def listed(self) -> list[str]:
        """One text per row."""
        return [self.values[code] for code in self.code.tolist()]

    def coded_in(self, places: dict[str, int]) -> Int64:
        """The place of each row's text among all of a trace; new texts are added in the order of the rows."""
        place = np.empty(len(self.values), np.int64)
        for code in self._used():
            place[code] = places.setdefault(self.values[code], len(places))
        return place[self.code]

    def counted(self) -> dict[str, int]:
        """How many rows have each text, in the order of the rows."""
        rows = np.bincount(self.code, minlength=len(self.values)).tolist()
        counts: dict[str, int] = {}
        for code in self._used():
            counts[self.values[code]] = counts.get(self.values[code], 0) + rows[code]
        return counts

    def _used(self) -> list[int]:
        """The codes of all rows, each once, in the order of the rows."""
        first = first_rows(self.code, len(self.values))
        used = np.flatnonzero(first >= 0)
        return [int(code) for code in used[np.argsort(first[used])]]


def each(code: Int64, values: Sequence[Any], function: Callable[[Any], Any], kind: type[Any]) -> NDArray[Any]:
    """What a function says of the value that each code stands for; it is asked once for each value in use."""
    used = np.zeros(len(values), bool)
    used[code] = True
    said = np.zeros(len(values), kind)
    for one in np.flatnonzero(used).tolist():
        said[one] = function(values[one])
    return said[code]


@dataclass(frozen=True, slots=True)
class Column:
    """One statistic of all rows: how each is held, and its word."""

    form: Int8
    word: Int64
    values: Sequence[object]

    def take(self, rows: Int64 | Bool) -> Column:
        """The statistic of some rows."""
        return Column(self.form[rows], self.word[rows], self.values)

    def over(self, shared: Column) -> Column:
        """This where it is there, else the shared one, whose values are the same list."""
        own = self.form != NONE
        return Column(np.where(own, self.form, shared.form), np.where(own, self.word, shared.word), self.values)

    def value(self, row: int) -> object:
        """The value of a row, None where it has none."""
        form, word = int(self.form[row]), int(self.word[row])
        if form == CODED:
            return self.values[word]
        return None if form == NONE else word % 2**64 if form == UNSIGNED else word

    def numbers(self) -> tuple[Int64, Bool]:
        """Of each row its integer, and whether it has one."""
        known, found = self.form >= UNSIGNED, self.word.copy()
        coded = self.form == CODED
        if coded.any():
            code = self.word[coded]
            known[coded] = each(code, self.values, lambda value: number_of(value) is not None, bool)
            found[coded] = each(code, self.values, lambda value: number_of(value) or 0, np.int64)
        return found, known

    def texts(self) -> Texts:
        """Each row's value as text; all rows have one."""
        coded = self.form == CODED
        values = [""] * len(self.values)
        for code in np.unique(self.word[coded]).tolist():
            values[code] = str(self.values[code])
        place = self.word.copy()
        for row in np.flatnonzero(~coded).tolist():
            place[row] = len(values)
            values.append(str(self.value(row)))
        return Texts(place, values)


@dataclass(frozen=True, slots=True)
class Stats:
    """The statistics of rows, by name."""

    columns: Mapping[str, Column]
    rows: int

    @classmethod
    def of(cls, said: Sequence[Said]) -> Stats:
        """Statistics given row by row."""
        made = Made(len(said))
        for row, one in enumerate(said):
            for name in one.keys() & WANTED:
                made.add(row, name, one[name])
        return cls(made.columns(), len(said))

    def take(self, rows: Int64 | Bool) -> Stats:
        """The statistics of some rows."""
        count = int(np.count_nonzero(rows)) if rows.dtype == bool else len(rows)
        return Stats({name: column.take(rows) for name, column in self.columns.items()}, count)

    def has(self, *names: str) -> Bool:
        """Whether each row has one of some statistics, whatever it holds."""
        found = np.zeros(self.rows, bool)
        for name in names:
            if name in self.columns:
                found |= self.columns[name].form != NONE
        return found

    def holds(self, name: str) -> Bool:
        """Whether each row has a statistic that is neither empty nor 0."""
        found = self.has(name)
        if name in self.columns:
            column = self.columns[name]
            coded = column.form == CODED
            found[coded] = each(column.word[coded], column.values, bool, bool)
            found[column.form > CODED] = column.word[column.form > CODED] != 0
        return found

    def numbers(self, name: str) -> tuple[Int64, Bool]:
        """A statistic of each row as an integer, and whether it is one."""
        if name in self.columns:
            return self.columns[name].numbers()
        return np.zeros(self.rows, np.int64), np.zeros(self.rows, bool)

    def numbers_or(self, name: str, default: int) -> Int64:
        """A statistic of each row as an integer, another number where it is none."""
        found, known = self.numbers(name)
        return np.where(known, found, default)

    def texts(self, name: str) -> Texts:
        """A statistic of rows that all have it, as text."""
        return self.columns[name].texts() if self.rows else Texts(np.empty(0, np.int64), [])

    def said(self, row: int) -> dict[str, object]:
        """All statistics of one row."""
        return {name: column.value(row) for name, column in self.columns.items() if column.form[row] != NONE}


@dataclass(slots=True)
class Made:
    """Statistics that are put together one by one."""

    rows: int
    values: list[object] = field(default_factory=list)
    _places: dict[str, int] = field(default_factory=dict)
    _columns: dict[str, Column] = field(default_factory=dict)

    def add(self, row: int, name: str, value: object) -> None:
        """Note a statistic of a row."""
        column = self.column(name)
        if type(value) is int and -(2**63) <= value < 2**64:
            column.form[row] = SIGNED if value < 2**63 else UNSIGNED
            column.word[row] = value - 2**64 * (value >= 2**63)
        else:
            column.form[row], column.word[row] = CODED, self.code(value)

    def column(self, name: str) -> Column:
        """The column of a statistic, empty at first."""
        if name not in self._columns:
            self._columns[name] = Column(np.zeros(self.rows, np.int8), np.zeros(self.rows, np.int64), self.values)
        return self._columns[name]

    def code(self, value: object) -> int:
        """The place of a value in the list of them; texts are there once."""
        place = self._places.setdefault(value, len(self.values)) if isinstance(value, str) else len(self.values)
        if place == len(self.values):
            self.values.append(value)
        return place

    def columns(self) -> dict[str, Column]:
        """All columns."""
        return self._columns


def first_rows(code: Int64, codes: int) -> Int64:
    """The first row that has each code, -1 for none."""
    first = np.full(codes, -1, np.int64)
    first[code[::-1]] = np.arange(len(code))[::-1]
    return first


def numbered_pairs(one: Int64, other: Int64) -> tuple[Int64, Int64]:
    """Pairs of numbers numbered in their order: that of each row, and of each the first row that has it."""
    pair, pairs = _rank(one)
    rank, ranks = _rank(other)
    pair, pairs = pair * ranks + rank, pairs * ranks
    if pairs > 4 * len(pair):
        pair, pairs = _rank(pair)
    first = first_rows(pair, pairs)
    used = first >= 0
    return (np.cumsum(used) - 1)[pair], first[used]


def _rank(numbers: Int64) -> tuple[Int64, int]:
    """The place of each number among the distinct ones, and how many these are."""
    distinct = np.unique(numbers)
    return np.searchsorted(distinct, numbers), len(distinct)


def first_of_pairs(one: Int64, other: Int64) -> Int64:
    """The rows in which a pair of numbers is seen for the first time, ascending."""
    return np.sort(numbered_pairs(one, other)[1])
