"""What one rank does, written instruction by instruction with random durations."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

from simulator.program import (
    BlockingCopy,
    HandOff,
    Instruction,
    Kernel,
    Kind,
    Launch,
    Operator,
    Part,
    Record,
    Scope,
    StreamWait,
    Synchronise,
    Thread,
)

MAIN, AUTOGRAD, LOADER = 4000, 4157, 4200
COMPUTE, SIDE, COPIES = 7, 13, 17
KERNELS = ("gemm", "attention", "softmax", "layer_norm")
OPERATORS = ("aten::linear", "aten::matmul", "aten::gelu", "aten::add")


@dataclass(frozen=True, slots=True)
class Latencies:
    """Which latencies a program has."""

    visible: bool = True  # those that come after everything
    hidden: bool = False  # those behind one cause, which may hide


class Script:
    """The instructions of a rank, in the order in which they were added."""

    def __init__(self, latencies: Latencies, streams: tuple[int, ...]) -> None:
        self.latencies, self.streams = latencies, streams
        self.rng = Random(0)
        self.body: list[Instruction | int] = []
        self._last_event = 0

    # Random numbers.

    def time(self, most_ns: int, least_ns: int = 1) -> int:
        """Any duration up to the longest."""
        return self.rng.randint(least_ns, most_ns)

    def sometimes(self, most_ns: int) -> int:
        """Often nothing, else a duration."""
        return self.time(most_ns) if self.rng.random() < 0.4 else 0

    def visible(self, most_ns: int) -> int:
        """A latency after everything."""
        return self.sometimes(most_ns) if self.latencies.visible else 0

    def hidden(self, most_ns: int) -> int:
        """A latency behind one cause."""
        return self.time(most_ns) if self.latencies.hidden else 0

    def stream(self) -> int:
        """One of the streams for compute."""
        return self.rng.choice(self.streams)

    # Work and calls.

    def kernel(self, name: str = "", kind: Kind = Kind.COMPUTE) -> Kernel:
        """Device work, some of it too short for the clock."""
        longest = self.rng.choice((0, 2_000, 40_000, 40_000, 300_000, 300_000))
        return Kernel(name or self.rng.choice(KERNELS), self.time(longest, 0), kind, self.visible(3000))

    def launch(self, stream: int, *work: Kernel | Part) -> Launch:
        """A call that returns while the work may be running already."""
        return Launch(stream, work, self.time(3500, 900), self.hidden(6000))

    def record(self, stream: int) -> Record:
        """A new event."""
        self._last_event += 1
        return Record(self._last_event, stream, self.time(900, 300))

    def follow(self, before: int, after: int) -> tuple[Record, StreamWait]:
        """Let one stream wait for another."""
        record = self.record(before)
        return record, StreamWait(record.event, after, self.time(900, 300))

    def synchronise(self, scope: Scope, target: int = -1) -> Synchronise:
        """A call that waits for the device."""
        return Synchronise(scope, target, self.hidden(4000), self.visible(3000))

    # Pieces of a script.

    def pause(self) -> None:
        """Time between operators."""
        if self.rng.random() < 0.7:
            self.body.append(self.time(800))

    def operator(self, name: str, *calls: Instruction, **more: Any) -> None:
        """An operator with time of its own before, mostly between and after its calls."""
        body: list[Instruction | int] = [self.time(4000)]
        for call in calls:
            body += [call] if self.rng.random() < 0.2 else [call, self.time(2000)]
        self.body.append(Operator(name, tuple(body), **more))
        self.pause()

    def local(self, sequence: int) -> None:
        """Operators with kernels; the last of them is one that a backward pass may take up."""
        for _ in range(self.rng.randint(1, 3)):
            calls: list[Instruction] = [
                self.launch(self.stream(), self.kernel()) for _ in range(self.rng.choice((0, 1, 1, 1, 2)))
            ]
            if self.rng.random() < 0.3:
                calls = [Operator("aten::addmm", (self.time(900), *calls))]
            self.operator(self.rng.choice(OPERATORS), *calls)
        self.operator("aten::mm", self.launch(COMPUTE, self.kernel("gemm")), sequence=sequence)

    def part(self, part: Part, stream: int, *, follows: bool, leads: bool) -> None:
        """A collective on a stream that may follow the compute, which may follow that in turn."""
        calls = [*(self.follow(COMPUTE, stream) if follows else ()), self.launch(stream, part)]
        inner = Operator("record_param_comms", (self.time(900), *calls, self.time(900)), part=part)
        self.operator(f"c10d::{part.exchange.operation}_", inner)
        if leads:
            self.operator("c10d::wait", *self.follow(stream, self.stream()))

    def chain(self) -> None:
        """A stream follows the compute, and copies follow that stream, perhaps without work in between."""
        calls: list[Instruction] = [*self.follow(COMPUTE, SIDE)]
        if self.rng.random() < 0.5:
            calls.append(self.launch(SIDE, self.kernel("side")))
        calls += self.follow(SIDE, COPIES)
        copy = self.kernel("Memcpy DtoH (Device -> Pinned)", Kind.COPY)
        self.operator("aten::copy_", *calls, self.launch(COPIES, copy))

    def wait(self, scope: Scope) -> None:
        """An operator that waits for the device, perhaps for a stream on which nothing ever ran."""
        stream = self.rng.choice((*self.streams, COPIES))
        if scope is Scope.EVENT:
            record = self.record(stream)
            self.operator("aten::item", record, self.synchronise(scope, record.event))
        else:
            self.operator("aten::item", self.synchronise(scope, stream if scope is Scope.STREAM else -1))

    def copy_back(self) -> None:
        """A copy to pageable memory, which blocks the host."""
        copy = self.kernel("Memcpy DtoH (Device -> Pageable)", Kind.COPY)
        call = self.rng.choice(("cudaMemcpy", "cudaMemcpyAsync"))
        waiting = self.hidden(4000), self.hidden(3000), self.visible(3000)
        self.operator("aten::to", BlockingCopy(self.stream(), copy, call, *waiting))

    def graph(self) -> None:
        """Several kernels by one launch."""
        nodes = [self.kernel(f"graph_node_{i}") for i in range(self.rng.randint(2, 4))]
        self.operator("graph", self.launch(COMPUTE, *nodes))

    def loss(self) -> None:
        """The first piece of a backward pass, long enough to be more than the latencies around the pass."""
        body = self.time(9000, 8000), self.launch(COMPUTE, self.kernel("loss")), self.time(2000)
        self.body += [Operator("autograd::engine::evaluate_function: LossBackward0", body), self.time(800)]

    def handed_off(self, body: tuple[Instruction | int, ...], *, named: bool) -> Instruction:
        """A backward pass with the given work, in a call that the profiler shows or in none."""
        while isinstance(body[-1], int):
            body = body[:-1]
        given = HandOff(AUTOGRAD, body, self.sometimes(3000), self.sometimes(3000))
        return Operator("backward", (given,), "user_annotation") if named else given

    def loader(self) -> Thread:
        """A thread that prepares data, and waits for nobody."""
        body: list[Instruction | int] = []
        for _ in range(self.rng.randint(1, 20)):
            body.append(Operator("enumerate(DataLoader)#__next__", (self.time(90_000),), "user_annotation"))
            body.append(self.time(self.rng.choice((500, 90_000))))
        return Thread(LOADER, tuple(body), self.time(300_000))
