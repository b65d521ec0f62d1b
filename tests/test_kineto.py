"""Kineto files: what is read of them, to the nanosecond, against what plain JSON says of them."""

from __future__ import annotations

import gzip
import json
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sources import ROOT

from traceflow.errors import TraceflowError
from traceflow.quality import quality
from traceflow.trace import _kineto_rows
from traceflow.trace.host_waits import waits_on_host
from traceflow.trace.kineto import looks_like_kineto, read_kineto
from traceflow.trace.model import Group, Kind, LaneKind, SyncKind, Trace

SHARED = ROOT.parent / "shared"
RECORDED = [*sorted(SHARED.glob("corpus/kineto/*.json.gz")), *sorted(SHARED.glob("cases/*/traces/*.json.gz"))]
recorded = pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.relative_to(SHARED).as_posix())

HOST = ("cpu_op", "user_annotation", "python_function")
CALLS = ("cuda_runtime", "cuda_driver", "mtia_runtime")
DEVICE = ("kernel", "gpu_memcpy", "gpu_memset", "mtia_ccp_events")
BLOCKING = frozenset(
    {
        "cudaDeviceSynchronize",
        "cudaStreamSynchronize",
        "cudaEventSynchronize",
        "hipDeviceSynchronize",
        "hipEventSynchronize",
        "hipMemcpyWithStream",
        "synchronize",
        "synchronizeStream",
    }
)

Event = dict[str, Any]
Row = tuple[int, int, str, str]


def span(cat: str, name: str, ts: object, dur: object, tid: int = 1, **args: Any) -> Event:
    """One event as the exporter writes it; on device 0, whose streams are its threads, if it is device work."""
    on_device = cat in {"kernel", "gpu_memcpy", "gpu_memset", "cuda_sync"}
    where = {"device": 0, "stream": tid} if on_device else {}
    return {
        "ph": "X",
        "cat": cat,
        "name": name,
        "pid": 0 if on_device else 7,
        "tid": tid,
        "ts": ts,
        "dur": dur,
        "args": {**where, **args},
    }


def written(folder: Path, events: list[Event], name: str = "rank0.json", **header: Any) -> Path:
    """A file with these events."""
    path = folder / name
    path.write_text(json.dumps({"schemaVersion": 1, **header, "traceEvents": events}), encoding="utf-8")
    return path


def rows_of(trace: Trace) -> list[tuple[int, int, str, Kind, str]]:
    """Start, end, name, kind and lane of each event."""
    e = trace.events
    return [
        (int(e.start_ns[i]), int(e.end_ns[i]), trace.strings[e.name[i]], Kind(e.kind[i]), trace.lanes.name[e.lane[i]])
        for i in range(len(e))
    ]


def plain(value: object) -> object:
    """A trace or a part of it in types that can be compared."""
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.tolist()
    return tuple(map(plain, value)) if isinstance(value, tuple) else value


# ---------------------------------------------------------------- recorded files, recounted


def decimals(path: Path) -> dict[str, Any]:
    """The file by the standard library, numbers with a point as decimals."""
    content: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()), parse_float=Decimal)
    return content


def floor_ns(microseconds: Decimal | int) -> int:
    return int(microseconds * 1000 // 1)


def wanted_rows(events: list[Event]) -> Iterator[tuple[str, Event]]:
    """Every event that is to become a row, with the part of the machine that it ran on."""
    spans = [e for e in events if e.get("ph") == "X" and e["cat"] in HOST + CALLS + DEVICE]
    queries = {"cudaEventQuery", "cudaStreamQuery", "hipEventQuery", "hipStreamQuery"}
    busy = {(e["pid"], e["tid"]) for e in spans if e["name"] not in queries}
    for event in spans:
        if event["cat"] in DEVICE:
            if not event["name"].startswith("event_"):
                yield "device", event
        elif not event["name"].startswith("ProfilerStep#") and (event["pid"], event["tid"]) in busy:
            is_work = event["name"].startswith("gloo:")
            is_call = event["cat"] in CALLS or (event["cat"] == "python_function" and waits_on_host(event["name"]))
            yield "device" if is_work else "call" if is_call else "host", event


def part_of(kind: Kind) -> str:
    return {Kind.HOST: "host", Kind.CALL: "call", Kind.WAIT: "call"}.get(kind, "device")


@recorded
def test_every_event_of_a_recorded_file_is_there_to_the_nanosecond(path: Path) -> None:
    content, trace = decimals(path), read_kineto(path)
    wanted = set()
    for part, event in wanted_rows(content["traceEvents"]):
        correlation = event.get("args", {}).get("correlation") or -1
        end_ns = floor_ns(event["ts"] + event["dur"])
        wanted.add((floor_ns(event["ts"]), end_ns, part, event["name"], -1 if part == "host" else correlation))
    assert trace.epoch_ns is not None
    shift = trace.epoch_ns - content.get("baseTimeNanoseconds", 0)
    found = [
        (start + shift, end + shift, part_of(kind), name, int(correlation))
        for (start, end, name, kind, _), correlation in zip(rows_of(trace), trace.events.correlation, strict=True)
    ]
    assert set(found) == wanted
    assert trace.tally.read == len(content["traceEvents"])
    assert trace.tally.read == trace.tally.kept + sum(trace.tally.dropped.values())
    assert trace.tally.kept == len(found)
    assert trace.tally.dropped.keys().isdisjoint({"damaged event", "no duration", "empty record"})


@recorded
def test_waits_lanes_marks_and_links_of_a_recorded_file(path: Path) -> None:
    content, trace = decimals(path), read_kineto(path)
    spans = [e for e in content["traceEvents"] if e.get("ph") == "X"]
    waits = [e for e in spans if e["cat"] in CALLS and e["name"] in BLOCKING]
    waits += [e for e in spans if e["cat"] == "python_function" and waits_on_host(e["name"])]
    assert int((trace.events.kind == Kind.WAIT).sum()) == len(waits)
    streams = {(e["pid"], e["args"]["stream"]) for e in spans if e["cat"] in DEVICE}
    is_stream = trace.lanes.kind == LaneKind.STREAM
    assert set(zip(trace.lanes.device[is_stream], trace.lanes.stream[is_stream], strict=True)) == streams
    steps = [e for e in spans if e["cat"] == "user_annotation" and e["name"].startswith("ProfilerStep#")]
    assert sorted(trace.marks.step) == sorted(int(e["name"].split("#")[1]) for e in steps)
    assert len(trace.syncs.kind) == sum(e["cat"] == "cuda_sync" for e in spans)
    assert len(trace.communications.event) == int((trace.events.kind == Kind.COMMUNICATION).sum())
    described = [e for e in spans if e["cat"] == "kernel" and "Collective name" in e["args"]]
    told = Counter(trace.strings[code] for code in trace.communications.operation)
    for operation, count in Counter(e["args"]["Collective name"] for e in described).items():
        assert told[operation] >= count


@recorded
def test_recorded_files_are_told_from_others(path: Path) -> None:
    assert looks_like_kineto(gzip.decompress(path.read_bytes())[: 1 << 18])


def test_chrome_traces_of_tpus_are_not_kineto(corpus: Callable[[str], Path]) -> None:
    head = gzip.decompress(corpus("xplane/tpu_2chips_a.trace.json.gz").read_bytes())[: 1 << 18]
    assert not looks_like_kineto(head)


def test_flows_bind_the_operators_that_begin_where_they_do(corpus: Callable[[str], Path]) -> None:
    path = corpus("kineto/v100_ns_resolution.json.gz")
    content, trace = decimals(path), read_kineto(path)
    assert trace.epoch_ns is not None
    starts: dict[tuple[int, str], set[str]] = {}
    for event in content["traceEvents"]:
        if event.get("cat") in HOST and event["ph"] == "X":
            starts.setdefault((floor_ns(event["ts"]), str(event["tid"])), set()).add(event["name"])
    ends = {"s": trace.flows.source, "f": trace.flows.target}
    for phase, rows in ends.items():
        flows = [e for e in content["traceEvents"] if e.get("cat") == "fwdbwd" and e["ph"] == phase]
        at = {(floor_ns(e["ts"]), str(e["tid"])) for e in flows}
        bound = [rows_of_one(trace, row) for row in rows]
        assert {(start + trace.epoch_ns, lane) for start, _, lane in bound} == at
        assert all(name in starts[start + trace.epoch_ns, lane] for start, name, lane in bound)
    assert len(trace.flows.source) == 905


def rows_of_one(trace: Trace, row: int) -> tuple[int, str, str]:
    e = trace.events
    return int(e.start_ns[row]), trace.strings[e.name[row]], trace.lanes.name[e.lane[row]]


def test_collectives_carry_their_group_payload_and_splits() -> None:
    path = SHARED / "cases" / "moe_hot_rank" / "traces" / "rank0.pt.trace.json.gz"
    if not path.exists():
        pytest.skip("no cases beside the checkout")
    trace = read_kineto(path)
    c = trace.communications
    first = int(np.argmin(trace.events.start_ns[c.event]))
    assert trace.strings[c.operation[first]] == "all_to_allv"
    assert trace.groups[c.group[first]] == Group("1", (0, 1), 2)
    assert (c.sequence[first], c.payload_bytes[first], c.member[first]) == (1, 8_388_608, 0)
    assert trace.strings[c.in_splits[first]] == "[1370112, 2824192]"
    assert trace.strings[c.out_splits[first]] == "[1370112, 1347584]"


def test_synchronisation_records_of_a_recorded_file(corpus: Callable[[str], Path]) -> None:
    trace = read_kineto(corpus("kineto/a100_event_sync.json.gz"))
    s = trace.syncs
    assert list(zip(s.kind, s.stream, s.awaited_stream, s.correlation, s.record_correlation, strict=True)) == [
        (SyncKind.STREAM, 7, -1, 1512, -1),
        (SyncKind.EVENT, -1, 7, 1536, 1533),
        (SyncKind.EVENT, -1, 7, 1537, 1533),  # of a query
        (SyncKind.CONTEXT, -1, -1, 1549, -1),
    ]
    assert s.device.tolist() == [0, 0, 0, 0]


# ---------------------------------------------------------------- kinds


@pytest.mark.parametrize(
    ("cat", "name", "kind"),
    [
        ("cpu_op", "aten::mm", Kind.HOST),
        ("user_annotation", "nccl:all_reduce", Kind.HOST),
        ("user_annotation", "gloo:all_reduce", Kind.COMMUNICATION),
        ("python_function", "train.py(3): step", Kind.HOST),
        ("python_function", "threading.py(359): wait", Kind.WAIT),
        ("python_function", "<built-in method acquire of _thread.lock object at 0x7f00>", Kind.WAIT),
        ("cuda_runtime", "cudaLaunchKernel", Kind.CALL),
        ("cuda_runtime", "cudaStreamWaitEvent", Kind.CALL),
        ("cuda_runtime", "cudaMemcpyAsync", Kind.CALL),
        ("cuda_runtime", "hipMemcpyAsync", Kind.CALL),
        ("cuda_runtime", "cudaPeekAtLastError", Kind.CALL),
        ("cuda_runtime", "cudaMemcpy2DToArrayAsync", Kind.CALL),
        ("cuda_driver", "cuLaunchKernel", Kind.CALL),
        ("xpu_runtime", "urEnqueueKernelLaunch", Kind.CALL),
        ("cuda_runtime", "cudaMemcpy", Kind.WAIT),
        ("cuda_runtime", "hipMemcpyWithStream", Kind.WAIT),
        ("cuda_runtime", "hipDeviceSynchronize", Kind.WAIT),
        ("cuda_driver", "cuCtxSynchronize", Kind.WAIT),
        ("cuda_driver", "cuStreamSynchronize", Kind.WAIT),
        ("cuda_driver", "cuEventSynchronize", Kind.WAIT),
        ("kernel", "sgemm_128x64", Kind.COMPUTE),
        ("kernel", "void at::native::reduce_kernel<512>(int)", Kind.COMPUTE),
        ("kernel", "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(args)", Kind.COMMUNICATION),
        ("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", Kind.COPY),
        ("gpu_memcpy", "__amd_rocclr_copyBuffer", Kind.COPY),
        ("gpu_memset", "Memset (Device)", Kind.COPY),
    ],
)
def test_the_kind_of_an_event(tmp_path: Path, cat: str, name: str, kind: Kind) -> None:
    trace = read_kineto(written(tmp_path, [span(cat, name, 1, 2)]))
    assert rows_of(trace) == [(0, 2000, name, kind, "1")]
    device = kind in {Kind.COMPUTE, Kind.COPY} or cat == "kernel"
    assert trace.lanes.kind.tolist() == [LaneKind.STREAM if device else LaneKind.THREAD]
    assert trace.lanes.device.tolist() == [0 if device else -1]


def test_what_is_no_event_is_counted(tmp_path: Path) -> None:
    events = [
        span("cpu_op", "a", 5, 1),
        {"name": "process_name", "ph": "M", "pid": 7, "tid": 0, "args": {"name": "python"}},
        {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "pid": 7, "tid": 1, "ts": 5, "s": "t"},
        {"ph": "i", "cat": "cpu_instant_event", "name": "Record", "pid": 7, "tid": 1, "ts": 5, "s": "t"},
        {"ph": "C", "name": "bytes", "pid": 7, "ts": 5, "args": {"bytes": 3}},
        {"ph": "s", "id": 1, "pid": 7, "tid": 1, "ts": 5, "cat": "ac2g", "name": "ac2g"},
        {"ph": "B", "name": "begin", "pid": 7, "tid": 1, "ts": 5},
        span("gpu_user_annotation", "a", 5, 1),
        span("overhead", "Activity Buffer Request", 5, 1),
        span("unheard_of", "x", 5, 1),
        {**span("Trace", "PyTorch Profiler (0)", 5, 1), "pid": "Spans", "tid": "PyTorch Profiler"},
        {**span("cpu_op", "elsewhere", 5, 1), "tid": "main"},
        span("cpu_op", "negative", 5, -1),
        span("user_annotation", "ProfilerStep#12", 4, 9),
        {},
    ]
    trace = read_kineto(written(tmp_path, events))
    assert rows_of(trace) == [(1000, 2000, "a", Kind.HOST, "1")]  # time counts from the step mark
    assert (trace.marks.step[0], trace.marks.start_ns[0], trace.marks.end_ns[0]) == (12, 0, 9000)
    assert trace.tally.read == len(events)
    assert trace.tally.dropped == {
        "metadata": 1,
        "allocation or release, kept as such": 1,
        "instant event": 1,
        "counter": 1,
        "launch flow, redundant with correlation": 1,
        "phase not understood": 1,
        "device annotation": 1,
        "profiler overhead": 1,
        "category not understood: unheard_of": 1,
        "profiler span": 1,
        "neither thread nor stream": 1,
        "no duration": 1,
        "step annotation, kept as a mark": 1,
        "empty record": 1,
    }


@pytest.mark.parametrize(("finished", "kept"), [(False, False), ("false", False), (True, True), ("true", True)])
def test_a_step_is_marked_only_if_it_was_finished(tmp_path: Path, *, finished: bool | str, kept: bool) -> None:
    events = [
        span("cpu_op", "a", 5, 1, finished=False),
        span("user_annotation", "ProfilerStep#1", 1, 2),
        span("user_annotation", "stage", 4, 5, finished=False),
        span("user_annotation", "ProfilerStep#2", 4, 9, finished=finished),
    ]
    trace = read_kineto(written(tmp_path, events))
    assert trace.marks.step.tolist() == ([1, 2] if kept else [1])
    assert [name for *_, name, _, _ in rows_of(trace)] == ["stage", "a"]
    assert trace.tally.dropped.get("step annotation, cut by the end of the recording", 0) == (not kept)
    assert [note.code for note in trace.tally.notes] == ([] if kept else ["TF311"])
    assert quality(trace.tally).verdict == "good"


def test_a_thread_that_only_polls_does_no_work(tmp_path: Path) -> None:
    events = [
        span("cuda_runtime", "cudaEventQuery", 1, 1, tid=1),
        span("cuda_runtime", "cudaEventQuery", 1, 1, tid=2),
        span("cuda_runtime", "cudaLaunchKernel", 3, 1, tid=2),
    ]
    trace = read_kineto(written(tmp_path, events))
    assert trace.lanes.name == ("2",)
    assert trace.tally.dropped == {"polling": 1}


def test_threads_of_two_processes_with_one_number_stay_apart(tmp_path: Path) -> None:
    events = [span("cpu_op", "a", 1, 1), {**span("cpu_op", "b", 1, 1), "pid": 8}]
    assert read_kineto(written(tmp_path, events)).lanes.name == ("7/1", "8/1")


def test_correlation_belongs_to_calls_and_device_work(tmp_path: Path) -> None:
    events = [
        span("cpu_op", "op", 0, 9, correlation=3),
        span("cuda_runtime", "cudaLaunchKernel", 1, 1, correlation=3),
        span("kernel", "k", 2, 1, correlation=3),
        span("kernel", "unlaunched", 4, 1, correlation=0),
    ]
    assert read_kineto(written(tmp_path, events)).events.correlation.tolist() == [-1, 3, 3, -1]


# ---------------------------------------------------------------- times

TIMES = [
    ("1", 1000),
    ("0.001", 1),
    ("0.0019", 1),
    ("1e-06", 0),
    ("1E3", 1_000_000),
    ("1.5e+1", 15_000),
    ("12.5e-1", 1250),
    ("4458676524679.043", 4_458_676_524_679_043),
    ("1712195495520871.123", 1_712_195_495_520_871_123),
    ("1.712195495520871123e15", 1_712_195_495_520_871_123),
    ("0.0009999999999999999999999", 0),
    ("1234.567890123456789", 1_234_567),
]


@pytest.mark.parametrize(("text", "ns"), TIMES)
def test_times_come_from_their_decimal_text(tmp_path: Path, text: str, ns: int) -> None:
    path = tmp_path / "rank0.json"
    event = '{"ph": "X", "cat": "cpu_op", "name": "%s", "pid": 7, "tid": 1, "ts": %s, "dur": %s}'
    path.write_text(
        f'{{"traceEvents": [{event % ("origin", 0, 0)}, {event % ("a", text, 0)}, {event % ("b", 0, text)}]}}'
    )
    times = {name: (start, end) for start, end, name, _, _ in rows_of(read_kineto(path))}
    assert times == {"origin": (0, 0), "a": (ns, ns), "b": (0, ns)}


@pytest.mark.parametrize(
    "text", ["NaN", "Infinity", "-1", "null", '"soon"', "1e30", "1e", "1.2.3", "[1]", "99999999999999999999"]
)
@pytest.mark.parametrize("field", ["ts", "dur"])
def test_what_is_no_time_is_dropped(tmp_path: Path, field: str, text: str) -> None:
    events = json.dumps(
        [
            span("cpu_op", "a", 1, 1),
            span("cpu_op", "b", "TIME", 1) | {field: "TIME"} | ({"ts": 1} if field == "dur" else {}),
        ]
    )
    path = tmp_path / "rank0.json"
    path.write_text(f'{{"traceEvents": {events}}}'.replace('"TIME"', text))
    trace = read_kineto(path)
    assert trace.strings == ("a",)
    assert trace.tally.dropped == {"no duration": 1}


def test_neighbours_keep_their_order_below_a_nanosecond(tmp_path: Path) -> None:
    events = [span("kernel", "a", 0.0004, 0.0008), span("kernel", "b", 0.0012, 0.0009)]
    assert [row[:3] for row in rows_of(read_kineto(written(tmp_path, events)))] == [(0, 1, "a"), (1, 2, "b")]


@pytest.mark.parametrize(
    ("ts", "header", "epoch_ns"),
    [
        (5, {"baseTimeNanoseconds": 1_700_000_000_000_000_000}, 1_700_000_000_000_005_000),
        (5, {}, None),
        (1_700_000_000_000_000, {}, 1_700_000_000_000_000_000),
        (1_700_000_000_000_000, {"baseTimeNanoseconds": 1_700_000_000_000_000_000}, 1_700_000_000_000_000_000),
    ],
)
def test_absolute_time(tmp_path: Path, ts: int, header: Mapping[str, Any], epoch_ns: int | None) -> None:
    assert read_kineto(written(tmp_path, [span("cpu_op", "a", ts, 1)], **header)).epoch_ns == epoch_ns


# ---------------------------------------------------------------- communication

ALLREDUCE: Event = {
    "Collective name": "allreduce",
    "In msg nelems": 10,
    "dtype": "BFloat16",
    "Group size": 2,
    "Process Group Name": "5",
}
NCCL = "ncclDevKernel_Generic(args)"


def communication(trace: Trace) -> dict[str, object]:
    """The one communication of a trace, by column."""
    c = trace.communications
    assert len(c.event) == 1
    row: dict[str, object] = {f.name: int(getattr(c, f.name)[0]) for f in fields(c)}
    return row | {
        "operation": trace.strings[c.operation[0]],
        "group": trace.groups[c.group[0]] if c.group[0] >= 0 else None,
    }


@pytest.mark.parametrize(
    "link",
    [
        [span("kernel", NCCL, 5, 9, **ALLREDUCE)],
        [
            span("cpu_op", "record_param_comms", 0, 4, **{"External id": 77}, **ALLREDUCE),
            span("kernel", NCCL, 5, 9, **{"External id": 77}),
        ],
        [
            span("cpu_op", "record_param_comms", 0, 4, **{"External id": 77}, **ALLREDUCE),
            span("cuda_runtime", "cudaLaunchKernel", 1, 1, correlation=3, **{"External id": 77}),
            span("kernel", NCCL, 5, 9, correlation=3),
        ],
        [
            span("cpu_op", "record_param_comms", 0, 4, **ALLREDUCE),
            span("cpu_op", "record_param_comms", 0, 4, tid=2, **{**ALLREDUCE, "In msg nelems": 11}),
            span("cuda_runtime", "cudaLaunchKernel", 1, 1, correlation=3),
            span("kernel", NCCL, 5, 9, correlation=3),
        ],
    ],
    ids=["own arguments", "external id", "external id of the launch", "operator around the launch"],
)
def test_arguments_of_a_collective_are_found(tmp_path: Path, link: list[Event]) -> None:
    found = communication(read_kineto(written(tmp_path, link)))
    assert found["operation"] == "allreduce"
    assert found["payload_bytes"] == 20
    assert found["group"] == Group("5", (), 2)


def test_a_kernel_without_arguments_is_told_by_its_name(tmp_path: Path) -> None:
    trace = read_kineto(written(tmp_path, [span("kernel", "ncclKernel_AllReduce_RING_LL_Sum_float(x)", 5, 9)]))
    found = communication(trace)
    assert (found["operation"], found["group"], found["payload_bytes"], found["sequence"]) == (
        "allreduce",
        None,
        -1,
        -1,
    )


@pytest.mark.parametrize("listed", [[4, 6], "[4, 6]"])
@pytest.mark.parametrize("said", [{}, {"Process Group Ranks": "[4, ...]"}, {"Process Group Ranks": "[4, 6]"}])
def test_members_come_from_the_configuration_where_the_event_lacks_them(
    tmp_path: Path, listed: object, said: Mapping[str, Any]
) -> None:
    config = {"rank": 4, "world_size": 8, "pg_config": [{"pg_name": "5", "pg_size": 2, "ranks": listed}]}
    events = [span("kernel", NCCL, 5, 9, **ALLREDUCE, **said)]
    path = written(tmp_path, events)
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "distributedInfo": config}))  # behind the events
    trace = read_kineto(path)
    assert communication(trace)["group"] == Group("5", (4, 6), 2)
    assert (trace.ranks[0].rank, trace.ranks[0].world_size) == (4, 8)


@pytest.mark.parametrize(
    ("args", "source", "destination"),
    [
        ({"Collective name": "send", "Dst Rank": 6}, 4, 6),
        ({"Collective name": "recv", "Src Rank": 6}, 6, 4),
        ({"Collective name": "broadcast", "Rank": 1, "Process Group Ranks": "[4, 6]"}, 6, -1),
        ({"Collective name": "allreduce", "Rank": 1, "Process Group Ranks": "[4, 6]"}, -1, -1),
        ({"Collective name": "broadcast", "Rank": 1}, -1, -1),
    ],
)
def test_who_sends_and_who_receives(tmp_path: Path, args: Mapping[str, Any], source: int, destination: int) -> None:
    events = [span("kernel", NCCL, 5, 9, **{**ALLREDUCE, **args})]
    found = communication(read_kineto(written(tmp_path, events, "rank4.json")))
    assert (found["source"], found["destination"], found["member"]) == (source, destination, 4)


@pytest.mark.parametrize(
    ("dtype", "size"), [("Float", 4), ("Long", 8), ("Float8_e4m3fn", 1), ("Bool", 1), ("Unheard", None)]
)
def test_payload_is_elements_times_their_size(tmp_path: Path, dtype: str, size: int | None) -> None:
    events = [span("kernel", NCCL, 5, 9, **{**ALLREDUCE, "dtype": dtype})]
    found = communication(read_kineto(written(tmp_path, events)))
    assert found["payload_bytes"] == (-1 if size is None else 10 * size)


def test_a_flow_binds_the_innermost_operators_even_at_their_ends(tmp_path: Path) -> None:
    events = [
        span("cpu_op", "module", 0, 100),
        span("cpu_op", "linear", 10, 20),
        span("cpu_op", "inner", 11, 2),
        span("cpu_op", "backward", 50, 5, tid=2),
        {"ph": "s", "id": 9, "pid": 7, "tid": 1, "ts": 30, "cat": "fwdbwd", "name": "fwdbwd"},
        {"ph": "f", "id": 9, "pid": 7, "tid": 2, "ts": 50, "cat": "fwdbwd", "name": "fwdbwd", "bp": "e"},
        {"ph": "f", "id": 8, "pid": 7, "tid": 2, "ts": 51, "cat": "fwdbwd", "name": "fwdbwd", "bp": "e"},
        {"ph": "s", "id": 8, "pid": 7, "tid": 3, "ts": 15, "cat": "fwdbwd", "name": "fwdbwd"},
    ]
    trace = read_kineto(written(tmp_path, events))
    pairs = zip(trace.flows.source, trace.flows.target, strict=True)
    assert [(rows_of(trace)[s][2], rows_of(trace)[t][2]) for s, t in pairs] == [("linear", "backward")]
    assert trace.tally.dropped == {"data flow, kept as such": 2, "data flow without operators": 2}


# ---------------------------------------------------------------- ranks and header


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("rank3.json", 3),
        ("rank-3.json", 3),
        ("trace_rank_3.json", 3),
        ("rank00012.pt.trace.json", 12),
        ("rank3of8.json", 3),
        ("host_1234.1699.pt.trace.json", None),
    ],
)
def test_the_rank_in_a_file_name(tmp_path: Path, name: str, rank: int | None) -> None:
    trace = read_kineto(written(tmp_path, [span("cpu_op", "a", 1, 1)], name))
    assert trace.ranks[0].rank == (rank or 0)
    assert [note.code for note in trace.tally.notes] == ([] if rank is not None else ["TF301"])
    assert quality(trace.tally).verdict == "good"


def test_what_the_header_says(tmp_path: Path) -> None:
    header = {
        "distributedInfo": {"backend": "nccl", "rank": 2, "world_size": 8},
        "host_name": "node7",
        "cuda_driver_version": 12080,
        "deviceProperties": [{"id": 0, "name": "H100"}],
        "INFO": ["something"],
    }
    trace = read_kineto(written(tmp_path, [span("cpu_op", "a", 1, 1)], "rank5.json", **header))
    rank = trace.ranks[0]
    assert (rank.rank, rank.host, rank.world_size, rank.source) == (2, "node7", 8, "rank5.json")
    assert trace.metadata == {"backend": "nccl", "cuda_driver_version": "12080", "device": "H100"}
    assert trace.format == "kineto"


# ---------------------------------------------------------------- odd, damaged and missing input

ONE = '{"ph": "X", "cat": "cpu_op", "name": "NAME", "pid": 7, "tid": 1, "ts": 1, "dur": 1}'


@pytest.mark.parametrize(
    "text",
    [
        "[EVENT]",
        '\ufeff{"traceEvents": [EVENT]}',
        '{"traceEvents": [EVENT,], "x": [1,],}',
        '{"traceEvents": [EVENT, {}]}',
        '{"traceEvents": [{"x": NaN, "y": -Infinity, "args": {"z": [NaN, {"w": null}]}}, EVENT]}',
        '{"a": {"traceEvents": 1}, "traceEvents":[EVENT]\n\n}\n\n',
        '{"metadata": {"odd": "\\q"}, "traceEvents": [EVENT]}',
    ],
)
def test_odd_json_is_read(tmp_path: Path, text: str) -> None:
    path = tmp_path / "rank0.json"
    path.write_text(text.replace("EVENT", ONE.replace("NAME", "a")), encoding="utf-8")
    trace = read_kineto(path)
    assert [row[2] for row in rows_of(trace)] == ["a"]
    assert trace.tally.notes == ()


@pytest.mark.parametrize(
    ("spelled", "name"),
    [
        (r"say \"hi\"", 'say "hi"'),
        (r"a\/b\\c\n", "a/b\\c\n"),
        (r"\u00e9\ud83d\ude00", "é😀"),
        (r"half \ud83d", "half \ufffd"),
        (r"C:\dir\x", r"C:\dir\x"),
        (r"\u12", r"\u12"),
        ("raw\nline\tand\x01control", "raw\nline\tand\x01control"),
        ("", ""),
    ],
)
def test_names_are_unescaped(tmp_path: Path, spelled: str, name: str) -> None:
    path = tmp_path / "rank0.json"
    path.write_text(f'{{"traceEvents": [{ONE.replace("NAME", spelled)}]}}', encoding="utf-8")
    assert read_kineto(path).strings == (name,)


def test_two_spellings_of_one_name_are_one(tmp_path: Path) -> None:
    path = tmp_path / "rank0.json"
    path.write_text(f"[{ONE.replace('NAME', 'a/b')}, {ONE.replace('NAME', chr(92).join(('a', '/b')))}]")
    trace = read_kineto(path)
    assert trace.strings == ("a/b",)
    assert trace.tally.dropped == {"exact duplicate": 1}


def test_an_event_that_is_no_json_is_passed_over(tmp_path: Path) -> None:
    good = [ONE.replace("NAME", name) for name in "abc"]
    bad = ONE.replace("NAME", 'the "worst" case')
    path = tmp_path / "rank0.json"
    for place in range(4):
        events = ",\n".join([*good[:place], bad, *good[place:]])
        path.write_text(f'{{"traceEvents": [{events}], "distributedInfo": {{"rank": 5}}}}')
        trace = read_kineto(path)
        assert trace.strings == ("a", "b", "c")
        assert trace.ranks[0].rank == 5
        assert trace.tally.dropped == {"damaged event": 1}
        assert [(note.code, note.affects) for note in trace.tally.notes] == [("TF302", ("/result",))]
        assert str(path.read_text().index(bad)) in trace.tally.notes[0].text


def small_file(folder: Path) -> Path:
    events = [
        {"ph": "M", "name": "process_name", "pid": 7, "tid": 0, "args": {"name": "python"}},
        span("cpu_op", 'quo"te', 1.5, 20, **{"External id": 1}),
        span("cuda_runtime", "cudaLaunchKernel", 2.25, 1, correlation=3),
        span("kernel", NCCL, 5, 9, correlation=3, **ALLREDUCE),
        {"ph": "s", "id": 9, "pid": 7, "tid": 1, "ts": 2, "cat": "fwdbwd", "name": "fwdbwd"},
        span("cuda_sync", "Stream Sync", 5, 1, tid=7, cuda_sync_kind="Stream Sync", correlation=3),
    ]
    return written(folder, events, distributedInfo={"rank": 3, "world_size": 4})


def test_a_file_cut_at_any_byte_is_refused(tmp_path: Path) -> None:
    whole = small_file(tmp_path).read_bytes()
    path, refused = tmp_path / "cut.json", set()
    for size in range(len(whole.rstrip())):
        path.write_bytes(whole[:size])
        with pytest.raises(TraceflowError) as error:
            read_kineto(path)
        refused.add((error.value.code, size == 0))
    assert refused == {("TF102", True), ("TF103", False)}


def test_a_packed_file_cut_at_any_byte_is_refused(tmp_path: Path) -> None:
    whole = gzip.compress(small_file(tmp_path).read_bytes(), mtime=0)
    path, refused = tmp_path / "rank0.json.gz", set()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(TraceflowError) as error:
            read_kineto(path)
        refused.add(error.value.code)
    assert refused == {"TF102", "TF103", "TF105"}


def test_a_packed_file_with_a_wrong_byte_is_refused(tmp_path: Path) -> None:
    events = [span("cpu_op", f"op{i * 7919 % 10007}", i, 1) for i in range(20_000)]
    packed = bytearray(gzip.compress(written(tmp_path, events).read_bytes(), mtime=0))
    packed[len(packed) // 2] ^= 0xFF
    path = tmp_path / "rank0.json.gz"
    path.write_bytes(packed)
    with pytest.raises(TraceflowError, match="TF105"):
        read_kineto(path)


def test_a_bare_list_may_lack_its_closing_bracket(tmp_path: Path) -> None:
    path = tmp_path / "rank0.json"
    path.write_text(f"[{ONE.replace('NAME', 'a')},\n{ONE.replace('NAME', 'b')}")
    assert read_kineto(path).strings == ("a", "b")
    path.write_text(path.read_text()[:-1])
    with pytest.raises(TraceflowError, match="TF103"):
        read_kineto(path)


def test_a_packed_file_in_two_members_is_one(tmp_path: Path) -> None:
    whole = small_file(tmp_path).read_bytes()
    path = tmp_path / "rank3.json.gz"
    path.write_bytes(gzip.compress(whole[:400]) + gzip.compress(whole[400:]) + bytes(512))
    assert plain(read_kineto(path).events) == plain(read_kineto(tmp_path / "rank0.json").events)


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"", "TF102"),
        (b"   \n", "TF103"),
        (b"not json", "TF103"),
        (b'"text"', "TF103"),
        (b"{", "TF103"),
        (b'{"a" 1}', "TF103"),
        (b"{}", "TF104"),
        (b"[]", "TF104"),
        (b'{"traceEvents": []}', "TF104"),
        (b'{"traceEvents": null}', "TF104"),
        (b'{"traceEvents": [{"ph": "M", "name": "x"}]}', "TF104"),
        (b"\x1f\x8b and then nonsense", "TF105"),
        (gzip.compress(b""), "TF102"),
    ],
)
def test_what_is_no_trace_is_refused_in_one_line(tmp_path: Path, content: bytes, code: str) -> None:
    path = tmp_path / "rank0.json"
    path.write_bytes(content)
    with pytest.raises(TraceflowError) as refused:
        read_kineto(path)
    assert refused.value.code == code
    assert "rank0.json" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(TraceflowError, match="TF101"):
        read_kineto(tmp_path / "rank0.json")


# ---------------------------------------------------------------- laws

TEXT = st.text(st.characters(codec="utf-8"), max_size=12)
CLOCK = st.decimals(min_value=0, max_value=10**9, places=4, allow_nan=False)


@st.composite
def spans(draw: st.DrawFn) -> tuple[Event, Row]:
    """One event, and what is to be read of it: start, end, name, lane."""
    cat = draw(st.sampled_from(["cpu_op", "python_function", "kernel", "gpu_memcpy", "cuda_driver"]))
    tid, name, ts, dur = draw(st.integers(0, 2**62)), "n" + draw(TEXT), draw(CLOCK), draw(CLOCK)
    event = span(
        cat,
        name,
        ts,
        dur,
        tid,
        **{"Input Dims": draw(st.lists(st.lists(st.integers()), max_size=2)), "x" + draw(TEXT): draw(TEXT)},
    )
    if cat == "cuda_driver":
        event["name"] = name = "cuLaunch" + name
    return event, (floor_ns(ts), floor_ns(ts + dur), name, str(tid))


def spelled(value: object, rng: random.Random) -> str:
    """JSON of a value in one of its many spellings."""

    def blank() -> str:
        return rng.choice(["", "", " ", "\n", "\t  ", "\r\n      "])

    if isinstance(value, dict):
        items = [(spelled(key, rng), spelled(item, rng)) for key, item in rng.sample(list(value.items()), len(value))]
        return "{" + ",".join(f"{blank()}{key}{blank()}:{blank()}{item}{blank()}" for key, item in items) + "}"
    if isinstance(value, list):
        return "[" + ",".join(f"{blank()}{spelled(item, rng)}{blank()}" for item in value) + "]"
    if isinstance(value, Decimal):
        forms = [f"{value:f}", f"{value:E}" if value else "0", f"{value:f}000" if value % 1 else f"{value:f}"]
        return rng.choice(forms)
    text = json.dumps(value, ensure_ascii=rng.random() < 0.5)
    return text.replace("/", "\\/") if rng.random() < 0.5 else text


@given(st.lists(spans(), min_size=1, max_size=8), st.randoms(use_true_random=False))
def test_what_is_written_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, some: list[tuple[Event, Row]], rng: random.Random
) -> None:
    content = {
        "schemaVersion": 1,
        "traceEvents": [event for event, _ in some],
        "traceName": "x",
        "baseTimeNanoseconds": 10**18,
    }
    path = tmp_path_factory.getbasetemp() / "rank0.json"
    path.write_bytes(spelled(content, rng).encode())
    trace = read_kineto(path)
    assert trace.epoch_ns is not None
    shift = trace.epoch_ns - 10**18
    found = {(start + shift, end + shift, name, lane) for start, end, name, _, lane in rows_of(trace)}
    assert found == {row for _, row in some}
    assert trace.tally.notes == ()


@given(st.lists(spans(), min_size=1, max_size=8), st.randoms(use_true_random=False))
def test_the_order_of_the_file_changes_nothing(
    tmp_path_factory: pytest.TempPathFactory, some: list[tuple[Event, Row]], rng: random.Random
) -> None:
    events = [json.loads(json.dumps(event, default=float)) for event, _ in some]
    path = tmp_path_factory.getbasetemp() / "rank0.json"
    traces = []
    for _ in range(2):
        rng.shuffle(events)
        path.write_text(json.dumps({"traceEvents": events}))
        traces.append(plain(read_kineto(path)))
    assert traces[0] == traces[1]


@pytest.mark.parametrize("name", ["moe_hot_rank", "pipeline", "graph_replay"])
def test_the_order_of_a_recorded_file_changes_nothing(tmp_path: Path, name: str) -> None:
    path = SHARED / "cases" / name / "traces" / "rank0.pt.trace.json.gz"
    if not path.exists():
        pytest.skip("no cases beside the checkout")
    content = json.loads(gzip.decompress(path.read_bytes()))
    random.Random(0).shuffle(content["traceEvents"])
    shuffled = tmp_path / path.name
    shuffled.write_bytes(gzip.compress(json.dumps(content).encode()))
    assert plain(read_kineto(shuffled)) == plain(read_kineto(path))


@pytest.mark.parametrize(("piece", "batch"), [(1, 4096), (7, 1), (64, 3), (1000, 4096)])
def test_pieces_and_batches_change_nothing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    piece: int,
    batch: int,
) -> None:
    path = small_file(tmp_path)
    whole = plain(read_kineto(path))
    monkeypatch.setattr(_kineto_rows, "_PIECE", piece)
    monkeypatch.setattr(_kineto_rows, "_BATCH", batch)
    assert plain(read_kineto(path)) == whole


def test_an_item_larger_than_a_piece_is_read(tmp_path: Path) -> None:
    stack: Event = {"Call stack": "x" * 5_000_000}
    events = [span("cpu_op", "a", 1, 1, **stack), span("cpu_op", "b", 1, 1)]
    assert read_kineto(written(tmp_path, events, INFO=["y" * 3_000_000])).strings == ("a", "b")


def test_many_distinct_names_are_told_apart(tmp_path: Path) -> None:
    names = [f"frame {i}(line {i % 13})" for i in range(30_000)]
    trace = read_kineto(written(tmp_path, [span("python_function", name, i, 1) for i, name in enumerate(names)]))
    assert [trace.strings[code] for code in trace.events.name] == names


@pytest.mark.parametrize("with_others", [False, True])
def test_shapes_of_an_operator_without_a_name_are_of_no_use(tmp_path: Path, with_others: bool) -> None:  # noqa: FBT001
    nameless = {"ph": "X", "cat": "cpu_op", "pid": 1, "tid": 1, "ts": 1, "dur": 2}
    nameless["args"] = {"Input Dims": [[2, 3], [3, 4]], "Input type": ["float", "float"]}
    product = {**nameless, "name": "aten::mm", "ts": 5}
    file = tmp_path / "rank0.json"
    file.write_text(json.dumps({"schemaVersion": 1, "traceEvents": [nameless, product] if with_others else [nameless]}))
    trace = read_kineto(file)
    assert len(trace.events) == 1 + with_others
    assert trace.operands.event.tolist() == [1] * with_others
