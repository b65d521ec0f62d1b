"""XSpaces: time, lanes, kinds, runs, launches and collectives, on CPU, GPU and TPU."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from xla_files import Event, Kinds, Line, everything, rows, write, xspace

from traceflow.errors import TraceflowError
from traceflow.evidence import Evidence
from traceflow.program.schema import message
from traceflow.quality import quality
from traceflow.trace.model import ABSENT, Kind, LaneKind, Trace
from traceflow.trace.xspace import read_xspace

US = 1_000_000  # picoseconds

AMD = ("xplane/mi300_conv.xplane.pb", "xplane/mi300_conv_legacy.xplane.pb", "xplane/mi300_gemm.xplane.pb")


def read(folder: Path, planes: Mapping[str, Sequence[Line]], **more: Any) -> Evidence:
    return read_xspace(write(folder / "host.xplane.pb", xspace(planes, **more)))


def hlo(name: str, **stats: int | str) -> dict[str, int | str]:
    return {"hlo_op": name, "program_id": 5, "run_id": 100, "device_ordinal": 0, **stats}


def module(*instructions: Mapping[str, Any], devices: Sequence[int] = (0, 1)) -> bytes:
    """A program whose entry executes instructions in the given order."""
    proto = message("HloProto")()
    proto.hlo_module.name, proto.hlo_module.entry_computation_id = "jit_f", 1
    computation = proto.hlo_module.computations.add(name="main", id=1, root_id=len(instructions))
    for number, fields in enumerate(instructions, start=1):
        computation.instructions.add(**{"id": number, **fields})
    order = proto.hlo_module.schedule.sequences.add(key=1)
    order.value.instruction_ids.extend(range(1, len(instructions) + 1))
    for device in devices:
        proto.hlo_module.device_assignment.computation_devices.add(replica_device_ids=[device])
    return bytes(proto.SerializeToString())


F32X4 = message("ShapeProto")(element_type=11, dimensions=[4])


# Time


def test_time_is_profile_start_plus_line_plus_offset_rounded_down(tmp_path: Path) -> None:
    line = Line("python", [Event("a", 1_999, 1_001), Event("b", 999_000, 0)], timestamp_ns=50)
    trace = read(tmp_path, {"/host:CPU": [line]}, start_ns=1_700_000_000_000_000_000).trace
    assert trace.epoch_ns == 1_700_000_000_000_000_051
    assert [(start, end) for _, _, start, end, *_ in rows(trace)] == [(0, 2), (998, 998)]


def test_without_a_start_of_the_profile_time_is_relative_and_doubtful(tmp_path: Path) -> None:
    trace = read(tmp_path, {"/host:CPU": [Line("python", [Event("a", 0, US)])]}, start_ns=None).trace
    assert trace.epoch_ns is None
    assert [note.code for note in trace.tally.notes] == ["TF302"]
    assert quality(trace.tally).verdict == "limited"


def test_events_with_an_impossible_time_are_dropped(tmp_path: Path) -> None:
    events = [Event("ok", 0, 5_000), Event("backwards", 10_000, -1), Event("never", 2**62, 1)]
    trace = read(tmp_path, {"/host:CPU": [Line("python", events), Line("lost", [events[0]], 2**62)]}).trace
    assert [row[4] for row in rows(trace)] == ["ok"]
    assert trace.tally.dropped == {"without a valid time": 3}
    assert (trace.tally.read, trace.tally.kept) == (4, 1)


# CPU


def test_device_work_on_a_cpu_thread_is_divided_by_device(tmp_path: Path) -> None:
    worker = Line(
        "tf_XLAEigen/1",
        [
            Event("ThreadpoolListener::StartRegion", 0),
            Event("ThunkExecutor::Execute", 0, 40 * US),
            Event("dot.1", 1 * US, 9 * US, hlo("dot.1")),
            Event("SlinkyThreadPool::Await", 2 * US, 3 * US),
            Event("callback", 8 * US, 2 * US),
            Event("end: dot.1", 10 * US),
            Event("while.2", 20 * US, 20 * US, hlo("while.2", device_ordinal=1)),
            Event("copy.3", 25 * US, 5 * US, hlo("copy.3", device_ordinal=1)),
            Event("user code", 50 * US, 5 * US),
            Event("Wait: pending_threads=1/8", 60 * US, 5 * US),
        ],
    )
    trace = read(tmp_path, {"/host:CPU": [worker]}).trace
    assert rows(trace) == [
        (ABSENT, "tf_XLAEigen/1", 49_000, 54_000, "user code", "HOST"),
        (0, "tf_XLAEigen/1", 0, 9_000, "dot.1", "COMPUTE"),
        (1, "tf_XLAEigen/1", 19_000, 39_000, "while.2", "COMPUTE"),
        (1, "tf_XLAEigen/1", 24_000, 29_000, "copy.3", "COPY"),
    ]
    assert [LaneKind(kind).name for kind in trace.lanes.kind] == ["THREAD", "WORKER", "WORKER"]
    assert trace.tally.dropped == {
        "thread-pool listener": 1,
        "envelope of device work": 2,
        "inside an HLO operation": 2,
        "end marker": 1,
    }


def test_launches_and_hand_offs_follow_the_statistics_whatever_the_names(tmp_path: Path) -> None:
    big = 2**64 - 7  # the same 64 bits as -7
    python = Line("python", [Event("Run", 0, 5 * US, {"run_id": -7, "_pt": 5, "_p": -7})])
    client = Line("client", [Event("on 1", 2 * US, US, {"global_device_id": 1, "_ct": 5, "_c": -7})])
    other = Line("other", [Event("on 0", 3 * US, US, {"global_device_id": 0, "_ct": 5, "_c": -7})])
    work = Line("worker", [Event("dot.1", 4 * US, US, hlo("dot.1", run_id=-7, device_ordinal=1))])
    space = xspace({"/host:CPU": [python, client, other, work]})
    for line in space.planes[0].lines:
        for stat in (stat for event in line.events for stat in event.stats if stat.int64_value == -7):
            stat.uint64_value = big
    trace = read_xspace(write(tmp_path / "a.xplane.pb", space)).trace
    named = [trace.strings[name] for name in trace.events.name]
    launches = trace.launches
    started = zip(launches.program, launches.run, launches.device, launches.event, strict=True)
    assert sorted((program, run, device, named[event]) for program, run, device, event in started) == [
        (5, -7, ABSENT, "Run"),
        (5, -7, 0, "on 0"),
        (5, -7, 1, "on 1"),
    ]
    pairs = zip(trace.flows.source, trace.flows.target, strict=True)
    assert sorted((named[source], named[target]) for source, target in pairs) == [("Run", "on 0"), ("Run", "on 1")]
    kinds = {named[row]: Kind(kind) for row, kind in enumerate(trace.events.kind)}
    assert kinds == {"Run": Kind.CALL, "on 0": Kind.CALL, "on 1": Kind.CALL, "dot.1": Kind.COMPUTE}


def test_step_annotations_are_marks_and_no_events(tmp_path: Path) -> None:
    python = Line("python", [Event("train", 0, 9 * US, {"step_num": 3}), Event("f", US, US)])
    trace = read(tmp_path, {"/host:CPU": [python]}).trace
    assert (trace.marks.step.tolist(), trace.marks.start_ns.tolist(), trace.marks.end_ns.tolist()) == (
        [3],
        [0],
        [9_000],
    )
    assert [row[4] for row in rows(trace)] == ["f"]
    assert trace.tally.dropped == {"step annotation (kept as a mark)": 1}


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("traceflow.ready", Kind.WAIT),
        ("traceflow.fetch", Kind.WAIT),
        ("traceflow.call", Kind.HOST),
        ("$api.py:2479 block_until_ready", Kind.WAIT),
        ("$api.py:2490 try_to_block", Kind.WAIT),
        ("PjRtBuffer::Await", Kind.WAIT),
        ("np.asarray(jax.Array)", Kind.WAIT),
        ("$threading.py:637 wait", Kind.WAIT),
        ("$threading.py:311 _acquire_restore", Kind.HOST),
        ("cuStreamSynchronize", Kind.WAIT),
        ("hipDeviceSynchronize", Kind.WAIT),
        ("cuMemcpyDtoH_v2", Kind.WAIT),
        ("hipMemcpyDtoDAsync", Kind.HOST),
        ("PjitFunction(f)", Kind.HOST),
    ],
)
def test_blocking_calls_are_known_by_name(tmp_path: Path, name: str, kind: Kind) -> None:
    trace = read(tmp_path, {"/host:CPU": [Line("python", [Event(name, 0, US)])]}).trace
    assert trace.events.kind.tolist() == [kind]


def test_threads_of_one_name_are_told_apart(tmp_path: Path) -> None:
    lines = [Line("pool", [Event("a", 0, US)]), Line("pool", [Event("a", 0, US)]), Line("python", [Event("a", 0, US)])]
    assert read(tmp_path, {"/host:CPU": lines}).trace.lanes.name == ("pool/1", "pool/2", "python")


# Collectives

REDUCE = {"name": "all-reduce.1", "opcode": "all-reduce", "shape": F32X4, "operand_ids": [1]}
PARAMETER = {"name": "x", "opcode": "parameter", "shape": F32X4}


def communications(trace: Trace) -> list[tuple[str, tuple[int, ...], int, int, int, int, int]]:
    """Operation, group, member, sequence, payload, source and destination of every row."""
    c = trace.communications
    group = [*(g.members for g in trace.groups), ()]
    return [
        (trace.strings[operation], group[of], *rest)
        for operation, of, *rest in zip(
            c.operation, c.group, c.member.tolist(), c.sequence.tolist(), c.payload_bytes.tolist(),
            c.source.tolist(), c.destination.tolist(), strict=True,
        )
    ]  # fmt: skip


def test_participants_of_a_collective_share_key_and_sequence(tmp_path: Path) -> None:
    groups = [message("ReplicaGroup")(replica_ids=[0, 1])]
    events = [
        Event("all-reduce.1", start * US, US, hlo("all-reduce.1", device_ordinal=device, run_id=run))
        for start, device, run in ((5, 9, 1), (1, 4, 1), (7, 9, 1), (3, 4, 1), (8, 4, 2))
    ]
    program = module(PARAMETER, {**REDUCE, "replica_groups": groups}, devices=(9, 4))
    trace = read(tmp_path, {"/host:CPU": [Line("worker", events)]}, programs={5: program}).trace
    assert set(trace.events.kind) == {Kind.COMMUNICATION}
    assert [(g.name, g.members, g.size) for g in trace.groups] == [("devices 9,4", (9, 4), 2)]
    assert sorted(communications(trace)) == sorted(
        ("all-reduce", (9, 4), member, sequence, 16, ABSENT, ABSENT)
        for member, sequence in ((4, 0), (4, 1), (9, 0), (9, 1), (4, 0))
    )
    c = trace.communications
    run_of = dict(zip(trace.hlo.event, trace.hlo.run, strict=True))
    keys = {(int(run_of[event]), int(key)) for event, key in zip(c.event, c.key, strict=True)}
    assert len(keys) == 2
    assert min(key for _, key in keys) > 0


def test_a_permute_says_from_whom_and_to_whom(tmp_path: Path) -> None:
    pairs = [message("SourceTarget")(source=source, target=target) for source, target in ((0, 1), (1, 2))]
    permute = {**REDUCE, "name": "p", "opcode": "collective-permute", "source_target_pairs": pairs}
    events = [Event("p", device * US, US, hlo("p", device_ordinal=device)) for device in range(4)]
    program = module(PARAMETER, permute, devices=(3, 2, 1, 0))
    trace = read(tmp_path, {"/host:CPU": [Line("worker", events)]}, programs={5: program}).trace
    assert communications(trace) == [
        ("collective-permute", (1, 2, 3), 1, 0, 16, 2, ABSENT),
        ("collective-permute", (1, 2, 3), 2, 0, 16, 3, 1),
        ("collective-permute", (1, 2, 3), 3, 0, 16, ABSENT, 2),
    ]


def test_without_the_program_a_collective_is_known_by_name_only(tmp_path: Path) -> None:
    events = [Event("psum.3", 0, US, hlo("psum.3")), Event("multiply_add_fusion", US, US, hlo("multiply_add_fusion"))]
    trace = read(tmp_path, {"/host:CPU": [Line("worker", events)]}).trace
    assert communications(trace) == [("all-reduce", (), 0, 0, ABSENT, ABSENT, ABSENT)]
    assert trace.hlo.instruction.tolist() == [ABSENT, ABSENT]


# GPU


def kernel(name: str, start: int, operation: str | None, correlation: int) -> Event:
    stats: dict[str, int | str] = {} if operation is None else {"hlo_op": operation, "program_id": 5}
    return Event(name, start * US, US, {"correlation_id": correlation, **stats})


def test_kernels_lie_on_streams_and_runs_follow_the_schedule(tmp_path: Path) -> None:
    instructions = [{"name": name, "opcode": "fusion", "shape": F32X4} for name in ("first", "second")]
    compute = Line(
        "Stream #7(Compute)",
        [kernel(name, start, name, start) for start, name in ((1, "first"), (2, "first"), (5, "second"), (8, "first"))],
    )
    copies = Line(
        "Stream #9(MemcpyD2D)",
        [
            kernel("MemcpyD2D", 6, "second", 6),
            kernel("Memset", 9, None, 9),
            kernel("__amd_rocclr_copyBuffer.kd", 10, None, 10),
            kernel("ncclDevKernel_AllReduce_Sum_f32", 11, "second", 11),
            kernel("cutlass_gemm", 12, None, ABSENT),
        ],
    )
    derived = Line("XLA Ops", [Event("first", US, US)])
    calls = [Event("cuLaunchKernel", at * 100_000, 10_000, {"correlation_id": at}) for at in (1, 2, 5, 8)]
    sync = Event("cuStreamSynchronize", 20 * US, US, {"correlation_id": 40})
    planes = {"/device:GPU:3": [compute, copies, derived], "/host:CPU": [Line("python", [*calls, sync])]}
    trace = read(tmp_path, planes, programs={5: module(*instructions)}).trace
    lanes = trace.lanes
    assert list(zip(lanes.device, lanes.stream, lanes.name, strict=True)) == [
        (ABSENT, ABSENT, "python"),
        (3, 7, "Stream #7(Compute)"),
        (3, 9, "Stream #9(MemcpyD2D)"),
    ]
    assert trace.tally.dropped == {"on a derived line": 1}
    named = [trace.strings[name] for name in trace.events.name]
    assert Counter((named[row], Kind(kind).name) for row, kind in enumerate(trace.events.kind)) == {
        ("cuLaunchKernel", "CALL"): 4,
        ("cuStreamSynchronize", "WAIT"): 1,
        ("first", "COMPUTE"): 3,
        ("second", "COMPUTE"): 1,
        ("MemcpyD2D", "COPY"): 1,
        ("Memset", "COPY"): 1,
        ("__amd_rocclr_copyBuffer.kd", "COPY"): 1,
        ("ncclDevKernel_AllReduce_Sum_f32", "COMMUNICATION"): 1,
        ("cutlass_gemm", "COMPUTE"): 1,
    }
    correlation = trace.events.correlation[trace.hlo.event]
    assert dict(zip(correlation.tolist(), trace.hlo.run.tolist(), strict=True)) == {1: 0, 2: 0, 5: 0, 6: 0, 8: 1, 11: 1}
    started = zip(trace.launches.run, trace.launches.device, trace.launches.event, strict=True)
    assert [(run, device, int(trace.events.correlation[event])) for run, device, event in started] == [
        (0, 3, 1),
        (1, 3, 8),
    ]


def test_a_program_of_one_kernel_runs_anew_with_each_launch(tmp_path: Path) -> None:
    line = Line("Stream #1(Kernel)", [kernel("a", 1, "x", 1), kernel("b", 2, "x", 2), kernel("a", 3, "x", 3)])
    trace = read(tmp_path, {"/device:GPU:0": [line]}).trace
    assert trace.hlo.run.tolist() == [0, 0, 1]


def test_a_run_that_the_trace_numbers_keeps_its_number(tmp_path: Path) -> None:
    events = [Event("k", at * US, US, {"hlo_op": "x", "program_id": 5, "run_id": run}) for at, run in ((1, 7), (3, -1))]
    trace = read(tmp_path, {"/device:GPU:0": [Line("Stream #1(Kernel)", events)]}).trace
    assert trace.hlo.run.tolist() == [7, -1]


def threads(tmp_path: Path, *lines: Line) -> list[str]:
    """The thread of each call into the runtime, which the runtime's tracer shows on a line of its own."""
    calls = [
        Event("launch", at * US, US, {"correlation_id": at, "hlo_op": name, "program_id": 5})
        for at, name in ((2, "dot"), (6, "add"))
    ]
    trace = read(tmp_path, {"/host:CPU": [*lines, Line("Host Threads/3", calls)]}).trace
    return [lane for _, lane, *_, name, kind in rows(trace) if (name, kind) == ("launch", "CALL")]


def test_runtime_calls_belong_to_the_thread_whose_spans_hold_them(tmp_path: Path) -> None:
    fitting = Line("worker", [Event("dot", US, 3 * US), Event("add", 5 * US, 3 * US)])
    early = Line("other", [Event("dot", US, US // 2), Event("dot", 4 * US, US), Event("add", 5 * US, 3 * US)])
    lacking = Line("third", [Event("dot", US, 3 * US)])
    around = Line("python", [Event("main", 0, 9 * US)])
    assert threads(tmp_path, fitting, early, lacking, around) == ["worker"] * 2
    assert threads(tmp_path, early, lacking, around) == ["Host Threads/3"] * 2


def test_runtime_calls_that_fit_two_threads_stay_where_they_are(tmp_path: Path) -> None:
    events = [Event("dot", US, 3 * US), Event("add", 5 * US, 3 * US)]
    assert threads(tmp_path, Line("one", events), Line("two", events)) == ["Host Threads/3"] * 2


def test_real_runtime_calls_lie_in_the_spans_of_their_operations(corpus: Callable[[str], Path]) -> None:
    trace = read_xspace(corpus("xplane/mi300_conv.xplane.pb")).trace
    calls = [row for row, name in enumerate(trace.events.name) if "ModuleLaunchKernel" in trace.strings[name]]
    threads = Counter(trace.lanes.name[lane].partition("/")[0] for lane in trace.events.lane[calls])
    assert threads == {"py_xla_execute": 198}
    assert len(set(trace.events.lane[calls])) == 8


@pytest.mark.parametrize("name", AMD)
def test_real_gpu_traces_keep_every_kernel_and_copy(corpus: Callable[[str], Path], name: str) -> None:
    space = message("XSpace").FromString(corpus(name).read_bytes())
    expected: Counter[tuple[int, int]] = Counter()
    dropped: Counter[str] = Counter()
    reasons = {"ThreadpoolListener::": "thread-pool listener", "PythonRefManager::": "look for garbage of JAX"}
    for plane in space.planes:
        names = {e.key: e.value.name for e in plane.event_metadata}
        for line in plane.lines:
            texts = [names[event.metadata_id] for event in line.events]
            dropped.update(reason for start, reason in reasons.items() for text in texts if text.startswith(start))
        if plane.name.startswith("/device:GPU:"):
            for line in plane.lines:
                expected[int(plane.name.rpartition(":")[2]), int(line.name.split("#")[1].split("(")[0])] += len(
                    line.events
                )
    trace = read_xspace(corpus(name)).trace
    lanes, lane = trace.lanes, trace.events.lane
    on_stream = (lanes.kind == LaneKind.STREAM)[lane]
    found = Counter(zip(lanes.device[lane[on_stream]].tolist(), lanes.stream[lane[on_stream]].tolist(), strict=True))
    assert found == expected
    assert trace.tally.dropped == dropped
    assert trace.tally.read == trace.tally.kept + dropped.total() == len(trace.events) + dropped.total()


def test_executions_of_a_real_gpu_program_are_told_apart(corpus: Callable[[str], Path]) -> None:
    evidence = read_xspace(corpus("xplane/mi300_conv.xplane.pb"))
    trace = evidence.trace
    assert trace.ranks[0].host == "tw003"
    assert evidence.programs[15].name == "jit_forward_3d_conv"
    assert len(trace.hlo.event) == 198
    device = trace.lanes.device[trace.events.lane[trace.hlo.event]]
    runs = Counter(zip(device.tolist(), trace.hlo.run.tolist(), strict=True))
    assert set(runs) == {(device, run) for device in range(8) for run in range(5)}
    assert Counter(runs.values()) == {5: 39, 3: 1}  # two kernels of one run carry no hlo_op
    assert len(trace.launches.event) == 40
    assert (trace.events.kind == Kind.COMMUNICATION).sum() == 0


def test_a_real_kernel_is_joined_to_its_launch_and_its_instruction(corpus: Callable[[str], Path]) -> None:
    evidence = read_xspace(corpus("xplane/mi300_conv.xplane.pb"))
    trace = evidence.trace
    row = next(row for row in trace.hlo.event if trace.events.correlation[row] == 250)
    (at,) = np.flatnonzero(trace.hlo.event == row)
    instruction = trace.hlo.instruction[at]
    assert evidence.programs[int(trace.hlo.program[at])].instruction_name[instruction] == "cudnn-conv.1"
    assert trace.events.end_ns[row] - trace.events.start_ns[row] == 295_960
    (call,) = np.flatnonzero((trace.events.correlation == 250) & (trace.lanes.device[trace.events.lane] == ABSENT))
    assert trace.strings[trace.events.name[call]] == "hipExtModuleLaunchKernel"
    assert trace.events.start_ns[call] < trace.events.start_ns[row]


# TPU

LONG = "%all-reduce.1 = f32[8]{0} all-reduce(f32[8]{0} %fusion), channel_id=1, replica_groups=[1,2]<=[2]"


def tpu(device: int, shift: int) -> list[Line]:
    number = 10 + device
    span = [Event("jit_f(18446744073709551609)", (at + shift) * US, 8 * US, {"run_id": number + at}) for at in (0, 10)]
    ops = [
        Event(name, (at + offset + shift) * US, US)
        for at in (0, 10)
        for offset, name in ((1, "%fusion = f32[8]{0} fusion(f32[8]{0} %param)"), (3, LONG))
    ]
    stray = Event("%copy = f32[8]{0} copy(f32[8]{0} %param)", 40 * US, US)
    return [
        Line("XLA Modules", span),
        Line("XLA Ops", [*ops, stray]),
        Line("Steps", span),
        Line("XLA TraceMe", ops[:1]),
    ]


TPU_KINDS = {
    LONG: Kinds("all-reduce.1", {"tf_op": "jit(f)/psum:", "source": "f.py:7"}),
    "%fusion = f32[8]{0} fusion(f32[8]{0} %param)": Kinds("fusion"),
    "%copy = f32[8]{0} copy(f32[8]{0} %param)": Kinds("copy"),
}


def test_tpu_operations_get_their_run_from_the_module_line_and_their_program_from_their_text(tmp_path: Path) -> None:
    enqueue = [
        Event("Enqueue", (at + device) * 1_000, 1_000, {"run_id": 10 + device + at, "device_ordinal": device})
        for device in (0, 1)
        for at in (0, 10)
    ]
    planes = {"/device:TPU:0": tpu(0, 0), "/device:TPU:1": tpu(1, 1), "/host:CPU": [Line("main", enqueue)]}
    evidence = read(tmp_path, planes, kinds=TPU_KINDS)
    trace, key = evidence.trace, 2**63 - 7
    assert rows(trace)[4:9] == [
        (0, "XLA Ops", 1_000, 2_000, "fusion", "COMPUTE"),
        (0, "XLA Ops", 3_000, 4_000, "all-reduce.1", "COMMUNICATION"),
        (0, "XLA Ops", 11_000, 12_000, "fusion", "COMPUTE"),
        (0, "XLA Ops", 13_000, 14_000, "all-reduce.1", "COMMUNICATION"),
        (0, "XLA Ops", 40_000, 41_000, "copy", "COPY"),
    ]
    assert trace.tally.dropped == {"program span (kept as a run)": 4, "on a derived line": 6}
    assert set(trace.hlo.program) == {key}
    assert len(trace.hlo.event) == 8
    assert sorted(communications(trace)) == sorted(
        ("all-reduce", (0, 1), member, 0, 32, ABSENT, ABSENT) for member in (0, 0, 1, 1)
    )
    assert Counter(Counter(trace.communications.key.tolist()).values()) == {2: 2}
    program = evidence.programs[key]
    assert (program.name, program.instruction_name) == ("jit_f", ("fusion", "all-reduce.1", "param"))
    assert (program.operation_name[1], program.source[1]) == ("jit(f)/psum", "f.py:7")
    launches = trace.launches
    assert sorted(zip(launches.program, launches.run, launches.device, launches.event.tolist(), strict=True)) == [
        (key, 0, 0, 0),
        (key, 0, 1, 1),
        (key, 1, 0, 2),
        (key, 1, 1, 3),
    ]


# A trace that JAX records here


@dataclass(frozen=True)
class Recorded:
    """What was recorded, and what the script that recorded it knows."""

    evidence: Evidence
    mesh: list[list[int]]
    between_ns: tuple[int, int]
    read: int
    operations: Counter[tuple[str, int]]

    @property
    def trace(self) -> Trace:
        return self.evidence.trace


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    pytest.importorskip("jax", reason="recording needs JAX")
    folder = tmp_path_factory.mktemp("jax")
    script = Path(__file__).parent / "record_collectives.py"
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=8"}
    run = subprocess.run(
        [sys.executable, script, folder], env=environment, capture_output=True, text=True, check=True, timeout=120
    )
    said = json.loads(run.stdout)
    operations = Counter({(name, device): count for name, device, count in said["operations"]})
    evidence = read_xspace(next(folder.rglob("*.xplane.pb")))
    return Recorded(evidence, said["mesh"], tuple(said["between_ns"]), said["read"], operations)


def test_every_recorded_operation_is_kept_on_its_device(recorded: Recorded) -> None:
    trace = recorded.trace
    lane = trace.events.lane[trace.hlo.event]
    device = trace.lanes.device[lane].tolist()
    names = [trace.strings[name] for name in trace.events.name[trace.hlo.event]]
    assert Counter(zip(names, device, strict=True)) == recorded.operations
    assert set(trace.lanes.kind[lane]) == {LaneKind.WORKER}
    assert (trace.hlo.instruction >= 0).all()
    assert trace.tally.read == recorded.read == trace.tally.kept + sum(trace.tally.dropped.values())


def test_absolute_time_lies_within_the_recording(recorded: Recorded) -> None:
    trace = recorded.trace
    assert trace.epoch_ns is not None
    assert recorded.between_ns[0] < trace.epoch_ns
    assert trace.epoch_ns + trace.events.end_ns.max() < recorded.between_ns[1]


def test_recorded_collectives_are_complete_and_grouped_along_the_mesh(recorded: Recorded) -> None:
    members: defaultdict[tuple[str, tuple[int, ...], int, int], list[int]] = defaultdict(list)
    c = recorded.trace.communications
    for (operation, group, member, *_), key, sequence in zip(
        communications(recorded.trace), c.key, c.sequence, strict=True
    ):
        members[operation, group, int(key), int(sequence)].append(member)
    rows_of, columns = recorded.mesh, list(zip(*recorded.mesh, strict=True))
    expected = Counter(
        [("all-reduce", frozenset(row)) for row in rows_of] * 3
        + [("all-gather", frozenset(column)) for column in columns] * 3 * 4
        + [("collective-permute", frozenset(range(8)))] * 3
    )
    assert Counter((operation, frozenset(found)) for (operation, *_), found in members.items()) == expected
    for (_, group, *_), found in members.items():
        assert sorted(found) == sorted(group)


def test_recorded_collectives_carry_their_payload_and_neighbours(recorded: Recorded) -> None:
    column_of = {device: at for row in recorded.mesh for at, device in enumerate(row)}
    row_of = {device: at for at, row in enumerate(recorded.mesh) for device in row}
    facts = set(communications(recorded.trace))
    assert {payload for *_, payload, _, _ in facts} == {4 * 8 * 4}  # a block of 4 x 8 float32 on each device
    permutes = {(member, source, destination) for operation, _, member, _, _, source, destination in facts
                if operation == "collective-permute"}  # fmt: skip
    assert permutes == {
        (device, recorded.mesh[row_of[device] - 1][column], recorded.mesh[(row_of[device] + 1) % 4][column])
        for device, column in column_of.items()
    }


def test_operations_in_a_loop_are_counted_within_their_run(recorded: Recorded) -> None:
    trace = recorded.trace
    (program,) = set(trace.hlo.program.tolist())
    opcode = np.array(recorded.evidence.programs[program].opcode, dtype=object)[trace.hlo.instruction]
    gathers = np.isin(trace.communications.event, trace.hlo.event[opcode == "all-gather"])
    sequence = Counter(trace.communications.sequence[gathers].tolist())
    assert sequence == dict.fromkeys(range(4), 8 * 3)
    assert set(trace.communications.sequence[~gathers]) == {0}


def test_recorded_launches_precede_the_work_on_their_device(recorded: Recorded) -> None:
    trace = recorded.trace
    launches = trace.launches
    device = trace.lanes.device[trace.events.lane[trace.hlo.event]]
    assert len(launches.event) == 3 * 9
    for run in np.unique(trace.hlo.run):
        assert sorted(launches.device[launches.run == run]) == [ABSENT, *range(8)]
        (main,) = launches.event[(launches.run == run) & (launches.device == ABSENT)]
        for at in range(8):
            (call,) = launches.event[(launches.run == run) & (launches.device == at)]
            work = trace.hlo.event[(trace.hlo.run == run) & (device == at)]
            assert trace.events.start_ns[main] <= trace.events.start_ns[call] <= trace.events.start_ns[work].min()
            assert (main, call) in zip(trace.flows.source, trace.flows.target, strict=True)


def test_recorded_steps_are_marked_and_wait(recorded: Recorded) -> None:
    trace = recorded.trace
    assert trace.marks.step.tolist() == [0, 1, 2]
    waits = trace.events.kind == Kind.WAIT
    assert [trace.strings[name] for name in trace.events.name[waits]] == ["traceflow.ready"] * 3
    assert (trace.events.start_ns[waits] >= trace.marks.start_ns).all()
    assert (trace.events.end_ns[waits] <= trace.marks.end_ns).all()


def test_recorded_instructions_know_their_source_line(recorded: Recorded) -> None:
    (program,) = set(recorded.trace.hlo.program.tolist())
    found = recorded.evidence.programs[program]
    script = (Path(__file__).parent / "record_collectives.py").read_text().splitlines()
    for opcode, call in {"all-reduce": "jax.lax.psum", "collective-permute": "jax.lax.ppermute"}.items():
        file, _, line = found.source[found.opcode.index(opcode)].rpartition(":")
        assert file.endswith("record_collectives.py")
        assert call in script[int(line) - 1]


# What is not there, or not whole


def test_a_file_that_was_saved_as_text_is_refused(corpus: Callable[[str], Path]) -> None:
    with pytest.raises(TraceflowError, match=r"TF103: cannot read .*corrupt_tpu.xplane.pb: it was saved as text"):
        read_xspace(corpus("xplane/corrupt_tpu.xplane.pb"))


def test_a_damaged_program_refuses_the_file_by_name(tmp_path: Path) -> None:
    with pytest.raises(TraceflowError, match=r"TF103: cannot read .*host.xplane.pb: a program in it is damaged"):
        read(tmp_path, {"/host:CPU": [Line("python", [Event("a", 0)])]}, programs={5: b"\x0a\xff"})


def test_a_trace_without_events_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceflowError, match="TF104"):
        read(tmp_path, {"/host:CPU": [Line("python", [])]})


def sample() -> Any:
    """A trace with device work, launches, a mark and a collective."""
    groups = [message("ReplicaGroup")(replica_ids=[0, 1])]
    python = Line(
        "python",
        [
            Event("step", 0, 90 * US, {"step_num": 0}),
            Event("Run", US, 5 * US, {"run_id": 100, "_pt": 5, "_p": 100}),
            Event("traceflow.ready", 7 * US, 60 * US),
        ],
    )
    workers = [
        Line(
            f"worker/{device}",
            [
                Event("on device", 2 * US, US, {"global_device_id": device, "_ct": 5, "_c": 100}),
                Event("dot.1", 4 * US, 6 * US, hlo("dot.1", device_ordinal=device)),
                Event("all-reduce.1", (10 + device) * US, 9 * US, hlo("all-reduce.1", device_ordinal=device)),
                Event("Rendezvous", (10 + device) * US, 8 * US),
            ],
        )
        for device in (0, 1)
    ]
    program = module(
        PARAMETER, {**REDUCE, "replica_groups": groups}, {"name": "dot.1", "opcode": "dot", "shape": F32X4}
    )
    stream = Line("Stream #1(Kernel)", [kernel("a", at, "dot.1", at) for at in range(1, 6)])
    planes = {"/host:CPU": [python, *workers], "/device:GPU:4": [stream], "/device:TPU:6": tpu(6, 0)}
    return xspace(planes, programs={5: program}, kinds=TPU_KINDS)


@given(st.randoms(use_true_random=False))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25)
def test_the_order_of_a_file_changes_nothing(tmp_path: Path, rng: random.Random) -> None:
    expected = read_xspace(write(tmp_path / "a.xplane.pb", sample()))
    space = sample()
    for repeated in (space.planes, *(plane.lines for plane in space.planes)):
        shuffle(repeated, rng)
    for line in (line for plane in space.planes for line in plane.lines):
        shuffle(line.events, rng)
    shuffled = read_xspace(write(tmp_path / "b.xplane.pb", space))
    assert everything(shuffled.trace) == everything(expected.trace)
    assert shuffled.programs.keys() == expected.programs.keys()


def shuffle(repeated: Any, rng: random.Random) -> None:
    items = list(repeated)
    rng.shuffle(items)
    del repeated[:]
    repeated.extend(items)


def outcome(path: Path) -> Trace | str:
    """The trace of a file, or the code of the one error that may come instead."""
    try:
        return read_xspace(path).trace
    except TraceflowError as error:
        return error.code


LENGTH = len(sample().SerializeToString())


@given(st.integers(0, LENGTH - 1))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_file_that_is_cut_anywhere_is_refused_or_noted(tmp_path: Path, length: int) -> None:
    path = tmp_path / "cut.xplane.pb"
    path.write_bytes(sample().SerializeToString()[:length])
    found = outcome(path)
    if isinstance(found, str):
        assert found in {"TF103", "TF104"}
    else:  # cut between two planes, or behind the last
        whole = found.tally.read == read_xspace(write(tmp_path / "whole.xplane.pb", sample())).trace.tally.read
        assert whole or [note.code for note in found.tally.notes] == ["TF302"]


@given(st.lists(st.tuples(st.integers(0, LENGTH - 1), st.integers(0, 255)), max_size=4))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200)
def test_damaged_bytes_end_in_an_answer_or_in_one_clear_error(tmp_path: Path, damage: list[tuple[int, int]]) -> None:
    content = bytearray(sample().SerializeToString())
    for at, byte in damage:
        content[at] = byte
    path = tmp_path / "damaged.xplane.pb"
    path.write_bytes(bytes(content))
    assert_sound(outcome(path))


@given(st.randoms(use_true_random=False))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200)
def test_impossible_numbers_end_in_an_answer_or_in_one_clear_error(tmp_path: Path, rng: random.Random) -> None:
    space = sample()
    for _ in range(3):
        holder, field = rng.choice(list(integers(space)))
        setattr(holder, field, rng.choice((-(2**63), 2**63 - 1, -1, 0, 2**31, 2**62)))
    assert_sound(outcome(write(tmp_path / "damaged.xplane.pb", space)))


def integers(holder: Any) -> Iterator[tuple[Any, str]]:
    """Every 64-bit integer in a message, with the message that holds it."""
    for field, value in holder.ListFields():
        if field.message_type:
            for part in value if field.is_repeated else [value]:
                yield from integers(part)
        elif field.cpp_type == field.CPPTYPE_INT64 and not field.is_repeated:
            yield holder, field.name


def assert_sound(found: Trace | str) -> None:
    if isinstance(found, str):
        assert found in {"TF103", "TF104"}
    else:
        assert found.tally.read == found.tally.kept + sum(found.tally.dropped.values())
        assert (found.events.end_ns >= found.events.start_ns).all()
