"""What PyTorch says of memory apart from a trace: timelines of what it is used for, snapshots of the CUDA allocator.

Sources: `torch.profiler._memory_profiler` for the timelines, which are JSON: `[time, action, bytes, category]` per
row, or times and amounts per category; `torch.cuda.memory._snapshot` for the snapshot, which is a pickle.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated, TypeAlias

import msgspec
import numpy as np

from traceflow.errors import TraceflowError
from traceflow.result import Tally
from traceflow.trace._cuda_snapshot import looks_like_snapshot, snapshot_rows
from traceflow.trace.canonical import canonical
from traceflow.trace.model import ABSENT, Int64, MemoryEvents, MemorySource, MemoryUse, Rank, Trace
from traceflow.trace.untraced import untraced
from traceflow.unpacking import unpacked

_Use: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=int(max(MemoryUse)))]
_Action: TypeAlias = tuple[int, int, int, _Use]  # moment, what happened, bytes, for what
Row: TypeAlias = tuple[int, int, int, int, int, int]
"""Time in ns, device, change, allocated in all, reserved in all, use."""

_ROWS = re.compile(rb"\s*\[\s*\[\s*-?\d+\s*,\s*[1-4]\s*,\s*-?\d+\s*,\s*[0-7]\s*\]")
_TABLE = re.compile(rb"\s*\[\s*\[\s*(?:-?\d+(?:\.\d+)?\s*,\s*)+")
_RECORDED = re.compile(rb'\s*\{\s*"device"\s*:\s*"[^"]*"\s*,\s*"categories"\s*:')
_DEVICE = re.compile(r"cuda:(\d+)|xpu:(\d+)|mtia:(\d+)")
_LARGEST, _LARGEST_DEVICE = 2**61, np.iinfo(np.int32).max
_UNTIMED = -1  # of what was there before recording began
_DAMAGED = (ValueError, TypeError, LookupError, OverflowError, RecursionError)


class _Recorded(msgspec.Struct):
    """A timeline that traceflow recorded."""

    device: str
    categories: tuple[str, ...]
    times_ns: list[int]
    allocated_bytes: list[list[int]]


def looks_like_torch_memory(head: bytes) -> bool:
    """Whether the first bytes of a file, unpacked, are those of a memory timeline or of a snapshot.

    Example:
        >>> looks_like_torch_memory(b"[[-1, 1, 37888, 7], [-1, 1, 512, 7]"), looks_like_torch_memory(b"[1, 2]")
        (True, False)
    """
    tables = (_ROWS, _TABLE, _RECORDED)
    return looks_like_snapshot(head) or any(form.match(head) for form in tables)


def read_torch_memory(path: Path, *, rank: int = 0) -> Trace:
    """Read a memory timeline or a snapshot of the CUDA allocator as a trace that holds nothing else.

    A snapshot is unpickled with every class refused, so that nothing in it is executed. Its history is walked by
    address; where blocks contradict it, the history is not whole, the amounts in all are absent, and a note says so.

    Args:
        path: The file, plain or packed by gzip.
        rank: Whose memory it is.

    Raises:
        TraceflowError: TF103 when the content is damaged, TF104 when it holds no events, TF105 when it cannot be
            unpacked, TF109 when a pickle asks for more than plain values.
    """
    content = unpacked(path)
    try:
        rows, tally, source = _rows(content, path)
        columns = _columns(rows)
    except _DAMAGED as error:
        why = str(error).partition("\n")[0] or type(error).__name__
        raise TraceflowError("TF103", f"cannot read {path}", why, "copy it again, or record again") from error
    if not rows:
        why = "it holds no allocation or release"
        raise TraceflowError("TF104", f"nothing to explain in {path}", why, "let the program allocate while recording")
    return _trace(columns, tally, source, Rank(rank, None, None, path.name))


def with_memory(trace: Trace, other: Trace) -> Trace:
    """A trace of one rank with the memory of another of the same rank.

    Where one of them does not say when it was recorded, their times cannot be related, and nothing is added.
    """
    if trace.epoch_ns is None or other.epoch_ns is None:
        return trace
    one, two, shift = trace.memory, other.memory, other.epoch_ns - trace.epoch_ns
    two = replace(two, time_ns=two.time_ns + shift)
    columns = (np.concatenate([getattr(m, column.name) for m in (one, two)]) for column in fields(MemoryEvents))
    return canonical(replace(trace, memory=MemoryEvents(*columns), tally=trace.tally + other.tally))


def _rows(content: bytes, path: Path) -> tuple[list[Row], Tally, MemorySource]:
    if looks_like_snapshot(content):
        return (*snapshot_rows(content, path), MemorySource.SNAPSHOT)
    rows = _timeline(content)
    return rows, Tally(len(rows), len(rows)), MemorySource.TIMELINE


def _timeline(content: bytes) -> list[Row]:
    if content.lstrip().startswith(b"{"):
        return _recorded(msgspec.json.decode(content, type=_Recorded))
    try:
        return _actions(msgspec.json.decode(content, type=list[_Action]))
    except msgspec.ValidationError:
        return _table(*msgspec.json.decode(content, type=tuple[list[float], list[list[int]]]))


def _actions(told: Sequence[_Action]) -> list[Row]:
    """Rows of what happened to each tensor; a new version of one moves its bytes from one use to another."""
    first_ns = min((row[0] for row in told if row[0] != _UNTIMED), default=0)
    rows, total = [], 0
    for time_ns, _, change, use in told:
        total += change
        rows.append((first_ns if time_ns == _UNTIMED else time_ns, ABSENT, change, total, ABSENT, use))
    return rows


def _recorded(told: _Recorded) -> list[Row]:
    """What traceflow records: amounts per use, at moments in ns."""
    uses = [MemoryUse.__members__.get(name.upper(), MemoryUse.UNKNOWN) for name in told.categories]
    found = _DEVICE.match(told.device)
    device = ABSENT if found is None else int(found[found.lastindex or 0])
    return _differences(told.times_ns, told.allocated_bytes, uses, device)


def _table(times_us: Sequence[float], sizes: Sequence[Sequence[int]]) -> list[Row]:
    """What PyTorch exports: amounts per use at moments in us, after a first column that is none."""
    times_ns = [round(time_us * 1000) for time_us in times_us]
    return _differences(times_ns, [row[1:] for row in sizes], list(MemoryUse), ABSENT)


def _differences(
    times_ns: Sequence[int], amounts: Sequence[Sequence[int]], uses: Sequence[MemoryUse], device: int
) -> list[Row]:
    """Changes between moments. What shrinks comes first, so that nothing counts twice as it changes its use."""
    rows, before, total = [], [0] * len(uses), 0
    for time_ns, after in zip(times_ns, amounts, strict=True):
        changes = sorted((new - old, use) for new, old, use in zip(after, before, uses, strict=True) if new != old)
        for change, use in changes:
            total += change
            rows.append((time_ns, device, change, total, ABSENT, int(use)))
        before = list(after)
    return rows


def _columns(rows: Sequence[Row]) -> Int64:
    """Rows as columns, shape (6, rows).

    Raises:
        ValueError: where a number cannot be true, and sums of such would leave 64 bits.
    """
    columns: Int64 = np.array(rows, np.int64).reshape(-1, 6).T
    if ((columns > _LARGEST) | (columns < -_LARGEST)).any():
        raise ValueError("it has times or sizes that cannot be")
    if ((columns[1] > _LARGEST_DEVICE) | (columns[1] < ABSENT)).any():
        raise ValueError("it names devices that cannot be")
    return columns


def _trace(columns: Int64, tally: Tally, source: MemorySource, rank: Rank) -> Trace:
    time, device, change, allocated, reserved, use = columns
    memory = MemoryEvents(
        time_ns=time,
        rank=np.full(len(time), rank.rank, np.int32),
        device=device.astype(np.int32),
        source=np.full(len(time), source, np.int8),
        change_bytes=change,
        allocated_bytes=allocated,
        reserved_bytes=reserved,
        use=use.astype(np.int8),
    )
    return canonical(replace(untraced(), ranks=(rank,), epoch_ns=0, format="torch-memory", tally=tally, memory=memory))
