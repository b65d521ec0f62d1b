"""Words for what the compiled programs tell of a trace."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_JITTED = re.compile(r"^jit\([^()]*\)/")
_SCOPES = 2


def joined_to(programs: Mapping[str, Any]) -> str:
    """How many programs there are, and how much of the devices' time they explain.

    Args:
        programs: The `programs` of a summary.
    """
    count = f"{programs['modules']:,}, {programs['instructions']:,} instructions"
    if programs["joined_share"] is None:
        return count
    told = f"{count}; {programs['joined_share']:.1%} of the devices' time is joined to an instruction"
    return told if programs["sourced_share"] is None else f"{told}, {programs['sourced_share']:.1%} of that to a line"


def written_at(segment: Mapping[str, Any]) -> str:
    """The innermost scopes that the work of a segment was written in, and the line; empty where neither is known.

    Example:
        >>> written_at({"scope": "jit(step)/shard_map/transpose(jvp(router))/mul", "source": "src/model.py:43"})
        'transpose(jvp(router))/mul, model.py:43'
    """
    place = (segment.get("source") or "").rpartition("/")[2]
    scopes = _parts(_JITTED.sub("", segment.get("scope") or ""))
    return ", ".join(filter(None, ("/".join(scopes[-_SCOPES:]), place)))


def _parts(scope: str) -> list[str]:
    """The names of a scope, cut at the slashes that stand in no parenthesis."""
    parts, depth = [""], 0
    for character in scope:
        depth += {"(": 1, ")": -1}.get(character, 0)
        if character == "/" and not depth:
            parts.append("")
        else:
            parts[-1] += character
    return parts
