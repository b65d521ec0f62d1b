"""Names from traces as text that is safe to show: no control characters, no hidden direction changes, not endless."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

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
