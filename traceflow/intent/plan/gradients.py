"""By what gradients are multiplied before they are reduced, so that the sum of all is a mean."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from traceflow.intent.plan.parallel import ParallelPlan

if TYPE_CHECKING:
    from traceflow.result import Json


@dataclass(frozen=True, slots=True)
class Factors:
    """Of parameters that all ranks of DPxCP share, and of experts, which EDP shares."""

    dense: Fraction
    expert: Fraction

    def to_dict(self) -> dict[str, Json]:
        """Both as numbers."""
        return {"dense": float(self.dense), "expert": float(self.expert)}


@dataclass(frozen=True, slots=True)
class GradientScaling:
    """Factors before the reduction, where it adds up, where it averages, and where the loss counts per token."""

    sum: Factors
    avg: Factors
    per_token: Factors

    def to_dict(self) -> dict[str, Json]:
        """The object `gradient_scaling` of `traceflow plan`."""
        return {name: getattr(self, name).to_dict() for name in ("sum", "avg", "per_token")}


def gradient_scaling(parallel: ParallelPlan) -> GradientScaling:
    """Factors that make the same mean of every gradient, whichever ranks its tokens came from.

    An expert has met the tokens of its whole exchange group, so that what its copies hold is a sum already. With R and
    Re the sizes of GTP and EGTP, whose reduce-scatters average, what adds up has the factors 1 / (DP x CP) for dense
    parameters and Re / R / (DP x CP) for experts. Where the reduction averages they are 1, and EDP x Re / R / (DP x CP)
    before the average over EDP. With a loss per token both are 1: all reductions add up, and the sum is divided by the
    number of valid tokens of the step. In no case is anything divided by EDP again.

    Example:
        >>> scaling = gradient_scaling(ParallelPlan(world=1024, pp=8, cp=2, ep=64))
        >>> scaling.sum.expert, scaling.avg.expert
        (Fraction(1, 128), Fraction(1, 64))
    """
    share, correction = Fraction(1, parallel.group_size("DPxCP")), Fraction(parallel.egtp, parallel.gtp)
    one = Fraction(1)
    return GradientScaling(
        sum=Factors(share, correction * share),
        avg=Factors(one, correction * share * parallel.expert_data_parallel),
        per_token=Factors(one, one),
    )
