"""How many tokens and assignments a rank and an expert meet."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from traceflow.intent.plan.capacity import capacity
from traceflow.intent.plan.model import Batch, Model
from traceflow.intent.plan.parallel import ParallelPlan

if TYPE_CHECKING:
    from traceflow.result import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """Rows of one layer and one micro-batch. What depends on the router is the expectation if it is balanced."""

    sequence_rows: int  # positions of each sequence that a rank holds
    per_rank: int  # n
    in_expert_group: int  # of the ranks that share one set of experts, ETPxEP
    assignments: int  # of these, k each
    sent_rows: int  # that a rank permutes for its experts: n k, or E c with a capacity
    capacity: int | None  # c, rows that a source reserves for an expert; None where nothing is dropped
    assignments_per_expert: Fraction  # expected
    rows_per_expert: Fraction  # m_e that it computes: expected, or exact with a capacity

    @property
    def exact(self) -> bool:
        """Whether rows do not depend on the router."""
        return self.capacity is not None

    @property
    def least_padding_rows(self) -> int:
        """Rows sent that hold no assignment even if none is dropped."""
        return max(0, self.sent_rows - self.assignments * self.per_rank // self.in_expert_group)

    def to_dict(self) -> dict[str, Json]:
        """The object `tokens` of `traceflow plan`."""
        return {
            "per_rank": self.per_rank,
            "in_expert_group": self.in_expert_group,
            "assignments_in_expert_group": self.assignments,
            "sent_rows": self.sent_rows,
            "capacity": self.capacity,
            "least_padding_rows": self.least_padding_rows,
            "expected_assignments_per_expert": _number(self.assignments_per_expert),
            "rows_per_expert": _number(self.rows_per_expert),
        }


def count_tokens(parallel: ParallelPlan, model: Model, batch: Batch) -> Tokens:
    """Tokens of a rank, n = b S / (CP_runtime x TP with sequence parallelism), and what experts meet of them.

    With ETP x EP ranks that share one set of experts, balanced experts are assigned k n ETP EP / E rows each.

    Args:
        parallel: A plan by whose parts S is divisible.
        model: Sizes of the model.
        batch: S and b.
    """
    rows = batch.sequence // sequence_parts(parallel)
    n, group = rows * batch.micro_batch, parallel.group_size("ETPxEP")
    room = None
    if model.capacity_factor is not None:
        room = capacity(n, model.topk, model.experts, model.capacity_factor)
    even = Fraction(n * group * model.topk, model.experts)
    return Tokens(
        sequence_rows=rows,
        per_rank=n,
        in_expert_group=n * group,
        assignments=n * group * model.topk,
        sent_rows=n * model.topk if room is None else room * model.experts,
        capacity=room,
        assignments_per_expert=even,
        rows_per_expert=even if room is None else Fraction(room * group),
    )


def sequence_parts(parallel: ParallelPlan) -> int:
    """Into how many parts a sequence is cut where experts meet it."""
    return parallel.context_parallel_runtime * (parallel.tp if parallel.sp else 1)


def _number(value: Fraction) -> int | float:
    return value.numerator if value.denominator == 1 else float(value)
