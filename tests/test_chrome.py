"""Trace-event JSON as the JAX profiler writes it: exact times, and the same meaning as an XSpace."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from xla_files import Event, Line, everything, rows, write, write_chrome, xspace

from traceflow.errors import TraceflowError
from traceflow.program.module import operation_of
from traceflow.trace.chrome import read_chrome
from traceflow.trace.model import ABSENT, Kind, LaneKind
from traceflow.trace.xspace import read_xspace

TPUS = ("xplane/tpu_2chips_a.trace.json.gz", "xplane/tpu_2chips_b.trace.json.gz")


def span(name: str, ts: Any, dur: Any, **arguments: Any) -> dict[str, Any]:
    return {"name": name, "ts": ts, "dur": dur, "args": arguments}


@given(
    st.lists(
        st.tuples(st.integers(0, 10**18), st.integers(0, 10**15)),  # picoseconds: 11 days, 16 minutes
        min_size=1,
        unique_by=lambda pair: pair[0] // 1000,
    )
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_times_are_taken_from_their_digits(tmp_path: Path, spans: list[tuple[int, int]]) -> None:
    path = tmp_path / "a.trace.json"
    write_chrome(path, {"/host:CPU": {"python": [span("f", f"@{start}@", f"@{length}@") for start, length in spans]}})
    text = path.read_text()
    for number in {number for pair in spans for number in pair}:
        text = text.replace(f'"@{number}@"', str(Decimal(number) / 1_000_000))
    path.write_text(text)
    trace = read_chrome(path).trace
    first = min(start // 1000 for start, _ in spans)
    assert [(start, end) for _, _, start, end, *_ in rows(trace)] == sorted(
        (start // 1000 - first, (start + length) // 1000 - first) for start, length in spans
    )
    assert trace.epoch_ns is None


@pytest.mark.parametrize("name", ["a.trace.json", "a.trace.json.gz"])
def test_the_json_of_a_trace_means_what_its_xspace_means(tmp_path: Path, name: str) -> None:
    us = 1_000_000
    stats: dict[str, int | str | bytes] = {"hlo_op": "psum.1", "program_id": 3, "run_id": -8, "device_ordinal": 1}
    events = [
        Event("step", 0, 30 * us, {"step_num": 4}),
        Event("Execute", us, 2 * us, {"run_id": -8}),
        Event("psum.1", 4 * us, 5 * us, stats),
        Event("ThreadpoolListener::Record", 7 * us),
        Event("Rendezvous", 5 * us, us),
        Event("end: psum.1", 9 * us),
    ]
    kernels = [
        Event("gemm", 11 * us, us, {"correlation_id": 2}),
        Event("MemcpyD2H", 12 * us, us, {"correlation_id": 3}),
    ]
    planes = {"/host:CPU": [Line("python", events)], "/device:GPU:2": [Line("Stream #5(Kernel)", kernels)]}
    space = read_xspace(write(tmp_path / "a.xplane.pb", xspace(planes, start_ns=None))).trace

    def as_json(event: Event) -> dict[str, Any]:
        texts = {key: str(value) for key, value in event.stats.items()}
        return span(event.name, event.start_ps / us, event.duration_ps / us, **texts)

    spans = {plane: {line.name: [as_json(e) for e in line.events] for line in lines} for plane, lines in planes.items()}
    twin = read_chrome(write_chrome(tmp_path / name, spans)).trace
    assert everything(twin) == everything(space)
    assert len(twin.communications.event) == len(twin.launches.event) == len(twin.marks.step) == 1


def test_what_is_no_usable_span_is_dropped_and_counted(tmp_path: Path) -> None:
    good = span("ok", 5, 1)
    spans = [
        good,
        {**good, "ph": "C"},
        {"ts": 1, "dur": 1},
        {"name": "no duration", "ts": 1},
        {"name": "text", "ts": "1", "dur": 1},
        {"name": "backwards", "ts": 1, "dur": -1},
        {"name": "never", "ts": 1e300, "dur": 1},
    ]
    trace = read_chrome(write_chrome(tmp_path / "a.trace.json", {"/host:CPU": {"main": spans}})).trace
    assert [row[4] for row in rows(trace)] == ["ok"]
    assert trace.tally.dropped == {"not a span": 1, "without a name": 1, "without a valid time": 4}
    assert (trace.tally.read, trace.tally.kept) == (7, 1)


def test_threads_without_a_name_or_with_the_same_name_stay_apart(tmp_path: Path) -> None:
    path = write_chrome(tmp_path / "a.trace.json", {"/host:CPU": {"x": [span("f", 0, 1)], "y": [span("f", 0, 1)]}})
    document = json.loads(path.read_text())
    for event in document["traceEvents"]:
        if event.get("name") == "thread_name":
            event["args"]["name"] = "pool"
    document["traceEvents"].append({"ph": "X", "pid": 1, "tid": 77, **span("f", 0, 1)})
    path.write_text(json.dumps(document))
    assert read_chrome(path).trace.lanes.name == ("pool/1", "pool/2", "thread/77")


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b'{"traceEvents": [{"ph": "X", "na', "TF103"),
        (b'{"traceEvents": [{}]}', "TF104"),
        (b'{"events": []}', "TF107"),
        (b"\x1f\x8b\x08\x00 cut", "TF105"),
        (b"[" * 100_000, "TF103"),
    ],
)
def test_what_cannot_be_read_is_refused(tmp_path: Path, content: bytes, code: str) -> None:
    path = tmp_path / "a.trace.json"
    path.write_bytes(content)
    with pytest.raises(TraceflowError) as refused:
        read_chrome(path)
    assert refused.value.code == code
    assert str(path) in str(refused.value)


# Real TPU traces


@pytest.mark.parametrize("name", TPUS)
def test_every_operation_of_a_tpu_is_kept_in_order(corpus: Callable[[str], Path], name: str) -> None:
    document = json.loads(gzip.decompress(corpus(name).read_bytes()))
    spans = [event for event in document["traceEvents"] if event.get("ph") == "X"]
    threads = {
        (event["pid"], event["tid"]): event["args"]["name"]
        for event in document["traceEvents"]
        if event.get("name") == "thread_name"
    }
    planes = {e["pid"]: e["args"]["name"] for e in document["traceEvents"] if e.get("name") == "process_name"}
    operations = [event for event in spans if threads.get((event["pid"], event["tid"])) == "XLA Ops"]
    trace = read_chrome(corpus(name)).trace
    lanes, lane = trace.lanes, trace.events.lane
    on_line = np.flatnonzero((lanes.kind == LaneKind.LINE)[lane])
    found = Counter((int(lanes.device[lane[row]]), trace.strings[trace.events.name[row]]) for row in on_line)
    assert found == Counter((int(planes[event["pid"]][-1]), event["name"]) for event in operations)
    assert trace.tally.read == len(spans) == trace.tally.kept + sum(trace.tally.dropped.values())
    hosts = [
        event
        for event in spans
        if planes[event["pid"]] == "/host:CPU" and not event["name"].startswith("PythonRefManager::")
    ]
    assert trace.tally.kept == len(operations) + len(hosts)


@pytest.mark.parametrize("name", TPUS)
def test_synchronous_collectives_of_a_tpu_are_communication(corpus: Callable[[str], Path], name: str) -> None:
    evidence = read_chrome(corpus(name))
    trace, c = evidence.trace, evidence.trace.communications
    assert set(trace.events.kind[c.event]) == {Kind.COMMUNICATION}
    assert (trace.events.kind == Kind.COMMUNICATION).sum() == len(c.event)
    instances = Counter(zip(c.key.tolist(), c.sequence.tolist(), strict=True))
    assert set(instances.values()) == {2}
    operations = Counter(trace.strings[code] for code in c.operation)
    assert operations["all-reduce"] == 2 * 129
    assert operations["all-gather"] == 4
    reduce = np.array([trace.strings[code] == "all-reduce" for code in c.operation])
    assert set(c.payload_bytes[reduce]) == {1024 * 5120 * 2}
    assert [(group.members, group.name) for group in trace.groups] == [((0, 1), "devices 0-1")]


def test_the_busy_time_of_the_all_reduces_is_that_of_the_file(corpus: Callable[[str], Path]) -> None:
    """3.43 ms of 67.2 ms, as was measured from the file's own decimals."""
    trace = read_chrome(corpus(TPUS[0])).trace
    c = trace.communications
    device = trace.lanes.device[trace.events.lane[c.event]]
    reduce = np.array([trace.strings[code] == "all-reduce" for code in c.operation])
    durations = (trace.events.end_ns - trace.events.start_ns)[c.event]
    assert durations[reduce & (device == 0)].sum() / 1e6 == pytest.approx(3.43, abs=0.01)
    operations = trace.events.lane == np.flatnonzero(trace.lanes.device == 0)[0]
    span_ns = trace.events.end_ns[operations].max() - trace.events.start_ns[operations].min()
    assert span_ns / 1e6 == pytest.approx(67.2, abs=0.1)


def test_asynchronous_copies_of_a_tpu_are_copies_and_know_their_start(corpus: Callable[[str], Path]) -> None:
    evidence = read_chrome(corpus(TPUS[0]))
    trace = evidence.trace
    programs = {key: module for key, module in evidence.programs.items() if module.name == "jit_step_fun"}
    ((key, module),) = programs.items()
    dones = [row for row, opcode in enumerate(module.opcode) if opcode in {"copy-done", "async-done"}]
    starts = {module.instruction_name[row]: module.instruction_name[module.start_of(row)] for row in dones}
    assert len(starts) > 700
    assert all(start == done.replace("-done", "-start") for done, start in starts.items())
    assert {operation_of(module, row) for row in dones} == {"copy", "slice"}
    done = np.isin(trace.hlo.instruction, dones) & (trace.hlo.program == key)
    assert set(trace.events.kind[trace.hlo.event[done]]) == {Kind.COPY}


def test_runs_of_a_tpu_program_are_equal_on_both_chips(corpus: Callable[[str], Path]) -> None:
    trace = read_chrome(corpus(TPUS[0])).trace
    device = trace.lanes.device[trace.events.lane[trace.hlo.event]]
    executed = {
        at: Counter(zip(trace.hlo.program[device == at].tolist(), trace.hlo.run[device == at].tolist(), strict=True))
        for at in (0, 1)
    }
    assert executed[0] == executed[1]
    assert len(executed[0]) == 4
    assert (trace.hlo.instruction >= 0).all()
    launches = trace.launches
    assert Counter(launches.device.tolist()) == {0: 4, 1: 4}
    assert {trace.strings[name] for name in trace.events.name[launches.event]} == {"DoEnqueueProgram"}
    assert (launches.device != ABSENT).all()
