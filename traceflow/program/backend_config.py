"""What a backend notes beside an instruction, as JSON: how often a loop runs, what a library call multiplies."""

from __future__ import annotations

import json
import re

from traceflow.program.module import Dot

_TRIP_COUNT = re.compile(r'"known_trip_count"\s*:\s*\{\s*"n"\s*:\s*"(\d+)"')
_CONTRACTION = re.compile(r'"dot_dimension_numbers"\s*:\s*(\{[^{}]*\})')


def trip_count(config: str) -> int | None:
    """How often the body of a while loop runs, None where XLA's analysis could not tell.

    Example:
        >>> trip_count('{"known_trip_count":{"n":"5"},"dynamic_variables":[]}')
        5
    """
    match = _TRIP_COUNT.search(config)
    return int(match[1]) if match else None


def contraction(config: str) -> Dot | None:
    """The dimensions of the matrix product that a library call computes, None where it computes none.

    Example:
        >>> contraction('{"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"],"rhs_batch_dimensions":[]}}')
        Dot(left_contracting=(1,), right_contracting=(), left_batch=(), right_batch=())
    """
    match = _CONTRACTION.search(config)
    if not match:
        return None
    said = json.loads(match[1])
    fields = ("lhs_contracting", "rhs_contracting", "lhs_batch", "rhs_batch")
    return Dot(*(tuple(map(int, said.get(f"{name}_dimensions", ()))) for name in fields))
