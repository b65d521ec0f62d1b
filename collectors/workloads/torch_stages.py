"""Named stages of a PyTorch program, forward and backward, and collectives that have a derivative.

PyTorch names what a program does on the way forward, and nothing on the way back: that is the engine's. A stage is
one node for the engine. Its derivative is computed inside of it, under a name of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import cache, partial
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import torch

Map: TypeAlias = "Callable[[torch.Tensor], torch.Tensor]"


def scope(name: str) -> AbstractContextManager[object]:
    """Name what is done inside, in the trace."""
    from torch.profiler import record_function

    return record_function(name)


def backward(name: str) -> str:
    """What the derivative of a stage is called.

    Example:
        >>> backward("dispatch")
        'dispatch backward'
    """
    return f"{name} backward"


def stage(name: str, compute: Callable[..., Any], *inputs: torch.Tensor) -> Any:
    """`compute(*inputs)` under `name`, and its derivative under `backward(name)`.

    Args:
        name: What to call it.
        compute: Gives one tensor or several. It may use parameters that are not among `inputs`.
        inputs: Tensors. Unless one of them has a slope, the stage has no derivative.

    Returns:
        What `compute` gives: a tensor, or a tuple of them.
    """
    outputs = _stage_function().apply(name, compute, *inputs)
    return outputs[0] if len(outputs) == 1 else outputs


@cache
def _stage_function() -> Any:
    import torch

    class Stage(torch.autograd.Function):  # type: ignore[misc]  # PyTorch is not looked into
        @staticmethod
        def forward(context: Any, name: str, compute: Callable[..., Any], *inputs: Any) -> Any:
            with scope(name), torch.enable_grad():
                context.inputs = [each.detach().requires_grad_(each.requires_grad) for each in inputs]
                found = compute(*context.inputs)
            context.name, context.outputs = name, found if isinstance(found, tuple) else (found,)
            outputs = tuple(each.detach() for each in context.outputs)
            pairs = zip(outputs, context.outputs, strict=True)
            context.mark_non_differentiable(*(each for each, inner in pairs if not inner.requires_grad))
            return outputs

        @staticmethod
        def backward(context: Any, *slopes: Any) -> Any:
            pairs = zip(context.outputs, slopes, strict=True)
            outputs, slopes = zip(*(pair for pair in pairs if pair[0].requires_grad), strict=True)
            with scope(backward(context.name)):
                torch.autograd.backward(outputs, slopes)
            gradients = [each.grad for each in context.inputs]
            del context.inputs, context.outputs  # they hold what the forward pass kept
            return None, None, *gradients

    return Stage


@cache
def _collective_function() -> Any:
    import torch

    class Collective(torch.autograd.Function):  # type: ignore[misc]  # PyTorch is not looked into
        @staticmethod
        def forward(context: Any, direct: Map, transposed: Map, x: Any) -> Any:
            context.transposed = transposed
            return direct(x)

        @staticmethod
        def backward(context: Any, slope: Any) -> Any:
            return None, None, context.transposed(slope)

    return Collective


def all_to_all(x: torch.Tensor, sent: Sequence[int], received: Sequence[int], group: Any) -> torch.Tensor:
    """Rows for each process of the group, in order of their ranks; back go the slopes, with the splits exchanged.

    Args:
        x: Rows, first those for the first process.
        sent: How many of `x` go to each process.
        received: How many come from each.
        group: The processes; None where there is only this one.
    """
    there, back = partial(_exchange, sent, received, group), partial(_exchange, received, sent, group)
    exchanged: torch.Tensor = _collective_function().apply(there, back, x)
    return exchanged


def gather(x: torch.Tensor, rows: int, group: Any) -> torch.Tensor:
    """The rows of all processes of the group, each filled up with zeros to `rows`; back go sums of slopes."""
    gathered: torch.Tensor = _collective_function().apply(
        partial(_gather, rows, group), partial(_scatter, len(x), group), x
    )
    return gathered


def scatter(x: torch.Tensor, rows: int, group: Any) -> torch.Tensor:
    """The sum over the processes of the group, to each its own part, of which it keeps the first `rows`.

    This is the transpose of `gather`: the slopes are gathered on the way back.
    """
    import torch.distributed as dist

    parts = 1 if group is None else dist.get_world_size(group)
    scattered: torch.Tensor = _collective_function().apply(
        partial(_scatter, rows, group), partial(_gather, len(x) // parts, group), x
    )
    return scattered


def _exchange(sent: Sequence[int], received: Sequence[int], group: Any, x: torch.Tensor) -> torch.Tensor:
    import torch.distributed as dist

    if group is None:
        return x
    exchanged = x.new_empty(sum(received), *x.shape[1:])
    dist.all_to_all_single(exchanged, x.contiguous(), list(received), list(sent), group=group)
    return exchanged


def _gather(rows: int, group: Any, x: torch.Tensor) -> torch.Tensor:
    padded = x.new_zeros(rows, *x.shape[1:])
    padded[: len(x)] = x
    return all_gather(padded, group)


def _scatter(rows: int, group: Any, x: torch.Tensor) -> torch.Tensor:
    return reduce_scatter(x, group)[:rows]


def all_gather(x: torch.Tensor, group: Any) -> torch.Tensor:
    """The rows of all processes, without a derivative; None is a group of one."""
    import torch.distributed as dist

    if group is None:
        return x
    gathered = x.new_empty(len(x) * dist.get_world_size(group), *x.shape[1:])
    _named("all_gather_single", "all_gather_into_tensor")(gathered, x.contiguous(), group=group)
    return gathered


def reduce_scatter(x: torch.Tensor, group: Any) -> torch.Tensor:
    """The sum over processes, to each its own part, without a derivative; None is a group of one."""
    import torch.distributed as dist

    if group is None:
        return x
    own = x.new_empty(len(x) // dist.get_world_size(group), *x.shape[1:])
    _named("reduce_scatter_single", "reduce_scatter_tensor")(own, x.contiguous(), group=group)
    return own


def _named(name: str, former: str) -> Any:
    """A function by its name, or by the one that it had before PyTorch 2.13."""
    import torch.distributed as dist

    return getattr(dist, name, None) or getattr(dist, former)
