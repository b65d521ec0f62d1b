"""Two ways to divide a layer, for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from rich.text import Text

from traceflow.report.tables import Rows, heading
from traceflow.report.units import UNKNOWN, duration_text, size_text

if TYPE_CHECKING:
    from rich.console import RenderableType

Row: TypeAlias = Mapping[str, Any]


def split_parts(result: Row) -> Iterator[RenderableType]:
    """What a device does under either plan, and when the second pays.

    Args:
        result: The `result` of `traceflow plan compare`.
    """
    yield Text("A: each device its own rows and all weights. B: all rows and its part of the weights.")
    yield heading("One device")
    names = ("a", "b")
    sides = [result[name] for name in names]
    yield Rows(
        ("A", "B", "name"),
        [
            (*(f"{side['flops']:,}" for side in sides), "FLOPs"),
            (*(size_text(side["weight_bytes"]) for side in sides), "weights read"),
            (*(size_text(side["all_gather_bytes"]) for side in sides), "sent in the all-gather"),
            (*(size_text(side["reduce_scatter_bytes"]) for side in sides), "sent in the reduce-scatter"),
            (*(_time(side["local_ns"]) for side in sides), "products at least"),
        ],
    )
    yield from _break_even(result["break_even"])


def _break_even(found: Row) -> Iterator[RenderableType]:
    yield heading(f"B is faster where {found['condition']}")
    saved, communication = _time(found["saved_ns"]), _time(found["communication_ns"])
    verdict = {True: "B is faster", False: "A is faster, or equally fast", None: "which is faster is not known"}
    yield Text(f"{saved} against {communication}: {verdict[found['b_pays']]}, by bounds at peak rates.")
    if (rate := found["link_bytes_per_s"]) is not None:
        yield Text(f"Break-even with links of {rate / 1e9:,.3g} GB/s per device, in one direction.")


def _time(ns: int | None) -> str:
    return UNKNOWN if ns is None else duration_text(ns)
