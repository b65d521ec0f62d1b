"""What the scanner expects of the next event, and what it keeps of one, change nothing that is read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from traceflow.trace import _kineto_rows
from traceflow.trace._text_columns import BLOCK
from traceflow.trace.kineto import read_kineto

if TYPE_CHECKING:
    import pytest

WIDTHS = range(2 * BLOCK + 3)


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
