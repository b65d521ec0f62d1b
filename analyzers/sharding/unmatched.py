"""Patterns of an intent that name nothing: what they state was compared with no array."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from difflib import get_close_matches
from fnmatch import fnmatch

from traceflow.intent.intent import Intent
from traceflow.result import Finding, Provenance, Severity


def unmatched_patterns(intent: Intent, names: Collection[str]) -> Iterator[Finding]:
    """The patterns of `params` that fit none of the names of arrays; none where no names are known.

    Example:
        >>> from traceflow.intent.intent import intent
        >>> [found.title for found in unmatched_patterns(intent(params={"w3": "P('data')"}), ["x", "w1"])]
        ["'w3' is the name of no argument or parameter"]
    """
    for pattern in intent.params if names else ():
        if any(fnmatch(name, pattern) for name in names):
            continue
        nearest = get_close_matches(pattern, dict.fromkeys(names), n=3)
        yield Finding(
            code="TF247",
            severity=Severity.ERROR,
            title=f"{pattern!r} is the name of no argument or parameter",
            provenance=Provenance.DERIVED,
            suggestion=f"Did you mean {' or '.join(map(repr, nearest))}?" if nearest else _names(names),
            evidence={"key": pattern, "source": "", "nearest": [*nearest]},
        )


def _names(names: Collection[str]) -> str:
    first = [*dict.fromkeys(names)][:5]
    return f"There are {', '.join(map(repr, first))}{', ...' if len(set(names)) > len(first) else ''}."
