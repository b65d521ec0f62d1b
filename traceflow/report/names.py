"""Names from traces as text that is safe to show: no control characters, no hidden direction changes, not endless."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

_FIGURES = {
    "epoch": "when it was recorded",
    "flops": "FLOPs",
    "moe": "routing of experts",
    "per_participant": "each participant",
    "total": "the total",
}
_UNIT = re.compile(r"_(ns|bytes|share|ratio|us|s)$")
_IN_DIGEST = re.compile(r"^/result/questions/[^/]+/figures")
_ARGUMENTS = re.compile(r"<[^<>]*>|\([^()]*\)")
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Unicode categories that show nothing themselves but change what is around them."""


def printable(text: str, limit: int = 200) -> str:
    r"""A name on one line: what cannot be seen is written as its escape, the middle of a long name is left out.

    Args:
        text: Any string a trace may hold.
        limit: Most characters to keep.

    Example:
        >>> printable("a\u202eb\n"), printable("void gemm<float, 128>(int)", 15)
        ('a\\u202eb\\n', 'void ge…8>(int)')
    """
    short = text if len(text) <= limit else f"{text[: limit // 2]}…{text[-(limit - limit // 2 - 1) :]}"
    if short.isascii() and short.isprintable():
        return short
    return "".join(_escaped(c) if unicodedata.category(c) in _HIDDEN else c for c in short)


def printable_lines(text: str) -> str:
    r"""Text that may hold names, whole: as `printable`, without a limit, its own line ends kept.

    Example:
        >>> printable_lines("Findings\n\x1b[2J")
        'Findings\n\\x1b[2J'
    """
    if text.isascii() and text.replace("\n", "").isprintable():
        return text
    return "\n".join(printable(line, len(line) or 1) for line in text.split("\n"))


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def short_name(name: str) -> str:
    """The name of an event: a C++ kernel without its template arguments and parameters, which would fill the column.

    Example:
        >>> short_name("void at::native::add_kernel<4, std::array<char*, 3ul> >(int, float)")
        'at::native::add_kernel'
    """
    if not name.startswith(("void ", "nccl")):
        return name
    name = name.removeprefix("void ").replace("(anonymous namespace)::", "")
    while _ARGUMENTS.search(name):
        name = _ARGUMENTS.sub("", name)
    return name.strip()


def where(row: Mapping[str, Any]) -> str:
    """A participant as rank:device."""
    return f"{row['rank']}:{'host' if row['device'] is None else row['device']}"


def numbers(found: Sequence[int]) -> str:
    """Whole numbers in order, neighbours as a range.

    Example:
        >>> numbers([0, 1, 2, 5])
        '0-2, 5'
    """
    runs = [[number for _, number in run] for _, run in groupby(enumerate(found), key=lambda pair: pair[1] - pair[0])]
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs) or "none"


def figure_called(pointer: str) -> str:
    """A figure in words, from the pointer to it in the JSON contract.

    Example:
        >>> figure_called("/result/operations/*/measured_over_bound_ratio"), figure_called("/result")
        ('measured over bound of operations', 'everything')
    """
    path = _IN_DIGEST.sub("", pointer).removeprefix("/result")
    parts = [_UNIT.sub("", part) for part in path.split("/") if part and not (part == "*" or part.isdecimal())]
    parts = [part for i, part in enumerate(parts) if part != parts[i - 1] or not i]  # as in /slack/*/slack_ns
    told = [_FIGURES.get(part) or part.replace("_", " ") for part in parts]
    return " of ".join(reversed(told)) or "everything"
