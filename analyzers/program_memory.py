"""What one compiled program needs in memory: its peak, what is alive then, and what would be saved."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from traceflow.analyzers.live_ranges import (
    LiveRanges,
    live_ranges,
    logical_bytes,
    of_default_space,
    temporary,
    unsimulated,
    value_name,
    value_shape,
)
from traceflow.analyzers.scheduled_peak import scheduled_peak_bytes
from traceflow.result import Json
from traceflow.trace.model import ABSENT, Bool, Int64

if TYPE_CHECKING:
    from traceflow.program.buffers import Allocations, Buffers
    from traceflow.program.module import HloModule

START, END = "start", "end"
_CURVE = 400
_KINDS = ("argument", "constant", "result", "temporary")


@dataclass(frozen=True, slots=True)
class LiveBuffer:
    """Memory that is in use at the peak."""

    name: str  # the value in it, as `instruction` or `instruction{1}`
    size_bytes: int
    logical_bytes: int | None
    kind: str  # argument, constant, result or temporary
    opcode: str
    source: str
    born: str  # the instruction that it is allocated for; `start`: it is there before the program begins
    dies: str  # the last instruction that had allocated when it was freed; `end`: not before the program ends
    argument: str | None = None  # what the source calls an argument, where that is told

    def to_dict(self) -> dict[str, Json]:
        """A row of `live_at_peak`."""
        return {
            "name": self.name,
            "bytes": self.size_bytes,
            "logical_bytes": self.logical_bytes,
            "kind": self.kind,
            "opcode": self.opcode,
            "source": self.source,
            "born": self.born,
            "dies": self.dies,
            "argument": self.argument,
        }


@dataclass(frozen=True, slots=True)
class Moment:
    """When a device first executed the instruction at which the peak is reached."""

    rank: int
    device: int | None
    start_ns: int

    def to_dict(self) -> dict[str, Json]:
        """A row of `moments`."""
        return {"rank": self.rank, "device": self.device, "start_ns": self.start_ns}


@dataclass(frozen=True, slots=True)
class Peak:
    """Where in a program its peak is reached."""

    name: str  # `start` where nothing comes and goes
    row: int  # of the instruction, ABSENT where there is none
    opcode: str
    source: str
    moments: tuple[Moment, ...] = ()

    def to_dict(self) -> dict[str, Json]:
        """The `peak_at` object."""
        return {
            "name": self.name,
            "opcode": self.opcode,
            "source": self.source,
            "moments": [moment.to_dict() for moment in self.moments],
        }


@dataclass(frozen=True, slots=True)
class Modelled:
    """The peak without some buffers, or with some arguments donated."""

    without: tuple[str, ...]
    donated: tuple[str, ...]
    live_peak_bytes: int
    saved_bytes: int

    def to_dict(self) -> dict[str, Json]:
        """The `what_if` object."""
        return {
            "without": list(self.without),
            "donated": list(self.donated),
            "live_peak_bytes": self.live_peak_bytes,
            "saved_bytes": self.saved_bytes,
            "provenance": "modelled",
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramMemory:
    """Memory of one program on one device, in bytes. Three totals answer three questions and are kept apart."""

    program: int
    module: str
    executed: bool | None  # whether the trace shows it; None where the trace shows no programs
    live_peak_bytes: int | None = None  # most that is alive at once
    scheduled_peak_bytes: int | None = None  # about the same by the schedule alone, where the live peak is not known
    packed_bytes: int | None = None  # what the compiler set aside, gaps between buffers included
    compiler_peak_bytes: int | None = None  # what the runtime reports as the peak
    persistent_bytes: int | None = None  # alive during the whole program
    temp_bytes: int | None = None
    argument_bytes: int | None = None
    output_bytes: int | None = None  # with the arguments that become results
    constant_bytes: int | None = None
    alias_bytes: int | None = None  # arguments that become results
    peak_at: Peak | None = None
    live_at_peak: tuple[LiveBuffer, ...] = ()
    live: tuple[tuple[str, int], ...] = ()  # most bytes alive, by the instruction at which a stretch begins
    what_if: Modelled | None = None
    donatable: tuple[tuple[str, int], ...] = ()  # arguments that a result of their size could take over

    def to_dict(self) -> dict[str, Json]:
        """A row of `programs`."""
        sizes = (
            "live_peak_bytes", "scheduled_peak_bytes", "packed_bytes", "compiler_peak_bytes", "persistent_bytes", "temp_bytes",
            "argument_bytes", "output_bytes", "constant_bytes", "alias_bytes",
        )  # fmt: skip
        return {
            "program": str(self.program),
            "module": self.module,
            "executed": self.executed,
            **{name: getattr(self, name) for name in sizes},
            "peak_at": None if self.peak_at is None else self.peak_at.to_dict(),
            "live_at_peak": [buffer.to_dict() for buffer in self.live_at_peak],
            "live": [{"at": at, "live_bytes": size_bytes} for at, size_bytes in self.live],
            "what_if": None if self.what_if is None else self.what_if.to_dict(),
        }


def program_memory(
    module: HloModule,
    *,
    program: int,
    executed: bool | None = None,
    arguments: Sequence[str] = (),
    without: Sequence[str] = (),
    donate: Sequence[str] = (),
) -> ProgramMemory:
    """Memory of a program by its buffer assignment.

    live_peak = persistent + max over the simulation of the heap of what is alive; packed = sum of all allocations
    that are not on a thread's stack. Without a simulation of the temporaries there is no live peak; with several,
    how they overlap is not told, and there is none either. The schedule then gives a figure that is about as high.

    Args:
        module: The program.
        program: Its key.
        executed: Whether the trace shows it.
        arguments: What the source calls its arguments, in order; nothing where it does not tell.
        without: Patterns of names of buffers to leave out, in a what-if.
        donate: Patterns of names of arguments to donate, in a what-if.
    """
    said = ProgramMemory(program=program, module=module.name, executed=executed)
    buffers = module.buffers
    if why_no_peak(module):
        said = replace(said, scheduled_peak_bytes=scheduled_peak_bytes(module))
    if buffers is None:
        return said
    places = buffers.allocations
    said = replace(
        said,
        packed_bytes=_total(places, ~places.thread_local),
        argument_bytes=_total(places, places.parameter != ABSENT),
        output_bytes=_total(places, places.live_out & ~places.thread_local),
        constant_bytes=_total(places, places.constant & ~places.thread_local),
        temp_bytes=_total(places, temporary(places)),
        alias_bytes=_total(places, (places.parameter != ABSENT) & places.live_out),
    )
    if why_no_peak(module):
        return said
    ranges = live_ranges(buffers, module.opcode)
    live_bytes = ranges.live_bytes()
    event = int(live_bytes.argmax())
    return replace(
        said,
        live_peak_bytes=int(live_bytes[event]),
        persistent_bytes=int(ranges.size_bytes[ranges.persistent].sum()),
        peak_at=_peak(module, ranges, event),
        live_at_peak=tuple(_live_buffer(module, buffers, ranges, row, arguments) for row in ranges.at(event).tolist()),
        live=_curve(module, ranges, live_bytes),
        what_if=_modelled(module, buffers, ranges, without, donate, arguments) if without or donate else None,
        donatable=tuple((_argument(module, buffers, row, arguments)[0], size) for row, size in _donatable(buffers)),
    )


def why_no_peak(module: HloModule) -> str:
    """Why the live peak of a program is not known, empty where it is."""
    buffers = module.buffers
    if buffers is None:
        return "the program came without a buffer assignment"
    if len(unsimulated(buffers)):
        return "the compiler did not record when its temporaries live"
    if len(np.unique(of_default_space(buffers).simulation)) > 1:
        return "the compiler laid out several heaps, and how they overlap is not told"
    return ""


def _total(places: Allocations, chosen: Bool) -> int:
    return int(places.size_bytes[chosen & (places.space == 0)].sum())


def _peak(module: HloModule, ranges: LiveRanges, event: int) -> Peak:
    row = int(ranges.instruction[event]) if len(ranges.instruction) else ABSENT
    if row == ABSENT:
        return Peak(START, row, "", "")
    return Peak(module.instruction_name[row], row, module.opcode[row], module.source[row])


def _live_buffer(
    module: HloModule, buffers: Buffers, ranges: LiveRanges, row: int, arguments: Sequence[str]
) -> LiveBuffer:
    value = int(ranges.value[row])
    instruction = int(buffers.values.instruction[value]) if value != ABSENT else ABSENT
    known = instruction != ABSENT
    born, dies = int(ranges.born[row]), int(ranges.dies[row])
    kind = _kind(buffers, value) if value != ABSENT else "temporary"
    called = _argument(module, buffers, int(buffers.values.allocation[value]), arguments) if kind == "argument" else ()
    return LiveBuffer(
        name=value_name(module, buffers, value),
        size_bytes=int(ranges.size_bytes[row]),
        logical_bytes=logical_bytes(value_shape(module, buffers, value)),
        kind=kind,
        opcode=module.opcode[instruction] if known else "",
        source=module.source[instruction] if known else "",
        born=START if ranges.persistent[row] else _event_name(module, ranges, born),
        dies=END if dies >= len(ranges.instruction) else _event_name(module, ranges, dies),
        argument=called[0] if len(called) > 1 else None,
    )


def _kind(buffers: Buffers, value: int) -> str:
    places, at = buffers.allocations, int(buffers.values.allocation[value])
    if at == ABSENT:
        return "temporary"
    told = (places.parameter[at] != ABSENT, places.constant[at], places.live_out[at])
    return next((kind for kind, is_it in zip(_KINDS, told, strict=False) if is_it), "temporary")


def _event_name(module: HloModule, ranges: LiveRanges, event: int) -> str:
    row = int(ranges.instruction[event])
    return "" if row == ABSENT else module.instruction_name[row]


def _curve(module: HloModule, ranges: LiveRanges, live_bytes: Int64) -> tuple[tuple[str, int], ...]:
    """Live bytes in at most `_CURVE` stretches of equal length, each as high as its highest moment."""
    if not len(ranges.instruction):
        return ((START, int(live_bytes[0])),)
    first = np.unique(np.linspace(0, len(live_bytes), min(_CURVE, len(live_bytes)), endpoint=False).astype(np.int64))
    most = np.maximum.reduceat(live_bytes, first)
    return tuple(
        (_event_name(module, ranges, event), size) for event, size in zip(first.tolist(), most.tolist(), strict=True)
    )


def _modelled(
    module: HloModule,
    buffers: Buffers,
    ranges: LiveRanges,
    without: Sequence[str],
    donate: Sequence[str],
    arguments: Sequence[str],
) -> Modelled:
    """The peak of the same schedule without some rows.

    A donated argument takes the place of one result of its size that no argument has become yet.
    """
    names = [value_name(module, buffers, int(value)) for value in ranges.value]
    gone = np.array([any(re.search(pattern, name) for pattern in without) for name in names], bool)
    donated, spared = _donated(module, buffers, donate, arguments)
    kept = np.flatnonzero(~gone)
    remaining = LiveRanges(
        ranges.value[kept], ranges.size_bytes[kept], ranges.born[kept], ranges.dies[kept], ranges.instruction
    )
    before, after = int(ranges.live_bytes().max()), int(remaining.live_bytes().max()) - spared
    left_out = tuple(name for name, is_gone in zip(names, gone.tolist(), strict=True) if is_gone)
    return Modelled(left_out, donated, after, before - after)


def _donated(
    module: HloModule, buffers: Buffers, donate: Sequence[str], arguments: Sequence[str]
) -> tuple[tuple[str, ...], int]:
    """The arguments that match, by either of their names, and have a result to become; and their bytes."""
    named = [(_argument(module, buffers, row, arguments), size_bytes) for row, size_bytes in _donatable(buffers)]
    chosen = [
        (names[0], size_bytes)
        for names, size_bytes in named
        if any(re.search(pattern, name) for name in names for pattern in donate)
    ]
    return tuple(name for name, _ in chosen), sum(size_bytes for _, size_bytes in chosen)


def _donatable(buffers: Buffers) -> list[tuple[int, int]]:
    """Allocations of arguments that are not donated, each with a result of its size that none becomes; and their bytes.

    The largest come first.
    """
    places = buffers.allocations
    is_argument, plain = places.parameter != ABSENT, ~places.tuple & ~places.thread_local & (places.space == 0)
    free = Counter(places.size_bytes[places.live_out & ~is_argument & plain].tolist())
    found = []
    arguments = np.flatnonzero(is_argument & ~places.live_out & plain)
    for row in arguments[np.argsort(places.parameter[arguments], kind="stable")].tolist():
        size_bytes = int(places.size_bytes[row])
        if free[size_bytes]:
            free[size_bytes] -= 1
            found.append((row, size_bytes))
    return sorted(found, key=lambda one: -one[1])


def _argument(module: HloModule, buffers: Buffers, allocation: int, arguments: Sequence[str]) -> tuple[str, ...]:
    """What an argument is called: in the source, where that is told, and by the compiler."""
    number = int(buffers.allocations.parameter[allocation])
    values = np.flatnonzero(buffers.values.allocation == allocation)
    rows = [row for row in buffers.values.instruction[values].tolist() if row != ABSENT]
    row = next((row for row in rows if module.opcode[row] == "parameter"), ABSENT)
    if row == ABSENT:
        return (f"argument {number}",)
    said = arguments[number] if number < len(arguments) else module.operation_name[row]
    return tuple(filter(None, (said, module.instruction_name[row])))
