"""Profiles in the schema that `nsys export --type sqlite` writes: a few calls tell a situation, a real database comes out.

Every time is an integer in ns from the start of the session.

    profile = NsightProfile()
    worker = profile.process(4000, gpu=0)
    worker.kernel("gemm", 9_000, 109_000, call=(2_000, 5_400))
    file = profile.write(tmp_path / "profile.sqlite")
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

SESSION_NS = 1_790_857_026_000_000_000
PUSHED, BETWEEN, INSTANT, DOMAIN = 59, 60, 34, 75
EVENT, STREAM_WAIT, STREAM, CONTEXT = 1, 2, 3, 4

Span = tuple[int, int]
Cell = int | str | float | bytes | None

# Columns in the order of the export; those of the tables that are not read are left out.
SCHEMA: dict[str, str] = {
    "StringIds": "id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL",
    "ThreadNames": "nameId INTEGER NOT NULL, priority INTEGER, globalTid INTEGER",
    "PROCESSES": "globalPid INTEGER, pid INTEGER, name TEXT",
    "TARGET_INFO_SESSION_START_TIME": "utcEpochNs INTEGER, utcTime TEXT, localTime TEXT",
    "TARGET_INFO_SYSTEM_ENV": "globalVid INTEGER, devStateName TEXT NOT NULL, name TEXT NOT NULL, nameEnum INTEGER, value TEXT NOT NULL",
    "TARGET_INFO_GPU": "vmId INTEGER NOT NULL, id INTEGER NOT NULL, name TEXT, busLocation TEXT, totalMemory INTEGER, smCount INTEGER",
    "TARGET_INFO_CUDA_DEVICE": "gpuId INTEGER, cudaId INTEGER NOT NULL, pid INTEGER NOT NULL, uuid TEXT, numMultiprocessors INTEGER",
    "TARGET_INFO_NVTX_CUDA_DEVICE": "name TEXT NOT NULL, hwId INTEGER NOT NULL, vmId INTEGER NOT NULL, deviceId INTEGER NOT NULL",
    "CUPTI_ACTIVITY_KIND_KERNEL": (
        "start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL, "
        "greenContextId INTEGER, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER, "
        "demangledName INTEGER NOT NULL, shortName INTEGER NOT NULL, mangledName INTEGER, launchType INTEGER, "
        "gridX INTEGER, blockX INTEGER, graphNodeId INTEGER"
    ),
    "CUPTI_ACTIVITY_KIND_MEMCPY": (
        "start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL, "
        "streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER, bytes INTEGER NOT NULL, "
        "copyKind INTEGER NOT NULL, srcKind INTEGER, dstKind INTEGER, graphNodeId INTEGER"
    ),
    "CUPTI_ACTIVITY_KIND_MEMSET": (
        "start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL, "
        "streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER, value INTEGER NOT NULL, bytes INTEGER NOT NULL"
    ),
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": (
        "start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL, graphId INTEGER NOT NULL, "
        "graphExecId INTEGER NOT NULL, contextId INTEGER NOT NULL, streamId INTEGER NOT NULL, correlationId INTEGER, "
        "globalPid INTEGER"
    ),
    "CUPTI_ACTIVITY_KIND_RUNTIME": (
        "start INTEGER NOT NULL, end INTEGER NOT NULL, eventClass INTEGER NOT NULL, globalTid INTEGER, "
        "correlationId INTEGER, nameId INTEGER NOT NULL, returnValue INTEGER NOT NULL, callchainId INTEGER"
    ),
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": (
        "start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL, "
        "streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER, syncType INTEGER NOT NULL, "
        "eventId INTEGER NOT NULL, eventSyncId INTEGER"
    ),
    "CUPTI_ACTIVITY_KIND_CUDA_EVENT": (
        "deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL, streamId INTEGER NOT NULL, correlationId INTEGER, "
        "globalPid INTEGER, eventId INTEGER NOT NULL, eventSyncId INTEGER"
    ),
    "NVTX_EVENTS": (
        "start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL, rangeId INTEGER, category INTEGER, "
        "color INTEGER, text TEXT, globalTid INTEGER, endGlobalTid INTEGER, textId INTEGER, domainId INTEGER, "
        "uint64Value INTEGER, jsonTextId INTEGER, jsonText TEXT, binaryData TEXT"
    ),
    "NVTX_PAYLOAD_SCHEMA_ENTRIES": (
        "domainId INTEGER NOT NULL, schemaId INTEGER NOT NULL, idx INTEGER NOT NULL, flags INTEGER, type INTEGER, "
        "name TEXT, description TEXT, arrayOrUnionDetail INTEGER, offset INTEGER"
    ),
}


@dataclass
class NsightProfile:
    """One export; tables without rows are left out, as Nsight Systems leaves them out."""

    rows: dict[str, list[dict[str, Cell]]] = field(default_factory=dict)
    strings: dict[str, int] = field(default_factory=dict)
    host: str | None = "node-00"
    epoch_ns: int | None = SESSION_NS
    correlation: int = 0

    def add(self, table: str, **cells: Cell) -> None:
        """One row of any table."""
        self.rows.setdefault(table, []).append(cells)

    def text(self, text: str) -> int:
        """The number of a text."""
        return self.strings.setdefault(text, len(self.strings) + 1)

    def process(self, pid: int, *, gpu: int, cuda: int = 0, xla: str = "") -> NsightProcess:
        """A process that uses one device: number `gpu` of the machine, `cuda` of the process."""
        self.add("TARGET_INFO_CUDA_DEVICE", gpuId=gpu, cudaId=cuda, pid=pid)
        self.add("TARGET_INFO_GPU", vmId=1, id=gpu, name="NVIDIA A100-SXM4-40GB", totalMemory=42505273344, smCount=108)
        if xla:
            self.add("TARGET_INFO_NVTX_CUDA_DEVICE", name=xla, hwId=0, vmId=1, deviceId=gpu)
        return NsightProcess(self, pid, cuda)

    def write(
        self, path: Path, *, without: Collection[str] = (), more: Mapping[str, str] | None = None, suffix: str = ""
    ) -> Path:
        """Write the database.

        Args:
            path: Where to.
            without: Tables, or columns as "table.column", to leave out.
            more: By table, columns that a later version has as well.
            suffix: What a version appends to the names of all tables.
        """
        if self.epoch_ns is not None:
            self.add("TARGET_INFO_SESSION_START_TIME", utcEpochNs=self.epoch_ns, utcTime="", localTime="")
        if self.host is not None:
            self.add("TARGET_INFO_SYSTEM_ENV", devStateName="", name="Hostname", value=self.host)
        tables: dict[str, list[dict[str, Cell]]] = {
            "StringIds": [{"id": number, "value": text} for text, number in self.strings.items()]
        }
        tables |= self.rows
        with closing(sqlite3.connect(path)) as connection:
            for table, rows in tables.items():
                if table in without:
                    continue
                columns = [
                    column for column in SCHEMA[table].split(", ") if f"{table}.{column.split()[0]}" not in without
                ]
                columns += [(more or {})[table]] if table in (more or {}) else []
                names = [column.split()[0] for column in columns]
                quoted = ", ".join(
                    f'"{name}" {column.partition(" ")[2]}' for name, column in zip(names, columns, strict=True)
                )
                connection.execute(f'CREATE TABLE "{table}{suffix}" ({quoted.replace(" NOT NULL", "")})')
                marks = ", ".join("?" * len(names))
                cells = [[row.get(name) for name in names] for row in rows]
                connection.executemany(f'INSERT INTO "{table}{suffix}" VALUES ({marks})', cells)  # noqa: S608 - of this file
            connection.commit()
        return path


@dataclass
class NsightProcess:
    """What one process does. Work of its device shares a correlation with the call that launched it."""

    profile: NsightProfile
    pid: int
    device: int

    @property
    def number(self) -> int:
        """How the export numbers the process: hardware 0, VM 1."""
        return (1 << 48) | (self.pid << 24)

    def thread(self, tid: int | None = None) -> int:
        """How the export numbers a thread; the main one has the number of the process."""
        return self.number | (self.pid if tid is None else tid)

    def call(self, name: str, span: Span, *, tid: int | None = None) -> int:
        """A call into the runtime, which carries a version; returns its correlation."""
        self.profile.correlation += 1
        self.profile.add(
            "CUPTI_ACTIVITY_KIND_RUNTIME",
            start=span[0],
            end=span[1],
            eventClass=0,
            globalTid=self.thread(tid),
            correlationId=self.profile.correlation,
            nameId=self.profile.text(f"{name}_v7000"),
            returnValue=0,
        )
        return self.profile.correlation

    def kernel(self, name: str, start: int, end: int, *, call: Span, stream: int = 7, tid: int | None = None) -> int:
        """A kernel and its launch."""
        correlation = self.call("cudaLaunchKernel", call, tid=tid)
        self._work("CUPTI_ACTIVITY_KIND_KERNEL", start, end, stream, correlation, **self._named(name))
        return correlation

    def copy(self, start: int, end: int, *, call: Span, size_bytes: int, kind: int = 1, stream: int = 7) -> None:
        """A copy and its call; kind 1 is to the device."""
        correlation = self.call("cudaMemcpyAsync", call)
        table = "CUPTI_ACTIVITY_KIND_MEMCPY"
        self._work(table, start, end, stream, correlation, bytes=size_bytes, copyKind=kind)

    def fill(self, start: int, end: int, *, call: Span, size_bytes: int, stream: int = 7) -> None:
        """A memset and its call."""
        correlation = self.call("cudaMemsetAsync", call)
        self._work("CUPTI_ACTIVITY_KIND_MEMSET", start, end, stream, correlation, bytes=size_bytes, value=0)

    def graph(self, number: int, start: int, end: int, *, call: Span, stream: int = 7) -> None:
        """A CUDA graph that is traced as a whole."""
        correlation = self.call("cudaGraphLaunch", call)
        table = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
        self._work(table, start, end, stream, correlation, graphId=number, graphExecId=number + 1)

    def annotate(
        self, text: str, start: int, end: int | None, *, domain: int = 0, tid: int | None = None, kind: int = PUSHED,
        payload: Mapping[str, int | str] | None = None, inline: bool = False,
    ) -> None:  # fmt: skip
        """An NVTX range, whose text is numbered, or in the table itself."""
        said = None if payload is None else json.dumps(payload)
        self.profile.add(
            "NVTX_EVENTS",
            start=start,
            end=end,
            eventType=kind,
            globalTid=self.thread(tid),
            domainId=domain,
            text=text if inline else None,
            textId=None if inline else self.profile.text(text),
            jsonText=said,
        )

    def domain(self, number: int, name: str) -> None:
        """Name a domain of ranges."""
        self.annotate(name, 0, None, domain=number, kind=DOMAIN)

    def record(self, event: int, at: Span, *, stream: int = 7, number: int | None = None) -> None:
        """An event is recorded on a stream."""
        self.profile.add(
            "CUPTI_ACTIVITY_KIND_CUDA_EVENT",
            deviceId=self.device,
            contextId=1,
            streamId=stream,
            correlationId=self.call("cudaEventRecord", at),
            globalPid=self.number,
            eventId=event,
            eventSyncId=number,
        )

    def wait(self, kind: int, at: Span, *, stream: int = 7, event: int = 0, number: int | None = None) -> None:
        """A wait of a stream (cudaStreamWaitEvent) or of the host."""
        names = {EVENT: "cudaEventSynchronize", STREAM_WAIT: "cudaStreamWaitEvent", STREAM: "cudaStreamSynchronize"}
        self.profile.add(
            "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",
            start=at[0],
            end=at[1],
            deviceId=self.device,
            contextId=1,
            streamId=stream,
            correlationId=self.call(names.get(kind, "cudaDeviceSynchronize"), at),
            globalPid=self.number,
            syncType=kind,
            eventId=event,
            eventSyncId=number,
        )

    def _named(self, name: str) -> dict[str, Cell]:
        return {"demangledName": self.profile.text(name), "shortName": self.profile.text(name.partition("(")[0])}

    def _work(self, table: str, start: int, end: int, stream: int, correlation: int, **more: Cell) -> None:
        self.profile.add(
            table,
            start=start,
            end=end,
            deviceId=self.device,
            contextId=1,
            streamId=stream,
            correlationId=correlation,
            globalPid=self.number,
            **more,
        )
