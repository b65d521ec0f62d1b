"""A critical path for a terminal: what it spends its time on, and its longest pieces in order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from heapq import nlargest
from itertools import groupby
from typing import TYPE_CHECKING, Any, TypeAlias

from rich.text import Text

from traceflow.report.joined import written_at
from traceflow.report.names import short_name, where
from traceflow.report.tables import Rows, heading, left_out
from traceflow.report.units import duration_text, share_text, unit_for

if TYPE_CHECKING:
    from rich.console import RenderableType

Row: TypeAlias = Mapping[str, Any]

_DEVICE_WORK = frozenset({"compute", "transfer", "communication", "copy"})


def path_parts(result: Row, top: int) -> Iterator[RenderableType]:
    """The critical path by kind, by rank and by name, its longest pieces, and the slack of what is not on it.

    Args:
        result: The `result` of `traceflow show critical-path`.
        top: Longest tables, in rows.
    """
    yield from _by_kind(result["by_kind_ns"], result["makespan_ns"])
    if len(result["by_rank_ns"]) > 1:
        yield from _shares("rank", result["by_rank_ns"], result["makespan_ns"])
    yield from _by_name(result["segments"], result["makespan_ns"], top)
    yield from _pieces(result["segments"], result["window"], top)
    if result["error_ns"]:
        yield Text(f"\nBetween hosts, times are known to within {duration_text(result['error_ns'])}")
    if "slack" in result:
        yield from _slack(result["slack"], top)


def predicted_path_parts(result: Row, top: int) -> Iterator[RenderableType]:
    """The critical path as it would be.

    Args:
        result: The `result` of `traceflow what-if`.
        top: Longest tables, in rows.
    """
    sums: Counter[str] = Counter()
    for segment in result["segments"]:
        sums[segment["kind"]] += segment["duration_ns"]
    yield heading("The path as it would be")
    yield from _by_kind(sums, result["predicted_ns"])
    start_ns = result["window"]["start_ns"]
    yield from _pieces(result["segments"], {"start_ns": start_ns, "end_ns": start_ns + result["predicted_ns"]}, top)


def _by_kind(by_kind_ns: Mapping[str, int], whole_ns: int) -> Iterator[RenderableType]:
    yield from _shares("kind", dict(sorted(by_kind_ns.items(), key=lambda item: -item[1])), whole_ns)


def _shares(what: str, parts_ns: Mapping[str, int], whole_ns: int) -> Iterator[RenderableType]:
    unit = unit_for(parts_ns.values())
    yield Text()
    yield Rows(
        (what, unit.name, "share"), [(part, unit.text(ns), share_text(ns, whole_ns)) for part, ns in parts_ns.items()]
    )


def _by_name(segments: Sequence[Row], whole_ns: int, top: int) -> Iterator[RenderableType]:
    """What the path spends its time on, wherever on it that lies."""
    sums: Counter[tuple[str, str]] = Counter()
    for segment in segments:
        sums[segment["kind"], _described(segment)] += segment["duration_ns"]
    shown = sums.most_common(top)
    unit = unit_for(ns for _, ns in shown)
    yield heading(f"The path by name ({unit.name})")
    rows = [(unit.text(ns), share_text(ns, whole_ns), kind, name) for (kind, name), ns in shown]
    yield Rows(("took", "share", "kind", "name"), rows)
    yield from left_out(sums, top, "names with less")


def _pieces(segments: Sequence[Row], window: Row, top: int) -> Iterator[RenderableType]:
    """The longest contiguous pieces of a path, in order of time."""
    pieces = [list(group) for _, group in groupby(segments, key=_piece)]
    took_ns = [sum(segment["duration_ns"] for segment in piece) for piece in pieces]
    shown = nlargest(top, range(len(pieces)), key=lambda at: int(took_ns[at]))
    longest = sorted((_joined(pieces[at]) for at in shown), key=lambda piece: int(piece["start_ns"]))
    whole_ns = window["end_ns"] - window["start_ns"]
    unit = unit_for([whole_ns])
    rows = []
    for piece in longest:
        figures = unit.text(piece["start_ns"] - window["start_ns"]), unit.text(piece["duration_ns"])
        share = share_text(piece["duration_ns"], whole_ns)
        rows.append((*figures, share, piece["kind"], where(piece), _named(piece)))
        if piece["kind"] in _DEVICE_WORK | {"idle"} and (written := written_at(piece)):
            rows.append(("",) * 5 + (f"  {written}",))
    yield heading(f"Longest pieces of the path, in order of time ({unit.name}; where = rank:device)")
    yield Rows(("at", "took", "share", "kind", "where", "name"), rows)
    if rest := len(pieces) - len(longest):
        left_ns = sum(took_ns) - sum(piece["duration_ns"] for piece in longest)
        yield Text(f"and {rest:,} shorter ones, together {duration_text(left_ns)}")


def _piece(segment: Row) -> tuple[object, ...]:
    """Neighbours for which this is equal read as one: host work of a rank whatever it is called."""
    named = segment["kind"] in _DEVICE_WORK
    who = segment["waiting_for"] and tuple(segment["waiting_for"].values())
    return segment["kind"], segment["rank"], segment["device"], named and (segment["name"], who)


def _joined(segments: Sequence[Row]) -> Row:
    """Neighbours as one piece, which keeps what they are called and how long each name took, longest first."""
    names: Counter[str] = Counter()
    for segment in segments:
        names[_described(segment)] += segment["duration_ns"]
    return {**segments[0], "duration_ns": names.total(), "names": names.most_common()}


def _named(piece: Row) -> str:
    """The name of a piece; where it has several, those that took most of it."""
    names = piece["names"]
    if len(names) == 1:
        return str(names[0][0])
    return ", ".join(f"{ns / piece['duration_ns']:.0%} {name}" for name, ns in names[:3])


def _described(segment: Row) -> str:
    """What a segment is called, and what its kind does not tell."""
    name = short_name(segment["name"])
    if "(" in (operation := segment.get("operation") or ""):  # what a fusion or a library call is made of
        name = f"{name} = {operation}"
    if segment["kind"] == "transfer" and segment["waiting_for"] is not None:
        return f"{name} (last: {where(segment['waiting_for'])})"
    return f"before {name}" if segment["kind"] == "idle" else name


def _slack(slack: Sequence[Row], top: int) -> Iterator[RenderableType]:
    """How many slices could not be later, and which could be later by the least."""
    known = [row for row in slack if row["slack_ns"] is not None]
    spare: dict[tuple[str, str], list[int]] = {}
    for row in known:
        if row["slack_ns"]:
            spare.setdefault((where(row), short_name(row["name"])), []).append(row["slack_ns"])
    least = sorted((min(each), len(each), *key) for key, each in spare.items())
    without = len(known) - sum(map(len, spare.values()))
    unit = unit_for(ns for ns, *_ in least[:top])
    yield heading(f"Least slack by name ({unit.name}); {without:,} of {len(known):,} slices have none")
    rows = [(unit.text(ns), f"{count:,}", *key) for ns, count, *key in least[:top]]
    yield Rows(("slack", "slices", "where", "name"), rows)
    yield from left_out(least, top, "names with more")
