"""Claims about a change, each confirmed, refuted or undecided by what two runs show.

    claim = ("less" | "fewer" | "more" | "no" | "same") quantity | comparison

A quantity is written in words ("all-gather bytes") or by its name (all_gather_bytes). A comparison is one of
`traceflow.expression`, in which `a.` means the first run, and `b.` or nothing the second: "exposed_share < 0.05",
"b.step_ns < 0.9 * a.step_ns".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from enum import StrEnum
from types import MappingProxyType

from traceflow.analyzers.comparison.numerics import Numerics
from traceflow.analyzers.comparison.observation import QUANTITIES, Observation
from traceflow.analyzers.comparison.sample import STEPS_NEEDED, Sample
from traceflow.expression import Comparison, ExpressionError, Quantity, Span, holds, parsed, quantities, value_of
from traceflow.result import Json

OUTPUTS = "outputs"
HOST_DECIDES = (
    "both ran the same programs on virtual devices, whose speed is that of a host that does other things, too"
)
_WORDS = {"less": "<", "fewer": "<", "more": ">", "no": "==", "same": "=="}
_SAID = {
    "step_time": "step_ns",
    "time": "step_ns",
    "exposed": "exposed_ns",
    "exposed_communication": "exposed_ns",
    "exposed_time": "exposed_ns",
    "communication": "communication_bytes",
    "removable_communication": "removable_communication_ns",
    "removable_transfer": "removable_transfer_ns",
    "memory": "live_peak_bytes",
    "peak_memory": "live_peak_bytes",
    "live_peak": "live_peak_bytes",
    "traffic": "traffic_bytes",
    "idle_time": "idle_ns",
    "results": OUTPUTS,
    "numerics": OUTPUTS,
}


class Verdict(StrEnum):
    """What becomes of a claim."""

    CONFIRMED = "confirmed"
    REFUTED = "refuted"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim as it was made, and what it says."""

    text: str
    comparison: Comparison


@dataclass(frozen=True, slots=True)
class Judged:
    """A claim with its verdict."""

    claim: str
    verdict: Verdict
    evidence: Mapping[str, Json]

    def to_dict(self) -> dict[str, Json]:
        """A row of `claims`."""
        return {"claim": self.claim, "verdict": self.verdict.value, "evidence": {**self.evidence}}


def read_claim(text: str) -> Claim:
    """Read a claim.

    Raises:
        ExpressionError: With the place of the mistake.

    Example:
        >>> claim = read_claim("less all-gather bytes").comparison
        >>> str(claim.left), claim.sign, str(claim.right)
        ('b.all_gather_bytes', '<', 'a.all_gather_bytes')
    """
    word, _, said = text.strip().partition(" ")
    if word in _WORDS and said.strip() and not re.search(r"[<>=]", said):
        at = text.index(said.strip(), len(word))
        name = _named(text, said.strip(), at, no=word == "no")
        other = "0" if word == "no" else f"a.{name}"
        return Claim(text, parsed(f"b.{name} {_WORDS[word]} {other}"))
    comparison = parsed(text)
    for quantity in quantities(comparison):
        if quantity.function:
            why = "a quantity of a comparison has one value for each step"
            raise ExpressionError(text, quantity.at, why, "name it without a function")
        _known(text, quantity.name.removeprefix("a.").removeprefix("b."), quantity.at)
    return Claim(text, comparison)


def _named(text: str, said: str, at: int, *, no: bool) -> str:
    """The quantity that some words mean."""
    plain = re.sub(r"\W+", "_", said.strip().lower())
    for name in (plain, _SAID.get(plain, ""), f"{plain}_calls" if no else f"{plain}_bytes", f"{plain}_calls"):
        if name in QUANTITIES or name == OUTPUTS:
            return name
    singular = plain.removesuffix("s")
    return _known(text, f"{singular}_calls" if f"{singular}_calls" in QUANTITIES else plain, at)


def _known(text: str, name: str, at: int) -> str:
    if name in QUANTITIES or name == OUTPUTS:
        return name
    near = get_close_matches(name, QUANTITIES, n=3) or QUANTITIES
    raise ExpressionError(text, at, f"no quantity is called {name}", f"there is {', '.join(near)}")


def judged(
    claim: Claim, a: Observation, b: Observation, numerics: Numerics | None, *, host_decides: bool = False
) -> Judged:
    """The verdict on a claim: confirmed where it is true of the whole spread of its quantities, refuted where it is true of none.

    A claim is undecided where the spreads, as they count, overlap, where a quantity is not known, or where fewer than 5 steps tell of
    one that varies.

    Args:
        claim: What is claimed.
        a: The first run.
        b: The second run.
        numerics: Their outputs, where they were recorded.
        host_decides: Whether a difference in time between them is that of the host.
    """
    names = [quantity.name for quantity in quantities(claim.comparison)]
    if any(name.endswith(OUTPUTS) for name in names):
        return _of_outputs(claim, numerics)
    sides = {name: _sample(name, a, b) for name in names}
    evidence: dict[str, Json] = {
        name: sample.figures(name) for name, sample in sides.items() if isinstance(sample, Sample)
    }
    unknown = {name: sample for name, sample in sides.items() if isinstance(sample, str)}
    if unknown:
        why = "; ".join(f"{name} is not known: {reason}" for name, reason in unknown.items())
        return Judged(claim.text, Verdict.UNDECIDED, MappingProxyType({**evidence, "reason": why}))
    samples = {name: sample for name, sample in sides.items() if isinstance(sample, Sample)}
    true = _holds(claim.comparison, samples)
    doubt = _doubt(samples, host_decides=host_decides)
    if true is None or doubt is not None:
        why = doubt or "it holds for a part of the spread"
        return Judged(claim.text, Verdict.UNDECIDED, MappingProxyType({**evidence, "reason": why}))
    verdict = Verdict.CONFIRMED if true else Verdict.REFUTED
    return Judged(claim.text, verdict, MappingProxyType(evidence))


def _doubt(samples: Mapping[str, Sample], *, host_decides: bool) -> str | None:
    """What leaves a claim open whatever the spread, None where nothing does."""
    few = [name for name, sample in samples.items() if not sample.settled]
    if few:
        return f"fewer than {STEPS_NEEDED} steps of {', '.join(few)}"
    varying = {name[:2] == "a." for name, sample in samples.items() if not sample.exact}
    return HOST_DECIDES if host_decides and len(varying) > 1 else None


def _of_outputs(claim: Claim, numerics: Numerics | None) -> Judged:
    if numerics is None:
        why: Mapping[str, Json] = {"reason": "no outputs were recorded in both runs"}
        return Judged(claim.text, Verdict.UNDECIDED, MappingProxyType(why))
    verdict = Verdict.CONFIRMED if numerics.same else Verdict.REFUTED
    return Judged(claim.text, verdict, MappingProxyType({"numerics": numerics.to_dict()}))


def _sample(name: str, a: Observation, b: Observation) -> Sample | str:
    """What a run shows of a quantity, or why it shows nothing."""
    side = a if name.startswith("a.") else b
    plain = name.removeprefix("a.").removeprefix("b.")
    return side.quantities.get(plain) or side.unknown[plain]


def _holds(comparison: Comparison, samples: Mapping[str, Sample]) -> bool | None:
    def spread(quantity: Quantity) -> Span:
        return Span(*samples[quantity.name].span)

    return holds(comparison.sign, value_of(comparison.left, spread), value_of(comparison.right, spread))
