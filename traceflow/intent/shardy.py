"""What the author wrote about sharding, as Shardy's attributes carry it into a program.

They appear in StableHLO and in HLO before partitioning, and keep the user's axis names:
`xla.sdy.meshes={mesh = #sdy.mesh<["data"=2, "model"=4]>}` of a module, and of a value
`xla.sdy.sharding="#sdy.sharding<@mesh, [{"data"}, {"model", ?}]>"`. A dimension with `?` may be split further.

Source: the Shardy MLIR dialect, `SDY.md` in openxla/shardy.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from traceflow.intent.mesh import Mesh
from traceflow.intent.spec import Spec

_MESH = re.compile(r'@?([\w.]+) = (?:#sdy\.mesh)?<\[((?:"[^"]*"=\d+(?:, )?)*)\](?:, device_ids=\[([\d, ]*)\])?>')
_AXIS = re.compile(r'"([^"]*)"=(\d+)')
_VALUE = re.compile(r"<@([\w.]+), \[((?:\{[^{}]*\}(?:, )?)*)\]([^>]*)>")
_DIMENSION = re.compile(r"\{([^{}]*)\}")
_REFERENCE = re.compile(r'"([^"]*)"(?::\((\d+)\)(\d+))?')


class Stated(NamedTuple):
    """A sharding as it was written."""

    mesh: str  # by its name
    spec: Spec
    open: bool  # some dimension may be split further


def meshes(text: str) -> dict[str, Mesh]:
    r"""The meshes of a program, by name.

    Args:
        text: The module's `xla.sdy.meshes` attribute, or lines `sdy.mesh @mesh = <["data"=2]>` of StableHLO.

    Example:
        >>> meshes('{mesh = #sdy.mesh<["data"=2, "model"=4]>}')["mesh"].axes
        {'data': 2, 'model': 4}
    """
    found = {}
    for name, axes, devices in _MESH.findall(text):
        sizes = {axis: int(size) for axis, size in _AXIS.findall(axes)}
        ids = [int(device) for device in devices.split(",")] if devices else None
        found[name] = Mesh.of(sizes, ids)
    return found


def stated(text: str) -> tuple[Stated, ...]:
    r"""The shardings in a Shardy attribute: one of a value, one per value of several.

    Example:
        >>> [str(one.spec) for one in stated('#sdy.sharding<@mesh, [{"data"}, {}]>')]
        ["P('data')"]
    """
    return tuple(
        Stated(mesh, Spec(_dimensions(dimensions), _unreduced(rest)), "?" in dimensions)
        for mesh, dimensions, rest in _VALUE.findall(text)
    )


def manual_axes(attributes: Mapping[str, str]) -> tuple[str, ...]:
    """The axes that a manual computation, as of `shard_map`, handles by hand."""
    return tuple(re.findall(r'"([^"]*)"', attributes.get("xla.sdy.manual_axes", "")))


def _dimensions(text: str) -> tuple[tuple[str, ...], ...]:
    return tuple(_axes(dimension) for dimension in _DIMENSION.findall(text))


def _unreduced(rest: str) -> tuple[str, ...]:
    return _axes(match[1]) if (match := re.search(r"unreduced=\{([^}]*)\}", rest)) else ()


def _axes(text: str) -> tuple[str, ...]:
    parts = _REFERENCE.findall(text)
    return tuple(f"{name}:({before}){size}" if size else name for name, before, size in parts)
