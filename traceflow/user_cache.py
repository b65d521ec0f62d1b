"""The user's folder for what can be made again, and how files that others must not forge are written and opened."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import BinaryIO

VARIABLE = "TRACEFLOW_CACHE"
_ABANDONED_S = 600
_UNUSED_S = 30 * 86_400


def user_cache() -> Path | None:
    """The folder `traceflow` in the user's cache directory, or what TRACEFLOW_CACHE names; None without a home.

    Example:
        >>> from unittest.mock import patch
        >>> with patch.dict(os.environ, {"TRACEFLOW_CACHE": "", "XDG_CACHE_HOME": "/srv/kept"}):
        ...     print(user_cache())
        /srv/kept/traceflow
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


def write_whole(path: Path, write: Callable[[BinaryIO], object], mode: int = 0o644) -> None:
    """Write a file so that others see all of it or nothing. What somebody else is writing is left to them.

    Args:
        path: The file; folders that lead to it are made.
        write: Writes its content into a file that is open.
        mode: Who may read and write it, from the moment it is there; the mask of the process takes away from it.

    Raises:
        OSError: When the folder cannot be made or written, the disk is full, or somebody is writing the same file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.draft")
    with suppress(FileNotFoundError):
        if time.time() - draft.stat().st_mtime > _ABANDONED_S:  # whoever began it was killed
            draft.unlink()
    with ExitStack() as unless_whole:
        new = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), mode)
        with os.fdopen(new, "wb") as file:
            unless_whole.callback(draft.unlink, missing_ok=True)
            write(file)
        draft.replace(path)


def forget_unused(folder: Path, pattern: str) -> None:
    """Remove the files of a pattern, which no other has, that were neither read nor written for 30 days, as far as the file system tells."""
    for file in folder.glob(pattern):
        with suppress(OSError):
            state = file.stat()
            if time.time() - max(state.st_atime, state.st_mtime) > _UNUSED_S:
                file.unlink()


def open_own(path: Path) -> BinaryIO:
    """Open a file that nobody but this user or root can have written.

    Raises:
        OSError: When it cannot be opened, or is another's.
    """
    file = path.open("rb")
    with ExitStack() as unless_own:
        unless_own.callback(file.close)
        state = os.fstat(file.fileno())
        if _is_of_another(state) or (hasattr(os, "getuid") and state.st_mode & 0o022):
            raise PermissionError(f"{path} may be another user's work")
        unless_own.pop_all()
    return file


def is_of_another(path: Path) -> bool:
    """Whether a file is there that belongs to neither this user nor root."""
    with suppress(OSError):
        return _is_of_another(path.stat())
    return False


def _is_of_another(state: os.stat_result) -> bool:
    return hasattr(os, "getuid") and state.st_uid not in {0, os.getuid()}
