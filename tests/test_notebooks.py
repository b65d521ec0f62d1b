"""The notebooks as files; `make notebooks` executes them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from kineto_builder import KinetoTrace
from sources import ROOT

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
PAGE = (ROOT / "docs" / "notebooks.md").read_text(encoding="utf-8")

each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def cells(path: Path, kind: str) -> list[dict[str, Any]]:
    """The cells of one kind."""
    found = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [cell for cell in found if cell["cell_type"] == kind]


def text(cell: dict[str, Any]) -> str:
    """What a cell holds."""
    return "".join(cell["source"])


def test_what_the_page_does_in_python_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    card = KinetoTrace()
    for step in range(4):
        card.step(step, 100_000 * step, 100_000 * step + 9_000)
        card.host("forward", 100_000 * step, 100_000 * step + 8_000, category="user_annotation")
        card.kernel(
            "gemm",
            100_000 * step + 9_000,
            100_000 * step + 90_000,
            call=(100_000 * step + 2_000, 100_000 * step + 5_000),
        )
    (tmp_path / "runs" / "a").mkdir(parents=True)
    card.write(tmp_path / "runs" / "a" / "rank0.pt.trace.json")
    monkeypatch.chdir(tmp_path)
    pytest.importorskip("anywidget", reason="no anywidget to make a widget with")
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(compile(block, "notebooks.md", "exec"), names)  # noqa: S102  # the page's own examples
    assert names["found"].kind == "savings"
    assert names["view"].selected == 0
    assert names["view"].segment["name"]


@each_notebook
def test_a_notebook_is_stored_without_its_outputs(path: Path) -> None:
    code = cells(path, "code")
    assert code
    assert [cell["source"] for cell in code if cell["outputs"] or cell["execution_count"]] == []


@each_notebook
def test_a_notebook_tells_a_story_and_checks_it(path: Path) -> None:
    title, *_ = map(text, cells(path, "markdown"))
    assert title.startswith("# ")
    assert "?" in title  # the question that it answers
    assert "assert " in text(cells(path, "code")[-1])


@each_notebook
def test_a_notebook_is_on_the_page_under_its_title(path: Path) -> None:
    title = text(cells(path, "markdown")[0]).splitlines()[0].removeprefix("# ")
    assert f"| `{path.name}` | {title} |" in PAGE


def test_the_page_names_no_other_notebook() -> None:
    assert set(re.findall(r"`(\w+\.ipynb)`", PAGE)) == {path.name for path in NOTEBOOKS}
