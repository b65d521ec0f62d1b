"""Copies of an array that should be alike, on the devices of JAX."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("jax")

import jax
from jax import lax
from jax import numpy as jnp
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from traceflow.collectors.jax import differing_replicas


def mesh() -> Any:
    return jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Auto,) * 2, devices=jax.devices()[:8])


def summed(*, over: str | None) -> Any:
    """Sums of rows that lie over `data`, claimed to be alike everywhere; added up only where `over` is an axis."""

    def body(x: Any) -> Any:
        own = x.sum()
        return lax.psum(own, over) if over else own

    return jax.jit(jax.shard_map(body, mesh=mesh(), in_specs=P("data"), out_specs=P(), check_vma=False))


def test_copies_that_differ_are_found_where_a_sum_was_forgotten() -> None:
    rows = jnp.arange(8.0)
    [finding] = differing_replicas({"loss": summed(over=None)(rows), "rows": rows, "step": 3})
    assert (finding.code, finding.evidence["array"]) == ("TF249", "['loss']")
    assert finding.evidence["devices"] == [0, 4, 5, 6, 7]  # the second row of the mesh has the other half of the sum


def test_copies_of_a_sum_over_the_axis_are_alike() -> None:
    total = summed(over="data")(jnp.arange(8.0))
    assert float(total) == 28
    assert differing_replicas((total, {"n": 1})) == ()


def test_a_piece_is_compared_with_its_own_copies_alone() -> None:
    split = jax.device_put(np.arange(16.0).reshape(4, 4), jax.NamedSharding(mesh(), P("data", None)))
    assert differing_replicas(split) == ()


def test_nan_is_equal_to_itself_and_keys_are_compared_by_their_data() -> None:
    everywhere = jax.NamedSharding(mesh(), P())
    assert differing_replicas(jax.device_put(jnp.array([1.0, jnp.nan]), everywhere)) == ()
    assert differing_replicas(jax.device_put(jax.random.key(3), everywhere)) == ()
    assert differing_replicas(jax.device_put(jnp.array([1, 2]), everywhere)) == ()


def test_parts_put_together_by_hand_that_differ_by_one_bit_are_found() -> None:
    everywhere = jax.NamedSharding(mesh(), P())
    parts = [jax.device_put(np.float32(1) + (d.id == 3) * np.finfo(np.float32).eps, d) for d in mesh().devices.flat]
    made = jax.make_array_from_single_device_arrays((), everywhere, parts)
    [finding] = differing_replicas(made)
    assert finding.title == "copies of the array differ between devices 0, 3"
