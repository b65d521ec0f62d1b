"""A mixture-of-experts train step in JAX with expert parallelism, in three variants.

What a step computes is written down in `moe_reference`, and how the variants go about it in `moe_jax_layers`. Tokens
and experts are spread over the devices; stem, router and head are on all of them. Gradients of the latter are
averaged over all devices. An expert's need no sum: it has met the tokens of all devices, and their gradients came
back to it the way its results went.

Every stage is a named scope, which the compiler hands down to the instructions: `STAGES` on the way forward, and
inside `transpose(...)` backward; so is `PARAMETER_GATHER`, where experts travel; `FINAL_STAGES` come once, after both.

As a script it records all variants, on devices simulated by the host:

    python -m traceflow.collectors.workloads.moe_jax --output DIR
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from traceflow.collectors.workloads import moe_reference, script
from traceflow.collectors.workloads.checks import check_loss, recorded_since
from traceflow.collectors.workloads.line_mesh import line_mesh
from traceflow.collectors.workloads.moe_jax_layers import (
    AXIS,
    DISPATCHER_OF,
    MIX_STAGES,
    VARIANTS,
    Route,
    Size,
    Weights,
    executed_rows,
)
from traceflow.routed import moe

if TYPE_CHECKING:
    import jax
    from jax.sharding import Mesh, PartitionSpec

Float32: TypeAlias = NDArray[np.float32]
HostWeights: TypeAlias = moe_reference.Weights[Float32]
Evaluation: TypeAlias = "tuple[jax.Array, jax.Array, Weights, Routing]"

STAGES = ("stem", "router", *MIX_STAGES, "head", "loss")
FINAL_STAGES = ("gradient_reduction", "update")
WARMUP = 2  # the first run compiles, the second still warms caches and thread pools
RATE = 0.1  # of plain gradient descent
TOLERANCE = 1e-3  # of a loss: single precision against double, and a token or two that choose otherwise
ROUTING = "routing.npz"


class Routing(NamedTuple):
    """Assignments of tokens to experts, counted by the device whose tokens they are. Both [N, E]."""

    assigned: jax.Array  # as the router chose, the dropped ones included
    dropped: jax.Array


def train_step(variant: str, mesh: Mesh, size: Size) -> Callable[..., tuple[Weights, jax.Array, Routing]]:
    """One step of training, compiled: `(weights, x, y) -> (weights, loss, routing)`.

    The weights that are given are donated: their memory becomes that of the new ones. The routing was counted on
    the way, and stays on the devices.

    Args:
        variant: One of `VARIANTS`.
        mesh: A line of devices whose axis is `AXIS`.
        size: Shapes.
    """
    import jax
    from jax.sharding import PartitionSpec

    def train(weights: Weights, x: jax.Array, y: jax.Array) -> tuple[Weights, jax.Array, Routing]:
        _, loss, gradients, routing = _evaluate(variant, size, mesh.size, weights, x, y)
        with jax.named_scope("update"):
            weights = jax.tree.map(lambda weight, slope: weight - RATE * slope, weights, gradients)
        return weights, loss, routing

    outputs = (_layout(), PartitionSpec(), PartitionSpec(AXIS))
    return jax.jit(_on_each_device(mesh, train, outputs), donate_argnums=0)


def evaluate(variant: str, mesh: Mesh, size: Size) -> Callable[..., Evaluation]:
    """What the step learns from a batch, compiled: `(weights, x, y) -> (predictions, loss, gradients, routing)`.

    Predictions are [S, D]. The arguments are those of `train_step`.
    """
    import jax
    from jax.sharding import PartitionSpec

    split = PartitionSpec(AXIS)
    outputs = (split, PartitionSpec(), _layout(), split)
    return jax.jit(_on_each_device(mesh, partial(_evaluate, variant, size, mesh.size), outputs))


def _on_each_device(mesh: Mesh, program: Callable[..., Any], outputs: Any) -> Callable[..., Any]:
    """`program` on each device, with its part of the weights, of x and of y."""
    import jax
    from jax.sharding import PartitionSpec

    inputs = (_layout(), PartitionSpec(AXIS), PartitionSpec(AXIS))
    return jax.shard_map(program, mesh=mesh, in_specs=inputs, out_specs=outputs)


def _layout() -> moe_reference.Weights[PartitionSpec]:
    from jax.sharding import PartitionSpec

    everywhere, split = PartitionSpec(), PartitionSpec(AXIS)
    return moe_reference.Weights(everywhere, everywhere, split, split, split, everywhere)


def _evaluate(variant: str, size: Size, devices: int, weights: Weights, x: jax.Array, y: jax.Array) -> Evaluation:
    import jax

    def objective(weights: Weights) -> tuple[jax.Array, tuple[jax.Array, Routing]]:
        predictions, routing = _predict(variant, size, devices, weights, x)
        with jax.named_scope("loss"):
            return jax.numpy.mean(jax.numpy.square(predictions - y)), (predictions, routing)

    # Of what is on every device each takes a copy of its own: its gradient is then that of its own tokens.
    own = partial(jax.lax.pcast, axis_name=AXIS, to="varying")
    weights = weights._replace(stem=own(weights.stem), router=own(weights.router), head=own(weights.head))
    (loss, (predictions, routing)), gradients = jax.value_and_grad(objective, has_aux=True)(weights)
    return predictions, *_mean(devices, loss, gradients), routing


def _mean(devices: int, loss: jax.Array, gradients: Weights) -> tuple[jax.Array, Weights]:
    """The mean over devices; of an expert's gradient, which holds their sum, by division."""
    import jax

    with jax.named_scope("gradient_reduction"):
        dense = loss, gradients.stem, gradients.router, gradients.head
        loss, stem, router, head = jax.lax.pmean(dense, AXIS)
        gate, up, down = (slope / devices for slope in (gradients.gate, gradients.up, gradients.down))
        return loss, moe_reference.Weights(stem, router, gate, up, down, head)


def _predict(variant: str, size: Size, devices: int, weights: Weights, x: jax.Array) -> tuple[jax.Array, Routing]:
    import jax

    with jax.named_scope("stem"):
        hidden = x @ weights.stem
    room = size.capacity(devices) if variant == "capacity" else None
    route, routing = _choose(size, weights.router, hidden, room)
    mixed = VARIANTS[variant](size, devices, weights, hidden, route)
    with jax.named_scope("head"):
        return (hidden + mixed) @ weights.head, routing


def _choose(size: Size, router: jax.Array, hidden: jax.Array, room: int | None) -> tuple[Route, Routing]:
    import jax
    from jax import numpy as jnp

    with jax.named_scope("router"):
        logits, experts = jax.lax.top_k(hidden @ router, size.choices)
        assigned = jnp.bincount(experts.ravel(), length=size.experts)[None]
        dropped = jnp.zeros_like(assigned) if room is None else jnp.maximum(assigned - room, 0)
        return Route(jax.nn.softmax(logits), experts), Routing(assigned, dropped)


def initial_weights(size: Size) -> HostWeights:
    """Random weights, the same each time."""
    draw = np.random.default_rng(0)
    square, inner = (size.model, size.model), (size.experts, size.model, size.hidden)
    outer = (size.experts, size.hidden, size.model)
    shapes = (square, (size.model, size.experts), inner, inner, outer, square)
    return moe_reference.Weights(*(_float32(draw.normal(0, shape[-2] ** -0.5, shape)) for shape in shapes))


def batch(size: Size, number: int) -> tuple[Float32, Float32]:
    """Random tokens x and targets y, both [S, D]; the same each time for one number.

    Tokens do not average to zero, so that some experts are liked better than others.
    """
    x = np.random.default_rng((1, number)).normal(0.25, 1, (size.tokens, size.model))
    mixer = np.random.default_rng(2).normal(0, size.model**-0.5, (size.model, size.model))
    return _float32(x), _float32(np.tanh(x @ mixer))


def _float32(numbers: NDArray[np.float64]) -> Float32:
    return numbers.astype(np.float32)


def place_weights(mesh: Mesh, weights: HostWeights) -> Weights:
    """The weights on the mesh: each device has its experts, and all the rest."""
    import jax
    from jax.sharding import NamedSharding

    placed: Weights = jax.device_put(weights, jax.tree.map(partial(NamedSharding, mesh), _layout()))
    return placed


def place_rows(mesh: Mesh, *whole: Float32) -> list[jax.Array]:
    """Arrays on the mesh, each split by rows."""
    import jax
    from jax.sharding import NamedSharding, PartitionSpec

    return [jax.device_put(array, NamedSharding(mesh, PartitionSpec(AXIS))) for array in whole]


def record_moe(
    path: str | os.PathLike[str],
    *,
    variants: Sequence[str] = tuple(VARIANTS),
    devices: int = 8,
    steps: int = 5,
    size: Size | None = None,
    platform: str = "cpu",
    force: bool = False,
) -> tuple[Path, ...]:
    """Record training in several variants: of all, the captures `path/capacity`, `path/ragged` and `path/masked`.

    Every step takes another batch and fetches its loss, which must be the reference's within `TOLERANCE`; the losses
    are laid into the capture as `outputs.npz`. How the
    tokens were routed stays on the devices until the recording is over, and is then laid into the capture as
    `routing.npz`. Its arrays, with T steps (those of the warm-up included), N devices and E experts:

    - `step` [T]: number of the step, as in the manifest.
    - `assigned`, `dropped` [T, N, E]: assignments of the tokens of each device, as in `Routing`.
    - `rows` [T, N]: rows that the experts of each device multiplied, as `executed_rows` counts them.
    - `capacity`: rows reserved per device and expert; absent where a variant reserves none.
    - `tokens`, `model`, `hidden`, `experts`, `choices`, `capacity_factor`: the fields of `size`.

    Args:
        path: Folder of the captures.
        variants: Which of `VARIANTS`.
        devices: How many devices to use.
        steps: Recorded steps of each variant, after the warm-up.
        size: Shapes; None for those of `Size()`.
        platform: Whose devices; those of "cpu" are simulated.
        force: Replace the captures that are there.

    Returns:
        The captures, in the order of `variants`.

    Raises:
        TraceflowError: TF110 when a capture exists; TF115 when a loss is wrong or JAX has too few devices.
    """
    mesh = line_mesh(devices, AXIS, platform=platform)
    for variant in variants:
        _record(Path(path) / variant, variant, mesh, size or Size(), steps=WARMUP + steps, force=force)
    return tuple(Path(path) / variant for variant in variants)


def _record(path: Path, variant: str, mesh: Mesh, size: Size, *, steps: int, force: bool) -> None:
    from jax.experimental.multihost_utils import process_allgather

    from traceflow.recording import record

    train = train_step(variant, mesh, size)
    weights, routings, fetched = place_weights(mesh, initial_weights(size)), [], []
    batches = [place_rows(mesh, *batch(size, number)) for number in range(steps)]
    (every,) = place_rows(mesh, np.full((mesh.size, size.experts), size.tokens // mesh.size, np.float32))
    losses = _reference_losses(size, mesh.size, steps, drop=variant == "capacity")
    started_ns = time.time_ns()
    with record(path, force=force, warmup=WARMUP) as recorder:
        for inputs, expected in zip(batches, losses, strict=True):
            with recorder.step() as step:
                weights, loss, routing = train(weights, *inputs)
                found = float(step.fetch(loss))
            _tell(variant, size, mesh.size, routing, every)
            routings.append(routing)
            check_loss(path, found, expected, tolerance=TOLERANCE)
            fetched.append(found)
        recorder.attach("outputs.npz", {"loss": np.array(fetched)})
    if recorded_since(path, started_ns):
        _save(path / ROUTING, variant, size, process_allgather(routings, tiled=True))


def _tell(variant: str, size: Size, devices: int, routing: Routing, every: jax.Array) -> None:
    """Let the recording know what the routers of all devices chose; where experts travel, all multiply every row."""
    moe(
        layer=0,
        tokens_per_expert=routing.assigned,
        topk=size.choices,
        expert_rows=every if variant == "masked" else None,
        capacity=size.capacity(devices) if variant == "capacity" else None,
        hidden=size.model,
        itemsize=4,
        ffn_hidden=size.hidden,
        weighted=False,
        dispatcher=DISPATCHER_OF[variant],
    )


@cache  # the variants that drop nothing have the same
def _reference_losses(size: Size, devices: int, steps: int, *, drop: bool) -> list[float]:
    weights, losses = moe_reference.Weights(*(array.astype(np.float64) for array in initial_weights(size))), []
    for number in range(steps):
        x, y = (rows.astype(np.float64) for rows in batch(size, number))
        experts, _ = moe_reference.choose(x @ weights.stem @ weights.router, size.choices)
        room = moe_reference.kept(experts, devices, size.capacity(devices)) if drop else None
        result = moe_reference.evaluate(weights, x, y, size.choices, room)
        losses.append(result.loss)
        pairs = zip(weights, result.gradients, strict=True)
        weights = moe_reference.Weights(*(weight - RATE * slope for weight, slope in pairs))
    return losses


def _save(file: Path, variant: str, size: Size, routings: list[Routing]) -> None:
    assigned, dropped = (np.stack(counts) for counts in zip(*routings, strict=True))
    arrays: dict[str, Any] = {"step": np.arange(len(assigned)), "assigned": assigned, "dropped": dropped}
    arrays["rows"] = executed_rows(variant, size, assigned)
    if variant == "capacity":
        arrays["capacity"] = size.capacity(assigned.shape[1])
    draft = file.with_name(f".{os.getpid()}-{file.name}")  # several processes may save the same
    np.savez(draft, **arrays, **asdict(size))
    draft.replace(file)


def main(arguments: Sequence[str] | None = None) -> None:
    """Record variants and print the path of each capture."""
    what = "Record a mixture-of-experts train step in several variants."
    parser = script.parser(what, output="the captures", steps=5, platforms=script.JAX_PLATFORMS)
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=tuple(VARIANTS))
    parser.add_argument("--devices", type=int, default=8)
    script.add_shape(parser, Size)
    given = vars(parser.parse_args(arguments))
    size = script.take_shape(given, Size)
    if given["platform"] == "cpu":
        os.environ.setdefault("JAX_PLATFORMS", "cpu")  # leave an accelerator alone
    captures = record_moe(given.pop("output"), size=size, **given)
    sys.stdout.writelines(f"{capture}\n" for capture in captures)


if __name__ == "__main__":
    main()
