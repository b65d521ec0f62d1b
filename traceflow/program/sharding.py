"""How the compiler lays one value over devices: HLO shardings, from protobuf and from text.

Source: XLA's `xla_data.proto`, `OpSharding`, and how HLO text writes it:
`{devices=[2,1,4]<=[8] last_tile_dim_replicate}` cuts the first of two dimensions into two, each held by four devices.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from traceflow.program.replica_groups import parse_order

_KINDS = {0: "replicated", 1: "maximal", 4: "manual", 5: "unknown"}  # OpSharding.Type; 2 is a tuple, 3 is tiled
_TUPLE, _TILED = 2, 3


class ShardingKind(StrEnum):
    """What an HLO sharding says."""

    REPLICATED = "replicated"  # every device holds the whole value
    MAXIMAL = "maximal"  # one device does
    MANUAL = "manual"  # the value is what the program made of it on each device, as in shard_map
    TILED = "tiled"
    TUPLE = "tuple"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Sharding:
    """How a value lies on devices."""

    kind: ShardingKind
    tiles: tuple[int, ...] = ()  # pieces of each dimension of the value
    copies: int = 1  # devices that hold each piece
    manual: int = 1  # of those copies, along axes that the program handles by hand
    devices: tuple[int, ...] = ()  # in the order of tiles, then copies
    elements: tuple[Sharding, ...] = ()  # of a tuple


def sharding_text(sharding: Any) -> str:
    """An `OpSharding` as HLO text writes it."""
    if sharding.type == _TUPLE:
        return f"{{{', '.join(map(sharding_text, sharding.tuple_shardings))}}}"
    if sharding.type != _TILED:
        kind = _KINDS.get(sharding.type, "unknown")
        return f"{{maximal device={sharding.tile_assignment_devices[0]}}}" if kind == "maximal" else f"{{{kind}}}"
    sizes = ",".join(map(str, sharding.tile_assignment_dimensions))
    if sharding.iota_reshape_dims:
        order = "<=[" + ",".join(map(str, sharding.iota_reshape_dims)) + "]"
        moved = list(sharding.iota_transpose_perm)
        order += f"T({','.join(map(str, moved))})" if moved != sorted(moved) else ""
    else:
        order = ",".join(map(str, sharding.tile_assignment_devices))
    last = ""
    if sharding.replicate_on_last_tile_dim:
        last = " last_tile_dim_replicate"
    elif sharding.last_tile_dims:
        last = f" last_tile_dims={{{', '.join(_KINDS.get(kind, 'unknown') for kind in sharding.last_tile_dims)}}}"
    return f"{{devices=[{sizes}]{order}{last}}}"


def parse_sharding(text: str) -> Sharding:
    """Read a sharding of HLO text; what it says in another way than these is `unknown`.

    Example:
        >>> found = parse_sharding("{devices=[2,1,4]<=[8] last_tile_dim_replicate}")
        >>> found.tiles, found.copies, found.devices
        ((2, 1), 4, (0, 1, 2, 3, 4, 5, 6, 7))
        >>> parse_sharding("{replicated}").kind.value
        'replicated'
    """
    inside = text.strip().removeprefix("{").removesuffix("}").strip()
    if inside.startswith("{"):
        elements = re.findall(r"\{(?:[^{}]|\{[^{}]*\})*\}", inside)
        return Sharding(ShardingKind.TUPLE, elements=tuple(map(parse_sharding, elements)))
    if match := re.match(r"devices=\[([\d,]+)\](?:<=)?([^ }]+)(.*)", inside):
        return _tiled(match[1], match[2], match[3])
    if match := re.match(r"maximal device=(\d+)", inside):
        return Sharding(ShardingKind.MAXIMAL, devices=(int(match[1]),))
    named = {kind.value: kind for kind in (ShardingKind.REPLICATED, ShardingKind.MANUAL)}
    return Sharding(named.get(inside.partition(" ")[0], ShardingKind.UNKNOWN))


def _tiled(sizes: str, order: str, rest: str) -> Sharding:
    tiles = tuple(map(int, sizes.split(",")))
    devices = parse_order(order)
    if devices is None or len(devices) != math.prod(tiles):
        return Sharding(ShardingKind.UNKNOWN)
    last = ["replicated"] if "last_tile_dim_replicate" in rest else []
    if match := re.search(r"last_tile_dims=\{([^}]*)\}", rest):
        last = match[1].replace(" ", "").split(",")
    kept = len(tiles) - len(last)
    trailing = tiles[kept:]
    manual = math.prod(size for size, kind in zip(trailing, last, strict=True) if kind == "manual")
    return Sharding(ShardingKind.TILED, tiles[:kept], math.prod(trailing), manual, devices)
