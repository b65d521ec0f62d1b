"""Arguments of gloo's collectives, as Kineto writes them: the columns of a trace have no place for them."""

from __future__ import annotations

import gzip
import json
import math
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from operator import index
from pathlib import Path
from typing import Any

from traceflow.trace._json_text import with_whole_characters

# The writer spreads an event over lines, in this order, with all its arguments on one of them.
_EVENT = re.compile(
    rb'"baseTimeNanoseconds": (?P<base>\d+)'
    rb'|"name": "(?P<name>(?:c10d::|gloo:)[^"]*)",\s*"pid": [^,]*,\s*"tid": [^,]*,\s*"ts": (?P<ts>[\d.]+),'
    rb'\s*"dur": [\d.]+\s*,\s*"args": \{\s*(?P<arguments>[^\n]*)\n'
)
_PIECE_BYTES = 1 << 22
_EVENT_BYTES = 1 << 18  # no event is longer than this
_MOST = 2**56  # numbers that any tensors hold together
_DAMAGE = (EOFError, gzip.BadGzipFile, zlib.error)


@dataclass(frozen=True, slots=True)
class Arguments:
    """What an operator was given."""

    elements: int | None  # of all tensors together; None where the list of them was shortened
    values: tuple[str, ...]  # the others by position, as text


def read_arguments(file: Path) -> Mapping[tuple[str, int], Arguments]:
    """What the `c10d` operators and the executions by gloo in a Kineto file were given.

    Returns:
        Arguments by name and start in ns since 1970; those that cannot be understood are left out.
    """
    with file.open("rb") as raw:
        packed = raw.read(2) == b"\x1f\x8b"
    base_ns, found = 0, {}
    with gzip.open(file) if packed else file.open("rb") as text, suppress(*_DAMAGE):
        for match in _matches(text.read):
            if match["base"]:
                base_ns = int(match["base"])
            else:
                found[match["name"].decode("utf-8", "replace"), _nanoseconds(match["ts"])] = _arguments(
                    match["arguments"]
                )
    return {(name, base_ns + ns): arguments for (name, ns), arguments in found.items() if arguments}


def _matches(read: Callable[[int], bytes]) -> Iterator[re.Match[bytes]]:
    rest = b""
    while piece := read(_PIECE_BYTES):
        data, end = rest + piece, 0
        for match in _EVENT.finditer(data):
            yield match
            end = match.end()
        rest = data[max(end, len(data) - _EVENT_BYTES) :]


def _nanoseconds(microseconds: bytes) -> int:
    """Whole nanoseconds of a decimal text.

    Example:
        >>> _nanoseconds(b"5140109757937.7659")
        5140109757937765
    """
    whole, _, fraction = microseconds.partition(b".")
    return int(whole) * 1000 + int(fraction[:3].ljust(3, b"0"))


def _arguments(spelled: bytes) -> Arguments | None:
    try:
        said = json.loads(with_whole_characters(b"{" + spelled + b"}"))
    except (ValueError, RecursionError):
        return None
    values = said.get("Concrete Inputs")
    return Arguments(elements(said.get("Input Dims", [])), tuple(map(str, values if isinstance(values, list) else [])))


def elements(shapes: Any) -> int | None:
    """How many numbers tensors of these shapes hold; None where these are no shapes.

    Example:
        >>> elements([[64, 64], [3], []]), elements("30 of 100 shapes")
        (4100, None)
    """
    if not isinstance(shapes, list):
        return None
    try:
        count = sum(math.prod(map(index, shape)) for shape in shapes)
    except TypeError:
        return None
    return count if 0 <= count < _MOST else None
