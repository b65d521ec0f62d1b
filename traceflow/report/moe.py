"""Mixture of experts, for a terminal: routing, rows, traffic, stages, and what perfect balance would save."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from rich.text import Text

from traceflow.report.names import where
from traceflow.report.tables import Rows, heading, left_out
from traceflow.report.units import UNKNOWN, duration_text, share_text, size_text, unit_for

if TYPE_CHECKING:
    from rich.console import RenderableType

Row: TypeAlias = Mapping[str, Any]


def moe_parts(result: Row, top: int) -> Iterator[RenderableType]:
    """Layers, the experts of the most uneven one, stages, waits of the host, and checks.

    Args:
        result: The `result` of `traceflow show moe`.
        top: Longest tables, in rows.
    """
    layers = sorted(result["layers"], key=lambda one: -(one["rank_imbalance_ratio"] or 0))
    if layers:
        yield from _layers(layers, top)
        yield from _traffic(layers, top)
        yield from _experts(layers[0], top)
    if (balance := result["balance"]) is not None:
        yield Text(
            f"\nPerfect balance: {duration_text(balance['predicted_ns'])} instead of "
            f"{duration_text(balance['measured_ns'])}, {_signed(balance['saved_ns'])} saved (modelled, "
            f"{_bounds(balance)})",
            style="bold",
        )
    if result["stages"]:
        yield from _stages(result["stages"], top)
    if result["synchronisations"]:
        yield from _waits(result["synchronisations"], top)
    yield from _checks(result)


def _signed(ns: int) -> str:
    return duration_text(ns) if ns >= 0 else f"-{duration_text(-ns)}"


def _bounds(balance: Row) -> str:
    if balance["exact"]:
        return "exact"
    return f"between {duration_text(balance['low_ns'])} and {duration_text(balance['high_ns'])}"


def _ratio(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.2f}"


def _layers(layers: Sequence[Row], top: int) -> Iterator[RenderableType]:
    unit = unit_for(one["balance_saved_ns"] for one in layers)
    yield heading(f"Layers, the most uneven first (hot expert, uneven ranks: maximum over mean; saves: {unit.name})")
    rows = [
        (
            f"{one['assignments']:,}",
            f"{one['dropped']:,}",
            f"{one['executed_rows']:,}",
            f"{one['capacity_padding_rows']:,}",
            f"{one['alignment_padding_rows'] + one['masked_rows']:,}",
            _ratio(one["hot_expert_ratio"]),
            _ratio(one["rank_imbalance_ratio"]),
            unit.text(one["balance_saved_ns"]),
            f"{one['layer']}: expert {one['hot_expert']}, rank {one['hot_rank']}",
        )
        for one in layers[:top]
    ]
    heads = ("assigned", "dropped", "rows", "empty", "other", "hot", "uneven", "saves", "name")
    yield Rows(heads, rows)
    yield Text("empty: rows of a capacity that hold no token; other: those of an alignment or a mask")
    yield from left_out(layers, top, "layers that are more even")


def _traffic(layers: Sequence[Row], top: int) -> Iterator[RenderableType]:
    yield heading("Moved forward, and FLOPs of experts forward")
    rows = [
        (
            size_text(one["dispatch_bytes"]),
            size_text(one["combine_bytes"]),
            size_text(one["remote_bytes"]),
            size_text(one["useful_bytes"]),
            UNKNOWN if one["executed_flops"] is None else f"{one['executed_flops']:.3g}",
            share_text(one["wasted_flops"], one["executed_flops"] or 0),
            f"layer {one['layer']}",
        )
        for one in layers[:top]
    ]
    yield Rows(("dispatch", "combine", "remote", "useful", "FLOPs", "wasted", "name"), rows)


def _experts(layer: Row, top: int) -> Iterator[RenderableType]:
    """Who got most."""
    tokens, executed = layer["tokens_per_expert"], layer["rows_per_expert"]
    order = sorted(range(len(tokens)), key=lambda expert: -tokens[expert])
    yield heading(f"Experts of layer {layer['layer']}, the most wanted first")
    rows = [
        (f"{tokens[e]:,}", share_text(tokens[e], layer["assignments"]), f"{executed[e]:,}", f"expert {e}")
        for e in order[:top]
    ]
    yield Rows(("assigned", "share", "rows", "name"), rows)
    yield from left_out(order, top, "experts with fewer")
    busiest = sorted(zip(layer["rows_per_rank"], layer["participants"], strict=True), key=lambda pair: -pair[0])
    told = ", ".join(f"{where(who)} {count:,}" for count, who in busiest[:top])
    yield Text(f"rows per rank:device: {told}{' ...' if len(busiest) > top else ''}")


def _stages(stages: Sequence[Row], top: int) -> Iterator[RenderableType]:
    """Each stage: the participant that worked longest, the median, and what lies on the critical path."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for stage in stages:
        groups.setdefault((stage["stage"], stage["direction"]), []).append(stage)
    unit = unit_for(stage["duration_ns"] for stage in stages)
    rows = []
    for (name, direction), parts in groups.items():
        longest = max(parts, key=lambda part: part["work_ns"])
        most = max(parts, key=lambda part: part["path_ns"])
        rows.append(
            (
                unit.text(max(part["duration_ns"] for part in parts)),
                unit.text(longest["work_ns"]),
                unit.text(sorted(part["work_ns"] for part in parts)[len(parts) // 2]),
                where(longest),
                unit.text(sum(part["path_ns"] for part in parts)),
                where(most) if most["path_ns"] else "",
                f"{name} {direction}",
            )
        )
    del top  # there are no more stages than fit
    yield heading(f"Stages ({unit.name}; work without waits; most on the critical path is of whose)")
    yield Rows(("longest", "most work", "median", "where", "on path", "whose", "name"), rows)


def _waits(waits: Sequence[Row], top: int) -> Iterator[RenderableType]:
    unit = unit_for(wait["duration_ns"] for wait in waits)
    yield heading(f"The host waits around the exchange ({unit.name})")
    rows = [
        (
            unit.text(wait["duration_ns"]),
            f"{wait['count']:,}",
            str(wait["rank"]),
            f"{wait['name']} in {wait['stage']} {wait['direction']}",
        )
        for wait in waits[:top]
    ]
    yield Rows(("time", "times", "rank", "name"), rows)
    yield from left_out(waits, top, "others")


def _checks(result: Row) -> Iterator[RenderableType]:
    if (agreed := result["agreement"]) is not None:
        yield Text(f"\nExchanges in the trace: {agreed['compared']:,} compared, {agreed['differing']:,} differ")
    for check in result["combines"]:
        yield Text(f"Combination in layer {check['layer']} on rank {check['rank']}: {check['verdict']}")
