"""`traceflow plan`: text, JSON, and what is wrong with a command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator
from plans import asked

from traceflow.cli import main
from traceflow.schemas import schema

Capture = pytest.CaptureFixture[str]

LARGE = "--world 1024 --pp 8 --cp 2 --ep 64 --preset deepseek-v4-pro"
SMALL = "--world 8 --tp 2 --sp --ep 4 --hidden 8 --experts 8 --topk 2 --expert-hidden 8 --sequence 16"


@pytest.mark.parametrize(
    "words",
    [
        "--world 1024 --pp 8 --cp 2 --ep 64",
        LARGE,
        SMALL,
        f"{SMALL} --dispatcher allgather --optimizer distributed --balancing global --next-ep 2",
        f"{SMALL} --dispatcher flex --optimizer muon --virtual-experts 2 --dense-parameters 10",
        f"{SMALL} --experts 7",
        f"{SMALL} --sequence 5 --global-batch 7 --overlap-batches --overlap-shared-expert",
        "--preset moe-jax --capacity-factor 1.1 --latent 16 --egtp 1",
        "--world 3 --hidden 4 --experts 5 --topk 1 --expert-hidden 6 --sequence 7",
        *(f"--preset {name}" for name in ("moe-torch-ep2-edp2", "moe-torch-ep4", "moe-torch-etp2-ep2", "moe-jax")),
    ],
)
def test_every_answer_keeps_to_its_schema(words: str, capsys: Capture) -> None:
    document = asked(capsys, *words.split())
    assert [error.message for error in Draft202012Validator(schema("plan")).iter_errors(document)] == []
    assert document["kind"] == "plan"
    assert main(["plan", *words.split()]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("Plan: ")
    assert max(map(len, lines)) <= 80


def test_the_schema_notices(capsys: Capture) -> None:
    document = asked(capsys, *LARGE.split())
    document["result"]["payload"][0]["bytes"] = 1.5
    del document["result"]["micro_batches"]
    messages = [error.message for error in Draft202012Validator(schema("plan")).iter_errors(document)]
    assert any("'micro_batches' is a required property" in message for message in messages)
    assert len(messages) == 2


def test_what_was_said_is_the_input(capsys: Capture) -> None:
    document = asked(capsys, *LARGE.split())
    assert document["inputs"] == ["preset deepseek-v4-pro", "world 1024", "pp 8", "cp 2", "ep 64"]
    assert document["request"] == {"preset": "deepseek-v4-pro", "world": 1024, "pp": 8, "cp": 2, "ep": 64}
    assert {"what": "/epoch", "reason": "there is no trace"} in document["skipped"]
    assert document["data_quality"]["events_read"] == 0


def test_problems_are_findings(capsys: Capture) -> None:
    document = asked(capsys, "--preset", "moe-jax", "--world", "6", "--ep", "3", "--global-batch", "6")
    (problem,) = document["result"]["problems"]
    (finding,) = document["findings"]
    assert (
        (finding["code"], finding["title"])
        == (problem["code"], problem["reason"])
        == (
            "TF250",
            "the number of experts 16 is no multiple of EP = 3",
        )
    )
    assert (finding["suggestion"], finding["provenance"]) == (problem["remedy"], "derived")
    assert document["result"]["experts_per_rank"] is None
    reasons = {skipped["what"]: skipped["reason"] for skipped in document["skipped"]}
    assert reasons["/result/experts_per_rank"] == reasons["/result/payload"] == problem["reason"]


def test_a_preset_is_a_beginning(capsys: Capture) -> None:
    words = "--preset moe-torch-ep4 --ep 2 --topk 1 --sequence 64"
    result = asked(capsys, *words.split(), "--optimizer", "distributed")["result"]
    assert (result["sizes"]["world"], result["sizes"]["ep"], result["expert_data_parallel"]) == (4, 2, 2)
    assert (result["model"]["topk"], result["model"]["experts"]) == (1, 8)
    assert (result["batch"]["sequence"], result["batch"]["global_batch"]) == (64, 4)
    assert (result["training"]["optimizer"], result["training"]["balancing"]) == ("distributed", "global")


def test_text_shows_the_figures_that_matter(capsys: Capture) -> None:
    assert main(["plan", *LARGE.split()]) == 0
    text = capsys.readouterr().out
    assert "8 stages of 128 ranks each" in text
    assert "EDP          2    512  0, 64\n" in text
    assert "~[24576,7168]  bf16  dispatch: received\n" in text
    assert "336.0 MiB  ~330.8 MiB      EP   forward  dispatch (all-to-all)\n" in text
    assert "TF251 warning: 61 layers" in text
    assert "events read" not in text


def test_long_tables_are_cut_and_counted(capsys: Capture) -> None:
    assert main(["plan", *LARGE.split(), "--next-ep", "32", "--top", "3"]) == 0
    assert "and 381 others" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("", "--world"),
        ("--pp 2", "--world"),
        ("--preset deepseek-v4-pro", "--world"),
        ("--preset weather --world 4", "no preset 'weather'"),
        ("--world 4 --hidden 8", "--experts"),
        ("--world 4 --global-batch 8", "--sequence"),
        ("--world four", "valid integer"),
        ("--world 4 elsewhere", "No such command"),
    ],
)
def test_a_command_line_that_says_too_little(words: str, complaint: str, capsys: Capture) -> None:
    assert main(["plan", *words.split()]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert complaint in captured.err


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("--world 100 --tp 8", "TF148"),
        ("--world 99999999999999999999", "TF148"),
        ("--world 8 --order tp-pp", "TF148"),
        ("--world 8 --preset moe-jax --next-ep 3", "TF148"),
        ("--preset moe-jax --dispatcher pigeon", "TF149"),
        ("--preset moe-jax --topk 99", "TF149"),
    ],
)
def test_what_is_no_plan_is_one_line(words: str, code: str, capsys: Capture) -> None:
    assert main(["plan", *words.split()]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"error: {code}: ")
    assert captured.err.count("\n") == 1


def test_an_answer_goes_into_a_file_that_is_not_there_yet(tmp_path: Path, capsys: Capture) -> None:
    place = str(tmp_path / "plan.json")
    words = ["plan", "--world", "4", "--format", "json", "-o", place]
    assert main(words) == 0
    assert json.loads(Path(place).read_text(encoding="utf-8"))["result"]["data_parallel"] == 4
    assert main(words) == 1
    assert "TF110" in capsys.readouterr().err


def test_what_stands_below_it_needs_no_ranks(capsys: Capture) -> None:
    assert main(["plan", "compare", "--help"]) == 0
    assert "Usage: traceflow plan compare" in capsys.readouterr().out
