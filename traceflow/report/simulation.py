"""Traces whose devices are threads of a host: what is said of them."""

from __future__ import annotations

import numpy as np

from traceflow.result import Finding, Provenance, Severity
from traceflow.trace.model import LaneKind, Trace

SIMULATION = (
    "The devices of this trace are threads of one host. Their order and their dependencies are real; their timings "
    "are a simulation and no evidence about accelerators."
)


def simulates(trace: Trace) -> bool:
    """Whether the devices of a trace are threads of a host."""
    return bool(np.any(trace.lanes.kind == LaneKind.WORKER))


def simulation_finding() -> Finding:
    """The finding that belongs to `SIMULATION`."""
    from traceflow.codes import CODES

    return Finding(
        code="TF206",
        severity=Severity.WARNING,
        title="timings of virtual devices on host threads are a simulation, no evidence about accelerators",
        provenance=Provenance.MEASURED,
        suggestion=CODES["TF206"].remedy,
    )
