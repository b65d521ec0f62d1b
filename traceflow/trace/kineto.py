"""Traces of PyTorch's profiler: the JSON that Kineto writes, plain or packed by gzip."""

from __future__ import annotations

import ctypes
import re
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from traceflow.errors import TraceflowError
from traceflow.result import Note, Tally
from traceflow.trace.file_ranks import rank_in_name
from traceflow.trace.kept import kept_or_read
from traceflow.trace.model import Rank, Trace

if TYPE_CHECKING:
    from traceflow.result import Json
    from traceflow.trace._kineto_rows import Rows

_KINETO_KEY = re.compile(
    rb'"(?:schemaVersion|deviceProperties|distributedInfo|baseTimeNanoseconds|traceName|record_shapes'
    rb"|cupti_version|cuda_runtime_version|hip_runtime_version|roctracer_version|Ev Idx|External id)\"\s*:"
    rb'|"cat"\s*:\s*"(?:cpu_op|user_annotation|python_function|kernel|gpu_mem|cuda_|ac2g|xpu_|mtia_|privateuse1_|Operator)'
)


def looks_like_kineto(head: bytes) -> bool:
    """Whether the first bytes of a JSON file, unpacked, are those of a Kineto trace.

    Example:
        >>> looks_like_kineto(b'{"schemaVersion": 1, "deviceProperties": [')
        True
        >>> looks_like_kineto(b'{"displayTimeUnit":"ns","metadata":{"highres-ticks":true},"traceEvents":[')
        False
    """
    return b'"highres-ticks"' not in head and _KINETO_KEY.search(head) is not None


def read_kineto(path: Path, *, communication: tuple[str, ...] = ()) -> Trace:
    """Read the trace of one rank, in memory that grows with the number of events and not with the file.

    Operators, annotations and Python functions become host events, calls into the device runtime become calls
    or, if they block, waits; kernels and copies lie on the streams of their device. Times come from the decimal
    text: start = floor(ts), end = floor(ts + dur) in ns, so that neighbours keep their order. Step annotations,
    synchronisation records and flows from forward to backward fill the tables beside the events. What is
    neither is counted with a reason, and so is an event that is no JSON. A file that ends early is refused: device
    events come last in it, so that what is left would give wrong answers, not incomplete ones.

    Args:
        path: A `.json` or `.json.gz` file: an object with `traceEvents`, or a bare list of events.
        communication: Patterns for more kernels that communicate, as for `recognise`.

    Returns:
        The canonical trace. The rank is that of `distributedInfo`, else of the file name, else 0 with a note.

    Raises:
        TraceflowError: TF101 when the file cannot be opened, TF102 when it is empty, TF103 when it is no JSON or
            ends early, TF104 when it holds no events, TF105 when it cannot be unpacked to its end.
    """
    return kept_or_read(path, partial(_read, path, communication), "kineto", *communication)


def _read(path: Path, communication: tuple[str, ...]) -> Trace:
    from traceflow.trace._kineto_rows import read_rows
    from traceflow.trace._kineto_trace import trace_of

    try:
        rows = read_rows(path)
    except OSError as error:
        why = error.strerror or "it cannot be opened"
        raise TraceflowError("TF101", f"cannot read {path}", why[:1].lower() + why[1:], "check the path") from error
    rank, notes = _rank(rows, path)
    if rows.compression or not (rows.is_complete or rows.is_open_list):
        raise _refusal(rows, path)
    trace = trace_of(rows, rank, communication)
    if not len(trace.events):
        raise _refusal(rows, path)
    notes = (*notes, *_damage(rows))
    del rows
    _give_back()
    return replace(trace, tally=trace.tally + Tally(notes=notes))


def _give_back() -> None:
    """Return to the system what was freed: columns come together from thousands of pieces, which leave holes."""
    with suppress(AttributeError, OSError, TypeError):  # other systems than Linux have no such function, or need none
        ctypes.CDLL(None).malloc_trim(0)


def _rank(rows: Rows, path: Path) -> tuple[Rank, tuple[Note, ...]]:
    distributed = rows.members.get("distributedInfo")
    said = distributed if isinstance(distributed, dict) else {}
    rank = _non_negative(said.get("rank"))
    if rank is None:
        rank = rank_in_name(path.name)
    note = Note("TF301", f"neither {path.name} nor its name says which rank it is: taken as rank 0")
    host = rows.members.get("host_name")
    known = Rank(rank or 0, host if isinstance(host, str) else None, _non_negative(said.get("world_size")), path.name)
    return known, () if rank is not None else (note,)


def _non_negative(value: Json) -> int | None:
    number = int(value) if isinstance(value, str) and value.isdecimal() else value
    return number if type(number) is int and 0 <= number <= np.iinfo(np.int32).max else None


def _damage(rows: Rows) -> tuple[Note, ...]:
    """What of the file could not be read."""
    if rows.damaged_at is None:
        return ()
    text = f"from byte {rows.damaged_at} on, something is no JSON: the events that hold it are lost"
    return (Note("TF302", text, ("/result",)),)


def _refusal(rows: Rows, path: Path) -> TraceflowError:
    """Why a file gives no trace at all."""
    again = "copy it again, or record again"
    if rows.compression:
        return TraceflowError("TF105", f"cannot unpack {path}", rows.compression, again)
    if rows.bytes_read == 0:
        return TraceflowError("TF102", f"cannot read {path}", "the file is empty", "record again")
    if rows.damaged_at is not None:
        why = f"it is no JSON from byte {rows.damaged_at} on"
        return TraceflowError("TF103", f"cannot read {path}", why, again)
    if not rows.is_complete:
        why = f"it ends early, after {rows.bytes_read} bytes"
        return TraceflowError("TF103", f"cannot read {path}", why, again)
    count = int(rows.counts.sum())
    why = f"none of its {count} records is work of a host or a device" if count else "it holds no events"
    return TraceflowError("TF104", f"nothing to explain in {path}", why, "check that the profiler was active")
