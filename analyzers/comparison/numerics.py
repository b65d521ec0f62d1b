"""Whether two runs computed the same: recorded outputs by shape, order and value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import permutations
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from traceflow.result import Json

Outputs: TypeAlias = Mapping[str, NDArray[Any]]
"""Recorded outputs by name."""

ATOL, RTOL = 1e-8, 1e-5
_MOST_AXES = 5  # of which all orders are tried


@dataclass(frozen=True, slots=True)
class Output:
    """One output of both runs."""

    name: str
    shapes: tuple[tuple[int, ...] | None, tuple[int, ...] | None]  # None where the run has no such output
    dtypes: tuple[str | None, str | None]
    same: bool
    difference: str | None  # in words, None where it is the same
    largest_absolute: float | None = None  # None where no values face each other
    largest_relative: float | None = None

    def to_dict(self) -> dict[str, Json]:
        """A row of `outputs`."""
        shapes: list[Json] = [None if shape is None else list(shape) for shape in self.shapes]
        return {
            "name": self.name,
            "shape": {"a": shapes[0], "b": shapes[1]},
            "dtype": {"a": self.dtypes[0], "b": self.dtypes[1]},
            "same": self.same,
            "difference": self.difference,
            "largest_absolute": self.largest_absolute,
            "largest_relative": self.largest_relative,
        }


@dataclass(frozen=True, slots=True)
class Numerics:
    """All outputs of two runs; a value is the same where ``|a - b| <= atol + rtol |a|``."""

    outputs: tuple[Output, ...]
    atol: float
    rtol: float

    @property
    def same(self) -> bool:
        """Whether all are."""
        return all(output.same for output in self.outputs)

    def to_dict(self) -> dict[str, Json]:
        """The `numerics` object."""
        rows: list[Json] = [output.to_dict() for output in self.outputs]
        return {"same": self.same, "atol": self.atol, "rtol": self.rtol, "outputs": rows}


def numerics(a: Outputs, b: Outputs, *, atol: float = ATOL, rtol: float = RTOL) -> Numerics:
    """Compare the outputs of two runs, name by name; one that only one run has is a difference.

    Args:
        a: Of the first run, the reference.
        b: Of the second.
        atol: What values may differ by.
        rtol: What they may differ by in relation to those of a.

    Example:
        >>> numerics({"y": np.array([[1.0, 2.0, 3.0]])}, {"y": np.array([[1.0], [2.0], [3.0]])}).outputs[0].difference
        'the same values with the axes in the order (1, 0)'
    """
    names = dict.fromkeys([*a, *b])
    return Numerics(tuple(_output(name, a.get(name), b.get(name), atol, rtol) for name in names), atol, rtol)


def _output(name: str, a: NDArray[Any] | None, b: NDArray[Any] | None, atol: float, rtol: float) -> Output:
    shapes = (None if a is None else a.shape, None if b is None else b.shape)
    dtypes = (None if a is None else str(a.dtype), None if b is None else str(b.dtype))
    if a is None or b is None:
        return Output(name, shapes, dtypes, same=False, difference=f"{'a' if a is None else 'b'} has no such output")
    if not (_comparable(a) and _comparable(b)):
        return Output(name, shapes, dtypes, same=False, difference="its values are no numbers that can be compared")
    if a.shape != b.shape:
        return Output(name, shapes, dtypes, same=False, difference=_reordered(a, b, atol, rtol) or "another shape")
    absolute, relative = _largest(a, b)
    same = _close(a, b, atol, rtol)
    why = None if same else _reordered(a, b, atol, rtol) or "other values"
    return Output(name, shapes, dtypes, same, why, absolute, relative)


def _comparable(values: NDArray[Any]) -> bool:
    return values.dtype.kind in "biufc"


def _close(a: NDArray[Any], b: NDArray[Any], atol: float, rtol: float) -> bool:
    return bool(np.isclose(b, a, rtol=rtol, atol=atol, equal_nan=True).all())


def _largest(a: NDArray[Any], b: NDArray[Any]) -> tuple[float | None, float | None]:
    """The largest absolute and relative difference of finite values."""
    wide = np.complex128 if "c" in a.dtype.kind + b.dtype.kind else np.float64
    ours, theirs = a.astype(wide), b.astype(wide)
    finite = np.isfinite(ours) & np.isfinite(theirs)
    if not finite.any():
        return None, None
    difference, size = np.abs(theirs - ours)[finite], np.abs(ours)[finite]
    relative = difference[size > 0] / size[size > 0]
    return float(difference.max()), float(relative.max()) if len(relative) else None


def _reordered(a: NDArray[Any], b: NDArray[Any], atol: float, rtol: float) -> str | None:
    """How b holds the values of a elsewhere; None where it does not."""
    if a.size != b.size:
        return None
    if a.ndim == b.ndim and 2 <= a.ndim <= _MOST_AXES:
        for axes in list(permutations(range(a.ndim)))[1:]:
            moved = a.transpose(axes)
            if moved.shape == b.shape and _close(moved, b, atol, rtol):
                return f"the same values with the axes in the order {axes}"
    if _close(a.ravel(), b.ravel(), atol, rtol):
        return "the same values in another shape"
    return "the same values in another order" if _close(np.sort(a, None), np.sort(b, None), atol, rtol) else None
