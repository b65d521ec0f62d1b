"""TF9xx: what is wrong with traceflow itself."""

from __future__ import annotations

from traceflow.codes.code import Code

FAILURES = (
    Code(
        "TF900",
        "a bug in traceflow",
        "Something happened that traceflow did not foresee. The input may be unusual, but the message should have said so.",
        "Report it with the output of the same command and --debug.",
    ),
)
