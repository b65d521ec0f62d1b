"""What there is to say of a stable code."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Code:
    """One stable code."""

    code: str
    title: str
    explanation: str
    remedy: str
    formula: str = ""  # when it is a finding, and what it costs
    example: str = ""  # from a workload
