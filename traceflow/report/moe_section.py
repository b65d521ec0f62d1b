"""What a page says of a mixture of experts: heat maps of its layers by expert and by rank, and tables of stages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import mean
from typing import Any, TypeAlias

from traceflow.report.grid import Column, Grid, counts, duration, durations, sizes, times, words
from traceflow.report.sections import left_out
from traceflow.report.timeline import participant
from traceflow.report.workers import Cell, HeatMap
from traceflow.result import Provenance

Row: TypeAlias = Mapping[str, Any]

_MOST_LAYERS, _MOST_COLUMNS, _MOST_ROWS = 64, 512, 60
_NOT_TOLD = "the record does not tell the width of a row"
_NOT_REPLAYED = "no work in the trace could be told to belong to it"


@dataclass(frozen=True, slots=True)
class MoeSection:
    """Everything that a page says of a mixture of experts."""

    balance: Mapping[str, Any] | None
    agreement: str
    maps: tuple[tuple[str, HeatMap], ...]
    grids: tuple[Grid, ...]


def moe_section(result: Row) -> MoeSection | None:
    """The section; None where nothing was recorded of the routing.

    Args:
        result: The `result` of `traceflow show moe`.
    """
    layers = result["layers"]
    if not layers:
        return None
    return MoeSection(
        balance=result["balance"],
        agreement=_agreement(result["agreement"]),
        maps=(
            ("Assignments of each expert over the mean, by layer", _experts(layers[:_MOST_LAYERS])),
            ("Rows that each rank multiplies over the mean, by layer", _ranks(layers[:_MOST_LAYERS])),
        ),
        grids=(_rows(layers), _moved(layers), *_stages(result["stages"]), *_waits(result["synchronisations"] or ())),
    )


def _agreement(agreed: Row | None) -> str:
    if agreed is None:
        return "No exchange of the trace could be compared with the record."
    if agreed["differing"]:
        return f"Of {agreed['compared']:,} exchanges in the trace, {agreed['differing']:,} differ from the record."
    return f"All {agreed['compared']:,} exchanges in the trace move the rows that were recorded."


def _experts(layers: Sequence[Row]) -> HeatMap:
    names = [f"expert {number}" for number in range(min(max(layer["experts"] for layer in layers), _MOST_COLUMNS))]
    return _map(layers, names, names, [layer["tokens_per_expert"] for layer in layers], "assignments")


def _ranks(layers: Sequence[Row]) -> HeatMap:
    whose = max((layer["participants"] for layer in layers), key=len)[:_MOST_COLUMNS]
    who = [(one["rank"], one["device"]) for one in whose]
    return _map(
        layers,
        _told_apart(who),
        [participant(*one) for one in who],
        [layer["rows_per_rank"] for layer in layers],
        "rows",
    )


def _told_apart(whose: Sequence[tuple[int, int | None]]) -> list[str]:
    """Participants in as few words as tell them apart, for they stand above narrow columns.

    Example:
        >>> _told_apart([(0, 0), (0, 1)]), _told_apart([(0, None), (1, 0)]), _told_apart([(0, 0), (0, 1), (1, 0)])
        (['device 0', 'device 1'], ['rank 0', 'rank 1'], ['0:0', '0:1', '1:0'])
    """
    ranks = [rank for rank, _ in whose]
    if len(set(ranks)) == len(ranks):
        return [f"rank {rank}" for rank in ranks]
    if len(set(ranks)) == 1:
        return ["host" if device is None else f"device {device}" for _, device in whose]
    return [f"{rank}:{'host' if device is None else device}" for rank, device in whose]


def _map(
    layers: Sequence[Row], heads: Sequence[str], names: Sequence[str], values: Sequence[Sequence[int]], what: str
) -> HeatMap:
    """One row per layer, coloured by how far each number is from the mean of its layer; a head is a short name."""
    beyond = [[value / (mean(numbers) or 1) - 1 for value in numbers] for numbers in values]
    strongest = max((abs(one) for numbers in beyond for one in numbers), default=0.0)
    cells = (
        Cell(
            column,
            row,
            "slower" if one > 0 else "faster",
            round(abs(one) / strongest, 3) if strongest else 0.0,
            f"{one + 1:.2f}",
            f"layer {layers[row]['layer']}, {names[column]}: {values[row][column]:,} {what}, {one + 1:.2f} times the mean",
        )
        for row, numbers in enumerate(beyond)
        for column, one in enumerate(numbers[: len(names)])
    )
    return HeatMap(tuple(heads), tuple(f"layer {layer['layer']}" for layer in layers), tuple(cells))


def _layers(layers: Sequence[Row]) -> Column:
    return words("layer", [str(layer["layer"]) for layer in layers])


def _rows(layers: Sequence[Row]) -> Grid:
    shown = layers[:_MOST_ROWS]
    saved = times("balance saves", [layer["balance_saved_ns"] for layer in shown], absent=_NOT_REPLAYED)
    return Grid(
        "Rows of each layer",
        (
            _layers(shown),
            counts("assignments", [layer["assignments"] for layer in shown]),
            counts("dropped", [layer["dropped"] for layer in shown]),
            counts("executed rows", [layer["executed_rows"] for layer in shown]),
            counts("capacity padding", [layer["capacity_padding_rows"] for layer in shown]),
            counts("alignment padding", [layer["alignment_padding_rows"] for layer in shown]),
            counts("masked rows", [layer["masked_rows"] for layer in shown]),
            words("hot expert", [f"{layer['hot_expert']}, {_ratio(layer['hot_expert_ratio'])}" for layer in shown]),
            words("hot rank", [f"{layer['hot_rank']}, {_ratio(layer['rank_imbalance_ratio'])}" for layer in shown]),
            replace(saved, provenance=Provenance.MODELLED),
        ),
        left_out(len(layers), len(shown), "layers"),
    )


def _ratio(value: float | None) -> str:
    return "no row" if value is None else f"{value:.2f} times the mean"


def _moved(layers: Sequence[Row]) -> Grid:
    shown = layers[:_MOST_ROWS]
    columns = (
        sizes(head, [layer[key] for layer in shown], absent=_NOT_TOLD)
        for head, key in (
            ("dispatch", "dispatch_bytes"),
            ("combine", "combine_bytes"),
            ("remote", "remote_bytes"),
            ("useful", "useful_bytes"),
        )
    )
    derived = (replace(column, provenance=Provenance.DERIVED) for column in columns)
    return Grid("Moved forward", (_layers(shown), *derived), left_out(len(layers), len(shown), "layers"))


def _stages(stages: Sequence[Row]) -> Iterator[Grid]:
    """Each stage with the participant that worked longest in it, and the one whose work lies most on the path."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for stage in stages:
        groups.setdefault((stage["stage"], stage["direction"]), []).append(stage)
    if not groups:
        return
    busiest = [max(parts, key=lambda part: part["work_ns"]) for parts in groups.values()]
    on_path = [max(parts, key=lambda part: part["path_ns"]) for parts in groups.values()]
    figures = durations(
        {
            "longest": [max(part["duration_ns"] for part in parts) for parts in groups.values()],
            "most work": [part["work_ns"] for part in busiest],
            "time on the path": [sum(part["path_ns"] for part in parts) for parts in groups.values()],
        }
    )
    yield Grid(
        "Stages",
        (
            words("part", [name for name, _ in groups]),
            words("direction", [direction for _, direction in groups]),
            *figures[:2],
            words("participant", [participant(part["rank"], part["device"]) for part in busiest]),
            figures[2],
            words("most of it", [_whose(part) for part in on_path]),
        ),
    )


def _whose(part: Row) -> str:
    return f"{participant(part['rank'], part['device'])}, {duration(part['path_ns'])}" if part["path_ns"] else "nobody"


def _waits(waits: Sequence[Row]) -> Iterator[Grid]:
    if not waits:
        return
    shown = waits[:_MOST_ROWS]
    yield Grid(
        "The host waits around the exchange",
        (
            words("rank", [str(wait["rank"]) for wait in shown]),
            words("part", [f"{wait['stage']} {wait['direction']}" for wait in shown]),
            words("call", [wait["name"] for wait in shown]),
            counts("times", [wait["count"] for wait in shown]),
            times("time in all", [wait["duration_ns"] for wait in shown]),
        ),
        left_out(len(waits), len(shown), "calls"),
    )
