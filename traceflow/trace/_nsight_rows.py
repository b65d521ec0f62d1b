"""What an export of Nsight Systems holds: work of devices, calls into their runtime, NVTX ranges, synchronisation."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields, replace
from typing import TypeVar

import numpy as np

from traceflow.trace._nsight_payloads import binary_payloads
from traceflow.trace._nsight_tables import LATEST_NS, UNKNOWN, Tables
from traceflow.trace._xla_lines import WITHOUT_TIME, Count
from traceflow.trace.model import ABSENT, Bool, Int32, Int64, Text

_VERSION = re.compile(r"_v\d+$")
_COPIES = {
    1: "Memcpy HtoD",
    2: "Memcpy DtoH",
    3: "Memcpy HtoA",
    4: "Memcpy AtoH",
    5: "Memcpy AtoA",
    6: "Memcpy AtoD",
    7: "Memcpy DtoA",
    8: "Memcpy DtoD",
    9: "Memcpy HtoH",
    10: "Memcpy PtoP",
}
_PUSHED, _BETWEEN, _INSTANT, _DOMAIN = 59, 60, 34, 75  # of `eventType`
_BITS_OF_THREAD = 24
_LARGEST_DEVICE = np.iinfo(np.int32).max

LARGEST = 1 << 40
"""More than any stream, event or correlation has: CUPTI counts them in 32 bits."""


_NAMED = (
    ("CUPTI_ACTIVITY_KIND_KERNEL", "demangledName"),
    ("CUPTI_ACTIVITY_KIND_KERNEL", "mangledName"),
    ("CUPTI_ACTIVITY_KIND_KERNEL", "shortName"),
    ("CUPTI_ACTIVITY_KIND_RUNTIME", "nameId"),
    ("NVTX_EVENTS", "textId"),
    ("NVTX_EVENTS", "jsonTextId"),
    ("ThreadNames", "nameId"),
)
"""Columns that name texts by their number."""


@dataclass(frozen=True, slots=True)
class Work:
    """Kernels, copies and whole graphs of devices, one row each."""

    start_ns: Int64
    end_ns: Int64
    process: Int64
    device: Int64
    stream: Int64
    correlation: Int64
    name: Int32
    copy: Bool
    size_bytes: Int64  # of copies; ABSENT where unknown


@dataclass(frozen=True, slots=True)
class Calls:
    """Calls into the device's runtime."""

    start_ns: Int64
    end_ns: Int64
    thread: Int64  # of all processes
    correlation: Int64
    name: Int32


@dataclass(frozen=True, slots=True)
class Annotations:
    """NVTX ranges that a thread opened and closed one within another."""

    start_ns: Int64
    end_ns: Int64
    thread: Int64
    name: Int32
    payload: Text  # JSON, None where there is none


@dataclass(frozen=True, slots=True)
class Records:
    """Waits for events, streams or devices (`kind` as CUPTI numbers them), or recorded events, where `kind` is 0."""

    kind: Int64
    process: Int64
    device: Int64
    context: Int64
    stream: Int64
    correlation: Int64
    event: Int64
    record: Int64  # unique per record of an event; ABSENT in older exports


_Rows = TypeVar("_Rows", Work, Calls, Annotations, Records)


class Names:
    """Texts by their number in the file, and by their code in the trace."""

    def __init__(self, tables: Tables) -> None:
        self._texts = tables.texts_used(_NAMED)
        self.codes: dict[str, int] = {}

    def text(self, number: int) -> str | None:
        """The text of a number, None where the file has none."""
        return self._texts.get(number)

    def code(self, text: str) -> int:
        """The code of a text."""
        return self.codes.setdefault(text, len(self.codes))

    def coded(self, numbers: Int64, *, otherwise: str) -> Int32:
        """The codes of numbered texts."""
        distinct, inverse = np.unique(numbers, return_inverse=True)
        codes = [self.code(_VERSION.sub("", self.text(number) or otherwise)) for number in distinct.tolist()]
        return np.array(codes, np.int32)[inverse] if codes else np.empty(0, np.int32)


def process_of(thread: Int64) -> Int64:
    """The process of threads, or of processes, as the export numbers both."""
    return np.where(thread == UNKNOWN, UNKNOWN, thread >> _BITS_OF_THREAD)


def number_of_thread(thread: int) -> int:
    """A thread's number in its own system."""
    return thread & ((1 << _BITS_OF_THREAD) - 1)


def work_of(tables: Tables, names: Names, count: Count) -> Work:
    """Everything that devices did. A graph traced as a whole is one piece of work."""
    parts = [_kernels(tables, names), _copies(tables, names), _fills(tables, names), _graphs(tables, names)]
    whole = Work(*(np.concatenate([getattr(part, f.name) for part in parts]) for f in fields(Work)))
    count.read += len(whole.start_ns)
    kept = _timed(whole.start_ns, whole.end_ns, count)
    placed = (whole.device >= 0) & (whole.device <= _LARGEST_DEVICE) & (whole.stream >= 0) & (whole.stream < LARGEST)
    count.drop("without a valid device", (kept & ~placed).sum())
    return taken(whole, kept & placed)


def _work(tables: Tables, table: str, name: Int32, *, copy: bool) -> Work:
    columns = tables.integers(table, ("start", "end", "globalPid", "deviceId", "streamId", "correlationId", "bytes"))
    return Work(
        columns["start"],
        columns["end"],
        process_of(columns["globalPid"]),
        columns["deviceId"],
        columns["streamId"],
        _known(columns["correlationId"]),
        name,
        np.full(len(name), copy),
        np.where(columns["bytes"] < 0, ABSENT, columns["bytes"]),
    )


def _kernels(tables: Tables, names: Names) -> Work:
    table = "CUPTI_ACTIVITY_KIND_KERNEL"
    columns = tables.integers(table, ("demangledName", "shortName", "mangledName"))
    number = columns["demangledName"]
    for other in ("mangledName", "shortName"):
        number = np.where(number == UNKNOWN, columns[other], number)
    return _work(tables, table, names.coded(number, otherwise="kernel without a name"), copy=False)


def _copies(tables: Tables, names: Names) -> Work:
    table = "CUPTI_ACTIVITY_KIND_MEMCPY"
    kinds = tables.integers(table, ("copyKind",))["copyKind"]
    code = np.array([names.code(_COPIES.get(kind, "Memcpy")) for kind in kinds.tolist()], np.int32)
    return _work(tables, table, code, copy=True)


def _fills(tables: Tables, names: Names) -> Work:
    table = "CUPTI_ACTIVITY_KIND_MEMSET"
    rows = len(tables.integers(table, ("start",))["start"])
    return _work(tables, table, np.full(rows, names.code("Memset") if rows else 0, np.int32), copy=True)


def _graphs(tables: Tables, names: Names) -> Work:
    table = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
    graphs = tables.integers(table, ("graphId",))["graphId"]
    code = np.array([names.code(f"CUDA graph {graph}") for graph in _known(graphs).tolist()], np.int32)
    return _work(tables, table, code, copy=False)


def calls_of(tables: Tables, names: Names, count: Count) -> Calls:
    """Calls of the runtime and of the driver, without the version that their names carry."""
    columns = tables.integers("CUPTI_ACTIVITY_KIND_RUNTIME", ("start", "end", "globalTid", "correlationId", "nameId"))
    count.read += len(columns["start"])
    calls = Calls(
        columns["start"],
        columns["end"],
        columns["globalTid"],
        _known(columns["correlationId"]),
        names.coded(columns["nameId"], otherwise="call without a name"),
    )
    return taken(calls, _placed(calls.start_ns, calls.end_ns, calls.thread, count))


def annotations_of(tables: Tables, names: Names, count: Count) -> Annotations:
    """Ranges with their domain before their name, as in `NCCL:ncclAllReduce`; the default domain has no name."""
    columns = tables.integers(
        "NVTX_EVENTS", ("start", "end", "eventType", "globalTid", "textId", "domainId", "jsonTextId")
    )
    texts, payloads = (_joined(tables, names, columns[f"{label}Id"], label) for label in ("text", "jsonText"))
    untold = np.array([payload is None for payload in payloads], bool)
    payloads[untold] = binary_payloads(tables)[untold]
    kind, process = columns["eventType"], process_of(columns["globalTid"])
    domains = {
        (int(process[row]), int(columns["domainId"][row])): str(texts[row]) for row in np.flatnonzero(kind == _DOMAIN)
    }
    count.read += int((kind != _DOMAIN).sum())
    for other, reason in ((_BETWEEN, "start-end range, which need not nest"), (_INSTANT, "instant event")):
        count.drop(reason, (kind == other).sum())
    known = (kind == _PUSHED) | (kind == _BETWEEN) | (kind == _INSTANT) | (kind == _DOMAIN)
    count.drop("annotation of another kind", (~known).sum())
    pushed = kind == _PUSHED
    count.drop("range cut by the end of the recording", (pushed & (columns["end"] == UNKNOWN)).sum())
    rows = np.flatnonzero(pushed & (columns["end"] != UNKNOWN))
    code = [
        names.code(_qualified(domains.get((int(process[row]), int(columns["domainId"][row])), ""), texts[row]))
        for row in rows.tolist()
    ]
    found = Annotations(
        columns["start"][rows],
        columns["end"][rows],
        columns["globalTid"][rows],
        np.array(code, np.int32),
        payloads[rows],
    )
    return taken(found, _placed(found.start_ns, found.end_ns, found.thread, count))


def _qualified(domain: str, text: str | None) -> str:
    return f"{domain}:{text or ''}" if domain else text or "range without a name"


def _joined(tables: Tables, names: Names, number: Int64, column: str) -> Text:
    """Texts that are in the table, or numbered in it."""
    texts = tables.texts("NVTX_EVENTS", column)
    rows = np.flatnonzero(number != UNKNOWN)
    texts[rows] = [
        names.text(one) if text is None else text for one, text in zip(number[rows].tolist(), texts[rows], strict=True)
    ]
    return texts


def waits_of(tables: Tables) -> Records:
    """What calls and streams waited for."""
    table = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"
    return _records(tables, table, tables.integers(table, ("syncType",))["syncType"])


def recorded_events_of(tables: Tables) -> Records:
    """Events that were recorded on streams."""
    table = "CUPTI_ACTIVITY_KIND_CUDA_EVENT"
    return _records(tables, table, np.zeros(len(tables.integers(table, ("eventId",))["eventId"]), np.int64))


def _records(tables: Tables, table: str, kind: Int64) -> Records:
    columns = ("globalPid", "deviceId", "contextId", "streamId", "correlationId", "eventId", "eventSyncId")
    found = tables.integers(table, columns)
    process = process_of(found["globalPid"])
    return Records(kind, process, *(_known(found[column]) for column in columns[1:]))


def _known(numbers: Int64) -> Int64:
    return np.where((numbers < 0) | (numbers >= LARGEST), ABSENT, numbers)


def _timed(start_ns: Int64, end_ns: Int64, count: Count) -> Bool:
    """Rows whose times can be used; the others are counted."""
    timed: Bool = (start_ns > -LATEST_NS) & (start_ns <= end_ns) & (end_ns < LATEST_NS)
    count.drop(WITHOUT_TIME, (~timed).sum())
    return timed


def _placed(start_ns: Int64, end_ns: Int64, thread: Int64, count: Count) -> Bool:
    """Rows of host threads that can be used."""
    timed = _timed(start_ns, end_ns, count)
    count.drop("on no thread", (timed & (thread < 0)).sum())
    placed: Bool = timed & (thread >= 0)
    return placed


def taken(rows: _Rows, kept: Bool | Int64) -> _Rows:
    """Some of the rows."""
    return replace(rows, **{f.name: getattr(rows, f.name)[kept] for f in fields(rows)})
