"""Mistakes in expressions of the command line, told with a pointer at the place."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import typer

from traceflow.expression import ExpressionError


@contextmanager
def mistakes_told(option: str) -> Iterator[None]:
    """Turn a mistake in an expression into one of the command line, which exits with 2.

    Args:
        option: Where the expression was given.

    Raises:
        typer.BadParameter: With the expression, and a caret below the mistake.
    """
    try:
        yield
    except ExpressionError as error:
        pointer = "".join(f"\n  {line}" for line in error.pointer.splitlines())
        raise typer.BadParameter(f"{error.why}; {error.hint}{pointer}", param_hint=option) from error
