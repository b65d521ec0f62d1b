"""What a page says of a job's slowdown: a heat map of its workers, and tables of what explains it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import nlargest
from typing import Any, TypeAlias

from traceflow.report.definitions import DEFINITIONS
from traceflow.report.grid import Column, Grid, duration, durations, names, percent, percents, times, words
from traceflow.report.sections import MOST_ROWS, left_out
from traceflow.report.slowdown import verdict
from traceflow.report.units import UNKNOWN
from traceflow.result import Provenance

Row: TypeAlias = Mapping[str, Any]

_UNKNOWN_RATIO = "the ideal step takes no time"
_NO_EXCESS = "the steps are no longer than the ideal ones"


@dataclass(frozen=True, slots=True)
class Cell:
    """A worker on the heat map: where it stands, and how strongly it is coloured."""

    column: int
    row: int
    kind: str  # slower or faster
    depth: float  # 0..1 of the strongest on the map
    text: str
    label: str


@dataclass(frozen=True, slots=True)
class HeatMap:
    """Workers by pipeline stage and data parallel rank."""

    columns: tuple[str, ...]
    rows: tuple[str, ...]
    cells: tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class Workers:
    """The section on a job's workers."""

    sentence: str
    lengths_ns: Mapping[str, int]
    heat_map: HeatMap
    grids: tuple[Grid, ...]


def workers(result: Row) -> Workers | None:
    """The section; None where the result is not of an operation table.

    Args:
        result: The `result` of `traceflow show stragglers`.
    """
    if "slowdown_ratio" not in result:
        return None
    lengths = {which: result[f"{which}_ns"] for which in ("measured", "replayed", "ideal")}
    return Workers(verdict(result), lengths, heat_map(result["by_worker"]), tuple(_grids(result)))


def heat_map(by_worker: Sequence[Row]) -> HeatMap:
    """Every worker in the column of its stage and the row of its data parallel rank, coloured by its slowdown.

    Workers of one stage and data parallel rank stand below one another.
    """
    stages = sorted({_order(worker["stage"]) for worker in by_worker})
    seen: Counter[tuple[int, int]] = Counter()
    places = []
    for worker in by_worker:
        where = _order(worker["dp_rank"]), _order(worker["stage"])
        places.append((where[0], seen[where]))
        seen[where] += 1
    rows = sorted(set(places))
    strongest = max(
        (abs(worker["slowdown_ratio"] - 1) for worker in by_worker if worker["slowdown_ratio"]), default=0.0
    )
    cells = (
        _cell(worker, stages.index(_order(worker["stage"])), rows.index(place), strongest)
        for worker, place in zip(by_worker, places, strict=True)
    )
    return HeatMap(
        tuple(f"stage {_named(stage)}" for stage in stages), tuple(f"dp {_named(row[0])}" for row in rows), tuple(cells)
    )


def _cell(worker: Row, column: int, row: int, strongest: float) -> Cell:
    ratio = worker["slowdown_ratio"]
    beyond = 0.0 if ratio is None else ratio - 1
    text = UNKNOWN if ratio is None else f"{ratio:.3f}"
    explained = UNKNOWN if worker["explained_ratio"] is None else percent(worker["explained_ratio"])
    label = f"rank {worker['rank']}: slowdown {text}, costs {duration(worker['cost_ns'])}, explains {explained}"
    depth = round(abs(beyond) / strongest, 3) if strongest else 0.0
    return Cell(column, row, "slower" if beyond > 0 else "faster", depth, text, label)


def _order(number: int | None) -> int:
    return -1 if number is None else number


def _named(number: int) -> str:
    return UNKNOWN if number < 0 else str(number)


def _grids(result: Row) -> Iterator[Grid]:
    if ranking := result["ranking"]:
        who = [f"stage {row['stage']}" if row["rank"] is None else f"rank {row['rank']}" for row in ranking]
        told = words("who", who), words("cause", [row["cause"] for row in ranking])
        figures = _cost(ranking), _explained([row["evidence"] for row in ranking])
        yield Grid("To blame", (*told, names("name", [row["name"] for row in ranking]), *figures))
    if stages := result["by_stage"]:
        yield Grid("By stage", (words("stage", [str(row["stage"]) for row in stages]), *_figures(stages)))
    yield _by_worker(result["by_worker"])
    yield _by_type(result["by_type"])
    yield _by_step(result["by_step"])


def _by_worker(everyone: Sequence[Row]) -> Grid:
    rows = nlargest(MOST_ROWS, everyone, key=lambda row: row["cost_ns"]) if len(everyone) > MOST_ROWS else everyone
    places = {"rank": "rank", "dp rank": "dp_rank", "stage": "stage"}
    where = (words(head, [_named(_order(row[key])) for row in rows]) for head, key in places.items())
    return Grid("By worker", (*where, *_figures(rows)), left_out(len(everyone), len(rows), "workers, which cost less,"))


def _by_type(types: Sequence[Row]) -> Grid:
    rows = nlargest(MOST_ROWS, types, key=lambda row: row["cost_ns"])
    typical = times("typical", [row["typical_ns"] for row in rows])
    return Grid(
        "By type",
        (names("name", [row["type"] for row in rows]), typical, *_figures(rows)),
        left_out(len(types), len(rows), "types"),
    )


def _by_step(steps: Sequence[Row]) -> Grid:
    rows = steps[:MOST_ROWS]
    measured, replayed, ideal = durations(
        {which: [row[f"{which}_ns"] for row in rows] for which in ("measured", "replayed", "ideal")}
    )
    number = words("step", [str(row["step"]) for row in rows])
    lengths = measured, _modelled(replayed), _modelled(ideal)
    return Grid("By step", (number, *lengths, _slowdown(rows)), left_out(len(steps), len(rows), "steps"))


def _figures(rows: Sequence[Row]) -> tuple[Column, Column, Column]:
    return _cost(rows), _explained(rows), _slowdown(rows)


def _cost(rows: Sequence[Row]) -> Column:
    return _modelled(times("cost", [row["cost_ns"] for row in rows]))


def _explained(rows: Sequence[Row]) -> Column:
    return _modelled(percents("explained", [row["explained_ratio"] for row in rows], absent=_NO_EXCESS))


def _slowdown(rows: Sequence[Row]) -> Column:
    ratios = [row["slowdown_ratio"] for row in rows]
    cells = tuple(None if ratio is None else f"{ratio:.3f}" for ratio in ratios)
    return Column("slowdown", cells, DEFINITIONS["slowdown"], "number", "ratio", Provenance.MODELLED, _UNKNOWN_RATIO)


def _modelled(column: Column) -> Column:
    return replace(column, provenance=Provenance.MODELLED)
