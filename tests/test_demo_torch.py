"""What the demo says of a step that several processes took together."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from handmade import two_rounds

from traceflow.analyzers.stragglers import stragglers
from traceflow.cli import main, ranks


def test_two_ranks_that_wait_for_each_other_in_turn() -> None:
    run = two_rounds().run()
    answers = run.summary(), run.critical_path(), run.communication(), stragglers(run.trace, run.dependencies)
    text = ranks.told(ranks.Explained(1, *answers), width=200, color=False)
    assert "The critical path of 22.000 ms ran 50.0 % on rank 0, 50.0 % on rank 1." in text
    assert all(f"10.000  45.5 %  compute   {name}" in text for name in ("a1", "b2"))
    assert "45.5 % of the step" in text  # 8 ms of waiting and twice 1 ms of transfer
    assert "Of all time in collectives, 80.0 % was waiting for others." in text  # 8 + 8 of 20 ms
    assert "no evidence about accelerators or networks" in text


def test_the_demo_records_explains_and_reports_all_ranks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch", reason="the demo with PyTorch needs it")
    folder = tmp_path / "demo"
    assert main(["demo", "--torch", "-o", str(folder)]) == 0
    out = capsys.readouterr().out
    assert {path.name for path in folder.iterdir()} == {"ep2_edp2", "report.html"}
    assert "Verdict" in out
    assert "calls are not in it" not in out  # all collectives are joined with the flight recorder
    assert out.endswith(f"Wrote {folder / 'report.html'}\n")
    assert main(["show", "summary", str(folder / "ep2_edp2"), "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["result"]["ranks"] == [0, 1, 2, 3]
    assert main(["demo", "--torch", "-o", str(folder)]) == 1
    assert capsys.readouterr().err.startswith("error: TF110: ")
