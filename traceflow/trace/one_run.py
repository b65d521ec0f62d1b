"""Whether traces that are read together are of one run."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

from traceflow.errors import TraceflowError
from traceflow.result import Note
from traceflow.trace.model import Trace

_APART_NS = 600 * 10**9  # more than clocks of hosts differ


def signs_of_several_runs(traces: Sequence[tuple[Path, Trace]]) -> tuple[Note, ...]:
    """A remark (TF321) where recordings lie so far apart in time that they are hardly of one run.

    Args:
        traces: The trace of each file.

    Raises:
        TraceflowError: TF129 when two of them say that their jobs had different numbers of ranks.
    """
    _check_worlds(traces)
    spans = sorted(
        (trace.epoch_ns, trace.epoch_ns + int(trace.events.end_ns.max(initial=0)), file.name)
        for file, trace in traces
        if trace.epoch_ns is not None
    )
    last_ns, before = (spans[0][1], spans[0][2]) if spans else (0, "")
    for start_ns, end_ns, name in spans:
        if start_ns - last_ns > _APART_NS:
            apart = timedelta(seconds=(start_ns - last_ns) // 10**9)
            text = f"{name} begins {apart} h after {before} ended: they may be of two runs"
            return (Note("TF321", text, ("/result",)),)
        if end_ns > last_ns:
            last_ns, before = end_ns, name
    return ()


def _check_worlds(traces: Sequence[tuple[Path, Trace]]) -> None:
    first: dict[int, Path] = {}
    for file, trace in traces:
        for size in {rank.world_size for rank in trace.ranks if rank.world_size is not None}:
            first.setdefault(size, file)
    if len(first) > 1:
        (one, a), (other, b) = list(first.items())[:2]
        why = f"they are of two runs: one says that its job had {one} ranks, the other {other}"
        raise TraceflowError("TF129", f"cannot read {a} and {b} together", why, "give the files of one run")
