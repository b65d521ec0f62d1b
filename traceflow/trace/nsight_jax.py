"""Read what nsys-jax makes of a profile of Nsight Systems: NVTX ranges, and when their work was on the device.

A table holds the ranges of one process in Parquet. XLA puts a range around each execution of a program and, within it,
around what each instruction launches; the profiler projects a range on the device, from the first to the last kernel or
copy that was launched in it. So instructions are known where kernels and streams are not: what communicates is shown on
one stream here, all else on another. Which device a process drove is in tables of metadata beside it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from traceflow.errors import TraceflowError
from traceflow.evidence import Evidence
from traceflow.program.dump import executed_among
from traceflow.program.module import HloModule, Programs, kind_of, kind_of_instruction, operation_of_name
from traceflow.quality import ORDER
from traceflow.result import Note
from traceflow.trace._nsight_ranges import Placed, Ranges, placed_in, ranges_of
from traceflow.trace._nsight_tables import UNKNOWN
from traceflow.trace._xla_columns import Said
from traceflow.trace._xla_lines import Count, Line, Plane
from traceflow.trace._xla_trace import About, xla_trace
from traceflow.trace.model import ABSENT, Bool, Int64, Kind, Rank
from traceflow.unpacking import parquet_table

if TYPE_CHECKING:
    import pyarrow as pa

_PARQUET, _WRITTEN_AS = b"PAR1", "trace.parquet"
_DEVICE = re.compile(r"(?:Xla|XlaLauncher):#global=(\d{1,9}),local=(\d{1,9}),process=(\d{1,9}),slice=\d+#")
_STEP = re.compile(r"[#,]step_num=(\d{1,18})[,#]")
_LINES = "Stream #0 (computation)", "Stream #1 (communication)"
_OTHER = "projection of a range other than an instruction's"
_HARDWARE = {"device": "'name')", "device_units": "'smCount')", "device_memory": "'totalMemory')"}
_TOLD = (
    "device time is known by NVTX range, from the first to the last kernel that each launched: streams, single kernels "
    "and work outside of ranges are not told"
)
_UNTOLD_DEVICE = "nothing says which device the process drove: its number is taken to be that of the rank"


class _Device(NamedTuple):
    """A device, as XLA numbers it among all of the job, and the process that drives it."""

    number: int
    local: int
    process: int


def looks_like_nsight_jax(file: Path) -> bool:
    """Whether a file is a table of projected ranges, by its columns."""
    import pyarrow as pa
    import pyarrow.parquet

    with file.open("rb") as opened:
        if opened.read(len(_PARQUET)) != _PARQUET:
            return False
    try:
        names = set(pyarrow.parquet.read_schema(file).names)
    except (OSError, pa.ArrowException, UnicodeDecodeError):
        return file.name == _WRITTEN_AS  # a rank whose table is damaged must not vanish without a word
    return {"Name", "Projected Start", "Projected Duration"} <= names or {"Text", "Start", "End", "Range ID"} <= names


def _table(path: Path) -> pa.Table:
    import pyarrow as pa

    try:
        table = parquet_table(path)
        table.validate(full=True)
    except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
        why = (str(error).splitlines() or [type(error).__name__])[0]
        raise TraceflowError("TF103", f"cannot read {path}", why, "copy the table again") from error
    return table


def read_nsight_jax(
    path: Path, *, rank: int = 0, communication: tuple[str, ...] = (), beside: Programs = MappingProxyType({})
) -> Evidence:
    """Read the ranges of one process.

    Runs of a program are numbered in order on each device, so that the k-th on one is the k-th on all. A range that
    launched work is two events: the host's, which launches, and the device's.

    Args:
        path: The table; metadata of devices and threads is looked for beside it.
        rank: The process that it is of, where the metadata does not say.
        communication: Patterns for more kernels that communicate, as for `recognise`.
        beside: Programs found elsewhere; a table comes without any.

    Returns:
        The trace, whose devices have their numbers in the whole job, and the programs that it executed.

    Raises:
        TraceflowError: TF103 when the file is damaged, TF104 when no range launched anything, TF107 when columns are of
            no use, or devices of one process cannot be told apart.
    """
    count = Count()
    ranges = ranges_of(_table(path), path, count)
    metadata = [_table(file).to_pydict() for file in sorted(path.parent.glob("*metadata.parquet"))]
    devices = _devices(metadata, rank)
    device = _device_of(ranges, devices, path)
    placed = placed_in(ranges)
    programs = _programs(ranges, placed, beside)
    planes = [_device_plane(ranges, placed, device, int(number), programs, count) for number in np.unique(device)]
    planes.append(_host_plane(ranges, placed, count))
    process = Rank(devices.all[0].process, None, None, f"{path.parent.name}/{path.name}")
    notes = (Note("TF318", _TOLD if devices.told else f"{_TOLD}; {_UNTOLD_DEVICE}", ORDER),)
    about = About(process, None, "nsight", _hardware(metadata), notes)
    trace, executed = xla_trace(planes, programs, about, count, communication)
    if not len(trace.events):
        raise TraceflowError("TF104", f"cannot use {path}", "it holds no ranges", "record while the program works")
    return Evidence(trace, executed)


def _programs(ranges: Ranges, placed: Placed, beside: Programs) -> dict[int, HloModule]:
    """The programs that were executed, of those found elsewhere: of the same name, with all instructions that ran."""
    executed: dict[tuple[int, str], set[str]] = {}
    for row in np.flatnonzero(placed.shown & (placed.module >= 0)).tolist():
        of = ranges.said[placed.module[row]]
        if ranges.said[row].instruction:
            executed.setdefault((of.program, of.module), set()).add(ranges.said[row].instruction)
    found: dict[int, HloModule] = {}
    for (program, name), instructions in executed.items():
        namesakes = {key: module for key, module in beside.items() if module.name == name}
        found |= executed_among(namesakes, {program: instructions})
    return found


def _device_plane(
    ranges: Ranges, placed: Placed, device: Int64, number: int, programs: Programs, count: Count
) -> Plane:
    """What one device did, on two streams."""
    own = device == number
    rows = np.flatnonzero(own & placed.shown)
    count.drop(_OTHER, own.sum() - len(rows))
    run = _runs(ranges, placed, own)
    talks = _talks(ranges, placed, rows, programs)
    lines = [
        _device_line(ranges, placed, run, rows[talks == communicates], name) for communicates, name in enumerate(_LINES)
    ]
    return Plane(f"/device:GPU:{number}", [line for line in lines if len(line)])


def _device_line(ranges: Ranges, placed: Placed, run: Int64, rows: Int64, name: str) -> Line:
    stats: list[Said] = []
    for row in rows.tolist():
        program, instruction = _point(ranges, placed, row)
        stat: dict[str, object] = {"correlation_id": _correlation(ranges, row)}
        if program >= 0 and instruction:
            stat |= {"hlo_op": instruction, "program_id": program, "run_id": int(run[placed.module[row]])}
        stats.append(stat)
    names = [ranges.said[row].instruction or str(ranges.name[row]) for row in rows.tolist()]
    return Line.of(name, 0, names, ranges.start_ns[rows], ranges.end_ns[rows], stats)


def _point(ranges: Ranges, placed: Placed, row: int) -> tuple[int, str]:
    """Program and instruction of a range; ABSENT for the program outside of its executions."""
    module = int(placed.module[row])
    return ABSENT if module < 0 else ranges.said[module].program, ranges.said[row].instruction


def _correlation(ranges: Ranges, row: int) -> int:
    return max(int(ranges.number[row]), ABSENT)


def _talks(ranges: Ranges, placed: Placed, rows: Int64, programs: Programs) -> Bool:
    """Which ranges communicate: by NCCL's calls in them, by the program, else by the name of the instruction."""
    places = {key: {name: row for row, name in enumerate(of.instruction_name)} for key, of in programs.items()}

    @cache
    def told(program: int, instruction: str) -> bool:
        if program in programs:
            return kind_of_instruction(programs[program], places[program][instruction]) is Kind.COMMUNICATION
        return program >= 0 and kind_of(operation_of_name(instruction)) is Kind.COMMUNICATION

    by_name = np.array([told(*_point(ranges, placed, row)) for row in rows.tolist()], bool)
    talks: Bool = placed.talks[rows] | by_name
    return talks


def _runs(ranges: Ranges, placed: Placed, own: Bool) -> Int64:
    """Per execution of a program, how many of the same program began on the device before."""
    run, begun = np.zeros(len(ranges), np.int64), dict[int, int]()
    for row in np.unique(placed.module[own & placed.shown & (placed.module >= 0)]).tolist():
        program = ranges.said[row].program
        run[row] = begun.get(program, 0)
        begun[program] = int(run[row]) + 1
    return run


def _host_plane(ranges: Ranges, placed: Placed, count: Count) -> Plane:
    """What the threads of the process did, as far as it led to work on the device."""
    count.read += int((ranges.host_start_ns > UNKNOWN).sum())
    return Plane("/host:CPU", [_host_line(ranges, placed, int(thread)) for thread in np.unique(ranges.thread)])


def _host_line(ranges: Ranges, placed: Placed, thread: int) -> Line:
    rows = np.flatnonzero((ranges.thread == thread) & (ranges.host_start_ns > UNKNOWN))
    stats: list[Said] = []
    for row in rows.tolist():
        said, step = ranges.said[row], _STEP.search(str(ranges.name[row]))
        if placed.shown[row]:
            launched = {"hlo_op": said.instruction} if said.instruction else {}
            stats.append({**launched, "correlation_id": _correlation(ranges, row)})
        else:
            stats.append({"step_num": step[1]} if step else {})
    names = [ranges.said[row].instruction or ranges.said[row].module or str(ranges.name[row]) for row in rows.tolist()]
    return Line.of(str(thread), thread, names, ranges.host_start_ns[rows], ranges.host_end_ns[rows], stats)


@dataclass(frozen=True, slots=True)
class _Devices:
    """Which devices a process drove, and which of its threads launched on which."""

    all: tuple[_Device, ...]
    of_thread: Mapping[int, _Device]
    told: bool  # the metadata says so; else the number of the process is taken


def _devices(metadata: Sequence[Mapping[str, list[Any]]], rank: int) -> _Devices:
    """The devices of a process by the metadata beside its table."""
    threads: dict[int, _Device] = {}
    devices: list[_Device] = []
    for columns in metadata:
        for name, values in columns.items():
            found = [_DEVICE.match(str(value)) for value in values]
            known = [_Device(*map(int, one.groups())) if one else None for one in found]
            devices += [one for one in known if one]
            if name == "Name" and "TID" in columns:
                threads |= {int(tid): one for tid, one in zip(columns["TID"], known, strict=True) if one}
    if not devices:
        return _Devices((_Device(rank, 0, rank),), {}, told=False)
    return _Devices(tuple(sorted(set(devices), key=lambda device: device.local)), threads, told=True)


def _device_of(ranges: Ranges, devices: _Devices, path: Path) -> Int64:
    """The device of each range. A program of one device is launched by the main thread, on the first."""
    threads = np.unique(ranges.thread)
    unknown = [thread for thread in threads.tolist() if thread not in devices.of_thread]
    if len(devices.all) > 1 and len(unknown) > 1:
        why = f"nothing says on which of {len(devices.all)} devices its {len(unknown)} threads launched"
        raise TraceflowError("TF107", f"cannot read {path}", why, "put thread-metadata.parquet beside it")
    number = [devices.of_thread.get(thread, devices.all[0]).number for thread in threads.tolist()]
    return np.array(number, np.int64)[np.searchsorted(threads, ranges.thread)]


def _hardware(metadata: Sequence[Mapping[str, list[Any]]]) -> dict[str, str]:
    """What the first device says of itself, by what a trace calls it."""
    said: dict[str, str] = {"device_vendor": "Nvidia"}
    for columns in metadata:
        for name, values in columns.items():
            for key, suffix in _HARDWARE.items():
                if "TARGET_INFO_GPU" in name and name.endswith(suffix) and values:
                    said[key] = str(values[0])
    return said
