"""When the rounds of a product ran, in traces written by hand: what is hidden, what is exposed, and what it is called."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from handmade import MS, Builder
from jsonschema import Draft202012Validator
from kineto_builder import KinetoTrace, opened

import traceflow
from traceflow.analyzers.collective_matmul import CollectiveMatmul
from traceflow.evidence import Evidence
from traceflow.program.hlo_module_text import read_hlo_text
from traceflow.program.module import HloModule
from traceflow.report.json import dumps, envelope
from traceflow.report.text import render
from traceflow.run import Run
from traceflow.schemas import schema
from traceflow.trace.canonical import canonical
from traceflow.trace.model import HloEvents, Kind, LaneKind, Trace
from traceflow.trace.untraced import untraced

Schedule = Mapping[str, tuple[float, float]]
"""Start and end of each instruction in ms, the same on all devices."""


def windowed(permute: Callable[[str, str], str]) -> HloModule:
    """Two devices: each multiplies its own block of A, then that of the other, with the rows of W that belong to it."""
    return read_hlo_text(
        f"""HloModule jit_windowed, is_scheduled=true, num_partitions=2
ENTRY %e (a: f32[8,4], w: f32[8,16]) -> f32[8,16] {{
  %a = f32[8,4]{{1,0}} parameter(0), sharding={{devices=[1,2]<=[2]}}
  %w = f32[8,16]{{1,0}} parameter(1), sharding={{devices=[1,2]<=[2]}}
  %device = u32[] partition-id()
  %own_table = s32[2]{{0}} constant({{0, 4}})
  %other_table = s32[2]{{0}} constant({{4, 0}})
  %zero = s32[] constant(0)
  %own_cut = s32[1]{{0}} dynamic-slice(%own_table, %device), dynamic_slice_sizes={{1}}
  %own = s32[] reshape(%own_cut)
  %other_cut = s32[1]{{0}} dynamic-slice(%other_table, %device), dynamic_slice_sizes={{1}}
  %other = s32[] reshape(%other_cut)
  {permute("%a", "%b")}
  %rows.0 = f32[4,16]{{1,0}} dynamic-slice(%w, %own, %zero), dynamic_slice_sizes={{4,16}}
  %dot.0 = f32[8,16]{{1,0}} dot(%a, %rows.0), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  %rows.1 = f32[4,16]{{1,0}} dynamic-slice(%w, %other, %zero), dynamic_slice_sizes={{4,16}}
  %dot.1 = f32[8,16]{{1,0}} dot(%b, %rows.1), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  ROOT %sum = f32[8,16]{{1,0}} add(%dot.0, %dot.1)
}}""",
        7,
    )


def synchronous(source: str, target: str) -> str:
    return f"{target} = f32[8,4]{{1,0}} collective-permute({source}), source_target_pairs={{{{0,1}},{{1,0}}}}"


def asynchronous(source: str, target: str) -> str:
    start = (
        f"%start = (f32[8,4]{{1,0}}, f32[8,4]{{1,0}}) collective-permute-start({source}), "
        "source_target_pairs={{0,1},{1,0}}"
    )
    return f"{start}\n  {target} = f32[8,4]{{1,0}} collective-permute-done(%start)"


def traced(module: HloModule, schedule: Schedule, *, runs: int = 1) -> Run:
    """A trace in which each device executes instructions by a schedule, again every 100 ms."""
    build = Builder()
    for device in range(2):
        compute = build.lane(0, "compute", device, LaneKind.LINE)
        network = build.lane(0, "network", device, LaneKind.LINE)
        for run in range(runs):
            for name, (start, end) in schedule.items():
                sends = name in {"b", "start"}
                kind = Kind.COMMUNICATION if sends else Kind.COMPUTE
                at = [int((moment + 100 * run) * MS) for moment in (start, end)]
                build.event(network if sends else compute, at[0], at[1], name, kind)
    return Run(Evidence(_joined(build, module), {7: module}), ("handmade",))


def _joined(build: Builder, module: HloModule) -> Trace:
    trace = canonical(build.trace())
    events = np.arange(len(trace.events))
    rows = [module.instruction_name.index(trace.strings[code]) for code in trace.events.name.tolist()]
    run = trace.events.start_ns // (100 * MS)
    hlo = HloEvents(events.astype(np.int32), np.full(len(events), 7), np.array(rows, np.int32), run)
    return replace(trace, hlo=hlo, format="xspace")


HIDDEN = {"b": (0, 8), "dot.0": (0, 10), "dot.1": (10, 20), "sum": (20, 21)}
IN_TURN = {"dot.0": (0, 10), "b": (10, 18), "dot.1": (18, 28), "sum": (28, 29)}
PARTLY = {"b": (0, 8), "dot.0": (2, 12), "dot.1": (12, 22), "sum": (22, 23)}
SHORT = {"b": (0, 8), "dot.0": (0, 1), "dot.1": (8, 9), "sum": (9, 10)}


@pytest.mark.parametrize(
    ("schedule", "exposed", "verdict", "code"),
    [
        (HIDDEN, 0, "hidden", []),
        (IN_TURN, 8, "decomposed but not hidden", ["TF264"]),
        (PARTLY, 2, "decomposed but not hidden", ["TF264"]),
        (SHORT, 7, "chunks too small", ["TF265"]),
    ],
)
def test_a_verdict_follows_what_ran_beside_what(
    schedule: Schedule, exposed: int, verdict: str, code: list[str]
) -> None:
    result = traced(windowed(synchronous), schedule).collective_matmul()
    (loop,) = result.loops
    assert (loop.permute_ns, loop.exposed_ns) == (8 * MS, exposed * MS)
    assert loop.overlapped_share == 1 - exposed / 8
    assert loop.verdict == verdict
    assert [finding.code for finding in result.findings] == code
    assert [finding.cost_ns for finding in result.findings] == [exposed * MS] * len(code)


def test_each_round_has_its_times_and_its_rows() -> None:
    (loop,) = traced(windowed(synchronous), PARTLY, runs=3).collective_matmul().loops
    first, second = loop.per_round
    assert (first.block, first.begins, first.permute, first.permute_ns) == ((0, 1), (0, 4), None, None)
    assert (second.block, second.begins, second.permute, second.matches) == ((1, 0), (4, 0), "b", True)
    assert (second.permute_ns, second.exposed_ns, second.overlapped_ns) == (24 * MS, 6 * MS, 18 * MS)
    assert (first.product_ns, second.product_ns) == (30 * MS, 30 * MS)
    assert (loop.executions, loop.matmul_ns, loop.permute_bytes) == (3, 60 * MS, 8 * 4 * 4)


def test_an_asynchronous_permute_lasts_from_its_start_to_its_end() -> None:
    schedule = {"start": (0, 1), "dot.0": (1, 9), "b": (9, 12), "dot.1": (12, 20), "sum": (20, 21)}
    (loop,) = traced(windowed(asynchronous), schedule).collective_matmul().loops
    assert (loop.permutes, loop.permute_ns, loop.exposed_ns) == (1, 12 * MS, 4 * MS)
    assert [one.matches for one in loop.per_round] == [True, True]
    assert loop.permute_bytes == 8 * 4 * 4


def whole(collective: str) -> HloModule:
    """The same product in one piece."""
    return read_hlo_text(
        f"""HloModule jit_whole, is_scheduled=true, num_partitions=2
ENTRY %e (a: f32[8,4], w: f32[8,16]) -> f32[8,16] {{
  %a = f32[8,4]{{1,0}} parameter(0), sharding={{devices=[1,2]<=[2]}}
  %w = f32[8,16]{{1,0}} parameter(1), sharding={{devices=[1,2]<=[2]}}
  {collective}
}}""",
        7,
    )


GATHER = """%b = f32[8,8]{1,0} all-gather(%a), replica_groups={{0,1}}, dimensions={1}
  %t = f32[8,8]{0,1} copy(%b)
  ROOT %dot.0 = f32[8,16]{1,0} dot(%t, %w), lhs_contracting_dims={1}, rhs_contracting_dims={0}"""
REDUCE = """%cut = f32[4,16]{1,0} slice(%w), slice={[0:4], [0:16]}
  %dot.0 = f32[8,16]{1,0} dot(%a, %cut), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT %b = f32[8,16]{1,0} all-reduce(%dot.0), replica_groups={{0,1}}"""


def test_the_undivided_product_tells_what_cutting_costs() -> None:
    undivided = traced(whole(GATHER), {"b": (0, 10), "dot.0": (10, 26)})
    run = traced(windowed(synchronous), HIDDEN)
    (loop,) = run.collective_matmul(undivided=undivided).loops
    assert loop.chunk_efficiency_ratio == 16 / 20
    alone = run.collective_matmul()
    assert alone.loops[0].chunk_efficiency_ratio is None
    assert "/result/loops/*/chunk_efficiency_ratio" in {skipped.what for skipped in alone.skipped}


@cache
def gathered() -> CollectiveMatmul:
    return traced(whole(GATHER), {"b": (0, 10), "dot.0": (10, 26)}).collective_matmul()


def test_a_gather_before_a_product_could_be_hidden_behind_half_of_it() -> None:
    (one,) = gathered().candidates
    assert (one.collective, one.operation, one.matmul, one.members) == ("b", "all-gather", "dot.0", 2)
    assert (one.exposed_ns, one.matmul_ns) == (10 * MS, 16 * MS)
    assert one.saved_ns == 8 * MS  # one of two rounds of the product runs beside the transfer of the other's block
    assert one.bytes == 8 * 8 * 4
    assert [finding.code for finding in gathered().findings] == ["TF266"]


def test_a_reduction_after_a_product_is_a_candidate_too() -> None:
    (one,) = traced(whole(REDUCE), {"dot.0": (0, 16), "b": (16, 20)}).collective_matmul().candidates
    assert (one.operation, one.exposed_ns, one.saved_ns) == ("all-reduce", 4 * MS, 4 * MS)


def test_a_ring_is_no_candidate() -> None:
    assert traced(windowed(synchronous), HIDDEN).collective_matmul().candidates == ()


@pytest.mark.parametrize("program", [windowed(synchronous), whole(GATHER)], ids=["ring", "gather"])
def test_what_is_told_keeps_to_its_schema(program: HloModule) -> None:
    run = traced(program, {"b": (0, 8), "dot.0": (0, 10)})
    alone = Run(Evidence(untraced(), run.programs), ("program",))
    validator = Draft202012Validator(schema("collective-matmul"))
    for asked in (run, alone):
        document = json.loads(dumps(envelope(asked.collective_matmul(), asked)))
        assert [error.message for error in validator.iter_errors(document)] == []
        assert len(document["result"]["loops"]) + len(document["result"]["candidates"]) == 1


def test_a_terminal_shows_the_rounds_of_the_device_with_most_exposed() -> None:
    run = traced(windowed(synchronous), PARTLY)
    lines = render(envelope(run.collective_matmul(), run), width=100).splitlines()
    at = lines.index("Rounds of device 0 (ms)")
    assert lines[at - 2].startswith("0:0, 1 execution: permutes 8,000.000 us, exposed 2,000.000 us (25.0 %)")
    assert [line.split() for line in lines[at + 3 : at + 5]] == [
        ["0", "0", "0:4", "yes", "0", "B", "10.000", "dot.0"],
        ["1", "1", "4:8", "yes", "128", "B", "8.000", "2.000", "10.000", "dot.1"],
    ]


# ---- operators ----

SHAPES = {"Input Dims": [[64, 64], [64, 64]], "Input type": ["float", "float"], "Concrete Inputs": ["", ""]}


def ring_of_operators(folder: Path, *, sums: bool = False, beside: bool = True) -> Run:
    """Three cards: each sends to the one before it twice, beside or before its products of 10 us."""
    cards = [KinetoTrace(rank=rank, world_size=3) for rank in range(3)]
    for card in cards:
        starts = range(0, 60_000, 20_000)
        for turn, at in enumerate(starts):
            card.host("aten::mm", at + 1_000, at + 2_000, arguments=SHAPES)
            card.kernel("gemm", at + 5_000, at + 15_000, call=(at + 1_200, at + 1_800))
            if turn < 2:
                issued, begin = at + (3_000 if sums else 200), at + (7_000 if beside else 15_000)
                before, after, end = (card.rank - 1) % 3, (card.rank + 1) % 3, begin + 5_000
                card.send(begin, end, to=before, call=(issued, issued + 100), stream=20, elements=1000)
                card.receive(begin, end, source=after, call=(issued + 200, issued + 300), stream=21, elements=1000)
    return opened(folder, *cards)


def test_blocks_are_followed_through_messages(tmp_path: Path) -> None:
    result = ring_of_operators(tmp_path).collective_matmul()
    (loop,) = result.loops
    assert (loop.form, loop.travels, loop.rounds, loop.permutes, loop.devices) == ("operators", "blocks", 3, 2, 3)
    assert [one.block for one in loop.per_round] == [(0, 1, 2), (1, 2, 0), (2, 0, 1)]
    assert {one.matches for one in loop.per_round} == {None}
    assert (loop.permute_ns, loop.exposed_ns, loop.matmul_ns) == (10_000, 0, 30_000)
    assert loop.verdict == "hidden"
    assert loop.permute_bytes == 2 * 4000
    assert "/result/loops/*/per_round/*/rows" in {skipped.what for skipped in result.skipped}


def test_transfers_between_products_are_exposed(tmp_path: Path) -> None:
    (loop,) = ring_of_operators(tmp_path, beside=False).collective_matmul().loops
    assert (loop.permute_ns, loop.exposed_ns, loop.verdict) == (10_000, 10_000, "decomposed but not hidden")


def test_sums_that_travel_begin_with_a_product(tmp_path: Path) -> None:
    (loop,) = ring_of_operators(tmp_path, sums=True).collective_matmul().loops
    assert loop.travels == "sums"
    assert [one.block for one in loop.per_round] == [(1, 2, 0), (2, 0, 1), (0, 1, 2)]


def test_a_product_that_waits_for_a_gather_is_a_candidate(tmp_path: Path) -> None:
    cards = [KinetoTrace(rank=rank, world_size=2) for rank in range(2)]
    for card in cards:
        card.collective("_allgather_base", 5_000, 15_000, sequence=1, call=(1_000, 2_000), elements=256)
        card.stream_wait(3_000, card.record_event(2_500, stream=20), stream=7)
        card.kernel("sm90_gemm", 15_000, 31_000, call=(4_000, 5_000))
    (one,) = opened(tmp_path, *cards).collective_matmul().candidates
    assert (one.operation, one.matmul, one.program, one.members) == ("all-gather", "sm90_gemm", None, 2)
    assert (one.exposed_ns, one.matmul_ns, one.saved_ns) == (10_000, 16_000, 8_000)
    assert one.bytes == 2 * 256 * 4  # both parts


def test_an_operator_that_does_both_is_named(tmp_path: Path) -> None:
    card = KinetoTrace()
    card.host("symm_mem::fused_all_gather_matmul", 0, 9_000)
    card.kernel("gemm", 4_000, 20_000, call=(1_000, 2_000))
    result = opened(tmp_path, card).collective_matmul()
    (loop,) = result.loops
    assert (loop.form, loop.executions, loop.exposed_ns) == ("fused", 1, None)
    assert loop.verdict == "source order only, no evidence of overlap"


def test_products_without_messages_are_no_ring(tmp_path: Path) -> None:
    card = KinetoTrace()
    card.host("aten::mm", 0, 9_000, arguments=SHAPES)
    assert opened(tmp_path, card).collective_matmul().to_dict()["loops"] == []


@pytest.mark.parametrize(("layout", "form", "first"), [("gather", "ring", 0), ("scatter", "scatter_ring", 1)])
def test_rounds_that_pytorch_recorded_are_followed(tmp_path: Path, layout: str, form: str, first: int) -> None:
    pytest.importorskip("torch", reason="the workload is PyTorch's")
    from traceflow.collectors.workloads.ring_matmul_torch import record_ring_matmul

    record_ring_matmul(tmp_path, layout=layout, processes=3, size=(24, 24, 24), steps=2)
    (loop,) = traceflow.open(tmp_path / form).collective_matmul().loops
    assert (loop.rounds, loop.permutes, loop.devices, loop.executions) == (3, 2, 3, 2)
    assert [one.block for one in loop.per_round] == [
        tuple((rank + turn + first) % 3 for rank in range(3)) for turn in range(3)
    ]
    assert loop.permute_ns is not None
