"""What every trace promises, whatever it was read from."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np

from traceflow.trace.model import Trace


def assert_sound(trace: Trace) -> None:
    """See that a trace points at nothing that it does not have, and that time runs forward in it.

    Raises:
        AssertionError: where it contradicts itself.
    """
    events, count = trace.events, len(trace.events)
    for name in (
        "events",
        "communications",
        "syncs",
        "flows",
        "hlo",
        "launches",
        "marks",
        "memory",
        "operands",
        "copies",
    ):
        lengths = {len(getattr(getattr(trace, name), column.name)) for column in fields(getattr(trace, name))}
        assert len(lengths) == 1, f"columns of {name} have lengths {lengths}"
    assert (events.start_ns <= events.end_ns).all(), "an event ends before it starts"
    assert not count or events.start_ns.min() >= 0, "an event starts before the trace"
    _assert_within(events.lane, len(trace.lanes), 0, "a lane")
    _assert_within(events.name, len(trace.strings), 0, "a name")
    _assert_within(trace.communications.group, len(trace.groups), -1, "a group")
    _assert_within(trace.lanes.rank, 2**31, 0, "a rank")
    for column in (
        trace.communications.event,
        trace.flows.source,
        trace.flows.target,
        trace.hlo.event,
        trace.launches.event,
        trace.operands.event,
        trace.copies.event,
    ):
        _assert_within(column, count, 0, "an event")
    order = np.lexsort((-events.end_ns, events.start_ns, events.lane))
    assert (np.diff(order) > 0).all(), "events are out of order"
    for text in (
        *trace.strings,
        *trace.lanes.name,
        *trace.metadata.values(),
        *(str(rank.host) for rank in trace.ranks),
    ):
        text.encode()
    tally = trace.tally
    assert tally.read == tally.kept + sum(tally.dropped.values()), "events are not accounted for"


def _assert_within(codes: Any, count: int, lowest: int, what: str) -> None:
    assert not len(codes) or (codes.min() >= lowest and codes.max() < count), f"{what} is out of range"
