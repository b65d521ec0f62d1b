"""Three ways for tokens and experts to meet, when both are spread over the devices.

Each of N devices holds S / N tokens and E / N experts:

- `capacity`: an all-to-all takes each token to its experts, another brings the results back. A device reserves
  c = ceil(factor * S/N * k / E) rows for each expert; it fills them in order of its tokens, drops what exceeds
  them, and sends the empty ones along.
- `ragged`: nothing is dropped and no expert is padded. An all-gather takes all tokens to all devices, each sorts
  those of its own experts to the front and multiplies groups of unequal length (`jax.lax.ragged_dot`), and a
  reduce-scatter adds up the results of all devices. An exchange of unequal length would move less, but not every
  backend has one: XLA on CPU has not. There, `ragged_dot` also multiplies all rows with every expert.
- `masked`: how not to do it. An all-gather takes all experts to all devices, each computes them all for all of its
  tokens, and multiplies what was not chosen by zero.

All apply the gates when they combine the results, not inside an expert. Each of the functions that mix is what one
device does, inside `jax.shard_map`; its stages are named scopes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from traceflow.collectors.workloads import moe_reference
from traceflow.intent.routing import Dispatcher

if TYPE_CHECKING:
    import jax

Weights: TypeAlias = "moe_reference.Weights[jax.Array]"
Mix: TypeAlias = "Callable[[Size, int, Weights, jax.Array, Route], jax.Array]"

AXIS = "expert"
MIX_STAGES = ("dispatch", "experts", "combine")
PARAMETER_GATHER = "parameter_gather"  # where experts travel, not tokens


@dataclass(frozen=True, slots=True)
class Size:
    """How large the layer is; `tokens` and `experts` are multiples of the number of devices."""

    tokens: int = 1024  # S, on all devices together
    model: int = 64  # D, width of a token
    hidden: int = 128  # F, width inside an expert
    experts: int = 16  # E
    choices: int = 2  # k, experts per token
    capacity_factor: float = 1.25

    def capacity(self, devices: int) -> int:
        """Rows that each device reserves for each expert in the variant `capacity`."""
        return moe_reference.capacity(self.tokens // devices, self.choices, self.experts, self.capacity_factor)


class Route(NamedTuple):
    """Where the tokens of one device go."""

    gates: jax.Array  # [S/N, k]
    experts: jax.Array  # [S/N, k]


def capacity_mix(size: Size, devices: int, weights: Weights, x: jax.Array, route: Route) -> jax.Array:
    """Tokens travel, in as many rows as are reserved."""
    import jax
    from jax import numpy as jnp

    room = size.capacity(devices)
    with jax.named_scope("dispatch"):
        slot = slots(route.experts.ravel(), size.experts, room)
        rows = jnp.repeat(x, size.choices, axis=0)
        sent = jnp.zeros((size.experts * room, size.model)).at[slot].set(rows, mode="drop")
        grouped = jax.lax.all_to_all(sent.reshape(size.experts, room, -1), AXIS, 0, 1, tiled=True)
    with jax.named_scope("experts"):
        inner = jax.nn.silu(jnp.einsum("erd,edf->erf", grouped, weights.gate))
        inner *= jnp.einsum("erd,edf->erf", grouped, weights.up)
        results = jnp.einsum("erf,efd->erd", inner, weights.down)
    with jax.named_scope("combine"):
        returned = jax.lax.all_to_all(results, AXIS, 1, 0, tiled=True).reshape(sent.shape)
        rows = returned.at[slot].get(mode="fill", fill_value=0).reshape(*route.gates.shape, -1)
        return jnp.einsum("tkd,tk->td", rows, route.gates)


def ragged_mix(size: Size, devices: int, weights: Weights, x: jax.Array, route: Route) -> jax.Array:
    """Tokens travel, all of them to every device, which takes those of its own experts."""
    import jax
    from jax import numpy as jnp

    here = size.experts // devices
    with jax.named_scope("dispatch"):
        x, gates, experts = jax.lax.all_gather((x, *route), AXIS, tiled=True)
        local = experts.ravel() - jax.lax.axis_index(AXIS) * here
        local = jnp.where((local >= 0) & (local < here), local, here)
        order, sizes = grouped(local, here + 1)
        token = jnp.repeat(jnp.arange(len(x)), size.choices)[order]
        mine, groups = (local[order] < here)[:, None], sizes[:here]
        rows = jnp.where(mine, x[token], 0)  # what comes back for rows outside all groups is not defined
    with jax.named_scope("experts"):
        inner = jax.nn.silu(jax.lax.ragged_dot(rows, weights.gate, groups))
        inner *= jax.lax.ragged_dot(rows, weights.up, groups)
        results = jnp.where(mine, jax.lax.ragged_dot(inner, weights.down, groups), 0)
    with jax.named_scope("combine"):
        mixed = jnp.zeros_like(x).at[token].add(gates.ravel()[order, None] * results)
        reduced: jax.Array = jax.lax.psum_scatter(mixed, AXIS, tiled=True)
        return reduced


def masked_mix(size: Size, _: int, weights: Weights, x: jax.Array, route: Route) -> jax.Array:
    """Experts travel, all of them to every device."""
    import jax
    from jax import numpy as jnp

    with jax.named_scope("dispatch"):
        token = jnp.arange(len(x))[:, None]
        mask = jnp.zeros((len(x), size.experts)).at[token, route.experts].set(route.gates)
    with jax.named_scope(PARAMETER_GATHER):
        gate, up, down = jax.lax.all_gather((weights.gate, weights.up, weights.down), AXIS, tiled=True)
    with jax.named_scope("experts"):
        inner = jax.nn.silu(jnp.einsum("td,edf->etf", x, gate)) * jnp.einsum("td,edf->etf", x, up)
        results = jnp.einsum("etf,efd->etd", inner, down)
    with jax.named_scope("combine"):
        return jnp.sum(results * mask.T[..., None], axis=0)


VARIANTS: dict[str, Mix] = {"capacity": capacity_mix, "ragged": ragged_mix, "masked": masked_mix}
DISPATCHER_OF: dict[str, Dispatcher] = {"capacity": "all-to-all", "ragged": "all-gather", "masked": "none"}


def grouped(experts: jax.Array, count: int) -> tuple[jax.Array, jax.Array]:
    """Assignments in order of their experts, and how many each has.

    Args:
        experts: The expert of each assignment, [n].
        count: How many experts there are.

    Returns:
        Which assignment comes when, [n], those of one expert in their former order; sizes of the groups, [count].
    """
    from jax import numpy as jnp

    return jnp.argsort(experts, stable=True), jnp.bincount(experts, length=count)


def slots(experts: jax.Array, count: int, room: int) -> jax.Array:
    """The row of each assignment among `count * room`: the next free one of its expert.

    Args:
        experts: The expert of each assignment, [n].
        count: How many experts there are.
        room: Rows of each.

    Returns:
        Rows, [n]; `count * room`, which is past the end, where no row was free.
    """
    from jax import numpy as jnp

    order, sizes = grouped(experts, count)
    starts = jnp.cumsum(sizes) - sizes
    place = jnp.zeros_like(experts).at[order].set(jnp.arange(experts.size) - starts[experts[order]])
    return jnp.where(place < room, experts * room + place, count * room)


def executed_rows(variant: str, size: Size, assigned: NDArray[np.integer]) -> NDArray[np.int64]:
    """Rows that the experts of each device multiply, those that are empty or masked included.

    Args:
        variant: One of `VARIANTS`.
        size: Shapes.
        assigned: Assignments of the tokens of each device to each expert, [..., N, E].

    Returns:
        Rows, [..., N].
    """
    devices, experts = assigned.shape[-2:]
    if variant == "ragged":
        received = assigned.sum(axis=-2, dtype=np.int64)
        rows: NDArray[np.int64] = received.reshape(*received.shape[:-1], devices, experts // devices).sum(axis=-1)
        return rows
    each = size.tokens // devices if variant == "masked" else size.capacity(devices)
    return np.full(assigned.shape[:-1], experts * each, np.int64)
