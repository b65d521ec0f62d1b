"""Meshes, partition specs and what a product of sharded arrays implies: known answers and brute force."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from traceflow.errors import TraceflowError
from traceflow.intent.contraction import contraction
from traceflow.intent.mesh import Mesh
from traceflow.intent.spec import Spec, held, local_shape, pieces, replica_axes, uneven

XY = Mesh.of({"X": 4, "Y": 2})


# The mesh


def test_groups_join_devices_that_differ_in_one_axis_only() -> None:
    assert XY.groups(("Y",)) == ((0, 1), (2, 3), (4, 5), (6, 7))
    assert XY.groups(("X",)) == ((0, 2, 4, 6), (1, 3, 5, 7))
    assert XY.groups(("X", "Y")) == (tuple(range(8)),)
    assert XY.groups(()) == tuple((device,) for device in range(8))


def test_a_mesh_may_number_its_devices_otherwise() -> None:
    mesh = Mesh.of({"a": 2, "b": 2}, [3, 1, 0, 2])
    assert mesh.groups(("b",)) == ((0, 2), (3, 1))
    assert mesh.axes_of([[1, 3], [0, 2]]) == ("b",)


@pytest.mark.parametrize(
    ("groups", "axes"),
    [
        ([[0, 1, 2, 3], [4, 5, 6, 7]], ("model",)),
        ([[0, 4], [1, 5], [2, 6], [3, 7]], ("data",)),
        ([list(range(8))], ("data", "model")),
        ([[0, 1], [2, 3], [4, 5], [6, 7]], ("model:(2)2",)),
        ([[0, 2], [1, 3], [4, 6], [5, 7]], ("model:(1)2",)),
        ([[0, 1, 2], [3, 4, 5, 6, 7]], None),
        ([[0, 5], [1, 2], [3, 4], [6, 7]], None),
    ],
)
def test_groups_are_named_by_axes_or_parts_of_axes(groups: list[list[int]], axes: tuple[str, ...] | None) -> None:
    assert Mesh.of({"data": 2, "model": 4}).axes_of(groups) == axes


def test_permutes_run_along_the_axes_in_which_their_ends_differ() -> None:
    mesh = Mesh.of({"data": 2, "model": 4})
    assert mesh.axes_between([(0, 1), (1, 2), (2, 3), (3, 0)]) == ("model",)
    assert mesh.axes_between([(0, 4), (4, 0)]) == ("data",)
    assert mesh.axes_between([(1, 4)]) == ("data", "model")


def test_the_place_of_pieces_tells_the_axes_and_their_order() -> None:
    mesh = Mesh.of({"data": 2, "model": 4})
    assert mesh.axes_of_position(mesh.position(("model", "data")).tolist()) == ("model", "data")
    assert mesh.axes_of_position([0] * 8) == ()
    assert mesh.axes_of_position([0, 1, 1, 0, 0, 1, 1, 0]) is None


@pytest.mark.parametrize(("axes", "devices"), [({"a": 2}, [0, 1, 2]), ({"a": 0}, None), ({"a": 2}, [1, 1])])
def test_a_mesh_that_its_devices_do_not_fill_is_refused(axes: dict[str, int], devices: list[int] | None) -> None:
    with pytest.raises(TraceflowError, match="TF141"):
        Mesh.of(axes, devices)


@st.composite
def meshes(draw: st.DrawFn) -> Mesh:
    sizes = draw(st.lists(st.sampled_from([1, 2, 3, 4]), min_size=1, max_size=3))
    total = int(np.prod(sizes))
    return Mesh.of({f"a{i}": size for i, size in enumerate(sizes)}, draw(st.permutations(range(total))))


@given(meshes(), st.data())
def test_groups_partition_the_devices_and_tell_their_axes(mesh: Mesh, data: st.DataObject) -> None:
    axes = tuple(data.draw(st.lists(st.sampled_from(list(mesh.axes)), unique=True)))
    groups = mesh.groups(axes)
    assert sorted(device for group in groups for device in group) == sorted(mesh.devices)
    assert {len(group) for group in groups} == {mesh.size(axes)}
    named = mesh.axes_of(groups)
    assert named is not None
    assert set(map(frozenset, mesh.groups(named))) == set(map(frozenset, groups))


# Partition specs


@pytest.mark.parametrize(
    ("shape", "spec", "local", "replicas"),
    [
        ((8, 2048), Spec.of("X", "Y"), (2, 1024), ()),
        ((2048, 8192), Spec.of("Y", None), (1024, 8192), ("X",)),
        ((16, 3), Spec.of(("X", "Y")), (2, 3), ()),
        ((5,), Spec.of(), (5,), ("X", "Y")),
        ((1003, 2), Spec.of("X"), (251, 2), ("Y",)),
    ],
)
def test_local_shapes_and_replica_axes(
    shape: tuple[int, ...], spec: Spec, local: tuple[int, ...], replicas: tuple[str, ...]
) -> None:
    assert local_shape(shape, spec, XY) == local
    assert replica_axes(spec, XY) == replicas


def test_several_axes_on_one_dimension_multiply() -> None:
    assert pieces(Spec.of(("X", "Y")), XY) == (8,)


def test_uneven_dimensions_are_told() -> None:
    assert uneven((1003, 8), Spec.of("X", "Y"), XY) == (0,)


@pytest.mark.parametrize("text", ["P('X', None)", "PartitionSpec('X',)", "P(('X',), None)"])
def test_specs_are_read_as_jax_writes_them(text: str) -> None:
    assert str(Spec.parse(text)) == "P('X')"


@pytest.mark.parametrize("text", ["X", "P(X)", "P('X'", "P(3)", "__import__('os').getcwd()"])
def test_what_is_no_spec_is_refused(text: str) -> None:
    with pytest.raises(TraceflowError, match="TF143"):
        Spec.parse(text)


def test_specs_that_do_not_fit_are_refused() -> None:
    with pytest.raises(TraceflowError, match="TF143"):
        local_shape((8,), Spec.of("X", "Y"), XY)
    with pytest.raises(TraceflowError, match="TF143"):
        local_shape((8, 8), Spec.of("X", "X"), XY)
    with pytest.raises(TraceflowError, match="TF142"):
        local_shape((8,), Spec.of("Z"), XY)


@given(meshes(), st.data())
def test_devices_hold_the_whole_array_and_replicas_hold_the_same(mesh: Mesh, data: st.DataObject) -> None:
    axes = data.draw(st.lists(st.sampled_from(list(mesh.axes)), unique=True))
    cut = data.draw(st.integers(0, len(axes)))
    spec = Spec.of(axes[:cut], axes[cut:])
    shape = data.draw(st.tuples(st.integers(1, 30), st.integers(1, 30)))
    count = np.zeros(shape, int)
    owned = held(shape, spec, mesh)
    for (a, b), (c, d) in owned.values():
        count[a:b, c:d] += 1
    assert (count == len(mesh) // mesh.size(spec.axes)).all()
    replicas = mesh.groups(replica_axes(spec, mesh))
    assert all(len({owned[device] for device in group}) == 1 for group in replicas)


# Products


def implied(
    equation: str, left: Spec, right: Spec, mesh: Mesh, result: Spec | None = None
) -> list[tuple[str, str, tuple[str, ...]]]:
    return [(i.operation, i.operand, i.axes) for i in contraction(equation, left, right, mesh, result).implied]


def test_half_of_a_contraction_on_each_device_is_reduced_or_scattered() -> None:
    left, right = Spec.of("X", "Y"), Spec.of("Y", None)
    found = contraction("mk,kn->mn", left, right, XY, Spec.of("X", None))
    assert local_shape((8, 8192), found.product, XY) == (2, 8192)
    assert [(i.operation, i.groups) for i in found.implied] == [("all-reduce", ((0, 1), (2, 3), (4, 5), (6, 7)))]
    assert implied("mk,kn->mn", left, right, XY, Spec.of("X", "Y")) == [("reduce-scatter", "result", ("Y",))]


def test_an_einsum_contracts_what_its_result_leaves_out() -> None:
    mesh = Mesh.of({"data": 8})
    found = contraction("bf,fd->db", Spec.of("data", None), Spec.of(None, None), mesh)
    assert str(found.result) == "P(None, 'data')"
    assert found.implied == ()


def test_full_sharding_gathers_the_weight_for_the_batch() -> None:
    mesh = Mesh.of({"data": 8})
    assert implied("bf,fd->bd", Spec.of("data", None), Spec.of("data", None), mesh, Spec.of("data", None)) == [
        ("all-gather", "right", ("data",))
    ]


def test_a_collective_matmul_gathers_its_input_for_the_columns() -> None:
    mesh = Mesh.of({"x": 8})
    assert implied("mk,kn->mn", Spec.of("x", None), Spec.of(None, "x"), mesh, Spec.of(None, "x")) == [
        ("all-gather", "left", ("x",))
    ]


def test_columns_wanted_as_rows_are_a_reshard() -> None:
    mesh = Mesh.of({"data": 2, "model": 4})
    assert implied("mk,kn->mn", Spec.of(None, None), Spec.of(None, "model"), mesh, Spec.of("model", None)) == [
        ("reshard", "result", ("model",))
    ]


def test_an_index_split_by_different_axes_is_a_reshard_of_one_side() -> None:
    assert implied("mk,kn->mn", Spec.of(None, "X"), Spec.of("Y", None), XY)[0] == ("reshard", "right", ("X", "Y"))


def test_a_sum_split_on_one_side_only_costs_a_slice_of_the_other() -> None:
    assert implied("mk,kn->mn", Spec.of(None, "X"), Spec.of(None, None), XY) == [("all-reduce", "result", ("X",))]


@pytest.mark.parametrize("equation", ["mk,kn", "mk->m", "mm,mn->n", "mk,kn->mz", "a,b,c->a", "m1,1n->mn"])
def test_what_is_no_product_is_refused(equation: str) -> None:
    with pytest.raises(TraceflowError, match="TF144"):
        contraction(equation, Spec.of(), Spec.of(), XY)


@given(st.data())
def test_devices_that_do_what_is_implied_compute_the_product(data: st.DataObject) -> None:
    """Brute force: gather, multiply what each device holds, and add up, as the implied collectives say."""
    mesh = Mesh.of({"X": 2, "Y": 2})
    splits = [Spec.of(*entries) for entries in product([None, "X", "Y"], repeat=2) if entries in _ONCE]
    left, right = data.draw(st.sampled_from(splits)), data.draw(st.sampled_from(splits))
    found = contraction("mk,kn->mn", left, right, mesh)
    if any(i.operation == "reshard" for i in found.implied):
        return
    gathered = {"left": left, "right": right}
    for operation, operand, axes, _ in found.implied:
        if operation == "all-gather":
            kept = gathered[operand].dimensions
            gathered[operand] = Spec(tuple(tuple(a for a in d if a not in axes) for d in kept))
    a, b = np.arange(16.0).reshape(4, 4), np.arange(16.0).reshape(4, 4) % 5 - 2
    total = np.zeros((4, 4))
    counted = np.zeros((4, 4))
    split = {axis for spec in gathered.values() for axis in spec.axes}
    copies = len(mesh) // mesh.size(split)
    for device in mesh.devices:
        (m, k), (k2, n) = held((4, 4), gathered["left"], mesh)[device], held((4, 4), gathered["right"], mesh)[device]
        low, high = max(k[0], k2[0]), min(k[1], k2[1])  # a whole side takes the other's slice
        total[m[0] : m[1], n[0] : n[1]] += a[m[0] : m[1], low:high] @ b[low:high, n[0] : n[1]]
        counted[m[0] : m[1], n[0] : n[1]] += high - low
    assert (counted == 4 * copies).all()
    np.testing.assert_array_equal(total / copies, a @ b)


_ONCE = [e for e in product([None, "X", "Y"], repeat=2) if e[0] is None or e[0] != e[1]]
