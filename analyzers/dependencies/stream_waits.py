"""Waits between the streams of a GPU that a compiled program implies, where the trace has no record of them.

XLA launches what is asynchronous on a stream of its own. That stream first waits for all that the schedule put before
the start, and what the schedule puts after the done waits for it. A done launches nothing, so that it has no event.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from traceflow.trace.model import ABSENT, Bool

if TYPE_CHECKING:
    from traceflow.program.module import HloModule


def stream_waits(module: HloModule, executed: Bool) -> set[tuple[int, int]]:
    """Pairs of executed instructions (waiting, awaited) within one round of their computation.

    Args:
        module: The program; computations without a schedule say nothing.
        executed: Which instructions have events, shape (instructions,).
    """
    halves = [row for row, opcode in enumerate(module.opcode) if opcode.endswith(("-start", "-done"))]
    rows = np.union1d(np.flatnonzero(executed), np.array(halves, np.int64))
    rows = rows[module.schedule[rows] >= 0]
    order = rows[np.lexsort((module.schedule[rows], module.computation[rows]))]
    bounds = np.flatnonzero(np.diff(module.computation[order])) + 1
    return {pair for part in np.split(order, bounds) for pair in _of_computation(module, executed, part.tolist())}


def _of_computation(module: HloModule, executed: Bool, scheduled: list[int]) -> set[tuple[int, int]]:
    """Follow one schedule: what was computed last, and which asynchronous work is over for whatever comes next."""
    pairs, last, over = set[tuple[int, int]](), ABSENT, set[int]()
    for row in scheduled:
        opcode = module.opcode[row]
        work = row if executed[row] else module.wrapped_by(module.start_of(row))
        if not executed[work]:
            continue
        if opcode.endswith("-done"):
            over |= set() if executed[row] else {work}
            continue
        before = over if last == ABSENT else over | {last}
        if opcode.endswith("-start"):
            pairs |= {(work, awaited) for awaited in before}
        else:
            pairs |= {(work, awaited) for awaited in over}
            last, over = work, set()
    return pairs
