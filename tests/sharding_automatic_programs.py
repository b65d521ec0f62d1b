"""Programs that leave collectives to the compiler, in automatic and in explicit mode, right and wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from sharding_programs import Compiled, array, case, grid, on

from traceflow.intent.intent import intent


class _Under:
    """A function that is lowered under a mesh, so that bare partition specs name its axes."""

    def __init__(self, mesh: Mesh, f: Callable[..., Any]) -> None:
        self._mesh, self._f = mesh, jax.jit(f)

    def __call__(self, *args: Any) -> Any:
        with jax.set_mesh(self._mesh):
            return self._f(*args)

    def lower(self, *args: Any) -> Any:
        with jax.set_mesh(self._mesh):
            return self._f.lower(*args)


# Full sharding


def _squares(w: Any, x: Any) -> Any:
    return ((jax.nn.relu(x @ w[0]) @ w[1]) ** 2).mean()


@case()
def fully_sharded_training_in_explicit_mode() -> Compiled:
    mesh = grid(8, names=("data",), explicit=True)

    def loss(w: Any, x: Any) -> Any:
        return _squares([jax.sharding.reshard(p, P(None, None)) for p in w], x)

    w = array(mesh, (64, 128), "data", None), array(mesh, (128, 64), "data", None)
    return _Under(mesh, jax.grad(loss)), (w, array(mesh, (256, 64), "data", None))


@case()
def fully_sharded_layers_in_a_loop() -> Compiled:
    """Weights are gathered again in the backward pass; their gradients return to where they lie."""
    mesh = grid(8, names=("data",))

    def loss(layers: Any, x: Any) -> Any:
        def layer(h: Any, w: Any) -> Any:
            return lax.with_sharding_constraint(jnp.tanh(h @ w), on(mesh, "data", None)), None

        return (lax.scan(jax.checkpoint(layer), x, layers)[0] ** 2).mean()

    layers = array(mesh, (4, 64, 64), None, "data", None)
    return jax.jit(jax.grad(loss), out_shardings=layers.sharding), (layers, array(mesh, (512, 64), "data", None))


@case()
def weights_gathered_as_bfloat16() -> Compiled:
    mesh = grid(8, names=("data",))

    def f(x: Any, w: Any) -> Any:
        return x.astype(jnp.bfloat16) @ lax.with_sharding_constraint(w.astype(jnp.bfloat16), on(mesh, None, None))

    args = array(mesh, (256, 64), "data", None), array(mesh, (64, 128), "data", None)
    return jax.jit(f, out_shardings=on(mesh, "data", None)), args


@case("TF232")
def gradient_reduced_for_states_that_are_divided() -> Compiled:
    mesh = grid(8, names=("data",))

    def step(w: Any, mean: Any, x: Any) -> Any:
        mean = 0.9 * mean + jax.grad(lambda w: ((x @ w) ** 2).mean())(w)
        return w - mean, mean

    w, mean = array(mesh, (128, 128)), array(mesh, (128, 128), "data", None)
    f = jax.jit(step, out_shardings=(w.sharding, mean.sharding), donate_argnums=(0, 1))
    return f, (w, mean, array(mesh, (256, 128), "data", None))


@case()
def parameters_brought_together() -> Compiled:
    """As before a checkpoint: that is all that the program is for."""
    mesh = grid(8, names=("data",))
    args = array(mesh, (64, 64), "data", None), array(mesh, (128, 64), None, "data")
    return jax.jit(lambda *p: [one.astype(jnp.bfloat16) for one in p], out_shardings=on(mesh)), args


# Arrays that lie otherwise


@case("TF234")
def states_that_lie_unlike_parameters() -> Compiled:
    mesh = grid(2, 4)

    def step(w: Any, mean: Any, gradient: Any) -> Any:
        mean = 0.9 * mean + gradient
        return w - mean, mean

    w, mean = array(mesh, (256, 256), None, "model"), array(mesh, (256, 256), "model", None)
    return jax.jit(step, out_shardings=(w.sharding, mean.sharding)), (w, mean, w)


@case()
def states_that_lie_as_parameters_do() -> Compiled:
    mesh = grid(2, 4)

    def step(w: Any, mean: Any, gradient: Any) -> Any:
        mean = 0.9 * mean + gradient
        return w - mean, mean

    w = array(mesh, (256, 256), None, "model")
    return jax.jit(step, out_shardings=(w.sharding, w.sharding)), (w, w, w)


@case("TF234")
def columns_reshaped_across_pieces() -> Compiled:
    """Six heads do not lie on four devices."""
    mesh = grid(2, 4)
    return jax.jit(lambda x: jnp.sin(x).reshape(64, 6, 160) * 2), (array(mesh, (64, 960), "data", "model"),)


@case()
def columns_reshaped_within_pieces() -> Compiled:
    mesh = grid(2, 4)
    return jax.jit(lambda x: jnp.sin(x).reshape(64, 12, 80) * 2), (array(mesh, (64, 960), "data", "model"),)


def _microbatches(divide: Callable[[Any], Any]) -> Compiled:
    mesh = grid(8, names=("data",))

    def f(w: Any, x: Any) -> Any:
        batches = lax.with_sharding_constraint(divide(x), on(mesh, None, "data", None))
        return lax.scan(lambda total, b: (total + (b @ w).sum(axis=0), None), jnp.zeros(64), batches)[0]

    return jax.jit(f, out_shardings=on(mesh)), (array(mesh, (128, 64)), array(mesh, (2048, 128), "data", None))


@case("TF234")
def microbatches_cut_across_devices() -> Compiled:
    return _microbatches(lambda x: x.reshape(4, -1, 128))


@case()
def microbatches_cut_on_each_device() -> Compiled:
    return _microbatches(lambda x: x.reshape(-1, 4, 128).swapaxes(0, 1))


@case()
def arrays_joined_along_a_split_dimension() -> Compiled:
    mesh = grid(8, names=("data",))
    x = array(mesh, (512, 128), "data", None)
    return jax.jit(lambda a, b: jnp.concatenate([a, b]), out_shardings=x.sharding), (x, x)


@case()
def running_sum_along_a_split_dimension() -> Compiled:
    mesh = grid(8, names=("data",))
    x = array(mesh, (1024, 128), "data", None)
    return jax.jit(lambda x: jnp.cumsum(x, axis=0), out_shardings=x.sharding), (x,)


# Caches, scalars and batches


@case()
def cache_updated_at_a_place() -> Compiled:
    """The place has no sharding of its own."""
    mesh = grid(2, 4)
    cache, new = (array(mesh, (8, n, 8, 16), "data", None, "model", None) for n in (64, 1))
    f = jax.jit(lambda c, k, i: lax.dynamic_update_slice(c, k, (0, i, 0, 0)), out_shardings=cache.sharding)
    return f, (cache, new, jax.ShapeDtypeStruct((), jnp.int32))


@case("TF233", stated=intent(batch="data"))
def batch_lost_on_the_way() -> Compiled:
    mesh = grid(2, 4)

    def f(x: Any, up: Any, down: Any) -> Any:
        return lax.with_sharding_constraint(jax.nn.relu(x @ up), on(mesh, None, "model")) @ down

    up, down = array(mesh, (128, 256), None, "model"), array(mesh, (256, 128), "model", None)
    return jax.jit(f), (array(mesh, (512, 128), "data", None), up, down)


@case(stated=intent(batch="data"))
def batch_kept_under_a_mesh() -> Compiled:
    mesh = grid(2, 4)

    def f(x: Any, up: Any, down: Any) -> Any:
        h = lax.with_sharding_constraint(jax.nn.relu(x @ up), P("data", "model"))
        return lax.with_sharding_constraint(h @ down, P("data", None))

    up, down = array(mesh, (128, 256), None, "model"), array(mesh, (256, 128), "model", None)
    return _Under(mesh, f), (array(mesh, (512, 128), "data", None), up, down)


@case("TF233")
def noise_that_every_device_makes() -> Compiled:
    mesh = grid(2, 4)

    def f(w: Any) -> Any:
        return (jax.random.normal(jax.random.key(0), (1024, 256)) @ w).sum()

    return jax.jit(f, out_shardings=on(mesh)), (array(mesh, (256, 128)),)
