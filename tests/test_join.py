"""The join of trace and programs: instructions, occurrences, launches, lines, and how much is known."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from xla_files import Event, Line, write, xspace

import traceflow
from traceflow.analyzers.critical_path import critical_path
from traceflow.analyzers.join import executions
from traceflow.analyzers.summary import summary
from traceflow.program.description import described
from traceflow.program.hlo_module_text import read_hlo_text
from traceflow.program.module import HloModule
from traceflow.program.schema import message
from traceflow.report.joined import written_at
from traceflow.run import Run

PROGRAM = """HloModule jit_f, is_scheduled=true
fused (p: f32[4,4], q: f32[4,4]) -> f32[4,4] {
  p = f32[4,4]{1,0} parameter(0)
  q = f32[4,4]{1,0} parameter(1)
  t = f32[4,4]{1,0} transpose(p), dimensions={1,0}
  d = f32[4,4]{1,0} dot(t, q), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT a = f32[4,4]{1,0} add(d, q)
}
moved (m: f32[4,4]) -> f32[4,4] {
  m = f32[4,4]{1,0} parameter(0)
  ROOT s = f32[4,4]{0,1} copy(m)
}
both (u: f32[4,4], v: f32[4,4]) -> f32[4,4] {
  u = f32[4,4]{1,0} parameter(0)
  v = f32[4,4]{1,0} parameter(1)
  w = f32[4,4]{1,0} fusion(u, v), kind=kLoop, calls=fused
  e = f32[4,4]{1,0} exponential(w)
  n = f32[4,4]{1,0} negate(e)
  o = f32[4,4]{1,0} cosine(n)
  ROOT r = f32[4,4]{1,0} sine(o)
}
ENTRY main (x: f32[4,4]) -> f32[4,4] {
  x = f32[4,4]{1,0} parameter(0)
  transpose_fusion = f32[4,4]{1,0} fusion(x, x), kind=kLoop, calls=fused
  add_fusion = f32[4,4]{0,1} fusion(x), kind=kLoop, calls=moved
  sum_fusion = f32[4,4]{1,0} fusion(x, x), kind=kLoop, calls=both
  gemm = f32[4,4]{1,0} custom-call(x, x), custom_call_target="__cublas$gemm"
  start = (f32[4,4]{1,0}, f32[4,4]{1,0}) all-gather-start(x), replica_groups={{0}}, dimensions={0}
  done = f32[4,4]{1,0} all-gather-done(start)
  ROOT y = f32[4,4]{1,0} negate(done)
}
"""


def said(module: HloModule, name: str) -> str:
    return described(module, module.instruction_name.index(name))


# Descriptions


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("transpose_fusion", "fusion(dot, add)"),  # its name tells of what takes least
        ("add_fusion", "fusion(copy)"),
        ("sum_fusion", "fusion(dot, add, exponential, negate, ...)"),
        ("gemm", "custom-call(__cublas$gemm)"),
        ("start", "all-gather-start"),
        ("done", "all-gather-done"),
        ("y", "negate"),
    ],
)
def test_an_instruction_is_described_by_what_it_contains(name: str, words: str) -> None:
    assert said(read_hlo_text(PROGRAM, 1), name) == words


def test_a_wrapped_operation_is_named(corpus: Callable[[str], Path]) -> None:
    programs = traceflow.open(corpus("hlo/fsdp4_a100")).programs.values()
    (module,) = [one for one in programs if one.name == "pjit__wrapped_step_fn"]
    assert said(module, "reduce-scatter-start") == "async-start(reduce-scatter)"
    fusions = [row for row, opcode in enumerate(module.opcode) if opcode == "fusion"]
    assert all(described(module, row).startswith("fusion(") for row in fusions)


# Occurrences


def recorded(path: Path, kernels: list[tuple[str, str, int, int]], source: str = "f.py") -> Run:
    """A GPU that ran kernels (name, instruction, start, end) of a program of the instructions a and b, in us."""
    proto = message("HloProto")()
    proto.hlo_module.name, proto.hlo_module.id, proto.hlo_module.entry_computation_id = "jit_f", 1, 1
    computation = proto.hlo_module.computations.add(id=1, root_id=2)
    for number, name in enumerate("ab", 1):
        told = message("OpMetadata")(op_name=f"jit(f)/{name}", source_file=source if name == "a" else "", source_line=3)
        computation.instructions.add(id=number, name=name, opcode="add", metadata=told)
    proto.hlo_module.schedule.sequences.add(key=1).value.instruction_ids.extend([1, 2])
    events = [
        Event(name, start * 1_000_000, (end - start) * 1_000_000, {"hlo_op": op, "program_id": 1} if op else {})
        for name, op, start, end in kernels
    ]
    planes = {"/device:GPU:0": [Line("Stream #1", events)]}
    return traceflow.open(write(path / "a.xplane.pb", xspace(planes, programs={1: proto.SerializeToString()})))


def test_several_kernels_of_an_instruction_are_one_occurrence(tmp_path: Path) -> None:
    launch = [("split", "a"), ("sum", "a"), ("gemm", "b")]
    kernels = [(name, op, 10 * i, 10 * i + 5) for i, (name, op) in enumerate(launch * 2)]
    run = recorded(tmp_path, kernels)
    found = executions(run.trace)
    assert found.launch.tolist() == [0, 0, 0, 1, 1, 1]
    assert found.occurrence.tolist() == [0] * 6


def test_what_is_not_joined_is_counted(tmp_path: Path) -> None:
    run = recorded(tmp_path, [("gemm", "a", 0, 50), ("x", "b", 50, 80), ("y", "gone", 80, 90), ("memcpy", "", 90, 100)])
    found = run.summary().join
    assert found is not None
    assert (found.device_ns, found.named_ns, found.joined_ns, found.sourced_ns) == (100_000, 90_000, 80_000, 50_000)
    assert (found.joined_share, found.sourced_share) == (0.8, 0.625)
    assert (found.modules, found.instructions) == (1, 2)


def test_a_line_of_the_framework_is_no_line_of_the_user(tmp_path: Path) -> None:
    found = recorded(tmp_path, [("gemm", "a", 0, 50)], source="/lib/jax/_src/numpy.py").summary().join
    assert found is not None
    assert (found.joined_ns, found.sourced_ns) == (50_000, 0)


def test_segments_tell_where_their_work_was_written(tmp_path: Path) -> None:
    segments = (
        recorded(tmp_path, [("gemm", "a", 0, 50), ("memcpy", "", 50, 60), ("x", "b", 60, 80)]).critical_path().segments
    )
    told = zip(segments.name, segments.operation, segments.scope, segments.source, strict=True)
    assert list(told) == [
        ("gemm", "add", "jit(f)/a", "f.py:3"),
        ("memcpy", None, None, None),
        ("x", "add", "jit(f)/b", None),
    ]


def test_a_path_can_be_told_without_its_programs(tmp_path: Path) -> None:
    run = recorded(tmp_path, [("gemm", "a", 0, 50)])
    assert set(critical_path(run.trace, run.dependencies).segments.source) == {None}
    assert summary(run.trace, run.dependencies).join is None


def test_kineto_has_no_programs(corpus: Callable[[str], Path]) -> None:
    run = traceflow.open(corpus("kineto/a100_alexnet.json.gz"))
    assert run.summary().join is None
    assert "programs" not in run.summary().to_dict()
    assert set(run.critical_path().segments.source) == {None}


# How much is known of real recordings


@pytest.mark.parametrize("name", ["mi300_conv", "mi300_conv_legacy", "mi300_gemm"])
def test_kernels_that_name_an_instruction_are_joined(corpus: Callable[[str], Path], name: str) -> None:
    found = traceflow.open(corpus(f"xplane/{name}.xplane.pb")).summary().join
    assert found is not None
    assert found.named_ns > 0.75 * found.device_ns  # copies name none
    assert found.joined_ns >= 0.95 * found.named_ns
    assert found.sourced_ns >= 0.95 * found.joined_ns


@pytest.mark.parametrize("name", ["tpu_2chips_a", "tpu_2chips_b"])
def test_every_operation_of_a_tpu_is_joined_through_its_text(corpus: Callable[[str], Path], name: str) -> None:
    run = traceflow.open(corpus(f"xplane/{name}.trace.json.gz"))
    found = run.summary().join
    assert found is not None
    assert found.joined_ns == found.named_ns == found.device_ns > 100_000_000
    assert (run.trace.hlo.instruction >= 0).all()
    assert found.sourced_ns >= 0.95 * found.joined_ns


def test_a_loop_counts_its_rounds(tmp_path: Path) -> None:
    jax = pytest.importorskip("jax", reason="recording needs JAX")

    def body(x: Any, _: None) -> tuple[Any, None]:
        return jax.numpy.tanh(x @ x), None

    step = jax.jit(lambda x: jax.lax.scan(body, x, None, length=5)[0])
    x = jax.device_put(jax.numpy.ones((64, 64)), jax.devices()[0])
    step(x).block_until_ready()
    with traceflow.record(tmp_path / "a", framework="jax", warmup=0) as steps:
        for _ in range(2):
            with steps.step():
                step(x).block_until_ready()
    run = traceflow.open(tmp_path / "a")
    executed = np.unique(run.trace.hlo.program).tolist()  # the profiler tells of every program of the process
    (key,) = [key for key in executed if run.programs[key].trip_count]
    module, found = run.programs[key], executions(run.trace)
    (loop,) = module.trip_count
    inside = np.flatnonzero(np.isin(module.computation, module.called_by(loop)[:1]))
    mine = run.trace.hlo.program == key
    ran = mine & np.isin(run.trace.hlo.instruction, inside)
    assert sorted(set(found.launch[mine].tolist())) == [0, 1]
    assert sorted(set(found.occurrence[ran].tolist())) == [0, 1, 2, 3, 4]
    (whole,) = {int(one) for one in found.occurrence[mine & (run.trace.hlo.instruction == loop)]}
    assert whole == 0


# In words


def test_scopes_are_cut_where_no_parenthesis_is_open() -> None:
    scope = "jit(step)/transpose(jvp(a/b))/while/body/dot_general"
    assert written_at({"scope": scope, "source": "/x/model.py:43"}) == "body/dot_general, model.py:43"
    assert written_at({"scope": "jit(f)/jit(g)/mul", "source": None}) == "jit(g)/mul"
    assert written_at({"scope": None, "source": None}) == ""
