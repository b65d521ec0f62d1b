"""Inputs in object stores: copies of what a URL names, in a folder of their own, as long as they are needed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from glob import has_magic
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from traceflow.errors import TraceflowError

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+(?:::|://)")


def is_url(source: str | Path) -> bool:
    """Whether an input is named by a URL, as those of fsspec are.

    Example:
        >>> is_url("s3://bucket/run"), is_url("runs/a"), is_url("C:/runs/a")
        (True, False, False)
    """
    return isinstance(source, str) and _URL.match(source) is not None


@dataclass(frozen=True)
class Copy:
    """What a URL names, on this machine."""

    url: str
    path: Path
    folder: Path | None  # what was made for it; None where the URL names a file of this machine

    def discard(self) -> None:
        """Remove what was made."""
        if self.folder is not None:
            import shutil

            shutil.rmtree(self.folder, ignore_errors=True)

    def named(self, error: TraceflowError) -> TraceflowError:
        """An error about the copy as one about what it was made of."""
        here, there = str(self.path), self.url.rstrip("/")
        return TraceflowError(*(text.replace(here, there) for text in (error.code, error.what, error.why, error.hint)))


def fetched(url: str) -> Copy:
    """Copy the file, the folder, or the files of a pattern that a URL names; files of this machine stay where they are.

    Args:
        url: As `s3://bucket/run`, `gs://bucket/run/*.json.gz` or `file:///runs/a`; whatever fsspec knows.

    Raises:
        TraceflowError: TF101 where nothing is there or may not be read, TF128 where nothing knows how to reach it.
    """
    import shutil
    from tempfile import mkdtemp

    from fsspec.core import url_to_fs
    from fsspec.implementations.local import LocalFileSystem

    try:
        store, path = url_to_fs(url)
    except (ImportError, ValueError) as error:
        why, hint = str(error).splitlines()[0].rstrip("."), "install what it names, or copy the files to this machine"
        raise TraceflowError("TF128", f"cannot reach {url}", why, hint) from error
    if isinstance(store, LocalFileSystem):
        return Copy(url, Path(path), None)
    with ExitStack() as undone:
        folder = Path(mkdtemp(prefix="traceflow-"))
        undone.callback(shutil.rmtree, folder, ignore_errors=True)
        try:
            copy = Copy(url, _copied(store, path, url, folder), folder)
        except OSError as error:
            raise _refusal(url, error.strerror or "it cannot be read") from error
        except TraceflowError:
            raise
        except Exception as error:  # what the driver of a store raises is its own affair
            told = (str(error).splitlines() or ["it failed"])[0].partition(", url=")[0].rstrip(".")
            raise _refusal(url, f"{told} ({type(error).__name__})") from error
        undone.pop_all()
    return copy


def _copied(store: Any, path: str, url: str, folder: Path) -> Path:
    """Copy files into a folder, and say which path in it stands for the URL."""
    path = root = path.rstrip("/")  # as text: some stores call their files by whole URLs
    while _is_pattern(store, root):
        root = root.rpartition("/")[0]
    files = _listed(store, path)
    if not files:
        raise _refusal(url, "no such file or folder")
    here = folder / (_without_query(store, root).rpartition("/")[2] or urlsplit(url).netloc or "root")
    names = [_without_query(store, file[len(root) :]).lstrip("/") for file in files]
    if any(".." in PurePosixPath(name).parts for name in names):
        raise _refusal(url, "a name in it leads out of its folder")
    places = [here / name if name else here for name in names]
    for place in places:
        place.parent.mkdir(parents=True, exist_ok=True)
    store.get(list(files), list(map(str, places)))
    return here


def _listed(store: Any, path: str) -> Sequence[str]:
    """The files that are meant, those of folders included."""
    meant = sorted(store.glob(path)) if _is_pattern(store, path) else [path]
    return [file for one in meant for file in sorted(store.find(one))]


def _is_pattern(store: Any, path: str) -> bool:
    return has_magic(_without_query(store, path))


def _without_query(store: Any, path: str) -> str:
    """A path without what is asked of it, as addresses of the web have it behind a question mark."""
    return path.partition("?")[0] if "https" in store.protocol else path


def _refusal(url: str, why: str) -> TraceflowError:
    return TraceflowError(
        "TF101", f"cannot read {url}", why[:1].lower() + why[1:], "check the URL and what it asks for"
    )
