"""Communication for a terminal: who was exposed, to which calls, and how these divide into wait and transfer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from heapq import nlargest
from typing import TYPE_CHECKING, Any, TypeAlias

from rich.text import Text

from traceflow.report.names import short_name, where
from traceflow.report.skew import skew_part
from traceflow.report.tables import Rows, heading, left_out
from traceflow.report.units import UNKNOWN, duration_text, size_text, unit_for

if TYPE_CHECKING:
    from rich.console import RenderableType

Row: TypeAlias = Mapping[str, Any]


def communication_parts(result: Row, top: int, *, why: str) -> Iterator[RenderableType]:
    """Communication per participant, what of it could be removed, and the longest calls.

    Args:
        result: The `result` of `traceflow show communication`.
        top: Longest tables, in rows.
        why: What stands for a figure that replay could not give.
    """
    yield from _participants(result["per_participant"], top)
    yield heading("Removable (modelled by replay)")
    removable = [("if transfers took no time", "transfer_ns"), ("and nobody waited either", "communication_ns")]
    for what, ns in [(what, result["removable"][key]) for what, key in removable]:
        if ns is not None:
            yield Text(f"{what:25} {duration_text(ns):>13}")
    if None in result["removable"].values():
        yield Text(why)
    yield from _by_purpose(result["by_purpose"], top)
    yield from _overlaps(result["overlaps"])
    yield from _collectives(result["collectives"], top)
    yield from _messages(result["point_to_point"], top)
    yield from _unmatched(result["unmatched"], top)


def _participants(participants: Sequence[Row], top: int) -> Iterator[RenderableType]:
    shown = (
        participants if len(participants) <= top else nlargest(top, participants, key=lambda p: int(p["exposed_ns"]))
    )
    keys = ("compute_ns", "copy_ns", "busy_ns", "exposed_ns", "overlapped_ns", "idle_ns")
    unit = unit_for(p[key] for p in shown for key in keys)
    rows = [
        (
            where(p),
            *(unit.text(p[key]) for key in keys),
            UNKNOWN if (share := p["exposed_share"]) is None else f"{share:.1%}",
        )
        for p in shown
    ]
    yield heading(f"Per participant rank:device ({unit.name}; busy = exposed + overlapped)")
    yield Rows(("where", "compute", "copy", "busy", "exposed", "overlapped", "idle", "exposed share"), rows)
    yield from left_out(participants, top, "participants, less exposed")


def _by_purpose(shares: Sequence[Row], top: int) -> Iterator[RenderableType]:
    """What communication is for: exposed and removable time; what replay could not give has no column."""
    if not shares:
        return
    shown = shares[:top]
    unit = unit_for(share["exposed_ns"] for share in shown)
    replayed = {"transfers": "transfer_ns", "and waits": "communication_ns"}
    saved = {head: key for head, key in replayed.items() if any(s["removable"][key] is not None for s in shown)}
    rows = [
        (
            unit.text(share["exposed_ns"]),
            *(unit.text(share["removable"][key]) for key in saved.values()),
            size_text(share["payload_bytes"]),
            f"{share['calls']:,}",
            _called(share),
        )
        for share in shown
    ]
    what = "; what one kind alone saves, modelled by replay" if saved else ""
    yield heading(f"By dimension and purpose ({unit.name}, all participants{what})")
    yield Rows(("exposed", *saved, "payload", "calls", "name"), rows)
    yield from left_out(shares, top, "purposes, less exposed")


def _overlaps(overlaps: Sequence[Row]) -> Iterator[RenderableType]:
    """Kinds of overlap that were seen."""
    if not overlaps:
        return
    unit = unit_for(overlap["busy_ns"] for overlap in overlaps)
    rows = [
        (unit.text(overlap["overlapped_ns"]), unit.text(overlap["busy_ns"]), f"{overlap['calls']:,}", overlap["kind"])
        for overlap in overlaps
    ]
    yield heading(f"Kinds of overlap ({unit.name}, all participants)")
    yield Rows(("hidden", "busy", "calls", "name"), rows)


def _collectives(collectives: Sequence[Row], top: int) -> Iterator[RenderableType]:
    """The collectives with the longest exposed call, and how that call divides into wait and transfer."""
    if not collectives:
        return
    calls = [(max(c["participants"], key=lambda call: int(call["exposed_ns"])), c) for c in collectives]
    longest = nlargest(top, calls, key=lambda pair: int(pair[0]["exposed_ns"]))
    unit = unit_for(call[key] for call, _ in longest for key in ("exposed_ns", "wait_ns", "transfer_ns"))
    rows = [
        (
            *(unit.text(call[key]) for key in ("exposed_ns", "wait_ns", "transfer_ns")),
            where(call),
            where(c["last"]),
            size_text(c["payload_bytes"]),
            str(len(c["participants"])),
            f"{c['op']}, {c['group']}{_purpose(c)}",
        )
        for call, c in longest
    ]
    yield heading(f"Collectives ({unit.name}), by the participant that is exposed longest")
    yield Rows(("exposed", "wait", "transfer", "where", "last", "payload", "members", "name"), rows)
    yield from left_out(collectives, top, "collectives, less exposed")
    yield skew_part(collectives)


def _messages(messages: Sequence[Row], top: int) -> Iterator[RenderableType]:
    if not messages:
        return
    longest = nlargest(top, messages, key=lambda message: int(message["wait_ns"]))
    unit = unit_for(message["received_ns"] - message["posted_ns"] for message in longest)
    rows = [
        (
            unit.text(message["wait_ns"]),
            unit.text(message["received_ns"] - message["posted_ns"]),
            size_text(message["payload_bytes"]),
            f"{where(message['source'])} to {where(message['destination'])}",
        )
        for message in longest
    ]
    yield heading(f"Point to point ({unit.name}), by how long the receiver waited for the send")
    yield Rows(("wait", "sent to received", "payload", "name"), rows)
    yield from left_out(messages, top, "transfers with less wait")


def _unmatched(calls: Sequence[Row], top: int) -> Iterator[RenderableType]:
    """Calls of which neither wait nor transfer is known, by reason and name."""
    for reason in dict.fromkeys(call["reason"] for call in calls):
        names = Counter(short_name(call["name"]) for call in calls if call["reason"] == reason)
        yield heading(f"{names.total():,} calls stay whole: {reason}")
        yield Rows(("calls", "name"), [(f"{count:,}", name) for name, count in names.most_common(top)])
        yield from left_out(names, top, "names")


def _called(share: Row) -> str:
    """What communication is for, as far as it is known."""
    if share["dimension"] == share["purpose"] == "unknown":
        return "not told by names, groups or payloads"
    return f"{share['dimension']}: {share['purpose']}"


def _purpose(row: Row) -> str:
    """What a collective is for, where that is known."""
    return "" if row["purpose"] in {None, "unknown"} else f": {row['purpose']}"
