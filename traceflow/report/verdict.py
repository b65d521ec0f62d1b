"""The first sentence of a report: how long the window took, and what its critical path was made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from traceflow.report.grid import Piece, bar, duration
from traceflow.report.simulation import SIMULATION
from traceflow.report.subject import Asked, CriticalPath


@dataclass(frozen=True, slots=True)
class Part:
    """A kind of time on the path."""

    kind: str
    duration_ns: int
    percent: int  # of the window; the parts sum to 100


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the window is, how long it took, and on what, the largest part first."""

    what: str
    makespan_ns: int
    parts: tuple[Part, ...]
    remarks: tuple[str, ...]

    @property
    def bar(self) -> tuple[Piece, ...]:
        """The parts as one stacked bar."""
        return bar([(part.kind, part.duration_ns) for part in self.parts], self.makespan_ns)

    @property
    def sentence(self) -> str:
        """The verdict as plain text; parts that round to nothing are left out."""
        told = [f"{part.percent}\u00a0% {part.kind}" for part in self.parts if part.percent]
        return f"{self.what} took {duration(self.makespan_ns)}: {', '.join(told) or 'nothing'}."


def verdict(path: CriticalPath, summary: Mapping[str, Any], asked: Asked, *, simulated: bool) -> Verdict:
    """Say how long a window took and on what.

    Args:
        path: Its critical path.
        summary: The summary of the capture, as in the JSON contract.
        asked: What the window is.
        simulated: Whether the devices are threads of a host.
    """
    kinds = sorted(path.by_kind_ns.items(), key=lambda item: -item[1])
    percents = whole_percents([ns for _, ns in kinds])
    parts = tuple(Part(kind, ns, percent) for (kind, ns), percent in zip(kinds, percents, strict=True))
    remarks = (_narrower(summary) if asked.whole else None, SIMULATION if simulated else None)
    return Verdict(asked.what, path.makespan_ns, parts, tuple(r for r in remarks if r is not None))


def whole_percents(parts: Sequence[int]) -> list[int]:
    """Percentages that sum to 100, by largest remainder; zeros where everything is zero.

    Example:
        >>> whole_percents([1, 1, 1])
        [34, 33, 33]
    """
    whole = sum(parts)
    if whole == 0:
        return [0] * len(parts)
    percents = [100 * part // whole for part in parts]
    largest_remainder = sorted(range(len(parts)), key=lambda i: -(100 * parts[i] % whole))
    for i in largest_remainder[: 100 - sum(percents)]:
        percents[i] += 1
    return percents


def _narrower(summary: Mapping[str, Any]) -> str | None:
    """What to look at when a capture is explained as a whole."""
    steps, steady = {row["step"] for row in summary["steps"]}, summary["steady_state"]
    if not steps:
        return "Nothing marks steps, so warm-up and compilation count as well. Explain a part of it with --window."
    if len(steps) == 1:
        return None
    if steady is None:
        return f"It holds {len(steps)} steps, and none without compilation. Explain one of them with --step."
    return (
        f"It holds {len(steps)} steps. In the steady state one takes {duration(steady['median_ns'])}, the median of "
        f"{steady['steps']}. Explain one of them with --step."
    )
