"""A mixture-of-experts train step in PyTorch with expert parallelism, on several processes.

What a step computes is written down in `moe_torch_reference`, and how tokens and experts meet in `moe_torch_layers`.
Each process has S / N tokens and a part of the experts; stem, router, shared expert and head are on all of them.

Gradients are means over all N processes, those of experts too. An expert has met the tokens of its whole exchange
group, whose slopes came back to it; what remains is to add up the copies along EDP and to divide by N, once. Nothing
is divided by EDP.

Every stage has a name in the trace: `STAGES`, and with ETP `ETP_STAGES` too, on the way forward, and as
`torch_stages.backward(stage)` on the way back; `FORWARD_STAGES` and `FINAL_STAGES` come once. The loads of the experts
are summed up over all processes, for a router to be balanced by; they are told, and are no part of the loss.

As a script it starts its processes itself, and records:

    python -m traceflow.collectors.workloads.moe_torch --output DIR --layout ep4
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from traceflow.collectors.workloads import script, torch_processes
from traceflow.collectors.workloads.checks import check_loss, recorded_since
from traceflow.collectors.workloads.moe_torch_layers import (
    EDP,
    LAYOUTS,
    MIX_STAGES,
    Grid,
    Layout,
    Routing,
    Size,
    choose,
    join,
    mix,
    swiglu,
)
from traceflow.collectors.workloads.moe_torch_reference import Rule, evaluate
from traceflow.collectors.workloads.torch_stages import scope, stage

if TYPE_CHECKING:
    import torch

Float32: TypeAlias = NDArray[np.float32]
HostWeights: TypeAlias = Mapping[str, Float32]
Batch: TypeAlias = "tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]"

STAGES = ("stem", "router", "shared_expert", *MIX_STAGES, "head", "loss")
FINAL_STAGES = ("gradient_reduction", "update")
OPTIMISERS = ("sgd", "adamw")
ROUTINGS = ("top_k", "hash")
EXPERT_WEIGHTS = ("gate", "up", "down")
WARMUP = 2
TOLERANCE = 1e-3  # of a loss: single precision against double, and a token or two that choose otherwise
ROUTING = "routing.npz"
DEVICE_COUNTS = ("assigned", "dropped", "load", "probability")


def optimiser_for(name: str, parameters: Sequence[torch.Tensor]) -> torch.optim.Optimizer:
    """Plain gradient descent ("sgd"), or "adamw"."""
    import torch

    if name == "sgd":
        return torch.optim.SGD(parameters, lr=0.1)
    return torch.optim.AdamW(parameters, lr=1e-3)


def predict(
    grid: Grid, size: Size, weights: Mapping[str, torch.Tensor], x: torch.Tensor, table: torch.Tensor | None
) -> tuple[torch.Tensor, Routing]:
    """Predictions for the tokens of this process, and how these went.

    Args:
        grid: Where this process is.
        size: Shapes.
        weights: What `local_weights` gives.
        x: Tokens, [n, D].
        table: The experts of each token, [n, k]; None takes the highest logits.
    """
    import torch

    hidden = stage("stem", torch.matmul, x, weights["stem"])
    route = stage("router", partial(choose, choices=size.choices, table=table), hidden, weights["router"])
    shared = (weights[f"shared_{name}"] for name in EXPERT_WEIGHTS)
    added = stage("shared_expert", lambda h, gate, up, down: swiglu(h, gate, up) @ down, hidden, *shared)
    mixed, routing = mix(grid, size, weights, hidden, route)
    predictions = stage("head", lambda *parts: sum(parts[:3]) @ parts[3], hidden, mixed, added, weights["head"])
    return predictions, routing


def learn(
    grid: Grid, size: Size, weights: Mapping[str, torch.Tensor], batch: Batch
) -> tuple[torch.Tensor, torch.Tensor, Routing]:
    """Put the gradients into the weights: predictions, loss of all processes, and routing.

    Args:
        grid: Where this process is.
        size: Shapes.
        weights: What `local_weights` gives, with gradients that are None.
        batch: What `local_batch` gives.
    """
    x, y, table = batch
    predictions, routing = predict(grid, size, weights, x, table)
    loss = stage("loss", lambda p: (p - y).square().mean(), predictions)
    loss.backward()
    loss = loss.detach()
    with scope("gradient_reduction"):
        with scope("dense_gradients"):
            dense = [weight.grad for name, weight in weights.items() if name not in EXPERT_WEIGHTS]
            _mean([*dense, loss], grid.layout.processes, reduce=grid.layout.processes > 1)
        with scope("expert_gradients"):
            experts = [weights[name].grad for name in EXPERT_WEIGHTS]
            _mean(experts, grid.layout.processes, group=grid.groups[EDP], reduce=grid.layout.edp > 1)
    return predictions.detach(), loss, routing


def _mean(slopes: Sequence[Any], divisor: int, *, reduce: bool, group: Any = None) -> None:
    """Add up over the group, in one collective, and divide."""
    import torch
    import torch.distributed as dist

    bucket = torch.cat([slope.flatten() for slope in slopes])
    if reduce:
        dist.all_reduce(bucket, group=group)
    bucket /= divisor
    for slope, part in zip(slopes, bucket.split([slope.numel() for slope in slopes]), strict=True):
        slope.copy_(part.view_as(slope))


def train_step(
    grid: Grid, size: Size, weights: Mapping[str, torch.Tensor], optimiser: torch.optim.Optimizer
) -> Callable[[Batch], tuple[torch.Tensor, Routing]]:
    """One step of training: `batch -> (loss, routing)`; both stay on the device."""

    def train(batch: Batch) -> tuple[torch.Tensor, Routing]:
        optimiser.zero_grad()
        _, loss, routing = learn(grid, size, weights, batch)
        with scope("update"):
            optimiser.step()
        return loss, routing

    return train


def initial_weights(size: Size) -> HostWeights:
    """Random weights, the same each time."""
    draw, model, hidden = np.random.default_rng(0), size.model, size.hidden
    inner, outer = (size.experts, model, hidden), (size.experts, hidden, model)
    shapes = {"stem": (model, model), "router": (model, size.experts), "gate": inner, "up": inner, "down": outer}
    shapes |= {"shared_gate": (model, hidden), "shared_up": (model, hidden), "shared_down": (hidden, model)}
    shapes["head"] = (model, model)
    return {name: draw.normal(0, shape[-2] ** -0.5, shape).astype(np.float32) for name, shape in shapes.items()}


def batch(size: Size, number: int) -> tuple[Float32, Float32, NDArray[np.int64]]:
    """Random tokens x and targets y, both [S, D], and names of the tokens, [S]; the same each time for one number.

    Tokens do not average to zero, so that some experts are liked better than others; names are as unequally frequent.
    """
    draw = np.random.default_rng((1, number))
    x = draw.normal(0.25, 1, (size.tokens, size.model))
    mixer = np.random.default_rng(2).normal(0, size.model**-0.5, (size.model, size.model))
    names = draw.zipf(1.5, size.tokens) % 50_000
    return x.astype(np.float32), np.tanh(x @ mixer).astype(np.float32), names


def hashed(names: NDArray[np.int64], choices: int, experts: int) -> NDArray[np.int64]:
    """The experts of each token by its name alone, [S, k]: one by a hash, the others follow it.

    Example:
        >>> hashed(np.array([1, 2, 1]), choices=2, experts=4).tolist()
        [[2, 3], [0, 1], [2, 3]]
    """
    first = (names * 2_654_435_761 % 2**32) * experts >> 32  # Knuth's multiplicative hash
    return (first[:, None] + np.arange(choices)) % experts


def local_weights(grid: Grid, weights: HostWeights) -> dict[str, torch.Tensor]:
    """The part of the weights that this process holds: its experts, of their inner columns its own, and all the rest."""
    import torch

    return {
        name: torch.from_numpy(shard(grid.layout, grid.rank, name, weight).copy())
        .to(torch_processes.device())
        .requires_grad_()
        for name, weight in weights.items()
    }


def shard(layout: Layout, rank: int, name: str, weight: NDArray[Any]) -> NDArray[Any]:
    """What process `rank` holds of a weight, or of its gradient."""
    if name not in EXPERT_WEIGHTS:
        return weight
    etp, ep, _ = layout.position(rank)
    experts = np.split(weight, layout.ep)[ep]
    return np.split(experts, layout.etp, axis=1 if name == "down" else 2)[etp]


def local_batch(grid: Grid, x: Float32, y: Float32, table: NDArray[np.int64] | None) -> Batch:
    """The part of a batch that this process has: an equal share of consecutive tokens."""
    import torch

    def part(rows: NDArray[Any]) -> torch.Tensor:
        own = np.split(rows, grid.layout.processes)[grid.rank]
        return torch.from_numpy(own.copy()).to(torch_processes.device())

    return part(x), part(y), None if table is None else part(table)


def record_moe(
    path: str | os.PathLike[str],
    *,
    layout: str = "ep2_edp2",
    routing: str = "top_k",
    optimiser: str = "adamw",
    steps: int = 2,
    size: Size | None = None,
    platform: str = "cpu",
    force: bool = False,
) -> Path:
    """Record training on as many processes as the layout has, which this starts, into one capture.

    Every step takes another batch and fetches its loss, which must be the reference's within `TOLERANCE`. How the
    tokens were routed stays on the devices until the recording is over, and is then laid into the capture as
    `routing.npz`. Its arrays, with T steps (those of the warm-up included), N processes and E experts:

    - `step` [T]: number of the step, as in the manifest.
    - `assigned`, `dropped` [T, N, E]: assignments of the tokens of each process, as in `Routing`.
    - `rows` [T, N]: rows that the experts of each process multiplied, the padding of a capacity included.
    - `expert_rows` [T, N, E / EP]: the same by local expert.
    - `sent`, `received` [T, N, EP]: rows to and from each process of EP, the splits of the all-to-all.
    - `load`, `probability` [T, E]: as in `Routing`.
    - `capacity`: rows reserved per process and expert; absent where none are.
    - `etp`, `ep`, `edp`: the layout.
    - `tokens`, `model`, `hidden`, `experts`, `choices`, `capacity_factor`: the fields of `size`; the last is absent
      where it is None.

    Args:
        path: Folder of the capture.
        layout: One of `LAYOUTS`.
        routing: One of `ROUTINGS`: "top_k" for the highest logits, "hash" for a table by the names of the tokens.
        optimiser: One of `OPTIMISERS`: "sgd" or "adamw".
        steps: Recorded steps, after the warm-up.
        size: Shapes; None for those of `Size()`.
        platform: "cpu", or "gpu" for one GPU per process.
        force: Replace the capture that is there.

    Returns:
        `path`.

    Raises:
        TraceflowError: TF110 when the capture exists; TF115 when a loss is wrong.
    """
    grid, size, started_ns = LAYOUTS[layout], size or Size(), time.time_ns()
    losses = _reference_losses(size, grid.processes, routing, optimiser, WARMUP + steps)
    arguments = Path(path).absolute(), grid, size, routing, optimiser, losses
    routings = torch_processes.run(partial(_record, force=force), grid.processes, *arguments, platform=platform)
    if recorded_since(Path(path), started_ns):
        _save(Path(path) / ROUTING, grid, size, routings)
    return Path(path)


def _record(
    path: Path, layout: Layout, size: Size, routing: str, optimiser: str, losses: list[float], *, force: bool
) -> list[Routing]:
    """Record in this process, one of those that form the layout."""
    import torch

    from traceflow.recording import record

    grid = join(layout)
    weights = local_weights(grid, initial_weights(size))
    train = train_step(grid, size, weights, optimiser_for(optimiser, list(weights.values())))
    batches = [local_batch(grid, *_routed_batch(size, routing, number)) for number in range(len(losses))]
    routings = []
    with record(path, framework="torch", force=force, warmup=WARMUP) as recorder:
        recorder.model(torch.nn.ParameterDict(weights))
        for inputs, expected in zip(batches, losses, strict=True):
            with recorder.step() as step:
                loss, routed = train(inputs)
                found = float(step.fetch(loss))
            routings.append(routed)
            check_loss(path, found, expected, tolerance=TOLERANCE)
    return [on_host(routed) for routed in routings]


def _routed_batch(size: Size, routing: str, number: int) -> tuple[Float32, Float32, NDArray[np.int64] | None]:
    x, y, names = batch(size, number)
    return x, y, hashed(names, size.choices, size.experts) if routing == "hash" else None


def on_host(routed: Routing) -> Routing:
    """The same with numpy arrays."""
    return routed._replace(**{name: getattr(routed, name).cpu().numpy() for name in DEVICE_COUNTS})


def _reference_losses(size: Size, processes: int, routing: str, optimiser: str, steps: int) -> list[float]:
    """The losses of a training in double precision in one process; only the optimiser is PyTorch's."""
    import torch

    weights = {name: torch.from_numpy(weight.astype(np.float64)) for name, weight in initial_weights(size).items()}
    descent, losses = optimiser_for(optimiser, list(weights.values())), []
    for number in range(steps):
        x, y, table = _routed_batch(size, routing, number)
        rule = Rule(size.choices, table, processes, size.capacity(processes))
        named = {name: weight.numpy() for name, weight in weights.items()}
        found = evaluate(named, x.astype(np.float64), y.astype(np.float64), rule)
        for name, weight in weights.items():
            weight.grad = torch.from_numpy(found.gradients[name])
        descent.step()
        losses.append(found.loss)
    return losses


def _save(file: Path, layout: Layout, size: Size, routings: list[list[Routing]]) -> None:
    """The routing of all processes, each a list by step."""
    fields_of = {
        name: np.array([[getattr(one, name) for one in mine] for mine in routings]) for name in Routing._fields
    }
    arrays = {name: np.moveaxis(counts, 0, 1) for name, counts in fields_of.items()}
    arrays |= {name: arrays[name][:, 0] for name in ("load", "probability")}  # all processes know the same
    arrays["expert_rows"] = arrays["rows"]
    arrays["rows"] = arrays["expert_rows"].sum(axis=2)
    numbers = {**asdict(layout), **asdict(size), "capacity": size.capacity(layout.processes)}
    arrays |= {name: np.array(number) for name, number in numbers.items() if number is not None}
    np.savez(file, allow_pickle=False, step=np.arange(len(arrays["rows"])), **arrays)


def main(arguments: Sequence[str] | None = None) -> None:
    """Record and print the path of the capture."""
    what = "Record a mixture-of-experts train step on several processes."
    parser = script.parser(what, output="the capture", steps=2, platforms=torch_processes.BACKENDS)
    parser.add_argument("--layout", choices=LAYOUTS, default="ep2_edp2", help="of the processes")
    parser.add_argument("--routing", choices=ROUTINGS, default="top_k", help="by the highest logits or by a table")
    parser.add_argument("--optimiser", choices=OPTIMISERS, default="adamw")
    script.add_shape(parser, Size, capacity_factor="reserve rows and drop what exceeds them")
    given = vars(parser.parse_args(arguments))
    size = script.take_shape(given, Size)
    sys.stdout.write(f"{record_moe(given.pop('output'), size=size, **given)}\n")


if __name__ == "__main__":
    main()
