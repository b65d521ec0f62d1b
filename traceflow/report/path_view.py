"""A critical path to click through, in a notebook: with a kernel as a widget, without one as a page of its own."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from traceflow.errors import TraceflowError
from traceflow.report.figures import COLOURS
from traceflow.report.grid import duration, percent
from traceflow.report.names import printable, short_name
from traceflow.report.timeline import participant

if TYPE_CHECKING:
    from traceflow.report.subject import Segments

MOST_SEGMENTS = 500
_NAME_CHARACTERS = 200
_FRAME_PIXELS = 340  # what the page needs beside its lanes
_LANE_PIXELS = 26
_MOST_LANES = 12  # to be seen at once


class Neighbour(Protocol):
    """Work that a segment had to wait for, or that waited for the segment."""

    @property
    def edge(self) -> str:
        """Why."""

    @property
    def rank(self) -> int:
        """Whose work it is."""

    @property
    def device(self) -> int | None:
        """On which device, None for the host."""

    @property
    def lane(self) -> str:
        """On which thread or stream."""

    @property
    def name(self) -> str:
        """What it is called."""

    @property
    def gap_ns(self) -> int:
        """Time between both."""

    @property
    def slack_ns(self) -> int:
        """How much later it could have been there."""

    @property
    def segment(self) -> int | None:
        """Which segment of the path it is."""


class Neighbours(Protocol):
    """The neighbours of some segments."""

    @property
    def slack_ns(self) -> Sequence[int]:
        """Of each segment itself."""

    @property
    def before(self) -> Sequence[Sequence[Neighbour]]:
        """What each had to wait for."""

    @property
    def after(self) -> Sequence[Sequence[Neighbour]]:
        """What waited for each."""


def drawn_segments(segments: Segments) -> list[int]:
    """The rows that a view shows: all, or the longest of a very long path, in order of time.

    Args:
        segments: The path.
    """
    return [int(row) for row in np.sort(np.argsort(-segments.duration_ns, kind="stable")[:MOST_SEGMENTS])]


class PathView:
    """A critical path to click through; the last line of a cell shows it.

    A click on a segment, or an arrow key, tells who it was, why it came when it did, what it waited for and what
    waited for it, how much later each could have been, and where the work was written. This needs no kernel, so a
    notebook that is stored or exported keeps it. Of `widget()` Python knows what is selected, too, as long as there is
    a kernel.

    Args:
        segments: The path.
        near: The neighbours of the segments `drawn_segments` gives.
        title: What is shown.

    Example:
        >>> view = run.path_view(step=3)                               # doctest: +SKIP
        >>> view.on_select(lambda segment: print(segment["name"]))     # doctest: +SKIP
        >>> view.widget()                                              # doctest: +SKIP
    """

    def __init__(self, segments: Segments, near: Neighbours, title: str) -> None:
        self._drawn = drawn_segments(segments)
        self._told = [told(segments, row, near, at) for at, row in enumerate(self._drawn)]
        self._data = _page_data(segments, self._drawn, self._told, title)
        self._listeners: list[Callable[[Mapping[str, Any]], object]] = []
        self._selected = int(np.argmax(segments.duration_ns[self._drawn])) if self._drawn else 0  # the longest
        self._widget: Any = None

    def __repr__(self) -> str:
        """One line."""
        return f"<PathView: {len(self._told):,} segments>"

    @property
    def selected(self) -> int:
        """Which segment is selected, among those that are shown."""
        return self._selected

    @selected.setter
    def selected(self, number: int) -> None:
        """Select another one."""
        if not 0 <= number < len(self._told):
            raise IndexError(f"the view shows segments 0 to {len(self._told) - 1}")
        self._take(number)
        if self._widget is not None:
            self._widget.selected = number

    @property
    def segment(self) -> Mapping[str, Any]:
        """What the view tells of the segment that is selected."""
        return self._told[self._selected]

    def on_select(self, call: Callable[[Mapping[str, Any]], object]) -> None:
        """Call a function whenever another segment is selected, by a click, a key, or from Python.

        Args:
            call: Takes what `segment` gives.
        """
        self._listeners.append(call)

    def _take(self, number: int) -> None:
        if number != self._selected:
            self._selected = number
            for call in self._listeners:
                call(self.segment)

    def to_html(self) -> str:
        """The view as a page of its own, which needs neither a kernel nor a network."""
        data = json.dumps(self._data, separators=(",", ":")).replace("<", "\\u003c")
        assets = {"style": _asset("path_view.css"), "script": _asset("path_view.js")}
        return _PAGE.format(data=data, selected=self._selected, **assets)

    def _repr_html_(self) -> str:
        height = _FRAME_PIXELS + _LANE_PIXELS * min(len(self._data["places"]), _MOST_LANES)
        return (
            f'<iframe sandbox="allow-scripts" style="width: 100%; height: {height}px; border: 0" '
            f"title='{_quoted(self._data['title'])}' srcdoc='{_quoted(self.to_html())}'></iframe>"
        )

    def widget(self) -> Any:
        """The view as a widget, whose clicks reach Python; it is made once, and other widgets can hold it.

        Raises:
            TraceflowError: TF123 without the package anywidget.
        """
        if self._widget is None:
            self._widget = _widget_class()(data=self._data, selected=self._selected)
            self._widget.observe(lambda change: self._take(int(change["new"])), "selected")
        return self._widget


def _quoted(text: str) -> str:
    """Text for an attribute in single quotes: of those there are few in JSON."""
    return text.replace("&", "&amp;").replace("'", "&#39;")


@cache
def _widget_class() -> Any:
    """The class of the widget: its page is told the path once, and tells which segment is selected."""
    try:
        import anywidget
        import traitlets
    except ImportError as error:
        what, hint = "cannot make a widget of the path", "pip install 'traceflow-ml[notebook]', or show the view itself"
        raise TraceflowError("TF123", what, "anywidget is not installed", hint) from error

    members = {
        "_esm": f"{_asset('path_view.js')}\nexport default {{ render }};\n",
        "_css": _asset("path_view.css"),
        "data": traitlets.Dict().tag(sync=True),
        "selected": traitlets.Int().tag(sync=True),
    }
    return type("PathWidget", (anywidget.AnyWidget,), members)


@cache
def _asset(name: str) -> str:
    return (files("traceflow.report") / "templates" / name).read_text(encoding="utf-8")


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><style>{style}</style></head>
<body><div id="path"></div><script id="data" type="application/json">{data}</script>
<script type="module">
{script}
const state = {{ data: JSON.parse(document.getElementById("data").textContent), selected: {selected} }};
const model = {{ get: (name) => state[name], set: (name, value) => {{ state[name] = value; }}, save_changes() {{}}, on() {{}} }};
render({{ model, el: document.getElementById("path") }});
</script></body></html>
"""


def told(segments: Segments, row: int, near: Neighbours, at: int) -> dict[str, Any]:
    """What a view tells of a segment: texts, with times in ns beside them.

    Args:
        segments: The path.
        row: Which of them.
        near: The neighbours.
        at: Where in `near` they are.
    """
    whole_ns, length_ns = int(segments.duration_ns.sum()), int(segments.duration_ns[row])
    start_ns = int(segments.start_ns[row] - segments.start_ns[0])
    return {
        "row": row,
        "name": _name(segments, row),
        "kind": segments.kind[row],
        "who": _who(segments, row),
        "lane": printable(segments.lane[row], 40),
        "start_ns": start_ns,
        "duration_ns": length_ns,
        "slack_ns": int(near.slack_ns[at]),
        "when": f"{duration(length_ns)}, {percent(length_ns / whole_ns)} of the window, from {duration(start_ns)}",
        "why": _why(segments, row),
        "slack": _slack(int(near.slack_ns[at])),
        "operation": _text(segments.operation[row]),
        "scope": _text(segments.scope[row]),
        "source": _text(segments.source[row]),
        "before": [_neighbour(one, "earlier") for one in near.before[at]],
        "after": [_neighbour(one, "later") for one in near.after[at]],
    }


def _name(segments: Segments, row: int) -> str:
    """What a segment is called; idle time by what came then."""
    name = printable(short_name(segments.name[row]), _NAME_CHARACTERS)
    return f"before {name}" if segments.kind[row] == "idle" else name


def _who(segments: Segments, row: int) -> str:
    return participant(int(segments.rank[row]), int(segments.device[row]))


def _participants(segments: Segments) -> list[str]:
    """Everybody on the path, in order of rank and device; at no time is the path in two places."""
    found = sorted(set(zip(segments.rank.tolist(), segments.device.tolist(), strict=True)))
    return [participant(*one) for one in found]


def _text(value: str | None) -> str | None:
    return None if value is None else printable(value, _NAME_CHARACTERS)


def _slack(slack_ns: int) -> str:
    if slack_ns:
        return f"{duration(slack_ns)}, within the resolution of the clock"
    return "none: were it longer, so would be the window"


def _why(segments: Segments, row: int) -> str:
    """How the path came to a segment."""
    if segments.reason[row] is not None:
        return f"not known: {segments.reason[row]}"
    if segments.edge[row] is None:
        return "it begins the window"
    late = segments.waiting_for[row]
    return f"{segments.edge[row]}, the last was {participant(*late)}" if late else str(segments.edge[row])


def _neighbour(one: Neighbour, when: str) -> dict[str, Any]:
    lane = printable(one.lane, 40)
    gap = f"{duration(one.gap_ns)} {when}" if one.gap_ns else "at once"
    spare = "" if one.segment is not None else f", could be {duration(one.slack_ns)} later" if one.slack_ns else ""
    return {
        "name": printable(short_name(one.name), _NAME_CHARACTERS),
        "where": f"{participant(one.rank, one.device)}, {lane}",
        "text": f"{one.edge}, {gap}{spare}",
        "gap_ns": one.gap_ns,
        "slack_ns": one.slack_ns,
        "row": one.segment,
    }


def _page_data(
    segments: Segments, drawn: Sequence[int], told_of: Sequence[Mapping[str, Any]], title: str
) -> dict[str, Any]:
    """What the page's script draws."""
    left_out = len(segments) - len(drawn)
    return {
        "title": f"{title}, without its {left_out:,} shortest segments" if left_out else title,
        "whole_ns": int(segments.duration_ns.sum()),
        "places": _participants(segments),
        "colours": {kind: COLOURS[kind] for kind in COLOURS if kind in segments.kind},
        "segments": told_of,
    }
