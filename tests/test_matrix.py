"""Every input of the corpus is answered with a verdict, or refused in one line, by every verb; here the small ones."""

from __future__ import annotations

from pathlib import Path

import pytest
from matrix import BEGIN, CORPUS, END, PAGE, VERBS, asked, inputs

_SMALL_BYTES = 6_000  # `make matrix` asks the others

SMALL = inputs(largest_bytes=_SMALL_BYTES) if CORPUS.exists() else []


@pytest.mark.skipif(not SMALL, reason="no corpus beside the checkout")
@pytest.mark.parametrize("path", SMALL, ids=lambda path: path.name)
def test_every_verb_answers_with_a_verdict_or_refuses_in_one_line(path: Path) -> None:
    row = asked(path)
    assert {verb: cell.problem for verb, cell in row.items() if cell.problem} == {}
    assert all(cell.told in {"good", "limited", "unusable"} or cell.told.startswith("TF1") for cell in row.values())


def test_every_verb_that_reads_is_asked() -> None:
    from typer.main import get_command

    from traceflow.cli.app import application

    commands = get_command(application()).commands  # type: ignore[attr-defined]
    questions = {f"show {name}" for name in commands["show"].commands}
    exports = {f"export {name}" for name in commands["export"].commands}
    readers = {"what-if", "diff", "check", "query", "report", "plan check"}
    assert set(VERBS) == questions | exports | readers
    assert readers | {"show", "export", "open", "run", "demo", "plan", "explain", "doctor"} >= set(commands)


@pytest.mark.skipif(not CORPUS.exists(), reason="no corpus beside the checkout")
def test_the_page_holds_every_input_and_no_failure() -> None:
    page = PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    told = {row.split("`")[1] for row in rows}
    assert {str(path.relative_to(CORPUS)) + "/" * path.is_dir() for path in inputs()} == told
    assert not [row for row in rows if "TF900" in row or "!" in row]
