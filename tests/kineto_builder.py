"""Kineto traces written line by line: a few calls tell a situation, a real trace file comes out.

Every time is an integer in ns from the start of the recording; every interval is given by its two ends.

    card = KinetoTrace(rank=0, world_size=2)
    card.host("aten::mm", 0, 8_000)
    card.kernel("matmul", 9_000, 109_000, call=(2_000, 5_400))
    card.all_reduce(109_000, 209_000, call=(6_000, 7_000), sequence=1)
    run = opened(tmp_path, card)
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import traceflow
from traceflow.run import Run

BASE_NS = 1_790_857_026_000_000_000
RECORDING_NS = 5_634_017_431_000  # when the recording starts, from the base: 13 digits, as in real traces
MAIN, COMPUTE, NCCL = 4000, 7, 20  # a thread and two streams

Span = tuple[int, int]


class Event(NamedTuple):
    """An event that was recorded on a stream, to be waited for."""

    correlation: int
    stream: int


@dataclass
class KinetoTrace:
    """The trace of one rank. Device work shares a correlation with the call that launched it."""

    rank: int = 0
    world_size: int = 1
    host_name: str = "node-00"
    groups: dict[str, tuple[int, ...]] = field(default_factory=dict)  # name -> ranks; "0" holds all
    events: list[dict[str, Any]] = field(default_factory=list)
    correlation: int = 0

    def __post_init__(self) -> None:
        self.groups.setdefault("0", tuple(range(self.world_size)))

    # ---- the host ----

    def host(
        self,
        name: str,
        start: int,
        end: int,
        *,
        thread: int = MAIN,
        category: str = "cpu_op",
        arguments: Mapping[str, Any] | None = None,
    ) -> None:
        """An operator on a host thread."""
        self._add(category, name, self._process, thread, (start, end), arguments or {})

    def step(self, number: int, start: int, end: int) -> None:
        """The profiler's annotation of a step."""
        self.host(f"ProfilerStep#{number}", start, end, category="user_annotation")

    def runtime(self, name: str, start: int, end: int, *, thread: int = MAIN) -> int:
        """A call into the CUDA runtime; returns its correlation."""
        correlation = self._next()
        arguments = {"cbid": 0, "correlation": correlation}
        self._add("cuda_runtime", name, self._process, thread, (start, end), arguments)
        return correlation

    def flow(self, source: tuple[int, int], target: tuple[int, int]) -> None:
        """An arrow from a forward to a backward operator, each given by (thread, moment)."""
        arrow = {"cat": "fwdbwd", "name": "fwdbwd", "id": self._next(), "pid": self._process}
        for phase, (thread, at) in zip("sf", (source, target), strict=True):
            self.events.append({"ph": phase, **arrow, "tid": thread, "ts": _us(at)})

    # ---- device work ----

    def kernel(
        self,
        name: str,
        start: int,
        end: int,
        *,
        stream: int = COMPUTE,
        call: Span | None = None,
        thread: int = MAIN,
        arguments: Mapping[str, Any] | None = None,
    ) -> None:
        """A kernel, and the call that launched it; without one, it was launched before the recording."""
        correlation = self._launched("cudaLaunchKernel", call, thread)
        self._device("kernel", name, (start, end), stream, correlation, {"queued": 0, **(arguments or {})})

    def copy(
        self,
        start: int,
        end: int,
        *,
        stream: int = COMPUTE,
        call: Span | None = None,
        name: str = "Memcpy HtoD (Pinned -> Device)",
        call_name: str = "cudaMemcpyAsync",
    ) -> None:
        """A memcpy, and its call."""
        correlation = self._launched(call_name, call, MAIN)
        self._device("gpu_memcpy", name, (start, end), stream, correlation, {"bytes": 4096})

    def graph_launch(self, call: Span, kernels: Sequence[tuple[str, int, int, int]]) -> None:
        """One call that launches a graph of kernels (name, start, end, stream)."""
        correlation = self._launched("cudaGraphLaunch", call, MAIN)
        for name, start, end, stream in kernels:
            self._device("kernel", name, (start, end), stream, correlation, {"queued": 0})

    def device_annotation(self, name: str, start: int, end: int, *, stream: int = COMPUTE) -> None:
        """An annotation's image on the device: it only covers work that is there already."""
        self._add("gpu_user_annotation", name, 0, stream, (start, end), {"External id": 1})

    # ---- communication ----

    def collective(
        self,
        operation: str,
        start: int,
        end: int,
        *,
        sequence: int | None = None,
        stream: int = NCCL,
        call: Span | None = None,
        group: str = "0",
        elements: int = 1024,
        in_splits: str = "[]",
        out_splits: str = "[]",
        ends: Mapping[str, int] | None = None,
    ) -> None:
        """A collective over a process group, as NCCL's kernels carry it; `ends` names its root, or both its ends."""
        arguments = {
            "Collective name": operation,
            "In msg nelems": elements,
            "Out msg nelems": elements,
            "Group size": len(self.groups[group]),
            "dtype": "Float",
            "In split size": in_splits,
            "Out split size": out_splits,
            "Process Group Name": group,
            "Process Group Ranks": json.dumps(self.groups[group]),
            **({} if sequence is None else {"Seq": sequence}),
            **(ends or {}),
        }
        name = f"ncclDevKernel_{operation}(ncclDevKernelArgsStorage<4096ul>)"
        self.kernel(name, start, end, stream=stream, call=call, arguments=arguments)

    def all_reduce(self, start: int, end: int, **how: Any) -> None:
        """An all-reduce; `how` as for :meth:`collective`, here and below."""
        self.collective("allreduce", start, end, **how)

    def broadcast(self, start: int, end: int, *, root: int, **how: Any) -> None:
        """A broadcast from the member at place `root` of its group."""
        self.collective("broadcast", start, end, ends={"Rank": root}, **how)

    def send(self, start: int, end: int, *, to: int, **how: Any) -> None:
        """The sending half of a transfer."""
        self.collective("send", start, end, ends={"Src Rank": self.rank, "Dst Rank": to}, **how)

    def receive(self, start: int, end: int, *, source: int, **how: Any) -> None:
        """The receiving half of a transfer."""
        self.collective("recv", start, end, ends={"Src Rank": source, "Dst Rank": self.rank}, **how)

    # ---- synchronisation; not recorded where the profiler was not asked for it ----

    def record_event(self, at: int, *, stream: int = COMPUTE) -> Event:
        """Record an event on a stream, at a moment of the host."""
        return Event(self.runtime("cudaEventRecord", at, at + 100), stream)

    def stream_wait(self, at: int, event: Event, *, stream: int) -> None:
        """Let a stream wait for an event."""
        self._sync("Stream Wait Event", self.runtime("cudaStreamWaitEvent", at, at + 100), at, stream, event)

    def event_synchronize(self, start: int, end: int, event: Event) -> None:
        """Block the host until an event has happened."""
        self._sync("Event Sync", self.runtime("cudaEventSynchronize", start, end), start, -1, event)

    def stream_synchronize(self, start: int, end: int, *, stream: int = COMPUTE, recorded: bool = True) -> None:
        """Block the host until a stream is done."""
        correlation = self.runtime("cudaStreamSynchronize", start, end)
        if recorded:
            self._sync("Stream Sync", correlation, start, stream)

    def device_synchronize(self, start: int, end: int, *, recorded: bool = True) -> None:
        """Block the host until the device is done."""
        correlation = self.runtime("cudaDeviceSynchronize", start, end)
        if recorded:
            self._sync("Context Sync", correlation, start, -1)

    # ---- the file ----

    def write(self, path: Path) -> Path:
        """Write the trace as the exporter lays it out, one event a line."""
        groups = [{"pg_name": name, "pg_size": len(ranks), "ranks": ranks} for name, ranks in self.groups.items()]
        header = {
            "schemaVersion": 1,
            "distributedInfo": {
                "backend": "nccl",
                "rank": self.rank,
                "world_size": self.world_size,
                "pg_count": len(groups),
                "pg_config": groups,
            },
            "host_name": self.host_name,
            "displayTimeUnit": "ms",
            "baseTimeNanoseconds": BASE_NS,
        }
        events = ",\n".join(json.dumps(event) for event in self.events)
        path.write_text(f'{json.dumps(header)[:-1]}, "traceEvents": [\n{events}\n]}}')
        return path

    @property
    def _process(self) -> int:
        return MAIN + self.rank

    def _next(self) -> int:
        self.correlation += 1
        return self.correlation

    def _add(self, category: str, name: str, pid: int, tid: int, span: Span, arguments: Mapping[str, Any]) -> None:
        event = {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid}
        self.events.append({**event, "ts": _us(span[0]), "dur": (span[1] - span[0]) / 1000, "args": arguments})

    def _launched(self, call_name: str, call: Span | None, thread: int) -> int:
        return self._next() if call is None else self.runtime(call_name, *call, thread=thread)

    def _device(
        self, category: str, name: str, span: Span, stream: int, correlation: int, more: Mapping[str, Any]
    ) -> None:
        where = {"device": 0, "context": 1, "stream": stream, "correlation": correlation}
        self._add(category, name, 0, stream, span, {**where, **more})

    def _sync(self, kind: str, correlation: int, at: int, stream: int, event: Event | None = None) -> None:
        arguments: dict[str, Any] = {"cuda_sync_kind": kind}
        if event is not None:
            arguments |= {"wait_on_stream": event.stream, "wait_on_cuda_event_record_corr_id": event.correlation}
        self._device("cuda_sync", kind, (at, at), stream, correlation, arguments)


def _us(at: int) -> float:
    """Microseconds from the base; 13 digits and three decimals are exact in a float."""
    return (RECORDING_NS + at) / 1000


def opened(folder: Path, *ranks: KinetoTrace) -> Run:
    """Write one file per rank and open them together."""
    for trace in ranks:
        trace.write(folder / f"rank{trace.rank}.pt.trace.json")
    return traceflow.open(folder)
