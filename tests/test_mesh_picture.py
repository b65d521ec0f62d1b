"""Which device holds which piece of an array, as a picture."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from traceflow.intent import Mesh, Spec
from traceflow.intent.spec import held
from traceflow.report.mesh_picture import MeshPicture, mesh_pictures

TWO_BY_FOUR = Mesh.of({"data": 2, "model": 4})


def row(shape: tuple[int, ...], compiled: str, intended: str | None = None, name: str = "w") -> dict[str, Any]:
    matches = None if intended is None else intended == compiled
    return {"name": name, "global_shape": [*shape], "compiled": compiled, "intended": intended, "matches": matches}


def drawn(shape: tuple[int, ...], spec: str, mesh: Mesh = TWO_BY_FOUR) -> MeshPicture:
    [picture] = mesh_pictures([row(shape, spec)], mesh)
    return picture


def test_each_piece_has_a_colour_that_replicas_share() -> None:
    picture = drawn((8, 16), "P('data')")
    colours = [device.colour for device in picture.devices]
    assert colours == [colours[0]] * 4 + [colours[4]] * 4
    assert colours[0] != colours[4]
    assert picture.caption == "P('data'): 2 pieces of [4, 16], each on 4 devices, along model"
    assert picture.pieces == (("#0", "0:4, :", "0-3"), ("#1", "4:8, :", "4-7"))


def test_a_device_stands_where_its_coordinates_are() -> None:
    picture = drawn((8, 16), "P('data', 'model')")
    five = next(device for device in picture.devices if device.name == "5")
    assert five.label == "device 5 (data 1, model 1): 4:8, 4:8"
    heads = {heading.text: heading for heading in picture.headings}
    assert abs(heads["model 1"].x - (five.x + picture.cell[0] / 2)) <= 1
    assert abs(heads["data 1"].y - (five.y + picture.cell[1] / 2)) <= 1


def test_devices_are_called_by_their_ids_in_the_order_of_the_mesh() -> None:
    picture = drawn((4,), "P('x')", Mesh.of({"x": 4}, devices=[3, 1, 2, 0]))
    assert [device.name for device in picture.devices] == ["3", "1", "2", "0"]
    assert [piece[1:] for piece in picture.pieces] == [("0:1", "3"), ("1:2", "1"), ("2:3", "2"), ("3:4", "0")]


def test_what_all_devices_hold_has_no_colour() -> None:
    picture = drawn((8, 16), "P()")
    assert {device.colour for device in picture.devices} == {""}
    assert {device.piece for device in picture.devices} == {"whole"}
    assert picture.caption == "P(): the whole, on 8 devices, along data, model"


def test_a_device_without_a_piece_holds_nothing() -> None:
    picture = drawn((2,), "P('x')", Mesh.of({"x": 4}))
    assert [(device.piece, device.colour != "") for device in picture.devices] == [
        ("0:1", True),
        ("1:2", True),
        ("nothing", False),
        ("nothing", False),
    ]
    assert picture.caption == "P('x'): 2 pieces of [1]"


def test_an_array_that_differs_is_drawn_as_intended_and_as_compiled_before_others() -> None:
    rows = [row((64, 64), "P('data')", name="large"), row((8, 16), "P('data')", "P('data', 'model')", name="w")]
    first, second, third = mesh_pictures(rows, TWO_BY_FOUR)
    assert first.caption.startswith("as intended, P('data', 'model'): 8 pieces")
    assert second.caption.startswith("as compiled, P('data'): 2 pieces")
    assert [picture.array for picture in (first, second, third)] == ["w", "w", "large"]


def test_of_arrays_that_lie_alike_one_is_drawn_the_one_that_is_told_of_or_the_largest() -> None:
    rows = [row((8, 16), "P('data')", name="small"), row((80, 16), "P('data')", name="large")]
    assert [picture.array for picture in mesh_pictures(rows, TWO_BY_FOUR)] == ["large"]
    assert [picture.array for picture in mesh_pictures(rows, TWO_BY_FOUR, ["small"])] == ["small"]


def test_an_array_of_another_mesh_has_no_picture() -> None:
    assert mesh_pictures([row((8,), "P('expert')")], TWO_BY_FOUR) == ()


def test_of_a_large_mesh_a_part_is_drawn_and_the_rest_is_counted() -> None:
    picture = drawn((64, 64), "P('a', 'b')", Mesh.of({"a": 16, "b": 16, "c": 4}))
    assert len(picture.devices) == 64
    assert picture.more == "Drawn are the first 4 of 16 along a and the first 4 of 16 along b."
    assert picture.caption == "P('a', 'b'): 256 pieces of [4, 4], each on 4 devices, along c"
    assert max(int(device.name) for device in picture.devices) == (3 * 16 + 3) * 4 + 3


AXES = st.lists(st.integers(1, 20), min_size=1, max_size=4).filter(lambda sizes: 2 <= math.prod(sizes) <= 64)


@given(sizes=AXES, data=st.data())
def test_a_colour_is_a_piece_and_no_device_covers_another(sizes: list[int], data: st.DataObject) -> None:
    mesh = Mesh.of({f"a{i}": size for i, size in enumerate(sizes)})
    axes = data.draw(st.permutations(list(mesh.axes)))
    spec = Spec.of(axes[0], tuple(axes[1:3])) if data.draw(st.booleans()) else Spec.of(None, axes[0])
    shape = (data.draw(st.integers(1, 70)), data.draw(st.integers(1, 70)))
    picture = drawn(shape, str(spec), mesh)
    holds = held(shape, spec, mesh)
    assert sorted(int(device.name) for device in picture.devices) == sorted(holds)
    by_colour: dict[str, set[object]] = {}
    for device in picture.devices:
        by_colour.setdefault(device.colour, set()).add(holds[int(device.name)])
    coloured = [pieces for colour, pieces in by_colour.items() if colour]
    assert all(len(pieces) == 1 for pieces in coloured)
    assert len(set().union(*coloured)) == len(coloured)
    width, height = picture.cell
    assert all(device.x + width <= picture.width and device.y + height <= picture.height for device in picture.devices)
    places = sorted((device.y, device.x) for device in picture.devices)
    assert all(b[0] >= a[0] + height or (a[0] == b[0] and b[1] >= a[1] + width) for a, b in itertools.pairwise(places))


@pytest.mark.parametrize(("sizes", "shown"), [({"x": 40}, 40), ({"p": 4, "d": 4, "m": 4}, 64), ({"d": 8, "m": 1}, 8)])
def test_a_picture_is_no_wider_than_a_page(sizes: dict[str, int], shown: int) -> None:
    picture = drawn((4096, 4096), f"P('{next(iter(sizes))}')", Mesh.of(sizes))
    assert len(picture.devices) == shown
    assert picture.width <= 1200
