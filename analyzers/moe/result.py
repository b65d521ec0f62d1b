"""What `show moe` tells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from traceflow.analyzers.window import Window
from traceflow.result import Finding, Json, Note, Shown, Skipped
from traceflow.trace.model import ABSENT, Int64

if TYPE_CHECKING:
    import pandas as pd

    from traceflow.analyzers.moe.agreement import Agreement
    from traceflow.analyzers.moe.balance import Balance
    from traceflow.analyzers.moe.combine import CombineCheck
    from traceflow.analyzers.moe.rows import Rows
    from traceflow.analyzers.moe.stages import StageTime
    from traceflow.intent.routing import LayerRouting


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutedLayer:
    """One layer, or one call of it; sums over its sources. None where the record does not tell.

    executed_rows = assignments - dropped + capacity_padding_rows + alignment_padding_rows + masked_rows
    """

    layer: int
    step: int | None = None  # None: all steps of the window together
    occurrence: int | None = None
    calls: int
    experts: int
    topk: int
    tokens: int | None
    assignments: int
    dropped: int
    executed_rows: int
    capacity_padding_rows: int
    alignment_padding_rows: int
    masked_rows: int
    tokens_per_expert: tuple[int, ...]
    rows_per_expert: tuple[int, ...]
    participants: tuple[tuple[int, int | None], ...]  # (rank, device)
    rows_per_rank: tuple[int, ...]  # by participant
    hot_expert: int
    hot_expert_ratio: float | None
    hot_expert_ranks: tuple[int, ...]  # who holds it
    hot_rank: int
    rank_imbalance_ratio: float | None
    dispatch_bytes: int | None
    combine_bytes: int | None
    remote_bytes: int | None
    useful_bytes: int | None
    executed_flops: int | None
    wasted_flops: int | None
    balance_saved_ns: int | None = None

    @property
    def padding_rows(self) -> int:
        """Rows that hold nothing: those of a capacity and those of an alignment."""
        return self.capacity_padding_rows + self.alignment_padding_rows

    def to_dict(self) -> dict[str, Json]:
        """A row of `layers`, or of `calls`."""
        whole = asdict(self)
        participants: list[Json] = [{"rank": rank, "device": device} for rank, device in self.participants]
        lists: dict[str, Json] = {name: [*value] for name, value in whole.items() if isinstance(value, tuple)}
        return {**whole, **lists, "participants": participants}


@dataclass(frozen=True, slots=True)
class HostWait:
    """Calls of one rank that make its host wait for the device around the exchange."""

    rank: int
    stage: str
    direction: str
    name: str
    count: int
    duration_ns: int

    def to_dict(self) -> dict[str, Json]:
        """A row of `synchronisations`."""
        return {**asdict(self)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Moe(Shown):
    """Routing, the work that it led to, and what perfect balance would save."""

    kind: ClassVar[str] = "moe"
    window: Window | None  # None where there is no trace
    layers: tuple[RoutedLayer, ...]
    calls: tuple[RoutedLayer, ...]
    stages: tuple[StageTime, ...]
    synchronisations: tuple[HostWait, ...] | None
    balance: Balance | None
    agreement: Agreement | None
    combines: tuple[CombineCheck, ...]
    findings: tuple[Finding, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    notes: tuple[Note, ...] = ()

    def to_dict(self) -> dict[str, Json]:
        """The `result` object of the JSON contract."""
        return {
            **({} if self.window is None else {"window": {**self.window.to_dict()}}),
            "layers": [layer.to_dict() for layer in self.layers],
            "calls": [call.to_dict() for call in self.calls],
            "stages": [stage.to_dict() for stage in self.stages],
            "synchronisations": None if self.synchronisations is None else [w.to_dict() for w in self.synchronisations],
            "balance": None if self.balance is None else self.balance.to_dict(),
            "agreement": None if self.agreement is None else self.agreement.to_dict(),
            "combines": [
                {"rank": c.rank, "layer": c.layer, "verdict": c.verdict.value, "error_ratio": c.error_ratio}
                for c in self.combines
            ],
        }

    def to_pandas(self) -> pd.DataFrame:
        """One row per call of a layer."""
        import pandas as pd

        return pd.DataFrame([call.to_dict() for call in self.calls])


def routed_layer(
    layer: LayerRouting, rows: Rows, chosen: Sequence[int], *, when: tuple[int, int] | None = None
) -> RoutedLayer:
    """Sum up calls of a layer.

    Args:
        layer: The record.
        rows: Its rows.
        chosen: Which calls, as rows of `rows`.
        when: Step and occurrence, where it is one call.
    """
    shape, at = layer.shape, list(chosen)
    first = list(rows.first)
    per_expert = rows.assigned[at].sum(axis=(0, 1))
    per_source = rows.executed[at].sum(axis=(0, 2))
    hot, here = int(per_expert.argmax()), shape.experts // len(layer.ep_groups[0])
    assignments = int(per_expert.sum())
    holders = [s for s, own in enumerate(rows.own.tolist()) if own == hot // here]
    sums = {
        name: int(getattr(rows, name)[at][:, first].sum())
        for name in ("executed", "capacity_padding", "alignment_padding", "masked")
    }
    flops = _flops_per_row(layer)
    kept = assignments - int(rows.dropped[at].sum())
    return RoutedLayer(
        layer=layer.layer,
        step=None if when is None else when[0],
        occurrence=None if when is None else when[1],
        calls=len(at),
        experts=shape.experts,
        topk=shape.topk,
        tokens=assignments // shape.topk if shape.topk > 0 and assignments % shape.topk == 0 else None,
        assignments=assignments,
        dropped=assignments - kept,
        executed_rows=sums["executed"],
        capacity_padding_rows=sums["capacity_padding"],
        alignment_padding_rows=sums["alignment_padding"],
        masked_rows=sums["masked"],
        tokens_per_expert=tuple(per_expert.tolist()),
        rows_per_expert=_rows_per_expert(layer, rows, at),
        participants=tuple(
            (r, None if d == ABSENT else d) for r, d in zip(layer.rank.tolist(), layer.device.tolist(), strict=True)
        ),
        rows_per_rank=tuple(per_source.tolist()),
        hot_expert=hot,
        hot_expert_ratio=_over_mean(per_expert),
        hot_expert_ranks=tuple(dict.fromkeys(layer.rank[holders].tolist())),
        hot_rank=int(layer.rank[per_source.argmax()]),
        rank_imbalance_ratio=_over_mean(per_source),
        **_traffic(layer, rows, at),
        executed_flops=None if flops is None else flops * sums["executed"],
        wasted_flops=None if flops is None else flops * (sums["executed"] - kept),
    )


def _over_mean(counts: Int64) -> float | None:
    return float(counts.max() / counts.mean()) if counts.any() else None


def _rows_per_expert(layer: LayerRouting, rows: Rows, at: list[int]) -> tuple[int, ...]:
    """Executed rows of each expert, over all that hold it; each row once, whatever the number of ETP."""
    executed = rows.executed[at].sum(axis=0)
    if executed.shape[1] == layer.shape.experts:  # every source has all experts
        return tuple(executed[list(rows.first)].sum(axis=0).tolist())
    whole = np.zeros((len(layer.ep_groups[0]), executed.shape[1]), np.int64)
    np.add.at(whole, rows.own[list(rows.first)], executed[list(rows.first)])
    return tuple(whole.ravel().tolist())


def _flops_per_row(layer: LayerRouting) -> int | None:
    """Forward FLOPs of one row in one expert, 2 h f for each matrix."""
    shape = layer.shape
    if ABSENT in {shape.hidden, shape.ffn_hidden}:
        return None
    return 2 * shape.matrices * shape.hidden * shape.ffn_hidden


def _traffic(layer: LayerRouting, rows: Rows, at: list[int]) -> dict[str, int | None]:
    """Bytes of the exchanges forward: all, those that leave their source, and of these the useful ones."""
    names = ("dispatch_bytes", "combine_bytes", "remote_bytes", "useful_bytes")
    shape = layer.shape
    if ABSENT in {shape.hidden, shape.itemsize}:
        return dict.fromkeys(names)
    there, back = shape.hidden * shape.itemsize, shape.hidden * shape.combine_itemsize
    sent, useful = rows.sent[at], rows.useful
    away = np.arange(sent.shape[2]) != rows.own[:, None]
    remote, whole = int(sent[:, away].sum()), int(sent.sum())
    valid = None if useful is None else int(useful[at][:, away].sum())
    values = whole * there, whole * back, remote * (there + back), None if valid is None else valid * (there + back)
    return dict(zip(names, values, strict=True))
