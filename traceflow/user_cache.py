"""The user's folder for what can be made again, and how files are written into it."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path

VARIABLE = "TRACEFLOW_CACHE"


def user_cache() -> Path | None:
    """The folder `traceflow` in the user's cache directory, or what TRACEFLOW_CACHE names; None without a home.

    Example:
        >>> import os
        >>> os.environ["XDG_CACHE_HOME"] = "/tmp/kept"
        >>> os.environ.pop("TRACEFLOW_CACHE", None) and None
        >>> print(user_cache())
        /tmp/kept/traceflow
    """
    named = os.environ.get(VARIABLE, "")
    if named and named != "off":
        return Path(named).absolute()
    home = os.environ.get("XDG_CACHE_HOME", "")
    if home and Path(home).is_absolute():
        return Path(home) / "traceflow"
    with suppress(RuntimeError):
        return Path.home() / ".cache" / "traceflow"
    return None


def write_whole(path: Path, content: bytes) -> None:
    """Write a file so that others see all of it or nothing.

    Raises:
        OSError: When the folder cannot be made or written, or the disk is full.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name[:40]}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        Path(name).replace(path)
    finally:
        with suppress(OSError):
            Path(name).unlink()  # which is there only if something went wrong
