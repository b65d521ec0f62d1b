"""Read the SQLite export of Nsight Systems (`nsys export --type sqlite`): kernels, copies, calls, NVTX ranges, waits.

Each process that worked on a device is a rank. The export does not say which: ranks are counted in order of the devices
that their processes used. Times are counted from the start of the session, whose own time is told. Within the ranges that
XLA puts around what it launches, kernels execute instructions; NCCL's ranges say who takes part in a collective, and how
much is sent. The schema is that of <https://docs.nvidia.com/nsight-systems/UserGuide/>, of which any table may be missing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import MappingProxyType

import numpy as np

from traceflow.errors import TraceflowError
from traceflow.evidence import Evidence
from traceflow.program.dump import executed_among
from traceflow.program.module import HloModule, Programs, kind_of, kind_of_instruction, operation_of_name
from traceflow.result import Note, Tally
from traceflow.trace import _xla_communication
from traceflow.trace._kineto_trace import WAITS
from traceflow.trace._nsight_joins import Executed, call_of_work, executed_of, stated_of, syncs_of
from traceflow.trace._nsight_rows import (
    Annotations,
    Calls,
    Names,
    Records,
    Work,
    annotations_of,
    calls_of,
    number_of_thread,
    process_of,
    recorded_events_of,
    taken,
    waits_of,
    work_of,
)
from traceflow.trace._nsight_tables import UNKNOWN, Tables, looks_like_nsight, opened
from traceflow.trace._xla_lines import Count
from traceflow.trace.canonical import canonical
from traceflow.trace.communication_names import recognise
from traceflow.trace.host_waits import waits_on_host
from traceflow.trace.model import (
    ABSENT,
    Bool,
    Communications,
    Copies,
    Events,
    Flows,
    Group,
    HloEvents,
    Int8,
    Int32,
    Int64,
    Kind,
    LaneKind,
    Lanes,
    Launches,
    Marks,
    Rank,
    Text,
    Trace,
    empty,
)

__all__ = ["looks_like_nsight", "read_nsight"]

_POLLS = re.compile(r"(?:cuda|cu)(?:Event|Stream)Query")
_STEP = re.compile(r"(?:.*[#,]step_num=|ProfilerStep#|(?:step|iteration)[ _#:]?)(\d{1,18})(?:[,#].*)?$", re.IGNORECASE)
_GLOBAL = re.compile(r"Xla:#global=(\d{1,9}),")
_PID = (1 << 24) - 1
_RANKS = "which process is which rank is not told: they are counted in order of their devices"
_UNTOLD = "{} collectives have no annotation of NCCL around their launch: who took part in them is not known"
_NO_CALLS = "calls into the runtime were not recorded: what launched what is not known"


@dataclass(frozen=True, slots=True)
class _Content:
    """What one file holds, of the processes that are ranks."""

    work: Work  # devices numbered within the job, where the file tells, else within the machine
    calls: Calls
    annotations: Annotations
    waits: Records
    records: Records
    rank_of: Mapping[int, int]  # by process

    def ranks(self, process: Int64) -> Int64:
        """The rank of each process, ABSENT where it is none."""
        distinct, inverse = np.unique(process, return_inverse=True)
        found = np.array([self.rank_of.get(one, ABSENT) for one in distinct.tolist()], np.int64)
        return found[inverse] if len(distinct) else process


def read_nsight(
    path: Path, *, rank: int = 0, communication: tuple[str, ...] = (), beside: Programs = MappingProxyType({})
) -> Evidence:
    """Read one export.

    Args:
        path: The file.
        rank: Of its only process. Of several, n at once, it is which file of the job this is: its ranks begin at n times
            that number.
        communication: Patterns for more kernels that communicate, as for `recognise`.
        beside: Programs found elsewhere; an export comes without any.

    Returns:
        The trace of all processes in it, and the programs that they executed.

    Raises:
        TraceflowError: TF103 when the file is damaged, TF104 when nothing was recorded in it.
    """
    count = Count()
    with opened(path) as tables:
        names = Names(tables)
        content = _content(tables, names, rank, count)
        about = _About.of(tables, names, path)
    if not len(content.work.start_ns) + len(content.calls.start_ns) + len(content.annotations.start_ns):
        why = "it holds neither work of devices nor calls nor ranges"
        raise TraceflowError("TF104", f"cannot use {path}", why, "profile with --trace=cuda,nvtx")
    return _evidence(content, names, about, count, communication, beside)


@dataclass(frozen=True, slots=True)
class _About:
    """What the file says of the whole."""

    source: str
    host: str | None
    epoch_ns: int | None
    metadata: Mapping[str, str]
    threads: Mapping[int, str]

    @classmethod
    def of(cls, tables: Tables, names: Names, path: Path) -> _About:
        """Read what is there."""
        start = tables.integers("TARGET_INFO_SESSION_START_TIME", ("utcEpochNs",))["utcEpochNs"]
        system = "TARGET_INFO_SYSTEM_ENV"
        said = dict(zip(tables.texts(system, "name").tolist(), tables.texts(system, "value").tolist(), strict=True))
        units = tables.integers("TARGET_INFO_GPU", ("smCount", "totalMemory"))
        gpus = [name for name in tables.texts("TARGET_INFO_GPU", "name").tolist()[:1] if name]
        told = {"device": gpus[0]} if gpus else {}
        for key, column in (("device_units", units["smCount"]), ("device_memory", units["totalMemory"])):
            if len(column) and column[0] > 0:
                told[key] = str(column[0])
        known = len(start) and 0 < start[0] < 2**62
        numbered = tables.integers("ThreadNames", ("globalTid", "nameId"))
        pairs = zip(numbered["globalTid"].tolist(), numbered["nameId"].tolist(), strict=True)
        threads = {thread: name for thread, number in pairs if (name := names.text(number))}
        epoch_ns = int(start[0]) if known else None
        return cls(path.name, said.get("Hostname"), epoch_ns, {"device_vendor": "Nvidia", **told}, threads)


def _content(tables: Tables, names: Names, rank: int, count: Count) -> _Content:
    """Everything in the file, without processes that did nothing on a device where others did."""
    work, calls = work_of(tables, names, count), calls_of(tables, names, count)
    annotations = annotations_of(tables, names, count)
    work = replace(work, process=_of_only_process(work.process, calls))
    waits, records = (
        replace(rows, process=_of_only_process(rows.process, calls))
        for rows in (waits_of(tables), recorded_events_of(tables))
    )
    gpu_of = _gpus(tables)
    gpu = _numbered(work.process, work.device, gpu_of)
    processes = _in_order(work, gpu, calls, annotations)
    base = rank * len(processes)
    rank_of = {process: base + at for at, process in enumerate(processes)}
    mine = np.array(processes, np.int64)
    parts = [
        (rows, np.isin(process, mine))
        for rows, process in (
            (calls, process_of(calls.thread)),
            (annotations, process_of(annotations.thread)),
        )
    ]
    count.drop("of a process without work on a device", sum(int((~kept).sum()) for _, kept in parts))
    job = _in_job(tables)
    device = np.array([job.get(one, one) for one in gpu.tolist()], np.int64)
    waiting = _numbered(waits.process, waits.device, gpu_of)
    waits = replace(waits, device=np.array([job.get(one, one) for one in waiting.tolist()], np.int64))
    return _Content(
        replace(work, device=device),
        taken(calls, parts[0][1]),
        taken(annotations, parts[1][1]),
        waits,
        records,
        rank_of,
    )


def _of_only_process(process: Int64, calls: Calls) -> Int64:
    """Processes as told; where older exports do not tell, that of the calls, if it is one, else they are one."""
    callers = np.unique(process_of(calls.thread))
    return np.where(process == UNKNOWN, callers[0] if len(callers) == 1 else 0, process)


def _gpus(tables: Tables) -> dict[tuple[int, int], int]:
    """Number of a device within the machine, by the number of its process and its number within that."""
    found = tables.integers("TARGET_INFO_CUDA_DEVICE", ("pid", "cudaId", "gpuId"))
    rows = zip(*(found[column].tolist() for column in ("pid", "cudaId", "gpuId")), strict=True)
    return {(pid, device): gpu for pid, device, gpu in rows if 0 <= gpu < 2**31}


def _in_job(tables: Tables) -> dict[int, int]:
    """Number of a device within the job, by its number within the machine, as XLA tells it."""
    numbers = tables.integers("TARGET_INFO_NVTX_CUDA_DEVICE", ("deviceId",))["deviceId"]
    names = tables.texts("TARGET_INFO_NVTX_CUDA_DEVICE", "name")
    pairs = ((number, _GLOBAL.match(name or "")) for number, name in zip(numbers.tolist(), names, strict=True))
    return {number: int(found[1]) for number, found in pairs if found}


def _numbered(process: Int64, device: Int64, gpu_of: Mapping[tuple[int, int], int]) -> Int64:
    """Devices by their number within the machine."""
    if not len(device):
        return device
    distinct, inverse = np.unique(np.column_stack((process & _PID, device)), axis=0, return_inverse=True)
    found = np.array([gpu_of.get((pid, one), one) for pid, one in distinct.tolist()], np.int64)
    return found[inverse.ravel()]


def _in_order(work: Work, gpu: Int64, calls: Calls, annotations: Annotations) -> list[int]:
    """The processes that worked on devices, by the first device of each; without any, all."""
    if not len(work.process):
        everyone = np.concatenate((process_of(calls.thread), process_of(annotations.thread)))
        return [int(process) for process in np.unique(everyone)]
    first = {process: gpu[work.process == process].min() for process in np.unique(work.process).tolist()}
    return sorted(first, key=lambda process: (first[process], process))


def _evidence(
    content: _Content, names: Names, about: _About, count: Count, communication: tuple[str, ...], beside: Programs
) -> Evidence:
    """Relate the rows to one another."""
    work, calls, annotations = content.work, content.calls, content.annotations
    texts = np.array(list(names.codes), object)
    call = call_of_work(work, calls)
    executed = executed_of(work, calls, call, annotations, texts)
    programs = _programs(executed, beside)
    hlo, of_instruction = _hlo(executed, programs)
    kind = _work_kinds(work, texts, communication)
    untold = kind[executed.row] == ABSENT
    kind[executed.row[untold]] = of_instruction[untold]
    kind[kind == ABSENT] = Kind.COMPUTE
    kept_calls, kept_ranges, steps = _host_rows(calls, annotations, texts, count)
    rows = _Rows(work, taken(calls, kept_calls), taken(annotations, kept_ranges))
    events, lanes = _events(rows, content, kind, texts, about)
    launched = np.full(len(calls.start_ns), ABSENT, np.int64)
    launched[kept_calls] = len(work.start_ns) + np.arange(int(kept_calls.sum()))
    talking, groups, untold_calls = _communications(
        content, kind, call, executed, hlo, programs, names, texts, communication
    )
    waiting = content.ranks(content.waits.process)
    copies = np.flatnonzero(work.copy & (work.size_bytes >= 0))
    trace = Trace(
        events=events,
        lanes=lanes,
        strings=tuple(names.codes),
        groups=groups,
        communications=talking,
        syncs=syncs_of(content.waits, content.records, waiting, content.waits.device),
        flows=empty(Flows),
        hlo=hlo,
        launches=_launches(executed, content, calls, launched),
        marks=_marks(annotations, steps, content),
        ranks=tuple(Rank(one, about.host, None, about.source) for one in sorted(content.rank_of.values())),
        epoch_ns=about.epoch_ns,
        format="nsight",
        tally=Tally(count.read, len(events), {}, dict(count.dropped), _notes(content, untold_calls)),
        metadata=about.metadata,
        copies=Copies(copies.astype(np.int32), work.size_bytes[copies]),
    )
    return Evidence(canonical(trace), programs)


def _programs(executed: Executed, beside: Programs) -> dict[int, HloModule]:
    """The programs that were executed, of those found elsewhere: of the same name, with all instructions that ran."""
    ran: dict[tuple[int, str], set[str]] = {}
    for program, name, instruction in zip(
        executed.program.tolist(), executed.module, executed.instruction, strict=True
    ):
        ran.setdefault((program, name), set()).add(instruction)
    found: dict[int, HloModule] = {}
    for (program, name), instructions in ran.items():
        namesakes = {key: module for key, module in beside.items() if module.name == name}
        found |= executed_among(namesakes, {program: instructions})
    return found


def _hlo(executed: Executed, programs: Programs) -> tuple[HloEvents, Int8]:
    """Rows of instructions, and what executing each of them is."""
    places = {key: {name: row for row, name in enumerate(of.instruction_name)} for key, of in programs.items()}

    @cache
    def told(program: int, name: str) -> tuple[int, Kind]:
        if program not in programs:
            return ABSENT, kind_of(operation_of_name(name))
        row = places[program][name]
        return row, kind_of_instruction(programs[program], row)

    pairs = zip(executed.program.tolist(), executed.instruction, strict=True)
    found = np.array([told(*pair) for pair in pairs], np.int64).reshape(-1, 2)
    hlo = HloEvents(executed.row.astype(np.int32), executed.program, found[:, 0].astype(np.int32), executed.run)
    return hlo, found[:, 1].astype(np.int8)


def _work_kinds(work: Work, texts: Text, communication: tuple[str, ...]) -> Int8:
    """What kernels are by their names; ABSENT where these do not tell."""
    named = [Kind.COMMUNICATION if recognise(text, communication) else ABSENT for text in texts]
    return np.where(work.copy, Kind.COPY, np.array(named, np.int8)[work.name]).astype(np.int8)


@dataclass(frozen=True, slots=True)
class _Rows:
    """What becomes events, in this order."""

    work: Work
    calls: Calls
    annotations: Annotations


def _host_rows(calls: Calls, annotations: Annotations, texts: Text, count: Count) -> tuple[Bool, Bool, Int64]:
    """Which calls and which ranges are events, and the step of each range, ABSENT where it is none."""
    polls = np.array([bool(_POLLS.match(text)) for text in texts], bool)[calls.name]
    works = np.concatenate((calls.thread[~polls], annotations.thread))
    idle = polls & ~np.isin(calls.thread, works)
    matched = [_STEP.match(text.partition(":")[2] if text.startswith("TSL:") else text) for text in texts]
    step = np.array([int(found[1]) if found else ABSENT for found in matched], np.int64)[annotations.name]
    count.drop("polling", idle.sum())
    count.drop("step annotation, kept as a mark", (step >= 0).sum())
    return ~idle, step < 0, step


def _events(rows: _Rows, content: _Content, kind: Int8, texts: Text, about: _About) -> tuple[Events, Lanes]:
    work, calls, ranges = rows.work, rows.calls, rows.annotations
    waits = np.array([bool(WAITS.match(text)) for text in texts], bool)
    on_host = np.array([waits_on_host(text) for text in texts], bool)
    lane, lanes = _lanes(rows, content, about)
    events = Events(
        np.concatenate((work.start_ns, calls.start_ns, ranges.start_ns)),
        np.concatenate((work.end_ns, calls.end_ns, ranges.end_ns)),
        lane,
        np.concatenate((work.name, calls.name, ranges.name)),
        np.concatenate(
            (
                kind,
                np.where(waits[calls.name], Kind.WAIT, Kind.CALL),
                np.where(on_host[ranges.name], Kind.WAIT, Kind.HOST),
            )
        ).astype(np.int8),
        np.concatenate((work.correlation, calls.correlation, np.full(len(ranges.name), ABSENT, np.int64))),
    )
    return events, lanes


def _lanes(rows: _Rows, content: _Content, about: _About) -> tuple[Int32, Lanes]:
    """The lane of each event: a stream of a device, or a thread."""
    work, thread = rows.work, np.concatenate((rows.calls.thread, rows.annotations.thread))
    streams = np.column_stack((content.ranks(work.process), work.device, work.stream)).reshape(-1, 3)
    stream, of_stream = np.unique(streams, axis=0, return_inverse=True)
    threads, of_thread = np.unique(thread, return_inverse=True)
    lane = np.concatenate((of_stream.ravel(), len(stream) + of_thread)).astype(np.int32)
    named = [(about.threads.get(one, ""), str(number_of_thread(one))) for one in threads.tolist()]
    lanes = Lanes(
        np.concatenate((stream[:, 0], content.ranks(process_of(threads)))).astype(np.int32),
        np.concatenate((stream[:, 1], np.full(len(threads), ABSENT))).astype(np.int32),
        np.repeat([LaneKind.STREAM, LaneKind.THREAD], [len(stream), len(threads)]).astype(np.int8),
        np.concatenate((stream[:, 2], np.full(len(threads), ABSENT))),
        (*map(str, stream[:, 2].tolist()), *("/".join(filter(None, pair)) for pair in named)),
    )
    return lane, lanes


def _launches(executed: Executed, content: _Content, calls: Calls, launched: Int64) -> Launches:
    """The first call of each run on each device."""
    order = np.lexsort((calls.start_ns[executed.call], executed.run, executed.program))
    device, rank = content.work.device[executed.row], content.ranks(content.work.process[executed.row])
    keys = np.column_stack((executed.program, executed.run, rank, device))[order].reshape(-1, 4)
    runs, first = np.unique(keys, axis=0, return_index=True)
    event = launched[executed.call[order[first]]]
    runs, event = runs[event >= 0], event[event >= 0]
    return Launches(
        runs[:, 0], runs[:, 1], runs[:, 2].astype(np.int32), runs[:, 3].astype(np.int32), event.astype(np.int32)
    )


def _marks(annotations: Annotations, step: Int64, content: _Content) -> Marks:
    rows = np.flatnonzero(step >= 0)
    rank = content.ranks(process_of(annotations.thread[rows])).astype(np.int32)
    return Marks(step[rows], rank, annotations.start_ns[rows], annotations.end_ns[rows])


def _communications(
    content: _Content,
    kind: Int8,
    call: Int64,
    executed: Executed,
    hlo: HloEvents,
    programs: Programs,
    names: Names,
    texts: Text,
    patterns: tuple[str, ...],
) -> tuple[Communications, tuple[Group, ...], int]:
    """What is known of collectives: by the program, else by NCCL's ranges; and of how many nothing is known."""
    work = content.work
    compiled, groups = _xla_communication.communications(_talking(content, kind, executed, hlo), programs, names.codes)
    row = np.setdiff1d(np.flatnonzero(kind == Kind.COMMUNICATION), executed.row)
    launched = row[call[row] >= 0]
    found, sizes = stated_of(content.calls, call[launched], content.annotations, texts)
    said = dict(zip(launched.tolist(), found, strict=True))
    told = [said.get(at) for at in row.tolist()]
    places = {one: len(groups) + at for at, one in enumerate(sorted({s.communicator for s in told if s}))}
    absent = np.full(len(row), ABSENT, np.int64)
    operation = [_operation(texts[code], patterns) for code in work.name[row].tolist()]
    group = np.array([places[one.communicator] if one else ABSENT for one in told], np.int32)
    sent = [
        _sent(one.size_bytes, sizes, one.communicator, what) if one else ABSENT
        for one, what in zip(told, operation, strict=True)
    ]
    stated = Communications(
        row.astype(np.int32),
        np.array([names.code(text) for text in operation], np.int32),
        group,
        np.zeros(len(row), np.int64),
        absent,
        content.ranks(work.process[row]),
        np.array(sent, np.int64),
        absent,
        absent,
        absent.astype(np.int32),
        absent.astype(np.int32),
    )
    known = (Group(f"NCCL {one:#x}", (), sizes.get(one, ABSENT)) for one in places)
    return _both(compiled, stated), (*groups, *known), int((group < 0).sum())


def _operation(kernel: str, patterns: tuple[str, ...]) -> str:
    recognised = recognise(kernel, patterns)
    return recognised[1] if recognised else "unknown"


def _sent(size_bytes: int, sizes: Mapping[int, int], communicator: int, operation: str) -> int:
    """Bytes that a participant puts in: NCCL tells what comes out of a reduce-scatter."""
    if operation != "reduce_scatter" or size_bytes < 0:
        return size_bytes
    return size_bytes * sizes[communicator] if communicator in sizes else ABSENT


def _talking(content: _Content, kind: Int8, executed: Executed, hlo: HloEvents) -> _xla_communication.Executed:
    """The executed instructions that communicate."""
    device = content.work.device[executed.row]
    rows = np.flatnonzero(kind[executed.row] == Kind.COMMUNICATION)
    everyone = {
        int(program): tuple(np.unique(device[executed.program == program]).tolist())
        for program in np.unique(executed.program[rows])
    }
    return _xla_communication.Executed(
        hlo.event[rows],
        content.work.start_ns[executed.row[rows]],
        device[rows],
        executed.program[rows],
        executed.run[rows],
        hlo.instruction[rows],
        executed.instruction[rows].tolist(),
        everyone,
    )


def _both(one: Communications, other: Communications) -> Communications:
    columns = (np.concatenate((getattr(one, name), getattr(other, name))) for name in Communications.__slots__)
    return Communications(*columns)


def _notes(content: _Content, untold: int) -> tuple[Note, ...]:
    """What the export could not tell."""
    notes = []
    if len(content.rank_of) > 1:
        notes.append(Note("TF318", _RANKS))
    if untold:
        notes.append(Note("TF318", _UNTOLD.format(untold), ("/result/collectives",)))
    if len(content.work.start_ns) and not len(content.calls.start_ns):
        notes.append(Note("TF318", _NO_CALLS, ("/result",)))
    return tuple(notes)
