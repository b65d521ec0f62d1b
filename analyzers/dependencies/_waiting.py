"""What waits for the device: records in the order in which the host issued them, and calls that have none."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from traceflow.analyzers.dependencies._sweep import first_from
from traceflow.compiled import Compiled

Int64 = NDArray[np.int64]
Int32 = NDArray[np.int32]
Int8 = NDArray[np.int8]
Bool = NDArray[np.bool_]

_STREAM_WAIT, _STREAM, _CONTEXT = 0, 2, 3  # of `SyncKind`
_ALL = -1


@Compiled
def follow(
    row: Int64,
    moment: Int64,
    waits: Bool,
    kind: Int8,
    device: Int32,
    stream: Int64,
    recorded: Int64,
    low: Int64,
    high: Int64,
    of_device: Int64,
    bounds: Int64,
    launch: Int64,
    come: Int64,
    pending: Int32,
    issued: Int64,
    awaited: Int32,
    after: Int64,
) -> None:
    """Fill what each row awaits: the last work of each stream of its rank, -1 where it awaits none.

    In each step, in order of time, the event of a row is recorded on a stream, or the row waits. A stream is done once
    its last work is, and what waits that were issued after that work await: the next work on it needs them.

    Args:
        row: Per step.
        moment: Per step, when the host began the call.
        waits: Per step, whether the row waits.
        kind: Per row, as in `SyncKind`.
        device: Per row that waits for devices, -1 for all of its rank.
        stream: Per row, the stream that waits or is waited for.
        recorded: Per row, the stream on which its event is recorded.
        low: Per row, the first stream of its rank.
        high: Per row, the stream after the last of its rank.
        of_device: Per stream.
        bounds: Where the work of each stream begins, and behind all of it.
        launch: When work was launched, ascending on each stream.
        come: Per stream, where its work begins; moves to what is launched next.
        pending: Per stream, the work on each stream of its rank that the latest wait awaits; -1 to begin with.
        issued: Likewise, when that wait was issued.
        awaited: Per row, the work on each stream of its rank; -1 to begin with.
        after: Per row whose stream waits, the work that is launched on it next; -1 to begin with.
    """
    for step in range(len(row)):
        own, now = row[step], moment[step]
        first, count = low[own], high[own] - low[own]
        if waits[step] and kind[own] == _STREAM_WAIT:
            _let_wait(bounds, launch, come, stream[own], now, pending, issued, own, count, awaited, after)
        elif waits[step] and kind[own] == _CONTEXT:
            for other in range(count):
                if device[own] == _ALL or device[own] == of_device[first + other]:
                    awaited[own, other] = _last(bounds, launch, come, first + other, now)
        elif not waits[step] or kind[own] == _STREAM:
            queue = stream[own] if waits[step] else recorded[own]
            last = _last(bounds, launch, come, queue, now)
            for other in range(count):
                if last < 0 or issued[queue, other] > launch[last]:
                    awaited[own, other] = pending[queue, other]
            if last >= 0:
                awaited[own, queue - first] = last


@Compiled
def _let_wait(
    bounds: Int64,
    launch: Int64,
    come: Int64,
    queue: int,
    now: int,
    pending: Int32,
    issued: Int64,
    own: int,
    count: int,
    awaited: Int32,
    after: Int64,
) -> None:
    """Keep what a stream is to wait for, as far as no earlier wait awaits as much, and fill what waits."""
    for other in range(count):
        if awaited[own, other] > pending[queue, other]:
            pending[queue, other], issued[queue, other] = awaited[own, other], now
    at = max(bounds[queue], _last(bounds, launch, come, queue, now) + 1)
    while at < bounds[queue + 1] and launch[at] == now:
        at += 1
    after[own] = at if at < bounds[queue + 1] else -1


@Compiled
def _last(bounds: Int64, launch: Int64, come: Int64, queue: int, now: int) -> int:
    """The last work launched on a stream before a moment, -1 without any."""
    while come[queue] < bounds[queue + 1] and launch[come[queue]] < now:
        come[queue] += 1
    return come[queue] - 1 if come[queue] > bounds[queue] else -1


@Compiled
def launched_before(low: Int64, high: Int64, moment: Int64, launch: Int64, found: Int64) -> None:
    """Fill the last place from `low` to `high`, which is left out, whose work was launched before a moment, or -1."""
    for i in range(len(low)):
        at = high[i] - 1
        while at >= low[i] and launch[at] >= moment[i]:
            at -= 1
        found[i] = at if at >= low[i] else -1


@Compiled
def ended_by(first: Int64, last: Int64, moment: Int64, time: Int64, found: Int64) -> None:
    """Fill the first place from `first` to `last` that ends at a moment or later, or `last`; ends ascend."""
    for i in range(len(first)):
        found[i] = first_from(time, 1, first[i], last[i], moment[i])
