"""What tells whether tensors of several processes are alike, without sending them."""

from __future__ import annotations

import hashlib
import math
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import torch

_DIRECTIONS, _LENGTH = 4, 1 << 18


class Fingerprint(NamedTuple):
    """Of the values of a tensor: all bits, and enough to tell how far two of them are apart."""

    digest: str
    projections: tuple[float, ...]
    norm: float
    precision: float


def digest(tensor: torch.Tensor) -> str:
    """A hash of the bits of a tensor."""
    import torch

    content = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def fingerprint(tensor: torch.Tensor) -> Fingerprint:
    """The fingerprint of a tensor.

    Projections are on vectors of normal random numbers of one seed. The expectation of their square is the squared
    norm of what is projected.
    """
    import torch

    flat = tensor.detach().cpu().reshape(-1)
    flat = (torch.view_as_real(flat).reshape(-1) if flat.is_complex() else flat).double()
    generator = torch.Generator().manual_seed(0)  # one of its own: the program's random numbers stay as they are
    projections = torch.zeros(_DIRECTIONS, dtype=torch.float64)
    for part in flat.split(_LENGTH):
        projections += torch.randn(_DIRECTIONS, len(part), dtype=torch.float64, generator=generator) @ part
    precision = torch.finfo(tensor.dtype).eps if tensor.is_floating_point() or tensor.is_complex() else 0.0
    # JSON has no number for these.
    known = tuple(p if math.isfinite(p) else 0.0 for p in projections.tolist())
    norm = float(flat.norm())
    return Fingerprint(digest(tensor), known, norm if math.isfinite(norm) else 0.0, precision)
