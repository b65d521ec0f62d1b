"""Whether results were combined as they should be: by token, and each with its gate exactly once."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np

from traceflow.result import Finding, Provenance, Severity
from traceflow.trace.model import Int64

if TYPE_CHECKING:
    from traceflow.intent.routing import CombineValues, Float64


class Verdict(StrEnum):
    """How results were combined."""

    RIGHT = "right"
    GATE_TWICE = "gate applied twice"
    NO_GATE = "gate not applied"
    BY_POSITION = "combined by position instead of by token"
    WRONG = "wrong"


@dataclass(frozen=True, slots=True)
class CombineCheck:
    """The verdict on one combination; errors are relative to the largest expected number."""

    rank: int
    layer: int
    verdict: Verdict
    error_ratio: float  # of the verdict's own formula; of the right one where none fits

    def finding(self) -> Finding | None:
        """What is wrong, None where nothing is."""
        if self.verdict is Verdict.RIGHT:
            return None
        return Finding(
            code="TF221",
            severity=Severity.ERROR,
            title=f"layer {self.layer} on rank {self.rank}: results of experts are {_SAID[self.verdict]}",
            provenance=Provenance.MEASURED,
            suggestion="apply each gate once, in the expert or when combining, and add up by the token of each row",
            evidence={"layer": self.layer, "rank": self.rank, "error_ratio": self.error_ratio},
        )


_SAID = {
    Verdict.GATE_TWICE: "combined with each gate applied twice",
    Verdict.NO_GATE: "combined without their gates",
    Verdict.BY_POSITION: "combined by position instead of by token",
    Verdict.WRONG: "not combined as their tokens and gates say",
}


def check_combine(values: CombineValues, *, tolerance: float = 1e-3) -> CombineCheck:
    """Check that out[t] = sum over rows r of token t of g(r) u(r), for rows u in whatever order they came back.

    Where that does not hold, three mistakes are tried: g(r)^2, no g(r), and rows taken for those of the tokens in order.

    Args:
        values: What came back, and what was made of it. `weighted` rows are g(r) u(r) already.
        tolerance: Largest difference, relative to the largest number expected.

    Example:
        >>> import numpy as np
        >>> from traceflow.intent.routing import CombineValues
        >>> rows, gates = np.array([[4.0], [1.0]]), np.array([[0.75, 0.25]])
        >>> values = CombineValues(0, 0, rows, np.array([0, 0]), np.array([1, 0]), gates, np.array([[1.75]]), False)
        >>> check_combine(values).verdict.value
        'right'
    """
    gate = values.gates[values.token, values.choice][:, None]
    once = np.ones_like(gate) if values.weighted else gate
    bare = values.returned / np.where(gate == 0, 1, gate) if values.weighted else values.returned
    shuffled = np.sort(values.token, kind="stable")
    by_position = values.gates[shuffled, values.choice[np.argsort(values.token, kind="stable")]][:, None]
    tried = {
        Verdict.RIGHT: _summed(values, values.returned * once, values.token),
        Verdict.GATE_TWICE: _summed(values, bare * gate**2, values.token),
        Verdict.NO_GATE: _summed(values, bare, values.token),
        Verdict.BY_POSITION: _summed(values, values.returned * (once if values.weighted else by_position), shuffled),
    }
    errors = {verdict: _error(values.combined, expected) for verdict, expected in tried.items()}
    fitting = next((verdict for verdict, error in errors.items() if error <= tolerance), Verdict.WRONG)
    return CombineCheck(values.rank, values.layer, fitting, errors.get(fitting, errors[Verdict.RIGHT]))


def _summed(values: CombineValues, rows: Float64, token: Int64) -> Float64:
    combined = np.zeros_like(values.combined)
    np.add.at(combined, token, rows)
    return combined


def _error(found: Float64, expected: Float64) -> float:
    scale = float(np.abs(expected).max(initial=0)) or 1.0
    return float(np.abs(found - expected).max(initial=0)) / scale
