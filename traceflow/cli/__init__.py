"""The command line: `traceflow VERB INPUT`.

Results go to stdout, progress and errors to stderr. Exit codes: 0 fine, 1 the input or the tool failed, 2 the
command line could not be understood, 3 a gate does not hold, 130 interrupted.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from io import StringIO, TextIOWrapper
from typing import Any


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: Arguments without the name of the program; those of the process where None.

    Returns:
        The exit code.
    """
    from typer import Abort, BadParameter

    from traceflow.cli.app import application
    from traceflow.report.names import printable_lines

    mistakes: Any = BadParameter.__bases__[0]  # all on the command line; typer has no public name for them
    # A name from a trace may not exist in the encoding of the terminal.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    app = application(sys.argv[1:] if argv is None else argv)
    try:
        ended = app(argv, prog_name="traceflow", standalone_mode=False)
    except mistakes as mistake:
        # What was typed, or pasted, is told back without what would command the terminal.
        mistake.show(file=(told := StringIO()))
        sys.stderr.write(printable_lines(told.getvalue()))
        return int(mistake.exit_code)
    except Abort:
        return 130
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0
    return ended if isinstance(ended, int) else 0
