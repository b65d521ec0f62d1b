"""How many rows a source reserves for each expert."""

from __future__ import annotations

from fractions import Fraction
from math import ceil


def capacity(tokens: int, topk: int, experts: int, factor: float) -> int:
    """Rows that one source reserves for each expert: c = ceil(CF x n x k / E).

    A source sends E x c rows, whatever its tokens choose. An expert meets c rows of every source, so that c is not
    the expert's own capacity. Only c = n never drops anything.

    Args:
        tokens: n, tokens of the source.
        topk: k, experts per token.
        experts: E, all experts of the layer.
        factor: CF, room relative to an even load; taken as the decimal that it is written as.

    Example:
        >>> capacity(4096, 6, 384, 1.25)
        80
    """
    return ceil(Fraction(str(factor)) * tokens * topk / experts)
