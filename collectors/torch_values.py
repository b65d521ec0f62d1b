"""What tells whether tensors of several processes are alike, without sending them."""

from __future__ import annotations

import hashlib
import math
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import torch

_DIRECTIONS, _LENGTH = 4, 4096


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

    Projections are on random directions of one seed: rows of `_LENGTH` elements are added up with random signs and
    multiplied by normal numbers. The expectation of their square is the squared norm of what is projected.
    """
    import torch

    flat = tensor.detach().cpu().reshape(-1)
    flat = flat.abs().double() if flat.is_complex() else flat.double()
    rows = torch.nn.functional.pad(flat, (0, -len(flat) % _LENGTH)).view(-1, _LENGTH)
    generator = torch.Generator().manual_seed(0)  # one of its own: the program's random numbers stay as they are
    normal = torch.randn(_DIRECTIONS, _LENGTH, dtype=torch.float64, generator=generator)
    signs = torch.randint(0, 2, (len(rows), 1), generator=generator).double() * 2 - 1
    projections = normal @ (rows * signs).sum(0)
    precision = torch.finfo(tensor.dtype).eps if tensor.is_floating_point() or tensor.is_complex() else 0.0
    # JSON has no number for these.
    known = tuple(p if math.isfinite(p) else 0.0 for p in projections.tolist())
    norm = float(flat.norm())
    return Fingerprint(digest(tensor), known, norm if math.isfinite(norm) else 0.0, precision)
