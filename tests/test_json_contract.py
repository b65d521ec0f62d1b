"""The JSON that scripts rely on: every output against its schema, and the small cases against their known answers."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from handmade import Builder
from jsonschema import Draft202012Validator
from sources import ROOT

from traceflow.analyzers.changes import Drop, Scale
from traceflow.asking import check, diff
from traceflow.cli import main
from traceflow.intent.plan import ParallelPlan, plan_step
from traceflow.intent.split import Layer, compare_split
from traceflow.report.json import dumps, envelope, epoch_text
from traceflow.result import Note, Result, Tally
from traceflow.run import Run
from traceflow.schemas import KINDS, OTHERS, schema
from traceflow.trace.model import Kind, LaneKind

CASES = ROOT.parent / "shared" / "cases"
VERBS = {("show", "summary"), ("show", "critical-path"), ("show", "communication"), ("what-if", "TRACES")}


def problems(document: Any) -> list[str]:
    """What the schema of its kind finds wrong with an output."""
    validator = Draft202012Validator(schema(document["kind"]))
    return [f"{error.json_path}: {error.message}" for error in validator.iter_errors(document)]


def figures(value: Any, name: str = "") -> Iterator[tuple[str, object]]:
    """Every number of an output with the key it stands under, those of an object of durations included."""
    if isinstance(value, dict):
        for key, item in value.items():
            inherits = name.endswith("_ns") and not key.endswith(("_ratio", "measure", "significant"))
            yield from figures(item, name if inherits else key)
    elif isinstance(value, list):
        for item in value:
            yield from figures(item, name)
    else:
        yield name, value


def inexact(document: Any) -> list[tuple[str, object]]:
    """Durations, times and sizes that are no integers."""
    exact = ("_ns", "_bytes")
    return [(key, v) for key, v in figures(document) if key.endswith(exact) and v is not None and type(v) is not int]


def on_two_devices() -> Run:
    """One host that launches on two devices, an all-reduce between them, and one step."""
    build = Builder()
    host, one, other = build.lane(0, "thread 1"), build.lane(0, "stream 7", 0), build.lane(0, "stream 7", 1)
    build.event(host, 0, 3_000, "cudaLaunchKernel", Kind.CALL, 1)
    build.event(one, 5_000, 105_000, "gemm", Kind.COMPUTE, 1)
    build.event(other, 5_000, 55_000, "gemm", Kind.COMPUTE)
    build.collective([one, other], [105_000, 55_000], 125_000, "nccl", 1 << 20)
    build.mark(0, 0, 0, 4_000)
    return build.run("runs/a")


def on_the_host() -> Run:
    """Host work alone."""
    build = Builder()
    thread = build.lane(0, "thread 1")
    build.event(thread, 0, 9_000, "outer", Kind.HOST)
    build.event(thread, 1_000, 4_000, "inner", Kind.HOST)
    return build.run("runs/host")


def results(run: Run) -> Iterator[Result]:
    """An answer to every question that has a schema."""
    yield run.digest()
    yield run.summary()
    yield run.critical_path(slack=True)
    yield run.critical_path()
    yield run.communication()
    yield run.clocks()
    yield run.stragglers()
    yield run.savings()
    yield run.memory()
    yield run.moe()
    yield run.padding()
    yield run.collective_matmul()
    yield run.sharding()
    yield run.budget()
    yield run.budget(hardware="h100")
    yield run.what_if(Scale("@transfer", 0.5), Drop("@rendezvous"))
    yield plan_step(ParallelPlan(world=2, ep=2))
    yield compare_split(Layer(rows=8, width=8, hidden=8, devices=8))
    yield diff(run, run, ["less step time", "exposed_share < 0.05", "same outputs"])
    yield check(run, ["exposed_share < 0.15", "makespan_ns <= 1.02 * baseline", "hot_expert_ratio < 2"], baseline=run)
    yield run.plan_check(plan_step(ParallelPlan(world=2, ep=2)))


@pytest.mark.parametrize("kind", [*KINDS, *OTHERS])
def test_a_schema_is_one_and_refers_to_nothing_outside(kind: str) -> None:
    whole = schema(kind)
    Draft202012Validator.check_schema(whole)
    known = {whole["$id"], *(part["$id"] for part in whole["$defs"].values())}
    referred = {value.partition("#")[0] for key, value in figures(whole) if key == "$ref" and isinstance(value, str)}
    assert referred - {""} <= known


def test_every_schema_file_is_published_under_its_kind() -> None:
    files = {path.stem for path in (ROOT / "traceflow" / "schemas").glob("*.json")}
    assert files == {*KINDS, *OTHERS, "envelope", "definitions"}
    with pytest.raises(ValueError, match="no schema of 'weather'"):
        schema("weather")


@pytest.mark.parametrize("run", [on_two_devices(), on_the_host()], ids=["devices", "host"])
def test_every_result_keeps_to_its_schema(run: Run) -> None:
    kinds = set()
    for result in results(run):
        document = json.loads(dumps(envelope(result, run)))
        assert problems(document) == []
        assert inexact(document) == []
        kinds.add(document["kind"])
    assert kinds == set(KINDS)


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (lambda d: d.pop("skipped"), "'skipped' is a required property"),
        (lambda d: d.update(schema_version=2), "1 was expected"),
        (lambda d: d.update(epoch="2026-11-29T12:00:00Z"), "does not match"),
        (lambda d: d["result"].pop("makespan_ns"), "'makespan_ns' is a required property"),
        (lambda d: d["result"]["segments"][0].update(duration_ns=1.5), "is not of type 'integer'"),
        (lambda d: d["result"]["segments"][0].update(kind="wait"), "is not one of"),
        (lambda d: d["result"]["by_kind_ns"].update(wait=1), "is not one of"),
        (lambda d: d["result"]["slack"][0].update(slack_ns=-1), "less than the minimum"),
        (lambda d: d["data_quality"].update(verdict="fine"), "is not one of"),
    ],
)
def test_the_schemas_notice(spoil: Any, complaint: str) -> None:
    run = on_two_devices()
    document = json.loads(dumps(envelope(run.critical_path(slack=True), run)))
    spoil(document)
    assert any(complaint in problem for problem in problems(document))


@pytest.mark.parametrize(
    ("epoch_ns", "text"),
    [
        (None, None),
        (0, "1970-01-01T00:00:00.000000000Z"),
        (1_796_040_000_000_000_000, "2026-11-30T12:00:00.000000000Z"),
        (1_796_040_000_123_456_789, "2026-11-30T12:00:00.123456789Z"),
        (-1, "1969-12-31T23:59:59.999999999Z"),
        (2**63 - 1, "2262-04-11T23:47:16.854775807Z"),
    ],
)
def test_an_epoch_is_written_to_the_nanosecond(epoch_ns: int | None, text: str | None) -> None:
    assert epoch_text(epoch_ns) == text


def test_an_unknown_epoch_has_its_reason() -> None:
    run = on_two_devices()
    document = envelope(run.summary(), run)
    assert document["epoch"] is None
    assert {"what": "/epoch", "reason": "the trace does not say when it was recorded"} in document["skipped"]  # type: ignore[operator]


def test_devices_that_are_threads_of_the_host_are_called_a_simulation() -> None:
    build = Builder()
    build.event(build.lane(0, "worker", 0, LaneKind.WORKER), 0, 9_000, "fusion", Kind.COMPUTE)
    simulated, real = build.run("cpu"), on_two_devices()
    documents = [json.loads(dumps(envelope(run.summary(), run))) for run in (simulated, real)]
    assert [[finding["code"] for finding in document["findings"]] for document in documents] == [["TF206"], []]


def test_the_tally_is_summed_and_its_reasons_kept() -> None:
    run = on_two_devices()
    note = Note("TF301", "rank assumed", ("/result/ranks",))
    tally = Tally(9, 6, {"nesting": 2}, {"marker": 2, "listener": 1}, (note,))
    evidence = replace(run.evidence, trace=replace(run.evidence.trace, tally=tally))
    document = json.loads(dumps(envelope(replace(run.summary(), notes=(note,)), Run(evidence, ("a",)))))
    assert document["data_quality"] == {
        "verdict": "limited",
        "reasons": ["rank assumed"],
        "events_read": 9,
        "events_kept": 6,
        "events_repaired": 2,
        "events_dropped": 3,
        "repaired_by_reason": {"nesting": 2},
        "dropped_by_reason": {"marker": 2, "listener": 1},
        "notes": [{"code": "TF301", "text": "rank assumed", "affects": ["/result/ranks"]}],
    }


def test_any_input_name_and_any_integer_can_be_written() -> None:
    run = on_two_devices()
    named = Run(run.evidence, ("a\udcff\n",))
    assert json.loads(dumps(envelope(named.summary(), named)))["inputs"] == ["a\\udcff\n"]
    assert dumps({"ns": 2**63 - 1, "share": float("nan")}) == '{"ns":9223372036854775807,"share":null}\n'


def expected() -> list[Path]:
    """The answers that the command line can give to cases of one rank."""
    files = sorted(CASES.glob("*/expected/*.json"))
    single = [file for file in files if len(list(file.parent.parent.glob("traces/*"))) == 1]
    return [file for file in single if tuple(json.loads(file.read_text())["args"][:2]) in VERBS]


def comparing() -> ModuleType:
    """The script beside the cases that knows how an answer is compared."""
    spec = importlib.util.spec_from_file_location("compare", CASES / "compare.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.skipif(not CASES.exists(), reason="no cases beside the checkout")
@pytest.mark.parametrize("file", expected(), ids=lambda file: f"{file.parent.parent.name}-{file.stem}")
def test_a_case_of_one_rank_is_answered(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    case = json.loads(file.read_text())
    traces = str(file.parent.parent / "traces")
    assert main([*(traces if word == "TRACES" else word for word in case["args"]), "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert problems(document) == []
    assert inexact(document) == []
    assert comparing().differ(case["result"], document["result"], "", 0) == []
