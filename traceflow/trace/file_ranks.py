"""Which rank a trace file is of, where the trace itself does not say: by its name, its capture, its folder."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path

from traceflow.errors import TraceflowError

_RANK = re.compile(r"rank[-_.]?(\d{1,9})", re.IGNORECASE)
# Hosts of one job, as in `t1v-n-abc-w-3.xplane.pb`. A bare number, as in `node17`, says which machine it was, not which
# part of the job.
_WORKER = re.compile(r"(?:^|[-_.])(?:w|worker|host|process|task)[-_]?(\d{1,9})(?=[.]|$)", re.IGNORECASE)
_ABOVE_RUN = 3  # <capture>/plugins/profile/<run>/<file>


def rank_in_name(name: str) -> int | None:
    """The rank that the name of a file tells.

    Example:
        >>> rank_in_name("rank00003.host.xplane.pb"), rank_in_name("host.xplane.pb")
        (3, None)
    """
    found = _RANK.search(name)
    return int(found[1]) if found else None


def file_ranks(files: Sequence[Path]) -> list[int]:
    """A rank for each file: the one that is told, else the next that is free, in the order given.

    Told is by the file's name, else by the manifest of the one process that recorded the capture, else by a folder
    that is named after a rank, else by the number of a worker in the name, where that tells the files apart.

    Args:
        files: Trace files of one run.

    Example:
        >>> file_ranks([Path("a.rank2.json"), Path("b.json"), Path("c.json")])
        [2, 0, 1]
        >>> file_ranks([Path("x-w-10.xplane.pb"), Path("x-w-2.xplane.pb")])
        [10, 2]
    """
    told = [_told(file) for file in files]
    workers = [None if rank is not None else _worker(file) for file, rank in zip(files, told, strict=True)]
    if _distinct([*told, *workers]):
        told = [worker if rank is None else rank for rank, worker in zip(told, workers, strict=True)]
    taken = set(told)
    free = (rank for rank in count() if rank not in taken)
    return [next(free) if rank is None else rank for rank in told]


def _told(file: Path) -> int | None:
    in_name = rank_in_name(file.name)
    if in_name is not None:
        return in_name
    recorded = _recorded(file)
    return _in_folders(file) if recorded is None else recorded


def _recorded(file: Path) -> int | None:
    """The rank of the process that recorded the capture in which a file lies, if it was only one."""
    above = file.absolute().parents
    if len(above) <= _ABOVE_RUN or above[1].name != "profile":
        return None
    from traceflow.capture import read_manifest

    with suppress(TraceflowError):  # a file of that name may be somebody else's
        manifest = read_manifest(above[_ABOVE_RUN])
        if manifest is not None and not manifest.peers:
            return manifest.process.rank
    return None


def _in_folders(file: Path) -> int | None:
    named = (_RANK.fullmatch(folder.name) for folder in file.absolute().parents)
    return next((int(found[1]) for found in named if found), None)


def _worker(file: Path) -> int | None:
    found = _WORKER.search(file.name)
    return int(found[1]) if found else None


def _distinct(ranks: Sequence[int | None]) -> bool:
    return all(times == 1 for rank, times in Counter(ranks).items() if rank is not None)
