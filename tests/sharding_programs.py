"""JAX programs that are sharded wrongly, each with a twin that is right, and what is to be found in them.

A program is a function that returns what is compiled and what for. They are compiled, never run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from traceflow.intent.intent import Intent, intent

Compiled: TypeAlias = "tuple[Callable[..., Any], tuple[Any, ...]]"


@dataclass(frozen=True)
class Case:
    """One program, with what its author adds to it and the findings that it deserves."""

    name: str
    build: Callable[[], Compiled]
    codes: frozenset[str]
    stated: Intent | None


CASES: dict[str, Case] = {}


def case(*codes: str, stated: Intent | None = None) -> Callable[[Callable[[], Compiled]], Callable[[], Compiled]]:
    def register(build: Callable[[], Compiled]) -> Callable[[], Compiled]:
        name = build.__name__
        CASES[name] = Case(name, build, frozenset(codes), stated)
        return build

    return register


def grid(*sizes: int, names: tuple[str, ...] = ("data", "model"), explicit: bool = False) -> Mesh:
    kind = AxisType.Explicit if explicit else AxisType.Auto
    total = 1
    for size in sizes:
        total *= size
    return jax.make_mesh(sizes, names, axis_types=(kind,) * len(sizes), devices=jax.devices()[:total])


def array(mesh: Mesh, shape: tuple[int, ...], *axes: Any, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, P(*axes)))


def on(mesh: Mesh, *axes: Any) -> NamedSharding:
    return NamedSharding(mesh, P(*axes))


# A parameter gathered in full


@case("TF231")
def weight_gathered_over_another_axis() -> Compiled:
    mesh = grid(2, 4)
    f = jax.jit(lambda x, w: x @ w, out_shardings=on(mesh, "data", None))
    return f, (array(mesh, (4096, 1024), "data", None), array(mesh, (1024, 512), "data", None))


@case("TF231")
def weight_gathered_for_the_result() -> Compiled:
    mesh = grid(2, 4)
    f = jax.jit(lambda x, w: jnp.tanh(x @ w), out_shardings=on(mesh, "model", None))
    return f, (array(mesh, (2048, 512)), array(mesh, (512, 1024), None, "model"))


@case("TF231")
def embedding_table_rebuilt() -> Compiled:
    mesh = grid(2, 4)

    def f(table: Any, ids: Any) -> Any:
        return lax.with_sharding_constraint(jnp.take(table, ids, axis=0), on(mesh, ("data", "model"), None, None))

    table = array(mesh, (4096, 512), "model", "data")
    return jax.jit(f), (table, array(mesh, (64, 128), ("data", "model"), None, dtype=jnp.int32))


@case()
def columns_left_where_they_are() -> Compiled:
    mesh = grid(2, 4)
    f = jax.jit(lambda x, w: jnp.tanh(x @ w), out_shardings=on(mesh, None, "model"))
    return f, (array(mesh, (2048, 512)), array(mesh, (512, 1024), None, "model"))


@case()
def tensor_parallel_layers() -> Compiled:
    mesh = grid(2, 4)
    f = jax.jit(lambda x, w1, w2: jax.nn.relu(x @ w1) @ w2, out_shardings=on(mesh, "data", None))
    w1, w2 = array(mesh, (512, 2048), None, "model"), array(mesh, (2048, 512), "model", None)
    return f, (array(mesh, (1024, 512), "data", None), w1, w2)


@case()
def fully_sharded_layers() -> Compiled:
    mesh = grid(8, names=("data",))
    f = jax.jit(lambda x, up, down: jax.nn.relu(x @ up) @ down, out_shardings=on(mesh, "data", None))
    up, down = array(mesh, (256, 1024), "data", None), array(mesh, (1024, 256), "data", None)
    return f, (array(mesh, (512, 256), "data", None), up, down)


def _loss(w: Any, x: Any) -> Any:
    return jnp.mean((jax.nn.relu(x @ w["up"]) @ w["down"]) ** 2)


def _descent(w: Any, x: Any) -> Any:
    return jax.tree.map(lambda p, g: p - 0.1 * g, w, jax.grad(_loss)(w, x))


@case("TF234")
def fully_sharded_training_without_constraints() -> Compiled:
    """In the backward pass the compiler moves activations."""
    mesh = grid(8, names=("data",))
    w = {"up": array(mesh, (256, 1024), "data", None), "down": array(mesh, (1024, 256), "data", None)}
    placed = {name: p.sharding for name, p in w.items()}
    return jax.jit(_descent, out_shardings=placed), (w, array(mesh, (512, 256), "data", None))


@case()
def fully_sharded_training_by_hand() -> Compiled:
    mesh = grid(8, names=("data",))

    def loss(w: Any, x: Any) -> Any:
        whole = jax.tree.map(lambda p: lax.all_gather(p, "data", axis=0, tiled=True), w)
        return lax.pmean(_loss(whole, x), "data")

    def step(w: Any, x: Any) -> Any:
        return jax.tree.map(lambda p, g: p - 0.1 * g, w, jax.grad(loss)(w, x))

    w = {"up": array(mesh, (256, 1024), "data", None), "down": array(mesh, (1024, 256), "data", None)}
    split = {"up": P("data", None), "down": P("data", None)}
    f = jax.shard_map(step, mesh=mesh, in_specs=(split, P("data", None)), out_specs=split)
    return jax.jit(f), (w, array(mesh, (512, 256), "data", None))


@case()
def fully_sharded_by_hand() -> Compiled:
    mesh = grid(8, names=("data",))

    def body(x: Any, w: Any) -> Any:
        return x @ lax.all_gather(w, "data", axis=0, tiled=True)

    f = jax.shard_map(body, mesh=mesh, in_specs=(P("data", None), P("data", None)), out_specs=P("data", None))
    return jax.jit(f), (array(mesh, (512, 256), "data", None), array(mesh, (256, 128), "data", None))


@case()
def data_parallel_gradient() -> Compiled:
    mesh = grid(2, 4)
    f = jax.jit(jax.grad(lambda w, x: ((x @ w) ** 2).sum()), out_shardings=on(mesh))
    return f, (array(mesh, (512, 512)), array(mesh, (1024, 512), "data", None))


@case()
def input_gathered_for_its_columns() -> Compiled:
    mesh = grid(8, names=("ring",))
    f = jax.jit(lambda a, w: a @ w, out_shardings=on(mesh, None, "ring"))
    return f, (array(mesh, (256, 1024), None, "ring"), array(mesh, (1024, 512), None, "ring"))


# An all-reduce whose result is cut


@case("TF232")
def reduced_and_then_cut() -> Compiled:
    mesh = grid(2, 4)
    f = jax.jit(lambda x, w: jnp.tanh(x @ w), out_shardings=on(mesh, "model", None))
    return f, (array(mesh, (2048, 1024), None, "model"), array(mesh, (1024, 512), "model", None))


@case()
def reduced_and_scattered() -> Compiled:
    mesh = grid(2, 4)

    def body(x: Any, w: Any) -> Any:
        return jnp.tanh(lax.psum_scatter(x @ w, "model", scatter_dimension=0, tiled=True))

    specs: dict[str, Any] = {
        "in_specs": (P("data", "model"), P("model", None)),
        "out_specs": P(("data", "model"), None),
    }
    f = jax.shard_map(body, mesh=mesh, **specs)
    return jax.jit(f), (array(mesh, (2048, 1024), "data", "model"), array(mesh, (1024, 512), "model", None))


# A batch or an activation that every device holds


@case("TF233", stated=intent(batch="data"))
def batch_on_every_device() -> Compiled:
    mesh = grid(2, 4)
    return jax.jit(lambda x, w: jax.nn.relu(x @ w)), (array(mesh, (4096, 512)), array(mesh, (512, 512), None, "model"))


@case()
def batch_that_nobody_wants_divided() -> Compiled:
    """Whether an axis is meant for the batch is for the author to say; redundancy tells that it is idle."""
    mesh = grid(2, 4)
    return jax.jit(lambda x, w: jax.nn.relu(x @ w)), (array(mesh, (4096, 512)), array(mesh, (512, 512), None, "model"))


@case(stated=intent(batch="data"))
def batch_divided() -> Compiled:
    mesh = grid(2, 4)
    args = (array(mesh, (4096, 512), "data", None), array(mesh, (512, 512), None, "model"))
    return jax.jit(lambda x, w: jax.nn.relu(x @ w)), args


@case("TF233")
def activation_on_every_device() -> Compiled:
    mesh = grid(2, 4)

    def f(w: Any) -> Any:
        x = jnp.broadcast_to(jnp.arange(2048.0)[:, None], (2048, 1024))
        h = jnp.tanh(x) * w[None, :]
        return (h * h).sum()

    return jax.jit(f, out_shardings=on(mesh)), (array(mesh, (1024,)),)


@case()
def activation_divided() -> Compiled:
    mesh = grid(2, 4)

    def f(w: Any) -> Any:
        x = jnp.broadcast_to(jnp.arange(2048.0)[:, None], (2048, 1024))
        h = lax.with_sharding_constraint(jnp.tanh(x) * w[None, :], on(mesh, "data", "model"))
        return (h * h).sum()

    return jax.jit(f, out_shardings=on(mesh)), (array(mesh, (1024,)),)


@case("TF233", stated=intent(activations={"*/tanh": "P('data', 'model')"}))
def activation_not_as_stated() -> Compiled:
    mesh = grid(2, 4)
    args = (array(mesh, (4096, 512), "data", None), array(mesh, (512, 512), None, None))
    return jax.jit(lambda x, w: jnp.tanh(x @ w)), args


# Reshards


@case("TF234")
def sum_of_arrays_that_lie_differently() -> Compiled:
    mesh = grid(2, 4)
    args = (array(mesh, (1024, 1024), "data", None), array(mesh, (1024, 1024), None, "data"))
    return jax.jit(lambda a, b: jnp.sin(a) + jnp.cos(b)), args


@case()
def sum_of_arrays_that_lie_alike() -> Compiled:
    mesh = grid(2, 4)
    args = (array(mesh, (1024, 1024), "data", "model"), array(mesh, (1024, 1024), "data", "model"))
    return jax.jit(lambda a, b: jnp.sin(a) + jnp.cos(b)), args


@case("TF234")
def reshard_in_several_steps() -> Compiled:
    mesh = grid(2, 4)

    def f(x: Any) -> Any:
        y = jnp.sin(lax.with_sharding_constraint(x, on(mesh, "data", "model")))
        return lax.with_sharding_constraint(y, on(mesh, "model", "data")) * 2

    return jax.jit(f, out_shardings=on(mesh, "model", "data")), (array(mesh, (1024, 1024), "data", "model"),)


@case()
def reshard_that_was_asked_for() -> Compiled:
    mesh = grid(8, names=("data",))

    def f(x: Any) -> Any:
        return lax.with_sharding_constraint(jnp.sin(x), on(mesh, None, "data")) * 2

    return jax.jit(f, out_shardings=on(mesh, None, "data")), (array(mesh, (1024, 1024), "data", None),)


@case("TF235")
def rematerialised_in_full() -> Compiled:
    mesh = grid(2, 3)

    def f(x: Any) -> Any:
        y = lax.with_sharding_constraint(jnp.sin(x), on(mesh, "data", "model"))
        return lax.with_sharding_constraint(y * 2, on(mesh, "model", "data"))

    return jax.jit(f), (array(mesh, (24, 24), "data", "model"),)


@case()
def nothing_rematerialised() -> Compiled:
    mesh = grid(2, 3)

    def f(x: Any) -> Any:
        y = lax.with_sharding_constraint(jnp.sin(x), on(mesh, "data", "model"))
        return lax.with_sharding_constraint(y * 2, on(mesh, "data", "model"))

    return jax.jit(f), (array(mesh, (24, 24), "data", "model"),)


# Uneven shards


@case("TF236")
def columns_that_do_not_divide() -> Compiled:
    mesh = grid(2, 4)

    def f(x: Any) -> Any:
        return jnp.sin(lax.with_sharding_constraint(x * 2, on(mesh, "data", "model"))).sum()

    return jax.jit(f), (array(mesh, (512, 1003), "data", None),)


@case()
def columns_that_divide() -> Compiled:
    mesh = grid(2, 4)

    def f(x: Any) -> Any:
        return jnp.sin(lax.with_sharding_constraint(x * 2, on(mesh, "data", "model"))).sum()

    return jax.jit(f), (array(mesh, (512, 1004), "data", None),)


# A sum that only one side splits


@case("TF237")
def sum_split_on_one_side() -> Compiled:
    mesh = grid(2, 4)
    f = jax.jit(lambda x, w: x @ w, out_shardings=on(mesh, "data", None))
    return f, (array(mesh, (2048, 1024), "data", "model"), array(mesh, (1024, 512)))


@case()
def sum_split_on_both_sides() -> Compiled:
    mesh = grid(2, 4)
    f = jax.jit(lambda x, w: x @ w, out_shardings=on(mesh, "data", None))
    return f, (array(mesh, (2048, 1024), "data", "model"), array(mesh, (1024, 512), "model", None))


# What shard_map does by hand


@case("TF238")
def sum_of_copies() -> Compiled:
    mesh = grid(2, 4)

    def body(x: Any, w: Any) -> Any:
        return lax.psum(x @ w, "model")

    specs: dict[str, Any] = {"in_specs": (P("data", None), P(None, None)), "out_specs": P("data", None)}
    f = jax.shard_map(body, mesh=mesh, check_vma=False, **specs)
    return jax.jit(f), (array(mesh, (512, 256), "data", None), array(mesh, (256, 128)))


@case()
def sum_of_parts() -> Compiled:
    mesh = grid(2, 4)

    def body(x: Any, w: Any) -> Any:
        return lax.psum(x @ w, "model")

    specs: dict[str, Any] = {"in_specs": (P("data", "model"), P("model", None)), "out_specs": P("data", None)}
    f = jax.shard_map(body, mesh=mesh, check_vma=False, **specs)
    return jax.jit(f), (array(mesh, (512, 256), "data", "model"), array(mesh, (256, 128), "model", None))


@case("TF239")
def copies_claimed_that_differ() -> Compiled:
    mesh = grid(2, 4)

    def body(x: Any) -> Any:
        return x.sum(axis=0, keepdims=True)

    f = jax.shard_map(body, mesh=mesh, in_specs=P("data", None), out_specs=P(), check_vma=False)
    return jax.jit(f), (array(mesh, (512, 256), "data", None),)


@case()
def copies_that_are_made() -> Compiled:
    mesh = grid(2, 4)

    def body(x: Any) -> Any:
        return lax.psum(x.sum(axis=0, keepdims=True), "data")

    f = jax.shard_map(body, mesh=mesh, in_specs=P("data", None), out_specs=P(), check_vma=False)
    return jax.jit(f), (array(mesh, (512, 256), "data", None),)


# Explicit mode


@case()
def explicit_axes() -> Compiled:
    mesh = grid(2, 4, explicit=True)

    def f(x: Any, w: Any) -> Any:
        return jnp.tanh(jnp.einsum("ab,bc->ac", x, w, out_sharding=on(mesh, "data", None)))

    return jax.jit(f), (array(mesh, (1024, 512), "data", "model"), array(mesh, (512, 256), "model", None))


# Experts


def _experts(mask: Callable[[Any], Any]) -> Compiled:
    mesh = grid(8, names=("data",))

    def f(x: Any, router: Any, up: Any, down: Any) -> Any:
        gates = mask(jax.nn.softmax(x @ router))
        inner = jax.nn.relu(jnp.einsum("td,edf->etf", x, up))
        return jnp.einsum("etf,efd,te->td", inner, down, gates)

    weights = (array(mesh, (64, 8)), array(mesh, (8, 64, 128)), array(mesh, (8, 128, 64)))
    return jax.jit(f, out_shardings=on(mesh, "data", None)), (array(mesh, (512, 64), "data", None), *weights)


@case("TF244")
def experts_computed_and_masked() -> Compiled:
    def top(gates: Any) -> Any:
        values, chosen = lax.top_k(gates, 2)
        return (jax.nn.one_hot(chosen, 8) * values[..., None]).sum(axis=1)

    return _experts(top)


@case("TF244")
def experts_masked_by_a_threshold() -> Compiled:
    return _experts(lambda gates: jnp.where(gates >= gates.max(axis=-1, keepdims=True), gates, 0))


@case()
def experts_mixed_softly() -> Compiled:
    return _experts(lambda gates: gates)
