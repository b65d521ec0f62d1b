"""What a what-if supposes, made true in a run."""

from __future__ import annotations

import re
from collections.abc import Collection

from simulator.engine import Change, Lane, Piece


def scaled(pattern: str, factor: float, ranks: Collection[int] | None = None) -> Change:
    """Multiply the durations of pieces by their name, or by a kind such as `@compute`, on some ranks or on all."""
    chosen = None if pattern.startswith("@") else re.compile(pattern)

    def change(piece: Piece) -> int:
        if ranks is not None and piece.lane.rank not in ranks:
            return piece.duration_ns
        found = piece.kind.value == pattern if chosen is None else bool(piece.name and chosen.search(piece.name))
        return round(piece.duration_ns * factor) if found else piece.duration_ns

    return change


def lengthened(lane: Lane, place: int, extra_ns: int) -> Change:
    """Let one piece take longer."""
    return lambda piece: piece.duration_ns + (extra_ns if (piece.lane, piece.place) == (lane, place) else 0)
