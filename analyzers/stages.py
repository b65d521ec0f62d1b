"""The stage of the program that an event belongs to: the innermost annotation around it."""

from __future__ import annotations

import re

import numpy as np

from traceflow.trace.model import ABSENT, Int32, Kind, LaneKind, Trace

WHOLE_STEP = "traceflow."  # how names begin of what traceflow itself writes around a whole step
# operators, functions, and whole steps
_NO_ANNOTATION = re.compile(rf"::|Backward\d*$|\.py\(\d+\): |^<built-in |^{re.escape(WHOLE_STEP)}")


def stage_of_events(trace: Trace, launch_call: Int32) -> Int32:
    """Code of the name of the innermost annotation around each event, ABSENT without one.

    An annotation is what the program or a library of it calls a part of a step, as `record_function` does; operators
    and Python functions are none. Device work belongs to the stage of the call that launched it.

    Args:
        trace: The evidence.
        launch_call: The host event that launched each device event, ABSENT where unknown, shape (events,).
    """
    from traceflow.analyzers.dependencies._sweep import enclosing

    e = trace.events
    annotates = np.array([not _NO_ANNOTATION.search(text) for text in trace.strings] or [False])
    annotation = annotates[e.name] & (e.kind == Kind.HOST) & (trace.lanes.kind[e.lane] == LaneKind.THREAD)
    around = enclosing(e.start_ns, e.end_ns, e.lane, annotation)
    around = np.where(launch_call >= 0, around[launch_call], around)
    # A step may begin before the annotation ends that ended the step before it, as optimizer.step() does.
    steps = np.array([text.startswith(WHOLE_STEP) for text in trace.strings] or [False])
    around[steps[e.name]] = ABSENT
    stage: Int32 = np.where(around >= 0, e.name[around], ABSENT).astype(np.int32)
    return stage
