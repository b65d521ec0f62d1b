"""The tables of a report on steps, on the critical path and on the quality of the evidence."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from heapq import nlargest
from typing import Any, TypeAlias

import numpy as np

from traceflow.report.definitions import DEFINITIONS
from traceflow.report.grid import (
    Column,
    Grid,
    Jump,
    Piece,
    bar,
    bars,
    counts,
    duration,
    durations,
    jumps,
    lanes,
    names,
    percents,
    prose,
    times,
    words,
)
from traceflow.report.joined import written_at
from traceflow.report.names import figure_called
from traceflow.report.subject import CriticalPath, Segments
from traceflow.report.timeline import participant
from traceflow.result import Note, Skipped, Tally
from traceflow.trace.model import Int64, Trace

Row: TypeAlias = Mapping[str, Any]

MOST_ROWS = 100
MOST_RUNS = 25
MOST_NAMES = 15


def steps_grid(summary: Row) -> Grid | None:
    """Every step on every rank with its three endpoints; None where no step is marked."""
    rows = summary["steps"][:MOST_ROWS]
    if not rows:
        return None
    longest = max(row["duration_ns"] for row in rows)
    unmarked = "nothing in the trace marks this moment"
    endpoints = {which: [_since(row, f"{which}_ns") for row in rows] for which in ("returned", "ready", "fetched")}
    length, *ends = durations({"duration": [row["duration_ns"] for row in rows], **endpoints}, absent=unmarked)
    return Grid(
        "Steps",
        (
            words("step", [str(row["step"]) for row in rows]),
            words("rank", [str(row["rank"]) for row in rows]),
            length,
            _drawn("duration", [bar([("plain", row["duration_ns"])], longest) for row in rows]),
            *ends,
            words("state", ["compiled" if row["compiled"] else "steady" for row in rows]),
        ),
        left_out(len(summary["steps"]), len(rows), "steps"),
    )


def steps_chart(summary: Row, chosen: int | None) -> tuple[Piece, ...]:
    """One column per step, as high as the step on its slowest rank is long, in percent of the longest step.

    Args:
        summary: The summary of the capture, as in the JSON contract.
        chosen: The step that is explained.
    """
    slowest: dict[int, Row] = {}
    for row in summary["steps"]:
        if row["step"] not in slowest or row["duration_ns"] > slowest[row["step"]]["duration_ns"]:
            slowest[row["step"]] = row
    longest = max((row["duration_ns"] for row in slowest.values()), default=0) or 1
    return tuple(
        Piece(
            "chosen" if number == chosen else "compiled" if row["compiled"] else "steady",
            0,
            round(100 * row["duration_ns"] / longest, 1),
            f"step {number}: {duration(row['duration_ns'])}{', compiled' if row['compiled'] else ''}",
        )
        for number, row in sorted(slowest.items())
    )


def _drawn(what: str, values: Sequence[tuple[Piece, ...]]) -> Column:
    """A column of bars beside the figures that they draw, without a heading of its own."""
    return Column("", tuple(values), DEFINITIONS[what], "bar")


def left_out(total: int, shown: int, what: str) -> str:
    """What a table says of the rows that it does not show.

    Example:
        >>> left_out(130, 100, "steps"), left_out(101, 100, "steps"), left_out(3, 3, "steps")
        ('30 more steps are not shown.', 'One of the steps is not shown.', '')
    """
    if total - shown == 1:
        return f"One of the {what} is not shown."
    return f"{total - shown:,} more {what} are not shown." if total > shown else ""


def _since(row: Row, end: str) -> int | None:
    """A moment counted from the start of its step."""
    return None if row[end] is None else int(row[end] - row["start_ns"])


def path_grids(path: CriticalPath) -> Iterator[Grid]:
    """The critical path by kind, by rank, by name, and its longest stretches."""
    whole = path.makespan_ns
    yield _sums("By kind", words, "kind", path.by_kind_ns, whole, lambda kind: kind)
    if len(path.by_rank_ns) > 1:
        yield _sums(
            "By rank", words, "rank", {str(r): ns for r, ns in path.by_rank_ns.items()}, whole, lambda _: "plain"
        )
    yield _by_name(path.segments, whole)
    yield _longest_runs(path.segments, whole)


def _sums(
    title: str,
    first: Callable[[str, Sequence[str]], Column],
    head: str,
    sums_ns: Mapping[str, int],
    whole_ns: int,
    kind: Callable[[str], str],
) -> Grid:
    keys = sorted(sums_ns, key=lambda key: -sums_ns[key])
    return Grid(
        title,
        (
            first(head, keys),
            times("time on the path", [sums_ns[key] for key in keys]),
            percents("share", [_share(sums_ns[key], whole_ns) for key in keys]),
            _drawn("share", [bar([(kind(key), sums_ns[key])], whole_ns) for key in keys]),
        ),
    )


def _by_name(segments: Segments, whole_ns: int) -> Grid:
    """The names that take most time on the path, with the kind of that time."""
    total: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])
    for name, kind, ns in zip(segments.name, segments.kind, segments.duration_ns.tolist(), strict=True):
        entry = total[name, kind]
        entry[0] += ns
        entry[1] += 1
    costliest = nlargest(MOST_NAMES, total.items(), key=lambda item: item[1][0])
    return Grid(
        "Costliest names on the path",
        (
            names("name", [name for (name, _), _ in costliest]),
            words("kind", [kind for (_, kind), _ in costliest]),
            counts("pieces", [count for _, (_, count) in costliest]),
            times("time on the path", [ns for _, (ns, _) in costliest]),
            percents("share", [_share(ns, whole_ns) for _, (ns, _) in costliest]),
        ),
        left_out(len(total), len(costliest), "names"),
    )


def _longest_runs(segments: Segments, whole_ns: int) -> Grid:
    """Stretches of the path with one name on one lane, the longest first."""
    first = _run_starts(segments)
    length = np.add.reduceat(segments.duration_ns, first) if len(first) else segments.duration_ns
    after = np.append(first[1:], len(segments))
    top = np.argsort(-length, kind="stable")[:MOST_RUNS]
    at, to = first[top], after[top]
    origin = int(segments.start_ns[0]) if len(segments) else 0
    starts, lengths = (segments.start_ns[at] - origin).tolist(), length[top].tolist()
    where = zip(segments.rank[at].tolist(), segments.device[at].tolist(), strict=True)
    return Grid(
        "Longest stretches of the path",
        (
            *durations({"start": starts, "duration": lengths}),
            percents("share", [_share(ns, whole_ns) for ns in lengths]),
            bars("kind", [_kinds_of(segments, i, j) for i, j in zip(at.tolist(), to.tolist(), strict=True)]),
            names("name", list(segments.name[at])),
            words("participant", [participant(*who) for who in where]),
            _place(segments, at),
            words("edge", ["start of the window" if edge is None else edge for edge in segments.edge[at]]),
            words("waited for", ["" if who is None else participant(*who) for who in segments.waiting_for[at]]),
            counts("pieces", (to - at).tolist()),
            jumps([Jump(*stretch) for stretch in zip(starts, lengths, strict=True)]),
        ),
        left_out(len(first), len(top), "stretches") or "A stretch is a part of the path with one name on one lane.",
    )


def _place(segments: Segments, at: Int64) -> Column:
    """Where in the program some segments were written, and what they fuse; without a program, on which lane they ran."""
    rows = zip(segments.operation[at], segments.scope[at], segments.source[at], strict=True)
    told = [
        ", ".join(
            filter(None, (operation if "(" in (operation or "") else "", written_at({"scope": s, "source": line})))
        )
        for operation, s, line in rows
    ]
    return prose("what and where", told) if any(told) else lanes(list(segments.lane[at]))


def _run_starts(segments: Segments) -> Int64:
    begins = np.ones(len(segments), bool)
    begins[1:] = segments.name[1:] != segments.name[:-1]
    begins[1:] |= (segments.lane[1:] != segments.lane[:-1]) | (segments.rank[1:] != segments.rank[:-1])
    return np.flatnonzero(begins)


def _kinds_of(segments: Segments, start: int, end: int) -> tuple[Piece, ...]:
    total: dict[str, int] = defaultdict(int)
    for kind, ns in zip(segments.kind[start:end], segments.duration_ns[start:end].tolist(), strict=True):
        total[kind] += ns
    return bar(sorted(total.items(), key=lambda item: -item[1]), sum(total.values()))


def quality_grids(tally: Tally, notes: Iterable[Note], skipped: Iterable[Skipped]) -> Iterator[Grid]:
    """What became of the events, what was noticed about them, and what could not be said."""
    outcomes = [("read", tally.read), ("kept", tally.kept)]
    outcomes += [(f"repaired: {reason}", n) for reason, n in tally.repaired.items()]
    outcomes += [(f"dropped: {reason}", n) for reason, n in tally.dropped.items()]
    if tally.read:
        yield Grid("Events", (words("outcome", [w for w, _ in outcomes]), counts("events", [n for _, n in outcomes])))
    if remarks := list(notes):
        affected = [", ".join(map(figure_called, note.affects)) or "no figure" for note in remarks]
        columns = words("code", [note.code for note in remarks]), prose("remark", [note.text for note in remarks])
        yield Grid("Remarks", (*columns, prose("affects", affected)))
    missing: dict[str, dict[str, None]] = defaultdict(dict)
    for gap in skipped:
        missing[gap.reason][figure_called(gap.what)] = None
    if missing:
        columns = prose("figure", [", ".join(figures) for figures in missing.values()]), prose("reason", list(missing))
        yield Grid("Not available", columns)


def input_grids(trace: Trace) -> Iterator[Grid]:
    """Which files were read, and how they describe themselves."""
    ranks = trace.ranks[:MOST_ROWS]
    yield Grid(
        "Inputs",
        (
            words("rank", [str(rank.rank) for rank in ranks]),
            names("source", [rank.source for rank in ranks]),
            names("host", ["not told by the trace" if rank.host is None else rank.host for rank in ranks]),
        ),
        left_out(len(trace.ranks), len(ranks), "ranks"),
    )
    if trace.metadata:
        facts = sorted(trace.metadata.items())[:MOST_ROWS]
        columns = names("key", [key for key, _ in facts]), names("value", [value for _, value in facts])
        yield Grid("The trace about itself", columns, left_out(len(trace.metadata), len(facts), "fields"))


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None
