"""Every command that the README and the pages show answers: on stand-ins of the inputs that it names."""

from __future__ import annotations

import ast
import gzip
import json
import re
import shlex
import tomllib
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from documented import DOCS, blocks_of, page_of
from nsight_builder import NsightProfile
from sources import ROOT
from test_cli import kineto

from traceflow.cli import main

PLAYED = ("tutorial.md", "how-to")  # they have inputs of their own, and their output is compared
NOT_RUN = {
    "traceflow run": "needs the program of a reader; tests/test_launch.py and the how-to pages run some",
    "traceflow demo": "takes a minute; tests/test_cli.py records it",
    "traceflow open": "serves until Ctrl-C; tests/test_open.py asks it",
    "traceflow doctor": "records with each framework; tests/test_doctor.py",
    "traceflow --": "changes the files of a shell; tests/test_explain.py completes a line",
}
NEEDS = {" query ": "duckdb", " --cluster": "distributed", "memory://": "fsspec"}
ON_A_NETWORK = re.compile(r"\b(?:s3|gs|tcp)://")


def readable() -> Iterator[tuple[str, str]]:
    """Commands with the page that shows them, each once."""
    pages = (ROOT / "README.md", *sorted(DOCS.glob("*.md")))
    seen = set()
    for page in pages:
        if page.name in PLAYED:
            continue
        for block in blocks_of(page.read_text(encoding="utf-8")):
            for command, _ in block.commands() if block.kind == "console" and not block.not_run else ():
                skipped = command.startswith(tuple(NOT_RUN)) or "|" in command or ">" in command
                elsewhere = not command.startswith("traceflow ") or ON_A_NETWORK.search(command)
                if not skipped and not elsewhere and command not in seen:
                    seen.add(command)
                    yield page.name, command


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs and traces under the names that pages use: small ones, and of one kind."""
    folder = tmp_path_factory.mktemp("inputs")
    text = json.dumps(kineto(steps=5))
    for name in ("runs/a", "runs/b", "runs/main", "runs/this", "runs/gather", "runs/ring", "traces", "seed003", "fsdp"):
        (folder / name).mkdir(parents=True)
        (folder / name / "rank0.json").write_text(text, encoding="utf-8")
    (folder / "trace.json.gz").write_bytes(gzip.compress(text.encode()))
    table = next(block.text for block in blocks_of(page_of("operation-tables.md")) if block.text.startswith("rank,"))
    (folder / "job.csv").write_text(table, encoding="utf-8")
    (folder / "job.parquet").write_text(table, encoding="utf-8")  # its content tells what it is
    (folder / "sharding.toml").write_text('batch = ["data"]\n', encoding="utf-8")
    profile = NsightProfile()
    profile.process(4000, gpu=0).kernel("gemm", 9_000, 109_000, call=(2_000, 5_400))
    profile.write(folder / "run.sqlite")
    return folder


@pytest.mark.parametrize(("page", "command"), list(readable()))
def test_a_command_that_is_shown_answers(
    page: str, command: str, inputs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = [package for sign, package in NEEDS.items() if sign in command and find_spec(package) is None]
    if missing:
        pytest.skip(f"{page} needs {missing[0]}")
    monkeypatch.chdir(inputs)
    assert main(
        [*shlex.split(command)[1:], *(["-f"] if re.search(r"report|export|diff.* -o|junit", command) else [])]
    ) in {0, 3}
    assert capsys.readouterr().out


def test_reasons_stand_beside_what_is_not_run() -> None:
    shown = "".join(page.read_text(encoding="utf-8") for page in (ROOT / "README.md", *DOCS.glob("*.md")))
    assert [start for start in NOT_RUN if f"$ {start}" not in shown] == []


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda page: page.name)
def test_python_and_toml_that_are_shown_can_be_read(page: Path) -> None:
    for block in blocks_of(page.read_text(encoding="utf-8")):
        if block.kind == "python":
            assert ast.parse(block.text).body
        if block.kind == "toml":
            assert tomllib.loads(block.text)
