"""What is in memory and what of it is padding, for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, TypeAlias

from rich.text import Text

from traceflow.report.tables import Rows, heading
from traceflow.report.units import UNKNOWN, duration_text, share_text, size_text

if TYPE_CHECKING:
    from rich.console import RenderableType

Row: TypeAlias = Mapping[str, Any]

_TOTALS = ("packed_bytes", "compiler_peak_bytes", "persistent_bytes", "temp_bytes", "alias_bytes")


def memory_parts(result: Row, top: int) -> Iterator[RenderableType]:
    """Programs by peak, what is alive at the largest, allocators, and traffic.

    Args:
        result: The `result` of `traceflow show memory`.
        top: Longest tables, in rows; the others are summed up.
    """
    programs = result["programs"]
    if programs:
        yield from _programs(programs, top)
        yield from _at_peak(programs[0], top)
        yield from _modelled(programs, top)
        yield from _together(result)
    if result["allocator"]:
        yield from _allocators(result["allocator"], top)
    if result["traffic"]:
        yield from _traffic(result["traffic"], top)


def _programs(programs: Sequence[Row], top: int) -> Iterator[RenderableType]:
    yield heading("Programs, per device (live: at once; packed: set aside; reported: by the runtime)")
    rows = [(_peak(one), *(size_text(one[key]) for key in _TOTALS), _module(one)) for one in programs[:top]]
    yield Rows(("live", "packed", "reported", "kept", "temp", "alias", "name"), rows)
    if rest := programs[top:]:
        largest = max((one["live_peak_bytes"] or 0 for one in rest), default=0)
        yield Text(f"and {len(rest):,} others, of at most {size_text(largest)} each")
    if any(one["scheduled_peak_bytes"] for one in programs[:top]):
        yield Text("~ by the schedule alone: the compiler's simulation of the heap is not there")


def _module(program: Row) -> str:
    return f"{program['module']}, not executed" if program["executed"] is False else str(program["module"])


def _peak(program: Row) -> str:
    """The live peak, or about that by the schedule."""
    about = program["scheduled_peak_bytes"]
    return size_text(program["live_peak_bytes"]) if about is None else f"~{size_text(about)}"


def _at_peak(program: Row, top: int) -> Iterator[RenderableType]:
    """What is alive at the peak of a program: by kind, then the largest buffers."""
    alive, peak = program["live_at_peak"], program["peak_at"]
    if peak is None:
        return
    whole = program["live_peak_bytes"]
    yield heading(f"Alive at the peak of {program['module']}, {size_text(whole)}, at {_place(peak)}")
    for moment in peak["moments"][:1]:
        device = "host" if moment["device"] is None else moment["device"]
        yield Text(f"first reached {duration_text(moment['start_ns'])} into the capture, on {moment['rank']}:{device}")
    kinds = {
        kind: sum(b["bytes"] for b in alive if b["kind"] == kind) for kind in dict.fromkeys(b["kind"] for b in alive)
    }
    yield Text(", ".join(f"{kind} {share_text(size, whole)}" for kind, size in kinds.items()))
    yield Text()
    rows = [(size_text(b["bytes"]), share_text(b["bytes"], whole), b["kind"], _buffer(b)) for b in alive[:top]]
    if rest := alive[top:]:
        left = sum(b["bytes"] for b in rest)
        rows.append((size_text(left), share_text(left, whole), "", f"{len(rest):,} others"))
    yield Rows(("size", "share", "kind", "name"), rows)


def _place(peak: Row) -> str:
    source = f" ({_file(peak['source'])})" if peak["source"] else ""
    return f"{peak['name']}{source}"


def _file(source: str) -> str:
    """The last part of a path with its line.

    Example:
        >>> _file("src/model/layers.py:42")
        'layers.py:42'
    """
    return PurePosixPath(source).name


def _buffer(buffer: Row) -> str:
    """Name, source and life of a buffer, and its padding where there is some."""
    told = [buffer["argument"] or buffer["name"] or "unnamed"]
    if buffer["source"]:
        told.append(_file(buffer["source"]))
    if buffer["kind"] == "temporary":
        told.append(f"until {buffer['dies']}")
    if buffer["logical_bytes"] is not None and buffer["logical_bytes"] < buffer["bytes"]:
        told.append(f"{share_text(buffer['bytes'] - buffer['logical_bytes'], buffer['bytes'])} padding")
    return ", ".join(told)


def _modelled(programs: Sequence[Row], top: int) -> Iterator[RenderableType]:
    asked = [one for one in programs if one["what_if"]]
    changed = [one for one in asked if one["what_if"]["without"] or one["what_if"]["donated"]]
    if asked and not changed:
        yield heading("What if: no buffer and no argument that can be donated is called so")
    if not changed:
        return
    yield heading("What if (modelled: the same schedule)")
    rows = [
        (
            size_text(one["what_if"]["saved_bytes"]),
            size_text(one["what_if"]["live_peak_bytes"]),
            str(len(one["what_if"]["without"])),
            str(len(one["what_if"]["donated"])),
            one["module"],
        )
        for one in changed[:top]
    ]
    yield Rows(("saves", "peak", "left out", "donated", "name"), rows)


def _together(result: Row) -> Iterator[RenderableType]:
    """All programs of a device at once."""
    peak, least, unshared = (result[f"co_resident_{which}_bytes"] for which in ("peak", "at_least", "unshared"))
    if peak is None and least is not None:
        yield Text(
            f"\nAll programs of a device together: at least {size_text(least)}, and {size_text(unshared)} if no argument "
            "is another's result"
        )


def _allocators(uses: Sequence[Row], top: int) -> Iterator[RenderableType]:
    yield heading("Allocators, per rank:device")
    rows = [
        (
            f"{use['rank']}:{'host' if use['device'] is None else use['device']}",
            size_text(use["peak_bytes"]),
            UNKNOWN if use["peak_ns"] is None else duration_text(use["peak_ns"]),
            size_text(use["reserved_peak_bytes"]),
            f"{use['events']:,}",
            use["source"],
        )
        for use in sorted(uses, key=lambda use: -(use["peak_bytes"] or 0))[:top]
    ]
    yield Rows(("where", "peak", "reached at", "reserved", "events", "name"), rows)
    if len(uses) > top:
        yield Text(f"and {len(uses) - top:,} with less")
    for title, key in (("At the peak, by use", "by_category_bytes"), ("Most in each phase", "by_phase_bytes")):
        told = sorted((use for use in uses if use[key]), key=lambda use: -(use["peak_bytes"] or 0))
        for use in told[:1]:
            yield heading(f"{title}, on {use['rank']}:{'host' if use['device'] is None else use['device']}")
            ordered = sorted(use[key].items(), key=lambda item: -item[1])
            yield Rows(("size", "name"), [(size_text(size), name.replace("_", " ")) for name, size in ordered])


def _traffic(rows: Sequence[Row], top: int) -> Iterator[RenderableType]:
    yield heading("Moved, which is not what is in use")
    cells = [
        (
            f"{row['rank']}:{'host' if row['device'] is None else row['device']}",
            size_text(row["bytes"]),
            f"{size_text(round(row['bytes'] / row['window_ns'] * 10**9))}/s" if row["window_ns"] else UNKNOWN,
            f"{row['interface']} ({row['provenance']})",
        )
        for row in rows[:top]
    ]
    yield Rows(("where", "moved", "on average", "name"), cells)
    if len(rows) > top:
        yield Text(f"and {len(rows) - top:,} others")


def padding_parts(result: Row, top: int) -> Iterator[RenderableType]:
    """Programs by padding, the values with most of it, and shards of unequal size.

    Args:
        result: The `result` of `traceflow show padding`.
        top: Longest tables, in rows; the others are summed up.
    """
    if result["total_padding_bytes"] is not None:
        stored = sum(one["physical_bytes"] for one in result["programs"])
        share = share_text(result["total_padding_bytes"], stored)
        yield Text(f"{size_text(result['total_padding_bytes'])} in layouts, {share} of what all values take, each once")
    if result["traffic_padding_bytes"] is not None:
        yield Text(
            f"{size_text(result['traffic_padding_bytes'])} moved with them in the capture, if each is moved whole"
        )
    padded = [one for one in result["programs"] if one["physical_bytes"] > one["logical_bytes"]]
    if padded:
        yield from _padded_programs(padded, top)
        yield from _layouts(result["layout"], top)
    if result["shards"]:
        yield from _shards(result["shards"], top)
    if result["moe"]:
        yield from _experts(result["moe"], top)


def _padded_programs(programs: Sequence[Row], top: int) -> Iterator[RenderableType]:
    yield heading("Programs with padding")
    rows = [
        (
            size_text(one["physical_bytes"] - one["logical_bytes"]),
            share_text(one["physical_bytes"] - one["logical_bytes"], one["physical_bytes"]),
            size_text(one["at_peak_padding_bytes"]),
            f"{one['values']:,}",
            one["module"],
        )
        for one in programs[:top]
    ]
    yield Rows(("padding", "share", "at peak", "values", "name"), rows)
    if len(programs) > top:
        yield Text(f"and {len(programs) - top:,} with less")


def _layouts(layout: Sequence[Row], top: int) -> Iterator[RenderableType]:
    """Shapes by their padding, since many values have the same."""
    by_shape: dict[str, list[Row]] = {}
    for row in layout:
        by_shape.setdefault(row["shape"], []).append(row)
    sums = sorted(((_extra(rows), rows) for rows in by_shape.values()), key=lambda pair: -pair[0])
    yield heading("Shapes with most padding")
    cells = [
        (
            size_text(extra),
            share_text(extra, sum(row["physical_bytes"] for row in rows)),
            f"{len(rows):,}",
            f"{rows[0]['shape']}, {rows[0]['name']}",
        )
        for extra, rows in sums[:top]
    ]
    if rest := sums[top:]:
        count = sum(len(rows) for _, rows in rest)
        cells.append((size_text(sum(extra for extra, _ in rest)), "", f"{count:,}", f"{len(rest):,} other shapes"))
    yield Rows(("padding", "share", "values", "name"), cells)


def _extra(rows: Sequence[Row]) -> int:
    return sum(row["physical_bytes"] - row["logical_bytes"] for row in rows)


def _shards(shards: Sequence[Row], top: int) -> Iterator[RenderableType]:
    yield heading("Arrays that do not divide evenly")
    rows = [
        (size_text(row["padding_bytes"]), _sizes(row["global_shape"]), _sizes(row["local_shape"]), row["name"])
        for row in shards[:top]
    ]
    yield Rows(("padding", "whole", "each", "name"), rows)
    if len(shards) > top:
        yield Text(f"and {len(shards) - top:,} with less")


def _experts(layers: Sequence[Row], top: int) -> Iterator[RenderableType]:
    """Rows of experts that hold no token."""
    kinds = ("capacity_padding_rows", "alignment_padding_rows", "masked_rows")
    ordered = sorted(layers, key=lambda layer: -sum(layer[kind] for kind in kinds))
    rows = [
        (
            *(f"{layer[kind]:,}" for kind in kinds),
            share_text(sum(layer[kind] for kind in kinds), layer["executed_rows"]),
            f"{layer['executed_rows']:,}",
            f"layer {layer['layer']}",
        )
        for layer in ordered[:top]
    ]
    yield heading("Rows of experts without a token, in all recorded steps")
    yield Rows(("capacity", "alignment", "masked", "share", "rows", "name"), rows)
    if len(layers) > top:
        yield Text(f"and {len(layers) - top:,} with less")


def _sizes(shape: Sequence[int]) -> str:
    return f"[{','.join(map(str, shape))}]"
