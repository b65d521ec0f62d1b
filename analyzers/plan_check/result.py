"""What comparing a plan with a trace gives: one table."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, ClassVar

from traceflow.result import Finding, Json, Note, Shown, Skipped

if TYPE_CHECKING:
    import pandas as pd

_MOST = 60  # characters of a value in a sentence


class Subject(StrEnum):
    """What a row compares."""

    RANKS = "ranks"
    GROUPS = "groups"
    PAYLOAD = "payload"
    COUNT = "count"
    SHAPE = "shape"


@dataclass(frozen=True, slots=True)
class Row:
    """One thing that the plan says, and what the trace has; `agrees` is None where that cannot be told, for `reason`."""

    subject: Subject
    name: str
    direction: str | None
    dimension: str | None
    planned: Json
    observed: Json
    agrees: bool | None
    reason: str = ""

    @property
    def label(self) -> str:
        """What the row is about, in words."""
        return " ".join(filter(None, (self.subject.value, "of", self.name.replace("_", " "), self.direction)))

    @property
    def planned_text(self) -> str:
        """What the plan says, shortened."""
        return _shortened(self.planned)

    @property
    def observed_text(self) -> str:
        """What the trace has, shortened."""
        return _shortened(self.observed)

    def to_dict(self) -> dict[str, Json]:
        """A row of `rows`."""
        return {
            "subject": self.subject,
            "name": self.name,
            "direction": self.direction,
            "dimension": self.dimension,
            "planned": self.planned,
            "observed": self.observed,
            "agrees": self.agrees,
            "reason": self.reason or None,
        }


def _shortened(value: Json) -> str:
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    text = f"{value:,}" if isinstance(value, int) else str(value)
    return text if len(text) <= _MOST else text[: _MOST - 3] + "..."


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanCheck(Shown):
    """Agreements and differences of a plan and a trace."""

    kind: ClassVar[str] = "plan-check"
    rows: tuple[Row, ...]
    findings: tuple[Finding, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    notes: tuple[Note, ...] = ()

    def to_dict(self) -> dict[str, Json]:
        """The `result` object of the JSON contract."""
        return {
            "agreements": sum(row.agrees is True for row in self.rows),
            "differences": sum(row.agrees is False for row in self.rows),
            "unknown": sum(row.agrees is None for row in self.rows),
            "rows": [row.to_dict() for row in self.rows],
        }

    def to_pandas(self) -> pd.DataFrame:
        """One row per thing that was compared."""
        import pandas as pd

        return pd.DataFrame([row.to_dict() for row in self.rows])
