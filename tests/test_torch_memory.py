"""What PyTorch tells of memory: events, timelines and snapshots, whole, cut and hostile."""

from __future__ import annotations

import gzip
import json
import os
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from handmade import MS, Builder
from hypothesis import given
from hypothesis import strategies as st
from test_kineto import span, written

from traceflow.analyzers.allocator import allocators
from traceflow.cli import main
from traceflow.errors import TraceflowError
from traceflow.evidence import read
from traceflow.run import open_run
from traceflow.trace.canonical import canonical, merge
from traceflow.trace.kineto import read_kineto
from traceflow.trace.model import ABSENT, Flows, Kind, MemoryEvents, MemorySource, MemoryUse, Trace
from traceflow.trace.torch_memory import read_torch_memory


def allocation(ts: int, change: int, total: int, device: int | None = 0, reserved: int = 100) -> dict[str, Any]:
    """An event of the allocator as Kineto writes it."""
    told = {"Bytes": change, "Total Allocated": total, "Total Reserved": reserved, "Addr": 1}
    told |= {"Device Type": 0, "Device Id": -1} if device is None else {"Device Type": 1, "Device Id": device}
    event = {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "s": "t", "pid": 7, "tid": 1, "ts": ts}
    return {**event, "args": told}


def block(address: int, size: int, state: str = "active_allocated") -> dict[str, Any]:
    return {"address": address, "size": size, "requested_size": size, "state": state, "frames": []}


def happened(action: str, address: int, size: int, time_us: int) -> dict[str, Any]:
    return {"action": action, "addr": address, "size": size, "stream": 0, "time_us": time_us, "frames": []}


def snapshot(history: list[dict[str, Any]], blocks: list[dict[str, Any]], total: int = 100) -> bytes:
    segment = {"device": 0, "address": 0, "total_size": total, "blocks": blocks}
    return pickle.dumps({"segments": [segment], "device_traces": [history], "allocator_settings": {}})


def laid(folder: Path, content: bytes, name: str = "snapshot.pickle") -> Path:
    (folder / name).write_bytes(content)
    return folder / name


def test_events_of_the_allocator_are_kept_by_device(tmp_path: Path) -> None:
    events = [
        span("cpu_op", "a", 1, 9),
        allocation(2, 64, 64),
        allocation(3, 8, 8, device=None),
        allocation(4, 512, 576),
        allocation(5, -64, 512, reserved=600),
        allocation(6, 1, 1, device=1),
    ]
    trace = read_kineto(written(tmp_path, events))
    on_host, first, second = allocators(trace)[0]
    assert (on_host.device, on_host.peak_bytes) == (None, 8)
    assert (first.device, first.peak_bytes, first.peak_ns, first.reserved_peak_bytes) == (0, 576, 3000, 600)
    assert first.live == ((1000, 64), (3000, 576), (4000, 576))
    assert (second.device, second.peak_bytes, second.events) == (1, 1, 1)
    assert trace.memory.change_bytes.tolist() == [8, 64, 512, -64, 1]
    assert trace.tally.read == trace.tally.kept + sum(trace.tally.dropped.values())


@pytest.mark.parametrize("name", ["v100_ddp_rank1of2", "h100_qwen_0.5b", "h100_bert_small"])
def test_recorded_totals_follow_from_one_another(corpus: Callable[[str], Path], name: str) -> None:
    memory = read(corpus(f"kineto/{name}.json.gz")).trace.memory
    for device in np.unique(memory.device):
        of = memory.device == device
        total, change = memory.allocated_bytes[of], memory.change_bytes[of]
        np.testing.assert_array_equal(total[1:], total[:-1] + change[1:])


def test_the_v100_trace_peaks_where_its_events_say(corpus: Callable[[str], Path]) -> None:
    path = corpus("kineto/v100_ddp_rank1of2.json.gz")
    told = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    totals = [e["args"]["Total Allocated"] for e in told if e["name"] == "[memory]" and e["args"]["Device Type"] == 1]
    on_host, on_device = open_run(path).memory().allocator
    assert (on_device.rank, on_device.device, on_device.events, on_device.peak_bytes) == (1, 1, 26_770, max(totals))
    assert on_host.events + on_device.events == 28_010
    assert on_device.by_phase_bytes is not None
    assert max(on_device.by_phase_bytes.values()) == max(totals)
    assert set(on_device.by_phase_bytes) == {"forward", "backward"}  # SGD updates in place


def test_copies_are_traffic_by_what_they_are_between(corpus: Callable[[str], Path]) -> None:
    path = corpus("kineto/v100_ddp_rank1of2.json.gz")
    told = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    sums: dict[str, int] = {}
    for event in told:
        if event.get("cat") in {"gpu_memcpy", "gpu_memset"}:
            sums[event["name"]] = sums.get(event["name"], 0) + event["args"]["bytes"]
    rows = open_run(path).memory().traffic
    assert {row.interface: row.size_bytes for row in rows} == sums
    assert {(row.rank, row.device, row.provenance.value) for row in rows} == {(1, 1, "measured")}


def test_copies_without_a_size_are_no_traffic(tmp_path: Path) -> None:
    copies = [
        span("gpu_memcpy", "Memcpy HtoD", 1, 2, bytes=100),
        span("gpu_memcpy", "Memcpy HtoD", 5, 2, bytes=28),
        span("gpu_memcpy", "Memcpy DtoH", 9, 2),
        span("kernel", "gemm", 12, 2, bytes=7),
    ]
    (row,) = open_run(written(tmp_path, copies)).memory().traffic
    assert (row.interface, row.size_bytes, row.window_ns) == ("Memcpy HtoD", 128, 13_000)


def test_memory_of_two_ranks_is_shifted_with_their_clocks(tmp_path: Path) -> None:
    traces = []
    for rank, base in ((0, 10_000), (1, 14_000)):
        members: dict[str, Any] = {"baseTimeNanoseconds": base, "distributedInfo": {"rank": rank, "world_size": 2}}
        folder = tmp_path / str(rank)
        folder.mkdir()
        traces.append(read_kineto(written(folder, [span("cpu_op", "a", 1, 9), allocation(2, 64, 64)], **members)))
    assert merge(traces).memory.time_ns.tolist() == [1000, 5000]


@pytest.mark.parametrize(
    ("history", "blocks", "totals"),
    [
        ([("alloc", 1, 8), ("free_completed", 1, 8)], [], [8, 0]),
        ([("alloc", 1, 8)], [(1, 8)], [8]),
        ([("free_completed", 2, 4), ("alloc", 1, 8)], [(1, 8), (3, 16)], [16, 24]),  # two were there before
        ([("alloc", 1, 8), ("free_requested", 1, 8), ("free_completed", 1, 8), ("alloc", 1, 2)], [(1, 2)], [8, 0, 2]),
    ],
)
def test_a_whole_history_gives_amounts_in_all(
    tmp_path: Path, history: list[tuple[str, int, int]], blocks: list[tuple[int, int]], totals: list[int]
) -> None:
    told = [happened(*event, time_us=5 + i) for i, event in enumerate(history)]
    trace = read_torch_memory(laid(tmp_path, snapshot(told, [block(*one) for one in blocks])))
    assert trace.memory.allocated_bytes.tolist() == totals
    assert trace.epoch_ns == 5000
    (use,), _ = allocators(trace)
    assert (use.source, use.device, use.peak_bytes) == ("snapshot", 0, max(totals))
    assert trace.tally.notes == ()


@pytest.mark.parametrize(
    ("history", "blocks"),
    [
        ([("alloc", 1, 8)], []),  # its release is missing
        ([("alloc", 1, 8), ("alloc", 1, 4)], [(1, 4)]),  # a release between them is missing
    ],
)
def test_a_history_that_contradicts_itself_is_called_truncated(
    tmp_path: Path, history: list[tuple[str, int, int]], blocks: list[tuple[int, int]]
) -> None:
    told = [happened(*event, time_us=5 + i) for i, event in enumerate(history)]
    trace = read_torch_memory(laid(tmp_path, snapshot(told, [block(*one) for one in blocks])))
    assert [note.code for note in trace.tally.notes] == ["TF313"]
    (use,), skipped = allocators(trace)
    assert (use.peak_bytes, use.peak_ns, use.live) == (None, None, ())
    assert "/result/allocator/*/peak_bytes" in {gap.what for gap in skipped}


def test_reserved_memory_is_walked_back_from_the_segments(tmp_path: Path) -> None:
    told = [happened("segment_alloc", 0, 60, 5), happened("alloc", 0, 8, 6), happened("segment_free", 200, 30, 7)]
    trace = read_torch_memory(laid(tmp_path, snapshot(told, [block(0, 8)], total=100)))
    assert trace.memory.reserved_bytes.tolist() == [130, 130, 100]
    assert trace.memory.allocated_bytes.tolist() == [0, 8, 8]


def test_the_trimmed_snapshot_is_truncated_and_nothing_is_negative(corpus: Callable[[str], Path]) -> None:
    run = open_run(corpus("torch_memory/cuda_snapshot_trimmed.pickle"))
    (use,) = run.memory().allocator
    assert use.peak_bytes is None
    assert any("history truncated" in note.text for note in run.trace.tally.notes)
    memory = run.trace.memory
    assert (memory.allocated_bytes == ABSENT).all()
    assert memory.reserved_bytes.min() >= 0


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[tuple[str, int, int]], dict[int, int], list[int]]:
    """What happened since some moment, the blocks in the end, and the amounts in all; some blocks are older."""
    live = {address: draw(st.integers(1, 9)) for address in range(draw(st.integers(0, 4)))}
    history, totals, following = [], [], 10
    for _ in range(draw(st.integers(1, 12))):
        if live and draw(st.sampled_from(["free", "alloc"])) == "free":
            address = draw(st.sampled_from(sorted(live)))
            history.append(("free_completed", address, live.pop(address)))
        else:
            live[following] = draw(st.integers(1, 9))
            history.append(("alloc", following, live[following]))
            following += 1
        totals.append(sum(live.values()))
    return history, live, totals


@given(histories())
def test_however_late_a_history_begins_amounts_are_right(
    tmp_path_factory: pytest.TempPathFactory, told: tuple[list[tuple[str, int, int]], dict[int, int], list[int]]
) -> None:
    history, live, totals = told
    events = [happened(*event, time_us=i) for i, event in enumerate(history)]
    content = snapshot(events, [block(*one) for one in live.items()])
    trace = read_torch_memory(laid(tmp_path_factory.mktemp("snapshot"), content))
    assert trace.memory.allocated_bytes.tolist() == totals


class Hostile:
    """Runs a command when it is unpickled."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, (self.command,)


@pytest.mark.parametrize("where", ["segments", "device_traces", "extra"])
def test_a_pickle_that_imports_anything_is_refused_and_does_nothing(tmp_path: Path, where: str) -> None:
    harm = tmp_path / "harm"
    content = pickle.dumps({"segments": [], "device_traces": [], where: Hostile(f"touch {harm}")})
    with pytest.raises(TraceflowError, match=r"TF109.*system"):
        read(laid(tmp_path, content))
    assert not harm.exists()


def test_every_cut_of_a_snapshot_is_refused(tmp_path: Path) -> None:
    content = snapshot([happened("alloc", 1, 8, 5)], [block(1, 8)])
    for length in range(40, len(content) - 1, 7):
        with pytest.raises(TraceflowError, match="TF103"):
            read_torch_memory(laid(tmp_path, content[:length]))


@pytest.mark.parametrize(
    "value",
    [{"segments": []}, {"segments": 3, "device_traces": [[]]}, {"device_traces": [[{}]], "segments": []}, ["segments"]],
)
def test_a_pickle_of_another_form_is_refused(tmp_path: Path, value: Any) -> None:
    with pytest.raises(TraceflowError, match=r"TF10[34]"):
        read_torch_memory(laid(tmp_path, pickle.dumps(value)))


def test_a_timeline_of_rows_starts_with_what_was_there(tmp_path: Path) -> None:
    rows = [[-1, 1, 100, 0], [5000, 2, 40, 4], [6000, 3, -40, 4], [6000, 3, 40, 5], [9000, 4, -40, 5]]
    trace = read_torch_memory(laid(tmp_path, json.dumps(rows).encode(), "timeline.json"))
    assert trace.memory.time_ns.tolist() == [0, 0, 1000, 1000, 4000]
    assert trace.memory.allocated_bytes.tolist() == [100, 140, 100, 140, 100]
    (use,), _ = allocators(trace)
    assert (use.peak_bytes, use.peak_ns, use.by_category_bytes) == (140, 0, {"parameter": 100, "activation": 40})


def test_a_table_of_amounts_gives_changes(tmp_path: Path) -> None:
    table = [[1.0, 2.5], [[0, 10, 0, 0, 0, 7, 0, 0, 0], [0, 10, 0, 0, 0, 2, 9, 0, 0]]]
    trace = read_torch_memory(laid(tmp_path, gzip.compress(json.dumps(table).encode()), "timeline.json.gz"))
    assert trace.memory.time_ns.tolist() == [0, 0, 1500, 1500]
    assert trace.memory.allocated_bytes.tolist() == [7, 17, 12, 21]  # what shrinks comes first
    (use,), _ = allocators(trace)
    assert use.by_category_bytes == {"parameter": 10, "activation": 2, "gradient": 9}


def recorded(device: str = "cuda:1") -> bytes:
    return json.dumps(
        {
            "device": device,
            "categories": ["parameter", "temporary", "unknown"],
            "times_ns": [20_000, 30_000],
            "allocated_bytes": [[50, 0, 1], [50, 30, 1]],
        }
    ).encode()


def test_what_the_recorder_wrote_joins_the_trace_of_its_rank(tmp_path: Path) -> None:
    members: dict[str, Any] = {"baseTimeNanoseconds": 10_000, "distributedInfo": {"rank": 3, "world_size": 4}}
    trace = written(tmp_path, [span("cpu_op", "a", 1, 99), allocation(2, 64, 64, device=1)], **members)
    trace.rename(tmp_path / "rank00003.pt.trace.json")
    laid(tmp_path, recorded(), "rank00003.memory_timeline.json")
    laid(tmp_path, recorded(), "rank00001.memory_timeline.json")
    found = read(tmp_path).trace
    assert [rank.rank for rank in found.ranks] == [1, 3]
    uses, _ = allocators(found)
    assert [(u.rank, u.source, u.peak_bytes) for u in uses] == [(1, "timeline", 81), (3, "timeline", 81)]
    assert [u.by_category_bytes for u in uses] == [{"parameter": 50, "temporary": 30, "unknown": 1}] * 2
    assert found.memory.time_ns[found.memory.rank == 3].tolist() == [1000, 9000, 9000, 19000]
    higher = replace(found.memory, allocated_bytes=np.where(found.memory.source == 0, 82, found.memory.allocated_bytes))
    uses, _ = allocators(replace(found, memory=higher))
    assert [(u.source, u.peak_bytes) for u in uses] == [("timeline", 81), ("event", 82)]


def test_damaged_timelines_are_refused(tmp_path: Path) -> None:
    for content, code in [
        (b"[[1, 2, 3, 4], [1, 2", "TF103"),
        (b"[[1, 2, 3, 4], [5, 6, 7]]", "TF103"),
        (gzip.compress(b"[[1, 2, 3, 4]]")[:-4], "TF105"),
        (b"[]", "TF10[34]"),
    ]:
        with pytest.raises(TraceflowError, match=code):
            read_torch_memory(laid(tmp_path, content, "timeline.json"))


def test_the_recorded_timeline_adds_up(corpus: Callable[[str], Path]) -> None:
    path = corpus("torch_memory/memory_timeline_raw.json.gz")
    told = json.loads(gzip.decompress(path.read_bytes()))
    totals = np.cumsum([row[2] for row in told])
    (use,) = open_run(path).memory().allocator
    assert use.peak_bytes == totals.max()
    first = int(totals.argmax())
    assert use.by_category_bytes is not None
    assert sum(use.by_category_bytes.values()) == totals.max()
    assert use.by_category_bytes["activation"] == sum(row[2] for row in told[: first + 1] if row[3] == 4)


def with_memory(build: Builder, moments: list[int], totals: list[int]) -> Trace:
    count = len(moments)
    zero = np.zeros(count, np.int32)
    memory = MemoryEvents(
        np.array(moments), zero, zero, np.full(count, MemorySource.EVENT, np.int8), np.diff(totals, prepend=0),
        np.array(totals), np.full(count, ABSENT), np.full(count, MemoryUse.UNKNOWN, np.int8),
    )  # fmt: skip
    return canonical(replace(build.trace(), memory=memory))


def test_phases_last_until_something_of_another_begins() -> None:
    build = Builder()
    thread = build.lane(0, "main")
    forward = build.event(thread, 0, 2 * MS, "aten::mm", Kind.HOST)
    backward = build.event(thread, 4 * MS, 6 * MS, "autograd::engine::evaluate_function: MmBackward0", Kind.HOST)
    build.event(thread, 8 * MS, 9 * MS, "Optimizer.step#SGD.step", Kind.HOST)
    moments = [1 * MS, 3 * MS, 5 * MS, 7 * MS, 8 * MS, 10 * MS]
    trace = with_memory(build, moments, [10, 30, 50, 70, 20, 15])
    flows = Flows(np.array([forward], np.int32), np.array([backward], np.int32))
    (use,), _ = allocators(replace(trace, flows=flows))
    assert use.by_phase_bytes == {"forward": 30, "backward": 70, "optimizer": 20}
    (alone,), skipped = allocators(with_memory(Builder(lanes=build.lanes, events=build.events[:1]), [MS], [10]))
    assert alone.by_phase_bytes is None
    assert "/result/allocator/*/by_phase_bytes" in {gap.what for gap in skipped}


@given(st.lists(st.tuples(st.integers(0, 10**7), st.integers(0, 10**6)), min_size=1, max_size=3000))
def test_a_drawn_curve_never_hides_the_peak(rows: list[tuple[int, int]]) -> None:
    build = Builder()
    build.event(build.lane(0, "main"), 0, MS, "a", Kind.HOST)
    ordered = sorted(rows, key=lambda row: row[0])
    (use,), _ = allocators(with_memory(build, [t for t, _ in ordered], [size for _, size in ordered]))
    assert use.peak_bytes == max(size for _, size in rows)
    assert max(size for _, size in use.live) == use.peak_bytes
    assert len(use.live) <= 1000


def test_the_command_shows_memory_alone(corpus: Callable[[str], Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "memory", str(corpus("torch_memory/memory_timeline_raw.json.gz"))]) == 0
    shown = capsys.readouterr().out
    assert "optimizer state" in shown
    assert max(map(len, shown.splitlines())) <= 80
