"""A mismatch of intended and compiled sharding, before the trace tells what it cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from traceflow.result import Json, Severity


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What is wrong, and which instructions of the divided program show it."""

    code: str
    title: str
    rows: tuple[int, ...] = ()
    whole_row: int | None = None  # an instruction of the program before it is divided, where that shows it
    severity: Severity = Severity.WARNING
    suggestion: str
    source: str = ""
    spec: str | None = None  # a partition spec that would avoid it
    bytes: int | None = None  # where they are not those of the collectives in `rows`
    evidence: Mapping[str, Json] = field(default_factory=dict)
