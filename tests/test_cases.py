"""The cases of the shared folder, asked of the command line as a script would ask."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
from sources import ROOT

from traceflow.cli import main

CASES = ROOT.parent / "shared" / "cases"
EXPECTED = sorted(CASES.glob("*/expected/*.json"))


def name_of(expected: Path) -> str:
    return f"{expected.parent.parent.name}/{expected.stem}"


@pytest.fixture(scope="module")
def compare() -> Any:
    """The comparison that comes with the cases."""
    spec = importlib.util.spec_from_file_location("compare", CASES / "compare.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.skipif(not EXPECTED, reason="no shared cases beside the checkout")
def test_the_cases_are_there() -> None:
    asked = {json.loads(path.read_text())["args"][1] for path in EXPECTED}
    assert {"critical-path", "communication", "clocks", "stragglers"} <= asked


@pytest.mark.parametrize("expected", EXPECTED, ids=name_of)
def test_a_case_is_answered_as_expected(expected: Path, compare: Any, capsys: pytest.CaptureFixture[str]) -> None:
    case = json.loads(expected.read_text())
    traces = str(expected.parent.parent / "traces")
    code = main([*(traces if word == "TRACES" else word for word in case["args"]), "--format", "json"])
    answer = json.loads(capsys.readouterr().out)
    assert code == 0
    assert compare.differ(case["result"], answer["result"], "", 1) == []
