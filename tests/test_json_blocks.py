"""Where pieces of JSON end, against json itself, at every offset within the blocks that are looked at."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from traceflow.compiled import Compiled
from traceflow.trace import _kineto_rows
from traceflow.trace._json_blocks import BAD, INCOMPLETE, key_and_value, value_end
from traceflow.trace._text_columns import BLOCK, PADDING
from traceflow.trace.kineto import read_kineto

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


def test_what_is_between_values_may_change_from_event_to_event(tmp_path: Path) -> None:
    """Which key comes next, and how it is set apart, is expected to be as it was; here it hardly ever is."""
    events = []
    for number, width in enumerate([*WIDTHS, *reversed(WIDTHS), *[0] * 6, *[1] * 6, *[0] * 6]):
        blank, more = " \n"[width % 2] * width, f'"note": {width}, ' * (number % 3 == 1)
        members = [f'"ts": {10 * number}', f'"dur":{blank}{1 + number % 7}', f'"tid":{blank} {number % 2}']
        turned = members[number % 3 :] + members[: number % 3]
        head = f'{{"ph": "X",{blank}"name": "n{number}", {more}"cat"{blank}:"cpu_op", "pid": 1, '
        events.append(head + f",{blank * (number % 2)}".join(turned) + blank + "}")
    path = tmp_path / "rank0.json"
    path.write_text('{"schemaVersion": 1, "traceEvents": [' + ",".join(events) + "]}")
    trace = read_kineto(path)
    e = trace.events
    rows = zip(e.name, e.start_ns, e.end_ns - e.start_ns, e.lane, strict=True)
    found = {(trace.strings[name], at, took, trace.lanes.name[lane]) for name, at, took, lane in rows}
    assert found == {(f"n{i}", 10_000 * i, 1000 * (1 + i % 7), str(i % 2)) for i in range(len(events))}
    assert trace.tally.notes == ()


def test_what_a_value_is_depends_on_no_event_before(tmp_path: Path) -> None:
    event = '{"ph":"X","cat":"cpu_op","name":"n","pid":1,"tid":1,"ts":TS,"dur":5}'
    path = tmp_path / "rank0.json"
    for odd in ("+11", ",11", " 11"):
        found = []
        for times in (["10", odd, "12"], [odd, "10", "12"]):
            path.write_text(
                '{"schemaVersion":1,"traceEvents":[' + ",".join(event.replace("TS", at) for at in times) + "]}"
            )
            found.append(sorted(read_kineto(path).events.start_ns.tolist()))
        assert found == [[0, 1_000, 2_000]] * 2


def test_nothing_is_asked_about_an_operator_without_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, is_counted = [], _kineto_rows._Texts.is_counted

    def noted(texts: Any, names: Any) -> Any:
        asked.extend(names.tolist())
        return is_counted(texts, names)

    monkeypatch.setattr(_kineto_rows._Texts, "is_counted", noted)
    named = {"ph": "X", "cat": "cpu_op", "pid": 1, "tid": 1, "ts": 1, "dur": 5, "name": "aten::mm"}
    said = {"Collective name": "allreduce", "Input Dims": [[1]]}
    events = [{**named, "args": said}, {key: value for key, value in named.items() if key != "name"} | {"args": said}]
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    rows = _kineto_rows.read_rows(path)
    assert len(rows.spans.start_ns) == len(rows.collectives.row) == 2
    assert rows.arguments.row.tolist() == [0]
    assert asked == [rows.spans.name[0]]
