"""What an HLO sharding is called on the user's mesh."""

from __future__ import annotations

import numpy as np

from traceflow.intent.mesh import Mesh
from traceflow.intent.spec import Spec
from traceflow.program.sharding import Sharding, ShardingKind


def spec_of(sharding: Sharding, mesh: Mesh, rank: int) -> Spec | None:
    """The partition spec that lays an array over a mesh as an HLO sharding does.

    Args:
        sharding: Of one array; its device numbers count the mesh's devices in their order.
        mesh: The user's.
        rank: Dimensions of the array.

    Returns:
        The spec, with parts of axes where whole ones do not fit; None where no spec says the same.

    Example:
        >>> from traceflow.program.sharding import parse_sharding
        >>> mesh = Mesh.of({"data": 2, "model": 4})
        >>> str(spec_of(parse_sharding("{devices=[4,2]<=[2,4]T(1,0)}"), mesh, 2))
        "P('model', 'data')"
    """
    if sharding.kind is ShardingKind.REPLICATED:
        return Spec(((),) * rank)
    if sharding.kind is ShardingKind.TILED and not sharding.tiles:
        return Spec(()) if rank == 0 else None
    if sharding.kind is not ShardingKind.TILED or sorted(sharding.devices) != list(range(len(mesh))):
        return None
    tiled = np.array(sharding.devices).reshape(*sharding.tiles, sharding.copies)
    position = np.empty((len(sharding.tiles), len(mesh)), np.int64)
    position[:, tiled.ravel()] = np.stack(np.unravel_index(np.arange(len(mesh)), tiled.shape)[:-1])
    dimensions = tuple(mesh.axes_of_position(row.tolist()) for row in position)
    known = tuple(axes for axes in dimensions if axes is not None)
    return Spec(known).padded(rank) if len(known) == len(dimensions) <= rank else None
