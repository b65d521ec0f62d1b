"""Two runs side by side: results, plan, step time with its spread, and claims."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from damaged import DAMAGED
from handmade import Builder, steps
from hypothesis import given
from hypothesis import strategies as st

import traceflow as tf
from traceflow.analyzers.comparison import Diff
from traceflow.analyzers.comparison import diff as compare
from traceflow.analyzers.comparison.claims import read_claim
from traceflow.analyzers.comparison.numerics import numerics
from traceflow.analyzers.comparison.observation import QUANTITIES
from traceflow.analyzers.comparison.plan import plan_changes, plan_of_programs
from traceflow.analyzers.comparison.sample import Sample, change, change_interval
from traceflow.asking import diff, observation
from traceflow.cli import main
from traceflow.errors import TraceflowError
from traceflow.evidence import Evidence
from traceflow.expression import ExpressionError
from traceflow.outputs import recorded_outputs
from traceflow.program.hlo_module_text import read_hlo_text
from traceflow.result import Provenance
from traceflow.run import Run
from traceflow.trace.model import Kind, LaneKind

US = 1_000


def sample(values: Sequence[float], *, exact: bool = False) -> Sample:
    return Sample(tuple(values), Provenance.MEASURED, exact=exact)


def training(*lengths_us: int, transfer_us: int = 10, payload: int = 1 << 20) -> Run:
    """Steps of two cards that compute and reduce: each as long as given, launched by a host that waits."""
    build = Builder()
    cards = [build.lane(0, "stream 7", device) for device in range(2)]
    thread = build.lane(0, "main")
    now = 0
    for number, length in enumerate(lengths_us):
        end = now + length * US
        for card in cards:
            build.event(card, now + US, end - transfer_us * US, "gemm", Kind.COMPUTE, 2 * number + 1)
        build.event(thread, now, now + US, "launch", Kind.CALL, 2 * number + 1)
        build.collective(cards, [end - transfer_us * US] * 2, end, "nccl", payload)
        build.mark(number, 0, now, end)
        now = end + US
    return build.run("made")


# ---- samples ----


def test_the_spread_leaves_out_one_in_ten_on_either_side_where_there_are_ten() -> None:
    few, many = sample([1, 2, 3, 4, 100]), sample([1000, *range(1, 9), -1000])
    assert (few.low, few.high, few.median) == (1, 100, 3)
    assert (many.low, many.high) == (1, 8)


@pytest.mark.parametrize(
    ("a", "b", "significant"),
    [
        ([100, 101, 102, 103, 104], [90, 91, 92, 93, 94], True),
        ([100, 101, 102, 103, 104], [103, 104, 105, 106, 107], False),  # they overlap
        ([100, 101, 102, 103, 104], [105, 106, 107, 108, 109], False),  # apart, and by no more than the spread
        ([100, 101, 102, 103], [50, 51, 52, 53], None),  # too few to tell
        ([100, 200], [150, 180], False),  # within each other, however few
        ([7], [7], False),
        ([0, 0, 0, 0, 0], [5, 5, 5, 5, 5], True),
    ],
)
def test_a_difference_inside_the_spread_is_none(a: list[float], b: list[float], significant: object) -> None:
    assert change(sample(a), sample(b)).significant is significant
    assert change(sample(b), sample(a)).significant is significant


@given(
    st.lists(st.integers(1, 10**9), min_size=1, max_size=40), st.lists(st.integers(1, 10**9), min_size=1, max_size=40)
)
def test_it_is_significant_exactly_where_the_change_exceeds_the_spread(a: list[int], b: list[int]) -> None:
    found = change(sample(a, exact=True), sample(b, exact=True))
    assert found.change_ratio is not None
    assert found.spread_ratio is not None
    if abs(abs(found.change_ratio) - found.spread_ratio) > 1e-9:
        assert found.significant == (abs(found.change_ratio) > found.spread_ratio)


def noisy(rng: np.random.Generator, count: int, memory: float) -> list[float]:
    """Step times with 5 % of noise, each taking a part of its deviation from the one before."""
    deviation, values = rng.normal(), []
    for _ in range(count):
        values.append(100 * np.exp(0.05 * deviation))
        deviation = memory * deviation + (1 - memory**2) ** 0.5 * rng.normal()
    return values


@pytest.mark.parametrize(
    ("count", "memory", "at_most"), [(5, 0.0, 0.005), (8, 0.5, 0.005), (20, 0.5, 0.005), (50, 0.8, 0.005)]
)
def test_two_runs_of_one_program_hardly_ever_differ(count: int, memory: float, at_most: float) -> None:
    rng = np.random.default_rng(8)
    pairs = [(noisy(rng, count, memory), noisy(rng, count, memory)) for _ in range(2000)]
    found = sum(bool(change(sample(a), sample(b)).significant) for a, b in pairs)
    assert found <= at_most * len(pairs)


@pytest.mark.parametrize("count", [5, 8, 20, 50])
def test_a_program_that_takes_a_third_longer_is_found(count: int) -> None:
    rng = np.random.default_rng(8)
    pairs = [(noisy(rng, count, 0), [1.33 * ns for ns in noisy(rng, count, 0)]) for _ in range(200)]
    assert sum(change(sample(a), sample(b)).significant is True for a, b in pairs) > 0.8 * len(pairs)


def test_the_interval_by_ranks_is_that_of_all_quotients_where_five_meet_five() -> None:
    # P(U < 1) = 1 / 252 is below half of a hundredth, P(U < 2) is not: nothing is cut but beyond the ends.
    assert change_interval([1, 1, 1, 1, 2], [4, 4, 4, 4, 8]) == (1.0, 7.0)
    assert change_interval([1, 1, 1, 1], [4, 4, 4, 4]) is None  # P = 1 / 70 already exceeds it
    assert change_interval([0, 1, 1, 1, 1], [4, 4, 4, 4, 4]) is None


@pytest.mark.parametrize("count", [6, 15, 30])
def test_the_interval_holds_the_true_change_as_often_as_it_says(count: int) -> None:
    rng = np.random.default_rng(3)
    held = 0
    for _ in range(400):
        interval = change_interval(noisy(rng, count, 0), [1.2 * ns for ns in noisy(rng, count, 0)])
        assert interval is not None
        held += interval[0] <= 0.2 <= interval[1]
    assert held >= 0.975 * 400  # of 99 % that are promised, less what 400 draws may miss


# ---- results ----


@pytest.mark.parametrize(
    ("a", "b", "difference"),
    [
        (np.arange(6.0), np.arange(6.0), None),
        (np.arange(6.0), np.arange(6.0) * (1 + 1e-6), None),
        (np.arange(6.0), np.arange(6.0) * 1.01, "other values"),
        (
            np.arange(6.0).reshape(2, 3),
            np.arange(6.0).reshape(2, 3).T,
            "the same values with the axes in the order (1, 0)",
        ),
        (np.arange(6.0).reshape(2, 3), np.arange(6.0), "the same values in another shape"),
        (np.arange(6.0), np.roll(np.arange(6.0), 2), "the same values in another order"),
        (np.arange(6.0), np.arange(5.0), "another shape"),
        (np.array([np.nan, 1.0]), np.array([np.nan, 1.0]), None),
        (np.array([np.nan, 1.0]), np.array([0.0, 1.0]), "other values"),
        (np.array([1, 2]), np.array([1.0, 2.0]), None),
        (np.array(["x"]), np.array(["x"]), "its values are no numbers that can be compared"),
        (np.zeros((0, 3)), np.zeros((0, 3)), None),
    ],
)
def test_outputs_differ_by_shape_order_and_value(a: Any, b: Any, difference: str | None) -> None:
    found = numerics({"y": a}, {"y": b})
    assert found.outputs[0].difference == difference
    assert found.same is (difference is None)


def test_a_tolerance_is_taken_and_an_output_of_one_run_alone_is_a_difference() -> None:
    a, b = {"y": np.array([100.0])}, {"y": np.array([101.0]), "z": np.array([1.0])}
    found = numerics(a, b, rtol=0.02)
    assert [(one.name, one.same, one.difference) for one in found.outputs] == [
        ("y", True, None),
        ("z", False, "a has no such output"),
    ]
    assert found.outputs[0].largest_absolute == 1.0
    assert not numerics(a, b, rtol=0.001).outputs[0].same


def test_outputs_are_read_from_the_files_of_all_ranks(tmp_path: Path) -> None:
    assert recorded_outputs(tmp_path) is None
    assert recorded_outputs(tmp_path / "none") is None
    np.savez(tmp_path / "rank00000.outputs.npz", y=np.ones(2))
    assert list(recorded_outputs(tmp_path) or ()) == ["y"]
    np.savez(tmp_path / "rank00001.outputs.npz", y=np.zeros(2))
    np.savez(tmp_path / "rank00001.routing.npz", r=np.zeros(2))
    assert list(recorded_outputs(tmp_path) or ()) == ["0/y", "1/y"]


@pytest.mark.parametrize("content", [b"", b"no archive", b"PK\x03\x04 cut short"])
def test_damaged_outputs_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "rank00000.outputs.npz").write_bytes(content)
    with pytest.raises(TraceflowError, match="TF103"):
        recorded_outputs(tmp_path)


@pytest.mark.parametrize("content", DAMAGED, ids=["packed", "huge", "single"])
def test_outputs_that_cannot_be_unpacked_or_held_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "rank00000.outputs.npz").write_bytes(content)
    with pytest.raises(TraceflowError, match="TF103"):
        recorded_outputs(tmp_path)


def test_pickled_outputs_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "rank00000.outputs.npz", y=np.array([{}], dtype=object))
    with pytest.raises(TraceflowError, match="TF103"):
        recorded_outputs(tmp_path)


# ---- plan ----

GATHERED = """HloModule gathered, is_scheduled=true, num_partitions=4
ENTRY main {
  a = f32[8,4]{1,0} parameter(0)
  w = f32[16,4]{1,0} parameter(1)
  all-gather = f32[8,16]{1,0} all-gather(a), channel_id=1, replica_groups={{0,1,2,3}}, dimensions={1}
  ROOT dot = f32[8,4]{1,0} dot(all-gather, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
"""


def plan_changed(other: str) -> list[tuple[str, str, int, int]]:
    trace = steps(3).trace()
    plans = [plan_of_programs(trace, {1: read_hlo_text(text, 1)}) for text in (GATHERED, other)]
    assert plans[0] is not None
    assert plans[1] is not None
    return [(row.aspect, row.what, row.a, row.b) for row in plan_changes(plans[0], plans[1])]


def test_names_of_instructions_are_no_part_of_a_plan() -> None:
    assert plan_changed(GATHERED) == []
    assert plan_changed(GATHERED.replace("all-gather =", "ag.7 =").replace("dot(all-gather", "dot(ag.7")) == []


def test_a_layout_a_group_and_a_shape_are() -> None:
    assert plan_changed(GATHERED.replace("w = f32[16,4]{1,0}", "w = f32[16,4]{0,1}")) == [
        ("layouts", "argument f32[16,4]{0,1}", 0, 1),
        ("layouts", "argument f32[16,4]{1,0}", 1, 0),
    ]
    assert plan_changed(GATHERED.replace("{{0,1,2,3}}", "{{0,2},{1,3}}")) == [
        ("collectives", "all-gather to f32[8,16] over {0,1,2,3}", 1, 0),
        ("collectives", "all-gather to f32[8,16] over {0,2},{1,3}", 0, 1),
    ]


def test_a_dependency_is_found_through_what_is_between() -> None:
    late = GATHERED.replace(
        "  ROOT dot = f32[8,4]{1,0} dot(all-gather",
        "  negated = f32[8,16]{1,0} negate(all-gather)\n  ROOT dot = f32[8,4]{1,0} dot(negated",
    )
    assert plan_changed(late) == [("instructions", "negate", 0, 1)]
    alone = GATHERED.replace("ROOT dot = f32[8,4]{1,0} dot(all-gather, w)", "ROOT dot = f32[8,4]{1,0} dot(a, w)")
    assert plan_changed(alone) == [("dependencies", "all-gather -> dot", 1, 0)]


# ---- the whole ----


def found_between(a: Run, b: Run, *claims: str) -> Diff:
    return compare(observation(a), observation(b), [read_claim(claim) for claim in claims])


def verdicts(found: Diff) -> list[str]:
    return [one.verdict.value for one in found.claims]


def test_a_run_compared_with_itself_differs_in_nothing() -> None:
    run = training(500, 520, 510, 530, 540)
    found = found_between(run, run)
    assert (found.verdict, found.plan_changes) == ("no difference", ())
    assert [one.name for one in found.quantities if one.change.significant is not False] == []


def test_the_time_of_communication_is_no_difference_of_two_programs() -> None:
    """311 us before, 244 us after, 224 us for the products alone: 20 us is nowhere, nor is 67 us."""
    runs = {ns: steps_of(ns) for ns in (311, 244, 224)}
    found = found_between(
        runs[311], runs[244], "less step time", "less exposed communication", "less removable transfer"
    )
    result = found.to_dict()
    step: Any = result["step_ns"]
    assert (step["a"], step["b"]) == (311_000, 244_000)
    assert step["a"] / step["b"] == pytest.approx(1.275, abs=1e-3)
    assert found.verdict == "faster"
    assert verdicts(found) == ["confirmed", "refuted", "refuted"]  # neither communicates
    told = json.dumps([result, found_between(runs[224], runs[244]).to_dict()])
    assert "20000" not in told
    assert "67000" not in told
    assert {one.name: one.median("a") for one in found.quantities}["exposed_ns"] == 0


def steps_of(length_us: int) -> Run:
    """Steps that only compute, each of one length."""
    build = Builder()
    thread, stream = build.lane(0, "main"), build.lane(0, "stream 7", 0)
    for number in range(6):
        now = number * 1_000_000
        build.event(thread, now, now + US, "launch", Kind.CALL, number + 1)
        build.event(stream, now + US, now + length_us * US, "gemm", Kind.COMPUTE, number + 1)
        build.mark(number, 0, now, now + length_us * US)
    return build.run("alone")


def test_claims_of_a_better_transfer() -> None:
    a = training(500, 520, 510, 530, 540, transfer_us=100)
    b = training(410, 430, 420, 440, 450, transfer_us=10, payload=1 << 18)
    claims = {
        "less exposed communication": "confirmed",
        "less step time": "undecided",  # by 18 %, where the spreads reach to within 12 % of each other
        "less all-reduce bytes": "confirmed",
        "same all-reduce calls": "confirmed",
        "no all-gather": "confirmed",
        "no all-reduce": "refuted",
        "more all-reduce bytes": "refuted",
        "exposed_share < 0.05": "confirmed",
        "a.exposed_share < 0.05": "refuted",
        "b.exposed_ns <= 0.2 * a.exposed_ns": "confirmed",
        "exposed_ns == 10 us": "confirmed",
        "less peak memory": "undecided",
        "same outputs": "undecided",
    }
    found = found_between(a, b, *claims)
    assert {one.claim: one.verdict.value for one in found.claims} | {"less step time": "undecided"} == claims
    reasons = {one.claim: one.evidence.get("reason") for one in found.claims}
    assert "no compiled program" in str(reasons["less peak memory"])
    assert "no outputs were recorded" in str(reasons["same outputs"])
    assert {finding.code for finding in found.findings} == {"TF282"}


def test_with_four_steps_a_claim_on_time_is_undecided_and_one_on_bytes_is_not() -> None:
    a, b = training(500, 520, 510, 530), training(100, 110, 120, 130, payload=1 << 18)
    found = found_between(a, b, "less step time", "less all-reduce bytes")
    assert verdicts(found) == ["undecided", "confirmed"]
    assert (found.verdict, found.step.change.significant) == ("unknown", None)
    assert "/result/step_ns/significant" in {gap.what for gap in found.skipped}


def test_without_steps_the_capture_is_compared_and_its_step_time_is_not_known() -> None:
    build = Builder()
    card = build.lane(0, "stream 7", 0)
    build.event(card, 0, 9_000, "gemm", Kind.COMPUTE)
    run = build.run("stepless")
    found = found_between(run, run, "same window ns")
    assert (found.verdict, found.step.a) == ("unknown", None)
    assert {"/result/step_ns/a", "/result/step_ns/b"} <= {gap.what for gap in found.skipped}
    assert verdicts(found) == ["undecided"]


def test_steps_that_overlap_are_compared_by_their_period() -> None:
    build = Builder()
    thread, stream = build.lane(0, "main"), build.lane(0, "stream 7", 0)
    for number in range(6):  # launched every 100 us, done 1 ms later
        build.event(thread, 100_000 * number, 100_000 * number + 1_000, "launch", Kind.CALL, number + 1)
        start = 1_000_000 + 100_000 * number
        build.event(stream, start, start + 90_000, "gemm", Kind.COMPUTE, number + 1)
        build.mark(number, 0, 100_000 * number, 100_000 * number + 2_000)
    run = build.run("ahead")
    found = found_between(run, run)
    assert (found.measure, found.step.median("a")) == ("period", 100_000)


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("less coffee", 5),
        ("exposed_shar < 0.05", 0),
        ("b.exposed_share < a.foo", 18),
        ("max(exposed_share) < 1", 0),
        ("exposed_share << 1", 15),
        ("less", 4),
        ("better step time", 7),
    ],
)
def test_a_mistake_in_a_claim_has_its_place(text: str, at: int) -> None:
    with pytest.raises(ExpressionError) as failure:
        read_claim(text)
    assert failure.value.at == at


@pytest.mark.parametrize("name", QUANTITIES)
def test_every_quantity_can_be_claimed_by_its_name(name: str) -> None:
    assert str(read_claim(f"less {name}").comparison.left) == f"b.{name}"
    assert str(read_claim(f"less {name.replace('_', '-')}").comparison.right) == f"a.{name}"


def test_more_than_the_programs_know_comes_from_the_trace() -> None:
    a, b = training(500, 500, 500, 500, 500), training(500, 500, 500, 500, 500, payload=1 << 18)
    found = found_between(a, b)
    assert [(row.aspect, row.a, row.b) for row in found.plan_changes] == [("collectives", 1, 0), ("collectives", 0, 1)]
    assert found.compared_aspects == ("collectives", "instructions")
    assert "shapes, layouts, dependencies" in next(
        gap.reason for gap in found.skipped if gap.what == "/result/plan_changes"
    )


def test_programs_are_preferred_where_both_have_them() -> None:
    run = steps(3, 3, 3, 3, 3).run()
    programmed = Run(Evidence(run.evidence.trace, {1: read_hlo_text(GATHERED, 1)}), ("a",))
    assert found_between(programmed, programmed).compared_aspects[0] == "shapes"


def on_virtual_devices(*lengths_us: int) -> Run:
    """Steps of one virtual device, a thread of the host, that executes a program."""
    build = Builder()
    thread, worker = build.lane(0, "main"), build.lane(0, "worker", 0, LaneKind.WORKER)
    now = 0
    for number, length in enumerate(lengths_us):
        build.event(thread, now, now + US, "launch", Kind.CALL, number + 1)
        build.event(worker, now + US, now + length * US, "dot", Kind.COMPUTE, number + 1)
        build.mark(number, 0, now, now + length * US)
        now += length * US + US
    return Run(Evidence(build.trace(), {1: read_hlo_text(GATHERED, 1)}), ("virtual",))


def test_the_same_program_on_virtual_devices_is_as_fast_as_the_host_is_free() -> None:
    quiet, busy = on_virtual_devices(500, 501, 502, 503, 504), on_virtual_devices(1500, 1501, 1502, 1503, 1504)
    found = found_between(quiet, busy, "more step time", "step_ns > 1 ms", "same live_peak_bytes")
    assert (found.verdict, found.step.change.significant) == ("unknown", None)
    assert [one.name for one in found.quantities if one.change.significant] == []
    assert verdicts(found)[:2] == ["undecided", "confirmed"]  # a claim on one run stands
    assert "virtual devices" in next(gap.reason for gap in found.skipped if gap.what == "/result/step_ns/significant")
    regrouped = read_hlo_text(GATHERED.replace("{{0,1,2,3}}", "{{0,2},{1,3}}"), 1)
    assert found_between(quiet, Run(Evidence(busy.evidence.trace, {1: regrouped}), ("b",))).verdict == "slower"
    assert found_between(training(*[500] * 5), training(*[900] * 5)).verdict == "slower"  # no virtual devices


def test_programs_alone_are_compared_by_their_plans(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [tmp_path / name for name in ("a.txt", "b.txt")]
    for file, text in zip(files, (GATHERED, GATHERED.replace("{{0,1,2,3}}", "{{0,2},{1,3}}")), strict=True):
        file.write_text(text)
    assert main(["diff", *map(str, files), "--claim", "less step time", "--format", "json"]) == 0
    result = json.loads(capsys.readouterr().out)["result"]
    assert [row["aspect"] for row in result["plan_changes"]] == ["collectives", "collectives"]
    assert (result["verdict"], result["step_ns"]["a"]) == ("unknown", None)
    assert "no trace" in result["claims"][0]["evidence"]["reason"]


# ---- front doors ----


def kineto(path: Path, *lengths_us: int) -> str:
    rows: list[dict[str, Any]] = []
    now = 1_000
    for step, length in enumerate(lengths_us):
        common = {"ph": "X", "pid": 40, "tid": 40, "ts": now}
        rows += [
            {**common, "cat": "user_annotation", "name": f"ProfilerStep#{step}", "dur": length, "args": {}},
            {**common, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "dur": 3, "args": {"correlation": step + 1}},
            {
                "ph": "X",
                "pid": 0,
                "tid": 7,
                "ts": now + 5,
                "dur": length - 10,
                "cat": "kernel",
                "name": "gemm",
                "args": {"correlation": step + 1, "device": 0, "stream": 7},
            },
        ]
        now += length + 50
    about = {"rank": 0, "world_size": 1, "backend": "nccl"}
    path.mkdir()
    content = {"schemaVersion": 1, "distributedInfo": about, "baseTimeNanoseconds": 10**18, "traceEvents": rows}
    (path / "rank0.json").write_text(json.dumps(content))
    return str(path)


def test_the_command_line_and_python_say_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = kineto(tmp_path / "a", 500, 510, 520, 510, 500)
    b = kineto(tmp_path / "b", 300, 310, 320, 310, 300)
    for folder, values in ((a, [1.0, 2.0]), (b, [2.0, 1.0])):
        np.savez(Path(folder) / "rank00000.outputs.npz", y=np.array(values))
    claim = ["--claim", "less step time", "--claim", "same outputs"]
    assert main(["diff", a, b, *claim, "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    result = document["result"]
    assert document["inputs"] == [a, b]
    assert document["request"]["claim"] == ["less step time", "same outputs"]
    assert [one["verdict"] for one in result["claims"]] == ["confirmed", "refuted"]
    assert result["verdict"] == "different results"
    assert result["numerics"]["outputs"][0]["difference"] == "the same values in another order"
    assert {finding["code"] for finding in document["findings"]} == {"TF281", "TF282"}
    assert tf.diff(a, b, ["less step time", "same outputs"]).to_dict() == result
    assert document["data_quality"]["events_kept"] == 2 * tf.open(a).trace.tally.kept


def test_text_tells_verdict_claims_and_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = kineto(tmp_path / "a", 500, 510, 520, 510, 500)
    b = kineto(tmp_path / "b", 300, 310, 320, 310, 300)
    assert main(["diff", a, b, "--claim", "b.step_ns < 0.8 * a.step_ns"]) == 0
    out = capsys.readouterr().out
    assert "B is faster: 505.000 us against 305.000 us a step" in out
    assert "confirmed: b.step_ns < 0.8 * a.step_ns" in out
    assert "Plan: the same collectives, instructions" in out


def test_exit_codes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = kineto(tmp_path / "a", 500)
    assert main(["diff", a, a]) == 0
    assert main(["diff", a, str(tmp_path / "none")]) == 1
    assert main(["diff", a]) == 2
    capsys.readouterr()
    assert main(["diff", a, a, "--claim", "less coffee < 3"]) == 2
    err = capsys.readouterr().err
    assert "less coffee < 3\n       ^" in err


def test_claims_are_read_before_any_run(tmp_path: Path) -> None:
    with pytest.raises(ExpressionError):
        diff(tmp_path / "none", tmp_path / "none", ["less coffee"])


@pytest.mark.parametrize("value", ["inf", "nan", "-1"])
@pytest.mark.parametrize("option", ["--atol", "--rtol"])
def test_tolerances_that_are_none_are_refused(option: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", "a", "b", f"{option}={value}"]) == 2
    assert option in capsys.readouterr().err
