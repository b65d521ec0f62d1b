"""What is worth changing in a mixture of experts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from traceflow.result import Finding, Provenance, Severity

if TYPE_CHECKING:
    from traceflow.analyzers.moe.result import Moe, RoutedLayer

_HOT_RATIO = 2.0  # of an expert, over the mean
_IMBALANCE_RATIO = 1.1
_NOTABLE_SHARE = 0.01  # of a window
_DROPPED_SHARE = 0.01
_PADDED_SHARE = 0.1


def findings_of(result: Moe) -> Iterator[Finding]:
    """Hot experts and ranks, drops, padding, waits of the host, wrong combination, and disagreement with the trace."""
    for layer in result.layers:
        yield from _imbalance(result, layer)
        yield from _lost(layer)
    yield from _waits(result)
    yield from (finding for check in result.combines if (finding := check.finding()) is not None)
    agreed = result.agreement
    if agreed is not None and agreed.differences:
        first = agreed.differences[0]
        yield Finding(
            code="TF222",
            severity=Severity.ERROR,
            title=f"{len(agreed.differences)} of {agreed.compared} exchanges in the trace move other rows than recorded",
            provenance=Provenance.MEASURED,
            suggestion="tell the counts of the very call, with the groups and the capacity that it uses",
            evidence=first.to_dict(),
        )


def _imbalance(result: Moe, layer: RoutedLayer) -> Iterator[Finding]:
    """A layer whose experts or ranks have unequal work, with what its balance would save."""
    hot = layer.hot_expert_ratio is not None and layer.experts > 1 and layer.hot_expert_ratio >= _HOT_RATIO
    uneven = layer.rank_imbalance_ratio is not None and layer.rank_imbalance_ratio >= _IMBALANCE_RATIO
    saved_ns = layer.balance_saved_ns
    whole_ns = 0 if result.window is None else result.window.duration_ns
    costs = saved_ns is not None and saved_ns > _NOTABLE_SHARE * whole_ns
    if not (hot or uneven) or (saved_ns is not None and not costs and not hot):
        return
    yield Finding(
        code="TF217",
        severity=Severity.WARNING if costs else Severity.INFO,
        title=_title(layer, hot=hot, uneven=uneven),
        provenance=Provenance.MODELLED if saved_ns is not None else Provenance.MEASURED,
        suggestion="balance the router (auxiliary loss or bias), or place copies of hot experts on several ranks",
        cost_ns=saved_ns,
        evidence={
            "layer": layer.layer,
            "expert": layer.hot_expert,
            "rank": layer.hot_rank,
            "hot_expert_ratio": layer.hot_expert_ratio,
            "rank_imbalance_ratio": layer.rank_imbalance_ratio,
            "assignment_share": max(layer.tokens_per_expert) / layer.assignments,
            "experts_on_path_ns": {**_on_path(result)},
        },
    )


def _on_path(result: Moe) -> dict[str, int]:
    """Whose experts lie on the critical path, by rank: of all layers, in both directions."""
    by_rank: dict[str, int] = {}
    for stage in result.stages:
        if stage.stage == "experts" and stage.path_ns:
            by_rank[str(stage.rank)] = by_rank.get(str(stage.rank), 0) + stage.path_ns
    return by_rank


def _title(layer: RoutedLayer, *, hot: bool, uneven: bool) -> str:
    share = max(layer.tokens_per_expert) / layer.assignments
    ranks = ", ".join(map(str, layer.hot_expert_ranks[:4]))
    held = f" on rank{'s' * (len(layer.hot_expert_ranks) > 1)} {ranks}"
    said = []
    if hot:
        said.append(
            f"expert {layer.hot_expert} of layer {layer.layer}{held} gets {share:.0%} of the assignments, "
            f"{layer.hot_expert_ratio:.1f} times the mean"
        )
    if uneven:
        where = "" if hot else f" in layer {layer.layer}"
        said.append(
            f"rank {layer.hot_rank} multiplies {layer.rank_imbalance_ratio:.2f} times the mean of the rows{where}"
        )
    return "; ".join(said)


def _lost(layer: RoutedLayer) -> Iterator[Finding]:
    """Tokens that were dropped, and rows that hold none."""
    if layer.dropped > _DROPPED_SHARE * layer.assignments:
        yield Finding(
            code="TF218",
            severity=Severity.WARNING,
            title=f"layer {layer.layer} drops {layer.dropped / layer.assignments:.1%} of its assignments",
            provenance=Provenance.MEASURED,
            suggestion="raise the capacity, balance the router, or drop nothing",
            evidence={"layer": layer.layer, "dropped": layer.dropped, "assignments": layer.assignments},
        )
    idle = layer.padding_rows + layer.masked_rows
    if idle > _PADDED_SHARE * layer.executed_rows:
        yield Finding(
            code="TF219",
            severity=Severity.INFO,
            title=f"{idle / layer.executed_rows:.0%} of the rows that experts of layer {layer.layer} multiply hold no token",
            provenance=Provenance.MEASURED,
            suggestion="lower the capacity or the alignment, or multiply groups of unequal length",
            evidence={
                "layer": layer.layer,
                "capacity_padding_rows": layer.capacity_padding_rows,
                "alignment_padding_rows": layer.alignment_padding_rows,
                "masked_rows": layer.masked_rows,
                "wasted_flops": layer.wasted_flops,
            },
        )


def _waits(result: Moe) -> Iterator[Finding]:
    if not result.synchronisations:
        return
    longest = result.synchronisations[0]
    count, took_ns = (sum(getattr(w, name) for w in result.synchronisations) for name in ("count", "duration_ns"))
    yield Finding(
        code="TF220",
        severity=Severity.WARNING,
        title=f"the host waits for the device {count} times around the exchange of tokens, {took_ns / 1e6:.3f} ms in all",
        provenance=Provenance.MEASURED,
        suggestion="keep splits on the device, or copy them on a stream of their own before they are needed",
        evidence=longest.to_dict(),
    )
