"""What a page says of memory: live bytes over a program and over time, what is alive at the peak, and padding."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any, TypeAlias

from traceflow.report.definitions import DEFINITIONS
from traceflow.report.grid import Column, Grid, counts, duration, names, percents, words
from traceflow.report.names import printable
from traceflow.report.sections import left_out
from traceflow.report.timeline import participant
from traceflow.report.units import size_text
from traceflow.result import Provenance

Row: TypeAlias = Mapping[str, Any]

_MOST_CHARTS, _MOST_BARS, _MOST_ROWS = 4, 400, 25
_VISIBLE = 0.01  # of a height, or of the largest


@dataclass(frozen=True, slots=True)
class Bar:
    """A stretch of program or of time: position, width and height in percent."""

    left: float
    width: float
    height: float
    label: str


@dataclass(frozen=True, slots=True)
class LiveChart:
    """Live bytes as bars beside one another; `kept` is the height of what is there all the time, in percent."""

    title: str
    most: str
    begin: str
    end: str
    bars: tuple[Bar, ...]
    kept: float = 0


@dataclass(frozen=True, slots=True)
class MemorySection:
    """Everything that a page says of memory."""

    charts: tuple[LiveChart, ...]
    grids: tuple[Grid, ...]


def memory_section(memory: Row, padding: Row) -> MemorySection | None:
    """The section on memory; None where the evidence says nothing of it.

    Args:
        memory: The `result` of `traceflow show memory`.
        padding: The `result` of `traceflow show padding`.
    """
    grids = (*_program_grids(memory["programs"]), *_allocator_grids(memory["allocator"]), *_padding_grids(padding))
    if not grids:
        return None
    charts = (*_program_charts(memory["programs"]), *_allocator_charts(memory["allocator"]))
    return MemorySection(charts, (*grids, *_traffic_grids(memory["traffic"])))


def _program_charts(programs: Sequence[Row]) -> Iterator[LiveChart]:
    """Of the largest programs in which something visible comes and goes."""
    changing = [
        one
        for one in programs
        if (peak := one["live_peak_bytes"]) and peak - one["persistent_bytes"] >= _VISIBLE * peak
    ]
    for one in changing[:_MOST_CHARTS]:
        most = one["live_peak_bytes"] or 1
        width = 100 / len(one["live"])
        bars = tuple(
            Bar(
                round(i * width, 3),
                round(width, 3),
                _percent(at["live_bytes"], most),
                _label(at["at"], at["live_bytes"]),
            )
            for i, at in enumerate(one["live"])
        )
        title = f"Live bytes over {printable(one['module'], 60)}, in the order of its allocations"
        yield LiveChart(
            title, size_text(most), "start of the program", "end", bars, _percent(one["persistent_bytes"], most)
        )


def _allocator_charts(uses: Sequence[Row]) -> Iterator[LiveChart]:
    known = sorted((use for use in uses if len(use["live"]) > 1), key=lambda use: -(use["peak_bytes"] or 0))
    large = [use for use in known if use["peak_bytes"] >= _VISIBLE * known[0]["peak_bytes"]]
    for use in large[:_MOST_CHARTS]:
        live, most = use["live"], use["peak_bytes"] or 1
        first_ns, last_ns = live[0]["start_ns"], live[-1]["start_ns"]
        span_ns = max(last_ns - first_ns, 1)
        ends = [*(at["start_ns"] for at in live[1:]), last_ns]
        bars = tuple(
            Bar(
                round(100 * (at["start_ns"] - first_ns) / span_ns, 3),
                round(100 * (end_ns - at["start_ns"]) / span_ns, 3),
                _percent(at["allocated_bytes"], most),
                _label(duration(at["start_ns"]), at["allocated_bytes"]),
            )
            for at, end_ns in zip(live, ends, strict=True)
            if end_ns > at["start_ns"]
        )
        title = f"Allocated bytes on {participant(use['rank'], use['device'])}, over time"
        yield LiveChart(title, size_text(most), duration(first_ns), f"{duration(last_ns)} of the capture", _fewer(bars))


def _fewer(bars: Sequence[Bar]) -> tuple[Bar, ...]:
    """At most `_MOST_BARS`: neighbours in one cell are drawn as one, as high as the highest."""
    cells: dict[int, list[Bar]] = {}
    for bar in bars:
        cells.setdefault(min(int(bar.left * _MOST_BARS / 100), _MOST_BARS - 1), []).append(bar)
    return tuple(
        replace(
            max(cell, key=lambda bar: bar.height),
            left=cell[0].left,
            width=round(cell[-1].left + cell[-1].width - cell[0].left, 3),
        )
        for cell in cells.values()
    )


def _percent(part: int | None, whole: int) -> float:
    return round(100 * (part or 0) / whole, 2)


def _label(at: str, size_bytes: int) -> str:
    return f"{printable(at, 80)}: {size_text(size_bytes)}"


def _program_grids(programs: Sequence[Row]) -> Iterator[Grid]:
    known = [one for one in programs if one["packed_bytes"] is not None]
    if not known:
        return
    shown = known[:_MOST_ROWS]
    heads = {
        "live peak": "live_peak_bytes",
        "packed": "packed_bytes",
        "reported peak": "compiler_peak_bytes",
        "kept": "persistent_bytes",
        "temporaries": "temp_bytes",
        "aliased": "alias_bytes",
    }
    columns = [_amounts(head, [one[key] for one in shown]) for head, key in heads.items()]
    yield Grid(
        "Programs, per device",
        (names("program", [one["module"] for one in shown]), *columns),
        left_out(len(known), len(shown), "programs"),
    )
    if known[0]["live_at_peak"]:
        yield _peak_grid(known[0])


def _peak_grid(program: Row) -> Grid:
    """The largest buffers at the peak of a program, and all others as one row."""
    alive, whole = program["live_at_peak"], program["live_peak_bytes"]
    shown, rest = alive[:_MOST_ROWS], alive[_MOST_ROWS:]
    sizes = [b["bytes"] for b in shown] + [sum(b["bytes"] for b in rest)] * bool(rest)
    extra = [None if b["logical_bytes"] is None else b["bytes"] - b["logical_bytes"] for b in alive]
    others = [f"{len(rest):,} others"] * bool(rest)
    blank = [""] * bool(rest)
    at = printable(program["peak_at"]["name"], 80)
    return Grid(
        f"Alive at the peak of {printable(program['module'], 60)}, at {at}",
        (
            names("buffer", [b["argument"] or b["name"] or "unnamed" for b in shown] + others),
            _amounts("size", sizes),
            replace(percents("of the peak", [size / whole for size in sizes]), provenance=Provenance.COMPILER),
            _amounts("padding", extra[:_MOST_ROWS] + [sum(e or 0 for e in extra[_MOST_ROWS:])] * bool(rest)),
            words("holds", [b["kind"] for b in shown] + blank),
            words("source line", ["/".join(PurePosixPath(b["source"] or "").parts[-2:]) for b in shown] + blank),
            names("born", [b["born"] for b in shown] + blank),
            names("dies", [b["dies"] for b in shown] + blank),
        ),
    )


def _amounts(head: str, values: Sequence[int | None], provenance: Provenance = Provenance.COMPILER) -> Column:
    """A column of sizes, each in a unit that suits it, since they differ by orders of magnitude."""
    cells = tuple(None if value is None else size_text(value) for value in values)
    return Column(head, cells, DEFINITIONS[head], "number", "", provenance, "the evidence does not say")


def _allocator_grids(uses: Sequence[Row]) -> Iterator[Grid]:
    if not uses:
        return
    shown = sorted(uses, key=lambda use: -(use["peak_bytes"] or 0))[:_MOST_ROWS]
    moments = ["not known" if use["peak_ns"] is None else duration(use["peak_ns"]) for use in shown]
    yield Grid(
        "Allocators",
        (
            words("participant", [participant(use["rank"], use["device"]) for use in shown]),
            _amounts("allocated peak", [use["peak_bytes"] for use in shown], Provenance.MEASURED),
            words("reached at", moments),
            _amounts("reserved", [use["reserved_peak_bytes"] for use in shown], Provenance.MEASURED),
            counts("events", [use["events"] for use in shown]),
        ),
        left_out(len(uses), len(shown), "devices"),
    )
    for head, key in (("use", "by_category_bytes"), ("phase", "by_phase_bytes")):
        told = next((use for use in shown if use[key]), None)
        if told is not None:
            ordered = sorted(told[key].items(), key=lambda item: -item[1])
            title = "At the peak, by use" if head == "use" else "Most in each phase"
            yield Grid(
                f"{title}, on {participant(told['rank'], told['device'])}",
                (
                    words(head, [name.replace("_", " ") for name, _ in ordered]),
                    _amounts("size", [size for _, size in ordered], Provenance.MEASURED),
                ),
            )


def _traffic_grids(traffic: Sequence[Row]) -> Iterator[Grid]:
    if not traffic:
        return
    shown = traffic[:_MOST_ROWS]
    yield Grid(
        "Moved, which is not what is in use",
        (
            words("participant", [participant(row["rank"], row["device"]) for row in shown]),
            names("interface", [row["interface"] for row in shown]),
            _amounts("moved", [row["bytes"] for row in shown]),
            words("provenance", [row["provenance"] for row in shown]),
        ),
        left_out(len(traffic), len(shown), "devices"),
    )


def _padding_grids(padding: Row) -> Iterator[Grid]:
    """Shapes by the padding of all values of that shape, and arrays whose shards are of unequal size."""
    by_shape: dict[str, list[Row]] = {}
    for row in padding["layout"]:
        by_shape.setdefault(row["shape"], []).append(row)
    sums = sorted(((_extra(rows), shape, rows) for shape, rows in by_shape.items()), key=lambda one: -one[0])
    if shown := sums[:_MOST_ROWS]:
        stored = [sum(row["physical_bytes"] for row in rows) for _, _, rows in shown]
        yield Grid(
            "Padding in layouts, by shape",
            (
                names("shape", [shape for _, shape, _ in shown]),
                counts("values", [len(rows) for _, _, rows in shown]),
                _amounts("size", stored),
                _amounts("padding", [extra for extra, _, _ in shown]),
                names("buffer", [rows[0]["name"] for _, _, rows in shown]),
            ),
            left_out(len(sums), len(shown), "shapes"),
        )
    if shards := (padding["shards"] or ())[:_MOST_ROWS]:
        yield Grid(
            "Arrays that do not divide evenly",
            (
                names("array", [row["name"] for row in shards]),
                words("whole", [str(row["global_shape"]) for row in shards]),
                words("each", [str(row["local_shape"]) for row in shards]),
                _amounts("padding", [row["padding_bytes"] for row in shards], Provenance.DERIVED),
            ),
        )


def _extra(rows: Sequence[Row]) -> int:
    return sum(row["physical_bytes"] - row["logical_bytes"] for row in rows)
