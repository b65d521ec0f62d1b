"""The readers under test: what each is given, and what it has to make of that."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from fuzz import seeds
from fuzz.sound import assert_sound
from traceflow.trace.model import Trace


@dataclass(frozen=True)
class Reader:
    """One reader.

    Args:
        file: Name of the file that it reads.
        read: Reads a file of that name; anything but a return or a `TraceflowError` is a defect.
        seeds: Inputs that hostile ones are made from.
        words: Pieces that inputs of this kind are made of.
        beside: Files that lie beside, by name.
        environment: Of the process in which it runs; empty where any will do.
    """

    file: str
    read: Callable[[Path], object]
    seeds: Callable[[], Iterable[bytes]]
    words: tuple[str, ...] = ()
    beside: Callable[[], dict[str, bytes]] = dict
    environment: dict[str, str] = field(default_factory=dict)


def _kineto(file: Path) -> None:
    from traceflow.trace.kineto import read_kineto

    with _small_pieces():
        assert_sound(read_kineto(file))


@contextmanager
def _small_pieces() -> Iterator[None]:
    """Let even small files be read in several pieces and batches, which takes less memory and time as well."""
    from traceflow.trace import _kineto_rows as rows

    usual = rows._PIECE, rows._BATCH
    rows._PIECE, rows._BATCH = 1 << 12, 16
    try:
        yield
    finally:
        rows._PIECE, rows._BATCH = usual


def _kineto_checked(file: Path) -> None:
    from fuzz.checked import read_checked

    with _small_pieces():
        read_checked(file)


def _chrome(file: Path) -> None:
    from traceflow.trace.chrome import read_chrome

    assert_sound(read_chrome(file).trace)


def _xspace(file: Path) -> None:
    from traceflow.trace.xspace import read_xspace

    assert_sound(read_xspace(file).trace)


def _program(file: Path) -> None:
    from traceflow.program.dump import read_program

    module = read_program(file)
    assert len(module.opcode) == len(module.instruction_name) == len(module.shape)


def _memory(file: Path) -> None:
    from traceflow.trace.torch_memory import read_torch_memory

    assert_sound(read_torch_memory(file))


def _manifest(file: Path) -> None:
    from traceflow.capture import read_manifest

    assert read_manifest(file.parent) is not None


def _operations(file: Path) -> None:
    from traceflow.trace.operation_trace import operation_trace
    from traceflow.trace.operations import read_operations

    assert_sound(operation_trace(read_operations(file), file.name))


@cache
def _of_gloo(file: Path) -> Trace:
    from traceflow.trace.kineto import read_kineto

    return read_kineto(file)


def _flight_recorder(file: Path) -> None:
    from traceflow.trace.flight_recorder import with_recording_beside

    trace = file.with_name("rank00000.pt.trace.json")
    assert_sound(with_recording_beside(_of_gloo(trace), trace))


def _audit(file: Path) -> None:
    from traceflow.program.torch_audit import read_torch_audit

    read_torch_audit(file)


def _stated(file: Path) -> None:
    from traceflow.program.stated import read_stated

    read_stated(file.parent)


def _routing(file: Path) -> None:
    from traceflow.intent.routing import read_routing

    read_routing([file])


def _nsight(file: Path) -> None:
    from traceflow.trace.nsight import read_nsight

    assert_sound(read_nsight(file).trace)


def _nsight_jax(file: Path) -> None:
    from traceflow.trace.nsight_jax import read_nsight_jax

    assert_sound(read_nsight_jax(file).trace)


def _anything(file: Path) -> None:
    from traceflow.evidence import read

    assert_sound(read(file).trace)


def _gloo_trace() -> dict[str, bytes]:
    return {"rank00000.pt.trace.json": seeds.GLOO.encode()}


def _its_program() -> dict[str, bytes]:
    return {"f.hlo.txt": seeds.HLO_TEXT.encode()}


_JSON = (
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    '"',
    "null",
    "true",
    "NaN",
    "1e999",
    "-1",
    "9223372036854775807",
    "\\u00e9",
    "{}",
)
_EVENT = (
    *_JSON,
    '"ph":"X"',
    '"ph":"M"',
    '"ts":',
    '"dur":',
    '"pid":',
    '"tid":',
    '"name":',
    '"args":{',
    '"traceEvents":[',
)
_KINETO = (
    *_EVENT, '"cat":', '"cpu_op"', '"kernel"', '"cuda_runtime"', '"gpu_memcpy"', '"cuda_sync"', '"fwdbwd"', '"ac2g"',
    '"correlation":', '"stream":', '"device":', '"Collective name":', '"Process Group Name":', '"Input Dims":',
    '"ph":"i"', '"ph":"s"', '"ph":"f"', '"finished":', '"Bytes":', "ProfilerStep#", '"schemaVersion":1',
)  # fmt: skip
_CHROME = (
    *_EVENT,
    '"process_name"',
    '"thread_name"',
    "/device:TPU:0",
    "XLA Ops",
    '"hlo_op":',
    '"run_id":',
    '"step_num":',
)
_HLO = (
    "HloModule ", "ENTRY ", "ROOT ", " = ", "f32[4]{0}", "parameter(0)", "calls=", "to_apply=", "replica_groups=",
    "{{0,1}}", "[1,2]<=[2]", "source_target_pairs=", "sharding={", "metadata={", "stack_frame_id=", "T(8,128)", "tuple(",
    "lhs_contracting_dims={", "window={size=3", "dim_labels=", "slice={", "constant(", "while(", "index=", "dynamic-slice",
)  # fmt: skip
_TABLE = (
    "rank",
    "step",
    "optype",
    "start_ts",
    "duration",
    "start_ns",
    "duration_ns",
    "stage",
    "mb_id",
    ",",
    "\n",
    "nan",
)

READERS = {
    "kineto": Reader("rank0.pt.trace.json", _kineto, seeds.kineto, _KINETO),
    "kineto-checked": Reader(
        "rank0.pt.trace.json", _kineto_checked, seeds.kineto, _KINETO, environment={"NUMBA_DISABLE_JIT": "1"}
    ),
    "chrome": Reader("a.trace.json", _chrome, seeds.chrome, _CHROME),
    "xspace": Reader("a.xplane.pb", _xspace, seeds.space, ("/device:GPU:0", "/host:CPU", "hlo_op", "XLA Ops")),
    "hlo-proto": Reader("f.hlo.pb", _program, seeds.proto, ("all-reduce", "parameter", "while", "fusion")),
    "hlo-text": Reader("f.hlo.txt", _program, seeds.text, _HLO),
    "memory": Reader("snapshot.pickle", _memory, seeds.memory, (*_JSON, "device_traces", "segments", "action")),
    "manifest": Reader(
        "manifest.json", _manifest, seeds.manifest, (*_JSON, '"schema_version":', '"peers":[', '"steps":[')
    ),
    "operations": Reader("job.csv", _operations, seeds.operations, (*_TABLE, *_EVENT)),
    "flight-recorder": Reader(
        "rank00000.flight_recorder.json", _flight_recorder, seeds.flight_recorder, _JSON, _gloo_trace
    ),
    "audit": Reader("rank00000.sharding_audit.json", _audit, seeds.audit, (*_JSON, '"ranks":', '"sizes":')),
    "placements": Reader("rank00000.placements.json", _audit, seeds.placements, (*_JSON, '"ranks":', '"names":')),
    "stated": Reader("f.json", _stated, seeds.stated, (*_JSON, '"mesh":', '"spec":', '"shape":'), _its_program),
    "routing": Reader(
        "rank00000.routing.npz", _routing, seeds.routing, ("'descr': '<i8'", "'shape': (1,)", "<f4", "O")
    ),
    "nsight": Reader("a.sqlite", _nsight, seeds.nsight, ("CREATE TABLE", "CREATE VIEW", "INTEGER", "TEXT")),
    "nsight-jax": Reader("a.parquet", _nsight_jax, seeds.nsight_jax, ("Name", "Projected Start", "PAR1")),
    "anything": Reader("a.json", _anything, seeds.anything, (*_KINETO, *_TABLE)),
}
