"""How a result shows itself where nobody asked for a report: in a notebook, in IPython, and to rich.

What it says in figures, what was found, the rows of its main table that weigh most, and why something is not available.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from rich.text import Text

from traceflow.report.answer import answer_text
from traceflow.report.charts import CHARTS, words
from traceflow.report.names import printable, where
from traceflow.report.units import UNKNOWN, duration_text, size_text, size_unit, unit_for
from traceflow.result import Finding, Result

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import RenderableType

MOST_ROWS = 10
_MOST_FIGURES = 12
_MOST_PARTS = 8  # of a figure that is told by kind or by rank
_MOST_GAPS = 5
_TOLD_ELSEWHERE = frozenset({"window", "left_out", "redundancy_reason"})
_ALL = "all"  # the table of which is its findings
_CELL_CHARACTERS = 80
_REASON_CHARACTERS = 300


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of a table as text; the head of a column tells its unit."""

    columns: tuple[str, ...]
    is_number: tuple[bool, ...]
    rows: tuple[tuple[str, ...], ...]
    of: int  # how many rows the whole table has
    by: str = ""  # what the rows have most of, where they are not the first ones


def as_html(result: Result) -> str:
    """A result for a notebook, as HTML without scripts or styles; whatever a trace is called, it is text.

    Args:
        result: What an analyzer found.
    """
    table = rows_of(result)
    found = "".join(f"<li>{_finding_html(finding)}</li>" for finding in result.findings[:MOST_ROWS])
    told = "".join(f"<li>{escape(line)}</li>" for line in (*_figures(result), *_unknown(result)))
    lists = "".join(f"<ul>{items}</ul>" for items in (found, told) if items)
    rows = "" if result.kind == _ALL else _table_html(table)
    return f"<p><b>{escape(result.kind)}</b>{_counts(result, table)}</p>{lists}{rows}"


def as_text(result: Result, *, width: int = 80) -> str:
    """A result for a terminal, as plain text.

    Args:
        result: What an analyzer found.
        width: Characters of a line.
    """
    table = rows_of(result)
    lines = [f"{result.kind}{_counts(result, table)}", *_figures(result)]
    lines += [f"{_found(finding)}\n      {finding.suggestion}" for finding in result.findings[:MOST_ROWS]]
    lines += _unknown(result)
    if table.rows and result.kind != _ALL:
        lines += ["", answer_text(table, top=MOST_ROWS, width=width, color=False).rstrip()]
    return "\n".join(lines)


def as_rich(result: Result, *, width: int = 80) -> RenderableType:
    """A result for `rich.print`.

    Args:
        result: What an analyzer found.
        width: Characters of a line.
    """
    text = Text(as_text(result, width=width))
    text.stylize("bold", 0, len(result.kind))
    return text


def in_one_line(result: Result) -> str:
    """A result as its `repr`.

    Args:
        result: What an analyzer found.
    """
    return f"<{type(result).__name__}{_counts(result, None)}>"


def rows_of(result: Result) -> Rows:
    """The rows of the main table that weigh most, in its own order, what names and weighs them before the rest.

    Columns without anything in them are left out.

    Args:
        result: What an analyzer found.
    """
    whole = result.to_pandas()
    chart = CHARTS[result.kind]
    frame = _weightiest(whole, chart.weight).dropna(axis="columns", how="all")
    first = [name for name in dict.fromkeys((*chart.by, chart.weight, *chart.values)) if name in frame]
    columns = [
        _column(str(name), frame[name].tolist()) for name in (*first, *frame.columns.difference(first, sort=False))
    ]
    cells = tuple(zip(*(cells for _, _, cells in columns), strict=True))
    heads, numbers = tuple(head for head, *_ in columns), tuple(number for _, number, _ in columns)
    return Rows(heads, numbers, cells, len(whole), words(chart.weight) if chart.weight in whole else "")


def _weightiest(table: pd.DataFrame, measure: str) -> pd.DataFrame:
    """The rows with most of a measure; the first ones where the table has no such column."""
    import pandas as pd

    if len(table) <= MOST_ROWS or measure not in table:
        return table.head(MOST_ROWS)
    weight = pd.to_numeric(table[measure], errors="coerce").astype(float).abs().fillna(-1).to_numpy()
    return table.iloc[sorted((-weight).argsort(kind="stable")[:MOST_ROWS])]


def _column(name: str, values: Sequence[Any]) -> tuple[str, bool, tuple[str, ...]]:
    """The head of a column, whether it holds numbers, and its cells."""
    known = [value for value in values if not _is_missing(value)]
    number = all(isinstance(value, int | float) and not isinstance(value, bool) for value in known)
    if not number:
        return words(name), False, tuple("" if _is_missing(value) else _cell(value, name) for value in values)
    head, scale = _scale(name, known)
    return head, True, tuple(UNKNOWN if _is_missing(value) else scale(value) for value in values)


def _scale(name: str, known: Sequence[float]) -> tuple[str, Callable[[float], str]]:
    """A column's head with its unit, and what makes text of a number in it."""
    if name.endswith("_ns"):
        unit = unit_for(map(int, known))
        return f"{words(name)} ({unit.name})", lambda ns: unit.text(int(ns))
    if name.endswith("bytes"):
        factor, size = size_unit(int(max(map(abs, known), default=0)))
        return f"{words(name)} ({size})", lambda count: f"{count / factor:,.{1 if factor > 1 else 0}f}"
    if name.endswith("_share"):
        return f"{words(name)} (%)", lambda share: f"{100 * share:.1f}"
    return words(name), _number


def _number(value: float) -> str:
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.4g}"


def _is_missing(value: object) -> bool:
    import pandas as pd

    return value is None or (not isinstance(value, dict | list | tuple) and bool(pd.isna(value)))  # type: ignore[call-overload]  # any scalar


def _cell(value: Any, name: str) -> str:
    """Something that is no number; of a line of source, which file and line."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping) and value.keys() == {"rank", "device"}:
        return where(value)
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return printable(text.rpartition("/")[2] if name == "source" else text, _CELL_CHARACTERS)


def _figures(result: Result) -> list[str]:
    """What the result says beside its tables, a line each: single figures together, those by kind or by rank apart."""
    told = {name: value for name, value in result.to_dict().items() if name not in _TOLD_ELSEWHERE}
    single = [f"{words(name)} {_amount(name, value)}" for name, value in told.items() if _is_figure(value)]
    parts = [_parts(name, value) for name, value in told.items() if isinstance(value, dict)]
    lines = (", ".join(single[:_MOST_FIGURES]), *parts)
    return [printable(line, _REASON_CHARACTERS) for line in lines if line]


def _parts(name: str, value: Mapping[str, Any]) -> str:
    """Figures by kind or by rank, in one unit where the whole tells it; nothing where there are too many."""
    figures = {key: v for key, v in value.items() if _is_figure(v) and not isinstance(v, str)}
    inherits = name.endswith("_ns")  # what an object of durations holds beside them has a unit of its own
    if inherits:
        figures = {k: v for k, v in figures.items() if not isinstance(v, bool) and not k.endswith("_ratio")}
    if not 0 < len(figures) <= _MOST_PARTS:
        return ""
    if not inherits:
        return f"{words(name)}: {', '.join(f'{words(key)} {_amount(key, v)}' for key, v in figures.items())}"
    head, text = _scale(name, list(figures.values()))
    return f"{head}: {', '.join(f'{key} {text(v)}' for key, v in figures.items())}"


def _is_figure(value: object) -> bool:
    return isinstance(value, int | float | str) and value != ""


def _amount(name: str, value: Any) -> str:
    if isinstance(value, bool | str):
        return _cell(value, name)
    if name.endswith("_ns"):
        return duration_text(int(value))
    if name.endswith("bytes"):
        return size_text(int(value))
    return f"{100 * value:.1f} %" if name.endswith("_share") else _number(value)


def _counts(result: Result, table: Rows | None) -> str:
    """How many rows and findings there are, and which rows are shown."""
    rows = len(result.to_pandas()) if table is None else table.of
    findings = len(result.findings)
    counted = f", {rows:,} row{'s' * (rows != 1)}, {findings:,} finding{'s' * (findings != 1)}"
    if table is None or len(table.rows) == rows:
        return counted
    return f"{counted}; the {len(table.rows)} rows with most {table.by}" if table.by else f"{counted}; the first rows"


def _found(finding: Finding) -> str:
    """A finding in one line."""
    cost = "" if finding.cost_ns is None else f", {duration_text(finding.cost_ns)}"
    return f"{finding.code} {finding.severity}: {printable(finding.title, _REASON_CHARACTERS)} ({finding.provenance}{cost})"


def _finding_html(finding: Finding) -> str:
    """A finding in one line of HTML, its suggestion on hovering."""
    return f'<span title="{escape(finding.suggestion)}">{escape(_found(finding))}</span>'


def _unknown(result: Result) -> list[str]:
    """What could not be established, once per reason."""
    by_reason: dict[str, list[str]] = {}
    for gap in result.skipped:
        parts = [part for part in gap.what.removeprefix("/result").split("/") if part not in {"", "*"}]
        by_reason.setdefault(gap.reason, []).append(words(" ".join(parts[-1:])) or "everything")
    told = [f"not available: {', '.join(dict.fromkeys(what))} ({reason})" for reason, what in by_reason.items()]
    more = [f"and {len(told) - _MOST_GAPS} more, in .skipped"] if len(told) > _MOST_GAPS else []
    return [printable(line, _REASON_CHARACTERS) for line in (*told[:_MOST_GAPS], *more)]


def _table_html(table: Rows) -> str:
    if not table.rows:
        return ""
    align = ['style="text-align: right"' if number else 'style="text-align: left"' for number in table.is_number]
    head = "".join(f"<th {at}>{escape(name)}</th>" for name, at in zip(table.columns, align, strict=True))
    body = "".join(
        f"<tr>{''.join(f'<td {at}>{escape(cell)}</td>' for cell, at in zip(row, align, strict=True))}</tr>"
        for row in table.rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
