"""Read trace-event JSON (`*.trace.json.gz`) as the JAX profiler writes it beside an XSpace.

It shows the same planes and lines as processes and threads, without the compiled programs. Timestamps are decimal
microseconds with digits down to picoseconds; they are taken from the text, since a binary fraction would lose them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from decimal import ROUND_FLOOR, Decimal
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np

from traceflow.errors import TraceflowError
from traceflow.evidence import Evidence
from traceflow.program.module import Programs
from traceflow.result import Note
from traceflow.trace._json_text import with_whole_characters
from traceflow.trace._xla_columns import Said
from traceflow.trace._xla_lines import LONGEST, WITHOUT_TIME, Count, Line, Plane, distinct_names, noise
from traceflow.trace._xla_trace import About, xla_trace
from traceflow.trace.model import Rank
from traceflow.unpacking import unpacked

_MOST_EVENTS = 1_000_000  # the rest, XProf leaves out without a word

_Event: TypeAlias = Mapping[str, Any]
_Place: TypeAlias = tuple[object, object, object]


def read_chrome(
    path: Path, *, rank: int = 0, communication: tuple[str, ...] = (), beside: Programs = MappingProxyType({})
) -> Evidence:
    """Read one trace-event JSON file, compressed or not.

    Args:
        path: The file.
        rank: The process that recorded it; the file does not say.
        communication: Patterns for more kernels that communicate, as for `recognise`.
        beside: Programs found elsewhere, since the file holds none.

    Returns:
        Its trace, and the programs that the texts of TPU operations describe. Absolute time is not recorded.

    Raises:
        TraceflowError: TF103 when the file is no JSON, TF105 when its compression is damaged, TF104 when nothing
            happened in it, TF107 when it is JSON of another kind.
    """
    events = _events(path)
    count = Count()
    about = About(Rank(rank, path.name.partition(".")[0], None, path.name), None, "chrome", {}, _cut(events))
    trace, programs = xla_trace(_planes(events, count), {}, about, count, communication, beside)
    if not len(trace.events):
        raise TraceflowError("TF104", f"cannot use {path}", "it holds no events", "record while the program works")
    return Evidence(trace, programs)


def _cut(events: Sequence[_Event]) -> tuple[Note, ...]:
    """A remark where the exporter stopped at its limit, which it does not say."""
    if sum(event["ph"] != "M" for event in events) != _MOST_EVENTS:
        return ()
    text = f"it holds exactly {_MOST_EVENTS:,} events, the most that XProf writes as JSON: the others are missing"
    return (Note("TF323", text, ("/result",)),)


def _events(path: Path) -> list[_Event]:
    """The events of a file; what is no event, as the empty object that ends the list, is left out."""
    content = unpacked(path)
    try:
        document = json.loads(with_whole_characters(content), parse_float=Decimal)
    except (ValueError, ArithmeticError, RecursionError) as error:
        why = f"it is no complete JSON ({error})"
        raise TraceflowError("TF103", f"cannot read {path}", why, "copy the file again, or record again") from error
    events = document.get("traceEvents") if isinstance(document, dict) else document
    if not isinstance(events, list):
        raise TraceflowError("TF107", f"cannot read {path}", "the JSON has no traceEvents", "give a trace")
    return [event for event in events if isinstance(event, dict) and "ph" in event]


def _planes(events: list[_Event], count: Count) -> list[Plane]:
    """Processes as planes and threads as lines."""
    processes: dict[object, dict[object, list[_Event]]] = {}
    for event in events:
        if event["ph"] != "M":
            count.read += 1
            reason = _unusable(event)
            if reason:
                count.drop(reason, 1)
            else:
                processes.setdefault(event.get("pid"), {}).setdefault(event.get("tid"), []).append(event)
    names = {_place(event): _title(event) for event in events if event["ph"] == "M" and _is_placed(event)}
    return [
        Plane(names.get((process, "process_name", None), f"process {process}"), _lines(threads, process, names))
        for process, threads in processes.items()
    ]


def _place(event: _Event) -> _Place:
    """What a metadata event is about: a process, or one of its threads."""
    kind = event.get("name")
    return event.get("pid"), kind, None if kind == "process_name" else event.get("tid")


def _is_placed(event: _Event) -> bool:
    """Whether process, thread and name are words or numbers."""
    return not any(isinstance(event.get(key), dict | list) for key in ("pid", "tid", "name"))


def _title(event: _Event) -> str:
    arguments = event.get("args")
    return str(arguments.get("name", "")) if isinstance(arguments, dict) else ""


def _lines(threads: Mapping[object, list[_Event]], process: object, names: Mapping[_Place, str]) -> list[Line]:
    named = [
        (names.get((process, "thread_name", thread), ""), thread if isinstance(thread, int) else 0)
        for thread in threads
    ]
    titles = distinct_names(named)
    return [
        _line(title, thread, events) for title, (_, thread), events in zip(titles, named, threads.values(), strict=True)
    ]


def _line(name: str, thread: int, events: list[_Event]) -> Line:
    start_ps = [_picoseconds(event["ts"]) for event in events]
    end_ps = [start + _picoseconds(event["dur"]) for start, event in zip(start_ps, events, strict=True)]
    return Line.of(
        name,
        thread,
        [str(event["name"]) for event in events],
        np.array([time // 1000 for time in start_ps], np.int64),
        np.array([time // 1000 for time in end_ps], np.int64),
        [_stats(event) for event in events],
    )


def _stats(event: _Event) -> Said:
    arguments = event.get("args")
    return arguments if isinstance(arguments, dict) else {}


def _unusable(event: _Event) -> str | None:
    """Why an event is left out, None where it is not."""
    if event["ph"] != "X":
        return "not a span"
    if "name" not in event:
        return "without a name"
    if not _is_placed(event):
        return "neither thread nor stream"
    if not (_is_time(event.get("ts")) and _is_time(event.get("dur")) and event["dur"] >= 0):
        return WITHOUT_TIME
    return noise(str(event["name"]))


def _is_time(value: object) -> bool:
    return isinstance(value, int | Decimal) and -LONGEST < value * 1000 < LONGEST


def _picoseconds(microseconds: int | Decimal) -> int:
    return int((Decimal(microseconds) * 1_000_000).to_integral_value(ROUND_FLOOR))
