"""The tables of a report on communication, from the analyzer's JSON: a page and a script see the same figures."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import nlargest
from typing import Any, TypeAlias

from traceflow.report.grid import (
    Grid,
    Jump,
    Piece,
    bar,
    bars,
    counts,
    durations,
    jumps,
    names,
    percents,
    sizes,
    times,
    words,
)
from traceflow.report.sections import MOST_ROWS, left_out
from traceflow.report.timeline import participant

Row: TypeAlias = Mapping[str, Any]

MOST_COLLECTIVES = 30
MOST_PARTICIPANTS = 16

_EXTREMES = {"longest wait": "wait_ns", "longest transfer": "transfer_ns", "most exposed": "exposed_ns"}
_MEASURES = ("compute", "busy", "exposed", "overlapped", "copy", "idle")


def communication_grids(communication: Row, origin_ns: int) -> Iterator[Grid]:
    """Communication per participant, per group, per collective, per message; and what could not be matched."""
    if communication["per_participant"]:
        yield _participants(communication)
    if communication["by_purpose"]:
        yield _by_purpose(communication["by_purpose"])
    if communication["overlaps"]:
        yield _overlaps(communication["overlaps"])
    collectives = communication["collectives"]
    if collectives:
        yield _by_group(collectives)
        top = nlargest(MOST_COLLECTIVES, collectives, key=lambda c: _most(c, "exposed_ns"))
        yield _collectives(top, len(collectives))
        yield _calls(top, origin_ns)
    if communication["point_to_point"]:
        yield _messages(communication["point_to_point"])
    if communication["unmatched"]:
        yield _unmatched(communication["unmatched"])


def _participants(communication: Row) -> Grid:
    everyone = communication["per_participant"]
    rows = nlargest(MOST_ROWS, everyone, key=lambda row: row["exposed_ns"]) if len(everyone) > MOST_ROWS else everyone
    no_device = "the rank has no device events"
    window = communication["window"]["end_ns"] - communication["window"]["start_ns"]
    return Grid(
        "Participants",
        (
            words("participant", [_who(row) for row in rows]),
            *durations({key: [row[f"{key}_ns"] for row in rows] for key in _MEASURES}, absent=no_device),
            percents("exposed share", [row["exposed_share"] for row in rows], absent="the window is empty"),
            bars("composition", [_composition(row, window) for row in rows]),
        ),
        left_out(len(everyone), len(rows), "participants"),
    )


def _composition(row: Row, window_ns: int) -> tuple[Piece, ...]:
    """The window of a participant in parts that do not overlap."""
    copies = 0 if row["idle_ns"] is None else window_ns - row["idle_ns"] - row["compute_ns"] - row["exposed_ns"]
    parts = (
        ("compute", row["compute_ns"]),
        ("transfer", row["exposed_ns"]),
        ("copy", copies),
        ("idle", row["idle_ns"] or 0),
    )
    return bar(parts, window_ns)


def _by_purpose(shares: Sequence[Row]) -> Grid:
    """What communication is for."""
    rows = shares[:MOST_ROWS]
    unsplit = "calls of the window could not be split into wait and transfer"
    saved = {
        "saved without its transfers": [row["removable"]["transfer_ns"] for row in rows],
        "and without its waits": [row["removable"]["communication_ns"] for row in rows],
    }
    longest = max(row["busy_ns"] for row in rows)
    return Grid(
        "Communication by dimension and purpose",
        (
            words("dimension", [row["dimension"] for row in rows]),
            words("purpose", [row["purpose"] for row in rows]),
            counts("calls", [row["calls"] for row in rows]),
            sizes("all payload", [row["payload_bytes"] for row in rows], absent="the trace does not tell the sizes"),
            *durations({key: [row[f"{key}_ns"] for row in rows] for key in ("busy", "exposed", "overlapped")}),
            *durations(saved, absent=unsplit),
            bars(
                "exposed and overlapped",
                [bar([("transfer", row["exposed_ns"]), ("compute", row["overlapped_ns"])], longest) for row in rows],
            ),
        ),
        left_out(len(shares), len(rows), "purposes"),
    )


def _overlaps(overlaps: Sequence[Row]) -> Grid:
    """Kinds of overlap that were seen."""
    return Grid(
        "Kinds of overlap",
        (
            words("kind of overlap", [row["kind"] for row in overlaps]),
            counts("calls", [row["calls"] for row in overlaps]),
            *durations({key: [row[f"{key}_ns"] for row in overlaps] for key in ("busy", "overlapped")}),
        ),
    )


def _by_group(collectives: Sequence[Row]) -> Grid:
    """Collectives of one operation in one group, together."""
    gathered: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in collectives:
        gathered[row["op"], row["group"]].append(row)
    groups = nlargest(MOST_ROWS, gathered.items(), key=lambda item: _total(item[1], "exposed_ns"))
    waits = [_total(rows, "wait_ns") for _, rows in groups]
    transfers = [_total(rows, "transfer_ns") for _, rows in groups]
    exposed = [_total(rows, "exposed_ns") for _, rows in groups]
    longest = max(map(sum, zip(waits, transfers, strict=True)))
    return Grid(
        "Collectives by operation and group",
        (
            words("operation", [op for (op, _), _ in groups]),
            names("group", [group for (_, group), _ in groups]),
            counts("calls", [len(rows) for _, rows in groups]),
            sizes("all payload", [_payload(rows) for _, rows in groups], absent="the trace does not tell the sizes"),
            *durations({"sum of waits": waits, "sum of transfers": transfers, "sum of exposed": exposed}),
            bars(
                "wait and transfer",
                [bar([("wait", w), ("transfer", t)], longest) for w, t in zip(waits, transfers, strict=True)],
            ),
        ),
        left_out(len(gathered), len(groups), "groups"),
    )


def _collectives(rows: Sequence[Row], total: int) -> Grid:
    return Grid(
        "Most exposed collectives",
        (
            words("collective", [row["id"] for row in rows]),
            words("operation", [row["op"] for row in rows]),
            names("name", [row["name"] for row in rows]),
            counts("participants", [len(row["participants"]) for row in rows]),
            sizes("payload", [row["payload_bytes"] for row in rows], absent="the trace does not tell the size"),
            words("last to arrive", [_who(row["last"]) for row in rows]),
            *durations({head: [_most(row, key) for row in rows] for head, key in _EXTREMES.items()}),
            words("dimension", [row["dimension"] or "unknown" for row in rows]),
            words("purpose", [row["purpose"] or "unknown" for row in rows]),
        ),
        left_out(total, len(rows), "collectives"),
    )


def _calls(collectives: Sequence[Row], origin_ns: int) -> Grid:
    """The participants of the given collectives, the most exposed of each first."""
    rows = [
        (collective["id"], call)
        for collective in collectives
        for call in nlargest(MOST_PARTICIPANTS, collective["participants"], key=lambda call: call["exposed_ns"])
    ]
    calls = [call for _, call in rows]
    total = sum(len(collective["participants"]) for collective in collectives)
    return Grid(
        "Their participants",
        (
            words("collective", [number for number, _ in rows]),
            words("participant", [_who(call) for call in calls]),
            times("arrival", [call["arrival_ns"] - origin_ns for call in calls]),
            *durations({key: [call[f"{key}_ns"] for call in calls] for key in ("wait", "transfer", "exposed")}),
            jumps([Jump(c["arrival_ns"] - origin_ns, c["end_ns"] - c["arrival_ns"]) for c in calls]),
        ),
        left_out(total, len(rows), "calls"),
    )


def _messages(messages: Sequence[Row]) -> Grid:
    gathered: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in messages:
        gathered[_who(row["source"]), _who(row["destination"])].append(row)
    pairs = nlargest(MOST_ROWS, gathered.items(), key=lambda item: sum(row["wait_ns"] for row in item[1]))
    return Grid(
        "Point to point",
        (
            words("from", [source for (source, _), _ in pairs]),
            words("to", [target for (_, target), _ in pairs]),
            counts("calls", [len(rows) for _, rows in pairs]),
            sizes("all payload", [_payload(rows) for _, rows in pairs], absent="the trace does not tell the sizes"),
            times("receiver's wait", [sum(row["wait_ns"] for row in rows) for _, rows in pairs]),
        ),
        left_out(len(gathered), len(pairs), "pairs"),
    )


def _unmatched(calls: Sequence[Row]) -> Grid:
    gathered: dict[tuple[str, str], list[int]] = defaultdict(list)
    for row in calls:
        gathered[row["name"], row["reason"]].append(row["duration_ns"])
    kinds = nlargest(MOST_ROWS, gathered.items(), key=lambda item: sum(item[1]))
    return Grid(
        "Not split into wait and transfer",
        (
            names("name", [name for (name, _), _ in kinds]),
            counts("calls", [len(durations) for _, durations in kinds]),
            times("total", [sum(durations) for _, durations in kinds]),
            words("reason", [reason for (_, reason), _ in kinds]),
        ),
        left_out(len(gathered), len(kinds), "names"),
    )


def _who(row: Row) -> str:
    return participant(row["rank"], row["device"])


def _most(collective: Row, key: str) -> int:
    return max(int(call[key]) for call in collective["participants"])


def _total(collectives: Iterable[Row], key: str) -> int:
    return sum(int(call[key]) for collective in collectives for call in collective["participants"])


def _payload(rows: Iterable[Row]) -> int | None:
    """Sum of the known payloads; None where none is known."""
    known = [int(row["payload_bytes"]) for row in rows if row["payload_bytes"] is not None]
    return sum(known) if known else None
