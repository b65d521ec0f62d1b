"""The notebooks as files: they hold no results of an earlier run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from sources import ROOT

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_stored_without_its_outputs(path: Path) -> None:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert code
    assert [cell["source"] for cell in code if cell["outputs"] or cell["execution_count"]] == []
