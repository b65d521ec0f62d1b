"""What limits an answer that says nothing of its evidence itself: a file, or rows."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from traceflow.run import Run


def tell_limits(run: Run) -> None:
    """Say on stderr, in one line, why the evidence is not good; nothing where it is.

    Args:
        run: What was asked.
    """
    from traceflow.report.names import printable

    judged = run.quality()
    if judged.reasons:
        sys.stderr.write(f"evidence: {judged.verdict}: {printable('; '.join(judged.reasons), 1000)}\n")
