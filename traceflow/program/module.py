"""What the compiler arranged: one HLO module as columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from traceflow.trace.model import Kind

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
    output_bytes: NDArray[np.int64]  # logical size of what it produces, -1 where unknown
    operation_name: tuple[str, ...]  # op_name metadata: named scopes and autodiff
    source: tuple[str, ...]  # "file:line" of the innermost frame, "" where unknown
    replica_groups: Mapping[int, tuple[tuple[int, ...], ...]]  # instruction -> groups of device ids
    source_target_pairs: Mapping[int, tuple[tuple[int, int], ...]]
    computation_name: tuple[str, ...]
    computation_root: NDArray[np.int32]  # row of the root instruction
    entry: int  # row of the entry computation

    def __len__(self) -> int:
        return len(self.opcode)


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
