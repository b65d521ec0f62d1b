"""Traces that were read before, as columns in a file: reading them again takes a fraction of the time.

A file of columns lies in the folder `.traceflow-cache` beside the trace that it was made of. Where that folder may not
be written, it lies in the user's cache directory. TRACEFLOW_CACHE names another folder for all of them, or says `off`.

It serves as long as nothing has changed: the trace, by its size, its number on the disk, the times of its last change
and samples of its content; the code that reads it; and the patterns that it was read with. What is damaged, of another
version or of another trace is made again. That it cannot be written is no error.

Columns go into machine code that trusts them, and hold what the trace holds. So those that another user may have written
are not read, and whoever may not read a trace may not read its columns.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import cache, partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from traceflow.result import Tally
from traceflow.trace.model import (
    Communications,
    Copies,
    Events,
    Flows,
    Group,
    HloEvents,
    Lanes,
    Launches,
    Marks,
    MemoryEvents,
    Operands,
    Rank,
    Syncs,
    Trace,
)
from traceflow.user_cache import VARIABLE, forget_unused, is_of_another, open_own, user_cache, write_whole

FOLDER = ".traceflow-cache"
"""Where files of columns lie, beside the traces that they were made of."""

_TABLES: dict[str, type[Any]] = {
    "events": Events,
    "communications": Communications,
    "syncs": Syncs,
    "flows": Flows,
    "hlo": HloEvents,
    "launches": Launches,
    "marks": Marks,
    "memory": MemoryEvents,
    "operands": Operands,
    "copies": Copies,
}
_WORTH_BYTES = {".gz": 400_000}  # of a packed file; smaller ones are read as fast as what was kept of them
_WORTH_PLAIN_BYTES = 4_000_000
_SETTLED_NS = 100_000_000  # clocks of file systems tick: what changes twice within a tick looks as if it changed once
_COARSE_NS = 2_000_000_000  # those of some only every two seconds
_SAMPLES, _SAMPLE_BYTES = 16, 4096
_NAME_LENGTH = 32


@dataclass(frozen=True, slots=True)
class _Rest:
    """What a trace holds beside its columns, and what the file was made of."""

    key: str
    lane_names: tuple[str, ...]
    strings: tuple[str, ...]
    groups: tuple[Group, ...]
    ranks: tuple[Rank, ...]
    epoch_ns: int | None
    format: str
    tally: Tally
    clock_error_ns: int
    metadata: dict[str, str]


@cache
def _damage() -> tuple[type[Exception], ...]:
    """What reading and writing columns may raise."""
    from zipfile import BadZipFile
    from zlib import error

    from msgspec import MsgspecError

    misread = (ValueError, LookupError, TypeError, ArithmeticError, RuntimeError)
    return (OSError, EOFError, MemoryError, error, BadZipFile, MsgspecError, *misread)


def kept_or_read(path: Path, read: Callable[[], Trace], *options: str) -> Trace:
    """The trace of a file: what was kept of it, or else what `read` returns, which is then kept.

    Args:
        path: The file.
        read: Reads it. What it raises is raised here, and nothing is kept.
        options: What else the trace depends on.
    """
    if os.environ.get(VARIABLE) == "off" or not _is_worth_it(path):
        return read()
    key = _key(path, options)
    for place in _places(path):
        with suppress(*_damage()):
            kept = _trace_in(place, key)
            if kept is not None:
                return kept
    trace = read()
    if key == _key(path, options) and _is_settled(path):
        for place in _places(path):
            with suppress(*_damage()):
                write_whole(place, partial(_write, trace, key), _mode(path))
                if place.parent.name != FOLDER:  # traces go, and the columns beside them with their folder
                    forget_unused(place.parent, f"{'[0-9a-f]' * _NAME_LENGTH}.npz")
                break
    return trace


def _is_worth_it(path: Path) -> bool:
    with suppress(OSError):
        return path.stat().st_size >= _WORTH_BYTES.get(path.suffix, _WORTH_PLAIN_BYTES)
    return False


def _places(path: Path) -> Iterator[Path]:
    """Where the columns of a trace may be kept, the preferred place first."""
    own, absolute = user_cache(), path.absolute()
    name = hashlib.sha256(os.fsencode(absolute)).hexdigest()[:_NAME_LENGTH]
    if not os.environ.get(VARIABLE) and _takes_files(absolute.parent):
        beside = absolute.parent / FOLDER / f"{path.name}.npz"
        if not is_of_another(beside):
            yield beside
    if own is not None:
        yield own / "traces" / f"{name}.npz"


def _takes_files(folder: Path) -> bool:
    """Whether files may be put into a folder; one that its owner protects is left alone even by who could."""
    return os.access(folder, os.W_OK) and bool(folder.stat().st_mode & 0o222)


def _mode(path: Path) -> int:
    """Who may read the columns of a trace: who may read the trace."""
    return 0o600 | path.stat().st_mode & 0o044


def _is_settled(path: Path) -> bool:
    """Whether a change from now on would show in the times of a file."""
    state = path.stat()
    changed_ns = max(state.st_mtime_ns, state.st_ctime_ns)
    return time.time_ns() - changed_ns > (_SETTLED_NS if changed_ns % 10**9 else _COARSE_NS)


def _key(path: Path, options: tuple[str, ...]) -> str:
    """Changes with the file, the code that reads it, and the options."""
    content = hashlib.sha256()
    with path.open("rb") as file:
        state = os.fstat(file.fileno())
        identity = state.st_size, state.st_mtime_ns, state.st_ctime_ns, state.st_ino, state.st_dev
        content.update(repr((path.name, identity, _reader(), options)).encode())
        for place in range(_SAMPLES):
            file.seek(max(state.st_size - _SAMPLE_BYTES, 0) * place // (_SAMPLES - 1))
            content.update(file.read(_SAMPLE_BYTES))
    return content.hexdigest()


@cache
def _reader() -> str:
    """Changes with the code that traces go through before they are kept."""
    here = Path(__file__).parent
    files = [*here.glob("*.py"), *(here.parent / name for name in ("result.py", "program/operators.py"))]
    content = hashlib.sha256(np.__version__.encode())
    for file in sorted(files):
        content.update(file.read_bytes())
    return content.hexdigest()


def _write(trace: Trace, key: str, file: BinaryIO) -> None:
    import msgspec

    rest = _Rest(
        key=key,
        lane_names=trace.lanes.name,
        **{f.name: getattr(trace, f.name) for f in fields(_Rest) if f.name not in {"key", "lane_names", "metadata"}},
        metadata=dict(trace.metadata),
    )
    columns = {f"lanes.{f.name}": getattr(trace.lanes, f.name) for f in fields(Lanes) if f.name != "name"}
    for name, table in _TABLES.items():
        columns |= {f"{name}.{f.name}": getattr(getattr(trace, name), f.name) for f in fields(table)}
    np.savez(file, rest=np.frombuffer(msgspec.json.encode(rest), np.uint8), **columns)


def _trace_in(place: Path, key: str) -> Trace | None:
    """The trace that a file holds; None where it was made of something else."""
    import msgspec

    with open_own(place) as file, np.load(file, allow_pickle=False) as columns:
        rest = msgspec.json.decode(columns["rest"].tobytes(), type=_Rest)
        if rest.key != key:
            return None
        tables = {name: _table(columns, name, table) for name, table in _TABLES.items()}
        numbers = {f.name: columns[f"lanes.{f.name}"] for f in fields(Lanes) if f.name != "name"}
    said = {f.name: getattr(rest, f.name) for f in fields(_Rest) if f.name not in {"key", "lane_names"}}
    return Trace(lanes=Lanes(name=rest.lane_names, **numbers), **tables, **said)


def _table(columns: Any, name: str, table: type[Any]) -> Any:
    return table(**{f.name: columns[f"{name}.{f.name}"] for f in fields(table)})
