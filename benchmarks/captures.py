"""Where benchmarks keep what they record."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory


@contextmanager
def kept(folder: Path | None) -> Iterator[Path]:
    """A new folder for captures; without a name, only for now."""
    if folder is None:
        with TemporaryDirectory() as name:
            yield Path(name)
    else:
        folder.mkdir(parents=True)
        yield folder
