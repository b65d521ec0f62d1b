"""What JAX says of the functions that a capture holds: how arrays are placed, and the compiler's own figures.

Source: `program/*.json` of a capture, with the compiled text of the same name beside it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import msgspec

_MODULE = re.compile(r"HloModule ([^\s,]+)")


@dataclass(frozen=True, slots=True)
class StatedArray:
    """One argument or result: its shape as a whole, and into how many pieces each dimension is meant to be cut."""

    path: str
    shape: tuple[int, ...]
    dtype: str
    pieces: tuple[int, ...] | None  # None where no placement is stated
    copies: int = 1  # how many devices are meant to hold the same piece


@dataclass(frozen=True, slots=True)
class Stated:
    """One function: the name of its module, and what was said of it."""

    function: str
    module: str
    peak_bytes: int | None
    arguments: tuple[StatedArray, ...]
    results: tuple[StatedArray, ...]


def read_stated(folder: Path) -> tuple[Stated, ...]:
    """Read what a capture says of its functions; what is damaged, or has no program beside it, is left out.

    Args:
        folder: The capture's folder of programs.
    """
    found = []
    for file in sorted(folder.glob("*.json")):
        text = file.with_name(f"{file.stem}.hlo.txt")
        if not text.is_file():
            continue
        with text.open(encoding="utf-8", errors="replace") as lines:
            module = _MODULE.match(next(lines, ""))
        try:
            said = msgspec.json.decode(file.read_bytes())
            if module and not said["problem"]:
                found.append(_stated(said, module[1]))
        except (msgspec.DecodeError, RecursionError, LookupError, TypeError, ValueError):
            continue
    return tuple(found)


def _stated(said: dict[str, Any], module: str) -> Stated:
    peak = said["memory"]["peak_bytes"]
    arguments, results = (tuple(map(_array, said[which])) for which in ("inputs", "outputs"))
    return Stated(str(said["name"]), module, None if peak is None else int(peak), arguments, results)


def _array(said: dict[str, Any]) -> StatedArray:
    shape = tuple(int(size) for size in said["shape"])
    placed = said["intended"] or said["compiled"]
    if not placed or placed["mesh"] is None:
        return StatedArray(str(said["path"]), shape, str(said["dtype"]), None)
    mesh: dict[str, int] = placed["mesh"]
    pieces = tuple(_size(entry, mesh) for entry in placed["spec"])
    devices = _size(list(mesh), mesh)
    return StatedArray(str(said["path"]), shape, str(said["dtype"]), pieces, devices // max(prod(pieces), 1))


def _size(axes: str | Sequence[str] | None, mesh: dict[str, int]) -> int:
    """How many pieces some axes of a mesh make.

    Example:
        >>> _size(["x", "y"], {"x": 4, "y": 2}), _size("y", {"x": 4, "y": 2}), _size(None, {})
        (8, 2, 1)
    """
    names = [axes] if isinstance(axes, str) else axes or ()
    return prod([mesh[name] for name in names])
