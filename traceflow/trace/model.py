"""The Trace: what the devices and the host did, and when, as columns.

One row per event, integer nanoseconds from the capture's epoch. Text is dictionary-coded into
`Trace.strings`. What few events carry lives in side tables keyed by the event's row. -1 stands for
"not recorded" in every integer column of a side table; no analyzer may read it as a quantity.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import IntEnum
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from traceflow.result import Tally

Int64: TypeAlias = NDArray[np.int64]
Int32: TypeAlias = NDArray[np.int32]
Int8: TypeAlias = NDArray[np.int8]
Bool: TypeAlias = NDArray[np.bool_]
Rows: TypeAlias = NDArray[np.integer]
"""Row numbers, of whatever width they were computed in."""
Text: TypeAlias = NDArray[np.object_]
"""A column of strings (or of small tuples), None where there is nothing to say."""

ABSENT = -1


class Kind(IntEnum):
    """What an event is. Spans of the profiler, step annotations and flows are not events."""

    HOST = 0  # an operator, annotation or Python function on a host thread
    CALL = 1  # a call into the device runtime: launches, event records, queries
    WAIT = 2  # a blocking call: no work of its own while it waits
    COMPUTE = 3  # a kernel or an HLO operation
    COPY = 4  # memcpy, memset, a copy on the device
    COMMUNICATION = 5  # a collective or a point-to-point transfer, on a device or on the host


class LaneKind(IntEnum):
    """What a lane is, which tells how its events nest and whether their order is dependency."""

    THREAD = 0  # host thread: events nest, in program order
    STREAM = 1  # device stream: in order, may overlap, never nests
    LINE = 2  # a device's operation line (TPU): in order, events nest
    WORKER = 3  # work of one virtual device on one host thread (XLA CPU): nests, order is not dependency


@dataclass(frozen=True, slots=True)
class Events:
    """Struct of arrays, one row per event, sorted by (lane, start_ns, -end_ns, name, correlation)."""

    start_ns: Int64
    end_ns: Int64
    lane: Int32  # row of `Lanes`
    name: Int32  # code in `Trace.strings`
    kind: Int8  # `Kind`
    correlation: Int64  # joins a launch call to the device work it started, within a rank

    def __len__(self) -> int:
        return len(self.start_ns)


@dataclass(frozen=True, slots=True)
class Lanes:
    """One row per host thread, stream or device line, sorted by (rank, device, kind, name)."""

    rank: Int32
    device: Int32  # ABSENT on host threads
    kind: Int8  # `LaneKind`
    stream: Int64  # the stream's number where the lane is one
    name: tuple[str, ...]  # as the trace names it

    def __len__(self) -> int:
        return len(self.rank)


@dataclass(frozen=True, slots=True)
class Group:
    """A process group or replica group: its name and its members (ranks, or global device ids for XLA)."""

    name: str
    members: tuple[int, ...]  # empty where the trace does not say
    size: int  # ABSENT where the trace does not say
    description: str = field(default="", compare=False)  # what the program calls it, which need not be unique


@dataclass(frozen=True, slots=True)
class Communications:
    """One row per communication event: what identifies it across participants, and what it carries."""

    event: Int32
    operation: Int32  # code in strings: allreduce, all-gather, send ...
    group: Int32  # row of `Trace.groups`; ABSENT where unknown
    key: Int64  # equal on all participants of one program point; 0 where only group and sequence identify it
    sequence: Int64  # position within (group, key)
    member: Int64  # which member of the group this participant is
    payload_bytes: Int64  # what this participant puts in
    source: Int64  # sending member (point-to-point) or root
    destination: Int64  # receiving member (point-to-point)
    in_splits: Int32  # code in strings, as "[4, 4]"
    out_splits: Int32


class SyncKind(IntEnum):
    """What a synchronisation record says."""

    STREAM_WAIT = 0  # a stream waits for an event recorded on another
    EVENT = 1  # the host waits for a recorded event
    STREAM = 2  # the host waits for a stream
    CONTEXT = 3  # the host waits for every stream of the device


@dataclass(frozen=True, slots=True)
class Syncs:
    """One row per synchronisation record; `correlation` joins it to the runtime call."""

    kind: Int8  # `SyncKind`
    rank: Int32
    device: Int32
    stream: Int64  # the stream that waits (STREAM_WAIT) or is waited for (STREAM)
    awaited_stream: Int64  # the stream on which the awaited event was recorded
    correlation: Int64
    record_correlation: Int64  # of the call that recorded the awaited event


@dataclass(frozen=True, slots=True)
class Flows:
    """Data passed from one event to another: forward to backward operators."""

    source: Int32
    target: Int32


@dataclass(frozen=True, slots=True)
class HloEvents:
    """One row per event that executes an HLO instruction."""

    event: Int32
    program: Int64  # key of the compiled programs that came with the trace
    instruction: Int32  # row in that program's instructions; ABSENT where it has none of the name
    run: Int64  # one execution of the program, equal on all devices that took part in it


@dataclass(frozen=True, slots=True)
class Launches:
    """One row per execution of a program on a device: the host event that started it."""

    program: Int64
    run: Int64
    rank: Int32
    device: Int32  # ABSENT: this call started the run on every device of the rank
    event: Int32


@dataclass(frozen=True, slots=True)
class Operands:
    """One row per operator whose arguments were recorded and tell what it costs; texts are JSON, as codes in strings."""

    event: Int32
    shapes: Int32  # as "[[8, 4], [4, 2]]"
    types: Int32  # as "[\"float\", \"float\"]"
    values: Int32  # of the arguments that are no tensors; ABSENT where they were not recorded


@dataclass(frozen=True, slots=True)
class Copies:
    """One row per copy between or within memories, or filling of one, whose size was recorded."""

    event: Int32
    size_bytes: Int64


class MemorySource(IntEnum):
    """Who tells of memory; what two of them tell of one device is the same memory, and is never added up."""

    EVENT = 0  # the allocator, as it went, to the profiler
    SNAPSHOT = 1  # the history that the allocator kept itself
    TIMELINE = 2  # the profiler's account of what memory was used for


class MemoryUse(IntEnum):
    """What memory is used for, in the order of PyTorch's categories."""

    PARAMETER = 0
    OPTIMIZER_STATE = 1
    INPUT = 2
    TEMPORARY = 3
    ACTIVATION = 4
    GRADIENT = 5
    AUTOGRAD_DETAIL = 6
    UNKNOWN = 7


@dataclass(frozen=True, slots=True)
class MemoryEvents:
    """One row per allocation or release, sorted by (rank, device, source, time_ns), otherwise in order of the record."""

    time_ns: Int64
    rank: Int32
    device: Int32  # ABSENT: memory of the host, or the source does not say
    source: Int8  # `MemorySource`
    change_bytes: Int64  # negative for a release
    allocated_bytes: Int64  # in all after it, where the source says
    reserved_bytes: Int64  # what the allocator holds, used or not, where the source says
    use: Int8  # `MemoryUse`

    def __len__(self) -> int:
        return len(self.time_ns)


@dataclass(frozen=True, slots=True)
class Marks:
    """One row per step annotation on the host."""

    step: Int64
    rank: Int32
    start_ns: Int64
    end_ns: Int64


@dataclass(frozen=True, slots=True)
class Rank:
    """What the trace says of one rank."""

    rank: int
    host: str | None
    world_size: int | None
    source: str  # the file it came from
    clock: int = 0  # ranks with the same number read one clock: their times can be compared


@dataclass(frozen=True, slots=True)
class Trace:
    """All ranks of a capture on one clock. Immutable: readers make it, analyzers read it."""

    events: Events
    lanes: Lanes
    strings: tuple[str, ...]
    groups: tuple[Group, ...]
    communications: Communications
    syncs: Syncs
    flows: Flows
    hlo: HloEvents
    launches: Launches
    marks: Marks
    ranks: tuple[Rank, ...]
    epoch_ns: int | None  # absolute time of ns 0, since 1970; None where the trace does not say
    format: str  # kineto, xspace, chrome, operations
    tally: Tally
    clock_error_ns: int = 0  # how far two moments of ranks on one aligned clock may be apart in truth
    metadata: Mapping[str, str] = field(default_factory=dict)
    memory: MemoryEvents = field(default_factory=lambda: empty(MemoryEvents))
    operands: Operands = field(default_factory=lambda: empty(Operands))
    copies: Copies = field(default_factory=lambda: empty(Copies))


_Side = TypeVar(
    "_Side", Events, Communications, Syncs, Flows, HloEvents, Launches, Marks, MemoryEvents, Operands, Copies
)


def empty(table: type[_Side]) -> _Side:
    """A side table without rows.

    Example:
        >>> len(empty(Flows).source)
        0
    """
    widths = {"Int64": np.int64, "Int32": np.int32, "Int8": np.int8}
    return table(*(np.empty(0, widths[str(f.type)]) for f in fields(table)))
