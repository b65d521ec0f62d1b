"""Programs with experts, right and wrong: which mask chooses among results that were all computed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from sharding_programs import Compiled, array, case, grid, on


def _experts(mix: Callable[..., Any]) -> Compiled:
    """`mix(x, scores, up, down)` of tokens that are divided, with all experts on each device."""
    mesh = grid(8, names=("data",))

    def f(x: Any, router: Any, up: Any, down: Any) -> Any:
        return mix(x, x @ router, up, down)

    weights = (array(mesh, (32, 8)), array(mesh, (8, 32, 64)), array(mesh, (8, 64, 32)))
    return jax.jit(f, out_shardings=on(mesh, "data", None)), (array(mesh, (256, 32), "data", None), *weights)


def _all(x: Any, up: Any, down: Any) -> Any:
    return jax.vmap(lambda u, d: jax.nn.relu(x @ u) @ d)(up, down)


# All are computed, and most results are thrown away


@case("TF244")
def experts_mapped_and_selected() -> Compiled:
    def mix(x: Any, scores: Any, up: Any, down: Any) -> Any:
        mine = jnp.argmax(scores, axis=-1)[None] == jnp.arange(8)[:, None]
        return jnp.where(mine[..., None], _all(x, up, down), 0).sum(axis=0)

    return _experts(mix)


@case("TF244")
def experts_mapped_and_picked() -> Compiled:
    def mix(x: Any, scores: Any, up: Any, down: Any) -> Any:
        chosen = jnp.argmax(scores, axis=-1)[:, None, None]
        return jnp.take_along_axis(_all(x, up, down).swapaxes(0, 1), chosen, axis=1)[:, 0]

    return _experts(mix)


@case("TF244")
def experts_one_after_another() -> Compiled:
    def mix(x: Any, scores: Any, up: Any, down: Any) -> Any:
        chosen = jnp.argmax(scores, axis=-1)
        parts = (jnp.where((chosen == k)[:, None], jax.nn.relu(x @ up[k]) @ down[k], 0) for k in range(8))
        return sum(parts, start=jnp.zeros_like(x))

    return _experts(mix)


@case("TF244")
def experts_in_a_loop() -> Compiled:
    def mix(x: Any, scores: Any, up: Any, down: Any) -> Any:
        values, chosen = lax.top_k(jax.nn.softmax(scores), 2)
        gates = (jax.nn.one_hot(chosen, 8) * values[..., None]).sum(axis=1)

        def add(total: Any, expert: Any) -> Any:
            gate, u, d = expert
            return total + gate[:, None] * (jax.nn.relu(x @ u) @ d), None

        return lax.scan(add, jnp.zeros_like(x), (gates.T, up, down))[0]

    return _experts(mix)


@case("TF244")
def experts_whose_inputs_are_masked() -> Compiled:
    def mix(x: Any, scores: Any, up: Any, down: Any) -> Any:
        masked = jnp.einsum("td,te->etd", x, jax.nn.one_hot(jnp.argmax(scores, axis=-1), 8))
        return jnp.einsum("etf,efd->td", jax.nn.relu(jnp.einsum("etd,edf->etf", masked, up)), down)

    return _experts(mix)


# Each computes what chose it, or all are meant


@case()
def experts_with_a_capacity() -> Compiled:
    def mix(x: Any, scores: Any, up: Any, down: Any) -> Any:
        mine = jax.nn.one_hot(jnp.argmax(scores, axis=-1), 8)
        place = jax.nn.one_hot((jnp.cumsum(mine, axis=0) * mine).sum(axis=-1).astype(int) - 1, 64)
        sent = mine[:, :, None] * place[:, None, :]
        rows = jnp.einsum("tec,td->ecd", sent, x)
        made = jnp.einsum("ecf,efd->ecd", jax.nn.relu(jnp.einsum("ecd,edf->ecf", rows, up)), down)
        return jnp.einsum("tec,ecd->td", sent, made)

    return _experts(mix)


@case()
def experts_that_choose_tokens() -> Compiled:
    def mix(x: Any, scores: Any, up: Any, down: Any) -> Any:
        gates, chosen = lax.top_k(jax.nn.softmax(scores).T, 32)
        made = jnp.einsum("ecd,edf->ecf", x[chosen], up)
        made = jnp.einsum("ecf,efd->ecd", jax.nn.relu(made), down) * gates[..., None]
        return jnp.zeros_like(x).at[chosen].add(made)

    return _experts(mix)


@case()
def experts_mixed_softly_for_some_tokens() -> Compiled:
    """A mask that leaves padding out chooses no expert."""

    def mix(x: Any, scores: Any, up: Any, down: Any) -> Any:
        gates = jnp.where((jnp.arange(256) < 200)[:, None], jax.nn.softmax(scores), 0)
        return jnp.einsum("etd,te->td", _all(x, up, down), gates)

    return _experts(mix)


@case()
def experts_mixed_by_a_router_with_a_kink() -> Compiled:
    return _experts(lambda x, scores, up, down: jnp.einsum("etd,te->td", _all(x, up, down), jax.nn.leaky_relu(scores)))


@case()
def heads_as_many_as_positions() -> Compiled:
    """The mask of attention has the size of the heads, and sums run over both."""
    mesh = grid(8, names=("data",))

    def f(x: Any, wq: Any, wk: Any, wv: Any) -> Any:
        q, k, v = (jnp.einsum("btd,hdk->bhtk", x, w) for w in (wq, wk, wv))
        scores = jnp.einsum("bhtk,bhsk->bhts", q, k)
        scores = jnp.where(jnp.tril(jnp.ones((8, 8), bool)), scores, -1e9)
        largest = lax.top_k(scores, 4)[0][..., -1:]
        return jnp.einsum("bhts,bhsk->btk", jax.nn.softmax(jnp.where(scores >= largest, scores, -1e9)), v)

    weights = [array(mesh, (8, 32, 16))] * 3
    return jax.jit(f, out_shardings=on(mesh, "data", None, None)), (
        array(mesh, (32, 8, 32), "data", None, None),
        *weights,
    )


@case()
def layers_that_skip_tokens() -> Compiled:
    """Tokens below a threshold pass by a layer; no result is added to those of other layers."""
    mesh = grid(8, names=("data",))

    def f(x: Any, layers: Any, router: Any) -> Any:
        def layer(h: Any, w: Any) -> Any:
            score = (h @ router)[:, 0]
            return jnp.where((score > jnp.sort(score)[128])[:, None], h + jnp.tanh(h @ w), h), None

        return lax.scan(layer, x, layers)[0]

    return jax.jit(f), (array(mesh, (256, 32), "data", None), array(mesh, (4, 32, 32)), array(mesh, (32, 1)))
