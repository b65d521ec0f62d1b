"""The trace of an input that holds none: programs alone."""

from __future__ import annotations

import numpy as np

from traceflow.result import Note, Tally
from traceflow.trace.model import Communications, Events, Flows, HloEvents, Lanes, Launches, Marks, Syncs, Trace, empty

FORMAT = "programs"


def untraced(notes: tuple[Note, ...] = ()) -> Trace:
    """A trace without events, ranks and lanes. Nothing was read and nothing left out.

    Args:
        notes: Remarks on what else was read.
    """
    none = np.empty(0, np.int32)
    return Trace(
        events=empty(Events),
        lanes=Lanes(none, none, none.astype(np.int8), none.astype(np.int64), ()),
        strings=(),
        groups=(),
        communications=empty(Communications),
        syncs=empty(Syncs),
        flows=empty(Flows),
        hlo=empty(HloEvents),
        launches=empty(Launches),
        marks=empty(Marks),
        ranks=(),
        epoch_ns=None,
        format=FORMAT,
        tally=Tally(notes=notes),
    )
