"""Leave out events whose times cannot be: one damaged number would otherwise be nearly all of the recording."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from traceflow.quality import ABSURD
from traceflow.result import Note, Tally
from traceflow.trace.canonical import without
from traceflow.trace.model import ABSENT, Bool, Trace

_FEWEST = 8  # of fewer events none can be told from the others
_RARE = 1000  # one event in so many may be wrong, and at least one
_FAR_ON_DEVICE, _FAR_ON_HOST = 9, 1000  # in lengths of the rest


def without_absurd(trace: Trace) -> Trace:
    """The trace of one rank without the few events that reach far out of the span of all others.

    With the first start and the last end of the others, lo and hi, and d = hi - lo: an event that begins before
    lo - k d or ends after hi + k d is left out, with k = 9 for work of a device, where a kernel of 90 % of the
    recording would be one that nobody waited for, and k = 1000 for a host, whose threads may sleep. Others are all but
    the outermost thousandth. Where more events than that are out of place, none can be called wrong, and all stay.

    Args:
        trace: A canonical trace of one rank. One without such events is returned as it is.

    Returns:
        A canonical trace, with a note (TF320) and a count of what was left out.
    """
    gone = _absurd(trace)
    number = int(gone.sum())
    if not number:
        return trace
    names = sorted({trace.strings[code] for code in trace.events.name[gone].tolist()})
    told = "one event reaches" if number == 1 else f"{number:,} events reach"
    text = f"{told} far out of the recording, and was left out: {', '.join(names[:3])}"
    left = without(trace, gone, {ABSURD: number})
    return replace(left, tally=left.tally + Tally(notes=(Note("TF320", text, ("/result",)),)))


def _absurd(trace: Trace) -> Bool:
    e = trace.events
    none = np.zeros(len(e), bool)
    if len(e) < _FEWEST:
        return none
    rare = max(1, len(e) // _RARE)
    low_ns = int(np.partition(e.start_ns, rare)[rare])
    high_ns = int(np.partition(e.end_ns, -1 - rare)[-1 - rare])
    on_device = (trace.lanes.device != ABSENT)[e.lane]
    far_ns = np.where(on_device, _FAR_ON_DEVICE, _FAR_ON_HOST) * float(max(high_ns - low_ns, 1))
    gone: Bool = (low_ns - e.start_ns > far_ns) | (e.end_ns - high_ns > far_ns)
    return gone if gone.sum() <= rare else none
