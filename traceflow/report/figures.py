"""Figures for notebooks, drawn by plotly."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Protocol

import numpy as np

from traceflow.report.names import printable
from traceflow.report.timeline import participant

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from traceflow.report.subject import Segments
    from traceflow.trace.model import Rows

COLOURS = {
    "compute": "#2f6fb3",
    "transfer": "#d4580f",
    "communication": "#a8326d",
    "copy": "#1f8a68",
    "host": "#7f8894",
    "launch": "#7450b5",
    "idle": "#d9dde2",
}
"""One colour per kind of segment, those of the report."""

MOST_BARS = 4_000


class Tiled(Protocol):
    """A window that segments tile, as it was or as it would be."""

    @property
    def segments(self) -> Segments:
        """The segments."""


def path_figure(path: Tiled) -> go.Figure:
    """The critical path over time, one row per participant and lane, coloured by kind.

    Args:
        path: A critical path, or that of a what-if. Of a very long one the shortest segments are left out, and the title says how many.

    Returns:
        A figure whose bars tell name, kind, duration and edge on hover.
    """
    import plotly.graph_objects as go

    segments = path.segments
    drawn = np.sort(np.argsort(-segments.duration_ns, kind="stable")[:MOST_BARS])
    places = [escape(place, quote=False) for place in places_of(segments)]
    bars = [_bars(segments, drawn[segments.kind[drawn] == kind], kind) for kind in COLOURS if kind in segments.kind]
    figure = go.Figure(bars)
    figure.update_layout(
        title=_title(segments, len(segments) - len(drawn)),
        barmode="overlay",
        bargap=0.35,
        xaxis_title="ms from the start of the window",
        yaxis={"categoryorder": "array", "categoryarray": places[::-1]},
        template="plotly_white",
        height=200 + 34 * len(places),
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom"},
    )
    return figure


def _bars(segments: Segments, rows: Rows, kind: str) -> go.Bar:
    import plotly.graph_objects as go

    return go.Bar(
        name=kind,
        orientation="h",
        y=[escape(place_of(segments, row), quote=False) for row in rows],
        base=(segments.start_ns[rows] - segments.start_ns[0]) / 1e6,
        x=segments.duration_ns[rows] / 1e6,
        marker={"color": COLOURS[kind], "line": {"width": 0}},
        customdata=[[shown_name(segments.name[row], 100), segments.edge[row] or "start of the window"] for row in rows],
        hovertemplate="<b>%{customdata[0]}</b><br>%{x:.6~g} ms, from %{base:.6~g} ms<br>reached by: %{customdata[1]}",
    )


def place_of(segments: Segments, row: int) -> str:
    """The participant and lane of a segment.

    Args:
        segments: A path.
        row: Which of them.
    """
    who = participant(int(segments.rank[row]), int(segments.device[row]))
    return f"{who}, {printable(segments.lane[row], 30)}"


def shown_name(name: str, limit: int) -> str:
    """A name as plotly shows it: it takes angle brackets for markup, and drops the arguments of templates.

    Args:
        name: A name from a trace.
        limit: Most characters to keep.
    """
    return escape(printable(name, limit), quote=False)


def places_of(segments: Segments) -> list[str]:
    """Every participant and lane of the path, in order of rank and device.

    Args:
        segments: A path.
    """
    first = {
        (int(rank), int(device), lane): row
        for row, (rank, device, lane) in enumerate(zip(segments.rank, segments.device, segments.lane, strict=True))
    }
    return [place_of(segments, first[key]) for key in sorted(first)]


def _title(segments: Segments, left_out: int) -> str:
    title = f"Critical path, {segments.duration_ns.sum() / 1e6:,.3f} ms"
    return f"{title}, without its {left_out:,} shortest segments" if left_out else title
