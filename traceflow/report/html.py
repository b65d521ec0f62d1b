"""The report: one HTML file that needs nothing else, and that no name from a trace can make do anything."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from traceflow.codes import CODES
from traceflow.errors import TraceflowError
from traceflow.report.chapter import Chapter, Programs, chapter, programs
from traceflow.report.comparison import comparison
from traceflow.report.definitions import CONCEPTS, DEFINITIONS, PROVENANCES
from traceflow.report.difference_section import DifferenceSection
from traceflow.report.grid import Grid, duration, percent
from traceflow.report.names import printable
from traceflow.report.simulation import SIMULATION
from traceflow.report.subject import WHOLE, Asked, Subject
from traceflow.result import Json
from traceflow.trace.untraced import FORMAT as PROGRAMS

if TYPE_CHECKING:
    from jinja2 import Environment

ROWS = 100_000
"""Most rows of all timelines of a page together; it keeps a page below 8 MB whatever the size of the trace."""


_GENERIC = frozenset({"traces", "trace", "profile", "profiles", "plugins", "output", "outputs", "logs", "log", "data"})
"""What folders of traces are called whatever they hold."""


@dataclass(frozen=True, slots=True)
class Part:
    """One run of a page: what the reader calls it, what of it is explained, and what it is an attempt at.

    Runs are compared with others of the same aim.
    """

    title: str
    run: Subject
    asked: Asked = WHOLE
    aim: str = ""


def write_report(run: Subject, path: Path, asked: Asked = WHOLE, *, force: bool = False) -> Path:
    """Write a report as one offline HTML file. It appears complete or not at all.

    Args:
        run: The run to explain.
        path: The file to write.
        asked: What to explain.
        force: Whether to replace a file that is there.

    Returns:
        `path`.

    Raises:
        TraceflowError: TF110 when the file exists and `force` is not set, TF114 when it cannot be written, and
            what the analyzers raise: TF104 without work, TF111 without such a step or window, TF122 for a part of
            programs without a trace.
    """
    return write_comparison([Part(_title(run), run, asked)], path, force=force)


def write_comparison(
    parts: Sequence[Part], path: Path, difference: DifferenceSection | None = None, *, force: bool = False
) -> Path:
    """Write a report of several runs: of each aim the last compared with the first, then each explained.

    Args:
        parts: The runs, in order.
        path: The file to write.
        difference: What `traceflow diff` says of the two runs, in place of a comparison of their durations.
        force: Whether to replace a file that is there.

    Returns:
        `path`.

    Raises:
        TraceflowError: As `write_report`.
    """
    if path.exists() and not force:
        raise TraceflowError(
            "TF110", f"cannot write {path}", "it exists already", "give -f to replace it, or another name"
        )
    text = render_comparison(parts, difference)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.write_text(text, encoding="utf-8")
        draft.replace(path)
    except OSError as error:
        draft.unlink(missing_ok=True)
        why = error.strerror or type(error).__name__
        raise TraceflowError("TF114", f"cannot write {path}", why, "choose another place") from error
    return path


def render_report(run: Subject, asked: Asked = WHOLE) -> str:
    """The text of a report; the same evidence gives the same text.

    Args:
        run: The run to explain.
        asked: What to explain.
    """
    return render_comparison([Part(_title(run), run, asked)])


def render_comparison(parts: Sequence[Part], difference: DifferenceSection | None = None) -> str:
    """The text of a report of several runs.

    Args:
        parts: The runs, in order.
        difference: What `traceflow diff` says of the two runs, in place of a comparison of their durations.
    """
    chapters = [_explained(part, number, ROWS // len(parts)) for number, part in enumerate(parts)]
    style, script = _source("report.css"), f"{_source('timeline.js')}\n{_source('report.js')}"
    page = _environment().get_template("report.html")
    return page.render(
        chapters=chapters,
        difference=difference,
        comparisons=[] if difference else _comparisons(parts, chapters),
        title=", ".join(c.title for c in chapters),
        style=style,
        style_hash=_hash(style),
        script=script,
        script_hash=_hash(script),
        version=version("traceflow-ml"),
    )


def _explained(part: Part, number: int, budget: int) -> Chapter | Programs:
    """A run; without a trace, what its programs alone tell of it."""
    title = printable(part.title)
    if part.run.trace.format == PROGRAMS and part.asked.whole:
        return programs(title, part.run, number=number)
    return chapter(title, part.run, part.asked, number=number, budget=budget)


def _comparisons(parts: Sequence[Part], chapters: Sequence[Chapter | Programs]) -> list[Grid]:
    """One per aim that several runs have."""
    grids = []
    for aim in dict.fromkeys(part.aim for part in parts):
        alike = [c for part, c in zip(parts, chapters, strict=True) if part.aim == aim]
        runs = [(c.title, c.compared) for c in alike if isinstance(c, Chapter)]
        if len(runs) > 1:
            grids.append(replace(comparison(runs), title=aim))
    return grids


def _title(run: Subject) -> str:
    """What each input is called: the last part of its path, with the part before where that says nothing."""
    return ", ".join(map(called, run.inputs))


def called(source: str) -> str:
    """What a reader calls a capture.

    Example:
        >>> called("jobs/run7/traces"), called("rank0.json"), called("run7/profile/*.json")
        ('run7/traces', 'rank0.json', 'run7/profile/*.json')
    """
    parts = Path(source).resolve().parts if source in {".", ".."} else Path(source).parts
    telling = [i for i, part in enumerate(parts) if part not in _GENERIC and not re.search(r"[*?\[]", part)]
    return "/".join(parts[telling[-1] if telling else -1 :]).lstrip("/") or source


@cache
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("traceflow.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"duration": duration, "percent": percent, "printable": printable, "data": _data}
    environment.globals |= {
        "codes": CODES,
        "concepts": CONCEPTS,
        "definitions": DEFINITIONS,
        "provenances": PROVENANCES,
        "simulation": SIMULATION,
    }
    return environment


def _source(name: str) -> str:
    return files("traceflow.report").joinpath("templates", name).read_text(encoding="utf-8").strip()


def _hash(text: str) -> str:
    """What the content security policy says of an inline element that may be used."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _data(value: Json) -> str:
    """JSON that can stand inside a script element: nothing in it can end the element."""
    text = json.dumps(value, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text
