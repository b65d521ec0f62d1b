"""The analyzers against the simulator, on random programs of 2 to 8 ranks.

Every figure that traceflow gives of the files that a simulated run left is compared with what happened, and every
what-if with another run in which it was true. TRACEFLOW_ORACLE_PROGRAMS says how many programs without hidden
latency are tried; of each other kind, it is a part of them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from random import Random
from typing import NamedTuple

import numpy as np
import pytest
from oracle import exactly, origin_ns, recorded
from simulator.changes import lengthened, scaled
from simulator.engine import Done, Lane, Outcome, Piece, Span, simulate
from simulator.kineto import BASE_NS
from simulator.program import POINT_TO_POINT, Exchange, Kind, Part, Program, Step
from simulator.random_programs import Recipe, random_program
from simulator.script import Latencies

from traceflow.analyzers.changes import Drop, Scale, apply
from traceflow.run import Run

PROGRAMS = int(os.environ.get("TRACEFLOW_ORACLE_PROGRAMS", "24"))
SELECTORS = ("@compute", "@transfer", "@host", "@copy")
FACTORS = (0, 0.5, 0.9, 1.1, 2, 10)


def some(share: float) -> pytest.MarkDecorator:
    """Seeds, for a part of that many programs."""
    return pytest.mark.parametrize("seed", range(max(round(share * PROGRAMS), 1)))


class Case(NamedTuple):
    """A run as it was, and as traceflow read it."""

    outcome: Outcome
    run: Run
    rng: Random  # for what a test tries

    @property
    def program(self) -> Program:
        """What was run."""
        return self.outcome.program


class Opener:
    """Simulates the program of a seed and reads its files; keeps the last ones, which tests share."""

    def __init__(self, folder: Callable[[], Path]) -> None:
        self.folder = folder
        self.outcome = lru_cache(maxsize=100)(self._outcome)

    def __call__(self, seed: int, recipe: Recipe) -> Case:
        return Case(*self.outcome(seed, recipe), Random(seed))

    def _outcome(self, seed: int, recipe: Recipe) -> tuple[Outcome, Run]:
        outcome = simulate(random_program(seed, recipe))
        return outcome, recorded(outcome, self.folder(), packed=seed % 3 == 0, base_ns=BASE_NS if seed % 2 else 0)


@pytest.fixture(scope="session")
def case(tmp_path_factory: pytest.TempPathFactory) -> Opener:
    """The case of a seed and a recipe."""
    return Opener(lambda: tmp_path_factory.mktemp("traces"))


# Latencies follow everything: nothing hides, and every figure is exact.

VISIBLE = Recipe()


def what_ifs(case: Case, count: int) -> Iterator[tuple[str, float, list[int] | None]]:
    """Patterns, factors and ranks: of names at random, and every selector."""
    rng, names = case.rng, sorted({done.piece.name for done in case.outcome.pieces})
    patterns = [exactly(rng.choice(names)) for _ in range(count - len(SELECTORS))]
    for pattern in (*patterns, *SELECTORS):
        ranks = [rng.choice(case.program.ranks)] if rng.random() < 0.5 else None
        yield pattern, rng.choice(FACTORS), ranks


@some(1)
def test_a_window_is_as_long_as_the_run(case: Opener, seed: int) -> None:
    known = case(seed, VISIBLE)
    path, graph = known.run.critical_path(), known.run.dependencies.graph
    assert path.makespan_ns == known.outcome.makespan_ns
    ends = path.segments.start_ns + path.segments.duration_ns
    assert (path.segments.start_ns[1:] == ends[:-1]).all()
    assert path.segments.duration_ns.sum() == path.makespan_ns
    assert (graph.replay() == graph.time_ns).all()
    assert graph.contradicted == {}


@some(1)
def test_every_participant_waits_for_the_last_it_needs(case: Opener, seed: int) -> None:
    known = case(seed, VISIBLE)
    assert split(known.run, known.outcome) == attended(known.outcome, known.outcome.exchanges)
    assert known.run.communication().unmatched == ()


Splits = dict[tuple[str, int, int, int], tuple[int, int]]
"""Wait and transfer by group, rank, arrival and end."""


def split(run: Run, outcome: Outcome) -> Splits:
    """As traceflow says."""
    origin = origin_ns(outcome)
    return {
        (c.group, call.participant[0], call.arrival_ns + origin, call.end_ns + origin): (call.wait_ns, call.transfer_ns)
        for c in run.communication().collectives
        for call in c.calls
    }


def attended(outcome: Outcome, exchanges: Collection[Exchange]) -> Splits:
    """As it was, in the given collectives."""
    return {
        (exchange.group, rank, a.arrival_ns, a.end_ns): (a.last_ns - a.arrival_ns, a.end_ns - a.last_ns)
        for exchange in exchanges
        for rank, a in outcome.exchanges[exchange].items()
        if exchange.operation != POINT_TO_POINT
    }


@some(1)
def test_the_last_participant_is_named(case: Opener, seed: int) -> None:
    known = case(seed, VISIBLE)
    origin = origin_ns(known.outcome)
    latest = {}
    for exchange, attendances in known.outcome.exchanges.items():
        arrival_ns, rank = max((a.arrival_ns, -rank) for rank, a in attendances.items())
        latest[members_of(exchange, attendances.keys()), arrival_ns] = -rank
    for collective in known.run.communication().collectives:
        ranks = {call.participant[0] for call in collective.calls}
        arrival_ns = max(call.arrival_ns for call in collective.calls)
        assert collective.last[0] == latest[frozenset(ranks), arrival_ns + origin]


def members_of(exchange: Exchange, present: Collection[int]) -> frozenset[int]:
    """Who took part: all members."""
    assert set(present) == set(exchange.members)
    return frozenset(exchange.members)


@some(1)
def test_every_message_is_seen_at_both_ends(case: Opener, seed: int) -> None:
    known = case(seed, VISIBLE)
    assert received(known.run, known.outcome) == transferred(known.outcome)


def received(run: Run, outcome: Outcome) -> set[tuple[int, int, int, int]]:
    """Source, destination, when it was posted and when received, as traceflow says."""
    origin, messages = origin_ns(outcome), run.communication().messages
    return {(m.source[0], m.destination[0], m.posted_ns + origin, m.received_ns + origin) for m in messages}


def transferred(outcome: Outcome) -> set[tuple[int, int, int, int]]:
    """The same as it was."""
    seen = set()
    for exchange, attendances in outcome.exchanges.items():
        if exchange.operation == POINT_TO_POINT:
            source, destination = exchange.members
            seen.add((source, destination, attendances[source].arrival_ns, attendances[destination].end_ns))
    return seen


@some(1)
def test_a_prediction_comes_true(case: Opener, seed: int) -> None:
    known = case(seed, VISIBLE)
    for pattern, factor, ranks in what_ifs(known, 10):
        predicted = known.run.what_if(Scale(pattern, factor), ranks=ranks).predicted_ns
        truth = simulate(known.program, scaled(pattern, factor, ranks)).makespan_ns
        assert predicted == pytest.approx(truth, abs=1), (pattern, factor, ranks)


@some(1)
def test_what_can_be_removed_is_gone_in_a_run_without_it(case: Opener, seed: int) -> None:
    known = case(seed, VISIBLE)
    communication, baseline_ns = known.run.communication(), known.outcome.makespan_ns
    free = scaled("@transfer", 0)
    assert communication.removable_transfer_ns == baseline_ns - simulate(known.program, free).makespan_ns
    alone_ns = simulate(known.program, free, rendezvous=False).makespan_ns
    assert communication.removable_communication_ns == baseline_ns - alone_ns
    unbound_ns = simulate(known.program, rendezvous=False).makespan_ns
    assert known.run.what_if(Drop("@rendezvous")).predicted_ns == unbound_ns


@some(1)
def test_slack_is_how_much_longer_a_piece_may_take(case: Opener, seed: int) -> None:
    known = case(seed, VISIBLE)
    slack, pieces = known.run.critical_path(slack=True).slack, pieces_by_place(known.outcome)
    assert slack is not None
    rows = [i for i in range(len(slack.start_ns)) if slack.slack_ns[i] >= 0]
    for i in known.rng.sample(rows, min(6, len(rows))):
        done = pieces.get((int(slack.rank[i]), slack.lane[i], slack.name[i], int(slack.start_ns[i])))
        if done is not None:
            for extra_ns in (0, 777):
                longer = lengthened(done.piece.lane, done.piece.place, int(slack.slack_ns[i]) + extra_ns)
                assert simulate(known.program, longer).makespan_ns == known.outcome.makespan_ns + extra_ns


def pieces_by_place(outcome: Outcome) -> dict[tuple[int, str, str, int], Done]:
    """Pieces that take time, by rank, lane, name and start; those that share these are left out."""
    found: dict[tuple[int, str, str, int], list[Done]] = {}
    for done in outcome.pieces:
        lane = done.piece.lane
        key = lane.rank, str(lane.number), done.piece.name, done.start_ns - origin_ns(outcome)
        found.setdefault(key, []).append(done)
    return {key: same[0] for key, same in found.items() if len(same) == 1 and same[0].end_ns > same[0].start_ns}


# Evidence that is not there.


@some(0.5)
def test_collectives_without_numbers_are_told_apart_by_their_order(case: Opener, seed: int, tmp_path: Path) -> None:
    outcome = case(seed, VISIBLE).outcome
    run = recorded(outcome, tmp_path, sequence_numbers=False)
    assert split(run, outcome) == attended(outcome, outcome.exchanges)


@some(0.5)
@pytest.mark.parametrize("numbered", [True, False])
def test_a_lost_event_shifts_no_other(case: Opener, seed: int, tmp_path: Path, *, numbered: bool) -> None:
    whole, rng = case(seed, VISIBLE).outcome, Random(seed)
    parts = [span for span in whole.spans if isinstance(span.what, Part)]
    lost = rng.sample(parts, min(rng.randint(1, 3), len(parts)))
    outcome = replace(whole, spans=[span for span in whole.spans if span not in lost])
    run = recorded(outcome, tmp_path, sequence_numbers=numbered)
    incomplete = {span.what.exchange for span in lost if isinstance(span.what, Part)}
    expected = attended(whole, whole.exchanges.keys() - incomplete)
    found = split(run, outcome)
    assert found == expected if numbered else found.items() <= expected.items()
    assert received(run, outcome) <= transferred(whole)


@some(0.5)
@pytest.mark.parametrize("numbered", [True, False])
def test_of_ranks_that_are_not_there_nothing_is_said(
    case: Opener, seed: int, tmp_path: Path, *, numbered: bool
) -> None:
    whole, rng = case(seed, VISIBLE).outcome, Random(seed)
    ranks = set(rng.sample(whole.program.ranks, rng.randint(1, len(whole.program.ranks) - 1)))
    outcome = replace(whole, spans=[span for span in whole.spans if span.lane.rank in ranks])
    run = recorded(whole, tmp_path, sequence_numbers=numbered, ranks=ranks)
    present = {exchange for exchange in whole.exchanges if ranks.issuperset(exchange.members)}
    assert split(run, outcome) == attended(whole, present)
    absent = [span for span in outcome.spans if isinstance(span.what, Part) and span.what.exchange not in present]
    assert len(run.communication().unmatched) == len(absent)


# Steps.

STEPS = Recipe(steps=(2, 3))


@some(0.5)
def test_a_step_is_what_is_launched_between_its_marks(case: Opener, seed: int) -> None:
    known = case(seed, STEPS)
    origin = origin_ns(known.outcome)
    for step in steps_of(known.outcome):
        start_ns, spans = launched_in(known.outcome, step)
        window = known.run.critical_path(step=step).window
        assert (window.start_ns, window.end_ns) == (start_ns - origin, max(span.end_ns for span in spans) - origin)


@some(0.5)
def test_a_prediction_for_a_step_comes_true(case: Opener, seed: int) -> None:
    known = case(seed, STEPS)
    for step in steps_of(known.outcome):
        start_ns, spans = launched_in(known.outcome, step)
        end_ns = max(span.end_ns for span in spans)
        own = {done.piece[:2] for done in known.outcome.pieces if any(within(done, span) for span in spans)}
        for (name, rank), places in inside(known, start_ns, end_ns):
            factor = known.rng.choice(FACTORS)
            predicted = known.run.what_if(Scale(exactly(name), factor), ranks=[rank], step=step).predicted_ns
            other = simulate(known.program, of_places(places, scaled(exactly(name), factor)))
            truth = max(done.end_ns for done in other.pieces if done.piece[:2] in own) - start_ns
            assert predicted == pytest.approx(truth, abs=1), (step, name, rank, factor)


def steps_of(outcome: Outcome) -> list[int]:
    """The numbers of the marked steps."""
    return sorted({span.what.number for span in outcome.spans if isinstance(span.what, Step)})


def launched_in(outcome: Outcome, step: int) -> tuple[int, list[Span]]:
    """The earliest mark of a step, and what hosts begin between its marks, with what that launches."""
    marks = {s.lane.rank: s for s in outcome.spans if isinstance(s.what, Step) and s.what.number == step}
    host = [s for s in outcome.spans if not s.lane.on_device and not isinstance(s.what, Step)]
    host = [s for s in host if marks[s.lane.rank].start_ns <= s.start_ns < marks[s.lane.rank].end_ns]
    calls = {(s.lane.rank, s.correlation) for s in host if s.correlation}
    work = [s for s in outcome.spans if s.lane.on_device and (s.lane.rank, s.correlation) in calls]
    return min(mark.start_ns for mark in marks.values()), host + work


def within(done: Done, span: Span) -> bool:
    """Whether a span covers a piece of its lane."""
    return done.piece.lane == span.lane and span.start_ns <= done.start_ns and done.end_ns <= span.end_ns


def inside(known: Case, start_ns: int, end_ns: int) -> list[tuple[tuple[str, int], set[tuple[Lane, int]]]]:
    """A few names and ranks of which every piece that touches a window lies in it, and these pieces."""
    touching: dict[tuple[str, int], list[Done]] = {}
    for done in known.outcome.pieces:
        if done.end_ns >= start_ns and done.start_ns <= end_ns:
            touching.setdefault((done.piece.name, done.piece.lane.rank), []).append(done)
    whole = {
        key: {done.piece[:2] for done in pieces}
        for key, pieces in touching.items()
        if all(done.start_ns >= start_ns and done.end_ns <= end_ns for done in pieces)
    }
    return known.rng.sample(list(whole.items()), min(3, len(whole)))


def of_places(places: Collection[tuple[Lane, int]], change: Callable[[Piece], int]) -> Callable[[Piece], int]:
    """A change of some pieces only."""
    return lambda piece: change(piece) if piece[:2] in places else piece.duration_ns


# Latencies may hide: what is called exact is so, and the truth is where the analysis says that it can be.

HIDDEN = Recipe(Latencies(visible=False, hidden=True))
BOTH = Recipe(Latencies(visible=True, hidden=True))


@some(0.5)
def test_what_is_called_exact_comes_true(case: Opener, seed: int) -> None:
    known = case(seed, BOTH)
    assert known.run.critical_path().makespan_ns == known.outcome.makespan_ns
    for pattern, factor, ranks in what_ifs(known, 12):
        prediction = known.run.what_if(Scale(pattern, factor), ranks=ranks)
        truth = simulate(known.program, scaled(pattern, factor, ranks)).makespan_ns
        if prediction.exact:
            assert prediction.predicted_ns == pytest.approx(truth, abs=1), (pattern, factor, ranks)


@some(0.5)
def test_the_truth_lies_between_the_earliest_and_the_latest_that_latencies_allow(case: Opener, seed: int) -> None:
    known = case(seed, HIDDEN)
    graph = known.run.dependencies.graph
    launches = [("@launch", factor, None) for factor in (0, 0.5, 3, 10)]
    for pattern, factor, ranks in (*what_ifs(known, 8), *launches):
        change = Scale(pattern, factor)
        supposed = apply(known.run.trace, graph, [change], ranks=None if ranks is None else frozenset(ranks))
        bounds = graph.replay_bounds(work_ns=supposed.work_ns, delay=supposed.delay, cut=supposed.cut)
        low_ns, high_ns = (graph.end_of(times_ns) - graph.start_ns for times_ns in bounds)
        truth = simulate(known.program, scaled(pattern, factor, ranks)).makespan_ns
        assert low_ns - 1 <= truth <= high_ns + 1, (pattern, factor, ranks)
        assert low_ns == high_ns or not known.run.what_if(change, ranks=ranks).exact


# Clocks.

APART_NS, DRIFT_PPB, JITTER_NS = 5_000_000, 20_000, 3_000


@some(0.25)
def test_offsets_are_found_to_the_ns_where_collectives_end_together(case: Opener, seed: int) -> None:
    known = case(seed, Recipe(clocks_ns=APART_NS))
    clocks = known.run.clocks()
    assert clocks.offset_ns == {rank: offset_ns(known, rank) for rank in known.program.ranks}
    assert clocks.residual_ns == 0
    if clocks.unaligned == ():
        assert known.run.critical_path().makespan_ns == known.outcome.makespan_ns


@some(0.25)
def test_offsets_are_found_within_the_jitter_of_the_ends(case: Opener, seed: int) -> None:
    known = case(seed, Recipe(clocks_ns=APART_NS, jitter_ns=JITTER_NS))
    for rank, found in known.run.clocks().offset_ns.items():
        truth = offset_ns(known, rank)
        assert (found is None) == (truth is None)
        assert found is None or truth is None or abs(found - truth) <= JITTER_NS * len(known.program.ranks)


@some(0.25)
def test_clocks_that_drift_are_on_time_at_both_ends(case: Opener, seed: int) -> None:
    known = case(seed, Recipe(clocks_ns=APART_NS, drift_ppb=DRIFT_PPB, steps=(3, 3), phases=(8, 14)))
    clocks, drifted_ns = known.run.clocks(), 2 * DRIFT_PPB * known.outcome.end_ns // 1_000_000_000
    for rank in known.program.ranks:
        found = clocks.offset_ns[rank]
        assert found is None or abs(found - (offset_ns(known, rank) or 0)) <= drifted_ns + 1


def offset_ns(known: Case, rank: int) -> int | None:
    """How far a rank's clock is ahead of that of rank 0 at first, None where no collective links them."""
    program, linked = known.program, {known.program.host(0)}
    together = [
        {program.host(member) for member in exchange.members}
        for exchange in known.outcome.exchanges
        if exchange.is_symmetric and exchange.operation != POINT_TO_POINT
    ]
    for _ in program.ranks:
        linked |= {host for hosts in together if hosts & linked for host in hosts}
    if program.host(rank) not in linked:
        return None
    return program.clock(rank).offset_ns - program.clock(0).offset_ns


# Stragglers.

EVEN = Recipe(even=True)
EVEN_APART = replace(EVEN, clocks_ns=APART_NS, drift_ppb=DRIFT_PPB, jitter_ns=JITTER_NS)
CAUSES = {Kind.COMPUTE: "compute", Kind.HOST: "host"}
kinds = pytest.mark.parametrize("kind", CAUSES)


def planted(even: Case, kind: Kind) -> tuple[Outcome, Piece]:
    """The run of equal ranks with one name much slower on one of them, and such a piece."""
    rank = even.rng.choice(even.program.ranks)
    mine = [done.piece for done in even.outcome.pieces if done.piece.lane.rank == rank and done.piece.kind is kind]
    mine = [piece for piece in mine if piece.duration_ns and not piece.name.startswith("cuda")]
    late = even.rng.choice(mine)
    total_ns = sum(piece.duration_ns for piece in mine if piece.name == late.name)
    factor = 1 + 2 * even.outcome.makespan_ns / total_ns
    return simulate(even.program, scaled(exactly(late.name), factor, {rank})), late


@some(0.5)
@kinds
def test_a_planted_straggler_comes_first_and_costs_what_it_cost(
    case: Opener, seed: int, kind: Kind, tmp_path: Path
) -> None:
    even = case(seed, EVEN)
    outcome, late = planted(even, kind)
    ranking = recorded(outcome, tmp_path).stragglers().ranking
    assert (ranking[0].rank, ranking[0].name, ranking[0].cause) == (late.lane.rank, late.name, CAUSES[kind])
    named = [done.piece.lane for done in outcome.pieces if done.piece.name == late.name]
    assert ranking[0].lane in {str(lane.number) for lane in named if lane.rank == late.lane.rank}
    assert ranking[0].cost_ns == pytest.approx(outcome.makespan_ns - even.outcome.makespan_ns, abs=1)
    assert {row.rank for row in ranking} == {late.lane.rank}  # the others only wait


@some(0.25)
@kinds
def test_a_planted_straggler_comes_first_where_clocks_differ_too(
    case: Opener, seed: int, kind: Kind, tmp_path: Path
) -> None:
    even = case(seed, EVEN_APART)
    outcome, late = planted(even, kind)
    run = recorded(outcome, tmp_path)
    if run.clocks().unaligned == ():
        ranking = run.stragglers().ranking
        assert (ranking[0].rank, ranking[0].name, ranking[0].cause) == (late.lane.rank, late.name, CAUSES[kind])
        assert ranking[0].cost_ns == pytest.approx(outcome.makespan_ns - even.outcome.makespan_ns, rel=0.05)
        assert all(row.cost_ns < 0.01 * outcome.makespan_ns for row in ranking if row.rank != late.lane.rank)


@some(0.25)
def test_equal_ranks_have_no_straggler(case: Opener, seed: int) -> None:
    assert case(seed, EVEN).run.stragglers().ranking == ()


def test_the_programs_hold_everything_that_is_tested() -> None:
    outcomes = [simulate(random_program(seed)) for seed in range(20)]
    exchanges = [exchange for outcome in outcomes for exchange in outcome.exchanges]
    assert len({exchange.operation for exchange in exchanges}) == 10
    assert {len(exchange.splits) > 0 for exchange in exchanges} == {False, True}
    assert np.unique([len(outcome.program.threads) for outcome in outcomes]).tolist() == [2, 3, 4, 6, 8]
    seen = {type(span.what).__name__ for outcome in outcomes for span in outcome.spans}
    assert {"Kernel", "Part", "BlockingCopy", "StreamWait", "Synchronise", "Step"} <= seen
