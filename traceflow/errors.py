"""The one error that users of traceflow see: a stable code, what happened, why, and what to do."""

from __future__ import annotations


class TraceflowError(Exception):
    """An input or a request that traceflow refuses, told in one line.

    Args:
        code: Stable identifier such as ``"TF101"``; `traceflow explain CODE` tells more.
        what: What could not be done, naming the file or the option.
        why: The cause.
        hint: What the user can do about it.

    Example:
        >>> print(TraceflowError("TF101", "cannot read run.json", "no such file", "check the path"))
        TF101: cannot read run.json: no such file; check the path
    """

    def __init__(self, code: str, what: str, why: str, hint: str) -> None:
        super().__init__(code, what, why, hint)
        self.code, self.what, self.why, self.hint = code, what, why, hint

    def __str__(self) -> str:
        return f"{self.code}: {self.what}: {self.why}; {self.hint}"
