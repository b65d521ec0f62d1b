"""Arrays by name in an `.npz` file that somebody else may have written, or damaged."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray

from traceflow.errors import TraceflowError

# What reading a damaged file, or taking its arrays for what they are not, may raise.
_UNREADABLE = (
    OSError,
    EOFError,
    ValueError,
    TypeError,
    LookupError,
    RuntimeError,  # encrypted
    MemoryError,  # a shape that cannot be
    zipfile.BadZipFile,
    zlib.error,
)


@contextmanager
def arrays_in(file: Path) -> Generator[dict[str, NDArray[Any]]]:
    """The arrays of a file, for a block that makes something of them.

    Nothing in the file is executed: pickled objects are refused.

    Raises:
        TraceflowError: TF103 where the file cannot be read, or the block finds that its arrays are not what they
            should be.
    """
    try:
        with file.open("rb") as content, NpzFile(content, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
        yield arrays
    except _UNREADABLE as error:
        why = str(error) or "it is cut short"
        raise TraceflowError("TF103", f"cannot read {file}", why, "record again, or delete it") from error
