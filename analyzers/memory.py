"""What is in memory, when, and why: programs by their buffer assignment, allocators by their events, and traffic."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from traceflow.analyzers.allocator import AllocatorUse, allocators
from traceflow.analyzers.memory_traffic import Traffic, traffic
from traceflow.errors import TraceflowError
from traceflow.result import Finding, Json, Note, Provenance, Severity, Shown, Skipped
from traceflow.trace.model import ABSENT, Trace

if TYPE_CHECKING:
    import pandas as pd

    from traceflow.analyzers.program_memory import ProgramMemory
    from traceflow.program.module import HloModule, Programs
    from traceflow.program.stated import Stated

_WORTH_DONATING, _WORTH_DONATING_BYTES = 0.01, 1 << 20
_SIZES = (
    "persistent_bytes",
    "packed_bytes",
    "temp_bytes",
    "alias_bytes",
    "argument_bytes",
    "output_bytes",
    "constant_bytes",
)


@dataclass(frozen=True, slots=True)
class CoResident:
    """What all programs of a device need together."""

    peak_bytes: int | None = None
    at_least_bytes: int | None = None
    unshared_bytes: int | None = None  # if no argument were another program's result


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory(Shown):
    """Memory of a capture: what programs need, what allocators handed out, and what was moved."""

    kind: ClassVar[str] = "memory"
    programs: tuple[ProgramMemory, ...]
    co_resident: CoResident
    allocator: tuple[AllocatorUse, ...]
    traffic: tuple[Traffic, ...]
    findings: tuple[Finding, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    notes: tuple[Note, ...] = ()

    def to_dict(self) -> dict[str, Json]:
        """The `result` object of the JSON contract."""
        return {
            "programs": [program.to_dict() for program in self.programs],
            "co_resident_peak_bytes": self.co_resident.peak_bytes,
            "co_resident_at_least_bytes": self.co_resident.at_least_bytes,
            "co_resident_unshared_bytes": self.co_resident.unshared_bytes,
            "allocator": [use.to_dict() for use in self.allocator],
            "traffic": [row.to_dict() for row in self.traffic],
        }

    def to_pandas(self) -> pd.DataFrame:
        """One row per buffer that is alive at the peak of its program."""
        import pandas as pd

        return pd.DataFrame(
            [{"module": p.module, **buffer.to_dict()} for p in self.programs for buffer in p.live_at_peak]
        )


def memory(
    trace: Trace,
    programs: Programs,
    *,
    stated: Sequence[Stated] = (),
    without: Sequence[str] = (),
    donate: Sequence[str] = (),
) -> Memory:
    """Find peaks, what is alive then, and what would be saved.

    Of several programs on one device, arguments of one may be results of another, which no program tells. So their
    common peak is known for a single program alone; for several it is at least the largest peak of one, and with
    nothing shared max over programs of (its peak + what all others hold all the time).

    Args:
        trace: The evidence; programs that it does not show are left out of figures on several programs.
        programs: What the compiler arranged.
        stated: What JAX says of the functions, with the peak that the runtime reports.
        without: Patterns of names of buffers: what the peak would be without them.
        donate: Patterns of arguments: what the peak would be if they were donated.

    Returns:
        Programs with the largest peak first and those that the trace does not show last, allocators by rank and
        device, and traffic.

    Raises:
        TraceflowError: TF112 for a pattern that is no regular expression.
    """
    for pattern in (*without, *donate):
        _check(pattern)
    rows = _needs(trace, programs, stated, without, donate)
    shown = [row for row in rows if row.executed is not False]
    uses, allocator_skipped = allocators(trace)
    moved, traffic_skipped = traffic(trace, programs)
    return Memory(
        programs=tuple(rows),
        co_resident=_co_resident(shown),
        allocator=uses,
        traffic=moved,
        findings=tuple(_findings(shown)),
        skipped=(*_skipped(rows, shown, programs), *allocator_skipped, *traffic_skipped),
    )


def _needs(
    trace: Trace, programs: Programs, stated: Sequence[Stated], without: Sequence[str], donate: Sequence[str]
) -> list[ProgramMemory]:
    """What each program needs, the largest peak first."""
    if not programs:
        return []
    from traceflow.analyzers.program_memory import program_memory

    executed = {int(key) for key in np.unique(trace.hlo.program)}
    rows = [
        program_memory(
            module,
            program=key,
            executed=key in executed if executed else None,
            arguments=_arguments(module, stated),
            without=without,
            donate=donate,
        )
        for key, module in programs.items()
    ]
    peaks = {one.module: one.peak_bytes for one in stated}
    rows = [_placed(trace, replace(row, compiler_peak_bytes=peaks.get(row.module))) for row in rows]
    return sorted(rows, key=_order)


def _arguments(module: HloModule, stated: Sequence[Stated]) -> tuple[str, ...]:
    """What the source calls the arguments; nothing where the compiler has dropped some, or several functions match."""
    matching = [one for one in stated if one.module == module.name]
    entry = module.computation == module.entry
    count = int(((module.parameter_number >= 0) & entry).sum())
    if len(matching) != 1 or len(matching[0].arguments) != count:
        return ()
    return tuple(argument.path for argument in matching[0].arguments)


def _order(row: ProgramMemory) -> tuple[bool, int, str, int]:
    return row.executed is False, -(row.live_peak_bytes or row.scheduled_peak_bytes or 0), row.module, row.program


def _check(pattern: str) -> None:
    try:
        re.compile(pattern)
    except re.error as error:
        why = f"it is no regular expression: {error}"
        raise TraceflowError("TF112", f"cannot look for {pattern}", why, "correct the pattern") from error


def _placed(trace: Trace, row: ProgramMemory) -> ProgramMemory:
    """With the first moments at which devices execute the instruction of the peak."""
    from traceflow.analyzers.program_memory import Moment, Peak

    if row.peak_at is None or row.peak_at.row == ABSENT:
        return row
    hlo, lanes = trace.hlo, trace.lanes
    events = hlo.event[(hlo.program == row.program) & (hlo.instruction == row.peak_at.row)]
    first: dict[tuple[int, int], int] = {}
    for event in events[np.argsort(trace.events.start_ns[events], kind="stable")].tolist():
        lane = trace.events.lane[event]
        first.setdefault((int(lanes.rank[lane]), int(lanes.device[lane])), int(trace.events.start_ns[event]))
    moments = tuple(
        Moment(rank, None if device == ABSENT else device, start_ns)
        for (rank, device), start_ns in sorted(first.items())
    )
    at = row.peak_at
    return replace(row, peak_at=Peak(at.name, at.row, at.opcode, at.source, moments))


def _co_resident(rows: Sequence[ProgramMemory]) -> CoResident:
    """Figures on several programs on one device; none where the peak of one of them is not known."""
    known = [row.live_peak_bytes for row in rows if row.live_peak_bytes is not None]
    if not known or len(known) < len(rows):
        return CoResident()
    held = [row.persistent_bytes or 0 for row in rows]
    unshared = max(peak + sum(held) - own for peak, own in zip(known, held, strict=True))
    return CoResident(known[0] if len(known) == 1 else None, max(known), unshared)


def _findings(rows: Sequence[ProgramMemory]) -> Iterator[Finding]:
    for row in rows:
        if row.live_peak_bytes is None:
            continue
        if row.compiler_peak_bytes is not None and row.compiler_peak_bytes < row.live_peak_bytes:
            yield _understated(row, row.compiler_peak_bytes, row.live_peak_bytes)
        saved = sum(size for _, size in row.donatable)
        if saved >= max(_WORTH_DONATING * row.live_peak_bytes, _WORTH_DONATING_BYTES):
            yield _undonated(row)


def _understated(row: ProgramMemory, reported: int, live: int) -> Finding:
    return Finding(
        code="TF211",
        severity=Severity.WARNING,
        title=f"the runtime reports a peak of {reported:,} B for {row.module}; {live:,} B are alive at once",
        provenance=Provenance.COMPILER,
        suggestion="plan with the live peak: on some backends the reported one leaves temporaries out",
        evidence={
            "module": row.module,
            "reported_bytes": reported,
            "live_peak_bytes": live,
            "temp_bytes": row.temp_bytes,
        },
    )


def _undonated(row: ProgramMemory) -> Finding:
    total = sum(size for _, size in row.donatable)
    return Finding(
        code="TF212",
        severity=Severity.INFO,
        title=f"{row.module} keeps {total:,} B of arguments beside results of their size",
        provenance=Provenance.MODELLED,
        suggestion="donate what is not needed after the call, with jax.jit(..., donate_argnums=...)",
        evidence={
            "module": row.module,
            "saved_bytes": total,
            "arguments": [{"name": name, "bytes": size} for name, size in row.donatable[:20]],
        },
    )


def _skipped(rows: Sequence[ProgramMemory], shown: Sequence[ProgramMemory], programs: Programs) -> Iterator[Skipped]:
    """What is not known of programs, each reason once."""
    if not rows:
        yield Skipped("/result/programs", "the capture holds no compiled program")
    gaps = dict.fromkeys(gap for row in rows for gap in _gaps(row, programs[row.program]))
    for reason, name in gaps:
        yield Skipped(f"/result/programs/*/{name}", reason)
    if len(shown) == 1 and shown[0].live_peak_bytes is not None:
        return
    several = len(shown) > 1 and all(row.live_peak_bytes is not None for row in shown)
    reason = "which arguments are results of other programs is not told" if several else "a live peak is not known"
    for which in ("peak",) if several else ("peak", "at_least", "unshared"):
        yield Skipped(
            f"/result/co_resident_{which}_bytes", reason if shown else "the capture holds no compiled program"
        )


def _gaps(row: ProgramMemory, module: HloModule) -> Iterator[tuple[str, str]]:
    """Reason and name of each figure of a program that is not known."""
    from traceflow.analyzers.program_memory import why_no_peak

    if why := why_no_peak(module):
        sizes = _SIZES if row.packed_bytes is None else _SIZES[:1]
        yield from ((why, name) for name in ("live_peak_bytes", "peak_at", "live_at_peak", "live", *sizes))
    if row.scheduled_peak_bytes is None:
        yield "the program has no schedule" if why else "the live peak is known", "scheduled_peak_bytes"
    if row.compiler_peak_bytes is None:
        yield "the capture holds no figures of the runtime for it", "compiler_peak_bytes"
    if row.peak_at is not None and not row.peak_at.moments:
        yield "the trace shows no execution of the instruction", "peak_at/moments"
