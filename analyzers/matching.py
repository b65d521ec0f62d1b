"""Which communication calls of different participants are one collective, and when its last participant came."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum

import numpy as np

from traceflow.trace.model import ABSENT, Bool, Int8, Int32, Int64, LaneKind, Trace

SENDS = frozenset({"send", "isend", "batch_isend"})
RECEIVES = frozenset({"recv", "irecv", "recv_any_source"})
FROM_ROOT = frozenset({"broadcast", "_broadcast_oop", "scatter", "collective-broadcast"})
TO_ROOT = frozenset({"reduce", "_reduce_oop", "gather"})
PERMUTE = "collective-permute"
_RESOLUTION_NS = 1000  # of the coarsest clock


class Unmatched(IntEnum):
    """Why a call could not be split into wait and transfer."""

    MATCHED = 0
    NO_GROUP = 1
    ABSENT_PARTICIPANTS = 2
    NO_SEQUENCE = 3
    AMBIGUOUS = 4
    NO_ROOT = 5
    NO_PARTNER = 6
    UNALIGNED = 7

    @property
    def reason(self) -> str:
        """A sentence for people."""
        return _REASONS[self]


_REASONS = {
    Unmatched.MATCHED: "matched",
    Unmatched.NO_GROUP: "the trace does not say which participants take part in it",
    Unmatched.ABSENT_PARTICIPANTS: "some of its participants are absent from the capture",
    Unmatched.NO_SEQUENCE: "it carries no sequence number, and its group's calls do not agree on all participants",
    Unmatched.AMBIGUOUS: "one participant claims the same call twice",
    Unmatched.NO_ROOT: "the trace does not say which participant is its root",
    Unmatched.NO_PARTNER: "the other end of the transfer was not found",
    Unmatched.UNALIGNED: "its participants' clocks are not aligned with one another",
}


@dataclass(frozen=True, slots=True)
class Matches:
    """Per row of `Trace.communications`, and the dependencies between rows.

    Row p of an instance starts its transfer at `last_ns[p]`, the latest arrival among the rows that it needs. An
    asynchronous collective has two rows on each participant: it arrives with its start, and its done needs the starts.
    """

    instance: Int32  # equal on the rows of one collective or transfer; ABSENT where unmatched
    why: Int8  # Unmatched
    point_to_point: Bool
    last_ns: Int64  # 0 where unmatched
    joined: Bool  # every row of the instance needs every other: one join stands for all pairs
    pair_source: Int32  # elsewhere, pairs of rows: target needs source
    pair_target: Int32
    done: Bool  # rows that end what another row of the participant began


def match(trace: Trace, *, across_clocks: bool = False) -> Matches:
    """Match the communication calls of all participants; refuse rather than mis-pair.

    Collectives: equal (group, key, sequence) on every member of the group. Without a sequence number the k-th
    call of each member is taken, provided that all members made the same calls in the same order.
    Point-to-point: first in, first out per (group, source, destination), provided that both ends count the same.

    Args:
        trace: The evidence.
        across_clocks: Match also participants whose times cannot be compared, as clock alignment needs it.

    Complexity: O(rows log rows).
    """
    c = trace.communications
    arrival = trace.events.start_ns[c.event]
    operations = np.array([*trace.strings, None], dtype=object)[c.operation]
    p2p = _named(trace, SENDS | RECEIVES)
    group, size = _groups(trace)
    sends = _named(trace, SENDS)
    key, why, counted = _instance_keys(trace, group, operations, p2p, sends, arrival)
    instance = _numbered(key, why == Unmatched.MATCHED)
    member = np.where(p2p, sends, c.member)
    done = _dones(trace, instance, member)
    begun = np.where(done, ABSENT, instance)
    why = _complete(begun, why, np.where(p2p, 2, size), member)
    why = _as_begun(why, begun, instance, done)
    if not across_clocks:
        why = _on_one_clock(trace, instance, why)
    instance = np.where(why == Unmatched.MATCHED, instance, ABSENT)
    base = Matches(
        instance.astype(np.int32),
        why,
        p2p,
        np.zeros(len(arrival), np.int64),
        (instance >= 0) & ~_named(trace, FROM_ROOT | TO_ROOT) & ~_skips_pairs(trace) & ~p2p,
        np.empty(0, np.int32),
        np.empty(0, np.int32),
        done & (instance >= 0),
    )
    if base.done.any():
        base = replace(base, joined=base.joined & ~np.isin(instance, instance[base.done]))
    matches = _timed(_paired(trace, base, operations), arrival)
    # A send may leave its data in a buffer and end before it is received.
    return matches if across_clocks else _believable(trace, matches, counted, counted & ~sends, key[:, :-1])


def _named(trace: Trace, names: frozenset[str]) -> Bool:
    """Rows whose operation has one of some names."""
    return np.array([*(text in names for text in trace.strings), False])[trace.communications.operation]


def numbers_of(table: Int64) -> Int64:
    """A number for each row, equal where all columns are, in the order of the columns' values."""
    columns = table.T
    order = np.lexsort(columns[::-1])
    differs = np.zeros(len(order), bool)
    for column in columns:
        ordered = column[order]
        differs[1:] |= ordered[1:] != ordered[:-1]
    number = np.empty(len(order), np.int64)
    number[order] = np.cumsum(differs)
    return number


def _groups(trace: Trace) -> tuple[Int64, Int64]:
    """An identifier of each row's group, equal on all ranks, and how many members it has."""
    known: dict[object, int] = {}
    identifiers = np.array([known.setdefault((g.name, g.members), len(known)) for g in trace.groups] or [0], np.int64)
    sizes = np.array([len(g.members) or g.size for g in trace.groups] or [ABSENT], np.int64)
    row = trace.communications.group
    return np.where(row < 0, ABSENT, identifiers[row]), np.where(row < 0, ABSENT, sizes[row])


def _instance_keys(
    trace: Trace, group: Int64, operations: Int64, p2p: Bool, sends: Bool, arrival: Int64
) -> tuple[Int64, Int8, Bool]:
    """Columns whose equality means the same instance, why some rows have none, and which were only counted."""
    c = trace.communications
    why = np.where(group < 0, Unmatched.NO_GROUP, Unmatched.MATCHED).astype(np.int8)
    ends = np.where(p2p, c.source, ABSENT), np.where(p2p, c.destination, ABSENT)
    channel = np.column_stack((group, c.key, *ends))
    sender = np.where(p2p, sends, 0)
    counted = (p2p | (c.sequence < 0)) & (why == Unmatched.MATCHED)
    sequence = c.sequence.copy()
    sequence[counted] = _ordinal(np.column_stack((channel, c.member, sender))[counted], arrival[counted])
    agreed = _agreeing(channel, np.column_stack((c.member, sender)), sequence, operations, p2p, counted)
    why[counted & ~agreed] = np.where(p2p[counted & ~agreed], Unmatched.NO_PARTNER, Unmatched.NO_SEQUENCE)
    return np.column_stack((channel, sequence)), why, counted


def _ordinal(columns: Int64, arrival: Int64) -> Int64:
    """Position of each row, in order of arrival, among the rows with the same columns."""
    if not len(columns):
        return np.empty(0, np.int64)
    which = numbers_of(columns)
    order = np.lexsort((arrival, which))
    first = np.searchsorted(which[order], np.arange(which.max() + 1))
    ordinal = np.empty(len(columns), np.int64)
    ordinal[order] = np.arange(len(columns)) - first[which[order]]
    return ordinal


def _agreeing(channel: Int64, member: Int64, sequence: Int64, operations: Int64, p2p: Bool, counted: Bool) -> Bool:
    """Whether all members of a channel made as many calls, and for collectives the same ones in the same order."""
    agreed = np.ones(len(sequence), bool)
    rows = np.flatnonzero(counted)
    if not len(rows):
        return agreed
    which = np.unique(channel[rows], axis=0, return_inverse=True)[1].ravel()
    for at in range(which.max() + 1):
        own = rows[which == at]
        calls: dict[tuple[int, ...], list[object]] = {}
        for row in own[np.argsort(sequence[own], kind="stable")]:
            calls.setdefault(tuple(member[row]), []).append(None if p2p[row] else operations[row])
        agreed[own] = len({tuple(made) for made in calls.values()}) == 1
    return agreed


def _numbered(key: Int64, valid: Bool) -> Int64:
    instance = np.full(len(key), ABSENT, np.int64)
    if valid.any():
        instance[valid] = numbers_of(key[valid])
    return instance


def _complete(instance: Int64, why: Int8, size: Int64, member: Int64) -> Int8:
    """Refuse instances whose members are not all present, or not each present once."""
    rows = np.flatnonzero(instance >= 0)
    if not len(rows):
        return why
    present = np.bincount(instance[rows])
    order = np.lexsort((member[rows], instance[rows]))
    of, who = instance[rows][order], member[rows][order]
    first = np.ones(len(rows), bool)
    first[1:] = (of[1:] != of[:-1]) | (who[1:] != who[:-1])
    once = np.bincount(of[first], minlength=len(present))
    why[rows[(present != once)[instance[rows]]]] = Unmatched.AMBIGUOUS
    lacking = rows[(present[instance[rows]] == once[instance[rows]]) & (once[instance[rows]] != size[rows])]
    why[lacking] = Unmatched.ABSENT_PARTICIPANTS
    return why


def _dones(trace: Trace, instance: Int64, member: Int64) -> Bool:
    """Rows that end what an earlier row of the same participant began, as the halves of XLA's asynchronous operations.

    Only programs tell that by a key; a done carries nothing of its own.
    """
    c = trace.communications
    done = np.zeros(len(instance), bool)
    rows = np.flatnonzero((instance >= 0) & (c.key > 0))
    rows = rows[np.lexsort((trace.events.start_ns[c.event[rows]], member[rows], instance[rows]))]
    before, after = rows[:-1], rows[1:]
    second = (instance[before] == instance[after]) & (member[before] == member[after])
    done[after[second & (c.payload_bytes[after] < 0)]] = True
    return done


def _as_begun(why: Int8, begun: Int64, instance: Int64, done: Bool) -> Int8:
    """What keeps starts from being matched keeps their dones, too; and so does a half that is absent."""
    starts = np.flatnonzero(begun >= 0)
    ends = np.bincount(instance[done], minlength=int(instance.max(initial=-1)) + 1)
    halved = starts[
        (ends > 0)[begun[starts]] & (ends != np.bincount(begun[starts], minlength=len(ends)))[begun[starts]]
    ]
    why[halved] = Unmatched.NO_PARTNER
    of_start = np.full(len(ends), Unmatched.MATCHED, np.int8)
    of_start[begun[starts]] = why[starts]
    why[done] = of_start[instance[done]]
    return why


def _on_one_clock(trace: Trace, instance: Int64, why: Int8) -> Int8:
    """Refuse instances whose participants read different clocks."""
    clock_of = {rank.rank: rank.clock for rank in trace.ranks}
    rows = np.flatnonzero((instance >= 0) & (why == Unmatched.MATCHED))
    if len(set(clock_of.values())) < 2 or not len(rows):
        return why
    lane = trace.events.lane[trace.communications.event[rows]]
    clock = np.array([clock_of[rank] for rank in trace.lanes.rank.tolist()])[lane]
    order = np.lexsort((clock, instance[rows]))
    of, clock = instance[rows][order], clock[order]
    several = np.unique(of[1:][(of[1:] == of[:-1]) & (clock[1:] != clock[:-1])])
    why[rows[np.isin(instance[rows], several)]] = Unmatched.UNALIGNED
    return why


def _skips_pairs(trace: Trace) -> Bool:
    """Rows of which not every pair exchanges data: splits that leave out a peer, and permutes.

    XLA's virtual CPU devices meet in one rendezvous even for a permute, so there everybody waits for everybody.
    """
    c = trace.communications
    codes = np.unique(np.concatenate((c.in_splits, c.out_splits)))
    sparse = [code for code in codes if code >= 0 and 0 in _splits(trace.strings[code])]
    meets = trace.lanes.kind[trace.events.lane[c.event]] == LaneKind.WORKER
    permutes: Bool = _named(trace, frozenset({PERMUTE})) & ~meets
    return permutes | np.isin(c.in_splits, sparse) | np.isin(c.out_splits, sparse)


def _splits(text: str) -> list[int]:
    """The numbers of a list such as "[4, 0]"; none where it is truncated or empty."""
    parts = [part.strip() for part in text.strip("[]").split(",")]
    return [int(part) for part in parts] if all(part.isdigit() for part in parts) else []


def _paired(trace: Trace, matches: Matches, operations: Int64) -> Matches:
    """Pairs of rows for the instances in which not everybody needs everybody."""
    joined = matches.joined.copy()
    instances = np.unique(matches.instance[(matches.instance >= 0) & ~joined])
    if not len(instances):
        return matches
    why, pairs = matches.why.copy(), []
    order = np.argsort(matches.instance, kind="stable")
    low, high = (np.searchsorted(matches.instance[order], instances, side=side) for side in ("left", "right"))
    for first, last in zip(low, high, strict=True):
        rows = order[first:last]
        joined[rows] = False  # one sparse row makes the whole instance pairwise
        if matches.point_to_point[rows[0]]:
            pairs += _needs_of_transfer(trace, rows, operations)
        elif (needed := _needs(trace, rows[~matches.done[rows]], str(operations[rows[0]]))) is None:
            why[rows] = Unmatched.NO_ROOT
        elif matches.done[rows].any():
            pairs += _through_dones(trace, rows, matches.done, needed)
        elif len(needed) == len(rows) * (len(rows) - 1):
            joined[rows] = True
        else:
            pairs += needed
    source, target = np.array(pairs, np.int32).reshape(-1, 2).T
    unrooted = why == Unmatched.NO_ROOT
    return replace(
        matches,
        why=why,
        instance=np.where(unrooted, ABSENT, matches.instance).astype(np.int32),
        joined=joined & ~unrooted,
        pair_source=source,
        pair_target=target,
    )


def _needs_of_transfer(trace: Trace, rows: Int64, operations: Int64) -> list[tuple[int, int]]:
    """The receive needs the send; on devices, where both are work until the data is through, each needs the other."""
    send, receive = rows if operations[rows[0]] in SENDS else rows[::-1]
    on_device = trace.lanes.device[trace.events.lane[trace.communications.event[rows]]] != ABSENT
    return [(send, receive), (receive, send)] if on_device.all() else [(send, receive)]


def _needs(trace: Trace, rows: Int64, operation: str) -> list[tuple[int, int]] | None:
    """Pairs (needed row, row that needs it) of one collective, a row itself left out; None without a root."""
    c = trace.communications
    if operation in FROM_ROOT | TO_ROOT:
        root = [int(row) for row in rows if c.member[row] == c.source[row]]
        others = [int(row) for row in rows if int(row) not in root]
        if len(root) != 1:
            return None
        return [(root[0], row) if operation in FROM_ROOT else (row, root[0]) for row in others]
    if operation == PERMUTE:
        at = {int(c.member[row]): int(row) for row in rows}
        return [
            (at[int(c.source[row])], int(row))
            for row in rows
            if int(c.source[row]) in at and at[int(c.source[row])] != row
        ]
    sends = {int(row): _splits(trace.strings[c.in_splits[row]]) for row in rows if c.in_splits[row] >= 0}
    place = {int(row): at for at, row in enumerate(rows[np.argsort(c.member[rows])])}

    def gives(one: int, two: int) -> bool:
        rows_to = sends.get(one, [])
        return len(rows_to) != len(place) or rows_to[place[two]] > 0

    return [(one, two) for one in place for two in place if one != two and (gives(one, two) or gives(two, one))]


def _through_dones(trace: Trace, rows: Int64, done: Bool, needed: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The done of each participant needs its own start and the starts of those that it depends on."""
    member = trace.communications.member
    ends = {int(member[row]): int(row) for row in rows if done[row]}
    own = [(int(row), int(row)) for row in rows if not done[row]]
    return [(one, ends[int(member[other])]) for one, other in (*own, *needed) if int(member[other]) in ends]


def _timed(matches: Matches, arrival: Int64) -> Matches:
    """The last arrival that each matched row depends on, its own included."""
    last, joined = np.where(matches.done, np.iinfo(np.int64).min, arrival), np.flatnonzero(matches.joined)
    np.maximum.at(last, matches.pair_target, arrival[matches.pair_source])
    latest = np.full(int(matches.instance.max(initial=-1)) + 1, np.iinfo(np.int64).min)
    np.maximum.at(latest, matches.instance[joined], arrival[joined])
    last[joined] = latest[matches.instance[joined]]
    return replace(matches, last_ns=np.where(matches.instance >= 0, last, 0))


def _believable(trace: Trace, matches: Matches, counted: Bool, judged: Bool, channel: Int64) -> Matches:
    """Refuse what was matched by counting where an end before the last arrival denies it.

    The participants' windows were cut at different places then, so that all calls of the channel are in doubt.
    """
    end_ns = trace.events.end_ns[trace.communications.event]
    doubt_ns = max(_RESOLUTION_NS, trace.clock_error_ns)
    denied = judged & (matches.instance >= 0) & (end_ns + doubt_ns < matches.last_ns)
    if not denied.any():
        return matches
    which = numbers_of(channel)
    refused = counted & (matches.instance >= 0) & np.isin(which, which[denied])
    keep = ~refused[matches.pair_source]
    reason = np.where(matches.point_to_point, Unmatched.NO_PARTNER, Unmatched.NO_SEQUENCE)
    return replace(
        matches,
        instance=np.where(refused, ABSENT, matches.instance).astype(np.int32),
        why=np.where(refused, reason, matches.why).astype(np.int8),
        last_ns=np.where(refused, 0, matches.last_ns),
        joined=matches.joined & ~refused,
        pair_source=matches.pair_source[keep],
        pair_target=matches.pair_target[keep],
    )
