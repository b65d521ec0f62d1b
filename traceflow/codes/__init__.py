"""Every stable code that traceflow prints: what it means and what to do about it.

TF1xx refuse an input or a request, TF2xx are findings about a step, TF3xx are remarks on the evidence,
TF9xx are failures of traceflow itself. A code keeps its meaning for good; one that is no longer used stays listed.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from traceflow.codes.code import Code
from traceflow.codes.failures import FAILURES
from traceflow.codes.findings import FINDINGS
from traceflow.codes.refusals import REFUSALS
from traceflow.codes.remarks import REMARKS

ALL = (*REFUSALS, *FINDINGS, *REMARKS, *FAILURES)

CODES: Mapping[str, Code] = MappingProxyType({entry.code: entry for entry in ALL})
"""Every code by its name."""

__all__ = ["ALL", "CODES", "Code"]
