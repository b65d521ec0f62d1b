"""What several processes compute for a test: each function runs in all of them, and returns numpy arrays."""

from __future__ import annotations

from typing import Any, NamedTuple

from numpy.typing import NDArray

from traceflow.collectors.workloads import fsdp_tp_torch, moe_torch, ring_matmul_torch
from traceflow.collectors.workloads.moe_torch_layers import Grid, Layout, Routing, Size, join


class Case(NamedTuple):
    """One batch for the mixture of experts."""

    layout: Layout
    size: Size
    weights: dict[str, NDArray[Any]]
    x: NDArray[Any]
    y: NDArray[Any]
    table: NDArray[Any] | None


class Outcome(NamedTuple):
    """What one process learns from a batch."""

    predictions: NDArray[Any]
    loss: float
    gradients: dict[str, NDArray[Any]]
    routing: Routing


def learn_on(grid: Grid, case: Case) -> Outcome:
    weights = moe_torch.local_weights(grid, case.weights)
    inputs = moe_torch.local_batch(grid, case.x, case.y, case.table)
    predictions, loss, routing = moe_torch.learn(grid, case.size, weights, inputs)
    gradients = {name: weight.grad.numpy() for name, weight in weights.items()}
    return Outcome(predictions.numpy(), float(loss), gradients, moe_torch.on_host(routing))


def learn(cases: list[Case]) -> list[Outcome]:
    grids = {layout: join(layout) for layout in dict.fromkeys(case.layout for case in cases)}
    return [learn_on(grids[case.layout], case) for case in cases]


def multiply(a: NDArray[Any], w: NDArray[Any]) -> dict[str, NDArray[Any]]:
    """The product by every form, the part that this process has."""
    products: dict[str, NDArray[Any]] = {}
    for layout in ring_matmul_torch.LAYOUTS.values():
        own = [ring_matmul_torch.block(matrix, axis) for matrix, axis in zip((a, w), layout.axes[:2], strict=True)]
        products |= {form: function(*own).numpy() for form, function in layout.forms.items()}
    return products


def fail_on(rank: int) -> None:
    """Leave the others waiting for one that has failed."""
    import torch.distributed as dist

    if dist.get_rank() == rank:
        raise ZeroDivisionError("the cause")
    dist.barrier()


class Gradients(NamedTuple):
    """Of a transformer: whole, and the shapes of what this process holds."""

    loss: float
    whole: dict[str, NDArray[Any]]
    held: dict[str, tuple[int, ...]]


def split_gradients(size: fsdp_tp_torch.Size) -> Gradients:
    mesh = fsdp_tp_torch.mesh_of(2, 2)
    model = fsdp_tp_torch.split(fsdp_tp_torch.transformer(size), mesh)
    loss = fsdp_tp_torch.learn(model, *fsdp_tp_torch.local_batch(mesh, *fsdp_tp_torch.batch(size, 0)))
    named = dict(model.named_parameters())
    whole = {name: parameter.grad.full_tensor().numpy() for name, parameter in named.items()}
    return Gradients(float(loss), whole, {name: tuple(each.to_local().shape) for name, each in named.items()})


def matmul_and_transformer(
    matrices: tuple[NDArray[Any], NDArray[Any]], size: fsdp_tp_torch.Size
) -> tuple[dict[str, NDArray[Any]], Gradients]:
    return multiply(*matrices), split_gradients(size)
