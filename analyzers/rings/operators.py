"""Products in rounds that a program of operators writes out: sends and receives between matrix products.

The trace tells who sent to whom and when, and which products ran between. It does not tell which memory an operator
read, so that blocks are followed through messages alone: a process sends on what it received last, and its own first.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from traceflow.analyzers.communication import Participant
from traceflow.analyzers.matching import RECEIVES, SENDS
from traceflow.analyzers.rings.result import SOURCE_ORDER, Loop, RoundTime, verdict
from traceflow.analyzers.rings.timed import Span, Times
from traceflow.intervals import union
from traceflow.program.operators import operator_cost
from traceflow.trace.model import ABSENT

if TYPE_CHECKING:
    from traceflow.analyzers.rings.recorded import Recorded

_PRODUCTS = frozenset({"aten::addmm", "aten::baddbmm", "aten::bmm", "aten::mm", "aten::_scaled_mm"})
_FUSED = re.compile(r"symm_mem::fused_\w*(?:all_gather|matmul)\w*|fused_(?:all_gather_matmul|matmul_reduce_scatter)")


_Token: TypeAlias = tuple[int, bool, int]
"""When, whether it is a send, and the row: of `Trace.communications`, or of the event of a product."""


@dataclass(frozen=True, slots=True)
class _Passage:
    """The part of one rank in one execution: its products in order, and its transfers, sent and received."""

    rank: int
    products: tuple[Span, ...]
    sends: tuple[int, ...]  # rows of `Trace.communications`
    receives: tuple[int, ...]
    product: str
    shapes: str
    sums_travel: bool


def operator_loops(recorded: Recorded, undivided: Recorded | None = None) -> Iterator[Loop]:
    """Products in rounds that operators make, executions of one shape together, and operators that do it within.

    Args:
        recorded: A window of a trace.
        undivided: Another, that may hold the same products in one piece.
    """
    by_rank = {rank: list(_Operators(recorded, rank).passages()) for rank in _ranks(recorded)}
    alike: dict[tuple[object, ...], list[dict[int, _Passage]]] = defaultdict(list)
    for turn in range(max(map(len, by_rank.values()), default=0)):
        ring = {rank: passages[turn] for rank, passages in by_rank.items() if turn < len(passages)}
        if len(ring) < 2 or any(len(one.sends) < len(ring) - 1 for one in ring.values()):
            continue
        first = next(iter(ring.values()))
        alike[first.product, first.shapes, first.sums_travel, len(first.sends)].append(ring)
    where = [recorded, *([undivided] if undivided else [])]
    yield from (_loop(recorded, rings, where) for rings in alike.values())
    yield from _fused(recorded)


def _ranks(recorded: Recorded) -> list[int]:
    """Ranks without compiled programs that send point to point."""
    trace = recorded.trace
    lanes = trace.events.lane[trace.communications.event[recorded.found.matches.point_to_point]]
    return [] if len(trace.hlo.event) else sorted({int(rank) for rank in trace.lanes.rank[lanes]})


@dataclass(frozen=True)
class _Operators:
    """What one rank did in the window, in order of time."""

    recorded: Recorded
    rank: int

    def passages(self) -> Iterator[_Passage]:
        """Runs of sends with one product between each two, and the products before and after.

        Where blocks travel each send comes before the product of its round, and two products end the run; where sums
        travel the run begins with a product.
        """
        tokens = sorted([*((at, True, row) for row, at in self._sends), *((at, False, e) for e, at in self.products)])
        at, free = 0, 0  # `free`: the first token that belongs to no run yet
        while at < len(tokens):
            last = _last_send(tokens, at)
            if last is None:
                at += 1
                continue
            before = at > free and self._alike(tokens[at - 1 : at + 2 : 2])
            run = tokens[at - 1 : last + 2] if before else tokens[at : last + 3]
            sends = [sends for _, sends, _ in run]
            if sends.count(False) == sends.count(True) + 1 and self._alike([one for one in run if not one[1]]):
                yield self._passage(run, sums_travel=before)
                free = last + 2 if before else last + 3
            at = max(last + 1, free)

    def _alike(self, tokens: Sequence[_Token]) -> bool:
        """Whether tokens are products of the same shapes."""
        products = not any(sends for _, sends, _ in tokens)
        return len(tokens) > 1 and products and len({self._shapes.get(row) for _, _, row in tokens}) == 1

    def _passage(self, run: Sequence[_Token], *, sums_travel: bool) -> _Passage:
        sends = tuple(row for _, sends, row in run if sends)
        products = [event for _, sends, event in run if not sends]
        first, trace = self._sends_before(sends[0]), self.recorded.trace
        return _Passage(
            self.rank,
            tuple(self.span(event) for event in products),
            sends,
            tuple(self._receives[first : first + len(sends)]),
            trace.strings[trace.events.name[products[0]]],
            self._shapes.get(products[0], ""),
            sums_travel,
        )

    def _sends_before(self, row: int) -> int:
        return next(at for at, (own, _) in enumerate(self._sends) if own == row)

    def span(self, event: int) -> Span:
        """What an operator took: on a device from its first kernel to its last, else itself."""
        t, found = self.recorded.trace, self.recorded.found
        start, end = int(t.events.start_ns[event]), int(t.events.end_ns[event])
        called = found.launch_call
        inside = (called >= 0) & (t.events.lane[called] == t.events.lane[event])
        inside &= (t.events.start_ns[called] >= start) & (t.events.start_ns[called] < end)
        kernels = np.flatnonzero(inside & (t.lanes.device[t.events.lane] != ABSENT))
        if len(kernels):
            start, end = int(t.events.start_ns[kernels].min()), int(t.events.end_ns[kernels].max())
        return Span(start, end, start, event)

    @cached_property
    def _sends(self) -> list[tuple[int, int]]:
        return self._calls(SENDS)

    @cached_property
    def _receives(self) -> list[int]:
        return [row for row, _ in self._calls(RECEIVES)]

    def _calls(self, operations: frozenset[str]) -> list[tuple[int, int]]:
        """Rows of calls with when the host issued them, in that order."""
        t, window, event = self.recorded.trace, self.recorded.window, self.recorded.trace.communications.event
        start, launch = t.events.start_ns, self.recorded.found.launch_call[event]
        issued = np.where(launch >= 0, start[launch], start[event])
        mine = t.lanes.rank[t.events.lane[event]] == self.rank
        mine &= (start[event] >= window.start_ns) & (start[event] < window.end_ns)
        mine &= np.isin(t.communications.operation, [i for i, text in enumerate(t.strings) if text in operations])
        rows = np.flatnonzero(mine)
        rows = rows[np.argsort(issued[rows], kind="stable")]
        return list(zip(rows.tolist(), issued[rows].tolist(), strict=True))

    @cached_property
    def products(self) -> list[tuple[int, int]]:
        """Matrix products with their starts."""
        t, window = self.recorded.trace, self.recorded.window
        named = np.isin(t.events.name, [i for i, text in enumerate(t.strings) if text in _PRODUCTS])
        named &= (t.lanes.rank[t.events.lane] == self.rank) & (t.lanes.device[t.events.lane] == ABSENT)
        named &= (t.events.start_ns >= window.start_ns) & (t.events.start_ns < window.end_ns)
        events = np.flatnonzero(named)
        return list(zip(events.tolist(), t.events.start_ns[events].tolist(), strict=True))

    @cached_property
    def _shapes(self) -> Mapping[int, str]:
        t = self.recorded.trace
        codes = zip(t.operands.event.tolist(), t.operands.shapes.tolist(), strict=True)
        return {event: t.strings[code] for event, code in codes if code >= 0}


def _last_send(tokens: Sequence[_Token], at: int) -> int | None:
    """The last of a run of sends with one product between each two; None where no send is there."""
    if not tokens[at][1]:
        return None
    while at + 2 < len(tokens) and not tokens[at + 1][1] and tokens[at + 2][1]:
        at += 2
    return at


def _loop(recorded: Recorded, rings: Sequence[Mapping[int, _Passage]], where: Sequence[Recorded]) -> Loop:
    first = rings[0]
    one = next(iter(first.values()))
    times = [_times(recorded, [ring[rank] for ring in rings if rank in ring]) for rank in first]
    count = len(one.sends)
    numbers = range(len(one.products), len(one.products) + count)
    worst = max(times, key=lambda t: t.permutes(numbers)[1])
    permute_ns, exposed_ns, transfer_ns = worst.permutes(numbers)
    hiding = range(1, count + 1) if one.sums_travel else range(count)
    sent = _sent_bytes(recorded, one.sends)
    return Loop(
        name=f"{one.product} {one.shapes}".strip(),
        program=None,
        form="operators",
        travels="sums" if one.sums_travel else "blocks",
        devices=len(first),
        rounds=len(one.products),
        permutes=count,
        permute_bytes=sent,
        per_round=tuple(_rounds(recorded, first, worst, sent)),
        participant=worst.participant,
        executions=worst.executions(range(len(one.products))),
        permute_ns=permute_ns,
        exposed_ns=exposed_ns,
        matmul_ns=sum(worst.product_ns(number) for number in range(len(one.products))),
        chunk_efficiency_ratio=_efficiency(where, one, times),
        verdict=verdict(permute_ns, exposed_ns, transfer_ns, sum(worst.product_ns(number) for number in hiding)),
        source="",
    )


def _efficiency(where: Sequence[Recorded], one: _Passage, times: Sequence[Times]) -> float | None:
    """Time of a product of as many FLOPs as all rounds have, over that of the rounds; None where there is none."""
    numbers = range(len(one.products))
    rounds_ns = median(sum(t.product_ns(n) for n in numbers) / t.executions(numbers) for t in times)
    flops = _flops(where[0], one.products[0].event)
    if flops is None or not rounds_ns:
        return None
    whole = [
        operators.span(event).duration_ns
        for recorded in where
        for operators in (_Operators(recorded, rank.rank) for rank in recorded.trace.ranks)
        for event, _ in operators.products
        if _flops(recorded, event) == flops * len(one.products)
    ]
    return median(whole) / rounds_ns if whole else None


def _flops(recorded: Recorded, event: int) -> int | None:
    """FLOPs of an operator, where its shapes were recorded."""
    t = recorded.trace
    found = np.flatnonzero(t.operands.event == event)
    if not len(found):
        return None
    columns = (t.operands.shapes, t.operands.types, t.operands.values)
    told = (t.strings[column[found[0]]] if column[found[0]] >= 0 else "" for column in columns)
    cost = operator_cost(t.strings[t.events.name[event]], *told)
    return cost.total_flops if cost else None


def _times(recorded: Recorded, passages: Sequence[_Passage]) -> Times:
    """Products first, then transfers, each send with the receive beside it."""
    spans: dict[int, list[Span]] = defaultdict(list)
    for one in passages:
        for number, span in enumerate(one.products):
            spans[number].append(span)
        for rows in (one.sends, one.receives):
            for number, row in enumerate(rows, start=len(one.products)):
                spans[number].append(_transfer(recorded, row))
    rank = passages[0].rank
    who = next((w for w in recorded.compute if w[0] == rank), (rank, None))
    return Times(who, spans, recorded.compute.get(who, union([], [])))


def _transfer(recorded: Recorded, row: int) -> Span:
    t = recorded.trace
    event = int(t.communications.event[row])
    start, end = int(t.events.start_ns[event]), int(t.events.end_ns[event])
    return Span(start, end, min(max(start, int(recorded.found.matches.last_ns[row])), end), event)


def _sent_bytes(recorded: Recorded, sends: Sequence[int]) -> int | None:
    payload = recorded.trace.communications.payload_bytes[list(sends)]
    return None if (payload < 0).any() else int(payload.sum())


def _rounds(
    recorded: Recorded, ring: Mapping[int, _Passage], times: Times, sent_bytes: int | None
) -> Iterator[RoundTime]:
    one = next(iter(ring.values()))
    blocks = _blocks(recorded, ring)
    for number in range(len(one.products)):
        by = number - 1 + len(one.products) if number else None
        permute_ns, exposed_ns, _ = times.permutes([by]) if by is not None else (None, None, None)
        yield RoundTime(
            number=number,
            product=one.product,
            permute=None if by is None else "send and receive",
            block=tuple(blocks[rank][number] for rank in ring),
            begins=None,
            length=None,
            matches=None,
            sent_bytes=0 if by is None else None if sent_bytes is None else sent_bytes // len(one.sends),
            permute_ns=permute_ns,
            exposed_ns=exposed_ns,
            product_ns=times.product_ns(number),
        )


def _blocks(recorded: Recorded, ring: Mapping[int, _Passage]) -> dict[int, list[int]]:
    """Per rank, whose block it has in each round; of sums that travel, where the sum ends that it adds to. -1: not told.

    A message that is matched brings what its sender had when it sent it: the k-th send is of what the k-th round had.
    """
    instance = recorded.found.matches.instance
    sent = {int(instance[row]): (rank, k) for rank, one in ring.items() for k, row in enumerate(one.sends)}
    held = {rank: [rank] for rank in ring}
    for number in range(max(len(one.receives) for one in ring.values())):
        came = {
            rank: sent.get(int(instance[one.receives[number]]), (ABSENT, 0))
            if number < len(one.receives)
            else (ABSENT, 0)
            for rank, one in ring.items()
        }
        for rank, (sender, k) in came.items():
            known = sender != ABSENT and k < len(held[sender])
            held[rank].append(held[sender][k] if known else ABSENT)
    if not next(iter(ring.values())).sums_travel:
        return held
    last = max(map(len, held.values())) - 1
    return {rank: [_end(held, rank, number, last) for number in range(last + 1)] for rank in ring}


def _end(held: Mapping[int, Sequence[int]], rank: int, number: int, last: int) -> int:
    """Where the sum ends that a rank adds to in a round: whoever has in the last round what began where this did."""
    return next((other for other, own in held.items() if own[last] == held[rank][number]), ABSENT)


def _fused(recorded: Recorded) -> Iterator[Loop]:
    """Operators that gather or scatter while they multiply; how much of that is hidden, no event tells."""
    t, window = recorded.trace, recorded.window
    codes = {i: text for i, text in enumerate(t.strings) if _FUSED.search(text)}
    on_host = t.lanes.device[t.events.lane] == ABSENT
    inside = on_host & (t.events.start_ns >= window.start_ns) & (t.events.start_ns < window.end_ns)
    for code, name in codes.items():
        events = np.flatnonzero(inside & (t.events.name == code))
        ranks: list[Participant] = sorted({(int(r), None) for r in t.lanes.rank[t.events.lane[events]]})
        if ranks:
            yield Loop(
                name=name,
                program=None,
                form="fused",
                travels=None,
                devices=None,
                rounds=None,
                permutes=None,
                permute_bytes=None,
                per_round=(),
                participant=None,
                executions=len(events) // len(ranks),
                permute_ns=None,
                exposed_ns=None,
                matmul_ns=None,
                chunk_efficiency_ratio=None,
                verdict=SOURCE_ORDER,
                source="",
            )
