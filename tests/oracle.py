"""How tests that hold the analyzers against the simulator read what it wrote."""

from __future__ import annotations

import re
from collections.abc import Container
from pathlib import Path
from typing import TYPE_CHECKING

from simulator.kineto import BASE_NS, write

import traceflow
from traceflow.run import Run

if TYPE_CHECKING:
    from simulator.engine import Outcome


def recorded(
    outcome: Outcome,
    folder: Path,
    *,
    packed: bool = False,
    base_ns: int = BASE_NS,
    sequence_numbers: bool = True,
    ranks: Container[int] | None = None,
) -> Run:
    """What traceflow reads of some ranks of a simulated run, or of all; it is not on disk any longer."""
    write(outcome, folder, packed=packed, base_ns=base_ns, sequence_numbers=sequence_numbers)
    for file in folder.iterdir():
        if ranks is not None and int(file.name.removeprefix("rank").split(".")[0]) not in ranks:
            file.unlink()
    run = traceflow.open(folder)
    assert len(run.trace.events)
    for file in folder.iterdir():
        file.unlink()
    return run


def exactly(name: str) -> str:
    """A pattern for one name."""
    return f"^{re.escape(name)}$"


def origin_ns(outcome: Outcome) -> int:
    """When the capture of a run begins, step marks included."""
    return min(span.start_ns for span in outcome.spans)
