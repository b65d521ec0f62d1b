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
    example: str = ""  # a workload that deserves it
    command: str = ""  # that finds it there
    output: str = ""  # what the command prints of it, or a part of that
