"""Where results go: stdout or a file that is not there yet."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path

from traceflow.cli.boundary import abandon_stdout
from traceflow.errors import TraceflowError

STDOUT = "-"
_WRITTEN = frozenset({".html", ".md", ".pftrace", ".txt", ".xml"})  # no input has such a name


def refuse_existing(output: str | Path, *sources: str, force: bool) -> None:
    """Say so before any work is done for a file that cannot be written.

    Args:
        output: The file, or `STDOUT`.
        sources: Inputs, which nothing may replace.
        force: Whether another file may be replaced.

    Raises:
        TraceflowError: TF110 when the output exists and may not be replaced, TF114 when it has no folder.
    """
    path, what = Path(output), f"cannot write {output}"
    if str(output) == STDOUT:
        return
    if path.is_dir():
        raise TraceflowError("TF110", what, "it is a folder", "give the name of a file")
    if path.exists() and any(_belongs_to(path, Path(source)) for source in sources):
        raise TraceflowError("TF110", what, "it is part of the input", "give another name with -o")
    if path.exists() and not force:
        raise TraceflowError("TF110", what, "it exists already", "give another name with -o, or replace it with -f")
    if not path.parent.is_dir():
        raise TraceflowError(
            "TF114", what, f"there is no folder {path.parent}", "make it, or choose another place with -o"
        )


def _belongs_to(path: Path, source: Path) -> bool:
    """Whether a file is an input, or lies in the folder that is and is none of those that are written only."""
    here = source.exists() and path.resolve().is_relative_to(source.resolve())
    return here and (source.is_file() or path.suffix not in _WRITTEN)


def write(text: str, output: str = STDOUT) -> None:
    """Write a result to stdout or to a file; whether the file may be replaced was settled before.

    Raises:
        TraceflowError: TF114 when it cannot be written.
    """
    try:
        if output == STDOUT:
            sys.stdout.write(text)
            sys.stdout.flush()
        else:
            Path(output).write_text(text, encoding="utf-8")
    except BrokenPipeError:
        raise
    except OSError as error:
        if output == STDOUT:
            abandon_stdout()
        why = error.strerror or type(error).__name__
        raise TraceflowError("TF114", f"cannot write {output}", why, "choose another place with -o") from error


def tell_written(place: Path) -> None:
    """Say on stdout what was written, whatever the input was called that its name was made of."""
    from traceflow.report.names import printable_lines

    write(printable_lines(f"Wrote {place}\n"))


def write_bytes(pieces: Iterable[bytes]) -> None:
    """Write a result that is no text to stdout."""
    sys.stdout.buffer.writelines(pieces)
    sys.stdout.buffer.flush()


def width() -> int:
    """Characters of a line: what COLUMNS says, else those of the terminal, else 80."""
    return shutil.get_terminal_size().columns


def colored(*, no_color: bool) -> bool:
    """Whether stdout shows colour: a terminal, and nobody asked for plain text."""
    return not no_color and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb" and sys.stdout.isatty()
