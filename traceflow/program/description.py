"""What an instruction does, in a few words, by what it contains and never by its name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from traceflow.program.module import HloModule

# What only moves or rearranges values: told where a fusion does nothing else.
_MOVES = frozenset(
    {
        "bitcast-convert", "broadcast", "concatenate", "convert", "copy", "dynamic-slice", "dynamic-update-slice",
        "gather", "iota", "pad", "reshape", "reverse", "slice", "transpose",
    }
)  # fmt: skip
_SILENT = frozenset({"parameter", "tuple", "get-tuple-element", "constant", "bitcast"})
_HEAVY = ("dot", "ragged-dot", "convolution", "custom-call", "scatter", "sort", "reduce-window", "reduce")
_SHOWN = 4


def described(module: HloModule, row: int) -> str:
    """An instruction as its opcode, with what it contains, calls or issues.

    A fusion tells its heaviest operations first, then the others in order, at most four kinds of them; a loop how
    often it runs; a library call its target; an asynchronous half the operation that it starts or ends.

    Example:
        >>> from traceflow.program.hlo_module_text import read_hlo_text
        >>> module = read_hlo_text('''HloModule m
        ... fused (p: f32[4,4], q: f32[4,4]) -> f32[4,4] {
        ...   p = f32[4,4] parameter(0)
        ...   q = f32[4,4] parameter(1)
        ...   n = f32[4,4] negate(p)
        ...   d = f32[4,4] dot(n, q), lhs_contracting_dims={1}, rhs_contracting_dims={0}
        ...   ROOT a = f32[4,4] add(d, q)
        ... }
        ... ENTRY e (x: f32[4,4]) -> f32[4,4] {
        ...   x = f32[4,4] parameter(0)
        ...   ROOT copy_fusion = f32[4,4] fusion(x, x), kind=kLoop, calls=fused
        ... }''', 0)
        >>> described(module, module.instruction_name.index("copy_fusion"))
        'fusion(dot, negate, add)'
    """
    opcode = module.opcode[row]
    if opcode == "fusion":
        inside = _ordered(_contents(module, row))
        return f"fusion({', '.join(inside[:_SHOWN])}{', ...' if len(inside) > _SHOWN else ''})"
    if opcode == "while" and row in module.trip_count:
        return f"while({module.trip_count[row]} times)"
    if opcode == "custom-call" and (target := module.custom_call_target.get(row)):
        return f"custom-call({target})"
    work = module.wrapped_by(module.start_of(row))
    if opcode.startswith("async-") and module.opcode[work] != "async-start":
        return f"{opcode}({described(module, work)})"
    return opcode


def _contents(module: HloModule, row: int) -> Iterator[str]:
    """Opcodes inside a fusion, and inside fusions in it."""
    for computation in module.called_by(row).tolist():
        for inner in np.flatnonzero(module.computation == computation).tolist():
            opcode = module.opcode[inner]
            if opcode == "fusion":
                yield from _contents(module, inner)
            elif opcode not in _SILENT:
                yield _named(module, inner)


def _named(module: HloModule, row: int) -> str:
    return module.custom_call_target.get(row, module.opcode[row])


def _ordered(opcodes: Iterable[str]) -> list[str]:
    """Kinds of operations, once each: the heavy ones first. What only moves values counts where nothing computes."""
    kinds = list(dict.fromkeys(opcodes))
    computing = [kind for kind in kinds if kind not in _MOVES] or kinds
    return sorted(computing, key=lambda kind: _HEAVY.index(kind) if kind in _HEAVY else len(_HEAVY))
