"""The digest: every question at once, and never more than one can read."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from threading import Barrier
from typing import Any, ClassVar

import pandas as pd
import pytest
from handmade import Builder
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from sources import ROOT

import traceflow as tf
from traceflow.cli import main
from traceflow.cli.show import QUESTIONS
from traceflow.digest import digest
from traceflow.errors import TraceflowError
from traceflow.report.json import dumps, envelope
from traceflow.report.text import render
from traceflow.result import Finding, Json, Note, Provenance, Result, Severity, Skipped
from traceflow.run import Run
from traceflow.schemas import schema
from traceflow.trace.model import Kind

LIMIT_BYTES = 50_000
CASES = ROOT.parent / "shared" / "cases"
Capture = pytest.CaptureFixture[str]


@dataclass(frozen=True)
class Answered:
    """A result that says what it is told to."""

    kind: ClassVar[str] = "made"
    says: dict[str, Json] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    notes: tuple[Note, ...] = ()

    def to_dict(self) -> dict[str, Json]:
        return self.says

    def to_pandas(self) -> pd.DataFrame:
        return pd.DataFrame()


def finding(code: str, severity: Severity, cost_ns: int | None, **evidence: Json) -> Finding:
    """A finding with its evidence."""
    return Finding(
        code=code,
        severity=severity,
        title="a title",
        provenance=Provenance.MEASURED,
        suggestion="do something",
        cost_ns=cost_ns,
        evidence=evidence,
    )


def answering(result: Result) -> Callable[[], Result]:
    """A question that has this answer."""
    return lambda: result


def figures(result: Any, question: str = "one") -> Any:
    """What a digest says of one question."""
    return result.to_dict()["questions"][question]


def on_a_device() -> Run:
    """A call that launches a kernel, on one rank."""
    build = Builder()
    thread, stream = build.lane(0, "thread 1"), build.lane(0, "stream 7", 0)
    build.event(thread, 0, 3_000, "cudaLaunchKernel", Kind.CALL, 1)
    build.event(stream, 5_000, 105_000, "gemm", Kind.COMPUTE, 1)
    build.mark(0, 0, 0, 4_000)
    return build.run("runs/a")


def test_the_most_serious_findings_come_first_and_then_the_costliest() -> None:
    cheap = finding("TF201", Severity.WARNING, 5)
    dear = finding("TF202", Severity.WARNING, 7)
    loud = finding("TF203", Severity.ERROR, None)
    quiet = finding("TF204", Severity.INFO, 1_000)
    result = digest(
        {"one": answering(Answered(findings=(cheap, quiet))), "other": answering(Answered(findings=(dear, loud)))}
    )
    assert [one.code for one in result.findings] == ["TF203", "TF202", "TF201", "TF204"]
    assert [one.evidence["question"] for one in result.findings] == ["other", "other", "one", "one"]
    assert result.to_pandas()["code"].tolist() == ["TF203", "TF202", "TF201", "TF204"]


def test_what_two_questions_find_is_told_once_and_two_places_twice() -> None:
    here, there = (finding("TF401", Severity.INFO, 1, source=f"a.py:{line}", table=[1]) for line in (1, 2))
    result = digest(
        {"one": answering(Answered(findings=(here, there))), "other": answering(Answered(findings=(here,)))}
    )
    assert [dict(one.evidence) for one in result.findings] == [
        {"question": "one", "source": "a.py:1"},
        {"question": "one", "source": "a.py:2"},
    ]


def test_tables_keep_the_rows_that_cost_most() -> None:
    rows: list[Json] = [{"name": f"gemm{i}", "duration_ns": i} for i in range(100)]
    said = figures(digest({"one": answering(Answered({"makespan_ns": 4950, "segments": rows}))}))
    assert said["figures"]["makespan_ns"] == 4950
    assert [row["duration_ns"] for row in said["figures"]["segments"]] == [99, 98, 97, 96, 95, 94, 93, 92]
    assert said["left_out"] == {"/segments": 92}


def test_an_object_with_an_entry_for_each_rank_keeps_the_largest() -> None:
    by_rank: dict[str, Json] = {str(rank): rank for rank in range(1_000)}
    said = figures(digest({"one": answering(Answered({"by_rank_ns": by_rank}))}))
    assert sorted(said["figures"]["by_rank_ns"].values()) == list(range(968, 1_000))
    assert said["left_out"] == {"/by_rank_ns": 968}


def test_gaps_with_one_reason_are_one_and_point_into_the_digest() -> None:
    gaps = (Skipped("/result/a", "no record"), Skipped("/result/b", "no record"), Skipped("/result/c", "no clock"))
    note = Note("TF301", "assumed", ("/result/a",))
    result = digest(
        {
            "one": answering(Answered({"a": 1}, skipped=gaps, notes=(note,))),
            "other": answering(Answered({"a": None}, notes=(note,))),
            "third": answering(Answered({"b": 1}, notes=(note,))),
        }
    )
    assert result.skipped == (
        Skipped("/result/questions/one/figures", "no record"),
        Skipped("/result/questions/one/figures/c", "no clock"),
    )
    affected = ("/result/questions/one/figures/a", "/result/questions/other/figures/a")
    assert result.notes == (Note("TF301", "assumed", affected),)


def test_a_question_without_an_answer_has_its_reason_and_a_wrong_request_is_refused() -> None:
    def refuses(code: str) -> Callable[[], Result]:
        def ask() -> Result:
            raise TraceflowError(code, "cannot", "there is none", "record it")

        return ask

    result = digest({"one": refuses("TF122"), "other": answering(Answered())})
    assert result.to_dict()["unavailable"] == [
        {"question": "one", "code": "TF122", "reason": "there is none", "hint": "record it"}
    ]
    with pytest.raises(TraceflowError, match="TF111"):
        digest({"one": refuses("TF111")})


names = st.text(max_size=3_000)
trees = st.recursive(
    st.none() | st.integers(-(2**63), 2**63 - 1) | names,
    lambda inner: st.lists(inner, max_size=30) | st.dictionaries(names, inner, max_size=8),
    max_leaves=60,
)


@given(st.dictionaries(st.sampled_from("abcdefgh"), st.lists(trees, max_size=20)), st.integers(0, 200), names)
def test_a_digest_is_small_whatever_it_is_of(says: dict[str, Json], many: int, name: str) -> None:
    found = tuple(finding("TF201", Severity.INFO, i, name=name) for i in range(many))
    gaps = tuple(Skipped("/result/a", f"{name}{i}") for i in range(many))
    notes = tuple(Note("TF301", f"{name}{i}") for i in range(many))
    asked = {name: answering(Answered(says, found, gaps, notes)) for name in ("one", "other")}
    result, run = digest(asked), on_a_device()
    document = envelope(result, run)
    assert len(dumps(document).encode()) < LIMIT_BYTES
    left_out: Any = result.to_dict()["left_out"]
    assert len(result.findings) + left_out["findings"].get("TF201", 0) == many


def test_two_threads_answer_as_one_and_wait_for_each_other() -> None:
    met = Barrier(2, timeout=60)  # which one thread alone would never leave

    def meets(name: str) -> Callable[[], Result]:
        def ask() -> Result:
            met.wait()
            return Answered({"name": name})

        return ask

    names = ["first", "second", "third", "fourth"]
    told = digest({name: meets(name) for name in names})
    assert [of.to_dict() for of in told.answers.values()] == [{"name": name} for name in names]
    assert [*told.answers] == names


def test_of_several_wrong_requests_the_first_is_told() -> None:
    def raises(code: str, what: str) -> Callable[[], Result]:
        def ask() -> Result:
            raise TraceflowError(code, what, "why", "hint")

        return ask

    others = {f"more_{at}": raises("TF112", "another") for at in range(3)}
    asked = {
        "fine": answering(Answered()),
        "refused": raises("TF122", "none"),
        "one": raises("TF111", "this"),
        **others,
    }
    for side_by_side in (True, False):
        with pytest.raises(TraceflowError, match="this"):
            digest(asked, side_by_side=side_by_side)


def test_what_breaks_the_other_thread_is_raised() -> None:
    def breaks() -> Result:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        digest({"fine": answering(Answered()), "broken": breaks})


def test_wide_tables_of_every_question_give_way() -> None:
    row: Json = {f"text_{column}": "x" * 300 for column in range(6)}
    says: dict[str, Json] = {"makespan_ns": 1, **{f"table_{i}": [row] * 100 for i in range(5)}}
    result = digest({f"question_{i}": answering(Answered(says)) for i in range(12)})
    assert len(dumps(envelope(result, on_a_device())).encode()) < LIMIT_BYTES
    said = figures(result, "question_11")
    assert said["figures"]["makespan_ns"] == 1
    assert {len(said["figures"][f"table_{i}"]) + said["left_out"][f"/table_{i}"] for i in range(5)} == {100}


@pytest.mark.skipif(not CASES.exists(), reason="no cases beside the checkout")
@pytest.mark.parametrize("case", ["moe_hot_rank", "pipeline", "clocks_no_link"])
def test_a_case_is_digested_within_its_limit(case: str) -> None:
    run = tf.open(CASES / case / "traces")
    text = dumps(envelope(run.digest(), run, {"step": None}))
    document = json.loads(text)
    assert len(text.encode()) < LIMIT_BYTES
    assert [*Draft202012Validator(schema("all")).iter_errors(document)] == []
    whole = run.critical_path()
    assert document["result"]["questions"]["critical-path"]["figures"]["makespan_ns"] == whole.makespan_ns
    assert {one.code for one in whole.findings} <= {one["code"] for one in document["findings"]}


def test_a_job_of_many_workers_is_digested_within_its_limit(corpus: Callable[[str], Path]) -> None:
    run = tf.open(corpus("cluster/trace-ST.parquet"))
    assert len(dumps(envelope(run.digest(), run)).encode()) < LIMIT_BYTES


def test_every_question_of_the_command_line_is_in_it() -> None:
    asked = on_a_device().digest()
    assert {*asked.answers, *asked.refused} == QUESTIONS.keys() - {"all"}


def test_the_text_tells_findings_before_figures_and_once() -> None:
    run = on_a_device()
    dear = finding("TF202", Severity.WARNING, 7_000)
    result = digest({"critical-path": run.critical_path, "one": answering(Answered(findings=(dear,)))})
    text = render(envelope(result, run))
    assert text.count("TF202 warning: a title") == 1
    assert text.index("TF202 warning") < text.index("critical-path\n")
    assert "makespan 105.00 us" in text
    assert "by kind: compute 100.00 us, launch 5.00 us" in text


def test_programs_alone_say_what_they_can(corpus: Callable[[str], Path], capsys: Capture) -> None:
    source = str(corpus("hlo/conv3d_gpu.hlo.pb"))
    assert main(["show", "all", source]) == 0
    text = capsys.readouterr().out
    assert "summary, critical-path, communication, clocks, stragglers, savings, budget, moe:" in text
    assert "it holds no trace (TF122)" in text.replace("\n", " ")
    assert main(["show", "all", source, "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert "memory" in document["result"]["questions"]
