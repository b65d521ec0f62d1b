"""The timeline of a window as plain columns, small enough to travel inside a page, whatever the trace's size.

What is too short to see is merged: with a threshold t, neighbours on one lane that are shorter than t and start
in the same cell of width t become one block. t is the smallest power of two in ns that keeps the number of
rows within the budget; 1 ns merges nothing. A block keeps its span, how much of it is covered, the kind that
takes most of it, the name of its longest part, and the smallest slack.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from traceflow.graph import NO_LANE, DependencyGraph, EdgeKind, SliceKind
from traceflow.report.names import printable
from traceflow.report.subject import Segments, Written
from traceflow.result import Json
from traceflow.trace.model import ABSENT, Bool, Int64, Lanes, Marks, Rows, Trace

KINDS = ("compute", "transfer", "communication", "copy", "host", "blocked", "wait", "launch", "idle")
"""What a row can be; the first seven are slices, in the order of `SliceKind`."""

MOST_LANES = 160
MOST_STEPS = 1_000
_NAME_CHARACTERS = 160
_ALL_NAMES_CHARACTERS = 400_000
_UNNAMED = "(one of the names that were left out)"
_NO_SLACK = (SliceKind.BLOCKED, SliceKind.ARRIVED)


@dataclass(frozen=True, slots=True)
class Blocks:
    """Rows after merging: where each block's rows begin, and the threshold below which rows were merged."""

    first: Int64
    threshold_ns: int


@dataclass(frozen=True, slots=True)
class Timeline:
    """What the page's script draws, and what the page says about it in words."""

    data: dict[str, Json]
    slices: int
    rows: int
    merged_below_ns: int | None  # None where every slice is drawn as it is
    path_merged_below_ns: int | None
    lanes_left_out: int


def timeline(
    trace: Trace, graph: DependencyGraph, segments: Segments, written: Callable[[Rows], Written], *, budget: int
) -> Timeline:
    """The lanes of a window with their slices, and its critical path.

    Args:
        trace: The evidence.
        graph: The graph of the window.
        segments: Its critical path.
        written: What the programs tell of some events.
        budget: Most rows for all lanes together; the path may have a quarter as many.
    """
    shown, left_out = _shown_lanes(trace, graph)
    rows = np.flatnonzero(np.isin(graph.slices.lane, shown) & (graph.slices.end_ns > graph.slices.start_ns))
    slices = graph.slices
    blocks = merged(slices.lane[rows], slices.start_ns[rows], slices.end_ns[rows], budget)
    path = merged(
        np.zeros(len(segments), np.int32), segments.start_ns, segments.start_ns + segments.duration_ns, budget // 4
    )
    told = _Told(segments.name, written)
    data: dict[str, Json] = {
        "start_ns": graph.start_ns,
        "duration_ns": graph.end_ns - graph.start_ns,
        "kinds": list(KINDS),
        "steps": _steps(trace.marks, graph.start_ns, graph.end_ns),
        "path": _path_columns(segments, path, graph.start_ns, told),
        "lanes": _lane_columns(trace, graph, rows, blocks, shown, told),
    }
    data |= told.tables()
    return Timeline(data, len(rows), len(blocks.first), _threshold(blocks), _threshold(path), left_out)


def merged(lane: Rows, start_ns: Int64, end_ns: Int64, budget: int) -> Blocks:
    """Merge neighbours that are short, with the smallest threshold that leaves at most `budget` rows.

    Args:
        lane: Lane of each row, shape (n,); rows are sorted by lane and start.
        start_ns: Starts.
        end_ns: Ends, all after their starts.
        budget: Most rows to leave; more are left only where there are as many lanes.

    Example:
        >>> t = np.array([0, 1, 2, 100])
        >>> merged(np.zeros(4, int), t, t + 1, 2).first.tolist()
        [0, 3]
    """
    first, threshold_ns = np.arange(len(lane)), 1
    while len(first) > budget and threshold_ns < 1 << 62:
        threshold_ns *= 2
        first = np.flatnonzero(_begins(lane, start_ns, end_ns, threshold_ns))
    return Blocks(first, threshold_ns)


def _begins(lane: Rows, start_ns: Int64, end_ns: Int64, threshold_ns: int) -> Bool:
    """The rows that begin a block."""
    long = end_ns - start_ns >= threshold_ns
    cell = start_ns // threshold_ns
    begins = np.ones(len(lane), bool)
    begins[1:] = long[1:] | long[:-1] | (lane[1:] != lane[:-1]) | (cell[1:] != cell[:-1])
    return begins


def _threshold(blocks: Blocks) -> int | None:
    return blocks.threshold_ns if blocks.threshold_ns > 1 else None


def _steps(marks: Marks, start_ns: int, end_ns: int) -> list[Json]:
    """Number, start and end of each marked step in the window, over all ranks."""
    inside = (marks.start_ns < end_ns) & (marks.end_ns > start_ns)
    steps: list[Json] = []
    for step in np.unique(marks.step[inside])[:MOST_STEPS].tolist():
        rows = inside & (marks.step == step)
        steps.append([step, int(marks.start_ns[rows].min()) - start_ns, int(marks.end_ns[rows].max()) - start_ns])
    return steps


class _Names:
    """Numbers for names, those of the path first; when all together grow too long, the rest share one."""

    def __init__(self, first: Iterable[str] = ()) -> None:
        self._number: dict[str, int] = {}
        self._texts: list[str] = [_UNNAMED]
        self._room = _ALL_NAMES_CHARACTERS
        for name in first:
            self.number(name)

    def number(self, name: str) -> int:
        if name not in self._number:
            text = printable(name, _NAME_CHARACTERS)
            self._room -= len(text)
            self._number[name] = len(self._texts) if self._room >= 0 else 0
            self._texts += [text] if self._room >= 0 else []
        return self._number[name]

    def numbers(self, texts: Iterable[str | None]) -> list[Json]:
        """One per text, -1 for None."""
        return [-1 if text is None else self.number(text) for text in texts]

    def table(self) -> list[Json]:
        return [*self._texts]


class _Told:
    """What rows refer to by number: names, participants, and what the programs tell."""

    def __init__(self, first: Iterable[str], written: Callable[[Rows], Written]) -> None:
        self.names, self.who = _Names(first), _Names()
        self._of_events = written
        self._written: dict[tuple[Json, ...], int] = {}

    def written(self, told: Written, at: Rows) -> list[Json]:
        """One per row, -1 where the programs tell nothing."""
        columns = (self.names.numbers(column[at]) for column in (told.operation, told.scope, told.source))
        return [
            -1 if all(number == -1 for number in row) else self._written.setdefault(row, len(self._written))
            for row in zip(*columns, strict=True)
        ]

    def written_of(self, event: Rows) -> list[Json]:
        """The same for events."""
        return self.written(self._of_events(event), np.arange(len(event)))

    def tables(self) -> dict[str, Json]:
        return {
            "written": [[*row] for row in self._written],
            "names": self.names.table(),
            "participants": self.who.table(),
        }


def _shown_lanes(trace: Trace, graph: DependencyGraph) -> tuple[Rows, int]:
    """Lanes with work: by rank, devices before the host; those with the most work where they are too many."""
    slices = graph.slices
    on_lane = slices.lane != NO_LANE
    busy_ns = np.bincount(
        slices.lane[on_lane], (slices.end_ns - slices.start_ns)[on_lane].astype(float), minlength=len(trace.lanes)
    )
    busiest = np.argsort(-busy_ns, kind="stable")[: min(MOST_LANES, np.count_nonzero(busy_ns))]
    device = trace.lanes.device[busiest]
    order = np.lexsort((busiest, np.where(device == ABSENT, np.iinfo(np.int32).max, device), trace.lanes.rank[busiest]))
    return busiest[order], int(np.count_nonzero(busy_ns)) - len(busiest)


def _lane_columns(
    trace: Trace, graph: DependencyGraph, rows: Rows, blocks: Blocks, shown: Rows, told: _Told
) -> list[Json]:
    slices, first = graph.slices, blocks.first
    lane = slices.lane[rows][first] if len(first) else slices.lane[rows]
    columns = _block_columns(trace, graph, rows, first, told) if len(first) else {}
    lanes: list[Json] = []
    for number in shown.tolist():
        low, high = np.searchsorted(lane, [number, number + 1])
        row: dict[str, Json] = {
            "group": group_of(trace.lanes, number),
            "label": _label(trace.lanes.name[number], on_device=trace.lanes.device[number] != ABSENT),
        }
        row |= {name: _deltas(c[low:high]) if name == "start" else c[low:high].tolist() for name, c in columns.items()}
        lanes.append(row)
    return lanes


def _place(lanes: Lanes, lane: int) -> str:
    """A lane with its participant."""
    return f"{group_of(lanes, lane)}, {_label(lanes.name[lane], on_device=lanes.device[lane] != ABSENT)}"


def _label(name: str, *, on_device: bool) -> str:
    """A lane's name, with what it is where the name is only a number."""
    what = "stream" if on_device else "thread"
    return f"{what} {name}" if name.isdecimal() else printable(name, 60)


def _block_columns(trace: Trace, graph: DependencyGraph, rows: Rows, first: Int64, told: _Told) -> dict[str, Rows]:
    slices = graph.slices
    start, end, kind = slices.start_ns[rows], slices.end_ns[rows], slices.kind[rows]
    block = np.repeat(np.arange(len(first)), np.diff(np.append(first, len(rows))))
    work = end - start
    span = np.maximum.reduceat(end, first) - start[first]
    longest = np.lexsort((-work, block))[first]
    event = slices.event[rows[longest]]
    code = trace.events.name[event]
    number = {c: told.names.number(trace.strings[c]) for c in dict.fromkeys(code.tolist())}
    late = waited_for(graph, rows[longest])
    person = {
        lane: told.who.number(_place(trace.lanes, lane)) for lane in dict.fromkeys(late[late != NO_LANE].tolist())
    }
    columns = {
        "start": start[first] - graph.start_ns,
        "length": span,
        "name": np.array([number[c] for c in code.tolist()]),
        "kind": _most_time(block, kind, work),
        "slack": _least(_slack(graph)[rows], first),
        "path": np.maximum.reduceat(on_path(graph)[rows].astype(np.int8), first),
        "count": np.diff(np.append(first, len(rows))),
        "covered": np.minimum(100, np.add.reduceat(work, first) * 100 // span),
        "who": np.array([person.get(lane, -1) for lane in late.tolist()]),
    }
    written = {"written": np.array(told.written_of(event))} if len(trace.hlo.event) else {}
    return columns | written


def _path_columns(segments: Segments, blocks: Blocks, origin_ns: int, told: _Told) -> dict[str, Json]:
    first = blocks.first
    if not len(first):
        return {}
    block = np.repeat(np.arange(len(first)), np.diff(np.append(first, len(segments))))
    longest = np.lexsort((-segments.duration_ns, block))[first]
    kind = np.array([KINDS.index(k) for k in segments.kind])
    where = list(
        zip(segments.rank[longest].tolist(), segments.device[longest].tolist(), segments.lane[longest], strict=True)
    )
    place = {w: i for i, w in enumerate(dict.fromkeys(where))}
    return {
        "start": _deltas(segments.start_ns[first] - origin_ns),
        "length": np.add.reduceat(segments.duration_ns, first).tolist(),
        "name": [told.names.number(name) for name in segments.name[longest]],
        "kind": _most_time(block, kind, segments.duration_ns).tolist(),
        "count": np.diff(np.append(first, len(segments))).tolist(),
        "place": [place[w] for w in where],
        "places": [
            f"{participant(rank, device)}, {_label(lane, on_device=device != ABSENT)}" for rank, device, lane in place
        ],
        "edge": list(segments.edge[longest]),
        "who": told.who.numbers(None if one is None else participant(*one) for one in segments.waiting_for[longest]),
        "written": told.written(segments, longest),
        "reason": told.names.numbers(segments.reason[longest]),
    }


def _deltas(start: Rows) -> list[Json]:
    """Differences, which are short to write; the first is the first start."""
    return [int(step) for step in np.diff(start, prepend=0)]


def _most_time(block: Rows, kind: Rows, work: Int64) -> Rows:
    """Per block, the kind that takes most of its time."""
    width = len(KINDS)
    time = np.bincount(block * width + kind, work, minlength=(int(block[-1]) + 1) * width)
    most: Rows = time.reshape(-1, width).argmax(axis=1)
    return most


def _least(slack_ns: Int64, first: Int64) -> Int64:
    """Per block, the smallest slack; ABSENT where no part has one."""
    unknown = np.iinfo(np.int64).max
    least = np.minimum.reduceat(np.where(slack_ns == ABSENT, unknown, slack_ns), first)
    return np.where(least == unknown, ABSENT, least)


def _slack(graph: DependencyGraph) -> Int64:
    """Slack of each slice in ns, ABSENT for those that only wait."""
    slack_ns = graph.latest_ns()[1::2] - graph.slices.end_ns
    return np.where(np.isin(graph.slices.kind, _NO_SLACK), ABSENT, slack_ns)


def waited_for(graph: DependencyGraph, row: Rows) -> Rows:
    """The lane of what ended each wait: the last arrival, or the device's work; NO_LANE for all that is no wait.

    Args:
        graph: The graph of the window.
        row: Slices.
    """
    lane = np.full(len(row), NO_LANE, graph.slices.lane.dtype)
    vertex = 2 * row.astype(np.int64) + 1
    at = np.flatnonzero(np.isin(graph.slices.kind[row], _NO_SLACK))
    at = at[graph.kind[graph.binding[vertex[at]]] != EdgeKind.SELF]  # what nothing is known to have kept
    while len(at):  # through the joins, which lie on no lane
        at = at[graph.binding[vertex[at]] >= 0]
        vertex[at] = graph.source[graph.binding[vertex[at]]]
        lane[at] = graph.slices.lane[vertex[at] >> 1]
        at = at[lane[at] == NO_LANE]
    return lane


def on_path(graph: DependencyGraph) -> Bool:
    """The slices whose work lies on the critical path, shape (slices,)."""
    vertex = graph.path()
    binding = graph.binding[vertex]
    worked = vertex[(binding >= 0) & (graph.kind[binding] == EdgeKind.SELF)] >> 1
    chosen = np.zeros(len(graph.slices), bool)
    chosen[worked] = True
    return chosen & (graph.work_ns > 0)


def group_of(lanes: Lanes, lane: int) -> str:
    """Which participant, or host, a lane belongs to."""
    return participant(int(lanes.rank[lane]), int(lanes.device[lane]))


def participant(rank: int, device: int | None) -> str:
    """A participant in words.

    Example:
        >>> participant(0, 3), participant(1, None)
        ('rank 0, device 3', 'rank 1, host')
    """
    return f"rank {rank}, host" if device is None or device == ABSENT else f"rank {rank}, device {device}"
