"""Which rank holds which expert, and where each goes when EP changes."""

from __future__ import annotations

from dataclasses import dataclass

from traceflow.errors import TraceflowError


@dataclass(frozen=True, slots=True)
class Place:
    """Where an expert is: its rank within EP, and its number there."""

    ep_rank: int
    local: int


def place(expert: int, experts: int, ep: int) -> Place:
    """Experts are dealt out in consecutive blocks of E / EP: expert e is number e mod (E / EP) of rank e div (E / EP).

    Args:
        expert: e, its number in the whole layer.
        experts: E.
        ep: Ranks that hold different experts; divides E.

    Example:
        >>> place(7, 384, ep=64)
        Place(ep_rank=1, local=1)
    """
    held = _held(experts, ep)
    return Place(expert // held, expert % held)


def experts_held(experts: int, ep: int) -> tuple[range, ...]:
    """The experts of each rank of EP.

    Example:
        >>> experts_held(8, ep=2)
        (range(0, 4), range(4, 8))
    """
    held = _held(experts, ep)
    return tuple(range(first, first + held) for first in range(0, experts, held))


def moves(experts: int, ep: int, next_ep: int) -> tuple[tuple[Place, Place], ...]:
    """Where each expert is before and after EP changes, by its number in the layer.

    Example:
        >>> moves(384, ep=64, next_ep=32)[7]
        (Place(ep_rank=1, local=1), Place(ep_rank=0, local=7))
    """
    return tuple((place(e, experts, ep), place(e, experts, next_ep)) for e in range(experts))


def _held(experts: int, ep: int) -> int:
    if ep < 1 or experts % ep:
        why = f"{experts} experts cannot be dealt out to {ep} ranks alike"
        raise TraceflowError("TF148", "no such parallel plan", why, "choose an EP that divides the experts")
    return experts // ep
