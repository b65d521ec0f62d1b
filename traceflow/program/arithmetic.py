"""FLOPs of single instructions from their shapes, by the conventions of XLA's `HloCostAnalysis`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache
from math import ceil, log2, prod

from traceflow.program.module import Convolution, Dot, HloModule, WindowDimension

_ARRAY = re.compile(r"([a-z]\w*)\[([^\]]*)\]")
_FMA = 2  # a multiplication and an addition

TRANSCENDENTAL = frozenset({
    "acos", "acosh", "asin", "asinh", "atan2", "atanh", "cbrt", "cosh", "cosine", "erf", "exponential",
    "exponential-minus-one", "log", "log-plus-one", "logistic", "power", "rng", "rng-bit-generator", "rsqrt",
    "sine", "sinh", "sqrt", "tan", "tanh",
})  # fmt: skip
"""Opcodes whose elements are counted as transcendentals instead of FLOPs."""

WITHOUT_ARITHMETIC = frozenset({
    "add-dependency", "after-all", "batch-norm-grad", "batch-norm-inference", "batch-norm-training", "bitcast",
    "broadcast", "concatenate", "constant", "copy", "copy-start", "domain", "dynamic-reshape", "dynamic-slice",
    "dynamic-update-slice", "gather", "get-dimension-size", "get-tuple-element", "infeed", "iota",
    "optimization-barrier", "outfeed", "pad", "parameter", "partition-id", "replica-id", "reshape", "reverse",
    "rng-get-and-update-state", "set-dimension-size", "slice", "topk", "transpose", "tuple",
})  # fmt: skip
"""Opcodes that move, arrange or name values and compute nothing."""

# Calls that only manage memory, or say how a value is sharded.
_IDLE_CALLS = frozenset({
    "AllocateBuffer", "MoveToDevice", "MoveToHost", "SPMDFullToShardShape", "SPMDShardToFullShape", "Sharding",
    "xla.sdy.FuncResultSharding", "xla.sdy.GlobalToLocalShape", "xla.sdy.LocalToGlobalShape",
})  # fmt: skip


@cache
def arrays(shape: str) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Element type and dimensions of every array in a shape; a dynamic dimension counts by its bound.

    Example:
        >>> arrays("(f32[3,5], s32[<=8], pred[])")
        (('f32', (3, 5)), ('s32', (8,)), ('pred', ()))
    """
    found = _ARRAY.findall(shape)
    return tuple((kind, tuple(map(int, re.findall(r"\d+", sizes)))) for kind, sizes in found if kind != "token")


def elements(shape: str) -> int:
    """Elements of the first array of a shape, 0 where it has none."""
    found = arrays(shape)
    return prod(found[0][1]) if found else 0


def element_type(module: HloModule, row: int) -> str:
    """The type that an instruction computes in: that of its first operand, else of its result."""
    operands = module.operands_of(row)
    shape = (arrays(module.shape[operands[0]]) if len(operands) else ()) or arrays(module.shape[row])
    return shape[0][0] if shape else ""


def own_flops(module: HloModule, row: int) -> int | None:
    """FLOPs of an instruction without those of the computations that it applies; None where they are not known.

    | opcode | FLOPs |
    |---|---|
    | dot | 2 x elements of the result x product of the contracted dimensions |
    | ragged-dot | the same with each row meeting one group, as hardware with grouped products does it |
    | convolution | 2 x multiplications that fall inside the input, neither on padding nor on holes of a dilation |
    | sort | n log2 n, rounded up |
    | triangular-solve | 2 x elements of b x order of a |
    | cholesky | elements x order / 3 |
    | all-reduce | elements of the result |
    | elementwise | elements of the result |
    """
    opcode = module.opcode[row]
    if opcode in WITHOUT_ARITHMETIC or opcode in TRANSCENDENTAL:
        return 0
    if opcode in {"fusion", "reduce", "reduce-window", "map", "scatter", "select-and-scatter"}:
        return 0 if len(module.called_by(row)) else None
    if opcode in {"dot", "scaled-dot", "ragged-dot", "convolution", "custom-call"}:
        return _product(module, row)
    if opcode in {"sort", "triangular-solve", "cholesky"}:
        return _library(module, row)
    if opcode == "fft":
        return None
    return sum(prod(sizes) for _, sizes in arrays(module.shape[row]))


def applied(module: HloModule, row: int) -> Iterator[tuple[int, int]]:
    """The computations that an instruction applies to elements, each with how often.

    A reduction joins n elements with n - 1 applications, a window of w elements with w - 1 for each element of its
    result, and a scatter takes one for each element that it adds.
    """
    called = module.called_by(row).tolist()
    if not called:
        return
    operands, out = module.operands_of(row).tolist(), elements(module.shape[row])
    match module.opcode[row]:
        case "fusion":
            yield called[0], 1
        case "map":
            yield called[0], out
        case "reduce":
            yield called[0], elements(module.shape[operands[0]]) - out
        case "reduce-window":
            yield called[0], (_volume(module.windows.get(row, ())) - 1) * out
        case "scatter":
            yield called[0], elements(module.shape[operands[len(operands) // 2 + 1]])
        case "select-and-scatter":
            source = elements(module.shape[operands[1]])
            yield called[0], source * (_volume(module.windows.get(row, ())) - 1)
            yield called[-1], source


def _volume(window: Sequence[WindowDimension]) -> int:
    return prod(dimension.size for dimension in window)


def _product(module: HloModule, row: int) -> int | None:
    """A product of matrices or a convolution, as an instruction or as a library call."""
    target = module.custom_call_target.get(row, "")
    if target in _IDLE_CALLS:
        return 0
    operands = [arrays(module.shape[operand]) for operand in module.operands_of(row)[:2]]
    result = arrays(module.shape[row])
    if len(operands) < 2 or not (operands[0] and operands[1] and result):
        return None
    left, right, out = operands[0][0][1], operands[1][0][1], result[0][1]
    if row in module.dots:
        return _dot_flops(module.dots[row], left, right, out, ragged=module.opcode[row] == "ragged-dot")
    if row not in module.convolutions:
        return None
    if "BackwardInput" in target:  # of a gradient with a kernel: the call gives what the convolution was given
        left, out = out, left
    elif "BackwardFilter" in target:
        right, out = out, right
    return _convolution_flops(module.convolutions[row], left, right, out)


def _dot_flops(dot: Dot, left: tuple[int, ...], right: tuple[int, ...], out: tuple[int, ...], *, ragged: bool) -> int:
    contracted = prod(left[dimension] for dimension in dot.left_contracting)
    plain_rank = len(left) + len(right) - 2 * len(dot.left_contracting) - len(dot.left_batch)
    grouped = ragged and len(out) > plain_rank  # the contracted dimension is ragged: a result for each group
    return _FMA * prod(out[1:] if grouped else out) * contracted


def _convolution_flops(found: Convolution, data: tuple[int, ...], kernel: tuple[int, ...], out: tuple[int, ...]) -> int:
    spatial = zip(found.window, found.input_spatial, found.output_spatial, strict=True)
    valid = prod(valid_positions(window, data[i], out[o]) for window, i, o in spatial)
    without_space = prod(out) // max(prod(out[dimension] for dimension in found.output_spatial), 1)
    return _FMA * without_space * kernel[found.kernel_input_feature] * valid


def valid_positions(window: WindowDimension, data: int, out: int) -> int:
    """Pairs of a place in the window and a place in the result that meet an element of the input."""
    count = 0
    for place in range(window.size):
        offset = place * window.window_dilation - window.padding_low
        # Results o with 0 <= o * stride + offset < data * dilation, on a multiple of the dilation.
        if window.base_dilation == 1:
            first = max(ceil(-offset / window.stride), 0)
            last = min((data - 1 - offset) // window.stride, out - 1)
            count += max(last - first + 1, 0)
        else:
            at = range(offset, offset + out * window.stride, window.stride)
            extent = (data - 1) * window.base_dilation
            count += sum(0 <= where <= extent and where % window.base_dilation == 0 for where in at)
    return count


def _library(module: HloModule, row: int) -> int:
    shapes = [arrays(module.shape[operand]) for operand in module.operands_of(row)]
    if not shapes or not shapes[0]:
        return 0
    sizes = shapes[0][0][1]
    count = prod(sizes)
    match module.opcode[row]:
        case "sort":
            return count * ceil(log2(count)) if count > 1 else 0
        case "triangular-solve":
            return _FMA * sizes[-1] * prod(shapes[1][0][1])
        case _:
            return sizes[-1] * count // 3
