"""The registry of stable codes against the sources that use them."""

from __future__ import annotations

import ast
import re
import runpy
from pathlib import Path

import pytest
from sources import PACKAGE_FILES, ROOT

from traceflow.codes import ALL, CODES, Code

LITERAL = re.compile(r"TF\d{3}")
CODES_PAGE = (ROOT / "docs" / "codes.md").read_text(encoding="utf-8")


def codes_in(text: str) -> set[str]:
    """The codes that the string literals of a module name, docstrings included."""
    strings = (n.value for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Constant) and isinstance(n.value, str))
    return {code for string in strings for code in LITERAL.findall(string)}


def test_codes_are_found_in_literals_and_not_in_comments() -> None:
    source = 'raise TraceflowError("TF101", f"see TF102{x}", why="x")  # TF103\n'
    assert codes_in(source) == {"TF101", "TF102"}


@pytest.mark.parametrize("path", PACKAGE_FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_code_in_the_package_is_registered(path: Path) -> None:
    assert codes_in(path.read_text(encoding="utf-8")) <= CODES.keys()


def test_no_code_is_listed_twice_and_all_are_in_order() -> None:
    listed = [entry.code for entry in ALL]
    assert listed == sorted(set(listed))


@pytest.mark.parametrize("entry", ALL, ids=lambda entry: entry.code)
def test_an_entry_is_complete_and_has_its_place_in_the_documentation(entry: Code) -> None:
    assert LITERAL.fullmatch(entry.code)
    assert f"<!-- {entry.code[:3]} -->" in CODES_PAGE
    assert entry.title
    assert not entry.title.endswith(".")
    assert entry.explanation.endswith(".")
    assert entry.remedy.endswith(".")


def test_every_code_has_its_page(tmp_path: Path) -> None:
    conf = runpy.run_path(str(ROOT / "docs" / "conf.py"))
    write = conf["write_code_pages"]
    write.__globals__["CODE_PAGES"] = tmp_path / "codes"
    (tmp_path / "codes").mkdir()
    (tmp_path / "codes" / "tf000.md").write_text("left by an older registry")
    write(None)
    assert {path.name for path in (tmp_path / "codes").iterdir()} == {f"{name.lower()}.md" for name in CODES}
    for entry in ALL:
        page = (tmp_path / "codes" / f"{entry.code.lower()}.md").read_text(encoding="utf-8")
        in_one_line = " ".join(page.split())
        assert page.startswith(f"({entry.code.lower()})=\n# {entry.code}: {entry.title}\n")
        said = (entry.explanation, entry.formula, entry.example, entry.command, entry.output, entry.remedy)
        assert [text for text in said if " ".join(text.split()) not in in_one_line] == []
