"""What PyTorch's operators compute and move, from the shapes that its profiler records (`record_shapes`).

An operator counts what its definition says, not what kernels do with it: attention counts the pairs that a causal
mask leaves, a convolution the multiplications that meet an element and no padding. The backward of attention counts
five products, since it forms the scores anew.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from math import prod
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeAlias

from traceflow.budgets import matmul_flops

if TYPE_CHECKING:
    from traceflow.program.cost import Cost

Shape: TypeAlias = tuple[int, ...]
_Counted: TypeAlias = "tuple[int, Sequence[Shape]] | None"
_Rule: TypeAlias = "Callable[[Sequence[Shape], Sequence[str]], _Counted]"
"""From the shapes and the values of the arguments: FLOPs, and the shapes of the results."""

_TYPES: Mapping[str, tuple[str, int]] = MappingProxyType(
    {
        "double": ("f64", 8),
        "float": ("f32", 4),
        "c10::BFloat16": ("bf16", 2),
        "c10::Half": ("f16", 2),
        "c10::Float8_e4m3fn": ("f8e4m3fn", 1),
        "c10::Float8_e5m2": ("f8e5m2", 1),
        "c10::Float8_e4m3fnuz": ("f8e4m3fnuz", 1),
        "c10::Float8_e5m2fnuz": ("f8e5m2fnuz", 1),
        "signed char": ("s8", 1),
        "unsigned char": ("u8", 1),
        "int": ("s32", 4),
        "long int": ("s64", 8),
    }
)


def _product(first: int) -> _Rule:
    """The product of two arguments that are matrices, or batches of them."""

    def count(shapes: Sequence[Shape], values: Sequence[str]) -> _Counted:
        del values
        left, right = shapes[first : first + 2]
        if len(left) < 2 or len(left) != len(right) or left[-1] != right[-2]:
            return None
        out = (*left[:-1], right[-1])
        return prod(left[:-2]) * matmul_flops(left[-2], left[-1], right[-1]), [out]

    return count


def _linear(shapes: Sequence[Shape], values: Sequence[str]) -> _Counted:
    del values
    data, weight = shapes[:2]
    if not data or len(weight) != 2 or data[-1] != weight[1]:
        return None
    return matmul_flops(prod(data[:-1]), weight[1], weight[0]), [(*data[:-1], weight[0])]


def _convolution(shapes: Sequence[Shape], values: Sequence[str]) -> _Counted:
    return _convolved(shapes[0], shapes[1], values[3:9])


def _convolution_backward(shapes: Sequence[Shape], values: Sequence[str]) -> _Counted:
    """The gradients of data and of weights each take the multiplications of the forward convolution."""
    forward = _convolved(shapes[1], shapes[2], values[4:10])
    wanted = json.loads(values[10].lower())
    if forward is None:
        return None
    gradients = [shape for shape, is_wanted in zip(shapes[1:3], wanted, strict=False) if is_wanted]
    return forward[0] * len(gradients), gradients


def _convolved(data: Shape, weight: Shape, values: Sequence[str]) -> _Counted:
    stride, padding, dilation = (json.loads(value) for value in values[:3])
    transposed, more = values[3] == "True", json.loads(values[4])
    groups, space = int(values[5]), len(data) - 2
    if space < 1 or len(weight) != len(data):
        return None
    from traceflow.program.arithmetic import valid_positions
    from traceflow.program.module import WindowDimension

    steps, pads, holes, extra = (_each(value, space) for value in (stride, padding, dilation, more))
    axes = zip(data[2:], weight[2:], steps, pads, holes, extra, strict=True)
    windows, sizes = [], []
    for size, kernel, step, pad, hole, end in axes:
        reach = hole * (kernel - 1) + 1
        sizes.append((size - 1) * step - 2 * pad + reach + end if transposed else (size + 2 * pad - reach) // step + 1)
        windows.append(WindowDimension(kernel, step, pad, pad, hole))
    ends = zip(windows, *((sizes, data[2:]) if transposed else (data[2:], sizes)), strict=True)
    pairs = prod(valid_positions(window, wide, narrow) for window, wide, narrow in ends)
    channels = weight[1] * groups if transposed else weight[0]
    return 2 * data[0] * weight[0] * weight[1] * pairs, [(data[0], channels, *sizes)]


def _each(value: list[int], space: int) -> list[int]:
    return value * space if len(value) == 1 else value


def _attention(causal: int) -> _Rule:
    """Scores and their product with the values."""

    def count(shapes: Sequence[Shape], values: Sequence[str]) -> _Counted:
        query, key, value = shapes[:3]
        if not len(query) == len(key) == len(value) == 4:
            return None
        flops = 2 * _pairs(query, key, values[causal] == "True") * (query[3] + value[3])
        return flops, [(*query[:3], value[3])]

    return count


def _attention_backward(causal: int) -> _Rule:
    """Scores once more, then the gradients of weights, values, queries and keys."""

    def count(shapes: Sequence[Shape], values: Sequence[str]) -> _Counted:
        query, key, value = shapes[1:4]
        if not len(query) == len(key) == len(value) == 4:
            return None
        flops = 2 * _pairs(query, key, values[causal] == "True") * (3 * query[3] + 2 * value[3])
        return flops, [query, key, value]

    return count


def _pairs(query: Shape, key: Shape, causal: bool) -> int:  # noqa: FBT001
    """Pairs of a query and a key that see each other, of all batches and heads."""
    rows, columns = query[2], key[2]
    within = min(rows, columns)
    seen = within * (within + 1) // 2 + (rows - within) * columns
    return query[0] * query[1] * (seen if causal else rows * columns)


_SDPA = "aten::_scaled_dot_product"
_RULES: Mapping[str, _Rule] = MappingProxyType(
    {
        "aten::mm": _product(0),
        "aten::bmm": _product(0),
        "aten::_scaled_mm": _product(0),
        "aten::addmm": _product(1),
        "aten::baddbmm": _product(1),
        "aten::_addmm_activation": _product(1),
        "aten::linear": _linear,
        "aten::convolution": _convolution,
        "aten::convolution_backward": _convolution_backward,
        f"{_SDPA}_flash_attention": _attention(4),
        f"{_SDPA}_flash_attention_for_cpu": _attention(4),
        f"{_SDPA}_efficient_attention": _attention(6),
        f"{_SDPA}_cudnn_attention": _attention(6),
        f"{_SDPA}_flash_attention_backward": _attention_backward(11),
        f"{_SDPA}_flash_attention_for_cpu_backward": _attention_backward(7),
        f"{_SDPA}_efficient_attention_backward": _attention_backward(11),
        f"{_SDPA}_cudnn_attention_backward": _attention_backward(14),
    }
)

COUNTED = frozenset(_RULES)
"""Operators whose cost is known from the shapes of their arguments."""


@cache
def operator_cost(name: str, shapes: str, types: str, values: str) -> Cost | None:
    """What one call of an operator takes; None where it cannot be told.

    Args:
        name: Of the operator, one of `COUNTED`.
        shapes: `Input Dims` as JSON, such as `[[8, 4], [4, 2]]`.
        types: `Input type` as JSON, such as `["float", "float"]`.
        values: `Concrete Inputs` as JSON, which convolutions and attention need.

    Example:
        >>> cost = operator_cost("aten::mm", "[[8, 4], [4, 2]]", '["c10::BFloat16", "c10::BFloat16"]', "")
        >>> cost.flops, cost.bytes
        ({'bf16': 128}, 112)
    """
    from traceflow.program.cost import Cost

    try:
        read = _shapes(shapes)
        counted = _RULES[name](read, [str(value) for value in json.loads(values or "[]")])
        kinds = [_TYPES.get(kind) for kind in json.loads(types)]
    except (ValueError, TypeError, IndexError, KeyError, AttributeError):
        return None
    kind = next((kind for kind in kinds if kind), None)
    if counted is None or kind is None:
        return None
    sizes = [prod(shape) * kind[1] for shape, kind in zip(read, kinds, strict=False) if kind and shape]
    written = sum(prod(shape) for shape in counted[1]) * kind[1]
    return Cost({kind[0]: counted[0]}, bytes=sum(sizes) + written)


def shapes_text(shapes: str) -> str:
    """The shapes of the arguments that have one, for people.

    Example:
        >>> shapes_text("[[512], [141, 512], [512, 512], [], []]")
        '[512] [141, 512] [512, 512]'
    """
    try:
        return " ".join(str(list(shape)) for shape in _shapes(shapes) if shape)
    except (ValueError, TypeError):
        return shapes


def _shapes(text: str) -> list[Shape]:
    return [tuple(int(size) for size in shape) if _is_shape(shape) else () for shape in json.loads(text)]


def _is_shape(shape: object) -> bool:
    return isinstance(shape, list) and all(isinstance(size, int) for size in shape)
