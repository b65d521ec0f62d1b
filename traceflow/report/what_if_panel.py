"""The panel of a page that tells in advance what the savings that are worth most would bring, one by one."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeAlias

from traceflow.report.grid import Grid, bar, bars, durations, names, percents, prose, words
from traceflow.report.names import printable
from traceflow.result import Provenance

Row: TypeAlias = Mapping[str, Any]

MOST_SAVINGS = 10


def what_if_grid(savings: Row) -> Grid | None:
    """What each change saves, what the window would take, how sure that is, and the option that predicts it again.

    Args:
        savings: The `result` of `traceflow show savings`.

    Returns:
        None where nothing that was tried saves anything.
    """
    rows = savings["savings"][:MOST_SAVINGS]
    if not rows:
        return None
    whole_ns = savings["baseline_ns"]
    saved_ns = [row["saved_ns"] for row in rows]
    figures = (
        *durations({"saved": saved_ns, "would take": [whole_ns - ns for ns in saved_ns]}),
        percents("share", [row["saved_share"] for row in rows]),
    )
    return Grid(
        "One change at a time",
        (
            prose("if", [printable(row["title"], 100) for row in rows]),
            *(replace(column, provenance=Provenance.MODELLED) for column in figures),
            bars("part of the window", [bar([("plain", ns)], whole_ns) for ns in saved_ns]),
            words("how sure", ["exact" if row["exact"] else "bound" for row in rows]),
            words("remark", ["within the spread of steps" if row["within_spread"] else "" for row in rows]),
            names("option", [shlex.join([row["option"], row["argument"]]) for row in rows]),
        ),
    )
