"""`traceflow plan compare`: two ways to divide a layer, from shapes alone."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from traceflow.cli import output
from traceflow.cli.answer import tell
from traceflow.cli.options import WriteOptions
from traceflow.cli.project import hardware_named

if TYPE_CHECKING:
    from traceflow.trace.model import Trace


@dataclass(frozen=True)
class _Stated:
    """A layer stands in no trace: it is what was said."""

    inputs: tuple[str, ...]
    trace: Trace


def plan_compare(
    options: WriteOptions,
    rows: Annotated[int, typer.Option(metavar="N", min=1, help="Rows of X, all devices together.")],
    width: Annotated[int, typer.Option(metavar="N", min=1, help="Columns of X.")],
    hidden: Annotated[int, typer.Option(metavar="N", min=1, help="Columns of W1, and rows of W2.")],
    devices: Annotated[int, typer.Option(metavar="N", min=1, help="Devices that share the layer.")],
    dtype: Annotated[str, typer.Option(metavar="TYPE", help="Element type, as HLO spells it.")] = "bf16",
    hardware: Annotated[str | None, typer.Option(metavar="NAME", help="What it would run on, such as h100.")] = None,
) -> None:
    """All weights on every device (A) against weights divided (B), for X @ W1 @ W2, and when B pays."""
    from traceflow.intent.split import Layer, compare_split
    from traceflow.report.json import envelope
    from traceflow.trace.untraced import untraced

    output.refuse_existing(options.output or output.STDOUT, force=options.force)
    layer = Layer(rows, width, hidden, devices, dtype)
    result = compare_split(layer, None if hardware is None else hardware_named(hardware))
    stated = _Stated((f"X[{rows},{width}], hidden {hidden}, {devices} devices, {dtype}",), untraced())
    tell(envelope(result, stated, {**asdict(layer), "hardware": hardware}), options)
