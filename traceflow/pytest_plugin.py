"""A plugin of pytest: the fixture `traceflow_check`, which holds captures to limits in a test.

    def test_step(traceflow_check):
        traceflow_check("runs/a").require("exposed_share < 0.2", "live_peak_bytes <= 8 GiB")

Nothing is loaded before a test uses the fixture.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeAlias

import pytest

if TYPE_CHECKING:
    from traceflow.run import Run

    Source: TypeAlias = "Run | str | Path"


class Checked:
    """A run under test; questions are asked when something is required.

    Args:
        run: What is checked, opened or as `tf.open` takes it.
        baseline: What `baseline` means in expressions.
    """

    def __init__(self, run: Source, baseline: Source | None = None) -> None:
        self._run = run
        self._baseline = baseline

    def require(self, *expressions: str, step: int | None = None) -> Self:
        """Fail the test where an expression does not hold, or a quantity in it is not known.

        Args:
            expressions: Such as ``"exposed_share < 0.2"``.
            step: Which step; the whole capture where None.

        Raises:
            AssertionError: With a line for each that does not hold.
            ExpressionError: For one that cannot be understood.
        """
        from traceflow.asking import check
        from traceflow.run import Run, open_run

        __tracebackhide__ = True  # what pytest shows is the line of the test
        if not isinstance(self._run, Run):  # read once, however often something is required
            self._run = open_run(self._run)
        found = check(self._run, expressions, baseline=self._baseline, step=step)
        if not found.passed:
            lines = "".join(f"\n  {finding.code} {finding.title}" for finding in found.findings)
            raise AssertionError(f"{self._run.inputs[0]} does not keep to its limits:{lines}")
        return self


@pytest.fixture
def traceflow_check() -> Callable[..., Checked]:
    """Check a capture: `traceflow_check(capture, baseline=None).require("exposed_share < 0.2")`."""
    return Checked
