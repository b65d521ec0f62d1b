"""What becomes of a tensor that was made whole: whether anything needs all of it before it is cut again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

_COPIES = frozenset({"_to_copy", "clone", "contiguous", "copy_", "detach", "lift_fresh", "_unsafe_view", "wait_tensor"})
_MASKS = frozenset({"native_dropout", "native_dropout_backward"})
_OF_SHAPES_ALONE = ("_like", "new_empty", "new_zeros", "new_ones", "new_full")


class Flow:
    """Follows tensors by their storages, through whatever works on each element by itself.

    An origin is the number of the redistribution that made a tensor whole.
    """

    def __init__(self) -> None:
        self._origins: dict[Any, frozenset[int]] = {}  # by a weak reference, whose address is not used anew meanwhile
        self.needed: set[int] = set()  # origins of which something needs more than an element at a time

    def of(self, tensors: Iterable[torch.Tensor]) -> frozenset[int]:
        """The origins of tensors."""
        return frozenset[int]().union(*(self._origins.get(storage_of(tensor), frozenset()) for tensor in tensors))

    def put(self, tensors: Iterable[torch.Tensor], origins: frozenset[int]) -> None:
        """Let tensors be of these origins, too."""
        for tensor in tensors if origins else ():
            key = storage_of(tensor)
            self._origins[key] = self._origins.get(key, frozenset()) | origins

    def follow(self, operator: Any, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> None:
        """Follow the inputs of an operator to its outputs, or take note that it needs all of them."""
        followed = [one for one in inputs if self.of([one])]
        origins = self.of(followed)
        if not origins or operator.overloadpacket.__name__.endswith(_OF_SHAPES_ALONE):
            return
        sizes = {one.numel() for one in (*followed, *outputs)}  # a part of it may lie across the pieces
        if by_element(operator) and len(sizes) == 1:
            self.put(outputs, origins)
        else:
            self.needed |= origins


def by_element(operator: Any) -> bool:
    """Whether an operator computes each element from those at its place, or moves none at all."""
    from torch import Tag

    return bool(
        Tag.pointwise in operator.tags or operator.is_view or operator.overloadpacket.__name__ in _COPIES | _MASKS
    )


def storage_of(tensor: Any) -> Any:
    """What identifies the memory of a tensor, also after that was freed."""
    from torch.multiprocessing.reductions import StorageWeakRef

    while hasattr(tensor, "elem"):  # of a collective that nobody has waited for
        tensor = tensor.elem
    return StorageWeakRef(tensor.untyped_storage())
