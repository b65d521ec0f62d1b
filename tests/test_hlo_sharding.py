"""HLO shardings: from protobuf and from text, as partition specs of a mesh."""

from __future__ import annotations

from typing import Any

import pytest

from traceflow.intent.hlo_sharding import spec_of
from traceflow.intent.mesh import Mesh
from traceflow.intent.spec import Spec
from traceflow.program.schema import message
from traceflow.program.sharding import Sharding, ShardingKind, parse_sharding, sharding_text

MESH = Mesh.of({"data": 2, "model": 4})

TEXTS = [
    "{replicated}",
    "{manual}",
    "{maximal device=3}",
    "{devices=[2,1,4]<=[8] last_tile_dim_replicate}",
    "{devices=[4,2]<=[2,4]T(1,0)}",
    "{devices=[2,2]0,2,1,3}",
    "{devices=[2,2,2]<=[8] last_tile_dims={manual, replicated}}",
    "{{devices=[8]<=[8]}, {replicated}}",
]


@pytest.mark.parametrize("text", TEXTS)
def test_shardings_of_the_proto_are_written_as_hlo_text(text: str) -> None:
    assert sharding_text(proto_of(parse_sharding(text), text)) == text


def proto_of(sharding: Sharding, text: str) -> Any:
    """The message that says what a parsed sharding says, in the order in which the text says it."""
    kinds = {"replicated": 0, "maximal": 1, "tuple": 2, "tiled": 3, "manual": 4}
    proto = message("OpSharding")(type=kinds[sharding.kind.value])
    if sharding.kind is ShardingKind.TUPLE:
        inner = text[1:-1].split(", ", 1)
        proto.tuple_shardings.extend(
            proto_of(element, one) for element, one in zip(sharding.elements, inner, strict=True)
        )
    if sharding.kind is ShardingKind.MAXIMAL:
        proto.tile_assignment_devices.extend(sharding.devices)
    if sharding.kind is ShardingKind.TILED:
        _add_tiles(proto, sharding, text)
    return proto


def _add_tiles(proto: Any, sharding: Sharding, text: str) -> None:
    mixed = "last_tile_dims={" in text
    proto.replicate_on_last_tile_dim = "last_tile_dim_replicate" in text
    last = [2, 2] if mixed else [sharding.copies] if sharding.copies > 1 else []
    proto.tile_assignment_dimensions.extend([*sharding.tiles, *last])
    proto.last_tile_dims.extend([4, 0] if mixed else [])
    if "<=[2,4]T(1,0)" in text:
        proto.iota_reshape_dims.extend([2, 4])
        proto.iota_transpose_perm.extend([1, 0])
    elif "<=[8]" in text:
        proto.iota_reshape_dims.append(8)
        proto.iota_transpose_perm.append(0)
    else:
        proto.tile_assignment_devices.extend(sharding.devices)


def test_a_tiled_sharding_tells_pieces_copies_and_devices() -> None:
    found = parse_sharding("{devices=[2,1,4]<=[2,4]T(0,1) last_tile_dim_replicate}")
    assert (found.tiles, found.copies, found.manual) == ((2, 1), 4, 1)
    manual = parse_sharding("{devices=[2,2,2]<=[8] last_tile_dims={manual, replicated}}")
    assert (manual.tiles, manual.copies, manual.manual) == ((2,), 4, 2)


@pytest.mark.parametrize("text", ["{devices=[2,2]<=[8]}", "", "{something new}", "{devices=[2,x]<=[4]}"])
def test_what_is_not_understood_is_unknown(text: str) -> None:
    assert parse_sharding(text).kind is ShardingKind.UNKNOWN


@pytest.mark.parametrize(
    ("text", "rank", "spec"),
    [
        ("{replicated}", 2, Spec.of(None, None)),
        ("{devices=[2,1,4]<=[8] last_tile_dim_replicate}", 2, Spec.of("data", None)),
        ("{devices=[1,4,2]<=[2,4]T(1,0) last_tile_dim_replicate}", 2, Spec.of(None, "model")),
        ("{devices=[2,4]<=[8]}", 2, Spec.of("data", "model")),
        ("{devices=[4,2]<=[2,4]T(1,0)}", 2, Spec.of("model", "data")),
        ("{devices=[8,1]<=[8]}", 2, Spec.of(("data", "model"), None)),
        ("{devices=[8]<=[2,4]T(1,0)}", 1, Spec.of(("model", "data"))),
        ("{devices=[2,4]<=[2,2,2]T(1,0,2) last_tile_dim_replicate}", 1, Spec.of("model:(1)2")),
        ("{maximal device=3}", 1, None),
        ("{devices=[2,2]<=[4]}", 2, None),
        ("{devices=[8]0,3,1,2,4,5,6,7}", 1, None),
    ],
)
def test_a_sharding_is_a_spec_of_the_mesh_where_its_axes_fit(text: str, rank: int, spec: Spec | None) -> None:
    assert spec_of(parse_sharding(text), MESH, rank) == spec
