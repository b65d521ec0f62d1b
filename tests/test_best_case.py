"""Best cases worked out by hand: no communication, perfect balance, no launch overhead; and what bounds a prediction."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from handmade import MS, Builder, steps, two_cards, two_rounds
from hypothesis import given
from hypothesis import strategies as st
from kineto_builder import COMPUTE, NCCL, KinetoTrace, opened

from traceflow.analyzers.best_case import BestCase
from traceflow.analyzers.changes import Scale
from traceflow.cli import main
from traceflow.run import Run
from traceflow.trace.model import Kind

if TYPE_CHECKING:
    import pytest

SILENT, EVEN, QUICK = "no communication", "perfect balance", "no launch overhead"


def best(run: Run, step: int | None = None) -> dict[str, BestCase]:
    return {case.title: case for case in run.savings(step=step).best_cases}


def predicted(run: Run, step: int | None = None) -> dict[str, tuple[int | None, bool]]:
    cases = best(run, step).items()
    return {title: (case.prediction.predicted_ns if case.prediction else None, case.exact) for title, case in cases}


def test_two_rounds() -> None:
    # Each card works 12 ms. Balanced, both reach each collective after 6 ms: 6 + 1 + 6 + 1.
    assert predicted(two_rounds().run()) == {SILENT: (12 * MS, True), EVEN: (14 * MS, True), QUICK: (22 * MS, True)}


def test_two_cards() -> None:
    # 4 and 9 ms of work become 6.5 each before a transfer of 2.
    assert predicted(two_cards().run()) == {SILENT: (9 * MS, True), EVEN: (8_500_000, True), QUICK: (11 * MS, True)}


def test_launch_calls_and_latencies_go_together() -> None:
    # Steps of 10, 12 and 17 ms, 1 ms of launch call in each and 1 ms of gap between two.
    assert predicted(steps(10, 12, 17).run())[QUICK] == (41 * MS - 3 * MS, True)
    assert predicted(steps(10, 12, 17).run(), step=1)[QUICK] == (11 * MS, True)


def test_what_comes_after_the_last_collective_stays_as_it_is() -> None:
    builder = Builder()
    a, b = (builder.lane(rank, "stream 7", 0) for rank in range(2))
    builder.event(a, 0, 40, "work", Kind.COMPUTE)
    builder.collective([a, b], [40, 0], 50, "all-reduce")
    builder.event(b, 50, 90, "tail", Kind.COMPUTE)
    # Card b has no work that could be scaled, so that a's 40 ns become 20 and b arrives at once.
    assert predicted(builder.run())[EVEN] == (20 + 10 + 40, True)


def test_on_ranks_without_devices_the_host_is_balanced() -> None:
    builder = Builder()
    threads = [builder.lane(rank, "main") for rank in range(2)]
    builder.event(threads[0], 0, 30, "forward", Kind.HOST)
    builder.event(threads[1], 0, 90, "forward", Kind.HOST)
    builder.collective(threads, [30, 90], 100, "gloo:all_reduce")
    assert predicted(builder.run())[EVEN] == (70, True)


def test_participants_of_unequal_groups_are_balanced_within_each(tmp_path: Path) -> None:
    # Ranks 0 and 1 reduce after 10 and 20 us; 2 and 3 after 40 and 60.
    cards = []
    for rank, work in enumerate((10_000, 20_000, 40_000, 60_000)):
        group = "low" if rank < 2 else "high"
        card = KinetoTrace(rank=rank, world_size=4, groups={"low": (0, 1), "high": (2, 3)})
        card.kernel("gemm", 1_000, 1_000 + work, call=(0, 500), stream=COMPUTE)
        end = 22_000 if rank < 2 else 62_000
        card.all_reduce(1_000 + work, end, sequence=1, group=group, stream=COMPUTE, call=(500, 900))
        cards.append(card)
    case = best(opened(tmp_path, *cards))[EVEN]
    assert case.prediction is not None
    assert case.prediction.predicted_ns == 1_000 + 50_000 + 1_000


def test_without_all_ranks_balance_is_unknown_and_nothing_is_exact(tmp_path: Path) -> None:
    card = KinetoTrace(rank=0, world_size=2)
    card.kernel("gemm", 1_000, 9_000, call=(0, 500), stream=COMPUTE)
    card.all_reduce(9_000, 20_000, sequence=1, stream=COMPUTE, call=(500, 900))
    run = opened(tmp_path, card)
    assert predicted(run) == {SILENT: (9_000, False), EVEN: (None, False), QUICK: (19_000, False)}
    reasons = {gap.what: gap.reason for gap in run.savings().skipped}
    assert "1 communication calls stay whole" in reasons["/result/best_cases/1/predicted_ns"]
    assert "1 communication calls stay whole" in reasons["/result/best_cases/*/low_ns"]
    assert [case.to_dict()["high_ns"] for case in run.savings().best_cases] == [None, None, None]


def test_a_bound_says_between_which_lengths_it_lies(tmp_path: Path) -> None:
    # The kernel after the long one may have had up to 96 us of launch latency hidden behind it.
    card = KinetoTrace()
    card.kernel("long", 10_000, 110_000, call=(0, 4_000))
    card.kernel("after", 110_000, 160_000, call=(14_000, 18_000))
    run = opened(tmp_path, card)
    found = run.what_if(Scale("long", 0))
    assert (found.low_ns, found.predicted_ns, found.high_ns, found.exact) == (64_000, 64_000, 160_000, False)
    sure = run.what_if(Scale("after", 0))
    assert (sure.low_ns, sure.predicted_ns, sure.high_ns, sure.exact) == (110_000, 110_000, 110_000, True)


def test_nothing_bounds_what_hangs_on_absent_ranks(tmp_path: Path) -> None:
    card = KinetoTrace(rank=0, world_size=2)
    card.all_reduce(9_000, 20_000, sequence=1, stream=NCCL, call=(500, 900))
    found = opened(tmp_path, card).what_if(Scale("@host", 0))
    assert (found.low_ns, found.high_ns, found.exact) == (None, None, False)
    assert [gap.what for gap in found.skipped] == ["/result/low_ns", "/result/high_ns"]


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(1, 50), st.integers(1, 9)), min_size=1, max_size=6))
def test_rounds_of_two_follow_the_formulas(rounds: list[tuple[int, int, int]]) -> None:
    builder = Builder()
    lanes = [builder.lane(rank, "stream 7", 0) for rank in range(2)]
    now = 0
    for *work, transfer in rounds:
        for lane, length in zip(lanes, work, strict=True):
            builder.event(lane, now, now + 2 * length, "work", Kind.COMPUTE)
        arrivals = [now + 2 * length for length in work]
        now = max(arrivals) + transfer
        builder.collective(lanes, arrivals, now, "all-reduce")
    alone = max(2 * sum(one for one, _, _ in rounds), 2 * sum(two for _, two, _ in rounds))
    even = sum(one + two + transfer for one, two, transfer in rounds)
    assert predicted(builder.run()) == {SILENT: (alone, True), EVEN: (even, True), QUICK: (now, True)}


def test_the_command_line_tells_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    card = KinetoTrace()
    card.kernel("long", 10_000, 110_000, call=(0, 4_000))
    card.kernel("after", 110_000, 160_000, call=(14_000, 18_000))
    path = str(card.write(tmp_path / "rank0.json"))
    assert main(["show", "savings", path, "--format", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)["result"]["best_cases"]
    assert [(row["title"], row["predicted_ns"], row["exact"]) for row in rows] == [
        (SILENT, 160_000, True),
        (EVEN, 160_000, True),
        (QUICK, 150_000, True),
    ]
    assert main(["show", "savings", path]) == 0
    assert "At best (us, modelled by replay)" in capsys.readouterr().out
    assert main(["what-if", path, "--scale", "long=0"]) == 0
    assert "between        64.00 and 160.00 us" in capsys.readouterr().out
