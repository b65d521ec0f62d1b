"""Evidence of one run: read from whatever was recorded, told apart by content."""

from __future__ import annotations

from dataclasses import dataclass

from traceflow.program.module import Programs
from traceflow.trace.model import Trace


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the devices and the host did, and the compiled programs that came with it."""

    trace: Trace
    programs: Programs
