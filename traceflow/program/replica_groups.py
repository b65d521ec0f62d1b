"""Which devices a collective joins: every way in which HLO writes replica groups, expanded to lists of ids.

XLA writes groups as plain lists, as a transposed iota (`[2,4]<=[4,2]T(1,0)`), or as axes of a mesh
(`mesh['a'=4,'b'=2] {'b'}`). All are numbered by logical id, replica * partitions + partition.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

Groups: TypeAlias = tuple[tuple[int, ...], ...]
"""Groups of device ids; empty where all devices are one group."""


@dataclass(frozen=True, slots=True)
class _Axis:
    """A mesh axis, or the part of it of `size` parts that lies after `before` parts."""

    index: int
    before: int
    size: int


def groups_of(instruction: Any) -> Groups | None:
    """The groups of an `HloInstructionProto`, None where none are recorded."""
    if instruction.HasField("mesh_axes_replica_group_list"):
        return _mesh_groups(instruction.mesh_axes_replica_group_list)
    if instruction.HasField("iota_collective_device_list"):
        return _iota_groups(instruction.iota_collective_device_list)
    if instruction.HasField("collective_device_list"):
        listed = instruction.collective_device_list
        if listed.HasField("iota_replica_group_list"):
            return _iota_groups(listed.iota_replica_group_list)
        return _plain(listed.replica_groups)
    return _plain(instruction.replica_groups) if instruction.replica_groups else None


def parse_groups(attributes: str) -> Groups | None:
    """The groups in the attributes of an instruction's text, None where none are written.

    Example:
        >>> parse_groups("channel_id=3, replica_groups=[2,2]<=[2,2]T(1,0), to_apply=%add")
        ((0, 2), (1, 3))
        >>> parse_groups("replica_groups={{0,1},{2,3}}"), parse_groups("replica_groups={}")
        (((0, 1), (2, 3)), ())
        >>> parse_groups("replica_groups=mesh['a'=2,'b'=2] {'a'}")
        ((0, 2), (1, 3))
    """
    _, found, text = attributes.partition("replica_groups=")
    if not found:
        return None
    if text.startswith("mesh["):
        return _parsed_mesh(text)
    if match := re.match(r"\[(\d+),(\d+)\]<=", text):
        order = _parsed_iota(text[match.end() :])
        return None if order is None else _rows(order.reshape(int(match[1]), int(match[2])))
    if match := re.match(r"\{(?:\{[\d,]*\},?)*\}", text):
        return tuple(_numbers(group) for group in re.findall(r"\{([\d,]+)\}", match[0]))
    return None


def parse_pairs(attributes: str) -> tuple[tuple[int, int], ...] | None:
    """The (source, target) pairs of a permute's text, None where none are written.

    Example:
        >>> parse_pairs("channel_id=1, source_target_pairs={{0,1},{1,0}}")
        ((0, 1), (1, 0))
    """
    match = re.search(r"source_target_pairs=\{((?:\{\d+,\d+\},?)*)\}", attributes)
    if not match:
        return None
    return tuple((int(source), int(target)) for source, target in re.findall(r"(\d+),(\d+)", match[1]))


def _plain(groups: Any) -> Groups:
    return tuple(tuple(group.replica_ids) for group in groups)


def _iota_groups(listed: Any) -> Groups:
    order = _iota(listed.iota_reshape_dims, listed.iota_transpose_perm)
    return _rows(order.reshape(listed.num_replica_groups, listed.num_devices_per_group))


def _mesh_groups(listed: Any) -> Groups:
    mesh = listed.mesh
    sizes = [axis.size for axis in mesh.axes]
    order = np.arange(math.prod(sizes))
    if mesh.HasField("iota_transform"):
        order = _iota(mesh.iota_transform.reshape_dims, mesh.iota_transform.transpose_perm)
    elif mesh.device_ids:
        order = np.array(mesh.device_ids)
    axes = [
        _Axis(ref.mesh_axis_index, ref.sub_axis_info.pre_size, ref.sub_axis_info.size)
        if ref.HasField("sub_axis_info")
        else _Axis(ref.mesh_axis_index, 1, sizes[ref.mesh_axis_index])
        for ref in listed.axes
    ]
    return _along(order, sizes, axes)


def parse_order(text: str) -> tuple[int, ...] | None:
    """Device ids in the order that HLO text gives, `[4,2]T(1,0)` or `0,1,2`; None where it is neither."""
    order = _parsed_iota(text)
    return None if order is None else tuple(order.tolist())


def _parsed_mesh(text: str) -> Groups | None:
    match = re.match(r"mesh\[([^\]]*)\](?:, device_ids=\((.*?)\))? \{([^}]*)\}", text)
    if not match:
        return None
    named = re.findall(r"'([^']*)'=(\d+)", match[1])
    names, sizes = [name for name, _ in named], [int(size) for _, size in named]
    order = _parsed_iota(match[2]) if match[2] else np.arange(math.prod(sizes))
    if order is None:
        return None
    axes = [
        _Axis(names.index(name), int(before or 1), int(size or sizes[names.index(name)]))
        for name, before, size in re.findall(r"'([^']*)'(?::\((\d+)\)(\d+))?", match[3])
    ]
    return _along(order, sizes, axes)


def _parsed_iota(text: str) -> NDArray[np.int64] | None:
    """A device order as text: `[4,2]T(1,0)`, or a plain list of ids."""
    if match := re.match(r"\[([\d,]+)\](?:T\(([\d,]+)\))?", text):
        return _iota(_numbers(match[1]), _numbers(match[2] or ""))
    return np.array(_numbers(text)) if re.fullmatch(r"[\d,]+", text) else None


def _iota(dimensions: Sequence[int], permutation: Sequence[int]) -> NDArray[np.int64]:
    order = np.arange(math.prod(dimensions)).reshape(tuple(dimensions))
    return order.transpose(tuple(permutation) or None).ravel()


def _along(order: NDArray[np.int64], sizes: Sequence[int], axes: Sequence[_Axis]) -> Groups:
    """Groups whose members differ along `axes` and agree along all others; the last axis varies fastest."""
    parts = [(index, before, size) for index, whole in enumerate(sizes) for before, size in _split(index, whole, axes)]
    inside = [
        at
        for axis in axes
        for at, (index, before, _) in enumerate(parts)
        if index == axis.index and axis.before <= before < axis.before * axis.size
    ]
    outside = [at for at in range(len(parts)) if at not in inside]
    members = math.prod(parts[at][2] for at in inside)
    shaped = order.reshape([size for _, _, size in parts]).transpose(outside + inside)
    return _rows(shaped.reshape(-1, members))


def _split(index: int, whole: int, axes: Sequence[_Axis]) -> list[tuple[int, int]]:
    """(parts before, size) of the pieces into which the references to one axis cut it, slowest first."""
    own = [axis for axis in axes if axis.index == index]
    cuts = sorted({1, whole} | {a.before for a in own} | {a.before * a.size for a in own})
    return [(low, high // low) for low, high in pairwise(cuts)]


def _rows(table: NDArray[np.int64]) -> Groups:
    return tuple(map(tuple, table.tolist()))


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(",") if number)
