"""Intended against compiled sharding, for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, TypeAlias

from rich.text import Text

from traceflow.report.tables import Rows, heading, left_out
from traceflow.report.units import UNKNOWN, size_text, unit_for

if TYPE_CHECKING:
    from rich.console import RenderableType

Row: TypeAlias = Mapping[str, Any]

_EXPECTED = {True: "yes", False: "no", None: UNKNOWN}


def sharding_parts(result: Row, top: int) -> Iterator[RenderableType]:
    """The mesh, how arrays lie on it, and what the devices exchange.

    Args:
        result: The `result` of `traceflow show sharding`.
        top: Longest tables, in rows.
    """
    mesh = result["mesh"]
    if mesh:
        yield Text("mesh " + " x ".join(f"{axis} {size}" for axis, size in mesh.items()))
    ratio, reason = result["redundancy_ratio"], result["redundancy_reason"]
    told = UNKNOWN if ratio is None else f"{ratio:.2f}"
    yield Text(f"redundancy {told}: {reason}")
    yield from _arrays(result["arrays"], top)
    yield from _collectives(result["collectives"], top)


def _arrays(arrays: Sequence[Row], top: int) -> Iterator[RenderableType]:
    """Arrays that differ first, then the largest."""
    if not arrays:
        return
    ordered = sorted(
        arrays, key=lambda a: (a["matches"] is not False, a["role"] != "argument", -_elements(a["global_shape"]))
    )
    rows = [
        (
            _shape(a["global_shape"]),
            UNKNOWN if a["local_shape"] is None else _shape(a["local_shape"]),
            a["intended"] or "not stated",
            UNKNOWN if a["compiled"] is None else "as meant" if a["matches"] else a["compiled"],
            _named(a["name"], a["source"]),
        )
        for a in ordered[:top]
    ]
    yield heading("Arrays, those that lie otherwise than intended first")
    yield Rows(("whole", "local", "intended", "compiled", "name"), rows)
    yield from left_out(arrays, top, "others")


def _collectives(collectives: Sequence[Row], top: int) -> Iterator[RenderableType]:
    if not collectives:
        return
    ordered = sorted(collectives, key=lambda c: (c["expected"] is not False, -(c["bytes"] or 0)))
    unit = unit_for(c["time_ns"] for c in ordered[:top])
    rows = [
        (
            _EXPECTED[c["expected"]],
            UNKNOWN if c["mesh_axes"] is None else "x".join(c["mesh_axes"]) or "none",
            size_text(c["bytes"]),
            unit.text(c["time_ns"]),
            _named(_what(c), c["source"]),
        )
        for c in ordered[:top]
    ]
    yield heading(f"Collectives (sent by each device; {unit.name} of all devices), those that are not expected first")
    yield Rows(("expected", "axes", "sends", "took", "name"), rows)
    yield from left_out(collectives, top, "others")


def _what(collective: Row) -> str:
    """What a collective is, and what it assembles or where it was written."""
    assembles = collective["assembles"]
    if assembles:
        others = f" and {len(assembles) - 1} others" if len(assembles) > 1 else ""
        return f"{collective['op']} of {assembles[0]}{others}"
    return f"{collective['op']} {collective['scope']}"


def _elements(shape: Sequence[int]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


def _shape(shape: Sequence[int]) -> str:
    return f"[{','.join(map(str, shape))}]"


def _named(name: str, source: str) -> str:
    return f"{name} {PurePosixPath(source).name}" if source else name
