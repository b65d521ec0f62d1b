"""Rings and candidates of a program, with what a window of a trace tells of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

from traceflow.analyzers.rings.candidates import Pair, pairs
from traceflow.analyzers.rings.checks import bytes_sent, matches, used
from traceflow.analyzers.rings.recorded import Recorded, exposed_of, replayed_saving
from traceflow.analyzers.rings.result import (
    SOURCE_ORDER,
    Candidate,
    Loop,
    RoundTime,
    verdict,
)
from traceflow.analyzers.rings.rounds import Ring, Round, rings
from traceflow.analyzers.rings.timed import Span, Timed, Times
from traceflow.analyzers.rings.walk import Product, TooLongError, Walk
from traceflow.program.arithmetic import own_flops
from traceflow.program.layout import leaves
from traceflow.program.module import COLLECTIVES, HloModule, base_opcode
from traceflow.program.shape import shape_bytes, without_layout


@dataclass(frozen=True, slots=True)
class Walked:
    """A program that communicates and multiplies."""

    key: int
    module: HloModule
    walk: Walk
    rings: tuple[Ring, ...]
    long: bool  # too long to be walked through


def walked(key: int, module: HloModule) -> Walked | None:
    """Walk through a program; None where it holds no product or no collective."""
    if not module.dots or not any(base_opcode(opcode) in COLLECTIVES for opcode in module.opcode):
        return None
    walk = Walk(module)
    try:
        walk.run()
    except TooLongError:
        return Walked(key, module, walk, (), long=True)
    unlike = {frozenset(walk.events[n].rows for n in ring.products): ring for ring in rings(walk)}
    return Walked(key, module, walk, tuple(unlike.values()), long=False)


def loops_of(one: Walked, recorded: Recorded | None, undivided: Recorded | None) -> Iterator[tuple[Loop, Ring]]:
    """The rings of a program, with their times.

    Args:
        one: The program.
        recorded: The window that is looked at.
        undivided: Another, that may hold the same products in one piece.
    """
    timed = recorded.timed(one.key) if recorded else None
    for ring in one.rings:
        times = list(timed.of(ring)) if timed else []
        yield _loop(one, ring, times, _efficiency(ring, times, [w for w in (recorded, undivided) if w])), ring


def _loop(one: Walked, ring: Ring, times: list[Times], efficiency: float | None) -> Loop:
    module, rounds, fits = one.module, ring.rounds, matches(ring)
    worst = max(times, key=lambda t: t.permutes(ring.permutes)[1], default=None)
    told = worst if worst and _complete(ring, worst) else None
    permute_ns, exposed_ns, _ = told.permutes(ring.permutes) if told else (None, None, None)
    named = ring.walk.events[ring.permutes[0]].rows[0]
    return Loop(
        name=f"{module.name}/{module.instruction_name[named]}",
        program=module.name,
        form="loop" if len({ring.walk.events[n].rows for n in ring.products}) < len(ring.products) else "unrolled",
        travels="sums" if ring.sums_travel else "blocks",
        devices=ring.size,
        rounds=1 + max(r.number for r in rounds),
        permutes=len(ring.permutes),
        permute_bytes=sum(bytes_sent(ring, number) for number in ring.permutes),
        per_round=tuple(_round(ring, r, told, fits=fits[r.product]) for r in rounds),
        participant=told.participant if told else None,
        executions=told.executions(ring.products) if told else None,
        permute_ns=permute_ns,
        exposed_ns=exposed_ns,
        matmul_ns=sum(told.product_ns(number) for number in ring.products) if told else None,
        chunk_efficiency_ratio=efficiency,
        verdict=_verdict(ring, told),
        source=module.source[named],
    )


def _complete(ring: Ring, times: Times) -> bool:
    return all(times.spans.get(number) for number in (*ring.products, *ring.permutes))


def _round(ring: Ring, one: Round, times: Times | None, *, fits: bool | None) -> RoundTime:
    module, by = ring.walk.module, one.arrived_by
    part = used(ring, one)
    permute_ns, exposed_ns, _ = times.permutes([by]) if times and by is not None else (None, None, None)
    return RoundTime(
        number=one.number,
        product=module.instruction_name[ring.walk.events[one.product].rows[0]],
        permute=None if by is None else module.instruction_name[ring.walk.events[by].rows[0]],
        block=tuple(one.block.tolist()),
        begins=None if part is None else tuple(part[0].tolist()),
        length=None if part is None else part[1],
        matches=fits,
        sent_bytes=0 if by is None else bytes_sent(ring, by),
        permute_ns=permute_ns,
        exposed_ns=exposed_ns,
        product_ns=times.product_ns(one.product) if times else None,
    )


def _verdict(ring: Ring, times: Times | None) -> str:
    if times is None:
        return SOURCE_ORDER
    return verdict(*times.permutes(ring.permutes), sum(times.product_ns(r.product) for r in ring.rounds if r.hides))


def _efficiency(ring: Ring, times: list[Times], where: list[Recorded]) -> float | None:
    """Time of one undivided product of as many FLOPs over that of the ring's; None where none was executed."""
    module = ring.walk.module
    flops = [own_flops(module, ring.walk.events[number].rows[0]) for number in ring.products]
    per_execution = [
        sum(t.product_ns(n) for n in ring.products) / t.executions(ring.products) for t in times if _complete(ring, t)
    ]
    if None in flops or not per_execution:
        return None
    pieces = 1 if ring.sums_travel else len({id(_resident(ring, n)) for n in ring.products})
    whole = [ns for one in where for ns in _whole_products(one, sum(f or 0 for f in flops) // pieces)]
    chunks_ns = median(per_execution) / pieces
    return median(whole) / chunks_ns if whole and chunks_ns else None


def _resident(ring: Ring, number: int) -> object:
    term = ring.product(number).term
    return (term.right if ring.moving(term)[1] else term.left).origin


def _whole_products(recorded: Recorded, flops: int) -> Iterator[float]:
    """Mean durations per participant of products with so many FLOPs that belong to no ring."""
    for key, module in recorded.programs.items():
        one = walked(key, module)
        if one is None:
            continue
        timed, cut = recorded.timed(key), {number for ring in one.rings for number in ring.products}
        for number, event in enumerate(one.walk.events):
            if isinstance(event, Product) and number not in cut and own_flops(module, event.rows[0]) == flops:
                found = timed.of_row(*event.rows)
                yield from (sum(span.duration_ns for span in spans) / len(spans) for spans in found.values())


def candidates_of(one: Walked, recorded: Recorded | None) -> Iterator[Candidate]:
    """Collectives of a program next to a product, with what cutting that product could save.

    A collective over n members would be hidden behind all rounds of the product but one: what is left of its transfer
    is transfer - min(transfer, product * (n - 1) / n), and replay tells what that saves.

    Args:
        one: The program.
        recorded: The window that is looked at.
    """
    timed = recorded.timed(one.key) if recorded else None
    for pair in () if one.long else pairs(one.walk, one.rings):
        module, exposed_ns, matmul_ns, saved_ns = one.module, None, None, None
        if recorded and timed:
            exposed_ns, matmul_ns, saved_ns = _gain(recorded, timed, pair)
        yield Candidate(
            collective=module.instruction_name[pair.collective],
            operation=base_opcode(module.opcode[pair.collective]),
            matmul=module.instruction_name[pair.product[0]],
            program=module.name,
            members=pair.members,
            bytes=_largest(module, pair.collective),
            exposed_ns=exposed_ns,
            matmul_ns=matmul_ns,
            saved_ns=saved_ns,
            source=module.source[pair.collective],
        )


def _gain(recorded: Recorded, timed: Timed, pair: Pair) -> tuple[int | None, int | None, int | None]:
    """Exposed time and time of the product on the participant with most exposed, and what replay saves."""
    calls, products = timed.of_row(pair.collective), timed.of_row(*pair.product)
    both = [who for who in calls if who in products]
    if not both:
        return None, None, None
    exposed = {who: exposed_of(calls[who], recorded.compute.get(who)) for who in both}
    worst = max(both, key=lambda who: exposed[who])
    hidden = {
        span.event: _mean_ns(products[who]) * (pair.members - 1) // pair.members for who in both for span in calls[who]
    }
    return exposed[worst], sum(span.duration_ns for span in products[worst]), replayed_saving(recorded.graph, hidden)


def _mean_ns(spans: list[Span]) -> int:
    return sum(span.duration_ns for span in spans) // len(spans)


def _largest(module: HloModule, row: int) -> int | None:
    """The larger of what goes into a collective and of what comes out."""
    rows = (row, *module.operands_of(row).tolist())
    size_bytes = max(shape_bytes(without_layout(leaf)) for at in rows for leaf in leaves(module.shape[at]))
    return size_bytes if size_bytes >= 0 else None
