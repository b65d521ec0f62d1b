"""The one error that users of traceflow see: a stable code, what happened, why, and what to do."""

from __future__ import annotations

from collections.abc import Mapping

_NOT_THE_USERS = frozenset({"traceflow", "contextlib", "functools"})


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

    def _render_traceback_(self) -> list[str]:
        """As IPython shows it: the line of the user's own that asked, and what is wrong, without the way between."""
        from linecache import getline
        from traceback import walk_tb

        way = [(frame, line) for frame, line in walk_tb(self.__traceback__) if _is_the_users(frame.f_globals)]
        asked = [getline(frame.f_code.co_filename, line, frame.f_globals).strip() for frame, line in way[-1:]]
        return [*(f"----> {line}" for line in asked if line), str(self)]


def _is_the_users(names: Mapping[str, object]) -> bool:
    """Whether code with these globals is none of the package's, nor what the package goes through."""
    return str(names.get("__name__")).partition(".")[0] not in _NOT_THE_USERS
