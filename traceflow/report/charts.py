"""One figure for each kind of result: what of its main table is drawn, and by what name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from traceflow.report.figures import path_figure, shown_name
from traceflow.report.units import size_unit, unit_for
from traceflow.result import Result, Skipped

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

MOST_ROWS = 30
_NAME_CHARACTERS = 60


def _main_table(result: Result) -> pd.DataFrame:
    return result.to_pandas()


def _part(key: str) -> Callable[[Result], pd.DataFrame]:
    """A list of the result's own, as a table."""

    def table(result: Result) -> pd.DataFrame:
        import pandas as pd

        rows: Any = result.to_dict()[key]
        return pd.DataFrame(rows)

    return table


def _judged(result: Result) -> pd.DataFrame:
    """How often a plan and a trace agree, differ, and cannot be compared."""
    import pandas as pd

    said, counted = result.to_dict(), ("agreements", "differences", "unknown")
    return pd.DataFrame([{"answer": name, "rows": said[name]} for name in counted])


@dataclass(frozen=True, slots=True)
class Chart:
    """What of a table is drawn as bars.

    Args:
        values: Columns in one unit, which the end of their names tells; they are stacked.
        by: Columns that name a bar; rows of one name are added up.
        table: The table; the main one unless told otherwise.
        most: The column that says which rows of the main table matter most; the first of the values where it is empty.
    """

    values: tuple[str, ...]
    by: tuple[str, ...]
    table: Callable[[Result], pd.DataFrame] = _main_table
    most: str = ""

    @property
    def weight(self) -> str:
        """The column that rows are weighed by."""
        return self.most or self.values[0]


CHARTS: Mapping[str, Chart] = {
    "all": Chart(("cost_ns",), ("code", "title")),
    "summary": Chart(("duration_ns",), ("step", "rank")),
    "critical-path": Chart(("duration_ns",), ("kind", "name")),
    "what-if": Chart(("duration_ns",), ("kind", "name")),
    "communication": Chart(("wait_ns", "transfer_ns"), ("op", "rank", "device"), most="exposed_ns"),
    "clocks": Chart(("offset_ns",), ("rank",)),
    "stragglers": Chart(("cost_ns",), ("rank", "device", "stage", "cause", "name")),
    "savings": Chart(("saved_ns",), ("title",)),
    "memory": Chart(("bytes",), ("name", "opcode")),
    "moe": Chart(("hot_expert_ratio",), ("layer", "step", "occurrence")),
    "padding": Chart(("padding_bytes",), ("name", "shape")),
    "sharding": Chart(("bytes",), ("op", "name"), _part("collectives")),
    "collective-matmul": Chart(("overlapped_ns", "exposed_ns"), ("loop", "round")),
    "budget": Chart(("measured_ns",), ("kind", "name")),
    "plan": Chart(("payload_bytes",), ("name", "direction", "dimension")),
    "plan-check": Chart(("rows",), ("answer",), _judged),
    "plan-compare": Chart(("payload_bytes",), ("form",)),
    "diff": Chart(("change_ratio",), ("name",)),
    "check": Chart(("value", "limit"), ("expression",)),
}
"""One per kind of result."""


def figure_of(result: Result) -> go.Figure:
    """A result as a figure: a critical path over time, anything else as bars, the longest first.

    Args:
        result: What an analyzer found. Where it holds nothing to draw, the figure says why.
    """
    if result.kind in {"critical-path", "what-if"}:
        return path_figure(result)  # type: ignore[arg-type]  # these two have segments
    chart = CHARTS[result.kind]
    table = chart.table(result)
    values = [name for name in chart.values if name in table]
    known = table[table[values].notna().any(axis="columns")] if values else table[:0]
    if known.empty:
        return _nothing(result)
    return _bars(result.kind, _summed(known, chart, values))


def _summed(table: pd.DataFrame, chart: Chart, values: list[str]) -> pd.DataFrame:
    """The values by name, the largest first."""
    by = [name for name in chart.by if name in table and table[name].notna().any()]
    label = table[by].apply(_label, axis="columns") if by else table.index.map(str)
    summed = table[values].apply(_numbers).groupby(label, sort=False).sum()
    order = summed.abs().sum(axis="columns").sort_values(ascending=False, kind="stable").index
    return summed.loc[order]


def _numbers(column: pd.Series[Any]) -> pd.Series[float]:
    import pandas as pd

    return pd.to_numeric(column, errors="coerce").astype(float)


def _label(row: pd.Series[Any]) -> str:
    """What a bar is called; a number alone says nothing, so it is told with what it is of."""
    parts = [str(v) if isinstance(v, str) else f"{name} {v:g}" for name, v in row.items() if v is not None and v == v]  # noqa: PLR0124  # NaN is not itself
    return shown_name(", ".join(parts), _NAME_CHARACTERS)


def _bars(kind: str, summed: pd.DataFrame) -> go.Figure:
    import plotly.graph_objects as go

    drawn = summed[:MOST_ROWS]
    factor, unit = _unit(str(summed.columns[0]), float(drawn.abs().to_numpy().max()))
    more = f", the {len(drawn)} largest of {len(summed):,}" if len(drawn) < len(summed) else ""
    figure = go.Figure(
        [
            go.Bar(name=words(name), y=[*drawn.index], x=drawn[name] / factor, orientation="h")
            for name in map(str, drawn.columns)
        ]
    )
    figure.update_layout(
        title=f"{kind}{more}",
        barmode="group" if "limit" in drawn else "relative",
        xaxis_title=f"{words(str(drawn.columns[0]))} ({unit})" if unit else words(str(drawn.columns[0])),
        yaxis={"autorange": "reversed", "automargin": True},
        template="plotly_white",
        height=160 + 26 * len(drawn),
        showlegend=len(drawn.columns) > 1,
    )
    return figure


def _unit(column: str, largest: float) -> tuple[float, str]:
    """What to divide a column by, and what it is in then."""
    if column.endswith("_ns"):
        unit = unit_for([int(largest)])
        return unit.ns, unit.name
    if column.endswith("bytes"):
        return size_unit(int(largest))
    return (0.01, "%") if column.endswith("_share") else (1, "")


def words(column: str) -> str:
    """A column's name without its unit.

    Example:
        >>> words("saved_ns"), words("padding_bytes"), words("by_kind_ns"), words("bytes")
        ('saved', 'padding', 'by kind', 'bytes')
    """
    stem = column
    for unit in ("_ns", "_bytes", "_share"):
        stem = stem.removesuffix(unit)
    return stem.replace("_", " ")


def _nothing(result: Result) -> go.Figure:
    """An empty figure with the reason."""
    import plotly.graph_objects as go

    (why, *_) = (*result.skipped, Skipped("", "the result has no rows"))
    figure = go.Figure()
    figure.update_layout(
        title=result.kind, template="plotly_white", height=160, xaxis={"visible": False}, yaxis={"visible": False}
    )
    figure.add_annotation(text=shown_name(f"nothing to draw: {why.reason}", 160), showarrow=False)
    return figure
