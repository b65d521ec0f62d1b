"""Small inputs that readers take, from which hostile ones are made: written here, and pieces of recorded traces."""

from __future__ import annotations

import gzip
import io
import json
import lzma
import pickle
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from kineto_builder import KinetoTrace
from nsight_builder import NsightProfile
from sources import ROOT
from xla_files import Event, Kinds, Line, Value, write_chrome, xspace

from traceflow.capture import Clock, Devices, Launch, Manifest, Options, Process, StepRecord
from traceflow.intent.routing import Shape, packed
from traceflow.program.schema import message
from traceflow.program.torch_audit import (
    CollectiveCall,
    Parameter,
    Place,
    Redistribution,
    TorchAudit,
    TorchMesh,
    encoded,
)

LARGEST = 1 << 14  # bytes of one seed
CORPUS = ROOT.parent / "shared" / "corpus"

HLO_TEXT = """\
HloModule jit_f, is_scheduled=true, entry_computation_layout={(f32[4]{0})->f32[4]{0}}, num_partitions=2

FileNames
1 "a.py"

FunctionNames
1 "f"

FileLocations
1 {file_name_id=1 function_name_id=1 line=3 end_line=3 column=1 end_column=2}

StackFrames
1 {file_location_id=1 parent_frame_id=1}

%fused (p: f32[4]) -> f32[4] {
  %p = f32[4]{0} parameter(0)
  %w = s32[2]{0} constant({1, 2})
  ROOT %n = f32[4]{0} negate(%p)
}

%region (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %s = f32[] add(%a, %b)
}

ENTRY %main (x: f32[4], y: f32[4,8]) -> (f32[4], f32[8]) {
  %x = f32[4]{0} parameter(0), sharding={devices=[2]<=[2]}
  %y = f32[4,8]{1,0:T(8,128)} parameter(1), sharding={replicated}
  %g = f32[4]{0} fusion(%x), kind=kLoop, calls=%fused, metadata={op_name="jit(f)/neg" stack_frame_id=1}
  %r = f32[4]{0} all-reduce(%g), channel_id=1, replica_groups=[1,2]<=[2], use_global_device_ids=true, to_apply=%region
  %c = f32[4]{0} collective-permute(%r), channel_id=2, source_target_pairs={{0,1},{1,0}}, control-predecessors={%g}
  %d = f32[8]{0} dot(%c, %y), lhs_contracting_dims={0}, rhs_contracting_dims={0}
  %k = f32[4]{0} custom-call(%c), custom_call_target="f", backend_config={"known_trip_count":{"n":"4"}}
  %i = f32[4]{0} slice(%x), slice={[0:4:1]}
  ROOT %t = (f32[4]{0}, f32[8]{0}) tuple(%r, %d)
}
"""


def written(write: Callable[[Path], object]) -> bytes:
    """What something writes into a file."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "file"
        write(file)
        return file.read_bytes()


def _pieces(*names: str) -> Iterator[bytes]:
    """Recorded traces, packed or not, with as many events of their list as fit a seed; none without the corpus."""
    for name in names:
        if (file := CORPUS / name).is_file():
            content = gzip.decompress(file.read_bytes())
            document: dict[str, Any] = msgspec.json.decode(content)
            events = document.pop("traceEvents")
            header = {key: value for key, value in document.items() if len(json.dumps(value)) < LARGEST // 8}
            chosen, size = [], len(json.dumps(header))
            for event in events[:: max(len(events) // 20, 1)]:
                size += len(json.dumps(event)) + 2
                if size < LARGEST // 2:
                    chosen.append(event)
            yield json.dumps({**header, "traceEvents": chosen}).encode()


def _small(*patterns: str) -> Iterator[bytes]:
    """Recorded files that are small enough as they are, unpacked."""
    for file in (file for pattern in patterns for file in sorted(CORPUS.glob(pattern))[:6]):
        content = lzma.decompress(file.read_bytes()) if file.suffix == ".xz" else file.read_bytes()
        if len(content) <= LARGEST:
            yield content


def kineto() -> Iterator[bytes]:
    """Traces of PyTorch's profiler."""
    trace = KinetoTrace(rank=0, world_size=2)
    trace.step(0, 0, 9000)
    trace.kernel("gemm", 1000, 2000, call=(100, 200))
    trace.copy(2000, 2500, call=(300, 400))
    trace.all_reduce(2500, 4000, call=(500, 600), sequence=1)
    trace.send(4000, 5000, to=1, call=(700, 800))
    trace.stream_wait(900, trace.record_event(850), stream=20)
    trace.device_synchronize(5000, 9000)
    yield written(trace.write)
    yield ALLOCATIONS
    yield b'[{"ph":"X","cat":"cpu_op","name":"a\\u00e9\\"b","pid":1,"tid":2,"ts":1.5,"dur":2},{}'
    yield gzip.compress(b'{"traceEvents":[{"ph":"X","cat":"kernel","name":"k","pid":0,"tid":7,"ts":1,"dur":2}]}')
    yield from _pieces(*(f"kineto/{name}.json.gz" for name in RECORDED))


RECORDED = ("a100_event_sync", "a100_triton", "cpu_only_rank34", "mi250_minitoy", "mtia_inference", "h100_bert_small")

ALLOCATIONS = b"""{"schemaVersion":1,"baseTimeNanoseconds":1790857026000000000,"traceEvents":[
{"ph":"i","cat":"cpu_instant_event","s":"t","name":"[memory]","pid":7,"tid":1,"ts":1.25,"args":{"Bytes":-512,
"Total Allocated":1024,"Total Reserved":2048,"Addr":1,"Device Type":1,"Device Id":0}},
{"ph":"s","id":3,"cat":"fwdbwd","name":"fwdbwd","pid":7,"tid":1,"ts":2},
{"ph":"f","id":3,"cat":"fwdbwd","name":"fwdbwd","pid":7,"tid":2,"ts":5,"bp":"e"},
{"ph":"X","cat":"cpu_op","name":"aten::mm","pid":7,"tid":1,"ts":1.1,"dur":3.2,"args":{"External id":4,
"Input Dims":[[4,8],[8,2]],"Input type":["float","float"],"Concrete Inputs":["",""]}},
{"ph":"X","cat":"user_annotation","name":"ProfilerStep#3","pid":7,"tid":2,"ts":1,"dur":9,"args":{"finished":false}}]}"""


def chrome() -> Iterator[bytes]:
    """Trace-event JSON as the JAX profiler writes it."""
    device = [
        {"name": "fusion.1", "ts": 1.25, "dur": 2.5, "args": {"hlo_op": "fusion.1", "hlo_module": "jit_f(7)"}},
        {"name": "all-reduce.2", "ts": 4, "dur": 1, "args": {"hlo_op": "all-reduce.2", "run_id": "3"}},
        {"name": "copy", "ts": 5, "dur": 1, "args": {"long_name": "%copy = f32[4]{0} copy(f32[4]{0} %x)"}},
    ]
    host = [
        {"name": "PjitFunction(f)", "ts": 0, "dur": 1},
        {"name": "train", "ts": 0, "dur": 9, "args": {"step_num": "1"}},
    ]
    planes: dict[str, Mapping[str, Sequence[Mapping[str, Any]]]] = {
        "/device:TPU:0": {"XLA Ops": device, "XLA Modules": [{"name": "jit_f(7)", "ts": 1, "dur": 6}]},
        "/device:GPU:0": {"Stream #13(Compute)": device},
        "/host:CPU": {"python": host, "tf_XLATfrtCpuClient/1": device},
    }
    yield written(lambda file: write_chrome(file, planes))
    yield from _pieces("xplane/tpu_2chips_a.trace.json.gz")


def space() -> Iterator[bytes]:
    """XSpaces of a CPU, a GPU and a TPU."""
    stats: dict[str, Value] = {"hlo_op": "mm", "program_id": 7, "run_id": 3, "correlation_id": 5, "device_ordinal": 0}
    done = [Event("mm", 1000, 5000, stats), Event("%c = f32[4]{0} copy(f32[4]{0} %x)", 9000, 2000, stats)]
    planes = {
        "/device:GPU:0": [Line("Stream #13(Compute,Memcpy)", done, 100)],
        "/device:TPU:0": [Line("XLA Ops", done), Line("XLA Modules", [Event("jit_f(7)", 0, 20000, {"run_id": 3})])],
        "/host:CPU": [
            Line("python", [Event("PjitFunction(f)", 0, 900), Event("train", 0, 30000, {"step_num": 1})]),
            Line("tf_XLATfrtCpuClient/1", done),
        ],
    }
    program = next(proto())
    yield xspace(planes, programs={7: program}, kinds={"mm": Kinds("dot", {"flops": 8})}).SerializeToString()
    for name, lines in planes.items():
        yield xspace({name: lines}, start_ns=None).SerializeToString()


def proto() -> Iterator[bytes]:
    """Compiled programs as protobuf."""
    proto = message("HloProto")()
    module = proto.hlo_module
    module.name, module.id, module.entry_computation_id = "jit_f", 7, 1
    computation = module.computations.add(name="main", id=1, root_id=3)
    for number, (name, opcode, operands) in enumerate(
        [("x", "parameter", []), ("r", "all-reduce", [1]), ("mm", "dot", [1, 2])], start=1
    ):
        one = computation.instructions.add(name=name, opcode=opcode, id=number, operand_ids=operands)
        one.shape.element_type = 11
        one.shape.dimensions.extend([4, 4])
        one.shape.layout.minor_to_major.extend([1, 0])
        one.metadata.op_name, one.metadata.stack_frame_id = f"jit(f)/{name}", 1
    computation.instructions[1].replica_groups.add(replica_ids=[0, 1])
    computation.instructions[2].dot_dimension_numbers.lhs_contracting_dimensions.append(1)
    module.schedule.sequences.add(key=1).value.instruction_ids.extend([1, 2, 3])
    module.stack_frame_index.file_names.append("a.py")
    module.stack_frame_index.function_names.append("f")
    module.stack_frame_index.file_locations.add(file_name_id=1, function_name_id=1, line=3)
    module.stack_frame_index.stack_frames.add(file_location_id=1)
    buffers = proto.buffer_assignment
    buffers.logical_buffers.add(id=1, size=64).defined_at.instruction_id = 1
    buffers.buffer_allocations.add(index=0, size=64).assigned.add(logical_buffer_id=1, size=64)
    buffers.heap_simulator_traces.add(buffer_allocation_index=0).events.add(kind=0, buffer_id=1)
    yield proto.SerializeToString()
    yield from _small("hlo/*.pb", "hlo/fsdp4_a100/**/*after_optimizations.hlo.pb.xz")


def text() -> Iterator[bytes]:
    """Compiled programs as text."""
    yield HLO_TEXT.encode()
    yield b"HloModule f\nENTRY main {\n  x = f32[4] parameter(0)\n  ROOT y = f32[4] add(x, x)\n}\n"


def memory() -> Iterator[bytes]:
    """Timelines and snapshots."""
    yield snapshot(2)
    yield snapshot(4)
    yield b"[[-1, 1, 37888, 7], [-1, 1, 512, 7], [1790857026000000000, 2, -512, 3]]"
    yield b"[[1.5, 2.5, 3.0], [[0, 1, 2, 3, 4, 5, 6, 7, 8], [0, 0, 2, 3, 4, 5, 6, 7, 9], [0, 1, 1, 1, 1, 1, 1, 1, 1]]]"
    yield b'{"device": "cuda:1", "categories": ["PARAMETER", "INPUT"], "times_ns": [1, 2], "allocated_bytes": [[1, 2], [0, 9]]}'


def snapshot(protocol: int) -> bytes:
    """A snapshot of the CUDA allocator."""
    history = [
        {"action": action, "addr": at, "size": 512, "stream": 0, "time_us": time, "frames": []}
        for action, at, time in (
            ("segment_alloc", 0, 1),
            ("alloc", 0, 2),
            ("free_completed", 512, 3),
            ("free_requested", 512, 3),
        )
    ]
    block = {"address": 0, "size": 512, "requested_size": 500, "state": "active_allocated", "frames": []}
    segments = [{"device": 0, "address": 0, "total_size": 2048, "blocks": [block]}]
    return pickle.dumps({"segments": segments, "device_traces": [history], "allocator_settings": {}}, protocol)


def manifest() -> Iterator[bytes]:
    """Manifests of captures."""
    step = StepRecord(step=1, start_ns=1, returned_ns=2, ready_ns=3, fetched_ns=4, compilations=0, compile_ns=0)
    one = Manifest(
        traceflow_version="0.1.0",
        created="2026-01-01T00:00:00+00:00",
        complete=True,
        problem=None,
        process=Process("host", 7, 0, 2),
        clock=Clock(1, 2),
        frameworks={"jax": "0.9"},
        devices=Devices("cpu", "cpu", 1, 1),
        options=Options(1, 3, hlo=True),
        warmup=(step,),
        steps=(step,),
        missing=("a: b",),
        launch=Launch(["python", "a.py"], 0, None),
    )
    yield msgspec.json.encode(one)
    yield msgspec.json.encode(msgspec.structs.replace(one, peers=(one,)))


def operations() -> Iterator[bytes]:
    """Tables of operations: CSV, a timeline, Parquet."""
    yield b"rank,step,optype,start_ts,duration,dp_rank,stage,mc,mb_id,seq_id\n0,0,forward,0.5,1.5,0,0,0,0,0\n1,0,send,2.0,0.1,0,1,,,\n"
    yield b"rank,step,type,start_ns,duration_ns\n0,0,f,10,20\n0,1,f,50,9\n"
    events = [
        {"ph": "M", "name": "process_name", "pid": 0, "args": {"name": "DP rank [1]"}},
        {"ph": "M", "name": "thread_name", "pid": 0, "tid": 3, "args": {"name": "PP rank 3, TP rank 0, compute"}},
        {"ph": "X", "name": "forward", "pid": 0, "tid": 3, "ts": 1.5, "dur": 2, "args": {"step": 0, "mb_id": 1}},
    ]
    yield json.dumps({"traceEvents": events}).encode()
    yield _parquet(
        {"rank": [0, 1], "step": [0, 0], "optype": ["f", "b"], "start_ts": [0.0, 1.0], "duration": [1.0, 1.0]}
    )


def _parquet(columns: Mapping[str, Sequence[Any]]) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet

    file = io.BytesIO()
    pyarrow.parquet.write_table(pa.table(dict(columns)), file, compression="none", write_statistics=False)
    return file.getvalue()


GLOO = """{"schemaVersion": 1, "distributedInfo": {"rank": 0, "world_size": 2}, "baseTimeNanoseconds": 1790857026000000000,
"traceEvents": [
{"ph": "X", "cat": "cpu_op", "name": "c10d::allreduce_", "pid": 50, "tid": 50, "ts": 4999.0, "dur": 8.0,
"args": {"Concrete Inputs": ["", "", "0"], "Input Dims": [[4]]}},
{"ph": "X", "cat": "user_annotation", "name": "gloo:all_reduce", "pid": 50, "tid": 51, "ts": 5010.0, "dur": 9.0,
"args": {"Input Dims": [[4]]}}]}"""


def flight_recorder() -> Iterator[bytes]:
    """Dumps of the flight recorder."""
    entry = {
        "pg_id": 0,
        "process_group": ["0", "default_pg"],
        "collective_seq_id": 1,
        "op_id": 1,
        "profiling_name": "gloo:all_reduce",
        "time_created_ns": 1_790_857_026_005_000_000,
        "input_sizes": [[4]],
        "input_dtypes": ["Float"],
    }
    groups = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}}
    yield json.dumps({"version": "2.10", "entries": [entry, {**entry, "op_id": 2}], "pg_config": groups}).encode()


def audit() -> Iterator[bytes]:
    """Audits of PyTorch's sharding."""
    mesh, place = TorchMesh(("dp", "tp"), (2, 2), (0, 1, 2, 3)), Place("m", "aten.add.Tensor", "a.py:3")
    laid = Redistribution(
        place=place, implicit=True, shape=(4, 4), dtype="float32", mesh=mesh, before=("S(0)", "R"), after=("R", "R")
    )
    yield encoded(
        TorchAudit(
            rank=0,
            world_size=4,
            modules=("m",),
            plan={"m": "S(0)"},
            parameters=(Parameter(name="w", dtype="float32", shape=(4, 4), local_shape=(2, 4), mesh=mesh),),
            redistributions=(laid,),
            collectives=(CollectiveCall(place=place, operation="all-gather", group=(0, 1), sent_bytes=64),),
            meshes=(mesh,),
        )
    )


def placements() -> Iterator[bytes]:
    """What captures keep of placements."""
    one = {"name": "w", "dtype": "float32", "shape": [4, 4], "local_shape": [2, 4], "placements": ["Shard(dim=0)"]}
    mesh = {"names": ["dp", "tp"], "ranks": [[0, 1], [2, 3]]}
    yield json.dumps([{**one, "mesh": mesh}, {**one, "mesh": None, "placements": None}]).encode()


def stated() -> Iterator[bytes]:
    """What captures keep of functions of JAX."""
    placed = {"mesh": {"x": 2, "y": 2}, "spec": [["x", "y"], None]}
    array = {"path": "w", "shape": [4, 4], "dtype": "float32", "intended": placed, "compiled": None}
    said = {"problem": None, "name": "f", "memory": {"peak_bytes": 512}, "inputs": [array], "outputs": [array]}
    yield json.dumps(said).encode()


def routing() -> Iterator[bytes]:
    """Records of how tokens went to experts."""
    shape = {"experts": 2, "topk": 1, "dispatcher": 0}
    told = {"step": 1, "layer": 0, "occurrence": 0, "sources": 1, "first_source": 0, "all_sources": 1}
    columns: dict[str, Any] = {**{field.name: field.default for field in fields(Shape)}, **shape, **told}
    file = io.BytesIO()
    np.savez(file, allow_pickle=False, **packed([(columns, {"tokens_per_expert": [3, 4]})], overwritten=0))
    yield file.getvalue()


def nsight() -> Iterator[bytes]:
    """Exports of Nsight Systems."""
    profile = NsightProfile()
    worker = profile.process(4000, gpu=0)
    worker.kernel("gemm", 9_000, 109_000, call=(2_000, 5_400))
    worker.copy(110_000, 120_000, call=(6_000, 7_000), size_bytes=64)
    worker.annotate("step 3", 1_000, 200_000)
    yield written(profile.write)


def nsight_jax() -> Iterator[bytes]:
    """Ranges of nsys-jax."""
    columns: dict[str, list[Any]] = {
        "Name": ["XlaModule:#hlo_module=jit_f#", "mm"],
        "Projected Start": [1, 2],
        "Projected Duration": [9, 3],
    }
    yield _parquet(columns)


def anything() -> Iterator[bytes]:
    """One of each, told apart by content."""
    for seeds in (kineto, chrome, space, proto, text, memory, operations, audit):
        yield from list(seeds())[:2]
