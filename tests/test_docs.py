"""The documentation against what it describes."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from sources import ROOT
from typer.core import TyperCommand, TyperGroup, TyperOption
from typer.main import get_command

from traceflow.cli.app import application

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


VERBS = dict(verbs("traceflow", get_command(application())))


def test_there_are_verbs() -> None:
    assert {"traceflow report", "traceflow show critical-path", "traceflow what-if"} <= VERBS.keys()
    assert {"--slack", "--step", "-o", "--debug"} <= options(VERBS["traceflow show critical-path"])


@pytest.mark.parametrize("name", VERBS)
def test_every_verb_and_option_is_documented(name: str) -> None:
    assert f"`{name}" in COMMAND_LINE
    assert {text for text in options(VERBS[name]) if not re.search(rf"`{text}\b", COMMAND_LINE)} == set()


def reached(page: Path) -> Iterator[Path]:
    """The pages that the tables of contents of a page lead to; patterns are those of pages that the build writes."""
    for block in re.findall(r"```{toctree}\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
        for entry in block.split("\n"):
            if entry and not entry.startswith(":") and "*" not in entry:
                below = page.parent / f"{entry}.md"
                yield below
                yield from reached(below)


def test_every_page_can_be_reached() -> None:
    written = DOCS / "codes"  # by the build
    pages = {path for path in DOCS.rglob("*.md") if written not in path.parents} - {DOCS / "index.md"}
    assert set(reached(DOCS / "index.md")) == pages


def shown_commands() -> Iterator[tuple[str, str]]:
    """Every command of traceflow that the pages show, with the name of the page."""
    for page in (ROOT / "README.md", *sorted(DOCS.rglob("*.md"))):
        if DOCS / "codes" not in page.parents:
            for command in re.findall(
                r"^\$ (?:\w+=\S+ )*(traceflow (?:.*\\\n)*.*)$", page.read_text(encoding="utf-8"), re.MULTILINE
            ):
                yield page.name, re.sub(r"\\\n\s*", "", command).partition("  #")[0]


@pytest.mark.parametrize(("page", "command"), list(shown_commands()))
def test_every_command_that_is_shown_exists_with_its_options(page: str, command: str) -> None:
    own = shlex.split(command.partition(" -- ")[0].replace("...", ""))
    given = {word for word in own if re.fullmatch(r"--?[a-z][a-z-]*", word)}
    verb = max((verb for verb in VERBS if f"{command} ".startswith(f"{verb} ")), key=len, default="")
    known = options(VERBS[verb]) if verb else {"--install-completion", "--show-completion"}
    assert verb or given, f"{page}: no verb in {command}"
    assert given <= {"--help", *known}
