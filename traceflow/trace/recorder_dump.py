"""Where the dump of PyTorch's flight recorder lies that belongs to a trace; :mod:`traceflow.trace.flight_recorder` reads it."""

from __future__ import annotations

from pathlib import Path


def dump_beside(file: Path) -> Path | None:
    """The dump of a trace, beside its file or in the folder above; None where there is none.

    That of `rank00003.pt.trace.json.gz` is `rank00003.flight_recorder.json`.
    """
    name = f"{file.name.partition('.')[0]}.flight_recorder.json"
    return next((folder / name for folder in (file.parent, file.parent.parent) if (folder / name).is_file()), None)
