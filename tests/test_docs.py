"""The documentation against what it describes."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from sources import ROOT
from typer.core import TyperCommand, TyperGroup, TyperOption
from typer.main import get_command

import traceflow
from traceflow.cli.app import app

DOCS = ROOT / "docs"
COMMAND_LINE = (DOCS / "command-line.md").read_text(encoding="utf-8")


def verbs(name: str, command: object) -> Iterator[tuple[str, TyperCommand | TyperGroup]]:
    """Every verb of the command line by its full name; some have verbs of their own below them."""
    if isinstance(command, TyperGroup):
        if command.invoke_without_command:
            yield name, command
        for word, sub in command.commands.items():
            yield from verbs(f"{name} {word}", sub)
    elif isinstance(command, TyperCommand):
        yield name, command


def options(command: TyperCommand | TyperGroup) -> set[str]:
    """All spellings of a verb's own options."""
    return {text for option in command.params if isinstance(option, TyperOption) for text in option.opts}


VERBS = dict(verbs("traceflow", get_command(app)))


def test_there_are_verbs() -> None:
    assert {"traceflow report", "traceflow show critical-path", "traceflow what-if"} <= VERBS.keys()
    assert {"--slack", "--step", "-o", "--debug"} <= options(VERBS["traceflow show critical-path"])


@pytest.mark.parametrize("name", VERBS)
def test_every_verb_and_option_is_documented(name: str) -> None:
    assert f"`{name}" in COMMAND_LINE
    assert {text for text in options(VERBS[name]) if not re.search(rf"`{text}\b", COMMAND_LINE)} == set()


def test_the_public_names_are_in_the_reference() -> None:
    reference = (DOCS / "reference.md").read_text(encoding="utf-8")
    public = {name for name in traceflow.__all__ if not name.startswith("_")}
    assert {name for name in public if f"`tf.{name}`" not in reference} == set()


def test_every_page_can_be_reached() -> None:
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    pages = {path.stem for path in DOCS.glob("*.md")} - {"index"}
    assert pages - set(index.split()) == set()
