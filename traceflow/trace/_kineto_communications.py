"""What the communication events of a Kineto file say of themselves, or the operators that launched them do."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from traceflow.result import Json
from traceflow.trace import _kineto_words as k
from traceflow.trace._kineto_rows import Collectives, Rows
from traceflow.trace._nesting import innermost
from traceflow.trace.communication_names import recognise
from traceflow.trace.model import ABSENT, Bool, Group, Int64

_ITEM_BYTES = {
    **dict.fromkeys(("Byte", "Char", "Bool", "QInt8", "QUInt8", "Float4_e2m1fn_x2"), 1),
    **dict.fromkeys(("Float8_e4m3fn", "Float8_e5m2", "Float8_e4m3fnuz", "Float8_e5m2fnuz", "Float8_e8m0fnu"), 1),
    **dict.fromkeys(("Short", "UInt16", "Half", "BFloat16"), 2),
    **dict.fromkeys(("Int", "UInt32", "Float", "QInt32", "ComplexHalf"), 4),
    **dict.fromkeys(("Long", "UInt64", "Double", "ComplexFloat"), 8),
    "ComplexDouble": 16,
}
_ROOTED = frozenset({"broadcast", "_broadcast_oop", "reduce", "_reduce_oop", "gather", "scatter"})
_NOT_AN_OPERATION = frozenset({"", "wait"})


@dataclass(frozen=True, slots=True)
class Described:
    """One row per communication event; None or ABSENT for what nothing tells."""

    operation: list[str]
    group: Int64  # row of `groups`
    sequence: Int64
    payload_bytes: Int64
    source: Int64
    destination: Int64
    in_splits: list[str | None]
    out_splits: list[str | None]
    groups: tuple[Group, ...]


def describe(rows: Rows, events: Int64, lane: Int64, rank: int, communication: tuple[str, ...] = ()) -> Described:
    """Put together what is known of communication events.

    The arguments of the event itself come first, then those of the operator that it is linked to by
    `External id`, then those of the operator around the call that launched it; the name comes last.

    Args:
        rows: The file.
        events: Rows of `rows.spans` that communicate.
        lane: Per row of `rows.spans`, the number of its thread or stream.
        rank: This rank, which sends what is sent and receives what is received.
        communication: Patterns of the user, as for `recognise`.
    """
    said = _arguments(rows, events, lane)
    texts = rows.texts
    operation = [
        texts[code] or _operation(texts[name], communication)
        for code, name in zip(said.operation, rows.spans.name[events], strict=True)
    ]
    group, groups = _groups(said, rows)
    item_bytes = np.array([_ITEM_BYTES.get(texts[code], 0) for code in said.dtype], np.int64)
    sized = (item_bytes > 0) & (said.elements >= 0)
    return Described(
        operation=operation,
        group=group,
        sequence=said.sequence,
        payload_bytes=np.where(sized, item_bytes * said.elements, ABSENT),
        source=_source(said, operation, [groups[g] if g >= 0 else None for g in group], rank),
        destination=np.where((said.destination < 0) & _among(operation, {"recv"}), rank, said.destination),
        in_splits=[texts[code] or None for code in said.in_splits],
        out_splits=[texts[code] or None for code in said.out_splits],
        groups=groups,
    )


def _operation(name: str, communication: tuple[str, ...]) -> str:
    known = recognise(name, communication)
    return known[1] if known else "unknown"


def _among(words: list[str], wanted: set[str] | frozenset[str]) -> Bool:
    return np.array([word in wanted for word in words], bool)


def _source(said: Collectives, operation: list[str], groups: list[Group | None], rank: int) -> Int64:
    """Sender or root. The exporter gives a root by its place in the group, as `Rank`."""
    root = np.full(len(operation), ABSENT, np.int64)
    for i in np.flatnonzero(_among(operation, _ROOTED) & (said.root >= 0)):
        group = groups[i]
        if group is not None and said.root[i] < len(group.members):
            root[i] = group.members[said.root[i]]
    known = np.where(_among(operation, {"send"}), rank, root)
    return np.where(said.source >= 0, said.source, known)


def _arguments(rows: Rows, events: Int64, lane: Int64) -> Collectives:
    """Per event, its own arguments, completed by those of the operator behind it."""
    own = _found(rows.collectives.row, np.arange(len(rows.collectives.row)), events)
    behind = _operator_behind(rows, events, lane, own)
    columns: list[Any] = [_either(getattr(rows.collectives, f.name), own, behind) for f in fields(Collectives)]
    return Collectives(*columns)


def _either(column: Int64, first: Int64, second: Int64) -> Int64:
    """Values of the first rows, where these have none of the second, -1 where neither has."""
    padded = np.append(column, -1)  # row -1
    return np.where(padded[first] >= 0, padded[first], padded[second])


def _operator_behind(rows: Rows, events: Int64, lane: Int64, own: Int64) -> Int64:
    """Row in `rows.collectives` of the operator that each event belongs to, -1 for none."""
    c, s = rows.collectives, rows.spans
    names = [rows.texts[code] for code in c.operation]
    entry = np.flatnonzero((s.category[c.row] == k.OPERATOR) & ~_among(names, _NOT_AN_OPERATION))
    operator = c.row[entry]
    behind = _found(s.external[operator], entry, _linked(s.external[events]))
    lost = np.flatnonzero((behind < 0) & (own < 0) & (s.correlation[events] > 0))
    if not len(lost) or not len(entry):
        return behind
    calls = np.flatnonzero(s.category == k.RUNTIME)
    call = _found(s.correlation[calls], calls, s.correlation[events[lost]])
    lost, call = lost[call >= 0], call[call >= 0]
    behind[lost] = _found(s.external[operator], entry, _linked(s.external[call]))
    around = _around(rows, operator, lane, call)
    behind[lost] = np.where(behind[lost] < 0, np.append(entry, -1)[around], behind[lost])
    return behind


def _linked(numbers: Int64) -> Int64:
    """Numbers that link events; 0 links none."""
    return np.where(numbers > 0, numbers, -1)


def _found(keys: Int64, values: Int64, wanted: Int64) -> Int64:
    """Per wanted key, the value of the first that equals it and is no less than 0, else -1."""
    order = np.argsort(keys, kind="stable")
    place = np.searchsorted(keys[order], wanted)
    order = np.append(order, -1)
    hit = (wanted >= 0) & (np.append(keys, -1)[order[place]] == wanted)
    return np.where(hit, np.append(values, -1)[order[place]], -1)


def _around(rows: Rows, operator: Int64, lane: Int64, call: Int64) -> Int64:
    """Place in `operator` of the innermost one that each call starts in, -1 for none."""
    s = rows.spans
    inner = np.lexsort((-s.end_ns[operator], s.start_ns[operator], lane[operator]))
    moments = np.lexsort((s.start_ns[call], lane[call]))
    sorted_operator, sorted_call = operator[inner], call[moments]
    spans = lane[sorted_operator], s.start_ns[sorted_operator], s.end_ns[sorted_operator]
    found = np.empty(len(call), np.int64)
    found[moments] = np.append(inner, -1)[innermost(*spans, lane[sorted_call], s.start_ns[sorted_call])]
    return found


def _groups(said: Collectives, rows: Rows) -> tuple[Int64, tuple[Group, ...]]:
    """Per event the row of its group, and the groups in order of name and members."""
    named = np.column_stack((said.group, said.members, said.size)).astype(np.int64)
    distinct, which = np.unique(named, axis=0, return_inverse=True)
    configured = dict(_configured(rows.members))
    read = [_group(rows.texts[group], rows.texts[members], int(size), configured) for group, members, size in distinct]
    ordered = sorted({group for group in read if group}, key=lambda group: (group.name, group.members, group.size))
    row = np.array([ordered.index(group) if group else ABSENT for group in read], np.int64)
    return row[which.reshape(-1)] if len(row) else np.empty(0, np.int64), tuple(ordered)


def _group(name: str, listed: str, size: int, configured: Mapping[str, Group]) -> Group | None:
    """A group from the arguments; the configuration completes a list that was left out or shortened."""
    if not name and not listed:
        return None
    known = configured.get(name)
    members = _ranks(listed) or (known.members if known else ())
    if size < 0:
        size = len(members) or (known.size if known else ABSENT)
    described = known.description if known else ""
    return Group(name, members if size in {len(members), ABSENT} else (), size, described)


def _ranks(listed: Json) -> tuple[int, ...]:
    """Ranks from a list, or from its text; none where the text was shortened with dots."""
    if isinstance(listed, str):
        return () if "..." in listed else tuple(map(int, re.findall(r"\d+", listed)))
    return tuple(member for member in listed if isinstance(member, int)) if isinstance(listed, list) else ()


def _configured(members: Mapping[str, Json]) -> Iterator[tuple[str, Group]]:
    """The process groups that the file's header lists."""
    distributed = members.get("distributedInfo")
    listed = distributed.get("pg_config") if isinstance(distributed, dict) else None
    for entry in listed if isinstance(listed, list) else ():
        if isinstance(entry, dict):
            name, ranks, size = str(entry.get("pg_name", "")), _ranks(entry.get("ranks")), entry.get("pg_size")
            count = size if isinstance(size, int) else len(ranks) or ABSENT
            yield name, Group(name, ranks, count, str(entry.get("pg_desc", "")))
