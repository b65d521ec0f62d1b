"""What a page says of the parallel plan that a run was to follow: what differs first, then what agrees."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from traceflow.report.grid import Grid, names, words
from traceflow.report.plan_check import row_called, value_text
from traceflow.report.sections import MOST_ROWS, left_out

Row: TypeAlias = Mapping[str, Any]

_VERDICTS = {False: "differs", None: "cannot be told", True: "agrees"}


@dataclass(frozen=True, slots=True)
class PlanSection:
    """Everything that a page says of a plan."""

    counts: str
    rows: Grid


def plan_section(result: Row) -> PlanSection:
    """The section on a plan.

    Args:
        result: The `result` of `traceflow plan check`.
    """
    order = list(_VERDICTS)
    rows = sorted(result["rows"], key=lambda row: order.index(row["agrees"]))
    shown = rows[:MOST_ROWS]
    told = ((result["agreements"], "agree"), (result["differences"], "differ"), (result["unknown"], "cannot be told"))
    return PlanSection(
        ", ".join(f"{count:,} {what}" for count, what in told),
        Grid(
            "Plan against trace",
            (
                words("as planned", [_VERDICTS[row["agrees"]] for row in shown]),
                words("subject", [row["subject"] for row in shown]),
                names("what", [row_called(row) for row in shown]),
                names("planned", [value_text(row["planned"]) for row in shown]),
                names("observed", [value_text(row["observed"]) for row in shown]),
            ),
            left_out(len(rows), len(shown), "rows"),
        ),
    )
