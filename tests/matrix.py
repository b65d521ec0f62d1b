"""Every input of the corpus through every verb: which verdict the answer has, or why it is refused, and how long it took.

`python tests/matrix.py` writes the table into docs/input.md; `make matrix` calls it. Each input is asked in a process
of its own, so that memory is that of one input, and none can spoil another.
"""

from __future__ import annotations

import io
import json
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeAlias

from sources import ROOT

CORPUS = ROOT.parent / "shared" / "corpus"
PAGE = ROOT / "docs" / "input.md"
LIMIT_S = 3600
BEGIN, END = "<!-- matrix: begin, written by make matrix -->", "<!-- matrix: end -->"
_FOLDERS = ("kineto", "xplane", "hlo/fsdp4_a100", "torch_memory", "cluster")
_SINGLE_FILES = ("fsdp4_a100/proc", "module_0040", "module_0001")  # of the many like one another, these stand for all
_QUESTIONS = (
    "all", "summary", "critical-path", "communication", "clocks", "stragglers", "savings", "memory", "moe", "padding",
    "sharding", "collective-matmul", "budget",
)  # fmt: skip

VERBS: Mapping[str, tuple[str, ...]] = {
    **{f"show {question}": ("show", question, "IN", "--format", "json") for question in _QUESTIONS},
    "what-if": ("what-if", "IN", "--scale", "@transfer=0", "--format", "json"),
    "diff": ("diff", "IN", "IN", "--format", "json"),
    "check": ("check", "IN", "--require", "makespan_ns > 0", "--format", "json"),
    "plan check": ("plan", "check", "IN", "--world", "8", "--format", "json"),
    "query": ("query", "IN", "SELECT count(*) AS n FROM ranks", "--format", "json"),
    "export perfetto": ("export", "perfetto", "IN", "-o", "OUT/out.pftrace"),
    "export parquet": ("export", "parquet", "IN", "-o", "OUT/tables"),
    "report": ("report", "IN", "-o", "OUT/out.html"),
}
"""The verbs that read an input, and how each is called. `open` starts what `report` and `export` write."""

_EXPECTED_EXITS = {"check": (0, 1, 3)}
_REFUSAL = re.compile(r"^error: (TF\d{3}):")


@dataclass(frozen=True)
class Cell:
    """What became of one verb."""

    told: str  # a verdict, or the code of the refusal
    seconds: float
    problem: str = ""  # what must not happen


Row: TypeAlias = dict[str, Cell]


def inputs(*, largest_bytes: int | None = None) -> list[Path]:
    """Files and folders of the corpus, those that are small where a size is given."""
    files = [file for file in sorted(CORPUS.rglob("*")) if file.is_file() and file.suffix != ".md" and _stands(file)]
    found = files + [CORPUS / folder for folder in _FOLDERS]
    return [path for path in found if largest_bytes is None or _size(path) <= largest_bytes]


def _stands(file: Path) -> bool:
    name = str(file)
    return "fsdp4_a100" not in name or any(part in name for part in _SINGLE_FILES)


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else sum(f.stat().st_size for f in path.rglob("*") if f.is_file())


def asked(path: Path, verbs: Iterable[str] = tuple(VERBS)) -> Row:
    """Ask one input everything, in this process."""
    with tempfile.TemporaryDirectory() as folder:
        return {verb: _cell(verb, path, Path(folder)) for verb in verbs}


def _cell(verb: str, path: Path, folder: Path) -> Cell:
    from traceflow.cli import main

    argv = [part.replace("OUT", str(folder)) if part != "IN" else str(path) for part in VERBS[verb]]
    out, err, began = io.StringIO(), io.StringIO(), time.perf_counter()
    try:
        with redirect_stdout(out), redirect_stderr(err):
            code = main(argv)
    except BaseException as error:  # noqa: BLE001  # whatever gets through is what this looks for
        return Cell("!", time.perf_counter() - began, f"{type(error).__name__}: {error}")
    seconds = time.perf_counter() - began
    told, problem = _judged(verb, code, out.getvalue(), err.getvalue())
    return Cell(told, seconds, problem)


def _judged(verb: str, code: int, out: str, err: str) -> tuple[str, str]:
    """The verdict or the code of a refusal; and what is wrong with that."""
    if refusal := _REFUSAL.match(err):
        wrong = "" if code == 1 and refusal[1] != "TF900" and err.count("\n") == 1 and not out else err + out[:200]
        return refusal[1], wrong
    if code not in _EXPECTED_EXITS.get(verb, (0,)) or "Traceback" in err:
        return "!", f"exit {code}: {err[:300]}"
    if "json" not in VERBS[verb]:
        return _told_beside(err), ""
    document = json.loads(out)
    return _told_in(document)


def _told_beside(err: str) -> str:
    found = re.search(r"^evidence: (limited|unusable)\b", err, re.MULTILINE)
    return found[1] if found else "good"


def _told_in(document: Mapping[str, object]) -> tuple[str, str]:
    from traceflow.report.text import render

    quality = document.get("data_quality") or {"verdict": "none"}
    assert isinstance(quality, dict)
    verdict = quality["verdict"]
    if document["kind"] == "query":
        return verdict, ""
    text = render(document)
    wrong = "" if f"Evidence: {verdict}" in text else f"no verdict in the text: {text[:200]}"
    return verdict, wrong


def in_processes(paths: Sequence[Path]) -> Iterable[tuple[Path, Row, int]]:
    """The rows of inputs, each asked in a process of its own, and the memory that took, in bytes."""
    for path in paths:
        command = [sys.executable, __file__, "--one", str(path)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
            said = json.loads(done.stdout.splitlines()[-1])
        except (subprocess.TimeoutExpired, IndexError, ValueError) as error:
            yield path, {verb: Cell("!", LIMIT_S, repr(error)[:300]) for verb in VERBS}, 0
            continue
        yield path, {verb: Cell(**cell) for verb, cell in said["row"].items()}, said["memory_bytes"]


def table(rows: Iterable[tuple[Path, Row, int]]) -> str:
    """The matrix in Markdown: equal answers of an input are told once."""
    lines = ["| input | answers | refused | slowest | memory |", "|---|---|---|---|---|"]
    for path, row, memory_bytes in rows:
        slowest = max(row, key=lambda verb: row[verb].seconds)
        name = str(path.relative_to(CORPUS)) + ("/" if path.is_dir() else "")
        verdicts = {v: told for v, cell in row.items() if not (told := cell.told).startswith("TF")}
        refusals = {v: cell.told for v, cell in row.items() if cell.told.startswith("TF")}
        lines.append(
            f"| `{name}` | {_grouped(verdicts, len(row))} | {_grouped(refusals, len(row))} "
            f"| {row[slowest].seconds:.1f} s, {slowest} | {memory_bytes / 2**20:,.0f} MiB |"
        )
    return "\n".join(lines)


def _grouped(told: Mapping[str, str], number: int) -> str:
    """What verbs were told, the most common first, the verbs named where they are few."""
    by_answer: dict[str, list[str]] = {}
    for verb, answer in told.items():
        by_answer.setdefault(answer, []).append(verb.removeprefix("show "))
    groups = sorted(by_answer.items(), key=lambda group: -len(group[1]))
    return "; ".join(f"{answer}: {'all' if len(v) == number else ', '.join(v)}" for answer, v in groups) or "none"


def _write(text: str) -> None:
    page = PAGE.read_text(encoding="utf-8")
    before, after = page.partition(BEGIN)[0], page.partition(END)[2]
    PAGE.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}", encoding="utf-8")


def _one(path: Path) -> None:
    row = asked(path)
    memory_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    said = {"row": {verb: asdict(cell) for verb, cell in row.items()}, "memory_bytes": memory_bytes}
    sys.stdout.write(json.dumps(said) + "\n")


def _main() -> int:
    if sys.argv[1:2] == ["--one"]:
        _one(Path(sys.argv[2]))
        return 0
    rows, bad = [], 0
    for path, row, memory_bytes in in_processes(inputs()):
        rows.append((path, row, memory_bytes))
        problems = {verb: cell.problem for verb, cell in row.items() if cell.problem}
        bad += len(problems)
        seconds = sum(cell.seconds for cell in row.values())
        sys.stderr.write(f"{path.relative_to(CORPUS)}: {seconds:.0f} s {problems or ''}\n")
    _write(table(rows))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(_main())
