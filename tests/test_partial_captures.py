"""What the command line says of real captures: of two chips that ran together, and of one rank of two alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kineto_builder import COMPUTE, KinetoTrace, opened

from traceflow.cli import main

Corpus = Callable[[str], Path]
V100 = "kineto/v100_ddp_rank1of2.json.gz"


def told(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main([*words]) == 0
    return capsys.readouterr().out


def asked(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    return json.loads(told(capsys, *words, "--format", "json"))


@pytest.mark.parametrize(("name", "count"), [("a", 131), ("b", 259)])
def test_every_collective_of_two_chips_is_matched(
    corpus: Corpus, capsys: pytest.CaptureFixture[str], name: str, count: int
) -> None:
    path = str(corpus(f"xplane/tpu_2chips_{name}.trace.json.gz"))
    result = asked(capsys, "show", "communication", path)["result"]
    assert not result["unmatched"]
    assert len(result["collectives"]) == count
    for collective in result["collectives"]:
        calls = collective["participants"]
        assert [(call["rank"], call["device"]) for call in calls] == [(0, 0), (0, 1)]
        for skew, moment in (("start_skew_ns", "arrival_ns"), ("end_skew_ns", "end_ns")):
            assert collective[skew] == abs(calls[0][moment] - calls[1][moment])
    assert max(collective["end_skew_ns"] for collective in result["collectives"]) < 1_000
    assert asked(capsys, "show", "clocks", path)["result"]["residual_ns"] < 1_000
    assert f"median of {count} collectives: starts 0." in told(capsys, "show", "communication", path)


def test_skew_is_counted_from_the_first_to_the_last(tmp_path: Path) -> None:
    for_rank = {0: (5_000, 30_000), 1: (9_000, 30_500), 2: (7_500, 30_100)}
    cards = []
    for rank, (start, end) in for_rank.items():
        card = KinetoTrace(rank=rank, world_size=3)
        card.all_reduce(start, end, sequence=1, stream=COMPUTE, call=(0, 1_000))
        cards.append(card)
    (found,) = opened(tmp_path, *cards).communication().collectives
    assert (found.start_skew_ns, found.end_skew_ns) == (4_000, 500)


@pytest.mark.parametrize("verb", [("show", "critical-path"), ("show", "communication"), ("what-if",)])
def test_one_rank_of_two_says_what_is_unknown(
    corpus: Corpus, capsys: pytest.CaptureFixture[str], verb: tuple[str, ...]
) -> None:
    document = asked(capsys, *verb, str(corpus(V100)))
    notes = {note["code"]: note["text"] for note in document["data_quality"]["notes"]}
    assert notes["TF305"].startswith("1 of 2 ranks present: collectives with the others stay whole")
    assert "who was late is unknown" in notes["TF305"]
    assert document["data_quality"]["verdict"] == "limited"


def test_the_collectives_of_one_rank_of_two_stay_whole(corpus: Corpus, capsys: pytest.CaptureFixture[str]) -> None:
    document = asked(capsys, "show", "communication", str(corpus(V100)))
    result = document["result"]
    assert not result["collectives"]
    assert len(result["unmatched"]) == 2020
    assert result["removable"] == {"transfer_ns": None, "communication_ns": None}
    assert "/result/removable" in {gap["what"] for gap in document["skipped"]}
    path = asked(capsys, "show", "critical-path", str(corpus(V100)))["result"]
    assert path["by_kind_ns"].get("transfer", 0) == 0
    assert {segment["waiting_for"] is None for segment in path["segments"] if segment["device"] is not None} <= {True}


def test_no_prediction_for_one_rank_of_two_is_exact(corpus: Corpus, capsys: pytest.CaptureFixture[str]) -> None:
    document = asked(capsys, "what-if", str(corpus(V100)), "--scale", "@compute=0.5")
    assert not document["result"]["exact"]
    assert document["result"]["low_ns"] is None
    assert any(f["code"] == "TF209" and "2020 communication calls" in f["title"] for f in document["findings"])
