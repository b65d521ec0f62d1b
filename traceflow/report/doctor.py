"""What the doctor found, for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from traceflow.report.names import printable
from traceflow.report.tables import heading, printed

if TYPE_CHECKING:
    from rich.console import RenderableType

_STYLES = {"good": "", "note": "", "warning": "yellow", "blocks": "bold red"}


def doctor_text(document: Mapping[str, Any], *, width: int, color: bool) -> str:
    """One line per check, with what to do below it.

    Args:
        document: What `traceflow doctor --format json` prints.
        width: Characters of a line.
        color: Whether to use terminal escapes.
    """
    return printed(_parts(document), width=width, color=color)


def _parts(document: Mapping[str, Any]) -> Iterator[RenderableType]:
    table = Table.grid(padding=(0, 2, 0, 0))
    for check in document["checks"]:
        lines = [printable(check["found"], 1000), *([f"-> {printable(check['fix'], 1000)}"] if check["fix"] else [])]
        table.add_row(*map(Text, (check["state"], check["name"], "\n".join(lines))), style=_STYLES[check["state"]])
    yield table
    yield heading("Something stands in the way of recording." if document["blocked"] else "Recording can begin.")
