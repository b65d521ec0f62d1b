"""Names from traces as text that is safe to show: no control characters, no hidden direction changes, not endless."""

from __future__ import annotations

import unicodedata

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
