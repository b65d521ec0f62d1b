"""Memory of programs against XProf's memory viewer and JAX's own analysis, and what results say and leave open."""

from __future__ import annotations

import json
import lzma
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from handmade import Builder
from test_live_ranges import ALLOCATE, FREE, buffers, heap, places

from traceflow.analyzers.memory import memory
from traceflow.analyzers.program_memory import START, ProgramMemory, program_memory
from traceflow.analyzers.scheduled_peak import scheduled_peak_bytes
from traceflow.errors import TraceflowError
from traceflow.evidence import read
from traceflow.program.hlo_module_text import read_hlo_text
from traceflow.program.hlo_proto import read_hlo_proto
from traceflow.program.hlo_text import Line, read_hlo_lines
from traceflow.program.module import HloModule
from traceflow.program.schema import message
from traceflow.program.stated import Stated, StatedArray
from traceflow.trace.model import HloEvents, Kind, Trace

MIB = 2**20


def protos(path: Path) -> Iterator[bytes]:
    """Every `HloProto` of a dump folder, of a dump or of an XSpace."""
    if path.is_dir():
        yield from (lzma.decompress(file.read_bytes()) for file in sorted(path.glob("*after_optimizations.hlo.pb.xz")))
    elif path.name.endswith(".hlo.pb"):
        yield path.read_bytes()
    else:
        for plane in message("XSpace").FromString(path.read_bytes()).planes:
            for entry in plane.event_metadata if plane.name == "/host:metadata" else ():
                yield from (stat.bytes_value for stat in entry.value.stats if stat.bytes_value)


def seen_by_xprof(content: bytes, folder: Path) -> tuple[int, int, int]:
    """Peak, what is there all the time, and all allocations, in bytes, as XProf's memory viewer says."""
    raw_to_tool_data = pytest.importorskip("xprof.convert.raw_to_tool_data", reason="XProf is the oracle")
    (folder / "module.hlo_proto.pb").write_bytes(content)  # where XProf keeps what it took from a trace
    (folder / "host.xplane.pb").touch()
    options = {"module_name": "module", "use_saved_result": False}
    answer, _ = raw_to_tool_data.xspace_to_tool_data([str(folder / "host.xplane.pb")], "memory_viewer", options)
    said = json.loads(answer)
    names = ("peakHeapMib", "indefiniteBufferAllocationMib", "totalBufferAllocationMib")
    peak, kept, whole = (round(said.get(name, 0) * MIB) for name in names)
    return peak, kept, whole


def needs(content: bytes) -> ProgramMemory:
    return program_memory(read_hlo_proto(content), program=0)


@pytest.mark.parametrize(
    "name",
    ["hlo/fsdp4_a100", "hlo/conv3d_gpu.hlo.pb", "xplane/mi300_conv.xplane.pb", "xplane/mi300_conv_legacy.xplane.pb",
     "xplane/mi300_gemm.xplane.pb"],
)  # fmt: skip
def test_peaks_are_those_of_xprof_to_the_byte(corpus: Callable[[str], Path], tmp_path: Path, name: str) -> None:
    contents = list(protos(corpus(name)))
    assert contents
    for content in contents:
        found = needs(content)
        assert (found.live_peak_bytes, found.persistent_bytes, found.packed_bytes) == seen_by_xprof(content, tmp_path)


@pytest.fixture(scope="module")
def workloads(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """One step of every form of both JAX workloads."""
    pytest.importorskip("jax", reason="the workloads need JAX")
    from traceflow.collectors.workloads.collective_matmul import record_collective_matmul
    from traceflow.collectors.workloads.moe_jax import record_moe
    from traceflow.collectors.workloads.moe_jax_layers import Size

    folder = tmp_path_factory.mktemp("workloads")
    for layout in ("gather", "scatter"):
        record_collective_matmul(folder / layout, layout=layout, size=(16, 64, 128), steps=1)
    size = Size(tokens=64, model=16, hidden=8, experts=8, choices=2, capacity_factor=1.0)
    record_moe(folder / "moe", steps=1, size=size)
    return sorted(folder.rglob("*.xplane.pb"))


def test_workloads_need_what_xprof_says(workloads: list[Path], tmp_path: Path) -> None:
    contents = [content for file in workloads for content in protos(file)]
    assert len(contents) >= 7
    for content in contents:
        found = needs(content)
        assert (found.live_peak_bytes, found.persistent_bytes, found.packed_bytes) == seen_by_xprof(content, tmp_path)


def test_a_recorded_peak_lies_where_the_trace_executes_it(workloads: list[Path]) -> None:
    for file in workloads:
        found = read(file)
        peak = memory(found.trace, found.programs).programs[0].peak_at
        assert peak is not None
        assert len(peak.moments) == 8
        events, hlo = found.trace.events, found.trace.hlo
        rows = hlo.event[hlo.instruction == peak.row]
        assert min(moment.start_ns for moment in peak.moments) == events.start_ns[rows].min()


def compiled_programs() -> Iterator[tuple[str, Any]]:
    """Every form of both JAX workloads, compiled."""
    from traceflow.collectors.workloads import collective_matmul, moe_jax
    from traceflow.collectors.workloads.line_mesh import line_mesh
    from traceflow.collectors.workloads.moe_jax_layers import AXIS, VARIANTS, Size

    mesh = line_mesh(8, collective_matmul.AXIS)
    for layout in collective_matmul.LAYOUTS.values():
        for form, program in layout.forms.items():
            operands = collective_matmul.place(mesh, layout, *collective_matmul.matrices((16, 64, 128)))
            yield form, program(mesh).lower(*operands).compile()  # type: ignore[attr-defined]
    mesh, size = line_mesh(8, AXIS), Size(tokens=64, model=16, hidden=8, experts=8, choices=2)
    for variant in VARIANTS:
        given = moe_jax.place_weights(mesh, moe_jax.initial_weights(size))
        step: Any = moe_jax.train_step(variant, mesh, size)
        yield variant, step.lower(given, *moe_jax.place_rows(mesh, *moe_jax.batch(size, 0))).compile()


def test_sizes_are_those_of_memory_analysis() -> None:
    pytest.importorskip("jax", reason="the workloads need JAX")
    from traceflow.program.executable import read_executable

    donated = 0
    for name, compiled in compiled_programs():
        found, said = program_memory(read_executable(compiled), program=0), compiled.memory_analysis()
        sizes = (found.argument_bytes, found.output_bytes, found.temp_bytes, found.alias_bytes)
        assert sizes == (
            said.argument_size_in_bytes, said.output_size_in_bytes, said.temp_size_in_bytes, said.alias_size_in_bytes,
        ), name  # fmt: skip
        assert found.live_peak_bytes is None  # the executable tells no simulation of its heap
        assert found.scheduled_peak_bytes is not None
        donated += said.alias_size_in_bytes
    assert donated


@pytest.mark.parametrize(("name", "within"), [("hlo/fsdp4_a100", 0.02), ("hlo/conv3d_gpu.hlo.pb", 0.01)])
def test_the_schedule_alone_gives_about_the_same_peak(corpus: Callable[[str], Path], name: str, within: float) -> None:
    modules = [read_hlo_proto(content) for content in protos(corpus(name))]
    known = [(program_memory(one, program=0).live_peak_bytes or 0, scheduled_peak_bytes(one) or 0) for one in modules]
    for simulated, scheduled in known:
        assert abs(scheduled - simulated) <= max(within * simulated, 100)


SCHEDULED = """HloModule jit_step, is_scheduled=true

%body (p: (f32[8], f32[8])) -> (f32[8], f32[8]) {
  %p = (f32[8]{0}, f32[8]{0}) parameter(0)
  %g = f32[8]{0} get-tuple-element(%p), index=0
  %inner = f32[16]{0} exp(%g)
  %next = f32[8]{0} slice(%inner), slice={[0:8]}
  ROOT %t = (f32[8]{0}, f32[8]{0}) tuple(%next, %next)
}

%condition (q: (f32[8], f32[8])) -> pred[] {
  %q = (f32[8]{0}, f32[8]{0}) parameter(0)
  ROOT %c = pred[] constant(true)
}

ENTRY %main (x: f32[8]) -> f32[8] {
  %x = f32[8]{0} parameter(0)
  %a = f32[8]{0} exp(%x)
  %b = f32[8]{0} exp(%a)
  %s = (f32[8]{0}, f32[8]{0}) tuple(%a, %b)
  %w = (f32[8]{0}, f32[8]{0}) while(%s), condition=%condition, body=%body
  %r = f32[8]{0} get-tuple-element(%w), index=0
  ROOT %y = f32[8]{0} negate(%r)
}
"""


def test_values_live_from_where_they_are_made_to_their_last_use() -> None:
    program = read_hlo_text(SCHEDULED, 7)
    # x and y all the time; a and b until after the loop; inside it 64 for inner and 32 for next.
    assert scheduled_peak_bytes(program) == 32 + 32 + 32 + 32 + 64 + 32
    assert scheduled_peak_bytes(replace(program, schedule=np.full(len(program), -1, np.int32))) is None


def test_the_peak_that_the_runtime_reports_is_read_from_a_capture_and_judged(tmp_path: Path) -> None:
    jax = pytest.importorskip("jax", reason="recording needs JAX")
    import traceflow

    def squared(x: Any) -> Any:
        return jax.numpy.sort(x @ x).sum()

    step: Any = traceflow.instrument(jax.jit(squared))
    with traceflow.record(tmp_path / "run", framework="jax", warmup=1, steps=1):
        for _ in range(2):
            step(jax.numpy.ones((64, 64)))
    found = traceflow.open(tmp_path / "run").memory()
    (row,) = [one for one in found.programs if one.module == "jit_squared"]
    assert row.live_peak_bytes is not None
    assert row.compiler_peak_bytes is not None
    if row.compiler_peak_bytes < row.live_peak_bytes:  # as long as the runtime on CPU leaves temporaries out
        assert "TF211" in {finding.code for finding in found.findings}
    assert [buffer.argument for buffer in row.live_at_peak if buffer.kind == "argument"] == ["x"]
    assert row.live_peak_bytes >= 2 * 64 * 64 * 4  # the argument, and the product


def module(names: tuple[str, ...], opcodes: tuple[str, ...] | None = None) -> HloModule:
    """A program of one computation, each instruction with a result of one byte."""
    lines = [Line(f"%{name} = u8[1]{{0}} {op}()", f"scope/{name}", f"model/{name}.py:1") for name, op in zip(
        names, opcodes or ("add",) * len(names), strict=True
    )]  # fmt: skip
    return read_hlo_lines(lines, "jit_step", 7)


def small() -> HloModule:
    """An argument `x` of 8 bytes, a result `y` of 8, and two temporaries of 4 and 2 that meet at `b`."""
    program = module(("x", "y", "a", "b"), ("parameter", "add", "multiply", "exp"))
    program = replace(program, parameter_number=np.array([0, -1, -1, -1], np.int32))
    events = heap((2, ALLOCATE, 2), (3, ALLOCATE, 3), (2, FREE, 2), (3, FREE, 3))
    held = buffers(places((8, "argument"), (8, "result"), (6, "temporary")), [8, 8, 4, 2], [0, 1, 2, 2], events)
    values = replace(held.values, instruction=np.arange(4, dtype=np.int32))
    return replace(program, buffers=replace(held, values=values))


def at_peak(found: ProgramMemory) -> list[tuple[str, int, str, str, str]]:
    return [(b.name, b.size_bytes, b.kind, b.born, b.dies) for b in found.live_at_peak]


def test_what_is_alive_at_a_peak_is_told_with_its_life() -> None:
    found = program_memory(small(), program=7)
    assert found.live_peak_bytes == 22
    assert found.packed_bytes == 22
    assert found.persistent_bytes == 16
    assert (found.argument_bytes, found.output_bytes, found.temp_bytes, found.alias_bytes) == (8, 8, 6, 0)
    assert found.peak_at is not None
    assert (found.peak_at.name, found.peak_at.opcode, found.peak_at.source) == ("b", "exp", "model/b.py:1")
    assert at_peak(found) == [
        ("x", 8, "argument", "start", "end"),
        ("y", 8, "result", "start", "end"),
        ("a", 4, "temporary", "a", "b"),
        ("b", 2, "temporary", "b", "b"),
    ]
    assert {buffer.logical_bytes for buffer in found.live_at_peak} == {1}
    assert [buffer.argument for buffer in found.live_at_peak] == ["scope/x", None, None, None]
    assert found.live == (("a", 20), ("b", 22), ("b", 18), ("b", 16))


def test_a_long_curve_is_short_and_shows_the_peak() -> None:
    program = small()
    sizes = [8, 8, *(1009 if i == 1234 else 1 for i in range(3000))]
    events = heap(*((3, kind, value) for value in range(2, len(sizes)) for kind in (ALLOCATE, FREE)))
    held = buffers(places((8, "argument"), (8, "result"), (1009, "temporary")), sizes, [0, 1, *[2] * 3000], events)
    found = program_memory(replace(program, buffers=held), program=7)
    assert found.live_peak_bytes == 16 + 1009
    assert len(found.live) == 400
    assert max(size for _, size in found.live) == 16 + 1009


def test_what_if_a_buffer_were_not_there_or_an_argument_were_donated() -> None:
    found = program_memory(small(), program=7, without=["^a$"], donate=["x"]).what_if
    assert found is not None
    assert (found.without, found.donated) == (("a",), ("scope/x",))
    assert (found.live_peak_bytes, found.saved_bytes) == (10, 12)
    assert found.to_dict()["provenance"] == "modelled"


def test_an_argument_is_called_as_jax_says_where_it_says_so_of_all() -> None:
    array = StatedArray("state['w']", (8,), "uint8", None)
    for arguments, name in (((array,), "state['w']"), ((array, array), "scope/x")):
        stated = Stated("step", "jit_step", None, arguments, ())
        found = memory(executing(small()), {7: small()}, stated=[stated], donate=[r"w|x"]).programs[0]
        assert found.live_at_peak[0].argument == name
        assert found.what_if is not None
        assert found.what_if.donated == (name,)


def test_only_an_argument_with_a_result_of_its_size_can_be_donated() -> None:
    program = small()
    assert program.buffers is not None
    other = replace(program.buffers.allocations, size_bytes=np.array([8, 9, 6]))
    found = program_memory(
        replace(program, buffers=replace(program.buffers, allocations=other)), program=7, donate=["."]
    )
    assert found.what_if is not None
    assert (found.what_if.donated, found.what_if.saved_bytes) == ((), 0)


def test_a_program_without_anything_that_comes_and_goes_peaks_at_its_start() -> None:
    program = small()
    assert program.buffers is not None
    found = program_memory(replace(program, buffers=replace(program.buffers, heap=heap())), program=7)
    assert found.live_peak_bytes is None  # when its temporaries live is not told
    held = buffers(places((8, "argument")), [8], [0], heap())
    found = program_memory(replace(program, buffers=held), program=7)
    assert found.peak_at is not None
    assert (found.live_peak_bytes, found.peak_at.name, found.live) == (8, START, ((START, 8),))


def executing(program: HloModule, instruction: int = 3) -> Trace:
    """A trace in which two devices execute an instruction twice, the second device 2 us later."""
    build = Builder()
    for device, start_us in ((0, 5), (1, 7)):
        lane = build.lane(0, f"stream {device}", device)
        build.event(lane, 1000 * start_us, 1000 * start_us + 500, "b", Kind.COMPUTE)
        build.event(lane, 1000 * start_us + 1000, 1000 * start_us + 1500, "b", Kind.COMPUTE)
    trace = build.trace()
    rows = np.arange(4, dtype=np.int32)
    events = HloEvents(rows, np.full(4, program.program_id), np.full(4, instruction, np.int32), np.array([0, 1, 0, 1]))
    return replace(trace, hlo=events)


def test_a_peak_is_placed_on_the_timeline_of_each_device() -> None:
    program = small()
    found = memory(executing(program), {7: program})
    peak = found.programs[0].peak_at
    assert peak is not None
    assert [(m.rank, m.device, m.start_ns) for m in peak.moments] == [(0, 0, 0), (0, 1, 2000)]
    assert found.programs[0].executed
    assert found.co_resident.peak_bytes == 22


def test_programs_of_one_device_have_a_peak_between_two_bounds() -> None:
    first, second = small(), replace(small(), program_id=8)
    assert second.buffers is not None
    trace = executing(first)
    programs = np.array([7, 7, 8, 8])
    both = memory(replace(trace, hlo=replace(trace.hlo, program=programs)), {7: first, 8: second})
    assert both.co_resident.peak_bytes is None
    assert (both.co_resident.at_least_bytes, both.co_resident.unshared_bytes) == (22, 22 + 16)
    assert {"/result/co_resident_peak_bytes"} == {s.what for s in both.skipped if "co_resident" in s.what}
    one = memory(trace, {7: first, 8: second})
    assert [row.executed for row in one.programs] == [True, False]
    larger = replace(second.buffers, allocations=replace(second.buffers.allocations, size_bytes=np.array([99, 8, 6])))
    both = memory(trace, {7: first, 8: replace(second, buffers=larger)})
    assert [row.program for row in both.programs] == [7, 8]  # what does not run comes last, however large
    assert one.co_resident.peak_bytes == 22


def test_a_reported_peak_below_the_live_one_is_a_finding() -> None:
    stated = Stated("step", "jit_step", 16, (), ())
    found = memory(executing(small()), {7: small()}, stated=[stated])
    assert found.programs[0].compiler_peak_bytes == 16
    assert [finding.code for finding in found.findings] == ["TF211"]
    right = memory(executing(small()), {7: small()}, stated=[replace(stated, peak_bytes=22)])
    assert right.findings == ()


def test_large_arguments_beside_results_of_their_size_are_a_finding() -> None:
    program = small()
    assert program.buffers is not None
    large = replace(program.buffers.allocations, size_bytes=np.array([MIB, MIB, 6]))
    found = memory(executing(program), {7: replace(program, buffers=replace(program.buffers, allocations=large))})
    assert [(f.code, f.evidence["saved_bytes"]) for f in found.findings] == [("TF212", MIB)]


def test_what_is_not_known_is_null_with_its_reason() -> None:
    bare = module(("x",))
    found = memory(executing(bare, 0), {7: bare})
    said: Any = found.to_dict()["programs"]
    assert said[0]["live_peak_bytes"] is None
    assert said[0]["packed_bytes"] is None
    reasons = {gap.what: gap.reason for gap in found.skipped}
    for name in ("live_peak_bytes", "packed_bytes", "peak_at", "compiler_peak_bytes"):
        assert reasons[f"/result/programs/*/{name}"]
    assert reasons["/result/co_resident_peak_bytes"]
    assert reasons["/result/allocator"]


def test_traffic_counts_executions_and_no_capacity() -> None:
    build = Builder()
    lane = build.lane(0, "stream", 0)
    for i in range(3):
        build.event(lane, 100 * i, 100 * i + 50, "b", Kind.COMPUTE)
    program = read_hlo_lines([Line("%b = f32[8]{0} exp(f32[8]{0} %x)")], "jit_step", 7)
    rows = np.arange(3, dtype=np.int32)
    hlo = HloEvents(rows, np.full(3, 7), np.zeros(3, np.int32), np.array([0, 1, 1]))
    found = memory(replace(build.trace(), hlo=hlo), {7: program})
    (row,) = found.traffic
    assert (row.size_bytes, row.window_ns) == (2 * 64, 250)  # two kernels of one run are one execution
    assert row.provenance.value == "compiler"


def test_a_bad_pattern_is_refused() -> None:
    for ask in (partial(memory, without=["("]), partial(memory, donate=["("])):
        with pytest.raises(TraceflowError, match="TF112"):
            ask(executing(small()), {7: small()})
