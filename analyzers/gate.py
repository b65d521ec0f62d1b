"""Gates: whether figures of a run keep to the limits that were set for them. What is not known never passes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import TYPE_CHECKING, Any, ClassVar

from traceflow.analyzers.quantities import Path, path_of, values_at, why_unknown
from traceflow.errors import TraceflowError
from traceflow.expression import Comparison, ExpressionError, Quantity, Span, holds, parsed, quantities, value_of
from traceflow.result import Finding, Json, Note, Provenance, Severity, Shown, Skipped

if TYPE_CHECKING:
    import pandas as pd

BASELINE = "baseline"
_FUNCTIONS: Mapping[str, Callable[[Sequence[float]], float]] = {
    "max": max,
    "min": min,
    "mean": fmean,
    "median": median,
    "sum": math.fsum,
}


@dataclass(frozen=True, slots=True)
class Requirement:
    """An expression whose names are known: which figure each of them is, and of which run."""

    comparison: Comparison
    figures: Mapping[Quantity, tuple[Path, bool]]  # the figure, and whether it is the baseline's

    @property
    def text(self) -> str:
        """As it was written."""
        return self.comparison.text

    @property
    def own(self) -> tuple[Quantity, ...]:
        """The names that are not the baseline's."""
        return tuple(name for name, (_, of_baseline) in self.figures.items() if not of_baseline)

    @property
    def turned(self) -> bool:
        """Whether the run stands on the right, and what it is measured by on the left."""
        return not any(name in self.own for name in quantities(self.comparison.left))

    @property
    def usual(self) -> str | None:
        """What is made of several values where no function says it: the worst; None where nothing is worse."""
        small = self.comparison.sign in {"<", "<="}
        large = self.comparison.sign in {">", ">="}
        return None if not (small or large) else "max" if small is not self.turned else "min"


@dataclass(frozen=True, slots=True)
class Answer:
    """What a run says to one question: the result of its output with its gaps, or why there is none."""

    result: Mapping[str, Any] | None
    skipped: Sequence[Mapping[str, Any]] = ()
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Gate:
    """One requirement and what became of it."""

    expression: str
    value: float | None
    limit: float | None
    passed: bool
    reason: str | None  # why a side is not known
    figures: tuple[tuple[str, str, float | None], ...]  # as written, the whole name of the figure, its value

    def to_dict(self) -> dict[str, Json]:
        """A row of `gates`."""
        figures: list[Json] = [{"written": w, "figure": name, "value": value} for w, name, value in self.figures]
        return {
            "expression": self.expression,
            "value": self.value,
            "limit": self.limit,
            "passed": self.passed,
            "reason": self.reason,
            "figures": figures,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Check(Shown):
    """All gates of a run."""

    kind: ClassVar[str] = "check"
    gates: tuple[Gate, ...]
    findings: tuple[Finding, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    notes: tuple[Note, ...] = field(default=())

    @property
    def passed(self) -> bool:
        """Whether every gate holds."""
        return all(gate.passed for gate in self.gates)

    def to_dict(self) -> dict[str, Json]:
        """The `result` object of the JSON contract."""
        return {"passed": self.passed, "gates": [gate.to_dict() for gate in self.gates]}

    def to_pandas(self) -> pd.DataFrame:
        """One row per gate."""
        import pandas as pd

        return pd.DataFrame([gate.to_dict() for gate in self.gates])


def read_requirement(text: str, *, with_baseline: bool) -> Requirement:
    """Read an expression whose names are figures of the JSON output.

    `baseline.NAME` is the figure of the baseline; `baseline` alone is that of the one name in the expression, with
    the same function.

    Args:
        text: Such as ``"exposed_share < 15 %"`` or ``"live_peak_bytes <= 1.02 * baseline"``.
        with_baseline: Whether there is a run to compare with.

    Raises:
        ExpressionError: With the place of the mistake.

    Example:
        >>> str(read_requirement("exposed_share < 15%", with_baseline=False).comparison.left)
        'exposed_share'
    """
    comparison = parsed(text)
    names = quantities(comparison)
    own = {str(name): name for name in names if name.name.split(".")[0] != BASELINE}
    if not own:
        raise ExpressionError(text, 0, "no quantity of the run is named", "as in exposed_share < 0.15")
    figures = {}
    for name in names:
        first, _, rest = name.name.partition(".")
        of_baseline = first == BASELINE
        if of_baseline and not with_baseline:
            raise ExpressionError(text, name.at, "there is no baseline", "name one with --baseline CAPTURE")
        if of_baseline and not rest and len(own) > 1:
            raise ExpressionError(text, name.at, "which quantity of the baseline is not told", "write baseline.NAME")
        meant = next(iter(own.values())).name if of_baseline and not rest else rest if of_baseline else name.name
        figures[name] = _path(text, name.at, meant), of_baseline
    return Requirement(comparison, figures)


def _path(text: str, at: int, name: str) -> Path:
    try:
        return path_of(name)
    except TraceflowError as error:
        raise ExpressionError(text, at, f"{error.what}: {error.why}", error.hint) from error


def gate(
    requirements: Sequence[Requirement], run: Mapping[str, Answer], baseline: Mapping[str, Answer] | None = None
) -> Check:
    """Hold figures against their limits.

    Of several values, such as one for each participant, the worst counts: the largest where the figure is to stay
    below a limit, else the smallest. A figure that is null, or of which there is none, passes no gate.

    Args:
        requirements: What is to hold.
        run: By kind of result, what the run says to each question that the requirements need.
        baseline: The same of the run that it is compared with.
    """
    gates = tuple(_gate(requirement, run, baseline or {}) for requirement in requirements)
    return Check(
        gates=gates,
        findings=tuple(_failed(one) for one in gates if not one.passed),
        skipped=tuple(_gaps(gates)),
    )


def _gate(requirement: Requirement, run: Mapping[str, Answer], baseline: Mapping[str, Answer]) -> Gate:
    values: dict[Quantity, float | str] = {}
    single = requirement.own[0].function if len(requirement.own) == 1 else None
    for name, (path, of_baseline) in requirement.figures.items():
        answers = baseline if of_baseline else run
        function = name.function or (single if name.name == BASELINE else None) or requirement.usual
        values[name] = _value(answers.get(path.kind), path, function)

    numbers = {name: None if isinstance(value, str) else value for name, value in values.items()}

    def known(quantity: Quantity) -> Span | None:
        value = numbers[quantity]
        return None if value is None else Span.of(value)

    comparison = requirement.comparison
    left, right = value_of(comparison.left, known), value_of(comparison.right, known)
    value, limit = (right, left) if requirement.turned else (left, right)
    reasons = [f"{name}: {value}" for name, value in values.items() if isinstance(value, str)]
    divided = "a quantity is divided by zero" if None in {left, right} else None
    return Gate(
        expression=comparison.text,
        value=None if value is None else _plain(value.low),
        limit=None if limit is None else _plain(limit.low),
        passed=holds(comparison.sign, left, right) is True,
        reason="; ".join(reasons) or divided,
        figures=tuple(
            (str(name), f"{'baseline.' * of_baseline}{path}", numbers[name])
            for name, (path, of_baseline) in requirement.figures.items()
        ),
    )


def _value(answer: Answer | None, path: Path, function: str | None) -> float | str:
    """The figure as one number, or why it is not known."""
    if answer is None or answer.result is None:
        return "the run was not asked" if answer is None or answer.reason is None else answer.reason
    found = values_at(answer.result, path)
    if found is None or any(not isinstance(value, int | float) for value in found):
        return why_unknown(answer.skipped, path) or "the input does not tell"
    if not found:
        return why_unknown(answer.skipped, path) or (0 if function == "sum" else "the input has none")
    if function is None:
        return found[0] if len(set(found)) == 1 else "there are several values: say max, min, mean, median or sum of it"
    return _plain(_FUNCTIONS[function](found))


def _told(value: float | None) -> str:
    """A figure in a sentence: to six digits where it is no whole number."""
    return "not known" if value is None else f"{value:,}" if isinstance(value, int) else f"{value:,.6g}"


def _plain(value: float) -> float:
    """A whole number as one, so that times and sizes stay exact."""
    return int(value) if float(value).is_integer() else value


def _failed(one: Gate) -> Finding:
    told = (
        f"it is not known: {one.reason}" if one.reason else f"it is {_told(one.value)}, the limit is {_told(one.limit)}"
    )
    return Finding(
        code="TF283",
        severity=Severity.ERROR,
        title=f"{one.expression} does not hold: {told}",
        provenance=Provenance.MEASURED,
        suggestion="look at the figure, and at what changed it; what is not known never passes",
        evidence=one.to_dict(),
    )


def _gaps(gates: Sequence[Gate]) -> Iterator[Skipped]:
    for i, one in enumerate(gates):
        sides = {"value": one.value, "limit": one.limit}
        for side, value in sides.items():
            if value is None:
                yield Skipped(f"/result/gates/{i}/{side}", one.reason or "the input does not tell")
