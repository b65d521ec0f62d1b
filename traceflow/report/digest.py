"""The digest for a terminal: below the findings, the figures of every answer on a few lines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.padding import Padding
from rich.text import Text

from traceflow.report.names import numbers, printable
from traceflow.report.tables import heading
from traceflow.report.units import TimeUnit, share_text, size_text, unit_for

if TYPE_CHECKING:
    from rich.console import RenderableType

_MOST = 8  # entries of an object on a line


def digest_parts(result: Mapping[str, Any]) -> Iterator[RenderableType]:
    """The figures of every question, what tables hold, and why some questions have no answer.

    Args:
        result: The `result` of `traceflow show all`.
    """
    if left_out := result["left_out"]["findings"]:
        counted = ", ".join(f"{count:,} {code}" for code, count in left_out.items())
        yield Text(f"and more findings: {counted}")
    for question, answer in result["questions"].items():
        yield heading(question)
        lines = [*_lines(answer["figures"]), *_tables(answer["figures"], answer["left_out"])]
        yield Padding(Text("\n".join(lines) or "nothing"), (0, 0, 0, 2))
    yield from _unavailable(result["unavailable"])


def _unavailable(refused: Sequence[Mapping[str, Any]]) -> Iterator[RenderableType]:
    """The questions without an answer, once per reason."""
    if refused:
        yield heading("Not available")
    for reason in dict.fromkeys(map(_reason, refused)):
        questions = [one["question"] for one in refused if reason == _reason(one)]
        yield Text(printable(f"{', '.join(questions)}: {reason}", 1000))


def _lines(figures: Mapping[str, Any]) -> Iterator[str]:
    """One line for all plain figures, and one for each object of them."""
    if plain := _listed(figures):
        yield plain
    for name, value in figures.items():
        if isinstance(value, dict) and name != "window" and (inner := _listed(value, name)):
            yield f"{_words(name)}: {inner}"


def _listed(figures: Mapping[str, Any], within: str = "") -> str:
    """What is known among figures, in the order of the answer."""
    known = [(name, value) for name, value in figures.items() if isinstance(value, bool | int | float | str)]
    unit = next((ending for ending in ("_ns", "_bytes") if within.endswith(ending)), "")
    named = [(name, name if _has_unit(name) else name + unit, value) for name, value in known]
    common = unit_for(value for _, full, value in named[:_MOST] if full.endswith("_ns") and isinstance(value, int))
    said = [f"{_words(name)} {_figure(full, value, common)}" for name, full, value in named]
    more = f", and {len(said) - _MOST} more" if len(said) > _MOST else ""
    return ", ".join(said[:_MOST]) + more


def _tables(figures: Mapping[str, Any], left_out: Mapping[str, int]) -> Iterator[str]:
    """How many rows each table has; short lists of numbers as they are."""
    counts = []
    for name, value in figures.items():
        if (
            isinstance(value, list)
            and value
            and all(type(item) is int for item in value)
            and not left_out.get(f"/{name}")
        ):
            yield f"{_words(name)}: {numbers(value)}"
        elif isinstance(value, list) and (rows := len(value) + left_out.get(f"/{name}", 0)):
            counts.append(f"{rows:,} {_words(name)}")
    if counts:
        yield ", ".join(counts)


def _has_unit(name: str) -> bool:
    return name.endswith(("_ns", "_bytes", "_share", "_ratio"))


def _figure(name: str, value: Any, time: TimeUnit) -> str:
    """A figure in the unit that its name tells; all times of a line are in one."""
    if isinstance(value, str):
        return printable(value, 60)
    if name.endswith("_ns") and isinstance(value, int):
        return f"{time.text(value)} {time.name}"
    if name.endswith("_bytes") and isinstance(value, int):
        return size_text(value)
    if name.endswith("_share"):
        return share_text(round(value * 1000), 1000)
    return f"{value:,.3g}" if isinstance(value, float) else str(value)


def _words(name: str) -> str:
    """The name of a figure without its unit.

    Example:
        >>> _words("makespan_ns"), _words("by_kind_ns"), _words("gemm_1")
        ('makespan', 'by kind', 'gemm_1')
    """
    for unit in ("_ns", "_bytes", "_share"):
        if name.endswith(unit):
            return name.removesuffix(unit).replace("_", " ")
    return printable(name, 60) if any(map(str.isdigit, name)) else printable(name.replace("_", " "), 60)


def _reason(refused: Mapping[str, Any]) -> str:
    return f"{refused['reason']} ({refused['code']}); {refused['hint']}"
