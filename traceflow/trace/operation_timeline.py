"""Operation tables as Chrome trace-event JSON: one complete event per operation, its name the type.

`args` hold the columns: `step`, and where known `rank`, `dp_rank`, `stage` (or `pp_rank`), `model_chunk`, `mb_id` and
`seq_id`. What they do not hold is taken from what processes and threads are called, as in "DP rank [1]" and "PP rank 3,
TP rank 0, compute"; ranks that nothing numbers are numbered by stage and then by data parallel rank. `ts` and `dur` are
decimal microseconds.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from traceflow.errors import TraceflowError
from traceflow.trace._json_text import with_whole_characters
from traceflow.unpacking import unpacked

if TYPE_CHECKING:
    import pyarrow as pa

_Event: TypeAlias = Mapping[str, Any]

_ARGUMENTS = {
    "step": ("step",),
    "rank": ("rank",),
    "dp_rank": ("dp_rank",),
    "stage": ("stage", "pp_rank"),
    "chunk": ("model_chunk", "mc", "chunk"),
    "micro_batch": ("mb_id", "micro_batch"),
    "sequence": ("seq_id", "sequence"),
}
_TELLING = b"|".join(name.encode() for names in list(_ARGUMENTS.values())[1:] for name in names)
_OPERATION = re.compile(rb'"args"\s*:\s*\{(?=[^{}]*"step"\s*:)(?=[^{}]*"(?:' + _TELLING + rb')"\s*:)[^{}]*\}')
_STAGE, _COPY = re.compile(r"PP rank \[?(\d+)"), re.compile(r"DP rank \[?(\d+)")
_LONGEST_US = Decimal(2**62) / 1000


def is_timeline(head: bytes) -> bool:
    """Whether a file that begins like this is a timeline of operations."""
    return head.lstrip().startswith((b"{", b"[")) and b'"ph"' in head and _OPERATION.search(head) is not None


def timeline_table(path: Path) -> pa.Table:
    """The operations of a timeline as columns; null where something is not known or no number.

    Args:
        path: The file, compressed or not.

    Raises:
        TraceflowError: TF103 when the file is no JSON, TF105 when its compression is damaged.
    """
    import pyarrow as pa

    events = _events(path)
    shown = [event for event in events if event.get("ph") == "X"]
    columns = {label: [_argument(event, names) for event in shown] for label, names in _ARGUMENTS.items()}
    for label, calls in (("stage", _numbered(events, _STAGE)), ("dp_rank", _numbered(events, _COPY))):
        columns[label] = [
            calls.get((str(event.get("pid")), str(event.get("tid"))), calls.get((str(event.get("pid")), "None")))
            if own is None
            else own
            for event, own in zip(shown, columns[label], strict=True)
        ]
    if all(rank is None for rank in columns["rank"]):
        columns["rank"] = _ranks(columns["stage"], columns["dp_rank"])
    columns |= {
        f"{label}_ns": [_ns(event.get(key)) for event in shown] for label, key in (("start", "ts"), ("duration", "dur"))
    }
    table = {label: pa.array(values, pa.int64()) for label, values in columns.items()}
    types = [name if isinstance(name := event.get("name"), str) else None for event in shown]
    return pa.table({**table, "type": pa.array(types, pa.string())})


def _events(path: Path) -> list[_Event]:
    what, text = f"cannot read {path.name}", unpacked(path)
    try:
        document = json.loads(with_whole_characters(text), parse_float=Decimal)
    except (ValueError, ArithmeticError, RecursionError) as error:
        raise TraceflowError("TF103", what, f"it is no complete JSON ({error})", "copy the file again") from error
    events = document.get("traceEvents") if isinstance(document, dict) else document
    return [event for event in events if isinstance(event, dict)] if isinstance(events, list) else []


def _argument(event: _Event, names: Sequence[str]) -> int | None:
    arguments = event.get("args")
    given = arguments if isinstance(arguments, dict) else {}
    value = next((given[name] for name in names if name in given), None)
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63 else None


def _numbered(events: Sequence[_Event], wanted: re.Pattern[str]) -> dict[tuple[str, str], int]:
    """The numbers in the names of processes and threads, by process and thread."""
    found: dict[tuple[str, str], int] = {}
    for event in events:
        arguments = event.get("args")
        if (
            event.get("ph") == "M"
            and event.get("name") in ("process_name", "thread_name")
            and isinstance(arguments, dict)
        ):
            match = wanted.search(str(arguments.get("name")))
            if match:
                found[str(event.get("pid")), str(event.get("tid"))] = int(match[1])
    return found


def _ranks(stages: Sequence[int | None], copies: Sequence[int | None]) -> list[int | None]:
    """A number for each worker that is told by its stage or its data parallel rank."""
    workers = [
        None if where == (None, None) else tuple(-1 if n is None else n for n in where)
        for where in zip(stages, copies, strict=True)
    ]
    number = {worker: rank for rank, worker in enumerate(sorted({worker for worker in workers if worker is not None}))}
    return [None if worker is None else number[worker] for worker in workers]


def _ns(microseconds: object) -> int | None:
    """Decimal microseconds in ns, to the nearest."""
    if isinstance(microseconds, bool) or not isinstance(microseconds, int | Decimal):
        return None
    exact = Decimal(microseconds)
    return round(exact * 1000) if exact.is_finite() and abs(exact) < _LONGEST_US else None
