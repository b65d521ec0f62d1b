"""What each dispatcher of tokens brings to a rank, side by side."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from traceflow.intent.plan.model import Batch, Model
from traceflow.intent.plan.parallel import ParallelPlan
from traceflow.intent.plan.tokens import count_tokens

if TYPE_CHECKING:
    from traceflow.result import Json


@dataclass(frozen=True, slots=True)
class Dispatcher:
    """Rows that a rank has before its experts begin, and to how many destinations each token goes of how many."""

    name: str
    rows: int
    bytes: int
    expected: bool  # for a balanced router
    topk: int
    destinations: int

    def to_dict(self) -> dict[str, Json]:
        """A row of `dispatchers`."""
        return {
            "name": self.name,
            "rows": self.rows,
            "bytes": self.bytes,
            "expected": self.expected,
            "topk": self.topk,
            "destinations": self.destinations,
        }


def dispatchers(parallel: ParallelPlan, model: Model, batch: Batch) -> tuple[Dispatcher, ...]:
    """AlltoAll, AllGather and Flex for the same tokens.

    With n tokens of each rank and p = ETP x EP ranks: AlltoAll receives k n rows, and gathers those of ETP; AllGather
    has all p n tokens, whatever k. Flex counts each part of an expert's matrices as a destination: top-k x ETP of
    E x ETP, while the model remains top-k of E. A capacity is part of AlltoAll alone.

    Example:
        >>> model = Model(hidden=7168, experts=384, topk=6, expert_hidden=3072)
        >>> flex = dispatchers(ParallelPlan(world=8, etp=2, ep=4), model, Batch(sequence=64))[-1]
        >>> flex.topk, flex.destinations
        (12, 768)
    """
    tokens, etp = count_tokens(parallel, model, batch), parallel.etp
    width = model.routed_width * model.item_bytes
    received, everyone = tokens.sent_rows * etp, tokens.in_expert_group
    chosen = tokens.per_rank * model.topk * etp
    return (
        Dispatcher("alltoall", received, received * width, not tokens.exact, model.topk, model.experts),
        Dispatcher(
            "allgather", everyone, everyone * width, expected=False, topk=model.topk, destinations=model.experts
        ),
        Dispatcher(
            "flex", chosen, chosen * width, expected=True, topk=model.topk * etp, destinations=model.experts * etp
        ),
    )
