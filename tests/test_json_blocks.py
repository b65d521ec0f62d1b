"""Where pieces of JSON end, against json itself, at every offset within the blocks that are looked at."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from traceflow.compiled import Compiled
from traceflow.trace._json_blocks import BAD, INCOMPLETE, key_and_value, value_end
from traceflow.trace._text_columns import BLOCK, PADDING

Int64 = NDArray[np.int64]

WIDTHS = range(2 * BLOCK + 3)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=True) | st.text()
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=12)


@Compiled
def _ends(at: int, stop: int, told: Int64) -> None:
    told[0], told[1] = key_and_value(at, stop)


def end_of(text: str, after: str = ", 1") -> int:
    """Bytes of the value that a text starts with."""
    buffer = np.frombuffer((text + after).encode() + bytes(PADDING), np.uint8)
    start = buffer.ctypes.data
    end: int = value_end(start, start + len(buffer) - PADDING)
    return end - start if end >= 0 else end


@given(VALUES, st.sampled_from([{}, {"ensure_ascii": False}, {"indent": 1}, {"indent": 40}]))
def test_a_value_ends_where_json_says(value: object, spelling: dict[str, Any]) -> None:
    text = json.dumps(value, **spelling)
    assert end_of(text) == len(text.encode())


@pytest.mark.parametrize("escape", [r"\"", r"\\", r"\\\"", r"\u005c"])
def test_an_escape_on_the_edge_of_a_block_ends_nothing(escape: str) -> None:
    for before in WIDTHS:
        for text in ('"' + "x" * before + escape + '"', '["' + "x" * before + escape + '", {"]": "}"}]'):
            assert end_of(text) == len(text)


def test_brackets_in_texts_and_quotes_at_every_offset_are_no_structure() -> None:
    for before in WIDTHS:
        for between in (0, 1, BLOCK - 1, BLOCK):
            text = "[" + " " * before + '"]}"' + " " * between + "[[{}], 1.5e-3]" + ' "[{"]'
            assert end_of(text) == len(text)


@pytest.mark.parametrize("text", ['"never closed', "[1, 2", '{"a": [1, "]"', "12"])
def test_what_the_text_cuts_has_no_end(text: str) -> None:
    assert end_of(text, after="") == INCOMPLETE


def test_what_is_no_value_is_bad() -> None:
    assert end_of(": 1") == BAD


@pytest.mark.parametrize("colon", [": ", ":", " :", "\n\t:  \r\n"])
def test_a_key_of_any_width_is_followed_by_its_value(colon: str) -> None:
    for width in WIDTHS:
        text = '"' + "k" * width + '"' + colon + "17, "
        buffer = np.frombuffer(text.encode() + bytes(PADDING), np.uint8)
        start = buffer.ctypes.data
        told = np.zeros(2, np.int64)
        _ends(start, start + len(text), told)
        assert (told - start).tolist() == [width + 1, text.index("17")]
