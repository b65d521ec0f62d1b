"""What the compiler arranged: one HLO module as columns."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from traceflow.trace.model import Kind

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from traceflow.program.buffers import Buffers

COLLECTIVES = frozenset(
    {
        "all-gather",
        "all-reduce",
        "all-to-all",
        "collective-broadcast",
        "collective-permute",
        "ragged-all-to-all",
        "reduce-scatter",
        "send",
        "recv",
    }
)
WINDOWED = frozenset({"reduce-window", "select-and-scatter"})
LARGEST_TABLE = 4096
"""Elements of a constant that are kept at most: what computes indices is no larger."""


@dataclass(frozen=True, slots=True)
class Dot:
    """Dimensions of a matrix product, as numbers of its operands' dimensions."""

    left_contracting: tuple[int, ...]
    right_contracting: tuple[int, ...]
    left_batch: tuple[int, ...] = ()
    right_batch: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class WindowDimension:
    """One spatial dimension of a convolution's window."""

    size: int
    stride: int = 1
    padding_low: int = 0
    padding_high: int = 0
    window_dilation: int = 1
    base_dilation: int = 1


@dataclass(frozen=True, slots=True)
class Convolution:
    """Dimensions of a convolution, as numbers of its operands' and its result's dimensions, and its window."""

    window: tuple[WindowDimension, ...]
    input_spatial: tuple[int, ...]
    kernel_spatial: tuple[int, ...]
    output_spatial: tuple[int, ...]
    kernel_input_feature: int
    kernel_output_feature: int
    feature_groups: int = 1
    batch_groups: int = 1


class Frame(NamedTuple):
    """One line of the user's program or of a library that led to instructions."""

    place: str  # "file:line"
    function: str
    caller: int  # row of the frame that called this one, -1 for the outermost


@dataclass(frozen=True, slots=True)
class HloModule:
    """One compiled module: instructions as rows, references between them as CSR arrays of row numbers.

    `operands[operand_offsets[i]:operand_offsets[i + 1]]` are the rows of instruction i's operands,
    in order; `controls` and `called` likewise give control predecessors and called computations.
    """

    name: str
    program_id: int
    instruction_name: tuple[str, ...]
    opcode: tuple[str, ...]
    computation: NDArray[np.int32]  # which computation an instruction belongs to
    operand_offsets: NDArray[np.int64]
    operands: NDArray[np.int32]
    control_offsets: NDArray[np.int64]
    controls: NDArray[np.int32]
    called_offsets: NDArray[np.int64]
    called: NDArray[np.int32]  # rows of computations
    parameter_number: NDArray[np.int32]  # -1 unless a parameter
    tuple_index: NDArray[np.int32]  # -1 unless a get-tuple-element
    schedule: NDArray[np.int32]  # position in its computation's schedule, -1 where unknown
    shape: tuple[str, ...]  # as HLO text writes it, without layout
    full_shape: tuple[str, ...]  # the same with layouts, tiles and memory spaces, where they are known
    output_bytes: NDArray[np.int64]  # logical size of what it produces, -1 where unknown
    operation_name: tuple[str, ...]  # op_name metadata: named scopes and autodiff
    source: tuple[str, ...]  # "file:line" of the innermost frame, "" where unknown
    replica_groups: Mapping[int, tuple[tuple[int, ...], ...]]  # instruction -> groups of device ids, () for all
    source_target_pairs: Mapping[int, tuple[tuple[int, int], ...]]
    computation_name: tuple[str, ...]
    computation_root: NDArray[np.int32]  # row of the root instruction, -1 where unknown
    entry: int  # row of the entry computation
    trip_count: Mapping[int, int] = field(default_factory=dict)  # while loop -> how often its body runs, where known
    dots: Mapping[int, Dot] = field(default_factory=dict)
    convolutions: Mapping[int, Convolution] = field(default_factory=dict)
    windows: Mapping[int, tuple[WindowDimension, ...]] = field(default_factory=dict)  # of a reduce-window and its like
    stated_flops: Mapping[int, int] = field(default_factory=dict)  # what the compiler says of an instruction's cost
    stated_bytes: Mapping[int, int] = field(default_factory=dict)
    dimensions: Mapping[int, tuple[int, ...]] = field(default_factory=dict)  # of a reduce, a broadcast, a gather ...
    fusion_kind: Mapping[int, str] = field(default_factory=dict)
    custom_call_target: Mapping[int, str] = field(default_factory=dict)
    integers: Mapping[int, tuple[int, ...]] = field(default_factory=dict)  # elements of constants, truths as 0 and 1
    comparison: Mapping[int, str] = field(default_factory=dict)  # of a compare: LT, LE, EQ, NE, GE or GT
    slices: Mapping[int, tuple[tuple[int, int, int], ...]] = field(default_factory=dict)  # start, limit, stride
    frames: tuple[Frame, ...] = ()
    frame: Mapping[int, int] = field(default_factory=dict)  # instruction -> row of its innermost frame, where known
    sharding: Mapping[int, str] = field(default_factory=dict)  # as HLO text writes it, of instructions that have one
    attributes: Mapping[int, Mapping[str, str]] = field(default_factory=dict)  # frontend attributes
    module_attributes: Mapping[str, str] = field(default_factory=dict)
    parameter_shardings: tuple[str, ...] = ()  # of the whole arrays, where the partitioner recorded them
    output_sharding: str = ""
    devices: tuple[int, ...] = ()  # by what pairs and groups call each partition; () where they say its number
    buffers: Buffers | None = None  # where the compiler's buffer assignment came with the program

    def __len__(self) -> int:
        return len(self.opcode)

    def operands_of(self, row: int) -> NDArray[np.int32]:
        """Rows of an instruction's operands, in order."""
        return self.operands[self.operand_offsets[row] : self.operand_offsets[row + 1]]

    def called_by(self, row: int) -> NDArray[np.int32]:
        """Rows of the computations that an instruction calls."""
        return self.called[self.called_offsets[row] : self.called_offsets[row + 1]]

    def stack_of(self, row: int) -> tuple[Frame, ...]:
        """The frames in which an instruction was traced, innermost first; empty where they are unknown."""
        stack: list[Frame] = []
        at = self.frame.get(row, -1)
        while at >= 0 and len(stack) < len(self.frames):  # a damaged file may hold a cycle
            stack.append(self.frames[at])
            at = self.frames[at].caller
        return tuple(stack)

    def start_of(self, row: int) -> int:
        """The instruction that issued an asynchronous half: of a done or an update, its start; else itself."""
        while self.opcode[row].endswith(("-done", "-update")) and len(operands := self.operands_of(row)):
            row = int(operands[0])
        return row

    def wrapped_by(self, row: int) -> int:
        """The instruction that `async-start` executes, where its computation is known; of any other, itself."""
        if self.opcode[row] != "async-start" or not len(called := self.called_by(row)):
            return row
        root = int(self.computation_root[called[0]])
        return root if root >= 0 else row


Programs: TypeAlias = Mapping[int, HloModule]
"""Compiled modules by the key that `HloEvents.program` uses."""


def base_opcode(opcode: str) -> str:
    """The operation behind an asynchronous half: all-gather-start and all-gather-done are all-gather.

    Example:
        >>> base_opcode("all-gather-start"), base_opcode("copy")
        ('all-gather', 'copy')
    """
    return opcode.removesuffix("-start").removesuffix("-done").removesuffix("-update")


def kind_of(opcode: str) -> Kind:
    """Whether executing an instruction is computation, communication or a copy, by its opcode.

    Example:
        >>> kind_of("all-reduce"), kind_of("copy-done"), kind_of("fusion")
        (<Kind.COMMUNICATION: 5>, <Kind.COPY: 4>, <Kind.COMPUTE: 3>)
    """
    base = base_opcode(opcode)
    if base in COLLECTIVES:
        return Kind.COMMUNICATION
    return Kind.COPY if base in {"copy", "infeed", "outfeed"} else Kind.COMPUTE


# Operations as JAX names the instructions that it makes of them.
_JAX_NAMES = {
    "all_gather": "all-gather",
    "all_to_all": "all-to-all",
    "ppermute": "collective-permute",
    "psum": "all-reduce",
    "psum_invariant": "all-reduce",
    "psum_scatter": "reduce-scatter",
    "reduce_scatter": "reduce-scatter",
}
# What an asynchronous wrapper of these does is move data.
_MOVES = frozenset({"slice", "dynamic-slice", "dynamic-update-slice"})


def operation_of_name(name: str) -> str:
    """The opcode that the name of an instruction suggests, for want of its program.

    Example:
        >>> operation_of_name("all-gather-start.3"), operation_of_name("ppermute.26"), operation_of_name("slice-done")
        ('all-gather', 'collective-permute', 'slice')
    """
    stem = base_opcode(re.sub(r"[.\d]+$", "", name))
    return _JAX_NAMES.get(stem, stem)


def operation_of(module: HloModule, row: int) -> str:
    """The opcode of the work behind an instruction: of an asynchronous half, of what it issued or wrapped."""
    work = module.wrapped_by(module.start_of(row))
    operation = base_opcode(module.opcode[work])
    return operation_of_name(module.instruction_name[work]) if operation == "async" else operation


def kind_of_instruction(module: HloModule, row: int) -> Kind:
    """Whether executing an instruction is computation, communication or a copy, asynchronous halves included."""
    operation = operation_of(module, row)
    moves = module.opcode[row].startswith("async-") and operation in _MOVES
    return Kind.COPY if moves else kind_of(operation)
