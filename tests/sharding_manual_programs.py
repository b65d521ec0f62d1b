"""Programs of `shard_map`, right and wrong: rings, loops, sums and claims."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P
from sharding_programs import Compiled, array, case, grid

_RING = [(i, (i + 1) % 8) for i in range(8)]


def _by_hand(body: Callable[..., Any], inputs: Any, outputs: Any, *args: Any, **options: Any) -> Compiled:
    """A body on eight devices in a line, without the checks that JAX makes of what is claimed."""
    mesh = grid(8, names=("data",))
    f = jax.shard_map(body, mesh=mesh, in_specs=inputs, out_specs=outputs, check_vma=False, **options)
    return jax.jit(f), tuple(array(mesh, *shape) for shape in args)


_X, _W = ((64, 32), "data", None), ((32, 16),)


# Sums in rings


@case()
def ring_of_permutes_that_sums() -> Compiled:
    def body(x: Any) -> Any:
        total = passed = x
        for _ in range(7):
            passed = lax.ppermute(passed, "data", _RING)
            total = total + passed
        return total

    return _by_hand(body, P("data", None), P(), _X)


@case()
def ring_of_permutes_in_a_loop() -> Compiled:
    def round_(_: Any, carried: Any) -> Any:
        total, passed = carried
        passed = lax.ppermute(passed, "data", _RING)
        return total + passed, passed

    return _by_hand(lambda x: lax.fori_loop(0, 7, round_, (x, x))[0], P("data", None), P(), _X)


@case()
def pipeline_of_stages() -> Compiled:
    def body(w: Any, batches: Any) -> Any:
        stage = lax.axis_index("data")

        def step(carried: Any, i: Any) -> Any:
            y = jnp.tanh(jnp.where(stage == 0, batches[jnp.minimum(i, 3)], carried) @ w[0])
            return lax.ppermute(y, "data", _RING), y

        _, made = lax.scan(step, jnp.zeros((16, 32)), jnp.arange(4 + 7))
        return lax.psum(jnp.where(stage == 7, made[7:], 0), "data")

    return _by_hand(body, (P("data", None, None), P()), P(), ((8, 32, 32), "data", None, None), ((4, 16, 32),))


# Gradients of a batch that is divided by hand


def _loss(w: Any, x: Any) -> Any:
    return ((x @ w) ** 2).mean()


def _accumulated(w: Any, batches: Any) -> Any:
    def add(total: Any, x: Any) -> Any:
        return total + jax.grad(_loss)(w, x), None

    return lax.scan(add, jnp.zeros_like(w), batches)[0]


_BATCHES = ((4, 64, 32), None, "data", None)


@case("TF239")
def gradients_accumulated_and_never_summed() -> Compiled:
    return _by_hand(_accumulated, (P(), P(None, "data", None)), P(), _W, _BATCHES)


@case()
def gradients_accumulated_and_summed() -> Compiled:
    def body(w: Any, batches: Any) -> Any:
        return lax.pmean(_accumulated(w, batches), "data")

    return _by_hand(body, (P(), P(None, "data", None)), P(), _W, _BATCHES)


@case("TF238")
def gradients_averaged_twice() -> Compiled:
    def body(w: Any, x: Any) -> Any:
        return lax.pmean(lax.pmean(jax.grad(_loss)(w, x), "data"), "data")

    return _by_hand(body, (P(), P("data", None)), P(), _W, _X)


@case("TF239")
def loss_of_one_device_claimed_for_all() -> Compiled:
    def body(w: Any, x: Any) -> Any:
        loss, gradient = jax.value_and_grad(_loss)(w, x)
        return w - lax.pmean(gradient, "data"), loss

    return _by_hand(body, (P(), P("data", None)), (P(), P()), _W, _X)


@case()
def optimizer_states_divided() -> Compiled:
    def body(w: Any, mean: Any, x: Any) -> Any:
        gradient = lax.psum_scatter(jax.grad(_loss)(w, x), "data", tiled=True) / 8
        mean = 0.9 * mean + gradient
        mine = lax.dynamic_slice_in_dim(w, lax.axis_index("data") * 4, 4) - mean
        return lax.all_gather(mine, "data", tiled=True), mean

    split = P("data", None)
    return _by_hand(body, (P(), split, split), (P(), split), _W, ((32, 16), "data", None), _X)


# Loops over layers


@case("TF238")
def copies_summed_in_a_loop() -> Compiled:
    def body(x: Any, layers: Any) -> Any:
        return lax.scan(lambda h, w: (lax.psum(h @ w, "data"), None), x, layers)[0]

    return _by_hand(body, (P(), P()), P(), ((64, 32),), ((3, 32, 32),))


def _layers(summed: Callable[[Any], Any]) -> Compiled:
    def layer(h: Any, w: Any) -> Any:
        return h + summed(jax.nn.relu(h @ w[0]) @ w[1]), None

    specs = (P(None, None, "data"), P(None, "data", None))
    up, down = ((3, 32, 64), None, None, "data"), ((3, 64, 32), None, "data", None)
    return _by_hand(lambda x, *ws: lax.scan(layer, x, ws)[0], (P(), *specs), P(), ((16, 32),), up, down)


@case("TF239")
def layers_whose_sums_are_missing() -> Compiled:
    return _layers(lambda h: h)


@case()
def layers_whose_sums_are_there() -> Compiled:
    return _layers(lambda h: lax.psum(h, "data"))


# What depends on the device, and what does not


@case("TF239")
def place_of_the_device_claimed_alike() -> Compiled:
    return _by_hand(lambda w: w * lax.axis_index("data"), P(), P(), _W)


@case()
def one_device_tells_all() -> Compiled:
    return _by_hand(lambda w: lax.psum(jnp.where(lax.axis_index("data") == 0, w, 0), "data"), P(), P(), _W)


@case()
def devices_counted() -> Compiled:
    def body(x: Any) -> Any:
        return lax.psum(x.sum(axis=0, keepdims=True), "data") / lax.psum(jnp.ones((1,)), "data")

    return _by_hand(body, P("data", None), P(), _X)


@case()
def work_divided_by_the_place_of_the_device() -> Compiled:
    """No spec splits anything: each device takes its own part of copies."""

    def body(x: Any, w: Any) -> Any:
        at = lax.axis_index("data") * 64
        return lax.psum(lax.dynamic_slice_in_dim(x, at, 64, 1) @ lax.dynamic_slice_in_dim(w, at, 64), "data")

    return _by_hand(body, (P(), P()), P(), ((64, 512),), ((512, 64),))


# Other ways in


@case()
def gradient_through_sums_by_hand() -> Compiled:
    """Differentiation sums copies where JAX does not check what varies: no line of the program says so."""
    mesh = grid(2, 4)
    specs = (P("data", None), P(None, "model"), P("model", None))

    def body(x: Any, up: Any, down: Any) -> Any:
        return lax.psum(jax.nn.relu(x @ up) @ down, "model")

    f = jax.shard_map(body, mesh=mesh, in_specs=specs, out_specs=P("data", None), check_vma=False)
    up, down = array(mesh, (32, 64), None, "model"), array(mesh, (64, 32), "model", None)
    g = jax.jit(jax.grad(lambda w, x: (f(x, *w) ** 2).mean()), out_shardings=(up.sharding, down.sharding))
    return g, ((up, down), array(mesh, (64, 32), "data", None))


def _partly(body: Callable[[Any], Any]) -> Compiled:
    """One axis by hand, the other left to the compiler."""
    mesh = grid(2, 4)
    options: dict[str, Any] = {"axis_names": {"data"}, "check_vma": False}
    f = jax.shard_map(body, mesh=mesh, in_specs=P("data", None), out_specs=P(), **options)
    return jax.jit(f), (array(mesh, (64, 32), "data", "model"),)


@case("TF239")
def one_axis_by_hand_and_its_sum_missing() -> Compiled:
    return _partly(lambda x: x.sum(axis=0, keepdims=True) * 2)


@case()
def one_axis_by_hand_and_summed() -> Compiled:
    return _partly(lambda x: lax.psum(x.sum(axis=0, keepdims=True), "data"))
