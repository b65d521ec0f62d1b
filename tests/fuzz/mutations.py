"""Hostile inputs made from seeds by hypothesis: bytes changed at random, and JSON that is sound but says odd things."""

from __future__ import annotations

import json
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

from hypothesis import strategies as st

from fuzz.readers import Reader

Json = Any

ODD: list[Json] = [
    None, True, -1, 0, 0.5, 2**31, 2**63, 2**64 - 1, -(2**63), 10**30, 1e308, float("inf"), float("nan"), "", "0", "NaN", "1e999",
    "\ud800", "\x00", "<script>", "../../etc/passwd", [], {}, [[]], {"a": {}}, [1, [2]], "x" * 300,
]  # fmt: skip


def hostile(reader: Reader) -> st.SearchStrategy[bytes]:
    """Inputs for a reader: its seeds with some bytes changed, and where they are JSON with some values changed."""
    seeds = list(reader.seeds())
    words = [word.encode() for word in reader.words] or [b""]
    mutated = st.builds(_edited, st.sampled_from(seeds), st.lists(_edits(words), min_size=1, max_size=6))
    documents = [seed for seed in seeds if _is_json(seed)]
    if not documents:
        return mutated
    changes = st.lists(st.tuples(st.integers(0, 10_000), st.sampled_from(ODD), st.booleans()), min_size=1, max_size=4)
    return st.one_of(mutated, st.builds(_changed, st.sampled_from(documents), changes))


def _edits(words: list[bytes]) -> st.SearchStrategy[tuple[int, int, bytes]]:
    """Where something begins, as a share of the input; how many bytes are replaced; and by what."""
    put = st.one_of(st.sampled_from(words), st.binary(max_size=8), st.sampled_from([b"\xff" * 8, b"\x00" * 8, b""]))
    return st.tuples(st.integers(0, 9999), st.sampled_from([0, 0, 1, 1, 2, 4, 8, 64, 1000]), put)


def _edited(seed: bytes, edits: list[tuple[int, int, bytes]]) -> bytes:
    for where, width, put in edits:
        at = where * len(seed) // 10_000
        seed = seed[:at] + put + seed[at + width :]
    return seed


def _is_json(seed: bytes) -> bool:
    try:
        json.loads(seed)
    except ValueError:
        return False
    return True


def _changed(seed: bytes, changes: list[tuple[int, Json, bool]]) -> bytes:
    """JSON with values replaced, or members removed."""
    document = json.loads(seed)
    for number, value, removed in changes:
        places = list(_places(document))
        if places:
            holder, key = places[number % len(places)]
            if removed:
                del holder[key]
            else:
                holder[key] = deepcopy(value)
    return json.dumps(document).encode()


def _places(value: Json) -> Iterator[tuple[Any, Any]]:
    """Every member of every object and every item of every list."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in list(items):
        yield value, key
        yield from _places(inner)
