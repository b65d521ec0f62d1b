"""The command line: `traceflow VERB INPUT`.

Results go to stdout, progress and errors to stderr. Exit codes: 0 fine, 1 the input or the tool failed, 2 the
command line could not be understood, 3 a gate does not hold, 130 interrupted.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from io import TextIOWrapper


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: Arguments without the name of the program; those of the process where None.

    Returns:
        The exit code.
    """
    from traceflow.cli.app import app

    # A name from a trace may not exist in the encoding of the terminal.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        app(argv, prog_name="traceflow")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0
    return 0
