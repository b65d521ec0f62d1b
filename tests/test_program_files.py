"""Programs in files: dumps, texts and captures, packed or not, alone and beside a trace."""

from __future__ import annotations

import gzip
import lzma
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from xla_files import Event, Line, write, write_chrome, xspace

import traceflow
from traceflow.cli import main
from traceflow.errors import TraceflowError
from traceflow.program.dump import add_program, executed_among, final_programs, programs_among, read_program
from traceflow.program.hlo_proto import read_hlo_proto
from traceflow.program.module import HloModule
from traceflow.program.schema import message
from traceflow.quality import quality
from traceflow.run import Run
from traceflow.trace.model import ABSENT

TEXT = """HloModule jit_f, is_scheduled=true
ENTRY %main (x: f32[4]) -> f32[4] {
  %x = f32[4]{0} parameter(0)
  ROOT %y = f32[4]{0} add(%x, %x), metadata={op_name="jit(f)/add" source_file="f.py" source_line=3}
}
"""


def program(*names: str, number: int = 1, buffers: bool = False, name: str = "jit_f") -> bytes:
    """A program of instructions that each follow the one before."""
    proto = message("HloProto")()
    proto.hlo_module.name, proto.hlo_module.id, proto.hlo_module.entry_computation_id = name, number, 1
    computation = proto.hlo_module.computations.add(name="main", id=1, root_id=len(names))
    for at, instruction in enumerate(names, 1):
        before = [at - 1] if at > 1 else []
        computation.instructions.add(id=at, name=instruction, opcode="add", operand_ids=before)
    if buffers:
        proto.buffer_assignment.buffer_allocations.add(index=0, size=64)
    return bytes(proto.SerializeToString())


def module(*names: str, **more: Any) -> HloModule:
    return read_hlo_proto(program(*names, **more))


def executed(path: Path, name: str, number: int, own: bytes | None = None) -> Path:
    """An XSpace with one operation of a program, which it may hold."""
    work = Event(name, 0, 1_000_000, {"hlo_op": name, "program_id": number, "run_id": 1, "device_ordinal": 0})
    content = xspace({"/host:CPU": [Line("worker", [work])]}, programs={number: own} if own else None)
    path.parent.mkdir(parents=True, exist_ok=True)
    return write(path, content)


def joined(run: Run) -> list[tuple[str, str]]:
    """Executed instructions as (program, instruction)."""
    hlo = run.trace.hlo
    pairs = zip(hlo.program.tolist(), hlo.instruction.tolist(), strict=True)
    return [
        (run.programs[key].name, "" if row == ABSENT else run.programs[key].instruction_name[row]) for key, row in pairs
    ]


# Files


@pytest.mark.parametrize(
    ("suffix", "pack"),
    [(".hlo.pb", bytes), (".hlo.pb.gz", gzip.compress), (".hlo.pb.xz", lzma.compress), (".hlo_proto.pb", bytes)],
)
def test_a_program_may_be_packed(tmp_path: Path, suffix: str, pack: Callable[[bytes], bytes]) -> None:
    file = tmp_path / f"jit_f{suffix}"
    file.write_bytes(pack(program("x", "y", number=7)))
    found = read_program(file)
    assert (found.program_id, found.instruction_name) == (7, ("x", "y"))


@pytest.mark.parametrize("name", ["jit_f.hlo.txt", "module_0001.jit_f.cpu_after_optimizations.txt.gz"])
def test_a_program_may_be_text(tmp_path: Path, name: str) -> None:
    content = TEXT.encode()
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    (found,) = traceflow.open(tmp_path).programs.values()
    assert found.opcode == ("parameter", "add")
    assert found.source == ("", "f.py:3")
    assert found.schedule.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("name", "content", "code"),
    [
        ("f.hlo.pb", b"", "TF102"),
        ("f.hlo.pb", b"\x0a\xff", "TF103"),
        ("f.hlo.txt", b"HloModule f\n", "TF103"),
        ("f.hlo.pb.xz", lzma.compress(program("x"))[:-9], "TF105"),
        ("f.hlo.pb.gz", gzip.compress(program("x"))[:-9], "TF105"),
    ],
)
def test_a_damaged_file_is_refused(tmp_path: Path, name: str, content: bytes, code: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(TraceflowError, match=f"{code}: cannot read .*{name}"):
        traceflow.open(tmp_path / name)


def test_the_final_form_of_a_program_is_told_by_its_name() -> None:
    stem = "module_0008.jit_f"
    passes = f"{stem}.0002.spmd-partitioner.after_spmd-partitioning.before_control-dep-rewriter"
    others = [f"{stem}.before_optimizations", passes, f"{stem}.0001.x.after_a.before_cpu_after_optimizations"]
    files = [Path(f"{name}.{form}") for name in others for form in ("hlo.pb", "txt")]
    files += [Path(f"{stem}.cpu_after_optimizations{rest}") for rest in ("-live-range.txt", "-buffer-assignment.txt")]
    final = Path(f"{stem}.sm_8.0_gpu_after_optimizations.hlo.pb")
    assert final_programs([*files, final, final.with_name(f"{stem}.sm_8.0_gpu_after_optimizations.txt")]) == [final]
    assert final_programs([*files, Path(f"{stem}.after_optimizations.txt")]) == [
        Path(f"{stem}.after_optimizations.txt")
    ]


# Content


def test_programs_count_once_by_content() -> None:
    programs: dict[int, HloModule] = {}
    assert add_program(programs, module("x", "y"), 3) == 3
    assert add_program(programs, module("x", "y", buffers=True), 5) == 3
    assert add_program(programs, module("x"), 3) == 4
    assert add_program(programs, module("x", "y", name="jit_g"), 3) == 5
    assert {key: found.program_id for key, found in programs.items()} == {3: 3, 4: 4, 5: 5}
    assert programs[3].buffers is not None  # what one lacks comes from its equal


def test_a_program_holds_every_instruction_that_it_executed() -> None:
    known = {1: module("x", "y"), 2: module("x", "z"), 8: module("w")}
    wanted: dict[int, set[str]] = {1: {"y"}, 2: {"y"}, 5: {"x"}, 6: {"w"}, 7: {"u"}, 9: {"w", "u"}}
    found = executed_among(known, wanted)
    assert {key: (one.program_id, one.instruction_name) for key, one in found.items()} == {
        1: (1, ("x", "y")),
        2: (2, ("x", "y")),  # the number is another's in this process: the content tells
        6: (6, ("w",)),
    }  # 5 may be either of two, 7 and 9 are none of them
    assert executed_among(known, {2: {"x"}})[2].instruction_name == ("x", "z")


def test_one_damaged_program_of_many_is_remarked(tmp_path: Path) -> None:
    (tmp_path / "a.hlo.pb").write_bytes(program("x"))
    (tmp_path / "b.hlo.pb").write_bytes(b"\x0a\xff")
    programs, (note,) = programs_among(sorted(tmp_path.iterdir()))
    assert len(programs) == 1
    assert (note.code, note.affects) == ("TF314", ("/result/programs",))
    assert "b.hlo.pb" in note.text
    assert quality(traceflow.open(tmp_path).trace.tally).verdict == "limited"


# Beside a trace


def test_a_dump_serves_a_trace_that_came_without_programs(tmp_path: Path) -> None:
    executed(tmp_path / "host.xplane.pb", "y", 8)
    (tmp_path / "dump").mkdir()
    (tmp_path / "dump" / "module_0008.jit_f.cpu_after_optimizations.hlo.pb").write_bytes(program("x", "y", number=8))
    (tmp_path / "dump" / "module_0009.jit_g.cpu_after_optimizations.hlo.pb").write_bytes(
        program("x", "z", number=9, name="jit_g")
    )
    run = traceflow.open(tmp_path)
    assert joined(run) == [("jit_f", "y")]
    assert sorted(run.programs) == [8, 9]


def test_a_dump_serves_the_json_of_a_trace(tmp_path: Path) -> None:
    stats = {"hlo_op": "y", "program_id": "4", "run_id": "1", "device_ordinal": "0"}
    write_chrome(
        tmp_path / "host.trace.json.gz",
        {"/host:CPU": {"worker": [{"name": "y", "ts": 0, "dur": 1, "args": stats}]}},
    )
    (tmp_path / "f.hlo.txt").write_text(TEXT)
    assert joined(traceflow.open(tmp_path)) == [("jit_f", "y")]


def test_a_program_that_came_with_the_trace_is_not_told_twice(tmp_path: Path) -> None:
    executed(tmp_path / "host.xplane.pb", "y", 8, own=program("x", "y"))
    (tmp_path / "module_0002.jit_f.after_optimizations.hlo.pb").write_bytes(program("x", "y", number=2, buffers=True))
    run = traceflow.open(tmp_path)
    assert list(run.programs) == [8]
    assert run.programs[8].buffers is not None


def test_a_program_of_the_same_number_and_another_content_is_told_apart(tmp_path: Path) -> None:
    executed(tmp_path / "host.xplane.pb", "y", 8, own=program("x", "y"))
    (tmp_path / "module_0008.jit_g.after_optimizations.hlo.pb").write_bytes(program("v", number=8, name="jit_g"))
    run = traceflow.open(tmp_path)
    assert {key: found.name for key, found in run.programs.items()} == {8: "jit_f", 9: "jit_g"}
    assert joined(run) == [("jit_f", "y")]


# Programs alone


def test_a_dump_alone_holds_its_programs_once(corpus: Callable[[str], Path], tmp_path: Path) -> None:
    for file in corpus("hlo/fsdp4_a100").glob("*.hlo.pb.xz"):
        (tmp_path / file.name).symlink_to(file)
    run = traceflow.open(tmp_path)
    assert len(run.trace.events) == 0
    assert quality(run.trace.tally).verdict == "good"
    sizes = {found.name: len(found) for found in run.programs.values()}
    assert sizes["pjit__wrapped_step_fn"] == 37_026
    assert len(run.programs) == 16  # of 17 files: one program was compiled twice
    assert all(key == found.program_id for key, found in run.programs.items())


@pytest.mark.parametrize("ask", ["summary", "critical_path", "communication", "clocks", "stragglers", "savings"])
def test_questions_about_time_need_a_trace(corpus: Callable[[str], Path], ask: str) -> None:
    run = traceflow.open(corpus("hlo/conv3d_gpu.hlo.pb"))
    with pytest.raises(TraceflowError, match=r"TF122: cannot explain .*: it holds no trace"):
        getattr(run, ask)()


def test_the_command_line_says_so_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "f.txt").write_text(TEXT)
    assert main(["show", "critical-path", str(tmp_path / "f.txt")]) == 1
    assert "TF122" in capsys.readouterr().err


# As JAX and XLA write them

DUMPED = """
import sys, jax
folder, options = sys.argv[1], jax.profiler.ProfileOptions()
options.enable_hlo_proto = len(sys.argv) > 2
step = jax.jit(lambda x: jax.lax.fori_loop(0, 3, lambda _, y: jax.numpy.tanh(y @ y), x))
x = jax.block_until_ready(jax.numpy.ones((64, 64)))
step(x).block_until_ready()
jax.profiler.start_trace(folder + "/trace", profiler_options=options)
for _ in range(2):
    step(x).block_until_ready()
jax.profiler.stop_trace()
"""


def dumped(folder: Path, *arguments: str) -> Run:
    """A run of JAX with a trace in one folder and XLA's dump in another."""
    flags = (
        f"--xla_dump_to={folder}/dump --xla_dump_hlo_as_text --xla_dump_hlo_as_proto --xla_dump_hlo_pass_re=spmd|shard"
    )
    environment = os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", "JAX_ENABLE_COMPILATION_CACHE": "false"}
    subprocess.run([sys.executable, "-c", DUMPED, str(folder), *arguments], check=True, env=environment, timeout=120)
    return traceflow.open(folder)


def test_a_trace_without_programs_is_joined_to_the_dump_of_its_process(tmp_path: Path) -> None:
    pytest.importorskip("jax", reason="the compiler comes with JAX")
    run = dumped(tmp_path)
    assert all(not module.buffers for module in traceflow.open(tmp_path / "trace").programs.values())
    (key,) = [key for key, module in run.programs.items() if list(module.trip_count.values()) == [3]]
    assert set(run.trace.hlo.program.tolist()) == {key}
    assert (run.trace.hlo.instruction >= 0).all()
    buffers = run.programs[key].buffers
    assert buffers is not None
    assert len(buffers.heap)  # a dump has what the executable keeps to itself
    assert run.summary().join is not None


def test_programs_of_a_dump_and_of_a_trace_are_the_same(tmp_path: Path) -> None:
    pytest.importorskip("jax", reason="the compiler comes with JAX")
    run = dumped(tmp_path, "with programs")
    alone = traceflow.open(tmp_path / "trace")
    files = final_programs((tmp_path / "dump").iterdir())
    assert all(file.name.endswith("after_optimizations.hlo.pb") for file in files)
    assert sorted(map(len, run.programs.values())) == sorted(len(read_program(file)) for file in files)
    assert {key: run.programs[key].instruction_name for key in alone.programs} == {
        key: module.instruction_name for key, module in alone.programs.items()
    }
    packed = tmp_path / "packed"
    packed.mkdir()
    for file in files:
        (packed / f"{file.name}.xz").write_bytes(lzma.compress(file.read_bytes()))
    assert len(traceflow.open(packed).programs) == len(run.programs)
