"""Two runs side by side: whether they computed the same, what changed in the plan, and whether it helped."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from traceflow.analyzers.comparison.claims import HOST_DECIDES, Claim, Judged, Verdict, judged
from traceflow.analyzers.comparison.numerics import ATOL, RTOL, Numerics, numerics
from traceflow.analyzers.comparison.observation import (
    BYTES,
    CALLS,
    PATH,
    QUANTITIES,
    Observation,
    observe,
    observe_programs,
)
from traceflow.analyzers.comparison.plan import ASPECTS, PlanChange, plan_changes
from traceflow.analyzers.comparison.sample import STEPS_NEEDED, Change, Sample, change, change_interval
from traceflow.result import Finding, Json, Note, Provenance, Severity, Shown, Skipped

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Compared", "Diff", "diff", "observe", "observe_programs"]

_NO_OUTPUTS = "no outputs were recorded in {}: attach them as outputs.npz, in recorder.attach"


@dataclass(frozen=True, slots=True)
class Compared:
    """One quantity of both runs; a side without it is None."""

    name: str
    a: Sample | None
    b: Sample | None
    host_decides: bool = False  # the same programs ran on virtual devices

    @property
    def change(self) -> Change:
        """How it changed; nothing is known of a change where a side is missing."""
        if self.a is None or self.b is None:
            return Change(None, None, None)
        found = change(self.a, self.b)
        open_to_doubt = self.host_decides and found.significant and not self.a.exact
        return replace(found, significant=None) if open_to_doubt else found

    def to_dict(self) -> dict[str, Json]:
        """A row of `quantities`."""
        return {
            "name": self.name,
            "a": _side(self.name, self.a),
            "b": _side(self.name, self.b),
            **self.change.to_dict(),
            "provenance": next((side.provenance.value for side in (self.a, self.b) if side), None),
        }

    def median(self, side: str) -> Json:
        """The median of one side."""
        sample: Sample | None = getattr(self, side)
        return None if sample is None else sample.figures(self.name)["median"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Diff(Shown):
    """What two runs have in common and what not; `a` is the reference."""

    kind: ClassVar[str] = "diff"
    step: Compared
    measure: str  # what a step's time is: duration, or period where steps overlap
    interval_ratio: tuple[float, float] | None  # of the change of the step time, by ranks, at 99 %
    numerics: Numerics | None
    plan_changes: tuple[PlanChange, ...]
    compared_aspects: tuple[str, ...]
    quantities: tuple[Compared, ...]
    claims: tuple[Judged, ...]
    findings: tuple[Finding, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    notes: tuple[Note, ...] = ()

    @property
    def verdict(self) -> str:
        """`different results`, else `faster`, `slower`, `no difference` in step time, or `unknown`."""
        if self.numerics is not None and not self.numerics.same:
            return "different results"
        changed = self.step.change
        if changed.significant is None or self.step.a is None or self.step.b is None:
            return "unknown"
        if not changed.significant:
            return "no difference"
        return "faster" if self.step.b.median < self.step.a.median else "slower"

    def to_dict(self) -> dict[str, Json]:
        """The `result` object of the JSON contract."""
        by_name = {one.name: one for one in self.quantities}
        path = {name.removeprefix("path_").removesuffix("_ns"): by_name[name] for name in PATH if name in by_name}
        step = self.step.to_dict()
        return {
            "step_ns": {
                "a": self.step.median("a"),
                "b": self.step.median("b"),
                **self.step.change.to_dict(),
                "interval_ratio": None if self.interval_ratio is None else list(self.interval_ratio),
                "measure": self.measure,
                "spread": {"a": step["a"], "b": step["b"]},
            },
            "numerics": None if self.numerics is None else self.numerics.to_dict(),
            "plan_changes": [row.to_dict() for row in self.plan_changes],
            "compared_aspects": list(self.compared_aspects),
            "by_kind_ns": {kind: {"a": one.median("a"), "b": one.median("b")} for kind, one in path.items()},
            "quantities": [one.to_dict() for one in self.quantities],
            "claims": [one.to_dict() for one in self.claims],
            "verdict": self.verdict,
        }

    def to_pandas(self) -> pd.DataFrame:
        """One row per quantity."""
        import pandas as pd

        return pd.json_normalize([one.to_dict() for one in self.quantities])


def diff(
    a: Observation, b: Observation, claims: Sequence[Claim] = (), *, atol: float = ATOL, rtol: float = RTOL
) -> Diff:
    """Compare two runs.

    A difference counts where the spreads of both runs, from the 10th to the 90th percentile of their steady steps and
    widened where there are few, do not overlap, and each run has 5 steps at least. What compiled programs or payloads determine has no spread. Where
    most steps begin before the last one has ended, the time between their starts is what is compared. Communication
    is measured within each run, never taken for the difference of two step times. Where both runs executed the same
    compiled programs on virtual devices, a difference in time is left open: their speed is that of a host which does
    other things, too, and no run knows how much.

    Args:
        a: The reference, as `observe` sees it.
        b: What is compared with it.
        claims: What is said to have changed.
        atol: What outputs may differ by.
        rtol: What they may differ by in relation to those of a.
    """
    measure = "period" if a.overlapping or b.overlapping else "duration"
    ours, theirs = (_with_step(side, measure) for side in (a, b))
    changed, aspects = _plans(a, b)
    host = not changed and aspects == ASPECTS and a.simulated and b.simulated
    step, *others = (Compared(n, ours.quantities.get(n), theirs.quantities.get(n), host) for n in QUANTITIES)
    same = None if a.outputs is None or b.outputs is None else numerics(a.outputs, b.outputs, atol=atol, rtol=rtol)
    verdicts = tuple(judged(claim, ours, theirs, same, host_decides=host) for claim in claims)
    interval = change_interval(step.a.values, step.b.values) if step.a is not None and step.b is not None else None
    return Diff(
        step=step,
        measure=measure,
        interval_ratio=interval,
        numerics=same,
        plan_changes=changed,
        compared_aspects=aspects,
        quantities=tuple(one for one in others if one.a is not None or one.b is not None),
        claims=verdicts,
        findings=(*_wrong(same), *_refuted(verdicts)),
        skipped=tuple(_skipped(ours, theirs, step, interval, aspects)),
    )


def _with_step(side: Observation, measure: str) -> Observation:
    """A side whose step time is the one that both are compared by."""
    if measure == "duration" or not side.periods_ns:
        return side
    period = Sample(tuple(map(float, side.periods_ns)), Provenance.MEASURED)
    return replace(side, quantities={**side.quantities, "step_ns": period})


def _plans(a: Observation, b: Observation) -> tuple[tuple[PlanChange, ...], tuple[str, ...]]:
    """What changed by the best evidence that both have, and which aspects that tells."""
    pairs = [(p, q) for p in a.plans for q in b.plans if p.provenance is q.provenance]
    if not pairs:
        return (), ()
    ours, theirs = pairs[0]
    return plan_changes(ours, theirs), tuple(aspect for aspect in ASPECTS if aspect in ours.counts)


def _wrong(same: Numerics | None) -> Iterator[Finding]:
    differ = [] if same is None else [output for output in same.outputs if not output.same]
    if differ:
        yield Finding(
            code="TF281",
            severity=Severity.ERROR,
            title=f"{len(differ)} recorded outputs differ, {differ[0].name} first: {differ[0].difference}",
            provenance=Provenance.MEASURED,
            suggestion="make both compute the same before comparing how long that takes",
            evidence={"outputs": [output.to_dict() for output in differ]},
        )


def _refuted(claims: Sequence[Judged]) -> Iterator[Finding]:
    for one in claims:
        if one.verdict is Verdict.REFUTED:
            yield Finding(
                code="TF282",
                severity=Severity.WARNING,
                title=f"refuted: {one.claim}",
                provenance=Provenance.MEASURED,
                suggestion="look at the figures beside the claim, and at what changed in the plan",
                evidence=dict(one.evidence),
            )


def _skipped(
    a: Observation, b: Observation, step: Compared, interval: tuple[float, float] | None, aspects: Sequence[str]
) -> Iterator[Skipped]:
    sides = {"a": a, "b": b}
    for name, side in sides.items():
        if "step_ns" in side.unknown and "step_ns" not in side.quantities:
            yield Skipped(f"/result/step_ns/{name}", side.unknown["step_ns"])
    if step.change.significant is None:
        few = f"fewer than {STEPS_NEEDED} steady steps of a run, or none"
        seen = step.a is not None and step.b is not None and step.a.settled and step.b.settled
        yield Skipped("/result/step_ns/significant", HOST_DECIDES if seen else few)
    if interval is None:
        yield Skipped("/result/step_ns/interval_ratio", "too few steady steps for an interval at 99 %")
    without = [name for name, side in sides.items() if side.outputs is None]
    if without:
        yield Skipped("/result/numerics", _NO_OUTPUTS.format(" and ".join(without)))
    lacking = [aspect for aspect in ASPECTS if aspect not in aspects]
    if lacking:
        yield Skipped("/result/plan_changes", f"{', '.join(lacking)}: the compiled programs of a run are not known")
    yield from _unknown(sides)


def _unknown(sides: Mapping[str, Observation]) -> Iterator[Skipped]:
    """Quantities that a run does not show, once per reason; those of single operations go with those of all."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for quantity in (name for name in QUANTITIES if name not in {*BYTES[1:], *CALLS[1:]}):
        lacking = [name for name, side in sides.items() if quantity not in side.quantities]
        for why in dict.fromkeys(sides[name].unknown[quantity] for name in lacking):
            which = " and ".join(name for name in lacking if sides[name].unknown[quantity] == why)
            reasons.setdefault((which, why), []).append(quantity)
    for (which, why), names in reasons.items():
        yield Skipped("/result/quantities", f"{', '.join(names)} of {which}: {why}")


def _side(name: str, sample: Sample | None) -> Json:
    return None if sample is None else sample.figures(name)
