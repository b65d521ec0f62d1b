"""Collectives held against the list of those that may happen, where the author gives one."""

from __future__ import annotations

import re
from collections.abc import Iterator

from traceflow.analyzers.sharding.found import Found
from traceflow.analyzers.sharding.partitioning import Collective, Partitioning
from traceflow.errors import TraceflowError

_WRITTEN = re.compile(r"\s*([a-z-]+)\s*\(([^()]*)\)\s*")


def declared(p: Partitioning, collective: Collective) -> bool | None:
    """Whether a collective is in the author's list; None without a list.

    Raises:
        TraceflowError: TF146 where an entry cannot be read.
    """
    if p.intent.expected is None:
        return None
    return (collective.operation, frozenset(collective.axes or ())) in map(read_entry, p.intent.expected)


def undeclared_collectives(p: Partitioning) -> Iterator[Found]:
    """Collectives that are not in the list, and entries of the list that do not happen.

    Raises:
        TraceflowError: TF146 where an entry cannot be read.
    """
    for collective in p.collectives:
        if declared(p, collective) is False:
            over = ", ".join(collective.axes) if collective.axes else "devices that no axis joins"
            yield Found(
                code="TF246",
                title=f"{collective.operation} over {over} is not among the collectives that may happen",
                rows=(collective.row,),
                suggestion="See which arrays lie differently from what was meant, or add it to expect.",
            )
    happened = {(c.operation, frozenset(c.axes or ())) for c in p.collectives}
    for entry in p.intent.expected or ():
        if read_entry(entry) not in happened and p.divided is not None:
            yield Found(
                code="TF246",
                title=f"{entry} does not happen, though it is expected",
                suggestion="See which arrays lie differently from what was meant, or take it out of expect.",
                evidence={"expected": entry},
            )


def read_entry(text: str) -> tuple[str, frozenset[str]]:
    """An entry such as `all-reduce(data)`."""
    match = _WRITTEN.fullmatch(text)
    if match is None:
        what, why = f"no collective: {text!r}", "it is not written as operation(axes)"
        raise TraceflowError("TF146", what, why, "write it as all-reduce(data)")
    return match[1], frozenset(filter(None, (axis.strip() for axis in match[2].split(","))))
