"""Figures that a defect of the evidence touches are marked wherever they are printed, and so is what follows from them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

MARK = "~"
_UNITS = ("_ns", "_bytes", "_flops", "_share", "_ratio", "_ppb")
_FIGURES = frozenset({"value"})  # of a gate, whose expression tells the unit
_PLACES = frozenset({"window", "start_ns"})  # where something is, which was chosen or only orders a table


class TouchedInt(int):
    """A whole figure that is in doubt; what is computed from it is, too, and its text ends in the mark."""

    def __format__(self, spec: str) -> str:
        return f"{int(self):{spec}}{MARK}"

    def __str__(self) -> str:
        return f"{int(self)}{MARK}"

    def __add__(self, other: Any) -> Any:
        return _touched(int(self) + other)

    def __sub__(self, other: Any) -> Any:
        return _touched(int(self) - other)

    def __mul__(self, other: Any) -> Any:
        return _touched(int(self) * other)

    def __truediv__(self, other: Any) -> Any:
        return _touched(int(self) / other)

    def __radd__(self, other: Any) -> Any:
        return _touched(other + int(self))

    def __rsub__(self, other: Any) -> Any:
        return _touched(other - int(self))

    def __rmul__(self, other: Any) -> Any:
        return _touched(other * int(self))

    def __rtruediv__(self, other: Any) -> Any:
        return _touched(other / int(self))


class TouchedFloat(float):
    """A figure that is in doubt, as `TouchedInt`."""

    def __format__(self, spec: str) -> str:
        return f"{float(self):{spec}}{MARK}"

    def __mul__(self, other: Any) -> Any:
        return _touched(float(self) * other)

    def __truediv__(self, other: Any) -> Any:
        return _touched(float(self) / other)

    def __round__(self, digits: Any = None) -> Any:
        return _touched(round(float(self), digits))


def _touched(value: Any) -> Any:
    """A figure in doubt; what is no figure stays what it is."""
    if type(value) is int:  # nearly always
        return TouchedInt(value)
    if isinstance(value, float):
        return TouchedFloat(value)
    return TouchedInt(value) if isinstance(value, int) and not isinstance(value, bool) else value


def with_touched(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """A result in its envelope in which every figure with a unit is in doubt that a remark on the evidence points at.

    Args:
        document: What `traceflow.report.json.envelope` makes.
    """
    pointers = {pointer for note in document["data_quality"]["notes"] for pointer in note["affects"]}
    paths = [pointer.split("/")[1:] for pointer in sorted(pointers)]
    return _followed(document, [path for path in paths if path[:1] == ["result"]]) if paths else document


def has_touched(value: Any) -> bool:
    """Whether a result holds a figure that is in doubt."""
    if isinstance(value, Mapping):
        return any(map(has_touched, value.values()))
    return any(map(has_touched, value)) if isinstance(value, list) else isinstance(value, TouchedInt | TouchedFloat)


def _followed(value: Any, paths: Iterable[list[str]]) -> Any:
    if any(not path for path in paths):
        return _in_doubt(value, has_unit=False)
    if isinstance(value, Mapping):
        return {
            key: _below(key, inner, [path[1:] for path in paths if path[0] in {key, "*"}])
            for key, inner in value.items()
        }
    if isinstance(value, list):
        return [
            _followed(inner, [path[1:] for path in paths if path[0] in {str(i), "*"}]) for i, inner in enumerate(value)
        ]
    return value


def _below(key: str, value: Any, paths: list[list[str]]) -> Any:
    if any(not path for path in paths):
        return value if key in _PLACES else _in_doubt(value, has_unit=_has_unit(key))
    return _followed(value, paths) if paths else value


def _in_doubt(value: Any, *, has_unit: bool) -> Any:
    """All figures with a unit in doubt; an object is in the unit of its name."""
    if isinstance(value, dict):
        marked = {}
        for key, inner in value.items():  # millions in the tables of a long trace, most of them texts and numbers
            if inner is None or type(inner) is str or key in _PLACES:
                marked[key] = inner
            elif type(inner) is int:
                marked[key] = TouchedInt(inner) if has_unit or _has_unit(key) else inner
            else:
                marked[key] = _in_doubt(inner, has_unit=has_unit or _has_unit(key))
        return marked
    if isinstance(value, list):
        return [_in_doubt(inner, has_unit=has_unit) for inner in value]
    return _touched(value) if has_unit else value


@cache
def _has_unit(name: str) -> bool:
    return name.endswith(_UNITS) or name in _FIGURES
