"""Random multi-rank programs that cannot come to a standstill.

Every program is a list of phases in one order for all ranks: local work, collectives, transfers, synchronisation,
a backward pass. Each rank carries out its own part of them in that order, so that whoever waits, waits for something
earlier.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from random import Random

from simulator.program import (
    FROM_ROOT,
    OPERATIONS,
    POINT_TO_POINT,
    TO_ROOT,
    Body,
    Clock,
    Exchange,
    Instruction,
    Part,
    Program,
    Scope,
    Step,
    Thread,
)
from simulator.script import COMPUTE, KERNELS, MAIN, SIDE, Latencies, Script

_STREAMS = {"all": 20, "ep": 24, "dp": 28}  # each family of groups has one


@dataclass(frozen=True, slots=True)
class Recipe:
    """What kind of program to make."""

    latencies: Latencies = Latencies()  # noqa: RUF009  frozen
    jitter_ns: int = 0  # how much later than the first the participants of a collective may end
    clocks_ns: int = 0  # how far the clocks of hosts may be off; 0 for one host
    drift_ppb: int = 0
    even: bool = False  # all ranks do the same, and take as long
    symmetric: bool = False  # nothing but collectives in which everybody waits for everybody
    steps: tuple[int, int] = (1, 3)
    phases: tuple[int, int] = (3, 9)


def random_program(seed: int, recipe: Recipe | None = None) -> Program:
    """The program of a seed, of 2 to 8 ranks."""
    return _Job(Random(seed), recipe or Recipe()).program()


class _Job:
    """Its random numbers decide what all ranks share; a rank's own, started anew in every phase, decide the rest."""

    def __init__(self, rng: Random, recipe: Recipe) -> None:
        self.rng, self.recipe = rng, recipe
        size = rng.choice((2, 2, 3, 4, 4, 6, 8))
        streams = (COMPUTE, SIDE)[: rng.randint(1, 2)]
        self.scripts = [Script(recipe.latencies, streams) for _ in range(size)]
        self.families = _families(size)
        self.numbers: Counter[str] = Counter()
        self.sequence = 0

    def program(self) -> Program:
        for number in range(1, self.rng.randint(*self.recipe.steps) + 1):
            self.step(number)
        self.shuffle()
        with_loader = self.rng.random() < 0.5
        hosts, clocks = self.hosts()
        return Program([self.threads(script, with_loader=with_loader) for script in self.scripts], hosts, clocks)

    def threads(self, script: Script, *, with_loader: bool) -> list[Thread]:
        start_ns = 0 if self.recipe.even else script.time(30_000, 0)
        main = Thread(MAIN, tuple(script.body), start_ns)
        return [main, script.loader()] if with_loader else [main]

    def hosts(self) -> tuple[list[str], dict[str, Clock]]:
        size, most, drift = len(self.scripts), self.recipe.clocks_ns, self.recipe.drift_ppb
        per_host = self.rng.choice((1, max(size // 2, 1))) if most else size
        hosts = [f"node-{rank // per_host:02}" for rank in range(size)]
        names = sorted(set(hosts))
        return hosts, {host: Clock(self.rng.randint(-most, most), self.rng.randint(-drift, drift)) for host in names}

    def shuffle(self) -> None:
        seed = self.rng.getrandbits(32)
        for rank, script in enumerate(self.scripts):
            script.rng = Random(seed if self.recipe.even else seed + rank)

    @contextmanager
    def within(self, finish: Callable[[Script, Body], Instruction]) -> Iterator[None]:
        """What every rank adds meanwhile becomes the body of one instruction."""
        outer = [script.body for script in self.scripts]
        for script in self.scripts:
            script.body = []
        yield
        for script, body in zip(self.scripts, outer, strict=True):
            script.body = [*body, finish(script, tuple(script.body))]

    # Phases.

    def step(self, number: int) -> None:
        with self.within(lambda _, body: Step(number, body)):
            first = self.sequence
            for _ in range(self.rng.randint(*self.recipe.phases)):
                self.phase()
            if self.rng.random() < 0.6:
                self.backward(first)
            for _ in range(self.rng.randint(0, 3)):
                self.phase()
            if self.rng.random() < 0.7:
                self.each(lambda script: script.wait(Scope.DEVICE))
        self.each(Script.pause)

    def phase(self) -> None:
        self.shuffle()
        kinds = (self.local, self.collective, self.chain, self.wait, self.copy_back, self.graph, self.transfer)
        # at its ends, a pipeline is not even
        weights = (8, 5, 1, 1, 1, 1, 0 if self.recipe.even or self.recipe.symmetric else 1.5)
        self.rng.choices(kinds, weights)[0]()

    def each(self, add: Callable[[Script], object]) -> None:
        for script in self.scripts:
            add(script)

    def local(self) -> None:
        self.sequence += 1
        self.each(lambda script: script.local(self.sequence))

    def chain(self) -> None:
        self.each(Script.chain)

    def wait(self) -> None:
        scope = self.rng.choice(tuple(Scope))
        self.each(lambda script: script.wait(scope))

    def copy_back(self) -> None:
        self.each(Script.copy_back)

    def graph(self) -> None:
        self.each(Script.graph)

    def backward(self, first: int) -> None:
        """On the autograd thread, for some of the operators since the first."""
        self.shuffle()
        named = self.rng.random() < 0.5
        with self.within(lambda script, body: script.handed_off(body, named=named)):
            self.each(Script.loss)
            for sequence in range(self.sequence, first, -1)[: self.rng.randint(0, 4)]:
                for script in self.scripts:
                    launch = script.launch(COMPUTE, script.kernel(script.rng.choice(KERNELS) + "_backward"))
                    script.operator("AddmmBackward0", launch, sequence=sequence, backward=True)
                if self.rng.random() < 0.5:
                    self.collective()
        self.each(lambda script: script.operator("aten::detach"))

    def collective(self) -> None:
        """In every group of a family."""
        name, operation = self.rng.choice(sorted(self.families)), self.rng.choice(self.operations())
        follows, leads = self.rng.random() < 0.8, self.rng.random() < 0.7
        seed = self.rng.getrandbits(32)
        for number, members in enumerate(self.families[name]):
            if self.recipe.even:
                self.rng.seed(seed)
            exchange = self.exchange(operation, f"{name}{number}", members)
            for member, duration_ns in zip(members, self.durations(exchange), strict=True):
                script = self.scripts[member]
                part = Part(exchange, duration_ns, script.visible(3000))
                script.part(part, _STREAMS[name], follows=follows, leads=leads)

    def operations(self) -> tuple[str, ...]:
        left_out = FROM_ROOT | TO_ROOT | {"all_to_all"} if self.recipe.symmetric else frozenset[str]()
        return tuple(operation for operation in OPERATIONS if operation not in left_out)

    def exchange(self, operation: str, group: str, members: tuple[int, ...]) -> Exchange:
        self.numbers[group] += 1
        splits: tuple[tuple[int, ...], ...] = ()
        if operation == "all_to_all" and self.rng.random() < 0.5:
            splits = tuple(tuple(self.rng.choice((0, 64, 128, 256)) for _ in members) for _ in members)
        root = self.rng.choice(members) if operation in FROM_ROOT | TO_ROOT else -1
        return Exchange(operation, group, members, self.numbers[group], self.rng.randint(1, 1 << 20), root, splits)

    def durations(self, exchange: Exchange) -> list[int]:
        """Equal where everybody waits for everybody, but for the jitter."""
        longest = self.rng.choice((5_000, 60_000, 200_000))
        if exchange.is_symmetric or self.recipe.even:
            common = self.rng.randint(1, longest)
            return [common + self.rng.randint(0, self.recipe.jitter_ns) for _ in exchange.members]
        return [self.rng.randint(1, longest) for _ in exchange.members]

    def transfer(self) -> None:
        """From some ranks to their neighbours, on a stream per peer and direction."""
        pairs = list(pairwise(range(len(self.scripts))))
        for source, destination in self.rng.sample(pairs, self.rng.randint(1, len(pairs))):
            channel = f"{source} to {destination}"
            self.numbers[channel] += 1
            exchange = Exchange(POINT_TO_POINT, "all0", (source, destination), self.numbers[channel])
            duration_ns = self.rng.randint(1, 50_000)
            for member, stream in ((source, 40 + destination), (destination, 60 + source)):
                script, receives = self.scripts[member], member == destination
                part = Part(exchange, duration_ns, script.visible(3000))
                script.part(part, stream, follows=not receives, leads=receives)


def _families(size: int) -> dict[str, list[tuple[int, ...]]]:
    """Groups that partition the ranks: everybody, pairs of neighbours, and those with the same place in a pair."""
    families = {"all": [tuple(range(size))]}
    if size % 2 == 0 and size > 2:
        families["ep"] = [(first, first + 1) for first in range(0, size, 2)]
        families["dp"] = [tuple(range(first, size, 2)) for first in range(2)]
    return families
