"""Collectives of XLA in two halves, a start and a done, are one collective with one wait and one transfer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from xla_files import Event, Kinds, Line, write, xspace

import traceflow
from traceflow.run import Run

US = 1_000_000  # ps
F32 = "f32[8]{0}"
START = f"%all-reduce-start.1 = {F32} all-reduce-start({F32} %p), replica_groups={{{{0,1}}}}, to_apply=%add"
DONE = f"%all-reduce-done.1 = {F32} all-reduce-done({F32} %all-reduce-start.1)"
FUSION = f"%fusion.1 = {F32} fusion({F32} %p), kind=kLoop, calls=%f"
KINDS = {START: Kinds("all-reduce-start.1"), DONE: Kinds("all-reduce-done.1"), FUSION: Kinds("fusion.1")}

Span = tuple[str, int, int]


def chip(*spans: Span) -> list[Line]:
    """One run of a program on a chip; spans in us, from and to."""
    module = Event("jit_f(1)", 0, 200 * US, {"run_id": 1})
    operations = [Event(name, start * US, (end - start) * US) for name, start, end in spans]
    return [Line("XLA Modules", [module]), Line("XLA Ops", operations)]


def run_of(folder: Path, *chips: Sequence[Span]) -> Run:
    planes = {f"/device:TPU:{device}": chip(*spans) for device, spans in enumerate(chips)}
    return traceflow.open(write(folder / "host.xplane.pb", xspace(planes, kinds=KINDS)))


def test_a_start_and_its_done_are_one_collective(tmp_path: Path) -> None:
    # Chip 0 starts at 10 us and chip 1 at 50. Chip 0 has nothing more to do from 30 us on, and is done at 70.
    one = [(START, 10, 11), (FUSION, 11, 30), (DONE, 30, 70)]
    two = [(FUSION, 0, 50), (START, 50, 51), (DONE, 51, 70)]
    answer = run_of(tmp_path, one, two).communication()
    assert not answer.unmatched
    (found,) = answer.collectives
    assert (found.op, found.last, found.payload_bytes) == ("all-reduce", (0, 1), 32)
    calls = [(c.arrival_ns, c.wait_ns, c.transfer_ns, c.end_ns, c.exposed_ns) for c in found.calls]
    assert calls == [(10_000, 40_000, 20_000, 70_000, 41_000), (50_000, 0, 20_000, 70_000, 20_000)]


def test_a_done_waits_for_the_other_start_and_not_for_the_other_done(tmp_path: Path) -> None:
    # Chip 0 is done at 70 us; chip 1 asks only at 120, when there is nothing to wait for.
    one = [(START, 10, 11), (FUSION, 11, 30), (DONE, 30, 70)]
    two = [(FUSION, 0, 50), (START, 50, 51), (FUSION, 51, 120), (DONE, 120, 121)]
    run = run_of(tmp_path, one, two)
    assert not run.dependencies.graph.contradicted
    (found,) = run.communication().collectives
    assert [(c.wait_ns, c.transfer_ns) for c in found.calls] == [(40_000, 20_000), (0, 71_000)]
    faster = run.what_if(traceflow.Scale("fusion", 0.5))
    assert faster.predicted_ns == 25_000 + 1_000 + 34_500 + 1_000


def test_the_path_leads_from_the_done_to_the_late_start(tmp_path: Path) -> None:
    one = [(START, 10, 11), (FUSION, 11, 30), (DONE, 30, 70), (FUSION, 70, 90)]
    two = [(FUSION, 0, 50), (START, 50, 51), (DONE, 51, 70)]
    segments = run_of(tmp_path, one, two).critical_path().segments
    told = list(zip(segments.device.tolist(), segments.kind, segments.duration_ns.tolist(), strict=True))
    assert told == [(1, "compute", 50_000), (0, "transfer", 20_000), (0, "compute", 20_000)]


def test_a_done_without_its_start_is_matched_with_nothing(tmp_path: Path) -> None:
    one = [(START, 10, 11), (FUSION, 11, 30), (DONE, 30, 70)]
    two = [(FUSION, 0, 50), (DONE, 51, 70)]
    answer = run_of(tmp_path, one, two).communication()
    assert not answer.collectives
    assert len(answer.unmatched) == 3


@pytest.mark.parametrize("order", [1, -1])
def test_rounds_follow_one_another(tmp_path: Path, order: int) -> None:
    def rounds(*starts: int) -> list[Span]:
        halves = [[(START, at, at + 1), (DONE, at + 5, 40 * (i + 1))] for i, at in enumerate(starts)]
        return [half for pair in halves[::order] for half in pair]

    answer = run_of(tmp_path, rounds(10, 50, 90), rounds(20, 45, 90)).communication()
    assert [[call.wait_ns for call in c.calls] for c in answer.collectives] == [[10_000, 0], [0, 5_000], [0, 0]]
