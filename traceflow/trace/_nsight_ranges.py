"""A table of NVTX ranges that a profiler projected on the device: its rows, what their names say, and how they nest."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from traceflow.errors import TraceflowError
from traceflow.trace._nsight_tables import LATEST_NS, UNKNOWN
from traceflow.trace._xla_lines import WITHOUT_TIME, Count
from traceflow.trace.model import ABSENT, Bool, Int64, Text

if TYPE_CHECKING:
    import pyarrow as pa

_COLUMNS: Mapping[str, tuple[str, ...]] = {
    "name": ("Name", "Text"),
    "start": ("Projected Start", "Start"),
    "duration": ("Projected Duration",),
    "end": ("End",),
    "host_start": ("Orig Start",),
    "host_duration": ("Orig Duration",),
    "process": ("PID",),
    "thread": ("TID",),
    "number": ("RangeId", "Range ID"),
    "parent": ("ParentId", "Parent ID"),
    "operations": ("NumGPUOps",),
}
_RANGE = re.compile(r"(?:\w+:)?(Thunk|XlaModule|XlaAutotunerMeasurement):#(.*)#$", re.DOTALL)
_STATEMENT = re.compile(r"(?:^|,)(hlo_op|hlo_module|program_id)=([^,#]+)")
_LONGEST_NUMBER = 18  # of digits, so that it fits 63 bits
_NAMELESS = "work in no range"


class Range(NamedTuple):
    """What the name of a range says."""

    what: str  # Thunk, XlaModule, XlaAutotunerMeasurement, NCCL, or nothing that is known
    instruction: str
    module: str
    program: int  # ABSENT where XLA gave it no number


@dataclass(frozen=True, slots=True)
class Ranges:
    """Struct of arrays, one row per range, in order of their starts."""

    name: Text
    said: tuple[Range, ...]
    start_ns: Int64
    end_ns: Int64
    host_start_ns: Int64  # UNKNOWN where the table does not say
    host_end_ns: Int64
    thread: Int64
    number: Int64
    parent: Int64  # row of the range around it
    operations: Int64  # kernels and copies launched in it, ABSENT where unknown

    def __len__(self) -> int:
        return len(self.said)

    def of(self, *kinds: str) -> Bool:
        """Which ranges are of these kinds."""
        return np.array([said.what in kinds for said in self.said], bool)


def ranges_of(table: pa.Table, path: Path, count: Count) -> Ranges:
    """The ranges that have a name and a time, in order; what is left out is counted."""
    columns = {
        label: next((table.column(name) for name in names if name in table.column_names), None)
        for label, names in _COLUMNS.items()
    }
    number = {label: _integers(column, len(table), path) for label, column in columns.items() if label != "name"}
    names = _names(columns["name"])
    end = number["end"] if columns["duration"] is None else _sum(number["start"], number["duration"])
    host_end = _sum(number["host_start"], number["host_duration"])
    count.read += len(table)
    named = np.array([name is not None for name in names], bool)
    timed = _timed(number["start"], end)
    count.drop(_NAMELESS, (~named).sum())
    count.drop(WITHOUT_TIME, (named & ~timed).sum())
    kept = np.flatnonzero(named & timed)
    kept = kept[np.lexsort((number["number"][kept], number["start"][kept]))]
    said = tuple(range_named(name) for name in names[kept])
    on_host = _timed(number["host_start"], host_end)
    return Ranges(
        names[kept],
        said,
        number["start"][kept],
        end[kept],
        np.where(on_host, number["host_start"], UNKNOWN)[kept],
        host_end[kept],
        number["thread"][kept],
        number["number"][kept],
        _parents(number["number"][kept], number["parent"][kept]),
        np.where(number["operations"] < 0, ABSENT, number["operations"])[kept],
    )


def _names(column: pa.ChunkedArray | None) -> Text:
    import pyarrow as pa

    texts = [] if column is None else column.cast(pa.string()).to_pylist()
    return np.array(texts, object)


def _integers(column: pa.ChunkedArray | None, rows: int, path: Path) -> Int64:
    """A column of whole numbers, whatever type it was written with; UNKNOWN where there is none."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if column is None:
        return np.full(rows, UNKNOWN, np.int64)
    try:
        if pa.types.is_floating(column.type):
            column = pc.if_else(pc.is_finite(column), column, None)
        whole = column.cast(pa.int64(), safe=False).fill_null(int(UNKNOWN))
    except pa.ArrowException as error:
        why = f"a column of numbers is {column.type}"
        raise TraceflowError("TF107", f"cannot read {path}", why, "give the table as nsys-jax wrote it") from error
    return np.asarray(whole.to_numpy(), np.int64)


def _sum(start: Int64, duration: Int64) -> Int64:
    """Ends, UNKNOWN where one of both is out of range or negative."""
    valid = (np.abs(start // 2) < LATEST_NS) & (duration >= 0) & (duration < LATEST_NS)
    return np.where(valid, np.where(valid, start, 0) + np.where(valid, duration, 0), UNKNOWN)


def _timed(start_ns: Int64, end_ns: Int64) -> Bool:
    timed: Bool = (start_ns > -LATEST_NS) & (start_ns <= end_ns) & (end_ns < LATEST_NS)
    return timed


def _parents(number: Int64, parent: Int64) -> Int64:
    """The row of each range's parent. Ranges are numbered as they open, so that a later number is no parent."""
    order = np.argsort(number, kind="stable")
    at = np.minimum(np.searchsorted(number[order], parent), max(len(order) - 1, 0))
    found = order[at] if len(order) else at
    told = (parent >= 0) & (parent < number) & (number[found] == parent) if len(order) else np.empty(0, bool)
    return np.where(told, found, ABSENT)


@cache
def range_named(name: str) -> Range:
    """Read the name of a range.

    Example:
        >>> range_named("TSL:Thunk:#name=jit(f)/sum[axes=(0,)],hlo_op=all-reduce-start#").instruction
        'all-reduce-start'
    """
    if name.startswith("NCCL:"):
        return Range("NCCL", "", "", ABSENT)
    found = _RANGE.match(name)
    if not found:
        return Range("", "", "", ABSENT)
    stated = dict(_STATEMENT.findall(found[2]))
    number = stated.get("program_id", "")
    program = int(number) if number.isdecimal() and len(number) <= _LONGEST_NUMBER else ABSENT
    return Range(found[1], stated.get("hlo_op", ""), stated.get("hlo_module", ""), program)


@dataclass(frozen=True, slots=True)
class Placed:
    """Where ranges lie, per row."""

    module: Int64  # row of the program's execution around it; ABSENT outside of all, and in trials of the autotuner
    shown: Bool  # the innermost range of an instruction, or what lies in no such range and encloses nothing
    talks: Bool  # NCCL was called within


def placed_in(ranges: Ranges) -> Placed:
    """Trials of the autotuner run instructions of a program, but not in an execution of it."""
    thunk, parent = ranges.of("Thunk"), ranges.parent
    around = _enclosing(parent, thunk)
    numbered = np.array([said.program >= 0 for said in ranges.said], bool)
    trial = _enclosing(parent, ranges.of("XlaAutotunerMeasurement")) >= 0
    innermost = thunk & ~_any_of(around[thunk], len(ranges))
    alone = ~thunk & (around < 0) & ~_any_of(parent, len(ranges))
    return Placed(
        np.where(trial, ABSENT, _enclosing(parent, ranges.of("XlaModule") & numbered)),
        innermost | alone,
        _any_of(around[ranges.of("NCCL")], len(ranges)),
    )


def _any_of(rows: Int64, length: int) -> Bool:
    """Which rows are named; ABSENT names none."""
    named = np.zeros(length, bool)
    named[rows[rows >= 0]] = True
    return named


def _enclosing(parent: Int64, wanted: Bool) -> Int64:
    """Per row, the innermost range around it that is wanted; ABSENT where there is none."""
    found = parent.copy()
    while (beyond := (found >= 0) & ~np.append(wanted, True)[found]).any():
        found[beyond] = parent[found[beyond]]
    return found
