"""Bad input of every kind that is known from the field, made from one sound recording of three steps.

Each case says in words what is wrong and what becomes of it; docs/input.md holds these words as a table.
"""

from __future__ import annotations

import gzip
import json
import lzma
import os
import pickle
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet
from kineto_builder import KinetoTrace
from xla_files import Event, Line, write, write_chrome, xspace

Trace: TypeAlias = dict[str, Any]
NAMES = {"operator": "aten::mm", "kernel": "gemm_kernel", "last": "second_kernel"}
STEPS = 3


def recording(rank: int = 0, world_size: int = 1, *, steps: int = STEPS, shift_ns: int = 0) -> KinetoTrace:
    """Steps of 1 ms: an operator launches a kernel of 300 us, a copy, and a kernel or an all-reduce of 150 us."""
    trace = KinetoTrace(rank=rank, world_size=world_size)
    for number in range(steps):
        at = shift_ns + number * 1_000_000
        trace.step(number, at, at + 900_000)
        trace.host(NAMES["operator"], at + 1_000, at + 8_000)
        trace.kernel(NAMES["kernel"], at + 9_000, at + 309_000, call=(at + 2_000, at + 5_000))
        trace.copy(at + 310_000, at + 340_000, call=(at + 10_000, at + 12_000))
        if world_size > 1:
            trace.all_reduce(at + 350_000, at + 500_000, call=(at + 20_000, at + 22_000), sequence=number + 1)
        else:
            trace.kernel(NAMES["last"], at + 350_000, at + 500_000, call=(at + 20_000, at + 22_000))
        trace.device_synchronize(at + 30_000, at + 501_000)
    return trace


def sound(folder: Path) -> Path:
    """The recording as it should be."""
    return recording().write(folder / "rank0.pt.trace.json")


@dataclass(frozen=True)
class Case:
    """One kind of bad input."""

    wrong: str  # in words
    becomes: str  # in words
    make: Callable[[Path], Path]
    told: str  # the verdict, or the code of the refusal
    shows: str  # what says so: part of a reason, of a count, of a code, or of the refusal
    same: bool = False  # whether all figures are those of the sound recording


def _text(change: Callable[[str], str]) -> Callable[[Path], Path]:
    """The recording with its text changed."""
    return _bytes(lambda content: change(content.decode()).encode())


def _bytes(change: Callable[[bytes], bytes]) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        file = sound(folder)
        changed = change(content := file.read_bytes())
        assert changed != content
        file.write_bytes(changed)
        return file

    return make


def _named(name: bytes, of: str = "operator") -> Callable[[Path], Path]:
    return _bytes(lambda content: content.replace(NAMES[of].encode(), name))


def _events(change: Callable[[list[Trace]], object]) -> Callable[[Path], Path]:
    """The recording with its events changed."""

    def changed(content: str) -> str:
        trace = json.loads(content)
        change(trace["traceEvents"])
        return json.dumps(trace)

    return _text(changed)


def _one(name: str, **other: Any) -> Callable[[Path], Path]:
    """One event of a name changed; a member that is None is left out."""

    def change(events: list[Trace]) -> None:
        event = [event for event in events if event["name"] == NAMES[name]][-1]
        event.update(other)
        for key in [key for key, value in event.items() if value is None]:
            del event[key]

    return _events(change)


def _each(category: str, change: Callable[[Trace], object]) -> Callable[[Path], Path]:
    return _events(lambda events: [change(event) for event in events if event["cat"] in category.split()])


def _ranks(*which: int, world_size: int) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        for place, rank in enumerate(which):
            recording(rank, world_size).write(folder / f"file{place}.json")
        return folder

    return make


def _number_in_text(spelled: str) -> Callable[[Path], Path]:
    """The duration of the first kernel, spelled so."""
    return _text(lambda text: text.replace('"dur": 300.0', f'"dur": {spelled}', 1))


def _without_marks(events: list[Trace]) -> None:
    events[:] = [event for event in events if "ProfilerStep" not in event["name"]]


def _only_metadata(events: list[Trace]) -> None:
    events[:] = [{"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "ts": 1, "args": {"name": "python"}}]


def _without_header(text: str) -> str:
    trace = json.loads(text)
    del trace["distributedInfo"]
    return json.dumps(trace)


def _two_runs_of_two_sizes(folder: Path) -> Path:
    recording(0, 2).write(folder / "a.json")
    recording(1, 4).write(folder / "b.json")
    return folder


def _two_runs_at_two_times(folder: Path) -> Path:
    recording(0, 2).write(folder / "a.json")
    recording(1, 2, shift_ns=7_200 * 10**9).write(folder / "b.json")
    return folder


def _bare_steps(folder: Path) -> Path:
    file = recording(steps=32).write(folder / "rank0.json")
    trace = json.loads(file.read_text())
    kept = {event["args"]["correlation"] for event in trace["traceEvents"][:20] if "correlation" in event["args"]}
    on_device = {"kernel", "gpu_memcpy"}
    trace["traceEvents"] = [
        event for event in trace["traceEvents"] if event["cat"] not in on_device or event["args"]["correlation"] in kept
    ]
    file.write_text(json.dumps(trace))
    return file


def _launched_before(events: list[Trace]) -> None:
    calls = [event for event in events if event["name"] == "cudaLaunchKernel"]
    events.remove(calls[0])


def _bomb(folder: Path) -> Path:
    """A few hundred kB that unpack to 128 MB."""
    packer = zlib.compressobj(wbits=31)
    pieces = [
        packer.compress(b'{"schemaVersion": 1, "traceEvents": ['),
        *(packer.compress(b" " * 2**20) for _ in range(128)),
    ]
    file = folder / "rank0.json.gz"
    file.write_bytes(b"".join([*pieces, packer.compress(b"]}"), packer.flush()]))
    return file


def _nested(folder: Path) -> Path:
    deep = "[" * 100_000 + "]" * 100_000
    return _text(lambda text: text.replace('"args": {}', f'"args": {{"x": {deep}}}', 1))(folder)


def _link_out_of_the_folder(folder: Path) -> Path:
    secret = folder.parent / f"{folder.name}-secret.json"
    secret.write_text('{"password": "hunter2"}')
    inside = folder / "traces"
    inside.mkdir()
    sound(inside)
    (inside / "rank1.json").symlink_to(secret)
    (inside / "round").symlink_to(inside, target_is_directory=True)
    return inside


class _Imported:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("true",)


def _pickle_with_a_class(folder: Path) -> Path:
    file = folder / "snapshot.pickle"
    file.write_bytes(pickle.dumps({"segments": [], "device_traces": [[_Imported()]]}))
    return file


def _manifest(content: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        sound(folder)
        (folder / "manifest.json").write_text(content)
        return folder

    return make


def _chrome(change: Callable[[str], str], name: str = "a.trace.json") -> Callable[[Path], Path]:
    """A trace of JAX as JSON, with its text changed: ten operations of 1 us."""

    def make(folder: Path) -> Path:
        spans = [{"name": f"op{i}", "ts": 2 * i, "dur": 1} for i in range(10)]
        file = write_chrome(folder / name, {"/host:CPU": {"python": spans}})
        file.write_text(change(file.read_text()))
        return file

    return make


def _packed_bomb(name: str, head: bytes, pack: Callable[[bytes], bytes]) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        (folder / name).write_bytes(pack(head + b" " * (128 << 20)))
        return folder / name

    return make


def _table_of_zeros(folder: Path) -> Path:
    """A table of 20 million rows in a few kB."""
    zeros = pa.array(np.zeros(20_000_000, np.int8))
    columns = ("type", "start", "end", "pp_rank", "dp_rank", "step")
    pyarrow.parquet.write_table(pa.table(dict.fromkeys(columns, zeros)), folder / "a.parquet", compression="zstd")
    return folder / "a.parquet"


def _xspace_saved_as_text(folder: Path) -> Path:
    file = write(
        folder / "a.xplane.pb", xspace({"/host:CPU": [Line("python", [Event(f"f{i}", i, 1) for i in range(9)])]})
    )
    file.write_text(file.read_bytes().decode(errors="replace"))
    return file


def _named_file(name: str, content: bytes) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        (folder / name).write_bytes(content)
        return folder / name

    return make


def _empty_folder(folder: Path) -> Path:
    return folder


_KEPT, _LEFT_OUT, _REFUSED = "kept, figures unchanged", "left out and counted", "refused"

CASES = (
    Case("a backslash in a name that escapes nothing", f"taken as it stands and counted as repaired; {_KEPT}", _named(rb"C:\temp\mm\x"), "good", "taken as it stands", same=True),
    Case("a line end in a name", f"taken as it stands and counted as repaired; {_KEPT}", _named(b"aten\n::mm"), "good", "taken as it stands", same=True),
    Case("control characters in a name", f"taken as they stand and counted as repaired; {_KEPT}; shown as their escapes", _named(b"aten\x01\x1b[2Jmm"), "good", "taken as it stands", same=True),
    Case("bytes that are no UTF-8", f"replaced by U+FFFD and counted as repaired; {_KEPT}", _named(b"aten\xff\xfemm"), "good", "taken as it stands", same=True),
    Case("quotes in a name that nothing escapes", f"{_LEFT_OUT} as damaged, with the place (TF302)", _named(b'a "quoted" name'), "limited", "is no JSON"),
    Case("commas too many", "read as if they were not there", _text(lambda text: text.replace("},\n", "},,\n").replace("}\n]", "},,\n]")), "good", "", same=True),
    Case("an empty object at the end", _LEFT_OUT, _text(lambda text: text.replace("}\n]", "},\n{}\n]")), "good", "empty record", same=True),
    Case("a list that is not closed, as the format allows", "read to its end", _text(lambda text: "[" + text.partition("[\n")[2].rpartition("]")[0]), "good", "", same=True),
    Case("a file that ends early", f"{_REFUSED}: device events come last", _text(lambda text: text[: len(text) // 2]), "TF103", "ends early"),
    Case("gzip that ends early", _REFUSED, _bytes(lambda content: gzip.compress(content)[:-50]), "TF105", "ends early"),
    Case("a key twice in one event", "the last one counts, as for other readers of JSON", _text(lambda text: text.replace('"name": "aten::mm"', '"name": "x", "name": "aten::mm"')), "good", "", same=True),
    Case("an event twice", f"one of them {_LEFT_OUT}", _events(lambda events: events.extend(events[:5])), "good", "exact duplicate", same=True),
    Case("an event without a duration", _LEFT_OUT, _one("kernel", dur=None), "limited", "no duration"),
    Case("a negative duration", _LEFT_OUT, _one("kernel", dur=-5.0), "limited", "no duration"),
    Case("one kernel with 99 % of all time", f"{_LEFT_OUT} (TF320)", _one("last", dur=9e9), "limited", "far out of the recording"),
    Case("one kernel at time 0, hours before the others", f"{_LEFT_OUT} (TF320)", _one("last", ts=0), "limited", "far out of the recording"),
    Case("NaN for a duration", _LEFT_OUT, _number_in_text("NaN"), "limited", "no duration"),
    Case("a number of 400 digits", _LEFT_OUT, _number_in_text("9" * 400), "limited", "no duration"),
    Case("a number of the size 1e300", _LEFT_OUT, _number_in_text("1e300"), "limited", "no duration"),
    Case("events in any order", "sorted", _events(lambda events: events.reverse()), "good", "", same=True),
    Case("numbers of processes as text", "read as numbers", _each("cpu_op cuda_runtime kernel", lambda event: event.update(pid=str(event["pid"]))), "good", "", same=True),
    Case("words for processes", _LEFT_OUT, _each("cpu_op", lambda event: event.update(pid="python")), "limited", "neither thread nor stream"),
    Case("numbers of threads beyond 64 bits", "told apart all the same", _each("cpu_op cuda_runtime user_annotation", lambda event: event.update(tid=2**70 + event["tid"])), "good", "", same=True),
    Case("numbers of streams beyond 64 bits", _LEFT_OUT, _each("kernel", lambda event: event["args"].update(stream=2**70) or event.update(tid=2**70)), "limited", "neither thread nor stream"),
    Case("correlation numbers beyond 32 bits", "read whole", _events(lambda events: [event["args"].update(correlation=event["args"]["correlation"] + 2**40) for event in events if "correlation" in event["args"]]), "good", "", same=True),
    Case("correlation numbers beyond 64 bits", "the launch is not known (TF307)", _text(lambda text: text.replace('"correlation": 1,', f'"correlation": {10**30},').replace('"correlation": 1}', f'"correlation": {10**30}}}')), "limited", "calls that were not recorded"),
    Case("a call that was not recorded, or was before the recording", "the launch is not known (TF307)", _events(_launched_before), "limited", "calls that were not recorded"),
    Case("metadata only", _REFUSED, _events(_only_metadata), "TF104", "none of its 1 records"),
    Case("no ProfilerStep", "the whole capture is one window; there are no steps", _events(_without_marks), "good", "", same=True),
    Case("no distributedInfo", "the rank is that of the name of the file, else 0 with a remark (TF301)", _text(_without_header), "good", "", same=True),
    Case("two files of one rank", _REFUSED, _ranks(0, 0, world_size=2), "TF108", "both claim rank 0"),
    Case("ranks missing: 0, 1 and 3 of 4", "said (TF305); collectives stay whole", _ranks(0, 1, 3, world_size=4), "limited", "3 of 4 ranks present"),
    Case("files of two runs whose jobs had different numbers of ranks", _REFUSED, _two_runs_of_two_sizes, "TF129", "two runs"),
    Case("files of two runs, recorded hours apart", "said (TF321)", _two_runs_at_two_times, "limited", "of two runs"),
    Case("30 of 32 steps without device events", "said (TF322)", _bare_steps, "limited", "steps hold no device events"),
    Case("a bomb of gzip", f"{_REFUSED} after 64 MiB and 100 times its size", _bomb, "TF105", "unpacks to"),
    Case("lists 100,000 deep in each other", "stepped over", _nested, "good", "", same=True),
    Case("links out of the folder, and in a circle", "a file that is no trace is passed over; folders behind links are not searched", _link_out_of_the_folder, "good", "", same=True),
    Case("HTML and script in names", "text, escaped in the report", _named(b"<script>alert(1)</script>", "kernel"), "good", "", same=True),
    Case("a pickle that imports something", f"{_REFUSED}; nothing of it runs", _pickle_with_a_class, "TF109", ""),
    Case("a damaged manifest", "said (TF319); the traces are read", _manifest('{"traceflow_version": "0.1.0", "schema_ver'), "limited", "its manifest cannot be used"),
    Case("a manifest of a later release", "said (TF319); the traces are read", _manifest('{"schema_version": 99, "traceflow_version": "9.0"}'), "limited", "its manifest cannot be used"),
    Case("a manifest of another program", "passed over", _manifest('{"name": "an application"}'), "good", "", same=True),
    Case("an empty file", _REFUSED, _named_file("rank0.json", b""), "TF102", "empty"),
    Case("a folder without traces", _REFUSED, _empty_folder, "TF106", "nothing to read"),
    Case("a file of another kind", _REFUSED, _named_file("rank0.json", b"%PDF-1.7"), "TF107", "looks like"),
    Case("trace-event JSON of JAX: negative or missing durations, NaN", _LEFT_OUT, _chrome(lambda text: text.replace('"dur": 1}', '"dur": -1}', 1).replace('"dur": 1}', '"dur": NaN}', 1)), "limited", "2 without a valid time"),
    Case("trace-event JSON of JAX: anything that is no JSON", _REFUSED, _chrome(lambda text: text.replace("op3", "op\x01")), "TF103", "no complete JSON"),
    Case("trace-event JSON of JAX: lists too deep in each other", _REFUSED, _chrome(lambda text: text.replace('"dur": 1}', f'"dur": 1, "args": {"[" * 100_000}{"]" * 100_000}}}', 1)), "TF103", "no complete JSON"),
    Case("trace-event JSON of JAX: a bomb of gzip", _REFUSED, _packed_bomb("a.trace.json.gz", b'{"displayTimeUnit":"ns","traceEvents":[', gzip.compress), "TF105", "unpacks to"),
    Case("an operation table of 20 million equal rows in a few kB", _REFUSED, _table_of_zeros, "TF105", "rows are more"),
    Case("XSpace that was saved as text", _REFUSED, _xspace_saved_as_text, "TF103", ""),
    Case("a program in a bomb of xz", _REFUSED, _packed_bomb("a.hlo.pb.xz", b"", lzma.compress), "TF105", "unpacks to"),
)  # fmt: skip
