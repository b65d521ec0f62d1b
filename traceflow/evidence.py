"""Evidence of one run: read from whatever was recorded, told apart by content."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from glob import has_magic
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from traceflow.errors import TraceflowError
from traceflow.program.dump import (
    add_program,
    is_program,
    looks_like_hlo_text,
    programs_among,
    read_program,
    same_program,
)
from traceflow.result import Note, Tally
from traceflow.trace.canonical import merge
from traceflow.trace.communication_names import usable
from traceflow.trace.file_ranks import file_ranks
from traceflow.trace.host_noise import without_host_noise
from traceflow.trace.kept import FOLDER
from traceflow.trace.recorder_dump import dump_beside

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from traceflow.intent.routing import Routing
    from traceflow.program.module import HloModule, Programs
    from traceflow.program.stated import Stated
    from traceflow.trace.model import Trace
    from traceflow.trace.operations import OperationTable

_HEAD_BYTES = 1 << 18  # enough to reach the first events of a JSON trace behind its metadata
_GZIP, _PARQUET, _SQLITE = b"\x1f\x8b", b"PAR1", b"SQLite format 3\0"
_RUNS = "profile"  # TensorBoard: plugins/profile/<run>/<host>.xplane.pb
# An XSpace begins with a plane (field 1), and that with its number, if it has one, and its name.
_XSPACE = re.compile(rb"\n[\x80-\xff]*[\x00-\x7f](?:\x08[\x80-\xff]*[\x00-\x7f])?\x12.(?:[/#]|Task )", re.DOTALL)
_REPORTS = (".nsys-rep", ".qdrep")
_TRACE_NAME = re.compile(r"\.(json|pb)(\.gz)?$|\.sqlite$")
_FORMATS = "Kineto JSON, XSpace (.xplane.pb), trace-event JSON, Nsight Systems' SQLite and what PyTorch tells of memory are read"


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the devices and the host did, and the compiled programs that came with it, or lie beside it.

    Where there are programs alone, the trace is empty, and its format is `programs`. `operations` is the table of operations that the trace was made of, where it was made of one.
    """

    trace: Trace
    programs: Programs
    operations: OperationTable | None = None
    stated: tuple[Stated, ...] = ()
    stages: tuple[Path, ...] = ()  # files of programs before they were compiled, read when they are asked for
    audits: tuple[Path, ...] = ()  # of PyTorch's sharding, one file for each rank, likewise
    routing: Routing | None = None  # how tokens went to experts, where the program told


class _Format(Enum):
    KINETO = "Kineto JSON"
    XSPACE = "XSpace"
    CHROME = "trace-event JSON"
    MEMORY = "PyTorch's memory timeline or snapshot"
    NSIGHT = "SQLite of Nsight Systems"
    NSIGHT_JAX = "ranges of nsys-jax"


def read(path: Path | str, *, communication: Iterable[str] = (), executor: Executor | None = None) -> Evidence:
    """Read one trace, or the traces of several ranks as one.

    A folder is searched with all folders in it; what is no trace is passed over, and so is the JSON that the JAX
    profiler writes beside an XSpace of the same name. Kineto files say which rank they are; of others the rank is
    that of the file's name, of the manifest or of the folder, else the next one that is free, in order of paths.
    Compiled programs in the folder, such as XLA's dumps, are read too, and serve where traces came without theirs.

    Args:
        path: A file, be it an operation table or a program, a folder such as a capture or a TensorBoard log directory, or a
            pattern such as ``"run/*.json"``.
        communication: Regular expressions for more kernels that communicate.
        executor: Who reads the traces of several ranks, one task each; see :mod:`traceflow.executors`.

    Returns:
        One canonical trace, and the compiled programs by the keys that it uses.

    Raises:
        TraceflowError: TF101 where nothing exists or may not be read, TF102 for an empty file, TF103 or TF105 for a
            damaged one, TF104 for a trace without events, TF106 when a folder or a pattern holds no trace, TF107
            for another format, TF108 when two files claim one rank, TF112 for what is no regular expression, TF127 where
            the executor ended, TF129 when files are of two runs.
    """
    if path == "":  # which would be this folder
        raise TraceflowError("TF101", "cannot read an input", "its name is empty", "name a file or a folder")
    given, patterns = Path(path), usable(communication)
    try:
        if given.is_file():
            return _read_file(given, patterns)
        files = _found(given)
        programs, notes = programs_among(files)
        audits = _audits(files)
        traces = _traces(given, files, needed=not programs and not audits)
        if not traces:
            return replace(_untraced(programs.values(), notes), stages=_stages(files), audits=audits)
        _check_one_recording(traces)
        read_one = partial(_read_one, communication=patterns, beside=programs)
        memories = [trace for trace in traces if trace[1] is _Format.MEMORY]
        parts = _read_all([trace for trace in traces if trace not in memories], read_one, executor)
        whole = _working(_merged(_with_memories(parts, _read_all(memories, read_one, executor))))
        whole = _with_programs(whole, programs, notes)
        whole = _with_notes(whole, _incompleteness(files))
        return replace(whole, stated=_stated(files), stages=_stages(files), audits=audits, routing=_routing(files))
    except OSError as error:
        why = error.strerror or "it cannot be opened"
        raise TraceflowError("TF101", f"cannot read {error.filename or given}", why, "check its permissions") from error


def _read_file(file: Path, communication: tuple[str, ...]) -> Evidence:
    form = _format_of(file)
    if form is not _Format.KINETO and (other := _without_trace(file, form)):
        return other
    form = form or _refuse(file)
    return _working(_read_one(file, form, *file_ranks([file]), communication=communication, beside={}))


def _without_trace(file: Path, form: _Format | None) -> Evidence | None:
    """What a file holds that is no trace: a table of operations, a program or an audit."""
    from traceflow.program.torch_audit import is_torch_audit
    from traceflow.trace.operations import is_operation_table

    if form is not _Format.NSIGHT_JAX and is_operation_table(file):
        return _operations(file)
    if is_program(file) or looks_like_hlo_text((_head(file) or b"").decode(errors="replace")):
        return _untraced([read_program(file)])
    return replace(_untraced([]), audits=(file,)) if is_torch_audit(file) else None


def files_of_ranks(path: Path) -> list[tuple[Path, int]]:
    """Files of a folder or a pattern, with the rank of each where the file does not say, if they are Kineto's alone.

    Returns:
        Nothing where there are traces of other formats, programs or audits as well, or fewer than two traces: `read`
        takes them together.

    Raises:
        TraceflowError: As `read`.
    """
    if path.is_file():
        return []
    files = _found(path)
    if any(is_program(file) for file in files) or _audits(files) or _incompleteness(files):
        return []
    traces = _traces(path, files, needed=True)
    _check_one_recording(traces)
    if len(traces) < 2 or any(form is not _Format.KINETO for _, form in traces):
        return []
    named = [file for file, _ in traces]
    return list(zip(named, file_ranks(named), strict=True))


def read_rank(file: Path, rank: int, communication: tuple[str, ...]) -> Trace:
    """Read one of `files_of_ranks`.

    Raises:
        TraceflowError: As `read`.
    """
    return _read_one(file, _Format.KINETO, rank, communication=communication, beside={}).trace


def in_order_of_rank(files: Sequence[Path], ranks: Sequence[int]) -> list[int]:
    """Places of files of one rank each, by their ranks.

    Raises:
        TraceflowError: TF108 where two claim one.
    """
    _check_claims(zip(files, ranks, strict=True))
    return sorted(range(len(ranks)), key=lambda at: ranks[at])


def _check_claims(claims: Iterable[tuple[Path, int]]) -> None:
    """Refuse two files of one rank."""
    claimed: dict[int, Path] = {}
    for file, rank in claims:
        if claimed.setdefault(rank, file) is not file:
            raise _same_rank(claimed[rank], file, f"both claim rank {rank}", "leave one out, or correct its rank")


def _stages(files: Iterable[Path]) -> tuple[Path, ...]:
    return tuple(file for file in files if is_program(file))


def _audits(files: Iterable[Path]) -> tuple[Path, ...]:
    """The audits of PyTorch's sharding."""
    files = [file for file in files if file.suffix == ".json"]
    if not files:
        return ()
    from traceflow.program.torch_audit import torch_audits

    return torch_audits(files)


def _stated(files: Iterable[Path]) -> tuple[Stated, ...]:
    """What JAX says of the functions in a capture."""
    folders = sorted({file.parent for file in files if file.parent.name == "program"})
    if not folders:
        return ()
    from traceflow.program.stated import read_stated

    return tuple(one for folder in folders for one in read_stated(folder))


def _routing(files: Iterable[Path]) -> Routing | None:
    """The record of how tokens went to experts."""
    files = [file for file in files if file.suffix == ".npz"]
    if not files:
        return None
    from traceflow.intent.routing import read_routing

    return read_routing(files)


def _read_all(
    traces: Sequence[tuple[Path, _Format]],
    read_one: Callable[[Path, _Format, int], Evidence],
    executor: Executor | None,
) -> list[tuple[Path, Evidence]]:
    from traceflow.executors import each, worth

    files = [file for file, _ in traces]
    tasks = [(file, form, rank) for (file, form), rank in zip(traces, file_ranks(files), strict=True)]
    return list(zip(files, each(read_one, tasks, worth(files, executor)), strict=True))


def _with_memories(
    parts: Sequence[tuple[Path, Evidence]], memories: Sequence[tuple[Path, Evidence]]
) -> list[tuple[Path, Evidence]]:
    """Traces with what else is known of the memory of the same rank; memory of ranks without a trace follows."""
    joined = list(parts)
    if not memories:
        return joined
    from traceflow.trace.torch_memory import with_memory

    for file, memory in memories:
        rank = memory.trace.ranks[0].rank
        place = next((i for i, (_, part) in enumerate(joined) if part.trace.ranks[0].rank == rank), None)
        if place is None:
            joined.append((file, memory))
        else:
            of, part = joined[place]
            joined[place] = of, replace(part, trace=with_memory(part.trace, memory.trace))
    return joined


def _operations(file: Path) -> Evidence:
    from traceflow.trace.operation_trace import operation_trace
    from traceflow.trace.operations import read_operations

    table = read_operations(file)
    return Evidence(operation_trace(table, file.name), {}, table)


def _untraced(modules: Iterable[HloModule], notes: tuple[Note, ...] = ()) -> Evidence:
    from traceflow.trace.untraced import untraced

    return _with_programs(Evidence(untraced(), {}), {module.program_id: module for module in modules}, notes)


def _with_programs(evidence: Evidence, programs: Programs, notes: tuple[Note, ...]) -> Evidence:
    """Evidence with the programs of files, those that are there already left out, and with remarks on them."""
    known = dict(evidence.programs)
    for key, module in programs.items():
        add_program(known, module, key)
    return replace(_with_notes(evidence, notes), programs=known)


def _with_notes(evidence: Evidence, notes: tuple[Note, ...]) -> Evidence:
    tally = evidence.trace.tally + Tally(notes=notes)
    return replace(evidence, trace=replace(evidence.trace, tally=tally))


def _incompleteness(files: Iterable[Path]) -> tuple[Note, ...]:
    """What manifests say of recordings that did not end well."""
    from traceflow.capture import incompleteness, is_manifest

    told = (incompleteness(folder) for folder in sorted({file.parent for file in files if is_manifest(file)}))
    return tuple(Note("TF319", f"the recording is not complete: {why}", ("/result",)) for why in told if why)


def _working(evidence: Evidence) -> Evidence:
    return replace(evidence, trace=without_host_noise(evidence.trace))


def _found(given: Path) -> list[Path]:
    """The files below a folder, or those that a pattern names."""
    if given.is_dir():
        return sorted(file for file in given.rglob("*") if _is_meant(file))
    if has_magic(str(given)):
        named = Path(given.anchor).glob(str(given.relative_to(given.anchor)))
        hidden = given.name.startswith(".")  # as a shell takes it
        return sorted({file for path in named for file in _below(path, hidden=hidden)})
    raise TraceflowError("TF101", f"cannot read {given}", "no such file or folder", "check the path")


def _below(path: Path, *, hidden: bool) -> list[Path]:
    if path.is_dir():
        return [file for file in path.rglob("*") if _is_meant(file)]
    return [path] if hidden or _is_meant(path) else []


def _is_meant(file: Path) -> bool:
    """Whether it is a file, no draft that somebody was writing, nor what a file system or we keep beside one."""
    return file.is_file() and not file.name.startswith(".") and file.parent.name != FOLDER


def _traces(given: Path, files: Sequence[Path], *, needed: bool) -> list[tuple[Path, _Format]]:
    """The traces among files, each once; that there is none is an error where one is needed."""
    if not files:
        why = "the folder is empty" if given.is_dir() else "nothing matches the pattern"
        raise TraceflowError("TF106", f"nothing to read in {given}", why, "give a trace, or a folder of traces")
    others = [file for file in files if not is_program(file)]
    for file in others:
        if _TRACE_NAME.search(file.name) and not _head(file):
            _refuse(file)  # a rank whose trace is empty or damaged must not vanish without a word
    forms = [(file, form) for file in others if (form := _format_of(file))]
    if needed and not forms:
        why = f"none of its {len(files)} files is a trace" if len(files) > 1 else f"{files[0].name} is no trace"
        raise TraceflowError("TF106", f"nothing to read in {given}", why, _FORMATS)
    twins = {twin for file, form in forms if form is _Format.XSPACE for twin in _twins(file)}
    return [(file, form) for file, form in forms if form is not _Format.CHROME or _without_suffix(file) not in twins]


def _twins(space: Path) -> tuple[Path, Path]:
    """What the JAX profiler writes beside an XSpace: the same trace as JSON, and again for Perfetto."""
    return _without_suffix(space), space.with_name("perfetto")


def _without_suffix(file: Path) -> Path:
    return file.with_name(re.sub(r"[._](trace|xplane)\.(json|pb)(\.gz)?$", "", file.name))


def _check_one_recording(traces: Sequence[tuple[Path, _Format]]) -> None:
    """Refuse a log directory with several recordings: each of them has a rank 0."""
    runs = {file.parent.name: file.parent for file, _ in traces if file.parent.parent.name == _RUNS}
    if len(runs) > 1:
        one, other = list(runs.values())[:2]
        raise _same_rank(one, other, "they are two recordings of the same ranks", "give one of the folders")


def _same_rank(one: Path, other: Path, why: str, hint: str) -> TraceflowError:
    return TraceflowError("TF108", f"cannot read {one} and {other} together", why, hint)


def _read_one(file: Path, form: _Format, rank: int, *, communication: tuple[str, ...], beside: Programs) -> Evidence:
    from traceflow.trace.absurd import without_absurd

    evidence = _read_as(file, form, rank, communication=communication, beside=beside)
    return replace(evidence, trace=without_absurd(evidence.trace))


def _read_as(file: Path, form: _Format, rank: int, *, communication: tuple[str, ...], beside: Programs) -> Evidence:
    if form is _Format.XSPACE:
        from traceflow.trace.xspace import read_xspace

        return read_xspace(file, rank=rank, communication=communication, beside=beside)
    if form is _Format.CHROME:
        from traceflow.trace.chrome import read_chrome

        return read_chrome(file, rank=rank, communication=communication, beside=beside)
    if form is _Format.NSIGHT_JAX:
        from traceflow.trace.nsight_jax import read_nsight_jax

        return read_nsight_jax(file, rank=rank, communication=communication, beside=beside)
    if form is _Format.NSIGHT:
        from traceflow.trace.nsight import read_nsight

        return read_nsight(file, rank=rank, communication=communication, beside=beside)
    if form is _Format.MEMORY:
        from traceflow.trace.torch_memory import read_torch_memory

        return Evidence(read_torch_memory(file, rank=rank), {})
    return Evidence(_kineto(file, communication), {})


def _kineto(file: Path, communication: tuple[str, ...]) -> Trace:
    from traceflow.trace.kineto import read_kineto

    trace = read_kineto(file, communication=communication)
    if dump_beside(file) is None:
        return trace
    from traceflow.trace.flight_recorder import with_recording_beside

    return with_recording_beside(trace, file)


def _merged(parts: Sequence[tuple[Path, Evidence]]) -> Evidence:
    """One trace of all ranks, in order of rank."""
    _check_claims((file, rank.rank) for file, part in parts for rank in part.trace.ranks)
    from traceflow.trace.one_run import signs_of_several_runs

    signs = signs_of_several_runs([(file, part.trace) for file, part in parts])
    programs: dict[int, HloModule] = {}
    ordered = sorted((part for _, part in parts), key=lambda part: part.trace.ranks[0].rank)
    traces = [_rekeyed(part.trace, _take_in(part.programs, programs)) for part in ordered]
    return _with_notes(Evidence(merge(traces), programs), signs)


def _take_in(some: Programs, programs: dict[int, HloModule]) -> dict[int, int]:
    """Add the programs of one process to those of others; new keys for those whose own are another's."""
    moved = {}
    for key, module in some.items():
        free = key
        while free in programs and not same_program(programs[free], module):
            free = (free + 1) % 2**63
        programs[free] = module
        if free != key:
            moved[key] = free
    return moved


def _rekeyed(trace: Trace, moved: Mapping[int, int]) -> Trace:
    if not moved:
        return trace
    columns = (trace.hlo.program, trace.launches.program)
    hlo, launched = (np.array([moved.get(int(key), int(key)) for key in column], np.int64) for column in columns)
    return replace(trace, hlo=replace(trace.hlo, program=hlo), launches=replace(trace.launches, program=launched))


def _format_of(file: Path) -> _Format | None:
    """The format of a file by its first bytes, None where it is none that is read."""
    head = _head(file) or b""
    if _XSPACE.match(head):
        return _Format.XSPACE
    if head.startswith((_PARQUET, _SQLITE)):
        return _tables_of(file, head)
    is_json = head.lstrip().startswith((b"{", b"["))
    if is_json:
        from traceflow.trace.kineto import looks_like_kineto

        if looks_like_kineto(head):
            return _Format.KINETO
    from traceflow.trace.torch_memory import looks_like_torch_memory

    if looks_like_torch_memory(head):
        return _Format.MEMORY
    return _Format.CHROME if is_json and (b'"traceEvents"' in head or _is_event_list(head)) else None


def _tables_of(file: Path, head: bytes) -> _Format | None:
    """What the tables of a file are, by their columns and names."""
    if head.startswith(_PARQUET):
        from traceflow.trace.nsight_jax import looks_like_nsight_jax

        return _Format.NSIGHT_JAX if looks_like_nsight_jax(file) else None
    from traceflow.trace.nsight import looks_like_nsight

    return _Format.NSIGHT if looks_like_nsight(file) else None


def _is_event_list(head: bytes) -> bool:
    return head.lstrip().startswith(b"[") and b'"ph"' in head


def _head(file: Path) -> bytes | None:
    """The first bytes of a file's content, unpacked; None where its compression is damaged."""
    with file.open("rb") as raw:
        head = raw.read(_HEAD_BYTES)
    try:
        return zlib.decompressobj(wbits=31).decompress(head, _HEAD_BYTES) if head.startswith(_GZIP) else head
    except zlib.error:
        return None


def _refuse(file: Path) -> NoReturn:
    """Say why a file cannot be read."""
    what, head = f"cannot read {file}", _head(file)
    if head is None:
        raise TraceflowError("TF105", what, "its gzip stream is damaged", "copy the file again")
    if not head:
        raise TraceflowError("TF102", what, "the file is empty", "record again, and let the program end")
    if file.suffix in _REPORTS:
        why, hint = "it is a report of Nsight Systems, whose format is its own", "run nsys export --type sqlite on it"
        raise TraceflowError("TF107", what, why, hint)
    raise TraceflowError("TF107", what, f"it looks like {_resemblance(head)}", _FORMATS)


def _resemblance(head: bytes) -> str:
    """What a file that is no trace seems to be."""
    if head.lstrip().startswith((b"{", b"[")):
        return "JSON without traceEvents"
    if head.startswith(b"\n") and b"\x12" in head[:64]:
        return "a protobuf that is no XSpace"
    return "text" if head[:4096].isascii() and b"\0" not in head[:4096] else "binary data of another kind"
