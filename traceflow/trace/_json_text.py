r"""JSON of somebody else, as text that can be written again.

JSON may name half a character, as in `"\ud800"`: a text with one cannot be encoded, so that it would fail where an answer
is written, long after it was read.
"""

from __future__ import annotations

import re

_HALF = re.compile(rb"\\u[dD][89a-fA-F]")
_ESCAPE = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)", re.DOTALL
)


def with_whole_characters(content: bytes) -> bytes:
    r"""JSON in which each half of a character is the character that stands for what is unknown.

    Example:
        >>> with_whole_characters(rb'["\ud83d\ude00", "\ud83d", "\\ud83d"]')
        b'["\\ud83d\\ude00", "\\ufffd", "\\\\ud83d"]'
    """
    if not _HALF.search(content):
        return content
    return _ESCAPE.sub(lambda match: rb"\ufffd" if match[1] else match[0], content)
