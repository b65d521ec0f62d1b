"""What the instructions of a mismatch cost: how often they ran, how long, and how much of that decided the step."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from traceflow.analyzers.critical_path import CriticalPath
from traceflow.analyzers.sharding.partitioning import Partitioning
from traceflow.program.module import HloModule, base_opcode
from traceflow.trace.model import Trace


class Executed(NamedTuple):
    """Executions of some instructions in the window of the path, all devices together."""

    occurrences: int
    time_ns: int
    path_ns: int | None  # of the critical path, None where that is not known


@dataclass(frozen=True, slots=True)
class Measured:
    """What a trace says of the programs that were compiled."""

    trace: Trace | None = None
    path: CriticalPath | None = None

    def of(self, p: Partitioning, rows: Iterable[int]) -> Executed | None:
        """Executions of instructions of the divided program; None where the trace has none of its program.

        The compiler renames what it moves, so that an instruction is found by its operation, scope and source line.
        """
        compiled = p.compilation.compiled
        if self.trace is None or compiled is None or p.divided is None:
            return None
        hlo = self.trace.hlo
        of_program = hlo.program == compiled.program_id
        if not of_program.any():
            return None
        wanted = [row for r in rows for row in _compiled_rows(p.divided, compiled, r)]
        events = hlo.event[of_program & np.isin(hlo.instruction, wanted)]
        if self.path is not None:
            started = self.trace.events.start_ns[events]
            events = events[(started >= self.path.window.start_ns) & (started < self.path.window.end_ns)]
        time = self.trace.events.end_ns[events] - self.trace.events.start_ns[events]
        return Executed(len(events), int(time.sum()), self._on_path({compiled.instruction_name[row] for row in wanted}))

    def _on_path(self, names: set[str]) -> int | None:
        if self.path is None:
            return None
        segments = self.path.segments
        return int(segments.duration_ns[np.isin(segments.name.astype(str), sorted(names))].sum())


def _compiled_rows(divided: HloModule, compiled: HloModule, row: int) -> list[int]:
    """The instructions of the compiled program that one of the divided program became."""
    if divided is compiled:
        return [row]
    key = _key(divided, row)
    return [other for other in range(len(compiled)) if _key(compiled, other) == key]


def _key(module: HloModule, row: int) -> tuple[str, str, str]:
    return base_opcode(module.opcode[row]), module.operation_name[row].rpartition("/")[2], module.source[row]
