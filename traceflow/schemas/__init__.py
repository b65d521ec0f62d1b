"""JSON Schemas (draft 2020-12) of what `--format json` prints, one per kind of result."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

import msgspec

KINDS = (
    "all",
    "summary",
    "critical-path",
    "communication",
    "what-if",
    "clocks",
    "stragglers",
    "savings",
    "memory",
    "moe",
    "padding",
    "budget",
    "sharding",
    "collective-matmul",
    "plan",
    "plan-check",
    "plan-compare",
    "diff",
    "check",
)
"""The results that have a schema."""

OTHERS = ("doctor", "query")
"""What comes without an envelope: `doctor` is about no run, and a query asks tables."""

_PARTS = ("envelope", "definitions")


def schema(kind: str) -> dict[str, Any]:
    """The schema of a whole output, its envelope included; it refers to nothing outside itself.

    Args:
        kind: One of `KINDS` or `OTHERS`.

    Example:
        >>> schema("what-if")["title"]
        'traceflow what-if'
    """
    if kind not in {*KINDS, *OTHERS}:
        message = f"no schema of {kind!r}; there is one of {', '.join((*KINDS, *OTHERS))}"
        raise ValueError(message)
    return {**_read(kind), "$defs": {part: _read(part) for part in _PARTS}}


def _read(name: str) -> dict[str, Any]:
    return msgspec.json.decode(files(__name__).joinpath(f"{name}.json").read_bytes(), type=dict[str, Any])
