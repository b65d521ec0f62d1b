"""The one place where errors end: as one line on stderr and an exit code."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import typer

from traceflow.errors import TraceflowError


@contextmanager
def errors_told(*, debug: bool) -> Iterator[None]:
    """Run a verb; turn what goes wrong into one line and an exit code.

    Args:
        debug: Also show the traceback.

    Raises:
        typer.Exit: 1 for an error, 130 for an interruption.
    """
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:  # whoever read the output has seen enough
        abandon_stdout()
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    except typer.BadParameter:
        raise
    except TraceflowError as error:
        _fail(str(error), debug=debug)
    except Exception as error:  # noqa: BLE001  # the only place that may: a user never sees a traceback unasked
        what = f"TF900: {type(error).__name__}: {error}: this is a bug in traceflow"
        _fail(what if debug else f"{what}; run with --debug for the traceback", debug=debug)


def _fail(message: str, *, debug: bool) -> NoReturn:
    from traceflow.report.names import printable

    if debug:
        traceback.print_exc()
    sys.stderr.write(f"error: {printable(message, 2000)}\n")
    raise typer.Exit(1) from None


def abandon_stdout() -> None:
    """Let what is still buffered for stdout go nowhere, so that the interpreter can end in silence."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
