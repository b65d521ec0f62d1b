"""How many bytes were moved, which is not how many are in use: a value rewritten often is traffic each time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from traceflow.program.module import COLLECTIVES, HloModule, Programs, base_opcode
from traceflow.program.traffic import accessed_bytes
from traceflow.result import Json, Provenance, Skipped
from traceflow.trace.model import ABSENT, Bool, Rows, Trace

DEVICE_MEMORY = "device memory"
_CALLS = frozenset({"while", "call", "conditional"})


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes over one interface of one device in a stretch of time."""

    interface: str
    rank: int
    device: int | None
    size_bytes: int
    window_ns: int
    provenance: Provenance

    def to_dict(self) -> dict[str, Json]:
        """A row of `traffic`."""
        return {
            "interface": self.interface,
            "rank": self.rank,
            "device": self.device,
            "bytes": self.size_bytes,
            "window_ns": self.window_ns,
            "provenance": self.provenance.value,
        }


@dataclass(frozen=True, slots=True)
class Executions:
    """How often a device executed an instruction."""

    rank: int
    device: int
    program: int
    instruction: int
    count: int


def executions(trace: Trace, programs: Programs) -> Iterator[Executions]:
    """Each instruction of a program that a device executed, and how often.

    Kernels of one instruction in one run are one execution, except in the body of a loop, where each counts.
    """
    hlo, events, lanes = trace.hlo, trace.events, trace.lanes
    known = hlo.instruction != ABSENT
    lane = events.lane[hlo.event[known]]
    told = lanes.rank[lane], lanes.device[lane], hlo.program[known], hlo.instruction[known]
    order = np.lexsort((hlo.run[known], *reversed(told)))
    executed, run = [column[order] for column in told], hlo.run[known][order]
    other = _changes(executed)
    first = np.flatnonzero(other)
    once = np.array([_in_entry(programs, int(executed[2][at]), int(executed[3][at])) for at in first.tolist()], bool)
    counts = ~np.repeat(once, np.diff(np.append(first, len(order)))) | other | _changes([run])
    totals = np.add.reduceat(counts, first, dtype=np.int64) if len(first) else first
    for at, total in zip(first.tolist(), totals.tolist(), strict=True):
        rank, device, program, instruction = (int(column[at]) for column in executed)
        if program in programs:
            yield Executions(rank, device, program, instruction, total)


def _changes(columns: Sequence[Rows]) -> Bool:
    """Which rows differ from the one before; the first does."""
    changes = np.ones(len(columns[0]), bool)
    changes[1:] = False
    for column in columns:
        changes[1:] |= column[1:] != column[:-1]
    return changes


def _in_entry(programs: Programs, program: int, instruction: int) -> bool:
    module = programs.get(program)
    return module is not None and int(module.computation[instruction]) == module.entry


def traffic(trace: Trace, programs: Programs) -> tuple[tuple[Traffic, ...], tuple[Skipped, ...]]:
    """Bytes that each device read from its memory and wrote to it, by the compiler's shapes times executions.

    Of device memory, bytes = sum over executed instructions of operands and result, as far as they lie in the
    device's main memory, by the compiler's shapes. Collectives are left out: what they move depends on how they are
    carried out. Of copies, and of filling memory, bytes = sum of the sizes that the profiler recorded.
    """
    window_ns = int(trace.events.end_ns.max() - trace.events.start_ns.min()) if len(trace.events) else 0
    copied = tuple(_copied(trace, window_ns))
    sums: dict[tuple[int, int], int] = {}
    unknown = 0
    for one in executions(trace, programs):
        module = programs[one.program]
        if not is_piece(module, one.instruction):
            continue
        size_bytes = accessed_bytes(module, one.instruction)
        unknown += size_bytes is None
        key = one.rank, one.device
        sums[key] = sums.get(key, 0) + (size_bytes or 0) * one.count
    if not sums and not copied:
        return (), (
            Skipped("/result/traffic", "neither sizes of copies nor executions of a compiled program are recorded"),
        )
    rows = tuple(
        Traffic(DEVICE_MEMORY, rank, None if device == ABSENT else device, size, window_ns, Provenance.COMPILER)
        for (rank, device), size in sorted(sums.items())
    )
    reason = f"of {unknown} instructions the sizes are not known: they are not in the sum"
    return (*rows, *copied), (Skipped("/result/traffic/*/bytes", reason),) if unknown else ()


def _copied(trace: Trace, window_ns: int) -> Iterator[Traffic]:
    """Copies by device and by what they are between, which their names tell."""
    events, lanes, copies = trace.events, trace.lanes, trace.copies
    lane = events.lane[copies.event]
    table = np.column_stack((lanes.rank[lane], lanes.device[lane], events.name[copies.event])).astype(np.int64)
    kinds, place = np.unique(table, axis=0, return_inverse=True)
    sums = np.zeros(len(kinds), np.int64)
    np.add.at(sums, place.ravel(), copies.size_bytes)
    for (rank, device, name), size_bytes in zip(kinds.tolist(), sums.tolist(), strict=True):
        on = None if device == ABSENT else device
        yield Traffic(trace.strings[name], rank, on, size_bytes, window_ns, Provenance.MEASURED)


def is_piece(module: HloModule, row: int) -> bool:
    """Whether an instruction does its work itself, and no collective's."""
    opcode = base_opcode(module.opcode[row])
    return opcode not in COLLECTIVES and opcode not in _CALLS
