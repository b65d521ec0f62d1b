"""What was seen of a quantity over steps, and whether two such samples differ by more than their spread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist, median

import numpy as np
from numpy.typing import NDArray

from traceflow.result import Json, Provenance

STEPS_NEEDED = 5  # of each run: with fewer, two runs of one program lie apart by chance too often
_MANY = 20  # steps; fewer show little of the spread, which then counts half as much again
_WIDER = 1.5
_ERROR = 0.01  # how often the interval of a change may miss it
_WHOLE = ("_ns", "_bytes", "_calls")
_MOST = 60  # values of a run that the interval is made of


@dataclass(frozen=True, slots=True)
class Sample:
    """The values of one quantity in the steps that were looked at.

    The spread runs from the 10th to the 90th percentile, outwards: with fewer than ten values, from the least to the
    largest.
    """

    values: tuple[float, ...]  # at least one
    provenance: Provenance
    exact: bool = False  # it follows from shapes or counts, so that one step tells

    @property
    def median(self) -> float:
        """The middle of the values."""
        return median(self.values)

    @property
    def low(self) -> float:
        """Where the spread begins."""
        return sorted(self.values)[len(self.values) // 10]

    @property
    def high(self) -> float:
        """Where the spread ends."""
        return sorted(self.values)[-1 - len(self.values) // 10]

    @property
    def span(self) -> tuple[float, float]:
        """The spread as it counts: fewer than 20 steps show little of it, so that it is widened by half."""
        wider = _WIDER if len(self.values) < _MANY else 1.0
        middle = self.median
        return middle - wider * (middle - self.low), middle + wider * (self.high - middle)

    def figures(self, name: str) -> dict[str, Json]:
        """What a result tells of it; times, sizes and counts are whole numbers.

        Args:
            name: Of the quantity, which tells what it is measured in.
        """
        values = {"median": self.median, "low": self.low, "high": self.high}
        whole = name.endswith(_WHOLE)
        return {
            **{which: round(value) if whole else value for which, value in values.items()},
            "steps": len(self.values),
        }

    @property
    def settled(self) -> bool:
        """Whether there is enough of it for its spread to mean something."""
        return self.exact or len(self.values) >= STEPS_NEEDED


@dataclass(frozen=True, slots=True)
class Change:
    """How a quantity changed from a to b.

    change = median(b) / median(a) - 1; spread = what lies between the medians and the ends of the spans that face
    each other, over median(a). So ``|change| > spread`` exactly where the spans do not overlap.
    """

    change_ratio: float | None  # None where a is 0
    spread_ratio: float | None
    significant: bool | None  # None where there are too few steps to tell

    def to_dict(self) -> dict[str, Json]:
        """Its figures in a result."""
        return {
            "change_ratio": self.change_ratio,
            "spread_ratio": self.spread_ratio,
            "significant": self.significant,
        }


def change(a: Sample, b: Sample) -> Change:
    """Compare two samples; a difference inside the spread is none.

    Of two runs of one program with 5 steps each, 1 pair in 1,000 differs by this; 1 in 40 where each step takes half of
    its deviation from the one before, and 1 in 1,000 again with 8 steps.

    Example:
        >>> of = lambda *values: Sample(values, Provenance.MEASURED)
        >>> change(of(99, 99, 100, 101, 101), of(109, 109, 110, 111, 111))
        Change(change_ratio=0.1, spread_ratio=0.03, significant=True)
        >>> change(of(99, 99, 100, 101, 101), of(102, 102, 103, 104, 104)).significant
        False
    """
    first, second = (a, b) if a.median <= b.median else (b, a)
    end, begin = first.span[1], second.span[0]
    spread = (end - first.median) + (second.median - begin)
    apart = bool(end < begin)
    known = not apart or (a.settled and b.settled)
    if not a.median:
        return Change(None, None, apart if known else None)
    ratio = round((b.median - a.median) / a.median, 12)
    return Change(ratio, round(spread / abs(a.median), 12), apart if known else None)


def change_interval(a: Sequence[float], b: Sequence[float]) -> tuple[float, float] | None:
    """Between which two ratios b / a - 1 lies, at 99 %, by ranks: no shape of the distribution is assumed.

    The middle of all quotients of a value of b and one of a, without the k smallest and the k largest, k by the
    Mann-Whitney statistic. It assumes steps that do not influence each other, which real ones do.

    Returns:
        None with too few values, or where some are not above zero.

    Example:
        >>> change_interval([10, 11, 12, 13, 14], [20, 20, 20, 20, 20])
        (0.428571428571, 1.0)
        >>> change_interval([10, 11], [20, 20])
    """
    ours, theirs = _thinned(a), _thinned(b)
    if not len(ours) or not len(theirs) or min(ours.min(), theirs.min()) <= 0:
        return None
    cut = _cut(len(ours), len(theirs))
    if cut < 1:
        return None
    quotients = np.sort((theirs[:, None] / ours[None, :]).ravel()) - 1
    return round(float(quotients[cut - 1]), 12), round(float(quotients[-cut]), 12)


def _thinned(values: Sequence[float]) -> NDArray[np.float64]:
    taken = np.unique(np.linspace(0, len(values) - 1, min(len(values), _MOST)).round().astype(int))
    thinned: NDArray[np.float64] = np.asarray(values, np.float64)[taken]
    return thinned


@lru_cache(maxsize=64)
def _cut(n: int, m: int) -> int:
    """The largest k with P(U < k) at most half of the error, U the Mann-Whitney statistic of n and m values."""
    if n * m > 400:
        z = NormalDist().inv_cdf(1 - _ERROR / 2)
        return int(n * m / 2 - z * (n * m * (n + m + 1) / 12) ** 0.5)
    ways = [1]  # the Gaussian binomial coefficient, whose k-th term counts the orders with U = k
    for i in range(1, n + 1):
        ways = _divided(_multiplied(ways, m + i), i)
    allowed, k, seen = sum(ways) * _ERROR / 2, 0, 0
    while seen + ways[k] <= allowed:
        seen += ways[k]
        k += 1
    return k


def _multiplied(ways: list[int], power: int) -> list[int]:
    """Times 1 - q^power."""
    product = [*ways, *[0] * power]
    for at, count in enumerate(ways):
        product[at + power] -= count
    return product


def _divided(ways: list[int], power: int) -> list[int]:
    """Over 1 - q^power, which leaves no remainder."""
    quotient = list(ways)
    for at in range(power, len(quotient)):
        quotient[at] += quotient[at - power]
    return quotient[: len(quotient) - power]
