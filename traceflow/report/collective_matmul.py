"""Products that are cut into rounds, for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, TypeAlias

from rich.text import Text

from traceflow.report.names import short_name, where
from traceflow.report.tables import Rows, heading, left_out
from traceflow.report.units import UNKNOWN, duration_text, share_text, size_text, unit_for

if TYPE_CHECKING:
    from rich.console import RenderableType

Row: TypeAlias = Mapping[str, Any]

_FITS = {True: "yes", False: "no", None: UNKNOWN}


def collective_matmul_parts(result: Row, top: int) -> Iterator[RenderableType]:
    """Each loop with its rounds, then the collectives that could be hidden in one.

    Args:
        result: The `result` of `traceflow show collective-matmul`.
        top: Longest tables, in rows.
    """
    loops = result["loops"]
    if not loops:
        yield Text("No product is cut into rounds.")
    for loop in loops[:top]:
        yield from _loop(loop, top)
    yield from left_out(loops, top, "loops")
    yield from _candidates(result["candidates"], top)


def _loop(loop: Row, top: int) -> Iterator[RenderableType]:
    yield heading(f"{loop['name']}: {loop['verdict']}")
    sent = UNKNOWN if loop["permute_bytes"] is None else size_text(loop["permute_bytes"])
    written = f", {PurePosixPath(loop['source']).name}" if loop["source"] else ""
    travels = f", {loop['travels']} travel" if loop["travels"] else ""
    told = (_counted(loop["rounds"], "round"), _counted(loop["permutes"], "permute"), sent, loop["form"])
    yield Text("{}, {}, {} sent by each device; {}".format(*told) + travels + written)
    if loop["participant"] is not None:
        yield Text(_times(loop))
    if loop["per_round"]:
        yield from _rounds(loop, top)


def _counted(count: int | None, what: str) -> str:
    return f"{UNKNOWN} {what}s" if count is None else f"{count} {what}{'' if count == 1 else 's'}"


def _times(loop: Row) -> str:
    ratio = loop["chunk_efficiency_ratio"]
    efficiency = "" if ratio is None else f"; in one piece the product takes {ratio:.2f} of the time of its rounds"
    exposed = share_text(loop["exposed_ns"], loop["permute_ns"])
    return (
        f"{where(loop['participant'])}, {_counted(loop['executions'], 'execution')}: permutes {duration_text(loop['permute_ns'])}, "
        f"exposed {duration_text(loop['exposed_ns'])} ({exposed}); products {duration_text(loop['matmul_ns'])}{efficiency}"
    )


def _rounds(loop: Row, top: int) -> Iterator[RenderableType]:
    """The rounds as one device has them: the one with most exposed, else the first."""
    rounds = loop["per_round"]
    unit = unit_for(ns for one in rounds for ns in (one["permute_ns"], one["product_ns"]))
    whose, at = observer(loop)
    rows = [
        (
            str(one["round"]),
            str(one["block"][at]),
            used_rows(one, at),
            _FITS[one["matches"]],
            UNKNOWN if one["sent_bytes"] is None else size_text(one["sent_bytes"]),
            unit.text(one["permute_ns"]) if one["permute"] else "",
            unit.text(one["exposed_ns"]) if one["permute"] else "",
            unit.text(one["product_ns"]),
            one["product"],
        )
        for one in rounds[:top]
    ]
    yield heading(f"Rounds of {whose} {at} ({unit.name})")
    yield Rows(("round", "block of", "rows", "fit", "sent", "permute", "exposed", "product", "name"), rows)
    yield from left_out(rounds, top, "rounds")


def observer(loop: Row) -> tuple[str, int]:
    """Whose rounds are shown, the one with most exposed or else the first: a device or a rank, and its place.

    Args:
        loop: A row of `loops`, with rounds.
    """
    whose = "rank" if loop["form"] == "operators" else "device"
    at = 0 if loop["participant"] is None else loop["participant"][whose] or 0
    return whose, at if at < len(loop["per_round"][0]["block"]) else 0


def used_rows(one: Row, at: int) -> str:
    """The part of its own operand that a device uses in a round.

    Args:
        one: A row of `per_round`.
        at: The place of the device.
    """
    if one["rows"] is None:
        return UNKNOWN if one["matches"] is None else "whole"
    begin, end = one["rows"][at]
    return f"{begin}:{end}"


def _pair(one: Row) -> str:
    """A collective and its product; kernels are long and tell no more than the operation."""
    collective = one["collective"] if one["program"] else one["operation"]
    return f"{collective} and {short_name(one['matmul'])} {PurePosixPath(one['source']).name}".rstrip()


def _candidates(candidates: Sequence[Row], top: int) -> Iterator[RenderableType]:
    if not candidates:
        return
    unit = unit_for(ns for one in candidates for ns in (one["exposed_ns"], one["matmul_ns"]))
    rows = [
        (
            unit.text(one["saved_ns"]),
            unit.text(one["exposed_ns"]),
            unit.text(one["matmul_ns"]),
            UNKNOWN if one["bytes"] is None else size_text(one["bytes"]),
            _pair(one),
        )
        for one in candidates[:top]
    ]
    yield heading(f"Could be cut into rounds ({unit.name}; saved is modelled by replay)")
    yield Rows(("saved", "exposed", "product", "bytes", "name"), rows)
    yield from left_out(candidates, top, "others")
