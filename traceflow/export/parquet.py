"""A run as Parquet: one file per table, all of them always, so that queries find what they name."""

from __future__ import annotations

import os
from pathlib import Path

from traceflow.errors import TraceflowError
from traceflow.export.schema import TABLES
from traceflow.export.subject import Answers, Subject


def write_parquet(run: Subject, folder: Path, *, step: int | None = None, force: bool = False) -> Path:
    """Write the tables of a run as `<table>.parquet` in a folder. Each file appears complete or not at all.

    Args:
        run: The run.
        folder: The folder to make. Where it is there, `force` replaces the files of tables in it, and leaves others.
        step: Which step segments, communication and findings are of; the whole capture where None.
        force: Whether to write into a folder that is there and not empty.

    Returns:
        `folder`.

    Raises:
        TraceflowError: TF110 when the folder is not empty and `force` is not set, TF111 without such a step, TF114
            when it cannot be written.
    """
    check_folder(folder, force=force)
    from traceflow.export.tables import table

    of = Answers(run, step)
    try:
        folder.mkdir(exist_ok=True)
        for name in TABLES:
            _write(table(of, name), folder / f"{name}.parquet")
    except OSError as error:
        why = error.strerror or type(error).__name__
        raise TraceflowError("TF114", f"cannot write {folder}", why, "choose another place with -o") from error
    return folder


def check_folder(folder: Path, *, force: bool) -> None:
    """Say so before any work is done for a folder that cannot be written.

    Raises:
        TraceflowError: TF110 when something is there that may not be replaced, TF114 when it has no place.
    """
    what = f"cannot write {folder}"
    if folder.exists() and not folder.is_dir():
        raise TraceflowError("TF110", what, "it is a file", "give the name of a folder")
    if folder.is_dir() and not force and any(folder.iterdir()):
        raise TraceflowError("TF110", what, "it is not empty", "give another name with -o, or replace it with -f")
    if not folder.parent.is_dir():
        hint = "make it, or choose another place with -o"
        raise TraceflowError("TF114", what, f"there is no folder {folder.parent}", hint)


def _write(content: object, path: Path) -> None:
    import pyarrow.parquet as pq

    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        pq.write_table(content, draft, compression="zstd")
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
