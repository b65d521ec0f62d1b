"""What the ranks of a job do: instructions of host threads, and the work that these launch on streams.

All durations are integer ns. Latencies come in two kinds, and the difference decides what a trace can tell:

- after everything (`dispatch_ns`, `return_ns`): they follow the latest of all the things that had to come first, so
  that every one of them is visible in the trace as a lag of its own;
- behind one cause (`latency_ns`, `awake_ns`): they follow one of these things, and hide where another is later.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import ClassVar, TypeAlias


class Kind(Enum):
    """What a piece of work is, by the selector that a what-if has for it."""

    COMPUTE = "@compute"
    COPY = "@copy"
    TRANSFER = "@transfer"
    HOST = "@host"
    LAUNCH = "@launch"  # the latency of a launch, which has no name


@dataclass(frozen=True, slots=True)
class Kernel:
    """Work of one device: a kernel, or a copy."""

    name: str
    duration_ns: int
    kind: Kind = Kind.COMPUTE
    dispatch_ns: int = 0


FROM_ROOT = frozenset({"broadcast", "scatter"})
TO_ROOT = frozenset({"reduce", "gather"})
POINT_TO_POINT = "point to point"

_ALGORITHMS = {
    "allreduce": "AllReduce_Sum_bf16_RING_LL",
    "barrier": "AllReduce_Sum_u8_TREE_LL",
    "allgather": "AllGather_RING_LL",
    "reduce_scatter": "ReduceScatter_Sum_bf16_RING_LL",
    "broadcast": "Broadcast_RING_LL",
    "reduce": "Reduce_Sum_bf16_RING_LL",
}
OPERATIONS = (*_ALGORITHMS, "all_to_all", "gather", "scatter")


@dataclass(frozen=True, slots=True)
class Exchange:
    """One collective, or one transfer from its first member to its second. Equal on all members."""

    operation: str
    group: str
    members: tuple[int, ...]
    number: int  # from 1 on within the group; of a transfer, within its channel
    elements: int = 1024
    root: int = -1  # a rank
    splits: tuple[tuple[int, ...], ...] = ()  # rows that each member (row) sends to each (column)

    def needs(self, rank: int) -> tuple[int, ...]:
        """The members whose arrival starts the transfer at a rank, itself included."""
        if self.operation in FROM_ROOT:
            return tuple({rank, self.root})
        if self.operation in TO_ROOT:
            return self.members if rank == self.root else (rank,)
        if self.splits:
            own = self.members.index(rank)
            with_rows = (i == own or self.splits[own][i] + self.splits[i][own] for i in range(len(self.members)))
            return tuple(member for member, some in zip(self.members, with_rows, strict=True) if some)
        return self.members

    @property
    def is_symmetric(self) -> bool:
        """Whether everybody waits for everybody."""
        return all(set(self.needs(rank)) == set(self.members) for rank in self.members)


@dataclass(frozen=True, slots=True)
class Part:
    """One participant's work in an exchange: it arrives, waits for those it needs, and transfers for a time."""

    exchange: Exchange
    duration_ns: int
    dispatch_ns: int = 0

    @property
    def name(self) -> str:
        """The kernel: what no algorithm of its own serves is sends and receives."""
        return f"ncclDevKernel_{_ALGORITHMS.get(self.exchange.operation, 'SendRecv')}(ncclDevKernelArgsStorage<4096ul>)"

    @property
    def kind(self) -> Kind:
        """Only the transfer is work."""
        return Kind.TRANSFER


Work: TypeAlias = Kernel | Part


@dataclass(frozen=True, slots=True)
class Operator:
    """A named piece of host work. Numbers in its body are its own time, in between are the calls that it makes."""

    name: str
    body: Body
    category: str = "cpu_op"
    sequence: int | None = None  # equal on a forward operator and the backward one that takes its data
    backward: bool = False
    part: Part | None = None  # what it communicates


@dataclass(frozen=True, slots=True)
class Launch:
    """A call that puts work on a stream; several pieces of work are a graph."""

    stream: int
    work: tuple[Work, ...]
    call_ns: int
    latency_ns: int = 0  # from the start of the call to the earliest start of the work

    @property
    def name(self) -> str:
        """As the runtime names the call, by what is launched."""
        if len(self.work) > 1:
            return "cudaGraphLaunch"
        if isinstance(self.work[0], Part):
            return "cudaLaunchKernelExC"
        return "cudaMemcpyAsync" if self.work[0].kind is Kind.COPY else "cudaLaunchKernel"


@dataclass(frozen=True, slots=True)
class BlockingCopy:
    """A copy that returns when it is done."""

    stream: int
    work: Kernel
    name: str = "cudaMemcpyAsync"
    latency_ns: int = 0
    awake_ns: int = 0
    return_ns: int = 0


@dataclass(frozen=True, slots=True)
class Record:
    """A call that marks the end of everything on a stream so far."""

    event: int
    stream: int
    call_ns: int
    name: ClassVar[str] = "cudaEventRecord"


@dataclass(frozen=True, slots=True)
class StreamWait:
    """A call that lets a stream wait for a recorded event."""

    event: int
    stream: int
    call_ns: int
    name: ClassVar[str] = "cudaStreamWaitEvent"


class Scope(Enum):
    """What a synchronisation waits for."""

    STREAM = "cudaStreamSynchronize"
    EVENT = "cudaEventSynchronize"
    DEVICE = "cudaDeviceSynchronize"


@dataclass(frozen=True, slots=True)
class Synchronise:
    """A call that blocks the host, and has no work of its own."""

    scope: Scope
    target: int = -1  # a stream, or an event
    awake_ns: int = 0
    return_ns: int = 0

    @property
    def name(self) -> str:
        """As the runtime names the call."""
        return self.scope.value


@dataclass(frozen=True, slots=True)
class HandOff:
    """The thread gives work to another thread and goes on when that is done; it leaves no event of its own."""

    thread: int
    body: Body
    awake_ns: int = 0
    return_ns: int = 0


@dataclass(frozen=True, slots=True)
class Step:
    """The part of a thread between two calls of the profiler's `step`."""

    number: int
    body: Body


Call: TypeAlias = Launch | BlockingCopy | Record | StreamWait | Synchronise
Instruction: TypeAlias = Operator | Call | HandOff | Step
Body: TypeAlias = "tuple[Instruction | int, ...]"
"""Instructions, and times: an operator's own, or a pause of the thread outside operators."""


@dataclass(frozen=True, slots=True)
class Thread:
    """What one host thread does, from when on."""

    number: int
    body: Body
    start_ns: int = 0


@dataclass(frozen=True, slots=True)
class Clock:
    """What a host's clock shows: true time + offset + drift."""

    offset_ns: int = 0
    drift_ppb: int = 0

    def shows(self, time_ns: int) -> int:
        """The reading at a true time."""
        return time_ns + self.offset_ns + round(time_ns * self.drift_ppb / 1_000_000_000)


@dataclass(frozen=True, slots=True)
class Program:
    """A job: the threads of every rank, where the ranks run, and what the clocks there show."""

    threads: Sequence[Sequence[Thread]]  # by rank
    hosts: Sequence[str] = ()  # by rank; one host where empty
    clocks: Mapping[str, Clock] = field(default_factory=dict)

    def host(self, rank: int) -> str:
        """The host of a rank."""
        return self.hosts[rank] if self.hosts else "node-00"

    def clock(self, rank: int) -> Clock:
        """The clock that a rank reads."""
        return self.clocks.get(self.host(rank), Clock())

    @property
    def ranks(self) -> range:
        """All ranks."""
        return range(len(self.threads))
