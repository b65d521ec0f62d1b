"""What lies in a capture, as tests ask for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from traceflow import evidence
from traceflow.capture import Capture, Manifest
from traceflow.program.module import HloModule


def manifest_of(path: Path | str) -> Manifest:
    """The manifest of a capture, which has one."""
    manifest = Capture.open(path).manifest
    assert manifest is not None
    return manifest


def executed(path: Path, device: int | None = None) -> Iterator[tuple[HloModule, int]]:
    """Each instruction that the trace holds an event of, on any device or on one, as its program and row."""
    found = evidence.read(path)
    hlo, lanes = found.trace.hlo, found.trace.lanes
    of_device = True if device is None else lanes.device[found.trace.events.lane[hlo.event]] == device
    for program_id, module in found.programs.items():
        rows = np.unique(hlo.instruction[(hlo.program == program_id) & of_device])
        yield from ((module, int(row)) for row in rows)


def operations_of(module: HloModule, row: int) -> Iterator[str]:
    """The operations that an instruction stands for: its own, and those that the compiler fused into it."""
    fused = np.flatnonzero(np.isin(module.computation, module.called_by(row)))
    yield from (module.operation_name[each] for each in (row, *fused))
