"""Streams that look like communication though nothing recognises their kernels."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from traceflow.analyzers.dependencies import Dependencies
from traceflow.analyzers.window import Window
from traceflow.graph import Bool, Int64
from traceflow.result import Finding, Provenance, Severity
from traceflow.trace.communication_names import Hint, hint
from traceflow.trace.model import ABSENT, Kind, Trace

_ISSUES = ("record_param_comms", "c10d::", "nccl:")
"""How the host events begin that carry a process group in PyTorch, where they issue communication."""

_NAMES = 3


@dataclass(frozen=True, slots=True)
class _Kernels:
    """Kernels inside the window that count as computation, with what hints at communication."""

    event: Int64
    lane: Int64
    duration_ns: Int64
    collective: Bool  # its name is that of a collective
    transfer: Bool  # its name has a word for moving data
    issued: Bool  # an operator with a process group launched it

    def of(self, lane: int) -> _Kernels:
        """Those of one stream."""
        here = self.lane == lane
        columns = (self.event, self.lane, self.duration_ns, self.collective, self.transfer, self.issued)
        return _Kernels(*(column[here] for column in columns))


def unrecognised(trace: Trace, found: Dependencies, window: Window) -> tuple[Finding, ...]:
    """One finding per stream whose kernels may communicate, though they count as computation.

    A kernel that bears the name of a collective is suspected wherever it runs. Weaker hints are a word for moving
    data in its name, and an operator with a process group that launched it. They count on a stream beside the one
    that computes most, without recognised communication, where they are about at least half of the kernels' time.

    Args:
        trace: The evidence.
        found: Its dependencies.
        window: Where to look.
    """
    kernels = _kernels(trace, found, window)
    talks = np.unique(trace.events.lane[trace.communications.event]).tolist()
    findings = []
    for lane in np.unique(kernels.lane).tolist():
        own = kernels.of(lane)
        weak = own.transfer | own.issued | own.collective
        beside = lane not in talks and _computes_elsewhere(trace, kernels, lane)
        mostly = 2 * int(own.duration_ns[weak].sum()) >= int(own.duration_ns.sum())
        suspected = weak if beside and mostly else own.collective
        if suspected.any():
            findings.append(_finding(trace, own, suspected, lane))
    return tuple(findings)


def _kernels(trace: Trace, found: Dependencies, window: Window) -> _Kernels:
    """What an HLO instruction runs is left out: the compiler says what it is."""
    e = trace.events
    event = np.flatnonzero(e.kind == Kind.COMPUTE)
    event = event[(e.start_ns[event] < window.end_ns) & (e.end_ns[event] > window.start_ns)]
    event = event[(trace.lanes.device[e.lane[event]] != ABSENT) & ~np.isin(event, trace.hlo.event)]
    hints = {int(code): hint(trace.strings[code]) for code in np.unique(e.name[event])}
    said = [hints[code] for code in e.name[event].tolist()]
    return _Kernels(
        event,
        e.lane[event].astype(np.int64),
        e.end_ns[event] - e.start_ns[event],
        np.array([word is Hint.COLLECTIVE for word in said], bool),
        np.array([word is Hint.TRANSFER for word in said], bool),
        _issued(trace, found.launch_call[event].astype(np.int64)),
    )


def _issued(trace: Trace, call: Int64) -> Bool:
    """Launch calls inside a host event that issues communication."""
    e = trace.events
    issues = np.array([text.startswith(_ISSUES) for text in trace.strings] or [False])
    rows = np.flatnonzero(issues[e.name] & (trace.lanes.device[e.lane] == ABSENT))
    inside = np.zeros(len(call), bool)
    for lane in np.unique(e.lane[rows]).tolist():
        own = rows[e.lane[rows] == lane]
        until = np.append(np.maximum.accumulate(e.end_ns[own]), np.iinfo(np.int64).min)
        here = np.flatnonzero((call != ABSENT) & (e.lane[call] == lane))
        begun = np.searchsorted(e.start_ns[own], e.start_ns[call[here]], side="right") - 1
        inside[here] = until[begun] >= e.end_ns[call[here]]
    return inside


def _computes_elsewhere(trace: Trace, kernels: _Kernels, lane: int) -> bool:
    """Whether another stream of the device spends more time on kernels that do not hint at communication."""
    lanes = trace.lanes
    same = (lanes.rank == lanes.rank[lane]) & (lanes.device == lanes.device[lane])
    plain = ~(kernels.collective | kernels.transfer)
    spent_ns = np.bincount(kernels.lane[plain], kernels.duration_ns[plain], minlength=len(lanes))
    others = np.flatnonzero(same & (np.arange(len(lanes)) != lane))
    return bool((spent_ns[others] > spent_ns[lane]).any())


def _finding(trace: Trace, own: _Kernels, suspected: Bool, lane: int) -> Finding:
    took: Counter[str] = Counter()
    for row, ns in zip(own.event[suspected].tolist(), own.duration_ns[suspected].tolist(), strict=True):
        took[trace.strings[trace.events.name[row]]] += ns
    names = [name for name, _ in took.most_common(_NAMES)]
    by_name = bool((own.collective | own.transfer)[suspected].any())
    because = "their names say so" if by_name else "operators with a process group launched them"
    kernels = int(suspected.sum())
    return Finding(
        code="TF210",
        severity=Severity.WARNING,
        title=f"{kernels:,} kernels on stream {trace.lanes.name[lane]} of rank {trace.lanes.rank[lane]} may be"
        f" communication that is not recognised: {because}",
        provenance=Provenance.MEASURED,
        suggestion="if they communicate, name them with --communication REGEX; until then they count as computation",
        evidence={
            "rank": int(trace.lanes.rank[lane]),
            "device": int(trace.lanes.device[lane]),
            "lane": trace.lanes.name[lane],
            "names": [*names],
            "kernels": kernels,
            "duration_ns": took.total(),
        },
    )
