"""What is stored and moved beyond the values themselves: tiles of layouts, and shards of unequal size."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import prod
from typing import TYPE_CHECKING, ClassVar

from traceflow.analyzers.memory_traffic import executions, is_piece
from traceflow.analyzers.moe import RoutedLayer, routed_layers
from traceflow.program.layout import arrays_of, leaves, stored
from traceflow.result import Finding, Json, Note, Provenance, Severity, Shown, Skipped
from traceflow.trace.model import Trace

if TYPE_CHECKING:
    import pandas as pd

    from traceflow.intent.routing import Routing
    from traceflow.program.module import HloModule, Programs
    from traceflow.program.stated import Stated, StatedArray

_NOTABLE_SHARE = 0.1
_NO_MEMORY = frozenset({"tuple", "get-tuple-element", "bitcast", "after-all", "partition-id", "replica-id"})


@dataclass(frozen=True, slots=True)
class PaddedLayout:
    """A value that takes more memory than its elements do."""

    module: str
    name: str
    shape: str  # with its layout
    logical_bytes: int
    physical_bytes: int
    space: int  # memory space, 0 is the default one
    source: str

    @property
    def padding_bytes(self) -> int:
        """Physical minus logical size."""
        return self.physical_bytes - self.logical_bytes

    def to_dict(self) -> dict[str, Json]:
        """A row of `layout`."""
        return {
            "module": self.module,
            "name": self.name,
            "shape": self.shape,
            "logical_bytes": self.logical_bytes,
            "physical_bytes": self.physical_bytes,
            "space": self.space,
            "source": self.source,
        }


@dataclass(frozen=True, slots=True)
class PaddedShards:
    """An array that does not divide evenly: all shards have the size of the largest."""

    function: str
    name: str
    global_shape: tuple[int, ...]
    pieces: tuple[int, ...]
    local_shape: tuple[int, ...]
    padding_bytes: int | None  # on all devices together; None where the size of an element is not known

    def to_dict(self) -> dict[str, Json]:
        """A row of `shards`."""
        return {
            "function": self.function,
            "name": self.name,
            "global_shape": list(self.global_shape),
            "pieces": list(self.pieces),
            "local_shape": list(self.local_shape),
            "padding_bytes": self.padding_bytes,
        }


@dataclass(frozen=True, slots=True)
class PaddedProgram:
    """The values of one program, each counted once."""

    module: str
    values: int
    logical_bytes: int
    physical_bytes: int
    at_peak_bytes: int | None  # padding in what is alive at the program's peak

    def to_dict(self) -> dict[str, Json]:
        """A row of `programs`."""
        return {
            "module": self.module,
            "values": self.values,
            "logical_bytes": self.logical_bytes,
            "physical_bytes": self.physical_bytes,
            "at_peak_padding_bytes": self.at_peak_bytes,
        }


@dataclass(frozen=True, slots=True)
class PaddedExperts:
    """Rows that the experts of one layer multiply, in all recorded steps and on all ranks."""

    layer: int
    calls: int
    executed_rows: int
    capacity_padding_rows: int
    alignment_padding_rows: int
    masked_rows: int
    wasted_flops: int | None  # forward; None where the widths of the experts are not told

    def to_dict(self) -> dict[str, Json]:
        """A row of `moe`."""
        return {**asdict(self)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Padding(Shown):
    """Padding in memory and in traffic."""

    kind: ClassVar[str] = "padding"
    programs: tuple[PaddedProgram, ...]
    layout: tuple[PaddedLayout, ...]
    shards: tuple[PaddedShards, ...] | None
    moe: tuple[PaddedExperts, ...] | None = None  # None without a record of the routing
    total_padding_bytes: int | None
    traffic_padding_bytes: int | None
    findings: tuple[Finding, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    notes: tuple[Note, ...] = ()

    def to_dict(self) -> dict[str, Json]:
        """The `result` object of the JSON contract."""
        return {
            "programs": [program.to_dict() for program in self.programs],
            "layout": [row.to_dict() for row in self.layout],
            "shards": None if self.shards is None else [row.to_dict() for row in self.shards],
            "moe": None if self.moe is None else [row.to_dict() for row in self.moe],
            "total_padding_bytes": self.total_padding_bytes,
            "traffic_padding_bytes": self.traffic_padding_bytes,
            "padded_flops_share": None,
        }

    def to_pandas(self) -> pd.DataFrame:
        """One row per value that is padded."""
        import pandas as pd

        return pd.DataFrame([{**row.to_dict(), "padding_bytes": row.padding_bytes} for row in self.layout])


def padding(
    trace: Trace, programs: Programs, *, stated: Sequence[Stated] = (), routing: Routing | None = None
) -> Padding:
    """Find values whose layout is padded, arrays whose shards are, and rows of experts that hold no token.

    padding = physical - logical size. In total each value counts once, although not all are alive together; at the
    peak those count that are alive then; in traffic each operand and result counts as often as it is executed, as if
    it were moved whole. FLOPs on padding are not established: that depends on how the hardware multiplies.

    Args:
        trace: The evidence, which says how often instructions were executed.
        programs: What the compiler arranged.
        stated: What JAX says of the functions, with the placement of arrays as it was meant.
        routing: How tokens went to experts, in all recorded steps.

    Returns:
        Values and arrays with padding, the most first.
    """
    found = {key: list(_values(module)) for key, module in programs.items() if _has_layouts(module)}
    rows = [row for values in found.values() for row in values]
    padded = sorted((row for row in rows if row.padding_bytes > 0), key=lambda row: (-row.padding_bytes, row.name))
    shown = tuple(_program(key, programs[key], values) for key, values in found.items())
    moe = None if routing is None else tuple(map(_padded_layer, routed_layers(routing, _traced_steps(trace))))
    moved = _moved_bytes(trace, {key: programs[key] for key in found})
    return Padding(
        programs=tuple(sorted(shown, key=lambda one: (one.logical_bytes - one.physical_bytes, one.module))),
        layout=tuple(padded),
        shards=tuple(_uneven(stated)) if stated else None,
        moe=moe,
        total_padding_bytes=sum(row.padding_bytes for row in rows) if found else None,
        traffic_padding_bytes=moved,
        findings=tuple(_findings(shown)),
        skipped=tuple(_skipped(programs, shown, stated=bool(stated), moved=moved, routed=moe is not None)),
    )


def _traced_steps(trace: Trace) -> list[int] | None:
    return sorted(set(trace.marks.step.tolist())) or None


def _padded_layer(layer: RoutedLayer) -> PaddedExperts:
    return PaddedExperts(
        layer.layer,
        layer.calls,
        layer.executed_rows,
        layer.capacity_padding_rows,
        layer.alignment_padding_rows,
        layer.masked_rows,
        layer.wasted_flops,
    )


def _has_layouts(module: HloModule) -> bool:
    """Whether the program came with layouts; without them nothing says how its values are stored."""
    return module.buffers is not None or any("{" in shape for shape in module.full_shape)


def _values(module: HloModule) -> Iterator[PaddedLayout]:
    """Every value of a program that is stored: by the buffer assignment, else one per result of an instruction."""
    if module.buffers is not None:
        yield from _assigned(module)
        return
    for row, full_shape in enumerate(module.full_shape):
        if module.opcode[row] in _NO_MEMORY or module.computation[row] != module.entry:
            continue
        parts = leaves(full_shape)
        for place, shape in enumerate(parts):
            name = module.instruction_name[row] + (f"{{{place}}}" if len(parts) > 1 else "")
            array = stored(shape)
            if array is not None:
                sizes = array.logical_bytes, array.physical_bytes, array.space
                yield PaddedLayout(module.name, name, shape, *sizes, module.source[row])


def _assigned(module: HloModule) -> Iterator[PaddedLayout]:
    """Logical buffers that hold an array, with the size that the compiler gave them."""
    from traceflow.analyzers.live_ranges import value_name, value_shape

    buffers = module.buffers
    if buffers is None:
        return
    for value in range(len(buffers.values)):
        shape = value_shape(module, buffers, value)
        array = stored(shape) if shape else None
        if array is not None:
            yield PaddedLayout(
                module.name,
                value_name(module, buffers, value),
                shape,
                array.logical_bytes,
                int(buffers.values.size_bytes[value]),
                int(buffers.values.space[value]),
                module.source[buffers.values.instruction[value]],
            )


def _program(key: int, module: HloModule, values: Sequence[PaddedLayout]) -> PaddedProgram:
    from traceflow.analyzers.program_memory import program_memory

    needs = program_memory(module, program=key)
    at_peak = None
    if needs.live_peak_bytes is not None:
        at_peak = sum(b.size_bytes - b.logical_bytes for b in needs.live_at_peak if b.logical_bytes is not None)
    logical, physical = (sum(getattr(v, name) for v in values) for name in ("logical_bytes", "physical_bytes"))
    return PaddedProgram(module.name, len(values), logical, physical, at_peak)


def _moved_bytes(trace: Trace, programs: Mapping[int, HloModule]) -> int | None:
    """Padding that executed instructions read and write in main memory; None where no execution is known."""
    total = None
    for one in executions(trace, programs):
        module = programs[one.program]
        if is_piece(module, one.instruction):
            touched = {one.instruction, *module.operands_of(one.instruction).tolist()}
            total = (total or 0) + one.count * sum(_padding_in_main_memory(module.full_shape[row]) for row in touched)
    return total


def _padding_in_main_memory(full_shape: str) -> int:
    return sum(array.physical_bytes - array.logical_bytes for array in arrays_of(full_shape) if array.space == 0)


def _uneven(stated: Sequence[Stated]) -> Iterator[PaddedShards]:
    """Arguments and results whose dimensions are no multiples of the pieces that they are meant to be cut into."""
    rows = [row for one in stated for array in (*one.arguments, *one.results) if (row := _shards(one.function, array))]
    yield from sorted(rows, key=lambda row: -(row.padding_bytes or 0))


def _shards(function: str, array: StatedArray) -> PaddedShards | None:
    if array.pieces is None or len(array.pieces) != len(array.shape):
        return None
    local = tuple(-(-size // pieces) for size, pieces in zip(array.shape, array.pieces, strict=True))
    extra = prod(local) * prod(array.pieces) - prod(array.shape)
    if not extra:
        return None
    bits = 8 if array.dtype == "bool" else int(found[0]) if (found := re.search(r"\d+", array.dtype)) else None
    size_bytes = None if bits is None else extra * bits * array.copies // 8
    return PaddedShards(function, array.path, array.shape, array.pieces, local, size_bytes)


def _findings(rows: Sequence[PaddedProgram]) -> Iterator[Finding]:
    for row in rows:
        extra = row.physical_bytes - row.logical_bytes
        if extra > _NOTABLE_SHARE * row.physical_bytes:
            yield Finding(
                code="TF213",
                severity=Severity.INFO,
                title=f"{extra / row.physical_bytes:.0%} of what the values of {row.module} take is padding",
                provenance=Provenance.COMPILER,
                suggestion="make the dimensions that the layout puts last multiples of its tile, or let another be last",
                evidence={"module": row.module, "padding_bytes": extra, "physical_bytes": row.physical_bytes},
            )


def _skipped(
    programs: Programs, shown: Sequence[PaddedProgram], *, stated: bool, moved: int | None, routed: bool
) -> Iterator[Skipped]:
    if not shown:
        reason = "the programs came without layouts" if programs else "the capture holds no compiled program"
        yield Skipped("/result/total_padding_bytes", reason)
        yield Skipped("/result/layout", reason)
    if any(row.at_peak_bytes is None for row in shown):
        yield Skipped("/result/programs/*/at_peak_padding_bytes", "the live peak of the program is not known")
    if moved is None:
        yield Skipped("/result/traffic_padding_bytes", "no execution of a program with layouts is recorded")
    if not stated:
        yield Skipped("/result/shards", "the capture does not hold how arrays were meant to be placed")
    if not routed:
        yield Skipped("/result/moe", "the capture holds no record of the routing of tokens")
    yield Skipped("/result/padded_flops_share", "what the hardware computes on padding is not told")
