"""Cluster-level operation tables: one row per operation of a training job, as Parquet, CSV or a Chrome timeline.

Such a table is what a fleet's own monitoring keeps of a job. Required are the columns `rank`, `step`, `optype` (or
`type`), a start and a duration: integers in ns (`start_ns`, `duration_ns`), or seconds (`start_ts` or `start`,
`duration`). Where known also `dp_rank`, `stage`, `mc` (model chunk; or `chunk`), `mb_id` (micro-batch; or
`micro_batch`) and `seq_id` (how many of its type came before it in the step; or `sequence`), with -1 for unknown.
Of a timeline see :mod:`traceflow.trace.operation_timeline`.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from traceflow.errors import TraceflowError
from traceflow.result import Note, Tally
from traceflow.trace.model import ABSENT, Bool, Int32, Int64, Rows
from traceflow.trace.operation_timeline import is_timeline, timeline_table
from traceflow.unpacking import parquet_table, unpacked

if TYPE_CHECKING:
    import pyarrow as pa

_NAMES = {
    "rank": ("rank",),
    "step": ("step",),
    "type": ("optype", "type"),
    "dp_rank": ("dp_rank",),
    "stage": ("stage",),
    "chunk": ("mc", "chunk"),
    "micro_batch": ("mb_id", "micro_batch"),
    "sequence": ("seq_id", "sequence"),
    "start_ns": ("start_ns",),
    "start": ("start_ts", "start"),
    "duration_ns": ("duration_ns",),
    "duration": ("duration",),
}
_TIMES = ("start", "duration")
_REQUIRED = ("rank", "step", "type", *_TIMES)
_INTEGERS = {
    "rank": np.int32,
    "step": np.int64,
    "dp_rank": np.int32,
    "stage": np.int32,
    "chunk": np.int32,
    "micro_batch": np.int32,
    "sequence": np.int32,
}
_PARQUET, _GZIP = b"PAR1", b"\x1f\x8b"
_HEAD_BYTES = 1 << 18
_NS_PER_SECOND = 1_000_000_000
_LONGEST_NS, _LATEST_NS = 2**60, 2**62  # so that no sum of them leaves 64 bits

_Columns: TypeAlias = "dict[str, pa.ChunkedArray]"


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationTable:
    """Struct of arrays, one row per operation, sorted by (step, rank, start_ns, end, type); -1 is unknown.

    A step begins after the one before has ended.
    """

    rank: Int32
    step: Int64
    type: Int32  # code in `types`
    start_ns: Int64
    duration_ns: Int64
    dp_rank: Int32
    stage: Int32
    chunk: Int32
    micro_batch: Int32
    sequence: Int32
    types: tuple[str, ...]
    resolution_ns: int = 0  # the coarsest step between two neighbouring times that the source could tell apart
    tally: Tally = field(default_factory=Tally)

    def __len__(self) -> int:
        return len(self.start_ns)

    @property
    def end_ns(self) -> Int64:
        """When each operation was over."""
        return self.start_ns + self.duration_ns

    def of(self, names: Collection[str]) -> Bool:
        """Which operations are of these types, shape (operations,)."""
        return np.isin(self.type, [code for code, name in enumerate(self.types) if name in names])

    def take(self, rows: Int64 | Bool) -> OperationTable:
        """The same table with some of its rows only.

        Args:
            rows: Row numbers in the order wanted, or one flag per row.
        """
        columns = ((f.name, getattr(self, f.name)) for f in fields(self))
        taken: dict[str, Any] = {name: column[rows] for name, column in columns if isinstance(column, np.ndarray)}
        return replace(self, **taken)


def is_operation_table(path: str | Path) -> bool:
    """Whether a file is Parquet, or CSV or a timeline of operations, judged by its first bytes.

    Args:
        path: A file that exists.
    """
    head = _head(Path(path))
    if head.startswith(_PARQUET):
        return True
    first = head.partition(b"\n")[0].decode("utf-8", "replace").strip("\r\ufeff")
    columns = {name.strip('" ') for name in first.split(",")}
    known = {name for names in _NAMES.values() for name in names}
    return is_timeline(head) or len(columns & known) > 1


def read_operations(path: str | Path) -> OperationTable:
    """Read the operation table of a job.

    Seconds become ns by rounding each start and each duration once, to the nearest; `tally.repaired` counts them
    and `resolution_ns` tells what the source's own floats could resolve. Rows without a time, rank, step or type,
    with a negative duration, or there twice are dropped and counted. Steps that overlap, as they do where each is
    timed from its own start, are put one after another, a nanosecond apart, and a note says so.

    Args:
        path: A Parquet file, CSV with a header, or a Chrome timeline, compressed or not.

    Raises:
        TraceflowError: TF101 without such a file, TF102 if it is empty, TF103 or TF105 if it is damaged, TF104
            without an operation, TF107 if columns are missing or are of no use, TF108 if one rank is at two places.
    """
    name = Path(path).name
    columns = _columns(_table(Path(path)), name)
    types = _types(columns["type"], name)
    (start_ns, start_step), (duration_ns, duration_step) = (_time(columns, label, name) for label in _TIMES)
    integers: dict[str, Any] = {label: _integers(columns, label, len(start_ns), name) for label in _INTEGERS}
    table = OperationTable(
        **integers,
        type=types[0],
        types=types[1],
        start_ns=start_ns,
        duration_ns=duration_ns,
        resolution_ns=max(start_step, duration_step),
    )
    kept = _kept(table, rounded=start_step + duration_step > 0)
    _refuse_unusable(kept, name)
    return _in_sequence(kept, name)


def _head(path: Path) -> bytes:
    """The first bytes of a file's content, unpacked."""
    with path.open("rb") as file:
        head = file.read(_HEAD_BYTES)
    if not head.startswith(_GZIP):
        return head
    with suppress(zlib.error):
        return zlib.decompressobj(wbits=31).decompress(head, _HEAD_BYTES)
    return b""


def _table(path: Path) -> pa.Table:
    """The file as columns; its first bytes tell the format."""
    import pyarrow as pa
    import pyarrow.csv

    try:
        head = _head(path)
        if not path.stat().st_size:
            raise TraceflowError("TF102", f"cannot read {path.name}", "the file is empty", "write the table again")
    except OSError as error:
        why = error.strerror or "it cannot be opened"
        raise TraceflowError("TF101", f"cannot read {path.name}", why, "check the path") from error
    if is_timeline(head):
        return timeline_table(path)
    try:
        table = parquet_table(path) if head.startswith(_PARQUET) else pyarrow.csv.read_csv(BytesIO(unpacked(path)))
        table.validate(full=True)
        _ = table.column_names  # which are decoded here
    except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
        why = (str(error).splitlines() or [type(error).__name__])[0]
        raise TraceflowError("TF103", f"cannot read {path.name}", why, "copy or write the table again") from error
    return table


def _columns(table: pa.Table, name: str) -> _Columns:
    """The columns by what they mean."""
    there = {label: next((n for n in names if n in table.column_names), None) for label, names in _NAMES.items()}
    twice = [column for column in there.values() if column and table.column_names.count(column) > 1]
    if twice:
        raise _unusable(name, twice[0], f"it has more than one column {twice[0]}")
    missing = [label for label in _REQUIRED if not (there[label] or there.get(f"{label}_ns"))]
    if missing:
        raise TraceflowError(
            "TF107",
            f"{name} is no operation table",
            f"it has no column {' or '.join(_NAMES[missing[0]])}",
            "give one row per operation: rank, step, optype, start_ts, duration",
        )
    return {label: table.column(column) for label, column in there.items() if column is not None}


def _types(column: pa.ChunkedArray, name: str) -> tuple[Int32, tuple[str, ...]]:
    """Codes of the types, and the types that occur in alphabetic order; -1 where a row has none."""
    import pyarrow as pa

    try:
        texts = np.array(column.cast(pa.string()).to_pylist(), object)
    except pa.ArrowException as error:
        raise _unusable(name, "type", f"the type is {column.type}, not text") from error
    known = np.array([text is not None and bool(text) for text in texts], bool)
    values, codes = np.unique(texts[known].astype(str), return_inverse=True)
    coded = np.full(len(texts), ABSENT, np.int32)
    coded[known] = codes
    return coded, tuple(map(str, values))


_UNKNOWN_NS = np.iinfo(np.int64).min


def _time(columns: _Columns, label: str, name: str) -> tuple[Int64, int]:
    """Times in ns, the lowest integer where there is none; and the spacing of the floats they came from, in ns."""
    import pyarrow as pa

    whole = columns.get(f"{label}_ns")
    if whole is not None and (not pa.types.is_integer(whole.type) or whole.type == pa.uint64()):
        raise _unusable(name, label, f"{label}_ns is {whole.type}, not an integer of 64 bits with a sign")
    if whole is not None:
        return np.asarray(whole.cast(pa.int64()).fill_null(int(_UNKNOWN_NS)).to_numpy(), np.int64), 0
    given = columns[label]
    if pa.types.is_integer(given.type) or pa.types.is_null(given.type):
        given = given.cast(pa.float64(), safe=False)
    if not pa.types.is_floating(given.type):
        raise _unusable(name, label, f"the {label} is {given.type}, not a number of seconds")
    return _rounded(given.to_numpy())


def _rounded(seconds: NDArray[np.floating]) -> tuple[Int64, int]:
    """Seconds in ns, to the nearest, and how far apart the floats at the largest of them are, in ns."""
    finite = np.isfinite(seconds) & (np.abs(seconds) < _LATEST_NS / _NS_PER_SECOND)
    times = np.full(len(seconds), _UNKNOWN_NS, np.int64)
    times[finite] = np.rint(seconds[finite].astype(np.float64) * _NS_PER_SECOND).astype(np.int64)
    spacing = float(np.spacing(np.abs(seconds[finite]).max())) if finite.any() else 0.0
    return times, max(1, int(np.ceil(spacing * _NS_PER_SECOND)))


def _integers(columns: _Columns, label: str, rows: int, name: str) -> Rows:
    """A column of whole numbers, -1 where nothing is known."""
    import pyarrow as pa
    import pyarrow.compute as pc

    dtype = _INTEGERS[label]
    if label not in columns:
        return np.full(rows, ABSENT, dtype)
    try:
        given = columns[label]
        if pa.types.is_floating(given.type):  # as numpy writes a column of integers with gaps
            given = pc.if_else(pc.is_nan(given), None, given)
        whole = given.cast(pa.from_numpy_dtype(dtype)).fill_null(ABSENT)
    except pa.ArrowException as error:
        raise _unusable(name, label, f"{label} has values that are no whole numbers in range") from error
    return np.asarray(whole.to_numpy(), dtype)


def _unusable(name: str, label: str, why: str) -> TraceflowError:
    hint = "seconds as floats or ns as integers" if label in _TIMES else "text for the type, integers elsewhere"
    return TraceflowError("TF107", f"{name} is no operation table", why, f"write {hint}")


def _kept(table: OperationTable, *, rounded: bool) -> OperationTable:
    """The rows that can be used, in order, with the account of the others."""
    timed = (np.abs(table.start_ns + 1) < _LATEST_NS) & (np.abs(table.duration_ns + 1) < _LONGEST_NS)
    dropped = {"without a time": int((~timed).sum())}
    placed = timed & (table.rank >= 0) & (table.step >= 0) & (table.type >= 0)
    dropped["without a rank, step or type"] = int((timed & ~placed).sum())
    lasting = placed & (table.duration_ns >= 0)
    dropped["negative duration"] = int((placed & ~lasting).sum())
    ordered = table.take(lasting)
    keys = (ordered.sequence, ordered.type, ordered.end_ns, ordered.start_ns, ordered.rank, ordered.step)
    order = np.lexsort(keys)
    again = np.zeros(len(order), bool)
    again[1:] = np.all([key[order][1:] == key[order][:-1] for key in keys], axis=0)
    dropped["twice in the table"] = int(again.sum())
    kept = ordered.take(order[~again])
    repaired = {"seconds rounded to ns": len(kept)} if rounded and len(kept) else {}
    counted = {reason: count for reason, count in dropped.items() if count}
    return replace(kept, tally=Tally(len(table), len(kept), repaired, counted))


def _refuse_unusable(table: OperationTable, name: str) -> None:
    """Refuse a table without an operation, and one in which a rank is at two places."""
    if not len(table):
        why = "; ".join(f"{count} {reason}" for reason, count in table.tally.dropped.items()) or "it has no row"
        raise TraceflowError("TF104", f"{name} has no operation", why, "check how the table was written")
    for label in ("dp_rank", "stage"):
        pairs = np.unique(np.column_stack((table.rank, getattr(table, label))), axis=0)
        twice = pairs[1:, 0][pairs[1:, 0] == pairs[:-1, 0]]
        if len(twice):
            why = f"rank {twice[0]} has more than one {label}"
            raise TraceflowError("TF108", f"{name} contradicts itself", why, "give each rank one place in the job")


def _in_sequence(table: OperationTable, name: str) -> OperationTable:
    """The table with its steps one after another, in order of their numbers."""
    steps, first = np.unique(table.step, return_index=True)
    start_ns = np.minimum.reduceat(table.start_ns, first)
    end_ns = np.maximum.reduceat(table.end_ns, first)
    if (start_ns[1:] > end_ns[:-1]).all():
        return table
    length_ns = end_ns - start_ns + 1
    if length_ns.sum(dtype=float) > _LONGEST_NS:
        why = f"its steps take {length_ns.sum(dtype=float) / _NS_PER_SECOND:.0f} s together"
        raise _unusable(name, "start", why)
    begin_ns = start_ns[0] + np.cumsum(length_ns) - length_ns
    text = f"the {len(steps)} steps overlap in time, as those do that are timed from their own start; they stand one after another here"
    return replace(
        table,
        start_ns=table.start_ns + (begin_ns - start_ns)[np.searchsorted(steps, table.step)],
        tally=replace(table.tally, notes=(*table.tally.notes, Note("TF312", text))),
    )
