"""Pages of the documentation as programs: files that they tell to write, commands with what they print, and Python.

A page is read from top to bottom in a folder of its own:

    <!-- needs: corpus/kineto/a.json.gz, corpus/xplane/b.pb as runs/b.pb -->   links to recorded traces
    <!-- file: train.py -->                                                    the next block is this file
    <!-- not run: needs Megatron -->                                           the next block is only shown

Of what a command prints a page may show a part: lines in their order, with `...` for what is between them, or for the
rest of a line.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from sources import ROOT

from traceflow.cli import main

DOCS = ROOT / "docs"
SHARED = ROOT.parent / "shared"
_BLOCK = re.compile(r"(?:^<!-- (file|not run): (.*?) -->\n)?^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_COMMAND = re.compile(r"^\$ ((?:.*\\\n)*.*)\n((?:(?!\$ ).*\n)*)", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A block of code, and what the page says is to become of it."""

    kind: str
    text: str
    file: str = ""
    not_run: str = ""

    def commands(self) -> Iterator[tuple[str, str]]:
        """Each command, with what is shown of its output."""
        for command, printed in _COMMAND.findall(self.text):
            yield re.sub(r"\\\n\s*", "", command).partition("  #")[0].rstrip(), printed


def page_of(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def blocks_of(text: str) -> list[Block]:
    """All blocks of a page."""
    found = []
    for directive, value, kind, body in _BLOCK.findall(text):
        found.append(Block(kind, body, value if directive == "file" else "", value if directive == "not run" else ""))
    return found


def link_needs(text: str, folder: Path) -> None:
    """Links to what a page needs; its test is skipped where that is absent."""
    for listed in re.findall(r"^<!-- needs: (.*?) -->", text, re.MULTILINE):
        for need in listed.split(", "):
            source, _, name = need.partition(" as ")
            path = folder / (name or Path(source).name)
            if not (SHARED / source).exists():
                pytest.skip(f"no {source} beside the checkout")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.symlink_to(SHARED / source)


def run(command: str, capsys: pytest.CaptureFixture[str]) -> str:
    """What a command prints; it has to succeed, or to say that a gate does not hold."""
    program, *words = shlex.split(command)
    capsys.readouterr()
    if program == "traceflow":
        assert main(words) in {0, 3}, f"{command}: {capsys.readouterr().err}"
        return capsys.readouterr().out
    assert program in {"python", "torchrun"}, command
    start = [sys.executable] if program == "python" else [sys.executable, "-m", "torch.distributed.run"]
    return subprocess.run([*start, *words], capture_output=True, text=True, check=True).stdout


def bare(line: str, *, live: bool) -> str:
    """A line without what a repetition changes: the width of columns, and where it is live, figures and units of time."""
    if live:
        line = re.sub(r"(?<![\w.])[-+]?\d[\d,.]*(?: ?(?:ns|us|ms|s|B|KiB|MiB|GiB|%))?(?![\w.])", "#", line)
        line = re.sub(r"(?<=[( ])(?:us|ms|s)(?=[;,) ]|$)", "t", line)
    return re.sub(r"-{3,}", "---", " ".join(line.split()))


def assert_shown(shown: str, printed: str, *, live: bool = False) -> None:
    """Every line that is shown was printed, in this order."""
    left = iter([bare(line, live=live) for line in printed.splitlines()])
    for line in shown.splitlines():
        wanted = bare(line, live=live)
        if wanted and wanted != "...":
            begins = wanted.endswith(" ...")
            found = any(one.startswith(wanted[:-3]) if begins else one == wanted for one in left)
            assert found, f"{line!r} is not in, or not in this order:\n{printed}"


def play(
    name: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *, live: bool
) -> int:
    """Do what a page says, in a folder; how many commands and programs that were."""
    text, done = page_of(name), 0
    link_needs(text, folder)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "88")
    monkeypatch.setenv("PATH", os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])))
    for block in blocks_of(text):
        if block.file:
            (folder / block.file).write_text(block.text, encoding="utf-8")
        elif block.not_run:
            continue
        elif block.kind == "console":
            for command, shown in block.commands():
                assert_shown(shown, run(command, capsys), live=live)
                done += 1
        elif block.kind == "python":
            exec(compile(block.text, name, "exec"), {})  # noqa: S102  # what a reader would copy
            done += 1
    return done
