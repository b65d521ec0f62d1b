"""`watch_moe`: the routing of models of Megatron and torchtitan, told by hooks instead of by the model's own code.

Neither library is imported. Modules are known by their attributes:

- Megatron: a `MoELayer` has `layer_number` and a `token_dispatcher` with `preprocess(routing_map)`, `num_experts`,
  `ep_group`, `tp_group` and a `config`. The map [n, E] is summed up on the device.
- torchtitan: a `TokenChoiceTopKRouter` has `num_experts` and `top_k`, and the last of what it returns is the number of
  tokens per expert.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from traceflow.routed import moe

_Model = TypeVar("_Model")


def watch_moe(model: _Model, *, ep_group: Any = None, align: int | None = None) -> _Model:
    """Tell the recording how the layers of a model route their tokens, in each of their forward passes.

    Megatron drops tokens before its dispatcher is told of them. With a capacity factor its layers are therefore
    refused: call `traceflow.moe` in the router.

    Args:
        model: A `torch.nn.Module` with layers of Megatron or torchtitan; each is watched once.
        ep_group: torchtitan: the ranks among which tokens are exchanged. Megatron's dispatchers know theirs.
        align: The rows of each expert are filled up to a multiple of this.

    Returns:
        `model`.

    Raises:
        ValueError: when it has no such layer, or one that cannot be watched.
    """
    found = 0
    for name, module in model.named_modules():  # type: ignore[attr-defined]  # any torch.nn.Module has it
        if hasattr(getattr(module, "token_dispatcher", None), "preprocess") and hasattr(module, "layer_number"):
            _watch_dispatcher(module.token_dispatcher, int(module.layer_number), align)
            found += 1
        elif hasattr(module, "top_k") and hasattr(module, "num_experts") and hasattr(module, "gate"):
            _watch_router(module, _layer_of(name, found), ep_group, align)
            found += 1
    if not found:
        raise ValueError("no layer of Megatron's or torchtitan's mixture of experts is in this model")
    return model


def _layer_of(name: str, count: int) -> int:
    """The number of a layer in the name of a module, else how many came before it.

    Example:
        >>> _layer_of("layers.7.moe.router", 2), _layer_of("router", 2)
        (7, 2)
    """
    number = re.search(r"(?:^|\.)(\d+)(?:\.|$)", name)
    return int(number[1]) if number else count


def _watch_dispatcher(dispatcher: Any, layer: int, align: int | None) -> None:
    config, preprocess = dispatcher.config, dispatcher.preprocess
    if getattr(config, "moe_expert_capacity_factor", None) is not None:
        raise ValueError(
            f"layer {layer} has a capacity, whose drops its dispatcher is not told: call traceflow.moe in its router"
        )
    if hasattr(preprocess, "__wrapped__"):
        return

    @wraps(preprocess)
    def told(routing_map: Any, *args: Any, **kwargs: Any) -> Any:
        moe(
            layer=layer,
            tokens_per_expert=routing_map.sum(dim=0),
            topk=config.moe_router_topk,
            align=align,
            hidden=config.hidden_size,
            itemsize=getattr(getattr(config, "params_dtype", None), "itemsize", None),
            ffn_hidden=getattr(config, "moe_ffn_hidden_size", None),
            matrices=3 if getattr(config, "gated_linear_unit", False) else 2,
            ep_group=_ranks_of(dispatcher.ep_group),
            etp_group=_ranks_of(getattr(dispatcher, "tp_group", None)),
        )
        return preprocess(routing_map, *args, **kwargs)

    dispatcher.preprocess = told


def _ranks_of(group: Any) -> Any:
    """What `moe` takes: a group of one is none."""
    return None if group is None or group.size() == 1 else group


def _watch_router(router: Any, layer: int, ep_group: Any, align: int | None) -> None:
    if getattr(router, "_traceflow_watched", False):
        return
    router._traceflow_watched = True  # noqa: SLF001  # the mark is ours
    router.register_forward_hook(_router_hook(layer, ep_group, align))


def _router_hook(layer: int, ep_group: Any, align: int | None) -> Callable[[Any, Any, Any], None]:
    def told(router: Any, inputs: Any, outputs: Any) -> None:
        hidden = inputs[0]
        moe(
            layer=layer,
            tokens_per_expert=outputs[-1],
            topk=router.top_k,
            align=align,
            hidden=hidden.shape[-1],
            itemsize=hidden.element_size(),
            ep_group=ep_group,
        )

    return told
