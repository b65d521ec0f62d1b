"""What reading and explaining a trace may cost: bytes for each event, passes over the file, and a ratio of work.

Seconds say little on a machine that others use. What is measured here is counted, or compared with a decoder that
does less in the same process at the same time.
"""

from __future__ import annotations

import io
import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import IO, Any

import numpy as np
import pytest
from sources import ROOT

from traceflow.analyzers.dependencies import dependencies
from traceflow.trace import _kineto_rows, _kineto_scan
from traceflow.trace.kineto import read_kineto
from traceflow.trace.model import Trace

CRITICAL_PATH = ("events", "communications", "syncs", "flows", "launches", "marks", "lanes")


@cache
def made(folder: Path, events: int) -> Path:
    """A trace of about so many events, as the benchmarks make them."""
    script = [sys.executable, str(ROOT / "benchmarks" / "gen_kineto.py"), "--events", str(events), "--out", str(folder)]
    subprocess.run(script, check=True, capture_output=True)
    return folder / "rank0.json"


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("scale"), 20_000)


def size_of(table: object) -> int:
    columns = (getattr(table, f.name) for f in fields(table))  # type: ignore[arg-type]
    return sum(column.nbytes for column in columns if isinstance(column, np.ndarray))


def test_columns_of_the_critical_path_take_at_most_64_bytes_an_event(file: Path) -> None:
    trace = read_kineto(file)
    assert sum(size_of(getattr(trace, name)) for name in CRITICAL_PATH) <= 64 * len(trace.events)


def test_an_event_itself_takes_33_bytes(file: Path) -> None:
    events = read_kineto(file).events
    assert size_of(events) == 33 * len(events)


def test_the_graph_takes_at_most_200_bytes_an_event(file: Path) -> None:
    trace = read_kineto(file)
    graph = dependencies(trace, {}).graph
    own = {id(base(column)): base(column) for column in columns_of(graph)}
    assert sum(array.nbytes for array in own.values()) <= 200 * len(trace.events)


def columns_of(graph: Any) -> list[np.ndarray[Any, Any]]:
    values = [getattr(part, f.name) for part in (graph, graph.slices) for f in fields(part)]
    return [value for value in values if isinstance(value, np.ndarray)]


def base(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The array that holds the numbers of a view."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


class Counting(io.FileIO):
    """A file that counts what is read of it."""

    bytes_read = 0

    def readinto(self, buffer: Any, /) -> int | None:
        count = super().readinto(buffer)
        Counting.bytes_read += count or 0
        return count


def test_every_byte_is_read_once_and_hardly_any_is_scanned_twice(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def opened(path: Path, *_: object) -> IO[bytes]:
        return io.BufferedReader(Counting(str(path)))

    scanned, scan = [], _kineto_scan.scan

    def counted(buffer: Any, begin: int, *others: Any) -> int:
        end = int(scan(buffer, begin, *others))
        scanned.append(end - begin)
        return end

    monkeypatch.setattr(Path, "open", opened)
    monkeypatch.setattr(_kineto_scan, "scan", counted)
    Counting.bytes_read = 0
    _kineto_rows.read_rows(file)
    size = file.stat().st_size
    assert Counting.bytes_read == size
    assert sum(scanned) <= size
    assert len(scanned) <= 20 + size // 100_000


def test_memory_grows_with_events_and_not_with_what_they_say(tmp_path: Path) -> None:
    event = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "dur": 1}
    with (tmp_path / "rank0.json").open("w") as written:
        written.write('{"schemaVersion": 1, "traceEvents": [')
        for at in range(1000):
            said = json.dumps({**event, "ts": at * 10, "args": {"Call stack": "x" * 100_000}})
            written.write(said + ("," if at < 999 else "]}"))
    script = (
        "import resource, sys; from pathlib import Path; from traceflow.trace.kineto import read_kineto\n"
        f"small, large = Path({str(small(tmp_path))!r}), Path({str(tmp_path / 'rank0.json')!r})\n"
        "read_kineto(small); before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "read_kineto(large); print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
    )
    grown = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout
    assert int(grown) * 1024 < 20_000_000 < (tmp_path / "rank0.json").stat().st_size // 4


def small(folder: Path) -> Path:
    path = folder / "small.json"
    path.write_text(
        '{"schemaVersion": 1, "traceEvents": [{"ph":"X","cat":"cpu_op","name":"a","pid":1,"tid":1,"ts":1,"dur":1}]}'
    )
    return path


def cpu_ratio(one: Callable[[], object], other: Callable[[], object]) -> float:
    """How much less work one is than the other: the least of several times each, taken by turns."""

    def took(function: Callable[[], object]) -> float:
        before = time.process_time()
        function()
        return time.process_time() - before

    return min(took(one) for _ in range(5)) / min(took(other) for _ in range(5))


def test_reading_is_less_work_than_decoding_json(file: Path) -> None:
    def decoded() -> object:
        return json.loads(file.read_bytes())

    read_kineto(file)  # so that nothing has to be loaded or compiled
    assert cpu_ratio(lambda: read_kineto(file), decoded) < 1


def test_explaining_grows_with_the_trace(tmp_path: Path, file: Path) -> None:
    def explained(trace: Trace) -> object:
        return dependencies(trace, {}).graph.path()

    small, large = read_kineto(file), read_kineto(made(tmp_path, 80_000))
    explained(small)
    events = len(large.events) / len(small.events)
    assert cpu_ratio(lambda: explained(large), lambda: explained(small)) < 2 * events
