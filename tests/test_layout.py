"""How many bytes a layout takes: worked examples, every shape of a recorded TPU program, and laws."""

from __future__ import annotations

import gzip
import itertools
import json
import math
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from traceflow.program.layout import arrays_of, leaves, part_of, stored


@pytest.mark.parametrize(
    ("shape", "logical", "slots", "physical"),
    [
        ("f32[3,5]{1,0:T(2,2)}", 60, 24, 96),
        ("f32[3,5]{1,0:T(8,128)}", 60, 1024, 4096),
        ("bf16[32,32,4096]{2,1,0:T(8,128)}", 8_388_608, 4_194_304, 8_388_608),
        ("bf16[1024,64]{1,0:T(8,128)(2,1)}", 131_072, 131_072, 262_144),
        ("f32[1000,3]{1,0:T(8,128)}", 12_000, 128_000, 512_000),
        ("f32[3,1000]{0,1:T(8,128)}", 12_000, 128_000, 512_000),
        ("bf16[1024,64]{0,1:T(8,128)(2,1)S(1)}", 131_072, 65_536, 131_072),
        ("s32[]{:T(128)}", 4, 128, 512),
        ("s32[]", 4, 1, 4),
        ("pred[10]{0}", 10, 10, 10),
        ("f32[0,8]{1,0:T(8,128)}", 0, 0, 0),
        ("s4[3]{0:E(4)}", 2, 3, 2),
        ("s4[3]{0}", 2, 3, 3),
        ("f32[5]{0:L(4)}", 20, 8, 32),
        ("f32[<=5,4]", 80, 20, 80),
    ],
)
def test_what_an_array_takes(shape: str, logical: int, slots: int, physical: int) -> None:
    array = stored(shape)
    assert array is not None
    assert (array.logical_bytes, array.slots, array.physical_bytes) == (logical, slots, physical)


@pytest.mark.parametrize(
    "shape", ["token[]", "(f32[2], s32[])", "opaque[]", "f32[?]", "f32[2,2]{0}", "f32[8]{0:T(*,8)}", ""]
)
def test_what_is_no_array_is_not_guessed(shape: str) -> None:
    assert stored(shape) is None


def test_nine_of_twenty_four_slots_are_padding() -> None:
    array = stored("f32[3,5]{1,0:T(2,2)}")
    assert array is not None
    assert (array.slots - 15, 1 - 15 / array.slots) == (9, 0.375)


def test_parts_of_a_tuple() -> None:
    shape = "(f32[2]{0:T(128)}, /*index=1*/(s32[]{:T(128)S(6)}, pred[2,3]{1,0}))"
    assert part_of(shape, (1, 0)) == "s32[]{:T(128)S(6)}"
    assert (part_of(shape, (2,)), part_of(shape, (1, 5))) == ("", "")
    assert leaves(shape) == ("f32[2]{0:T(128)}", "s32[]{:T(128)S(6)}", "pred[2,3]{1,0}")
    assert [array.space for array in arrays_of(shape)] == [0, 6, 0]


ARRAYS = st.lists(st.integers(1, 9), min_size=0, max_size=4).flatmap(
    lambda sizes: st.tuples(
        st.just(tuple(sizes)),
        st.permutations(range(len(sizes))),
        st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=3), max_size=2),
    )
)


def written(sizes: tuple[int, ...], order: list[int], tiles: list[list[int]]) -> str:
    tiled = "".join(f"({','.join(map(str, tile))})" for tile in tiles)
    layout = f"{','.join(map(str, order))}{':T' + tiled if tiles else ''}"
    return f"f32[{','.join(map(str, sizes))}]{{{layout}}}"


def slot_of(index: tuple[int, ...], sizes: tuple[int, ...], order: list[int], tiles: list[list[int]]) -> int:
    """Where an element lies: its index cut into number and position of each tile, counted up major to minor."""
    extents, place = [sizes[d] for d in reversed(order)], [index[d] for d in reversed(order)]
    for tile in tiles:
        missing = max(len(tile) - len(extents), 0)
        extents, place = [1] * missing + extents, [0] * missing + place
        kept = len(extents) - len(tile)
        outer = [math.ceil(extent / edge) for extent, edge in zip(extents[kept:], tile, strict=True)]
        numbers = [divmod(p, edge) for p, edge in zip(place[kept:], tile, strict=True)]
        extents = extents[:kept] + outer + tile
        place = place[:kept] + [n for n, _ in numbers] + [p for _, p in numbers]
    slot = 0
    for extent, p in zip(extents, place, strict=True):
        slot = slot * extent + p
    return slot


@given(ARRAYS)
def test_every_element_has_a_slot_of_its_own(array: tuple[tuple[int, ...], list[int], list[list[int]]]) -> None:
    sizes, order, tiles = array
    found = stored(written(sizes, order, tiles))
    assert found is not None
    slots = [slot_of(index, sizes, order, tiles) for index in itertools.product(*map(range, sizes))]
    assert len(set(slots)) == len(slots) == math.prod(sizes)
    assert max(slots) < found.slots
    assert found.physical_bytes == 4 * found.slots >= found.logical_bytes == 4 * math.prod(sizes)


@given(ARRAYS)
def test_without_tiles_nothing_is_padded(array: tuple[tuple[int, ...], list[int], list[list[int]]]) -> None:
    sizes, order, _ = array
    found = stored(written(sizes, order, []))
    assert found is not None
    assert found.physical_bytes == found.logical_bytes


def rounded(text: str) -> int:
    """The size by one rule that holds while each further tile divides the first: round up to the first one."""
    match = re.fullmatch(r"([a-z]+)(\d*)\[([\d,]*)\]\{([\d,]*)(?::(?:T\(([\d,]+)\))?.*)?\}", text)
    assert match is not None
    sizes, order, tile = (list(map(int, filter(None, (match[i] or "").split(",")))) for i in (3, 4, 5))
    extents = [sizes[d] for d in reversed(order)] or [1]
    for i, edge in enumerate(reversed(tile), 1):
        if i > len(extents):
            extents.insert(0, 1)
        extents[-i] = math.ceil(extents[-i] / edge) * edge
    return math.prod(extents) * (8 if match[1] == "pred" else int(match[2])) // 8


def test_every_shape_of_a_tpu_trace(corpus: Callable[[str], Path]) -> None:
    events = json.loads(gzip.decompress(corpus("xplane/tpu_2chips_a.trace.json.gz").read_bytes()))["traceEvents"]
    shapes = {e["args"]["shape_with_layout"] for e in events if "shape_with_layout" in e.get("args", {})}
    plain = {shape for shape in shapes if not shape.startswith("(")}
    for text in {leaf for shape in shapes for leaf in leaves(shape)}:
        array = stored(text)
        assert array is not None, text
        assert array.physical_bytes == rounded(text), text
    padded = [array for shape in plain for array in arrays_of(shape) if array.physical_bytes > array.logical_bytes]
    assert (len(plain), len(padded)) == (43, 10)
