"""Perfetto traces, read back with Perfetto's own classes."""

from __future__ import annotations

import io
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from handmade import MS, Builder, two_cards
from hypothesis import given
from hypothesis import strategies as st

import traceflow as tf
from traceflow.errors import TraceflowError
from traceflow.evidence import Evidence
from traceflow.export._wire import message, number, one, varint
from traceflow.run import Run
from traceflow.trace.canonical import canonical
from traceflow.trace.model import ABSENT, Kind, MemoryEvents, MemorySource, MemoryUse

pytest.importorskip("perfetto", reason="its protobuf classes read what was written")

from perfetto_reader import Read, pb, read


def written(run: Run, step: int | None = None) -> Read:
    """A run as Perfetto reads it."""
    return read(b"".join(run.perfetto(step=step)))


@pytest.fixture(scope="module")
def cards() -> Read:
    """Card 0 computes until 4 ms and card 1 until 9, then both reduce until 11."""
    return written(two_cards().run())


def test_every_rank_is_a_process_in_order(cards: Read) -> None:
    processes = [told.process for told in cards.tracks.values() if told.HasField("process")]
    assert [(p.process_name, list(p.process_labels)) for p in processes] == [("rank 0", ["host"]), ("rank 1", ["host"])]
    assert 0 not in [p.pid for p in processes]


def test_events_lie_on_their_lanes(cards: Read) -> None:
    lane = cards.on("rank 1", "device 0", "stream 7")
    assert [(s.span, s.category) for s in lane] == [
        (("b", 0, 9 * MS), "compute"),
        (("all-reduce", 9 * MS, 11 * MS), "communication"),
    ]


def test_a_collective_is_split_into_wait_and_transfer(cards: Read) -> None:
    early, late = (cards.on(f"rank {rank}", "device 0", "collectives") for rank in range(2))
    assert [(s.span, s.depth) for s in early] == [
        (("all-reduce", 4 * MS, 11 * MS), 0),
        (("wait", 4 * MS, 9 * MS), 1),
        (("transfer", 9 * MS, 11 * MS), 1),
    ]
    assert [s.span for s in late] == [("all-reduce", 9 * MS, 11 * MS), ("transfer", 9 * MS, 11 * MS)]
    assert early[0].notes == {"group": "world", "last to arrive": "rank 1, device 0", "payload_bytes": 1 << 20}
    assert early[1].notes == {}


def test_the_critical_path_tiles_the_window_and_arrows_follow_it_across_ranks() -> None:
    build = Builder()
    one, other = (build.lane(rank, "stream 7", 0) for rank in range(2))
    build.event(one, 0, 4 * MS, "a1", Kind.COMPUTE)
    build.event(other, 0, 9 * MS, "b1", Kind.COMPUTE)
    build.collective([one, other], [4 * MS, 9 * MS], 11 * MS, "all-reduce")
    build.event(one, 11 * MS, 20 * MS, "a2", Kind.COMPUTE)
    found = written(build.run())
    path = found.on("critical path")
    assert [(s.name, s.category) for s in path] == [("b1", "compute"), ("all-reduce", "transfer"), ("a2", "compute")]
    assert [s.start_ns for s in path[1:]] == [s.end_ns for s in path[:-1]]
    assert (path[0].start_ns, path[-1].end_ns) == (0, 20 * MS)
    leaving = [s for s in found.slices if s.flows]
    arriving = {flow: s for s in found.slices for flow in s.flow_ends}
    (hop,) = leaving
    assert found.path(hop.track) == ("critical path", "rank 1, device 0")
    assert found.path(arriving[hop.flows[0]].track) == ("critical path", "rank 0, device 0")
    assert hop.end_ns == arriving[hop.flows[0]].start_ns


def test_exposed_communication_sums_to_what_is_told() -> None:
    build = two_cards()
    other = build.lane(0, "stream 9", 0)
    build.event(other, 5 * MS, 6 * MS, "meanwhile", Kind.COMPUTE)
    run = build.run()
    counts = written(run).counter("rank 0", "device 0", "exposed communication")
    assert counts == [(0, 0), (4 * MS, 1), (5 * MS, 0), (6 * MS, 1), (11 * MS, 0)]
    told = next(p for p in run.communication().participants if p.participant == (0, 0))
    integral = sum(value * (until - at) for (at, value), (until, _) in pairwise(counts))
    assert integral == told.exposed_ns == 6 * MS


def test_steps_are_marked() -> None:
    build = two_cards()
    build.mark(7, 0, 0, 5 * MS)
    assert [s.span for s in written(build.run()).on("steps", "rank 0")] == [("step 7", 0, 5 * MS)]


def remembering() -> Run:
    """Two cards, of which the first hands out 64 bytes before anything runs, and takes 32 back."""
    trace = two_cards().trace()
    zero = np.zeros(2, np.int32)
    memory = MemoryEvents(
        time_ns=np.array([-3, 5]),
        rank=zero,
        device=zero,
        source=np.full(2, MemorySource.SNAPSHOT, np.int8),
        change_bytes=np.array([64, -32]),
        allocated_bytes=np.array([64, 32]),
        reserved_bytes=np.full(2, ABSENT),
        use=np.full(2, MemoryUse.UNKNOWN, np.int8),
    )
    return Run(Evidence(replace(trace, memory=memory), {}), ("handmade",))


def test_what_allocators_say_is_counted_even_before_the_first_event() -> None:
    found = written(remembering())
    assert found.counter("rank 0", "device 0", "allocated bytes (snapshot)") == [(0, 64), (8, 32)]
    assert found.on("rank 0", "device 0", "stream 7")[0].span == ("a", 3, 4 * MS + 3)
    (unit,) = {told.counter.unit for told in found.tracks.values() if told.name.startswith("allocated")}
    assert unit == pb.CounterDescriptor.UNIT_SIZE_BYTES


def test_the_clock_of_day_is_told_where_it_is_known() -> None:
    run = two_cards().run()
    assert written(run).clocks == {}
    known = Run(replace(run.evidence, trace=replace(run.trace, epoch_ns=10**18)), run.inputs)
    assert written(known).clocks == {pb.BUILTIN_CLOCK_BOOTTIME: 0, pb.BUILTIN_CLOCK_REALTIME: 10**18}


def test_calls_that_overlap_keep_their_own_parts() -> None:
    build = Builder()
    lanes = [[build.lane(rank, f"stream {stream}", 0) for rank in range(2)] for stream in (1, 2)]
    build.collective(lanes[0], [0, 4], 10, "first")
    build.collective(lanes[1], [2, 8], 14, "second")
    slices = written(build.run()).on("rank 0", "device 0", "collectives")
    by_track = {s.track: [t.span for t in slices if t.track == s.track] for s in slices}
    assert sorted(by_track.values()) == [
        [("first", 0, 10), ("wait", 0, 4), ("transfer", 4, 10)],
        [("second", 2, 14), ("wait", 2, 8), ("transfer", 8, 14)],
    ]


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 6), st.integers(0, 1)), min_size=1, max_size=24))
def test_every_event_comes_back_however_they_overlap(events: list[tuple[int, int, int]]) -> None:
    build = Builder()
    lanes = [build.lane(0, f"stream {i}", 0) for i in range(2)]
    for i, (start, length, lane) in enumerate(events):
        build.event(lanes[lane], start, start + length, f"k{i}", Kind.COMPUTE)
    build.event(lanes[0], 0, 20, "long", Kind.COMPUTE)
    run = build.run()
    found = written(run)
    for lane, name in enumerate(run.trace.lanes.name):
        rows = np.flatnonzero(run.trace.events.lane == lane)
        assert Counter(s.span for s in found.on("rank 0", "device 0", name)) == Counter(spans(run, rows))


def spans(run: Run, rows: np.ndarray[tuple[int], np.dtype[np.int64]]) -> list[tuple[str, int, int]]:
    """Name, start and end of events."""
    e = run.trace.events
    return [(run.trace.strings[e.name[row]], int(e.start_ns[row]), int(e.end_ns[row])) for row in rows.tolist()]


FILES = ["kineto/a100_event_sync_multi_stream.json.gz", "xplane/mi300_gemm.xplane.pb", "cluster/trace-ST.parquet"]


@pytest.mark.parametrize("name", FILES)
def test_recorded_traces_come_back_event_by_event(name: str, corpus: Callable[[str], Path]) -> None:
    run = tf.open(corpus(name))
    found = written(run)
    lanes = [s for s in found.slices if found.path(s.track)[0].startswith("rank ")]
    lanes = [s for s in lanes if found.path(s.track)[-1] != "collectives"]
    assert Counter(s.span for s in lanes) == Counter(spans(run, np.arange(len(run.trace.events))))
    path = found.on("critical path")
    assert sum(s.end_ns - s.start_ns for s in path) == run.critical_path().makespan_ns
    segments = run.critical_path().segments
    places = list(zip(segments.rank.tolist(), segments.device.tolist(), strict=True))
    assert len(found.arrows()) == sum(before != after for before, after in pairwise(places))
    assert {s.start_ns for _, s in found.arrows()} <= set(segments.start_ns.tolist())


def test_live_bytes_of_a_program_stay_within_its_peak(corpus: Callable[[str], Path]) -> None:
    run = tf.open(corpus("xplane/mi300_conv.xplane.pb"))
    found = written(run)
    peaks = {one.module: one.live_peak_bytes for one in run.memory().programs}
    told = {found.path(track)[-1]: counts for track, counts in found.counts.items()}
    live = {name.removeprefix("live bytes of "): counts for name, counts in told.items() if name.startswith("live ")}
    assert live
    for module, counts in live.items():
        assert 0 < max(value for _, value in counts) <= (peaks[module] or 0)


def test_names_that_no_encoding_holds_are_escaped() -> None:
    build = Builder()
    build.event(build.lane(0, "stream \udcff", 0), 0, 5, "k\ud800", Kind.COMPUTE)
    run = build.run("runs/\udcff")
    assert [s.name for s in written(run).on("rank 0", "device 0", "stream \\udcff")] == ["k\\ud800"]


def test_nothing_is_overwritten_unasked(tmp_path: Path) -> None:
    run, path = two_cards().run(), tmp_path / "a.pftrace"
    path.write_text("mine")
    with pytest.raises(TraceflowError, match="TF110"):
        run.to_perfetto(path)
    assert path.read_text() == "mine"
    assert run.to_perfetto(path, force=True) == path
    assert read(path.read_bytes()).on("critical path")
    assert [file.name for file in tmp_path.iterdir()] == ["a.pftrace"]
    with pytest.raises(TraceflowError, match="TF114"):
        run.to_perfetto(tmp_path / "none" / "a.pftrace")


def test_the_command_writes_to_a_file_and_to_stdout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, corpus: Callable[[str], Path]
) -> None:
    from traceflow.cli import main

    source = str(corpus("kineto/a100_event_sync.json.gz"))
    monkeypatch.chdir(tmp_path)
    assert main(["export", "perfetto", source]) == 0
    assert main(["export", "perfetto", source]) == 1
    stdout = io.TextIOWrapper(io.BytesIO())
    monkeypatch.setattr(sys, "stdout", stdout)
    assert main(["export", "perfetto", source, "-o", "-"]) == 0
    assert stdout.buffer.getvalue() == (tmp_path / "traceflow-a100_event_sync.pftrace").read_bytes()


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1))
def test_integers_are_encoded_as_protobuf_does(values: list[int]) -> None:
    each = [pb.TrackEvent(counter_value=value).SerializeToString() for value in values]
    assert number(30, np.array(values, np.int64)).tobytes() == b"".join(each)


@given(st.lists(st.tuples(st.integers(0, 2**40), st.booleans()), min_size=1), st.text())
def test_messages_hold_what_is_present(rows: list[tuple[int, bool]], text: str) -> None:
    values, present = np.array([value for value, _ in rows]), np.array([there for _, there in rows])
    content = message(1, (number(8, values, present), message(11, (number(11, values),), present))).tobytes()
    packets = pb.Trace.FromString(content).packet
    assert [packet.HasField("timestamp") for packet in packets] == present.tolist()
    assert [packet.track_event.track_uuid for packet in packets] == np.where(present, values, 0).tolist()
    assert pb.TrackDescriptor.FromString(one(2, text)).name == text


def test_an_empty_column_encodes_nothing() -> None:
    assert varint(np.empty(0, np.int64)).tobytes() == b""


def test_the_same_evidence_gives_the_same_bytes() -> None:
    run = two_cards().run()
    again = Run(Evidence(canonical(run.trace), {}), run.inputs)
    assert b"".join(run.perfetto()) == b"".join(again.perfetto())
