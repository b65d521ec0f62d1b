"""Nsight Systems as input: what each table becomes, what a schema may lack, and what no table can break."""

from __future__ import annotations

import json
import random
import sqlite3
import struct
from contextlib import closing
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from nsight_builder import (
    BETWEEN,
    CONTEXT,
    EVENT,
    INSTANT,
    SCHEMA,
    SESSION_NS,
    STREAM_WAIT,
    Cell,
    NsightProcess,
    NsightProfile,
)

import traceflow
from traceflow.errors import TraceflowError
from traceflow.graph import EdgeKind
from traceflow.quality import quality
from traceflow.run import Run
from traceflow.trace.model import ABSENT, Kind, LaneKind, SyncKind, Trace

ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
NCCL = 3


def opened(profile: NsightProfile, folder: Path) -> Run:
    return traceflow.open(profile.write(folder / "profile.sqlite"))


def one_process() -> tuple[NsightProfile, NsightProcess]:
    profile = NsightProfile()
    return profile, profile.process(4000, gpu=0)


def spans(trace: Trace) -> list[tuple[str, Kind, int, int]]:
    e = trace.events
    rows = np.lexsort((e.kind, e.start_ns)).tolist()
    return [(trace.strings[e.name[i]], Kind(e.kind[i]), int(e.start_ns[i]), int(e.end_ns[i])) for i in rows]


def refusal(file: Path) -> TraceflowError:
    with pytest.raises(TraceflowError) as refused:
        traceflow.open(file)
    return refused.value


# ---- what each table becomes ----


def test_kernels_copies_calls_and_ranges_are_events_of_their_kinds(tmp_path: Path) -> None:
    profile, worker = one_process()
    worker.annotate("forward", 1_000, 9_000)
    worker.copy(3_000, 4_000, call=(2_000, 2_500), size_bytes=4096)
    worker.kernel("void gemm<float>(float*)", 5_000, 9_000, call=(4_000, 4_500))
    worker.fill(9_000, 9_100, call=(5_000, 5_100), size_bytes=64, stream=8)
    worker.graph(3, 9_200, 9_900, call=(6_000, 6_100))
    trace = opened(profile, tmp_path).trace
    assert spans(trace) == [
        ("forward", Kind.HOST, 0, 8_000),
        ("cudaMemcpyAsync", Kind.CALL, 1_000, 1_500),
        ("Memcpy HtoD", Kind.COPY, 2_000, 3_000),
        ("cudaLaunchKernel", Kind.CALL, 3_000, 3_500),
        ("cudaMemsetAsync", Kind.CALL, 4_000, 4_100),
        ("void gemm<float>(float*)", Kind.COMPUTE, 4_000, 8_000),
        ("cudaGraphLaunch", Kind.CALL, 5_000, 5_100),
        ("Memset", Kind.COPY, 8_000, 8_100),
        ("CUDA graph 3", Kind.COMPUTE, 8_200, 8_900),
    ]
    assert sorted(trace.copies.size_bytes.tolist()) == [64, 4096]
    assert trace.epoch_ns == SESSION_NS + 1_000
    assert (trace.ranks[0].rank, trace.ranks[0].host) == (0, "node-00")
    assert trace.metadata["device"] == "NVIDIA A100-SXM4-40GB"
    assert quality(trace.tally).verdict == "good"


def test_lanes_are_streams_of_devices_and_threads(tmp_path: Path) -> None:
    profile, worker = one_process()
    profile.add("ThreadNames", nameId=profile.text("python"), globalTid=worker.thread(4001))
    worker.kernel("a", 5_000, 6_000, call=(1_000, 2_000), stream=7)
    worker.kernel("b", 5_000, 6_000, call=(1_000, 2_000), stream=20, tid=4001)
    lanes = opened(profile, tmp_path).trace.lanes
    assert sorted(zip(lanes.device, lanes.kind, lanes.stream, lanes.name, strict=True)) == [
        (ABSENT, LaneKind.THREAD, ABSENT, "4000"),
        (ABSENT, LaneKind.THREAD, ABSENT, "python/4001"),
        (0, LaneKind.STREAM, 7, "7"),
        (0, LaneKind.STREAM, 20, "20"),
    ]


def test_a_kernel_waits_for_its_launch(tmp_path: Path) -> None:
    profile, worker = one_process()
    worker.kernel("gemm", 9_000, 20_000, call=(1_000, 2_000))
    graph = opened(profile, tmp_path).dependencies.graph
    assert EdgeKind.LAUNCH in graph.kind


@pytest.mark.parametrize("number", [None, 17], ids=["by event", "by number of the record"])
def test_a_stream_waits_for_an_event_recorded_on_another(tmp_path: Path, number: int | None) -> None:
    profile, worker = one_process()
    worker.kernel("produce", 10_000, 50_000, call=(1_000, 1_500), stream=7)
    worker.record(3, (2_000, 2_100), stream=7, number=number)
    worker.wait(STREAM_WAIT, (3_000, 3_100), stream=20, event=3, number=number)
    worker.kernel("consume", 51_000, 60_000, call=(4_000, 4_500), stream=20)
    run = opened(profile, tmp_path)
    syncs = run.trace.syncs
    assert (syncs.kind.tolist(), syncs.stream.tolist(), syncs.awaited_stream.tolist()) == (
        [SyncKind.STREAM_WAIT],
        [20],
        [7],
    )
    assert (syncs.record_correlation.tolist(), syncs.correlation.tolist()) == ([2], [3])
    assert EdgeKind.EVENT_WAIT in run.dependencies.graph.kind
    assert run.critical_path().by_kind_ns["compute"] == 40_000 + 9_000


def test_an_event_that_was_recorded_twice_means_the_last_record_before_the_wait(tmp_path: Path) -> None:
    profile, worker = one_process()
    worker.record(3, (1_000, 1_100), stream=7)
    worker.record(3, (2_000, 2_100), stream=8)
    worker.wait(EVENT, (3_000, 3_100), event=3)
    worker.record(3, (4_000, 4_100), stream=9)
    assert opened(profile, tmp_path).trace.syncs.awaited_stream.tolist() == [8]


def test_the_number_of_a_record_counts_more_than_the_order(tmp_path: Path) -> None:
    profile, worker = one_process()
    worker.record(3, (1_000, 1_100), stream=7, number=17)
    worker.record(3, (2_000, 2_100), stream=8, number=18)
    worker.wait(EVENT, (3_000, 3_100), event=3, number=17)
    assert opened(profile, tmp_path).trace.syncs.awaited_stream.tolist() == [7]


def test_blocking_calls_wait_and_say_for_what(tmp_path: Path) -> None:
    profile, worker = one_process()
    worker.kernel("gemm", 5_000, 90_000, call=(1_000, 2_000))
    worker.wait(CONTEXT, (3_000, 91_000))
    run = opened(profile, tmp_path)
    assert ("cudaDeviceSynchronize", Kind.WAIT, 2_000, 90_000) in spans(run.trace)
    assert EdgeKind.HOST_SYNCHRONISATION in run.dependencies.graph.kind


def test_a_thread_that_only_polls_is_left_out(tmp_path: Path) -> None:
    profile, worker = one_process()
    worker.kernel("gemm", 5_000, 9_000, call=(1_000, 2_000))
    worker.call("cudaEventQuery", (3_000, 3_100), tid=77)
    worker.call("cudaEventQuery", (3_000, 3_100))
    trace = opened(profile, tmp_path).trace
    assert trace.tally.dropped == {"polling": 1}
    assert [name for name, *_ in spans(trace)].count("cudaEventQuery") == 1


# ---- NVTX ----


def test_a_range_carries_its_domain_and_can_be_a_window(tmp_path: Path) -> None:
    profile, worker = one_process()
    worker.domain(9, "my_library")
    worker.annotate("phase", 1_000, 3_000, domain=9, inline=True)
    worker.kernel("gemm", 5_000, 9_000, call=(2_000, 2_500))
    run = opened(profile, tmp_path)
    window = run.critical_path(window="my_library:phase").window
    assert (window.start_ns, window.end_ns) == (0, 8_000)


@pytest.mark.parametrize(
    ("text", "step"),
    [
        ("ProfilerStep#5", 5),
        ("TSL:train#step_num=5,_r=1#", 5),
        ("step 5", 5),
        ("Iteration_5", 5),
        ("step", None),
        ("step5a", None),
    ],
)
def test_steps_are_marks(tmp_path: Path, text: str, step: int | None) -> None:
    profile, worker = one_process()
    worker.annotate(text, 1_000, 4_000)
    worker.kernel("gemm", 5_000, 9_000, call=(2_000, 2_500))
    trace = opened(profile, tmp_path).trace
    assert trace.marks.step.tolist() == ([] if step is None else [step])
    assert (text in trace.strings and step is None) or step is not None


def test_what_does_not_nest_or_has_no_end_is_counted(tmp_path: Path) -> None:
    profile, worker = one_process()
    worker.kernel("gemm", 5_000, 9_000, call=(2_000, 2_500))
    worker.annotate("cut", 1_000, None)
    worker.annotate("anywhere", 1_000, 2_000, kind=BETWEEN)
    worker.annotate("now", 1_000, None, kind=INSTANT)
    worker.annotate("category", 1_000, None, kind=33)
    tally = opened(profile, tmp_path).trace.tally
    assert tally.dropped == {
        "start-end range, which need not nest": 1,
        "instant event": 1,
        "annotation of another kind": 1,
        "range cut by the end of the recording": 1,
    }
    assert tally.read == tally.kept + sum(tally.dropped.values())


# ---- several processes, collectives ----


def two_ranks(*, payload: bool = True) -> NsightProfile:
    """Two processes all-reduce 1 MiB; the first arrives 30 us early. Process 5000 uses GPU 0, and is rank 0."""
    profile = NsightProfile()
    for pid, gpu, arrival in ((4000, 1, 20_000), (5000, 0, 50_000)):
        worker = profile.process(pid, gpu=gpu)
        worker.domain(NCCL, "NCCL")
        init = {"NCCL communicator ID": 42, "No. of ranks": 2, "Rank": 1 - gpu, "CUDA device": 0}
        worker.annotate("ncclCommInitRank", 0, 500, domain=NCCL, payload=init)
        size = {"NCCL communicator ID": 42, "Message size [bytes]": 1 << 20, "Reduction operation": 0}
        worker.annotate("ncclAllReduce", 1_000, 3_000, domain=NCCL, payload=size if payload else None)
        worker.kernel(ALL_REDUCE, arrival, 60_000, call=(1_500, 2_000), stream=20)
    return profile


def test_processes_of_one_file_are_ranks_in_order_of_their_devices(tmp_path: Path) -> None:
    trace = opened(two_ranks(), tmp_path).trace
    assert [(rank.rank, rank.clock) for rank in trace.ranks] == [(0, 0), (1, 0)]
    on_device = trace.lanes.device != ABSENT
    assert list(zip(trace.lanes.rank[on_device], trace.lanes.device[on_device], strict=True)) == [(0, 0), (1, 1)]
    assert [note.code for note in trace.tally.notes] == ["TF318"]


def test_annotations_of_nccl_tell_who_takes_part_and_with_how_much(tmp_path: Path) -> None:
    (collective,) = opened(two_ranks(), tmp_path).communication().collectives
    assert (collective.op, collective.payload_bytes, collective.last[0]) == ("allreduce", 1 << 20, 0)
    waits = {one.participant[0]: (one.wait_ns, one.transfer_ns) for one in collective.calls}
    assert waits == {0: (0, 10_000), 1: (30_000, 10_000)}


def test_what_goes_into_a_reduce_scatter_is_what_comes_out_on_all(tmp_path: Path) -> None:
    profile = two_ranks()
    numbers = {text: number for text, number in profile.strings.items() if text != ALL_REDUCE}
    profile.strings = {"ncclDevKernel_ReduceScatter_Sum_f32_RING_LL": profile.strings[ALL_REDUCE], **numbers}
    c = opened(profile, tmp_path).trace.communications
    assert c.payload_bytes.tolist() == [2 << 20] * 2


def in_binary(profile: NsightProfile) -> NsightProfile:
    """The same payloads as NCCL's own structures: communicator and size, or communicator, number of ranks and rank."""
    of_init = (("NCCL communicator ID", 18, None), ("No. of ranks", 5, 8), ("Rank", 5, 12))
    of_call = (("NCCL communicator ID", 18, None), ("Message size [bytes]", 22, 8))
    for schema, entries in ((7, of_init), (9, of_call)):
        for index, (name, kind, offset) in enumerate(entries):
            cells: dict[str, Cell] = {"schemaId": schema, "idx": index, "type": kind, "name": name, "offset": offset}
            profile.add("NVTX_PAYLOAD_SCHEMA_ENTRIES", domainId=NCCL, **cells)
    for row in profile.rows["NVTX_EVENTS"]:
        said = json.loads(str(row["jsonText"])) if row["jsonText"] else {}
        row["jsonText"] = None
        if "Rank" in said:
            row["binaryData"] = struct.pack("<IIIIQQQii", NCCL, 0, 7, 0, 16, 48, 42, said["No. of ranks"], said["Rank"])
        elif said:
            row["binaryData"] = struct.pack("<IIIIQQQQ", NCCL, 0, 9, 0, 16, 48, 42, said["Message size [bytes]"])
    return profile


def test_payloads_may_be_in_the_layout_of_their_schema(tmp_path: Path) -> None:
    json_trace = traceflow.open(two_ranks().write(tmp_path / "json.sqlite")).trace
    binary = opened(in_binary(two_ranks()), tmp_path).trace
    assert same(binary, json_trace)
    assert (binary.communications.payload_bytes.tolist(), binary.groups) == ([1 << 20] * 2, json_trace.groups)


@pytest.mark.parametrize("blob", [b"", b"\0" * 31, b"\xff" * 40, struct.pack("<IIIIQQ", NCCL, 0, 9, 0, 16, 48), "0100"])
def test_a_binary_payload_that_is_none_is_passed_over(tmp_path: Path, blob: bytes | str) -> None:
    profile = in_binary(two_ranks())
    for row in profile.rows["NVTX_EVENTS"]:
        row["binaryData"] = blob
    assert (opened(profile, tmp_path).trace.communications.group == ABSENT).all()


def test_numbers_may_have_separators_of_thousands(tmp_path: Path) -> None:
    profile = two_ranks()
    for row in profile.rows["NVTX_EVENTS"]:
        row["jsonText"] = (
            str(row["jsonText"] or "null").replace(": 42", ': "4,200,000"').replace(": 1048576", ': "1,048,576"')
        )
    trace = opened(profile, tmp_path).trace
    assert trace.communications.payload_bytes.tolist() == [1 << 20] * 2
    assert [group.size for group in trace.groups] == [2]


def test_without_annotations_of_nccl_nobody_is_matched_and_a_note_says_so(tmp_path: Path) -> None:
    run = opened(two_ranks(payload=False), tmp_path)
    assert run.communication().to_dict()["collectives"] == []
    assert any("2 collectives have no annotation" in note.text for note in run.trace.tally.notes)
    assert quality(run.trace.tally).verdict == "limited"


def test_files_of_several_machines_are_ranks_one_after_another_on_one_time_axis(tmp_path: Path) -> None:
    for node in range(2):
        profile = two_ranks()
        profile.host, profile.epoch_ns = f"node-{node}", SESSION_NS + node
        profile.write(tmp_path / f"node{node}.sqlite")
    trace = traceflow.open(tmp_path).trace
    assert [(rank.rank, rank.host, rank.clock) for rank in trace.ranks] == [
        (0, "node-0", 0),
        (1, "node-0", 0),
        (2, "node-1", 1),
        (3, "node-1", 1),
    ]


def test_a_process_without_work_on_a_device_is_left_out(tmp_path: Path) -> None:
    profile, worker = one_process()
    worker.kernel("gemm", 5_000, 9_000, call=(2_000, 2_500))
    NsightProcess(profile, 6000, 0).annotate("load", 0, 9_000)
    trace = opened(profile, tmp_path).trace
    assert (len(trace.ranks), trace.tally.dropped) == (1, {"of a process without work on a device": 1})


# ---- XLA ----


def xla_profile() -> NsightProfile:
    """Two processes run a program twice; its all-reduce is launched when NCCL's group ends."""
    profile = NsightProfile()
    for pid, gpu in ((4000, 0), (5000, 1)):
        worker = profile.process(pid, gpu=gpu, xla=f"Xla:#global={gpu},local={gpu},process={gpu},slice=0#")
        worker.domain(5, "TSL")
        for start in (10_000, 60_000):
            worker.annotate("XlaModule:#prefix=jit(f),hlo_module=jit_f,program_id=8#", start, start + 9_000, domain=5)
            worker.annotate(
                "Thunk:#name=jit(f)/sum[axes=(0,)],hlo_op=all-reduce-start#", start + 100, start + 900, domain=5
            )
            arrival = start + 20_000 + gpu * 1_000
            worker.kernel(ALL_REDUCE, arrival, start + 25_000, call=(start + 200, start + 300), stream=20)
            worker.annotate("Thunk:#hlo_op=fusion.1#", start + 1_000, start + 1_900, domain=5)
            worker.kernel("loop_fusion", start + 26_000, start + 27_000, call=(start + 1_100, start + 1_200))
        worker.annotate("XlaModule:#hlo_module=trial#", 90_000, 95_000, domain=5)
        worker.annotate("Thunk:#hlo_op=fusion.1#", 91_000, 92_000, domain=5)
        worker.kernel("loop_fusion", 99_000, 99_500, call=(91_100, 91_200))
    return profile


def test_kernels_execute_the_instruction_in_whose_range_they_were_launched(tmp_path: Path) -> None:
    trace = opened(xla_profile(), tmp_path).trace
    names = [trace.strings[code] for code in trace.events.name[trace.hlo.event]]
    assert sorted(zip(trace.hlo.program.tolist(), trace.hlo.run.tolist(), names, strict=True)) == sorted(
        (8, run, name) for run in (0, 1) for name in (ALL_REDUCE, "loop_fusion") for _ in (0, 1)
    )
    assert len(trace.launches.event) == 4


def test_runs_of_a_program_match_across_ranks(tmp_path: Path) -> None:
    c = opened(xla_profile(), tmp_path).trace.communications
    keys, times = np.unique(c.key, return_counts=True)
    assert (len(keys), times.tolist()) == (2, [2, 2])
    assert sorted(c.member.tolist()) == [0, 0, 1, 1]


# ---- schemas ----


def full_profile() -> NsightProfile:
    profile = two_ranks()
    worker = NsightProcess(profile, 4000, 0)
    worker.annotate("forward", 70_000, 90_000)
    worker.copy(75_000, 76_000, call=(71_000, 71_500), size_bytes=4096)
    worker.fill(77_000, 78_000, call=(72_000, 72_500), size_bytes=64)
    worker.graph(3, 79_000, 80_000, call=(73_000, 73_500))
    worker.record(3, (81_000, 81_100))
    worker.wait(STREAM_WAIT, (82_000, 82_100), stream=20, event=3)
    profile.add("ThreadNames", nameId=profile.text("python"), globalTid=worker.thread())
    return profile


def same(one: Trace, other: Trace) -> bool:
    tables = ("events", "communications", "syncs", "hlo", "launches", "marks", "copies")
    columns = (
        (getattr(one, name), getattr(other, name), f.name) for name in tables for f in fields(getattr(one, name))
    )
    return all(
        np.array_equal(getattr(a, column), getattr(b, column))
        for a, b, column in columns
        if column not in {"name", "operation"}
    ) and [one.strings[code] for code in one.events.name] == [other.strings[code] for code in other.events.name]


OPTIONAL = sorted(set(SCHEMA) - {"StringIds", "PROCESSES", "TARGET_INFO_NVTX_CUDA_DEVICE"})


@pytest.mark.parametrize("table", OPTIONAL)
def test_any_table_may_be_missing(tmp_path: Path, table: str) -> None:
    file = full_profile().write(tmp_path / "profile.sqlite", without={table})
    whole = traceflow.open(full_profile().write(tmp_path / "whole.sqlite")).trace
    trace = traceflow.open(file).trace
    assert 0 < len(trace.events) <= len(whole.events)
    assert trace.tally.read == trace.tally.kept + sum(trace.tally.dropped.values())


def test_without_calls_a_note_says_what_is_not_known(tmp_path: Path) -> None:
    file = full_profile().write(tmp_path / "profile.sqlite", without={"CUPTI_ACTIVITY_KIND_RUNTIME"})
    assert any("what launched what is not known" in note.text for note in traceflow.open(file).trace.tally.notes)


def test_an_older_schema_without_processes_is_one_process(tmp_path: Path) -> None:
    profile, worker = one_process()
    worker.kernel("gemm", 5_000, 9_000, call=(2_000, 2_500))
    file = profile.write(
        tmp_path / "old.sqlite", without={"CUPTI_ACTIVITY_KIND_KERNEL.globalPid", "TARGET_INFO_CUDA_DEVICE"}
    )
    run = traceflow.open(file)
    assert len(run.trace.ranks) == 1
    assert EdgeKind.LAUNCH in run.dependencies.graph.kind


def test_columns_of_a_later_schema_change_nothing(tmp_path: Path) -> None:
    more = {table: "whatIsNew TEXT" for table in SCHEMA if table != "StringIds"}
    later = traceflow.open(full_profile().write(tmp_path / "later.sqlite", more=more)).trace
    assert same(later, traceflow.open(full_profile().write(tmp_path / "now.sqlite")).trace)


def test_tables_whose_names_end_in_a_version_are_the_same_tables(tmp_path: Path) -> None:
    versioned = traceflow.open(full_profile().write(tmp_path / "versioned.sqlite", suffix="_V3")).trace
    assert same(versioned, traceflow.open(full_profile().write(tmp_path / "plain.sqlite")).trace)


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32))
def test_the_order_of_rows_changes_nothing(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    folder, shuffled = tmp_path_factory.mktemp("order"), full_profile()
    for rows in shuffled.rows.values():
        random.Random(seed).shuffle(rows)
    one, other = full_profile().write(folder / "one.sqlite"), shuffled.write(folder / "other.sqlite")
    assert same(traceflow.open(one).trace, traceflow.open(other).trace)


# ---- what is refused, and what is hostile ----


def test_an_export_without_rows_is_refused(tmp_path: Path) -> None:
    profile = NsightProfile()
    assert refusal(profile.write(tmp_path / "empty.sqlite")).code == "TF104"


def test_a_file_without_bytes_is_empty(tmp_path: Path) -> None:
    (tmp_path / "empty.sqlite").touch()
    assert refusal(tmp_path / "empty.sqlite").code == "TF102"
    assert refusal(tmp_path).code == "TF102"


def test_a_database_of_something_else_is_no_trace(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection:
        connection.execute("CREATE TABLE orders (id INTEGER)")
    assert refusal(tmp_path / "shop.db").code == "TF107"


@pytest.mark.parametrize("kept", [0.1, 0.5, 0.9])
def test_a_file_that_was_cut_short_is_damaged(tmp_path: Path, kept: float) -> None:
    file = full_profile().write(tmp_path / "profile.sqlite")
    content = file.read_bytes()
    file.write_bytes(content[: int(len(content) * kept)])
    assert refusal(file).code == "TF103"


@pytest.mark.parametrize("value", ["x", None, 1.5, b"\0", -1, -(2**63), 2**63 - 1, 2**62])
@pytest.mark.parametrize("table", ["CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS", "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", "CUPTI_ACTIVITY_KIND_CUDA_EVENT"])  # fmt: skip
def test_no_cell_breaks_the_rest(tmp_path: Path, table: str, value: object) -> None:
    profile = full_profile()
    for column in SCHEMA[table].split(", "):
        profile.rows[table].append({**profile.rows[table][0], column.split()[0]: value})  # type: ignore[dict-item]
    run = opened(profile, tmp_path)
    trace = run.trace
    assert trace.tally.read == trace.tally.kept + sum(trace.tally.dropped.values())
    assert (trace.events.end_ns >= trace.events.start_ns).all()
    assert {"gemm", "forward"} & set(trace.strings)
    assert run.summary().event_count == len(trace.events)


@pytest.mark.parametrize(
    "payload", ["{", "[]", "7", '{"NCCL communicator ID": []}', "[" * 100_000, '{"NCCL communicator ID": 1e400}']
)
def test_a_payload_that_says_nothing_is_passed_over(tmp_path: Path, payload: str) -> None:
    profile = two_ranks()
    for row in profile.rows["NVTX_EVENTS"]:
        row["jsonText"] = payload
    assert opened(profile, tmp_path).communication().to_dict()["collectives"] == []


def test_a_view_in_place_of_a_table_is_not_run(tmp_path: Path) -> None:
    profile, worker = one_process()
    worker.annotate("forward", 0, 9_000)
    file = profile.write(tmp_path / "profile.sqlite")
    with closing(sqlite3.connect(file)) as connection:
        endless = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x FROM n) SELECT x AS start, x AS end FROM n"
        connection.execute(f"CREATE VIEW CUPTI_ACTIVITY_KIND_KERNEL AS {endless}")
        connection.commit()
    assert [name for name, *_ in spans(traceflow.open(file).trace)] == ["forward"]


def test_the_file_is_left_as_it_was(tmp_path: Path) -> None:
    file = full_profile().write(tmp_path / "profile.sqlite")
    before = file.read_bytes()
    traceflow.open(file)
    assert (file.read_bytes(), sorted(tmp_path.iterdir())) == (before, [file])


def test_a_report_that_was_not_exported_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "run.nsys-rep").write_bytes(b"\x93\xac\x10\0QUADD\0\xff\xfe\x01")
    assert "nsys export" in refusal(tmp_path / "run.nsys-rep").hint
