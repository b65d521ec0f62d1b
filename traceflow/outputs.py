"""Recorded outputs: what a program computed, kept in its capture, so that another run can be compared with it.

A program keeps them with ``recorder.attach("outputs.npz", {"loss": loss, "logits": logits})``, arrays by name. Each
process has a file of its own.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from traceflow.array_file import arrays_in

NAME = "outputs.npz"
_FILE = re.compile(rf"rank(\d+)\.{re.escape(NAME)}")


def recorded_outputs(capture: Path) -> dict[str, NDArray[Any]] | None:
    """The outputs in a capture by name, those of several ranks as `rank/name`; None where none were recorded.

    Nothing in the files is executed: pickled objects are refused.

    Args:
        capture: A folder; anything else holds no outputs.

    Raises:
        TraceflowError: TF103 where a file cannot be read.
    """
    files = (
        sorted(file for file in capture.glob(f"rank*.{NAME}") if _FILE.fullmatch(file.name)) if capture.is_dir() else []
    )
    several = len(files) > 1
    outputs: dict[str, NDArray[Any]] = {}
    for file in files:
        rank = int(file.name[4:].split(".")[0])
        with arrays_in(file) as arrays:
            outputs |= {f"{rank}/{name}" if several else name: values for name, values in arrays.items()}
    return outputs if files else None
