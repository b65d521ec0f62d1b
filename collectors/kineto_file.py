"""Writing what Kineto has recorded: whole, or not at all."""

from __future__ import annotations

import gzip
import os
import shutil
from pathlib import Path
from typing import Any

_LEVEL = 6  # of gzip: half the time of 9, for a file that is hardly larger
_TAIL_BYTES = 64


def write_kineto(profiler: Any, scratch: Path, file: Path) -> None:
    """Write the trace of a profiler that has stopped into `file`, packed by gzip.

    Kineto does not say when a disk is full: it leaves a file that ends early, or is empty. So it writes into `scratch`,
    and `file` appears in one step, once its content is there to the last bracket.

    Args:
        profiler: With `export_chrome_trace`.
        scratch: A folder that may be made.
        file: What to write.

    Raises:
        OSError: where the trace could not be written to its end.
    """
    scratch.mkdir(parents=True, exist_ok=True)
    plain, draft = scratch / "kineto.json", file.with_name(f".{file.name}.draft")
    try:
        profiler.export_chrome_trace(str(plain))
        if not _is_whole(plain):
            raise OSError("the profiler could not write its trace to the end: is the disk full?")
        with plain.open("rb") as raw, gzip.open(draft, "wb", _LEVEL) as packed:
            shutil.copyfileobj(raw, packed, 1 << 20)
        draft.replace(file)
    finally:
        plain.unlink(missing_ok=True)
        draft.unlink(missing_ok=True)


def _is_whole(file: Path) -> bool:
    if not file.is_file():
        return False
    with file.open("rb") as content:
        content.seek(0, os.SEEK_END)
        content.seek(-min(content.tell(), _TAIL_BYTES), os.SEEK_CUR)
        return content.read().rstrip().endswith(b"}")
