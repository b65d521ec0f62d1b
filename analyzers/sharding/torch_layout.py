"""How PyTorch's placements and process groups read on named meshes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations

from traceflow.intent.mesh import Axes, Mesh
from traceflow.intent.spec import Spec
from traceflow.program.replica_groups import Groups
from traceflow.program.torch_audit import Placements, TorchAudit, TorchMesh

_SPLIT = re.compile(r"(_?)S\((\d+)")


def spec_of(placements: Placements, mesh: TorchMesh, rank: int) -> Spec:
    """The partition spec that placements mean.

    A strided shard comes after what splits the dimension along later axes of the mesh: FSDP cuts what tensor
    parallelism has cut before.

    Args:
        placements: One for each axis of the mesh.
        mesh: Theirs.
        rank: Dimensions of the tensor.

    Example:
        >>> str(spec_of(("_S(0, 2)", "S(0)"), TorchMesh(("data", "tensor"), (2, 2), (0, 1, 2, 3)), 2))
        "P(('tensor', 'data'))"
    """
    found: list[list[str]] = [[] for _ in range(rank)]
    splits = [(_SPLIT.match(one), axis) for one, axis in zip(placements, mesh.names, strict=True)]
    for match, axis in sorted(((m, axis) for m, axis in splits if m), key=lambda split: bool(split[0][1])):
        found[int(match[2])].append(axis)
    unreduced = tuple(axis for one, axis in zip(placements, mesh.names, strict=True) if one.startswith("P("))
    return Spec(tuple(map(tuple, found)), unreduced)


def mesh_of(mesh: TorchMesh) -> Mesh:
    """The mesh, with ranks for devices."""
    return Mesh.of(dict(zip(mesh.names, mesh.sizes, strict=True)), mesh.ranks)


def meshes_of(audits: Iterable[TorchAudit]) -> tuple[TorchMesh, ...]:
    """The meshes that something lies on, the largest first, and of those with equally many ranks the finest."""
    seen = dict.fromkeys(mesh for audit in audits for mesh in _meshes(audit))
    return tuple(sorted(seen, key=lambda mesh: (-len(mesh.ranks), -len(mesh.names), mesh.ranks)))


def _meshes(audit: TorchAudit) -> Iterator[TorchMesh]:
    yield from audit.meshes
    yield from (one.mesh for one in audit.parameters if one.mesh is not None)
    yield from (one.mesh for one in audit.redistributions if one.mesh is not None)
    yield from (one.mesh for one in audit.values)


def axes_of(group: Sequence[int], meshes: Sequence[TorchMesh]) -> tuple[Axes | None, Groups]:
    """The axes that a group of ranks runs along, with all groups along them; None and this one where none fits.

    Example:
        >>> axes_of((1, 3), [TorchMesh(("data", "tensor"), (2, 2), (0, 1, 2, 3))])
        (('data',), ((0, 2), (1, 3)))
    """
    for mesh in meshes:
        named = mesh_of(mesh)
        for count in range(1, len(mesh.names) + 1):
            for axes in combinations(mesh.names, count):
                groups = named.groups(axes)
                if any(sorted(group) == sorted(one) for one in groups):
                    return axes, groups
    return None, (tuple(group),) if group else ()


def alike(rank: int, placements: Placements, mesh: TorchMesh) -> tuple[object, ...]:
    """What is equal for the ranks that claim to hold the same values of a tensor."""
    sizes, position = mesh.sizes, mesh.ranks.index(rank)
    place = []
    for size, placement in zip(reversed(sizes), reversed(placements), strict=True):
        place.append(None if placement == "R" else position % size)
        position //= size
    return mesh.names, tuple(sorted(mesh.ranks)), tuple(place)
