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
        Start and end in turn; lane, event and depth of nesting; and kind of the slices, with room behind them; the first and
        the last slice of each event; how many slices there are, and how many events were cut to their parent.
    """
    count = len(start)
    size = 2 * count + int((until != NOT_CUT).sum()) + room  # what nothing is written to takes no memory
    times, codes, kinds = np.empty(2 * size, np.int64), np.empty((3, size), np.int32), np.empty(size, np.int8)
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
    times[2 * at], times[2 * at + 1] = since, until
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


NEVER = np.iinfo(np.int64).max


def fillings(time: Int64, thread: Int32, workers: Bool, waiting: Int64, *, gaps: bool) -> tuple[Int64, Int64, Int64]:
    """Which other threads' work fills slices, or gaps before them: the slice, and the first and last slice of the work.

    It starts and ends inside, is at least half of what it fills, and nothing else of the thread overlaps that; where a
    gap is filled, nothing else of the thread overlaps the slices around it either, as far as there is no other gap.

    What may be filled is visited in order of its end, with the threads at hand in order of their latest work: who
    worked last at a time before the middle fills less than half, and so does everybody after.

    Args:
        time: Start and end of the slices in turn, sorted by (thread, start); they do not overlap on a thread.
        thread: Of the slices.
        workers: Threads whose work counts.
        waiting: The slices that may be filled, or the gaps before which may.
        gaps: Whether it is gaps.
    """
    bounds = np.searchsorted(thread, np.arange(len(workers) + 1, dtype=thread.dtype))
    working = [np.arange(bounds[who], bounds[who + 1]) for who in np.flatnonzero(workers)]
    ended = _by(time[1::2], np.concatenate([np.empty(0, np.int64), *working]))
    waits = _by(time[not gaps :: 2], waiting)
    columns = time, thread, workers, bounds, ended, waits, gaps
    room, filled = 0, len(waits) + 64  # few are filled by several threads
    while filled > room:
        room = filled
        found, links = np.empty((3, room), np.int64), np.full((2, len(workers) + 1), -1, np.int64)
        filled = _fill(
            *columns, np.full(len(workers), -1, np.int64), np.empty((2, len(workers)), np.int64), links, found
        )
    slices, first, last = found[:, :filled]
    order = np.lexsort((slices, thread[first], thread[slices]))
    return slices[order], first[order], last[order]


def _by(moment: Int64, rows: Int64) -> Int64:
    return rows[np.argsort(moment[rows], kind="stable")]


@Compiled
def _put_first(older: Int64, newer: Int64, who: int, head: int) -> None:
    """Move a thread to the front of a list that is linked both ways, or add it there."""
    if newer[who] == head:
        return
    if newer[who] >= 0:
        older[newer[who]] = older[who]
        if older[who] >= 0:
            newer[older[who]] = newer[who]
    older[who], newer[who] = older[head], head
    if older[head] >= 0:
        newer[older[head]] = who
    older[head] = who


@Compiled
def _fill(
    time: Int64,
    thread: Int32,
    workers: Bool,
    bounds: Int64,
    ended: Int64,
    waits: Int64,
    gaps: bool,  # noqa: FBT001
    latest: Int64,
    around: Int64,
    links: Int64,
    found: Int64,
) -> int:
    """Fill what is found, as far as there is room, and count all of it.

    `bounds` is where threads begin, `ended` and `waits` the order of ends; `latest` is the slice of each thread that
    ended last, `around` when it did, and when the next starts.
    """
    ended_ns, next_ns, newer, older = around[0], around[1], links[0], links[1]
    head = len(workers)  # stands before the thread that worked last
    filled, done = 0, 0
    for wait in waits:
        at = 2 * wait - 1 if gaps else 2 * wait
        left, right = time[at], time[at + 1]
        while done < len(ended) and time[2 * ended[done] + 1] <= right:
            row = ended[done]
            done += 1
            who = thread[row]
            latest[who], ended_ns[who] = row, time[2 * row + 1]
            next_ns[who] = time[2 * row + 2] if row + 1 < bounds[who + 1] else NEVER
            _put_first(older, newer, who, head)
        who = older[head]
        while who >= 0 and 2 * (ended_ns[who] - left) >= right - left:
            last, own = latest[who], thread[wait]
            if who != own and time[2 * last] >= left and next_ns[who] >= right:
                first = first_from(time, 0, bounds[who], last, left)
                before = time[2 * first - 1] if first > bounds[who] else -NEVER
                since = _since(time, wait, bounds[own]) if gaps else left
                until = _until(time, wait, bounds[own + 1]) if gaps else right
                if before <= since and next_ns[who] >= until and _busy(time, first, last, right - left):
                    if filled < found.shape[1]:
                        found[0, filled], found[1, filled], found[2, filled] = wait, first, last
                    filled += 1
            who = older[who]
    return filled


@Compiled
def _since(time: Int64, row: int, begin: int) -> int:
    """When the slices up to the gap before one began to follow one another without a gap."""
    at = row - 1
    while at > begin and time[2 * at - 1] == time[2 * at]:
        at -= 1
    return time[2 * at]


@Compiled
def _until(time: Int64, row: int, stop: int) -> int:
    """Until when slices follow one another without a gap from one on."""
    while row + 1 < stop and time[2 * row + 1] == time[2 * row + 2]:
        row += 1
    return time[2 * row + 1]


@Compiled
def _busy(time: Int64, first: int, last: int, length: int) -> bool:
    """Whether some slices take at least half of a length of time."""
    busy = 0
    for row in range(first, last + 1):
        busy += time[2 * row + 1] - time[2 * row]
        if 2 * busy >= length:
            return True
    return False


@Compiled
def first_from(time: Int64, side: int, low: int, high: int, least: int) -> int:
    """The first of the slices from `low` to `high` whose start, or end where `side` is 1, is not below `least`."""
    while low < high:
        middle = (low + high) // 2
        if time[2 * middle + side] < least:
            low = middle + 1
        else:
            high = middle
    return low
