"""PyTorch's collectives as a dispatch mode sees them: which one, among whom, and how much each process sends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from traceflow.budgets import sent_bytes

_FUNCTIONAL = {  # what is put in comes first
    "all_gather_into_tensor": "all-gather",
    "all_gather_into_tensor_out": "all-gather",
    "all_gather_into_tensor_coalesced": "all-gather",
    "all_reduce": "all-reduce",
    "all_reduce_": "all-reduce",
    "all_reduce_coalesced": "all-reduce",
    "all_reduce_coalesced_": "all-reduce",
    "reduce_scatter_tensor": "reduce-scatter",
    "reduce_scatter_tensor_coalesced": "reduce-scatter",
    "all_to_all_single": "all-to-all",
    "broadcast": "collective-broadcast",
    "broadcast_": "collective-broadcast",
    "shard_dim_alltoall": "all-to-all",
}
_IN_PLACE = {"allreduce_": "all-reduce", "allreduce_coalesced_": "all-reduce", "broadcast_": "collective-broadcast"}
_FROM_SECOND = {  # where the result goes comes first
    "_allgather_base_": "all-gather",
    "allgather_": "all-gather",
    "allgather_coalesced_": "all-gather",
    "allgather_into_tensor_coalesced_": "all-gather",
    "_reduce_scatter_base_": "reduce-scatter",
    "reduce_scatter_": "reduce-scatter",
    "reduce_scatter_tensor_coalesced_": "reduce-scatter",
    "alltoall_": "all-to-all",
    "alltoall_base_": "all-to-all",
}
_OPERATIONS: Mapping[str, tuple[str, int]] = MappingProxyType(
    {
        **{f"_c10d_functional.{name}": (operation, 0) for name, operation in _FUNCTIONAL.items()},
        **{f"_dtensor.{name}": (operation, 0) for name, operation in _FUNCTIONAL.items()},
        **{f"c10d.{name}": (operation, 0) for name, operation in _IN_PLACE.items()},
        **{f"c10d.{name}": (operation, 1) for name, operation in _FROM_SECOND.items()},
    }
)


def operation(operator: Any) -> str | None:
    """The collective that an operator is, as HLO names it; None for any other operator."""
    return _OPERATIONS.get(_name(operator), (None, 0))[0]


def sent(operator: Any, arguments: Sequence[Any]) -> tuple[tuple[int, ...], int | None]:
    """The ranks of a collective, () where they are not known, and the bytes that this process sends at least."""
    import torch
    from torch.utils import _pytree as pytree

    name, at = _OPERATIONS[_name(operator)]
    tensors = [leaf for leaf in pytree.tree_leaves(arguments[at]) if isinstance(leaf, torch.Tensor)]
    put_in = sum(one.numel() * one.element_size() for one in tensors)
    group = next((ranks for one in reversed(arguments) if (ranks := _ranks(one))), ())
    return group, sent_bytes(name, put_in, len(group)) if group else None


def _name(operator: Any) -> str:
    return f"{operator.namespace}.{operator._opname}"  # noqa: SLF001  # the public name has more to it


def _ranks(argument: Any) -> tuple[int, ...]:
    """The ranks of a process group, or of the name of one; () for any other argument."""
    import torch
    from torch.distributed import distributed_c10d as c10d

    group = argument
    if isinstance(argument, str):
        try:
            group = c10d._resolve_process_group(argument)  # noqa: SLF001  # nothing public does
        except RuntimeError:  # names of reductions look like those of groups
            return ()
    elif isinstance(argument, torch.ScriptObject):
        try:
            group = torch.distributed.ProcessGroup.unbox(argument)
        except RuntimeError:  # a reduction
            return ()
    if not isinstance(group, torch.distributed.ProcessGroup):
        return ()
    return tuple(torch.distributed.get_process_group_ranks(group))
