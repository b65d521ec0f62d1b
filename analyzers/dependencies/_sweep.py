"""Sweeps over events in order of lane and time: slices of self time, what is around what, which work fills a gap."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from traceflow.compiled import Compiled

Int64 = NDArray[np.int64]
Int32 = NDArray[np.int32]
Int8 = NDArray[np.int8]
Bool = NDArray[np.bool_]


NOT_CUT = np.iinfo(np.int64).min


def self_time(
    start: Int64, end: Int64, lane: Int32, kind: Int8, nests: Bool, until: Int64, halves: tuple[int, int], room: int
) -> tuple[Int64, Int32, Int8, Int32, int, int]:
    """Slices of events sorted by (lane, start, -end).

    Every event opens and closes with a slice, empty where a child starts or ends with it; slices between children
    are never empty.

    Args:
        start: Of the events.
        end: Likewise.
        lane: Likewise.
        kind: That of the slices of each event.
        nests: Per lane, whether its events nest.
        until: Where an event of one slice is cut in two, NOT_CUT where it stays whole.
        halves: The kinds of the two.
        room: How many slices the caller is going to add.

    Returns:
        Start and end; lane, event and depth of nesting; and kind of the slices, with room behind them; the first and
        the last slice of each event; how many slices there are, and how many events were cut to their parent.
    """
    count = len(start)
    size = 2 * count + int((until != NOT_CUT).sum()) + room  # what nothing is written to takes no memory
    times, codes, kinds = np.empty((2, size), np.int64), np.empty((3, size), np.int32), np.empty(size, np.int8)
    scratch = np.empty(count, np.int32), np.empty((2, count), np.int64), np.zeros(count, bool)
    bounds, cut = np.empty((2, count), np.int32), np.zeros(1, np.int64)
    filled = _slice(start, end, lane, kind, nests, until, *halves, *scratch, times, codes, kinds, bounds, cut)
    return times, codes, kinds, bounds, filled, int(cut[0])


@Compiled
def _slice(
    start: Int64,
    end: Int64,
    lane: Int32,
    kind: Int8,
    nests: Bool,
    until: Int64,
    before: int,
    after: int,
    stack: Int32,
    spans: Int64,
    parted: Bool,
    times: Int64,
    codes: Int32,
    kinds: Int8,
    bounds: Int32,
    cut: Int64,
) -> int:
    """Fill the slices; return how many there are. `stack` is of open events, `spans` of where they go on and end."""
    count, at, depth = len(start), 0, 0
    resumed, stop = spans[0], spans[1]
    for i in range(count + 1):
        alone = i in (0, count) or lane[i] != lane[i - 1] or not nests[lane[i]]
        while depth > 0 and (alone or stop[depth - 1] <= start[i]):
            depth -= 1
            top, since, own = stack[depth], resumed[depth], kind[stack[depth]]
            if not parted[top]:
                bounds[0, top] = at
                if until[top] != NOT_CUT:
                    middle = min(max(until[top], since), stop[depth])
                    at = _put(times, codes, kinds, at, since, middle, lane[top], top, depth, before)
                    since, own = middle, after
            bounds[1, top] = at
            at = _put(times, codes, kinds, at, since, stop[depth], lane[top], top, depth, own)
            if depth > 0:
                resumed[depth - 1] = stop[depth]
        if i == count:
            break
        limit = end[i]
        if depth > 0:
            top, since = stack[depth - 1], resumed[depth - 1]
            if not parted[top]:
                bounds[0, top] = at
            if start[i] > since or not parted[top]:
                at = _put(times, codes, kinds, at, since, start[i], lane[top], top, depth - 1, kind[top])
            parted[top] = True
            cut[0] += limit > stop[depth - 1]
            limit = min(limit, stop[depth - 1])
        stack[depth], stop[depth], resumed[depth] = i, limit, start[i]
        depth += 1
    return at


@Compiled
def _put(
    times: Int64,
    codes: Int32,
    kinds: Int8,
    at: int,
    since: int,
    until: int,
    lane: int,
    event: int,
    depth: int,
    kind: int,
) -> int:
    """Put a slice in a place, and return the next place."""
    times[0, at], times[1, at] = since, until
    codes[0, at], codes[1, at], codes[2, at], kinds[at] = lane, event, depth, kind
    return at + 1


def enclosing(start: Int64, end: Int64, lane: Int32, wanted: Bool) -> Int64:
    """For each event, the innermost other event of its lane that is wanted and under way when it starts, -1 without one.

    Events are sorted by (lane, start, -end).
    """
    found, stack = np.full(len(start), -1, np.int64), np.empty(len(start), np.int64)
    _enclose(start, end, lane, wanted, stack, found)
    return found


@Compiled
def _enclose(start: Int64, end: Int64, lane: Int32, wanted: Bool, stack: Int64, found: Int64) -> None:
    depth = 0
    for i in range(len(start)):
        while depth > 0 and (lane[stack[depth - 1]] != lane[i] or end[stack[depth - 1]] <= start[i]):
            depth -= 1
        if depth > 0:
            found[i] = stack[depth - 1]
        if wanted[i]:
            stack[depth] = i
            depth += 1


def within(moments: Int64, start: Int64, end: Int64) -> Int64:
    """How many of the ascending moments lie in each interval, both ends included; starts and ends ascend, too."""
    found = np.empty(len(start), np.int64)
    _count(moments, start, end, found)
    return found


@Compiled
def _count(moments: Int64, start: Int64, end: Int64, found: Int64) -> None:
    first, after = 0, 0
    for i in range(len(start)):
        while first < len(moments) and moments[first] < start[i]:
            first += 1
        while after < len(moments) and moments[after] <= end[i]:
            after += 1
        found[i] = after - first


NEVER = np.iinfo(np.int64).max


@Compiled
def _put_first(older: Int64, newer: Int64, who: int, head: int) -> None:
    """Move a thread to the front of a list that is linked both ways, or add it there."""
    if newer[who] >= 0:
        older[newer[who]] = older[who]
        if older[who] >= 0:
            newer[older[who]] = newer[who]
    older[who], newer[who] = older[head], head
    if older[head] >= 0:
        newer[older[head]] = who
    older[head] = who


def fillings(
    start: Int64,
    end: Int64,
    thread: Int64,
    workers: Bool,
    caller: Int64,
    wait_start: Int64,
    wait_end: Int64,
    since: Int64,
    until: Int64,
) -> tuple[Int64, Int64, Int64]:
    """Which threads' work fills an interval of another thread: the interval, and the first and last slice of the work.

    It starts and ends inside, is at least half of the interval, and nothing else of the thread lies between `since`
    and `until`. Intervals are visited in order of their ends, with the threads at hand in order of their latest work:
    who worked last at a time before the middle fills less than half, and so does everybody after.

    Args:
        start: Of the slices, sorted by (thread, start).
        end: Likewise.
        thread: Likewise; threads are counted from 0.
        workers: Threads whose work counts.
        caller: The thread that each interval is of.
        wait_start: Start of each interval.
        wait_end: Its end.
        since: Until when, before it, another thread's own work is allowed.
        until: From when on, after it, another thread's own work is allowed.
    """
    busy = np.concatenate(([0], np.cumsum(end - start)))
    bounds = np.searchsorted(thread, np.arange(len(workers) + 1))
    order = np.argsort(end, kind="stable"), np.argsort(wait_end, kind="stable")
    columns = start, end, thread, workers, caller, wait_start, wait_end, since, until, busy, bounds, *order
    room, filled = 0, len(wait_start) + 64  # few intervals are filled by several threads
    while filled > room:
        room = filled
        found = np.empty((3, room), np.int64)
        links = np.full((2, len(workers) + 1), -1, np.int64)
        filled = _fill(
            *columns, np.full(len(workers), -1, np.int64), np.empty((2, len(workers)), np.int64), links, found
        )
    return found[0, :filled].copy(), found[1, :filled].copy(), found[2, :filled].copy()


@Compiled
def _fill(
    start: Int64,
    end: Int64,
    thread: Int64,
    workers: Bool,
    caller: Int64,
    wait_start: Int64,
    wait_end: Int64,
    since: Int64,
    until: Int64,
    busy: Int64,
    bounds: Int64,
    ended: Int64,
    waits: Int64,
    latest: Int64,
    around: Int64,
    links: Int64,
    found: Int64,
) -> int:
    """Fill what is found, as far as there is room, and count all of it.

    `busy` is work before each slice, `bounds` where threads begin, `ended` and `waits` the order of ends; `latest` is
    the slice of each thread that ended last, `around` when it did, and when the next starts.
    """
    ended_ns, next_ns, newer, older = around[0], around[1], links[0], links[1]
    head = len(workers)  # stands before the thread that worked last
    filled, done = 0, 0
    for wait in waits:
        while done < len(ended) and end[ended[done]] <= wait_end[wait]:
            row = ended[done]
            done += 1
            who = thread[row]
            if not workers[who]:
                continue
            latest[who], ended_ns[who] = row, end[row]
            next_ns[who] = start[row + 1] if row + 1 < bounds[who + 1] else NEVER
            _put_first(older, newer, who, head)
        length, who = wait_end[wait] - wait_start[wait], older[head]
        while who >= 0 and 2 * (ended_ns[who] - wait_start[wait]) >= length:
            if next_ns[who] >= until[wait] and who != caller[wait]:
                last, begin = latest[who], bounds[who]
                first = first_from(start, begin, last + 1, wait_start[wait])
                fills = first <= last and 2 * (busy[last + 1] - busy[first]) >= length
                if fills and (first == begin or end[first - 1] <= since[wait]):
                    if filled < found.shape[1]:
                        found[0, filled], found[1, filled], found[2, filled] = wait, first, last
                    filled += 1
            who = older[who]
    return filled


@Compiled
def first_from(values: Int64, low: int, high: int, least: int) -> int:
    """The first of the ascending values from `low` to `high` that is not below `least`."""
    while low < high:
        middle = (low + high) // 2
        if values[middle] < least:
            low = middle + 1
        else:
            high = middle
    return low
