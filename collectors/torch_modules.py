"""Which module of a PyTorch model runs, forward and backward."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from traceflow.collectors.collector import FAILURES

if TYPE_CHECKING:
    import torch

_MARK = "traceflow"


class Modules:
    """Follows a model through a step, by hooks that leave its results and its graph as they are.

    A module has begun before its own hooks lay its inputs out, and ends after they have laid out its outputs, so that
    what a plan does at a border counts for the module that the plan names. In the backward pass, a module has begun
    where its output's gradient arrives. PyTorch's own trackers insert a function into the graph there, or keep hooks
    on modules that run twice; either can fail in the step.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._running: list[str] = []
        self._backward = ""
        self._handles: list[Any] = []
        for name, module in model.named_modules():
            begun = module.register_forward_pre_hook(partial(self._begin, name), prepend=True)
            self._handles += [begun, module.register_forward_hook(partial(self._end, name), always_call=True)]

    def now(self) -> tuple[str, bool]:
        """The innermost module, and whether this is the backward pass; "" outside of all submodules."""
        from torch import _C

        backward = _C._current_graph_task_id() >= 0  # noqa: SLF001  # nothing public tells
        if self._running:  # where activations are computed again, the forward pass is within the backward one
            return self._running[-1], backward
        return self._backward if backward else "", backward

    def close(self) -> None:
        """Take the hooks back."""
        for handle in self._handles:
            handle.remove()

    def _begin(self, name: str, _module: object, _arguments: object) -> None:
        self._running.append(name)

    def _end(self, name: str, _module: object, _arguments: object, output: object) -> None:
        from torch import Tensor
        from torch.utils import _pytree as pytree

        with suppress(*FAILURES):
            self._running.pop()
            for leaf in pytree.tree_leaves(output):
                node = leaf.grad_fn if isinstance(leaf, Tensor) else None
                if node is not None and _MARK not in node.metadata:  # the innermost module is the first to end
                    node.metadata[_MARK] = name
                    self._handles.append(node.register_prehook(partial(self._enter_backward, name)))

    def _enter_backward(self, name: str, _gradients: object) -> None:
        self._backward = name
