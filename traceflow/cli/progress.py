"""Signs of life on stderr while work takes longer than a second."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Timer

from traceflow.cli.options import Options

PATIENCE_S = 1.0


@contextmanager
def working(what: str, options: Options) -> Iterator[None]:
    """Show a bar on stderr as long as the block runs, from its second second on.

    Nothing is shown where stderr is no terminal, with `--quiet`, and in CI.

    Args:
        what: What is being done.
        options: The options of the command.
    """
    if options.quiet or os.environ.get("CI") or not sys.stderr.isatty():
        yield
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from traceflow.report.names import printable

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
    progress = Progress(*columns, console=Console(stderr=True, no_color=options.no_color or None), transient=True)
    progress.add_task(printable(what), total=None)
    timer = Timer(PATIENCE_S, progress.start)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        progress.stop()
