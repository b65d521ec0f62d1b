"""The tutorial and the how-to pages: everything on them is done, and prints what is shown."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
from documented import DOCS, assert_shown, bare, blocks_of, play

LIVE = {"tutorial.md": "jax", "how-to/wrap-a-step.md": "torch", "how-to/unmodified-script.md": "torch"}
"""Pages that record, with what they need; what others show is exact."""

ELSEWHERE = {"how-to/index.md", "how-to/maxtext.md", "how-to/megatron.md", "how-to/torchtitan.md"}
"""Pages with nothing to do here: a list of the others, and frameworks that the tests do not install."""

PAGES = {"tutorial.md", *(f"how-to/{path.name}" for path in (DOCS / "how-to").glob("*.md"))} - ELSEWHERE


@pytest.mark.parametrize("name", sorted(PAGES))
def test_a_page_does_what_it_says(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if name in LIVE and find_spec(LIVE[name]) is None:
        pytest.skip(f"the page needs {LIVE[name]}")
    assert play(name, tmp_path, monkeypatch, capsys, live=name in LIVE) > 0


def test_what_a_page_shows_has_to_be_printed_in_its_order() -> None:
    printed = "one    1.5 ms\n----------\ntwo 2\nthree\n"
    assert_shown("one 1.5 ms\n---\n...\nthree\n", printed)
    assert_shown("one 999 us\n", printed, live=True)
    assert_shown("three of ...\n", "three of a kind\n")
    for wrong in ("one 1.6 ms\n", "three\ntwo 2\n", "four\n"):
        with pytest.raises(AssertionError, match="not in this order"):
            assert_shown(wrong, printed)


def test_only_figures_are_masked() -> None:
    assert bare("jit_x.1 v5e 12.5 ms (ms; at 3)", live=True) == "jit_x.1 v5e # (t; at #)"
    assert (
        bare("kind         us   share", live=True)
        == bare("kind   ms   share", live=True)
        != bare("kind  GB  share", live=True)
    )
    assert bare("items of us", live=True) != bare("item of us", live=True)


def test_blocks_say_what_becomes_of_them() -> None:
    text = "<!-- file: a.py -->\n```python\nx = 1\n```\n\n```console\n$ traceflow a \\\n    b  # why\nc\n$ traceflow d\n```\n"
    file, commands = blocks_of(text)
    assert (file.file, file.text) == ("a.py", "x = 1\n")
    assert [*commands.commands()] == [("traceflow a b", "c\n"), ("traceflow d", "")]
