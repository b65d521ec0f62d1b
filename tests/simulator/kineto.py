"""What PyTorch's profiler would have written of a simulated run: one JSON file per rank, in the exporter's layout."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TypeAlias

from simulator.engine import Lane, Outcome, Span
from simulator.program import (
    POINT_TO_POINT,
    BlockingCopy,
    Exchange,
    Kernel,
    Kind,
    Launch,
    Operator,
    Part,
    Scope,
    Step,
    StreamWait,
    Synchronise,
)

Json: TypeAlias = "str | int | float | list[int] | Mapping[str, Json]"

BASE_NS = 1_790_857_026_000_000_000
STARTS_NS = 5_634_017_431  # from the base to the simulation's zero
_DTYPE, _ROOTED = "BFloat16", frozenset({"broadcast", "reduce", "gather", "scatter"})
_SYNC_NAMES = {Scope.STREAM: "Stream Sync", Scope.EVENT: "Event Sync", Scope.DEVICE: "Context Sync"}


def write(
    outcome: Outcome, folder: Path, *, packed: bool = False, base_ns: int = BASE_NS, sequence_numbers: bool = True
) -> Path:
    """Write one file per rank into a folder, as the clock of each rank's host shows the times.

    Args:
        outcome: What happened.
        folder: Where to; made where it does not exist.
        packed: Whether the files are packed by gzip.
        base_ns: What the timestamps count from; 0 makes them so long that no float64 of us can hold them.
        sequence_numbers: Whether collectives are numbered, as they are since 2026.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for rank in outcome.program.ranks:
        text = "".join(_file(outcome, rank, base_ns, sequence_numbers=sequence_numbers)).encode()
        name = f"rank{rank}.pt.trace.json"
        if packed:
            (folder / f"{name}.gz").write_bytes(gzip.compress(text, 1, mtime=0))
        else:
            (folder / name).write_bytes(text)
    return folder


def _file(outcome: Outcome, rank: int, base_ns: int, *, sequence_numbers: bool) -> Iterator[str]:
    program = outcome.program
    header = {
        "schemaVersion": 1,
        "deviceProperties": [{"id": device_of(rank), "name": "NVIDIA H100 80GB HBM3", "numSms": 132}],
        "cuda_runtime_version": 12080,
        "distributedInfo": _distributed(outcome, rank),
        "host_name": program.host(rank),
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": base_ns,
    }
    yield "{\n" + "".join(f"  {json.dumps(key)}: {json.dumps(value)},\n" for key, value in header.items())
    yield '  "traceEvents": [\n  '
    yield ",\n  ".join(_Writer(outcome, rank, BASE_NS - base_ns, sequence_numbers=sequence_numbers).events())
    yield f'\n  ],\n  "traceName": "rank{rank}.pt.trace.json"\n}}\n'


def _distributed(outcome: Outcome, rank: int) -> Json:
    groups = {exchange.group: _group_of(exchange, outcome) for exchange in outcome.exchanges}
    listed: list[Json] = [
        {"pg_name": name, "pg_desc": f"group {name}", "backend_config": "cuda:nccl", "pg_size": len(m), "ranks": [*m]}
        for name, m in sorted(groups.items())
        if rank in m
    ]
    world = len(outcome.program.threads)
    return {
        "backend": "nccl",
        "rank": rank,
        "world_size": world,
        "pg_count": len(groups),
        "pg_config": listed,  # type: ignore[dict-item]
        "nccl_version": "2.27.5",
    }


def _group_of(exchange: Exchange, outcome: Outcome) -> tuple[int, ...]:
    """The members of a group; transfers take place within the group of everybody."""
    return tuple(outcome.program.ranks) if exchange.operation == POINT_TO_POINT else exchange.members


def device_of(rank: int) -> int:
    """The number of a rank's device on its host."""
    return rank % 8


class _Writer:
    """The events of one rank."""

    def __init__(self, outcome: Outcome, rank: int, shift_ns: int, *, sequence_numbers: bool) -> None:
        self.spans = [span for span in outcome.spans if span.lane.rank == rank]
        self.outcome, self.rank, self.shift_ns = outcome, rank, shift_ns
        self.sequence_numbers = sequence_numbers
        self.clock = outcome.program.clock(rank)
        self.process = 4000 + rank

    def events(self) -> Iterator[str]:
        """Operators first, then what the driver reported, then flows and metadata, as the exporter does."""
        for span in self.spans:
            if isinstance(span.what, Operator | Step):
                yield self.host_event(span)
        for span in self.spans:
            if isinstance(span.what, Kernel | Part):
                yield from self.device_event(span)
            elif not isinstance(span.what, Operator | Step):
                yield from self.runtime_event(span)
        yield from self.data_flows()
        yield from self.metadata()

    # One kind of event each.

    def host_event(self, span: Span) -> str:
        args: dict[str, Json] = {"External id": span.operator, "Record function id": 0}
        if isinstance(span.what, Step):
            return self.complete(span, "user_annotation", f"ProfilerStep#{span.what.number}", args)
        assert isinstance(span.what, Operator)
        if span.what.part is not None:
            args |= self.collective(span.what.part.exchange) | self.root(span.what.part.exchange)
        if span.what.sequence is not None:
            args |= {"Sequence number": span.what.sequence, "Fwd thread id": int(span.what.backward)}
        return self.complete(span, span.what.category, span.what.name, args)

    def device_event(self, span: Span) -> Iterator[str]:
        work = span.what
        assert isinstance(work, Kernel | Part)
        args: dict[str, Json] = {
            "External id": span.operator,
            "device": device_of(self.rank),
            "context": 1,
            "stream": span.lane.number,
            "correlation": span.correlation,
        }
        if isinstance(work, Part):
            args |= self.collective(work.exchange)
        category = "gpu_memcpy" if work.kind is Kind.COPY else "kernel"
        yield self.complete(span, category, work.name, args)
        yield self.flow("f", "ac2g", span.correlation, span.lane, span.start_ns)

    def runtime_event(self, span: Span) -> Iterator[str]:
        call = span.what
        assert not isinstance(call, Operator | Step | Kernel | Part)
        args: dict[str, Json] = {"External id": span.operator, "cbid": 0, "correlation": span.correlation}
        yield self.complete(span, "cuda_runtime", call.name, args)
        if isinstance(call, Launch | BlockingCopy):
            yield self.flow("s", "ac2g", span.correlation, span.lane, span.start_ns)
        elif isinstance(call, StreamWait):
            yield self.synchronisation(span, "Stream Wait Event", call.stream)
        elif isinstance(call, Synchronise):
            stream = {Scope.STREAM: call.target, Scope.EVENT: span.awaited[0], Scope.DEVICE: -1}[call.scope]
            yield self.synchronisation(span, _SYNC_NAMES[call.scope], stream)

    def synchronisation(self, span: Span, name: str, stream: int) -> str:
        args: dict[str, Json] = {"External id": span.operator, "cuda_sync_kind": name}
        if span.awaited[1] >= 0:
            args |= {"wait_on_stream": span.awaited[0], "wait_on_cuda_event_record_corr_id": span.awaited[1]}
        args |= {"stream": stream, "correlation": span.correlation, "device": device_of(self.rank), "context": 1}
        lane = Lane(self.rank, True, stream)
        return self.complete(span._replace(lane=lane), "cuda_sync", name, args)

    def data_flows(self) -> Iterator[str]:
        for span in self.spans:
            if isinstance(span.what, Operator) and span.what.sequence is not None:
                phase = "f" if span.what.backward else "s"
                yield self.flow(phase, "fwdbwd", span.what.sequence, span.lane, span.start_ns)

    def metadata(self) -> Iterator[str]:
        for lane in sorted({span.lane for span in self.spans}):
            name = f"stream {lane.number} " if lane.on_device else f"thread {lane.number}"
            yield self.line({"ph": "M", "name": "thread_name", **self.place(lane), "args": {"name": name}}, 0)
        place: dict[str, Json] = {"pid": "Traces", "tid": "Trace PyTorch Profiler"}
        yield self.line({"ph": "i", "s": "g", "name": "Iteration Start: PyTorch Profiler", **place}, 0)

    # What they have in common.

    def collective(self, exchange: Exchange) -> dict[str, Json]:
        args: dict[str, Json] = {
            "Collective name": exchange.operation,
            "In msg nelems": exchange.elements,
            "Out msg nelems": exchange.elements,
            "Group size": len(exchange.members),
            "dtype": _DTYPE,
            "In split size": "[]",
            "Out split size": "[]",
            "Process Group Name": exchange.group,
            "Process Group Description": f"group {exchange.group}",
            "Process Group Ranks": str([*_group_of(exchange, self.outcome)]),
        }
        if exchange.operation == POINT_TO_POINT:
            source, destination = exchange.members
            name = "send" if self.rank == source else "recv"
            size = len(self.outcome.program.threads)
            return args | {"Collective name": name, "Group size": size, "Src Rank": source, "Dst Rank": destination}
        if exchange.splits:
            own = exchange.members.index(self.rank)
            args |= {
                "In split size": str([*exchange.splits[own]]),
                "Out split size": str([row[own] for row in exchange.splits]),
            }
        return args | ({"Seq": exchange.number} if self.sequence_numbers else {})

    def root(self, exchange: Exchange) -> dict[str, Json]:
        """The exporter gives the root of a rooted operation, else the participant, by its place in the group."""
        if exchange.operation == POINT_TO_POINT:
            return {"Rank": self.rank}
        rank = exchange.root if exchange.operation in _ROOTED else self.rank
        return {"Rank": exchange.members.index(rank)}

    def place(self, lane: Lane) -> dict[str, Json]:
        return {"pid": device_of(self.rank) if lane.on_device else self.process, "tid": lane.number}

    def complete(self, span: Span, category: str, name: str, args: Mapping[str, Json]) -> str:
        event = {"ph": "X", "cat": category, "name": name, **self.place(span.lane), "args": args}
        return self.line(event, span.start_ns, span.end_ns)

    def flow(self, phase: str, category: str, number: int, lane: Lane, time_ns: int) -> str:
        event = {"ph": phase, "id": number, **self.place(lane), "cat": category, "name": category}
        return self.line(event | ({"bp": "e"} if phase == "f" else {}), time_ns)

    def line(self, event: Mapping[str, Json], *times_ns: int) -> str:
        """An event with its times in us, to the ns."""
        shown = [self.clock.shows(time_ns) + STARTS_NS + self.shift_ns for time_ns in times_ns]
        lengths = [shown[0], *(end - shown[0] for end in shown[1:])]
        return f"{json.dumps(event)[:-1]}, {', '.join(_timed(('ts', 'dur'), lengths))}}}"


def _timed(names: Iterable[str], values_ns: Iterable[int]) -> Iterator[str]:
    for name, value in zip(names, values_ns, strict=False):
        yield f'"{name}": {value // 1000}.{value % 1000:03d}'
