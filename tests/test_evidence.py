"""`read`: one file, many files, folders and patterns, told apart by content."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from kineto_builder import KinetoTrace
from msgspec.structs import replace
from xla_files import Event, Line, everything, rows, write, write_chrome, xspace

from traceflow.capture import Clock, Manifest, Options, Process, write_manifest
from traceflow.errors import TraceflowError
from traceflow.evidence import read
from traceflow.program.schema import message
from traceflow.trace.xspace import read_xspace

MANIFEST = Manifest(
    traceflow_version="0",
    created="2026-01-01T00:00:00+00:00",
    complete=True,
    problem=None,
    process=Process("host", 7),
    clock=Clock(time_ns=0, perf_counter_ns=0),
    frameworks={},
    devices=None,
    options=Options(warmup=0, steps=None, hlo=True),
    warmup=(),
    steps=(),
)


def space(path: Path, name: str = "f", start_ns: int = 1_000, program: bytes | None = None) -> Path:
    """An XSpace with one host event and one HLO operation of program 1."""
    path.parent.mkdir(parents=True, exist_ok=True)
    work = Event("x", 5_000_000, 1_000_000, {"hlo_op": "x", "program_id": 1, "run_id": 1, "device_ordinal": 0})
    line = Line("python", [Event(name, 0, 1_000_000), work])
    return write(path, xspace({"/host:CPU": [line]}, start_ns=start_ns, programs={1: program} if program else None))


def program(name: str) -> bytes:
    """A program of one instruction."""
    proto = message("HloProto")()
    proto.hlo_module.name, proto.hlo_module.entry_computation_id = name, 1
    proto.hlo_module.computations.add(id=1, root_id=1).instructions.add(id=1, name="x", opcode=name)
    return bytes(proto.SerializeToString())


def chrome(path: Path) -> Path:
    return write_chrome(path, {"/host:CPU": {"python": [{"name": "f", "ts": 0, "dur": 1}]}})


def kineto(path: Path, rank: int) -> Path:
    """A Kineto file with one operator."""
    operator = {"ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": 1, "tid": 1, "ts": 10.5, "dur": 2, "args": {}}
    document = {
        "schemaVersion": 1,
        "deviceProperties": [],
        "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": 2},
        "traceEvents": [operator],
    }
    path.write_text(json.dumps(document))
    return path


def names(trace_of: Path | str) -> list[str]:
    return [name for *_, name, _ in rows(read(trace_of).trace)]


def refusal(path: Path | str) -> TraceflowError:
    with pytest.raises(TraceflowError) as refused:
        read(path)
    return refused.value


# One file


def test_a_file_is_known_by_its_content_whatever_its_name(tmp_path: Path) -> None:
    one = space(tmp_path / "trace.json")
    two = chrome(tmp_path / "trace.pb")
    three = kineto(tmp_path / "trace.txt", rank=1)
    packed = tmp_path / "packed"
    packed.write_bytes(gzip.compress(two.read_bytes()))
    assert [read(file).trace.format for file in (one, two, three, packed)] == ["xspace", "chrome", "kineto", "chrome"]


def test_a_file_may_be_named_by_text(tmp_path: Path) -> None:
    assert names(str(space(tmp_path / "a.xplane.pb"))) == ["f", "x"]


@pytest.mark.parametrize(
    ("content", "code", "says"),
    [
        (b"", "TF102", "the file is empty"),
        (gzip.compress(b"", mtime=0), "TF102", "the file is empty"),
        (b"\x1f\x8b\x08garbage", "TF105", "gzip stream is damaged"),
        (b'{"a": 1}', "TF107", "JSON without traceEvents"),
        (b"step,time\n1,2\n", "TF107", "text"),
        (b"\x89PNG\r\n\x1a\n\x00\x00", "TF107", "binary data"),
        (b"\n\x2a\x08\x01\x12\x09/host:CPU", "TF103", "cut short"),
        (b"\n\xef\xbf\xbd\x06\x08\x02\x12\x0a/device:TP" + b"\xef\xbf\xbd" * 9, "TF103", "saved as text"),
    ],
)
def test_what_is_no_trace_is_refused_in_one_line(tmp_path: Path, content: bytes, code: str, says: str) -> None:
    path = tmp_path / "a.xplane.pb"
    path.write_bytes(content)
    error = refusal(path)
    assert error.code == code
    assert says in error.why
    assert str(path) in error.what
    assert "\n" not in str(error)


def test_a_protobuf_of_another_kind_is_no_trace(tmp_path: Path) -> None:
    (tmp_path / "jit_f.pb").write_bytes(program("jit_f"))
    error = refusal(tmp_path / "jit_f.pb")
    assert (error.code, error.why) == ("TF107", "it looks like a protobuf that is no XSpace")


def test_a_mangled_file_is_damaged_rather_than_unknown(corpus: Callable[[str], Path]) -> None:
    assert refusal(corpus("xplane/corrupt_tpu.xplane.pb")).code == "TF103"


# Folders and patterns


def test_a_log_directory_is_read_without_its_json_twin(tmp_path: Path) -> None:
    run = tmp_path / "plugins" / "profile" / "2026_01_01"
    file = space(run / "host.example.com.xplane.pb")
    chrome(run / "host.example.com.trace.json.gz")
    chrome(run / "perfetto_trace.json.gz")
    (run / "jit_f.before_optimizations.hlo.pb").write_bytes(program("jit_f"))
    (tmp_path / "manifest.json").write_text("{}")
    (tmp_path / "notes.txt").write_text("hello")
    (tmp_path / "empty").touch()
    (tmp_path / "broken.gz").write_bytes(b"\x1f\x8b\x08garbage")
    assert everything(read(tmp_path).trace) == everything(read_xspace(file).trace)
    assert everything(read(str(tmp_path / "plugins" / "**" / "*.pb")).trace) == everything(read_xspace(file).trace)


@pytest.mark.parametrize("pattern", ["", "*", "*.json"])
def test_hidden_files_are_not_meant(pattern: str, tmp_path: Path) -> None:
    file = KinetoTrace(rank=0)
    file.host("aten::mm", 0, 8_000)
    content = file.write(tmp_path / "rank0.json").read_bytes()
    for name in (".rank1.json", "._rank0.json"):  # a draft, and what macOS keeps beside a file
        (tmp_path / name).write_bytes(content)
    assert [rank.source for rank in read(str(tmp_path / pattern)).trace.ranks] == ["rank0.json"]
    assert [rank.source for rank in read(str(tmp_path / ".rank*.json")).trace.ranks] == [".rank1.json"]


def test_a_json_of_another_name_is_no_twin(tmp_path: Path) -> None:
    space(tmp_path / "a.xplane.pb")
    chrome(tmp_path / "b.trace.json.gz")
    assert [rank.source for rank in read(tmp_path).trace.ranks] == ["a.xplane.pb", "b.trace.json.gz"]


def test_xspaces_of_one_run_are_ranks_on_one_clock(tmp_path: Path) -> None:
    run = tmp_path / "plugins" / "profile" / "run"
    space(run / "b.xplane.pb", "later", start_ns=5_000)
    space(run / "a.xplane.pb", "earlier", start_ns=2_000)
    trace = read(tmp_path).trace
    assert [(rank.rank, rank.source) for rank in trace.ranks] == [(0, "a.xplane.pb"), (1, "b.xplane.pb")]
    assert trace.epoch_ns == 2_000
    started = zip(trace.lanes.rank[trace.events.lane].tolist(), rows(trace), strict=True)
    assert [(rank, row[2]) for rank, row in started if row[4] in {"earlier", "later"}] == [(0, 0), (1, 3_000)]


@pytest.mark.parametrize(
    ("files", "ranks"),
    [
        (["rank00001.host.xplane.pb"], [1]),
        (["rank00010.a.xplane.pb", "rank00002.b.xplane.pb"], [10, 2]),
        (["a.xplane.pb", "b.rank0.xplane.pb"], [1, 0]),
        (["job-w-10.xplane.pb", "job-w-2.example.com.xplane.pb"], [10, 2]),
        (["worker3.trace.json"], [3]),
        (["one-w-1.xplane.pb", "two-w-1.xplane.pb"], [0, 1]),  # workers of two jobs
        (["node17.xplane.pb", "node4.xplane.pb"], [0, 1]),  # numbers of machines
        (["host-10-0-0-2.xplane.pb"], [0]),
        (["lora_w8_x.xplane.pb"], [0]),
        (["rank3/run/host.xplane.pb", "rank1/run/host.xplane.pb"], [3, 1]),
        (["rank-1/b.xplane.pb", "ranks/c.xplane.pb"], [1, 0]),
    ],
)
def test_what_a_path_says_of_the_rank_counts(tmp_path: Path, files: list[str], ranks: list[int]) -> None:
    for file in files:
        space(tmp_path / file) if file.endswith(".pb") else chrome(tmp_path / file)
    told = {rank.rank: rank.source for rank in read(tmp_path).trace.ranks}
    assert told == {rank: Path(file).name for rank, file in zip(ranks, files, strict=True)}
    if len(files) == 1:
        assert [rank.rank for rank in read(tmp_path / files[0]).trace.ranks] == ranks


@pytest.mark.parametrize("name", ["host.xplane.pb", "host-w-0.xplane.pb"])
def test_the_manifest_tells_the_rank_of_the_only_process(tmp_path: Path, name: str) -> None:
    run = tmp_path / "plugins" / "profile" / "run"
    file = space(run / name)
    write_manifest(tmp_path, replace(MANIFEST, process=Process("host", 7, rank=1, world_size=2)))
    for given in (tmp_path, run, file):
        assert [rank.rank for rank in read(given).trace.ranks] == [1]


def test_a_rank_in_the_name_goes_before_the_manifest(tmp_path: Path) -> None:
    file = space(tmp_path / "plugins" / "profile" / "run" / "rank00002.host.xplane.pb")
    write_manifest(tmp_path, replace(MANIFEST, process=Process("host", 7, rank=1, world_size=1)))
    assert [rank.rank for rank in read(file).trace.ranks] == [2]


def test_the_manifest_of_several_processes_says_nothing_of_a_file_without_a_name(tmp_path: Path) -> None:
    file = space(tmp_path / "plugins" / "profile" / "run" / "host.xplane.pb")
    one = replace(MANIFEST, process=Process("host", 7, rank=1, world_size=2))
    write_manifest(tmp_path, replace(one, process=Process("host", 7, rank=3, world_size=1), peers=(one,)))
    assert [rank.rank for rank in read(file).trace.ranks] == [0]


def test_two_files_that_are_named_after_one_rank_are_refused(tmp_path: Path) -> None:
    space(tmp_path / "a.rank1.xplane.pb")
    space(tmp_path / "b.rank1.xplane.pb")
    assert (refusal(tmp_path).code, refusal(tmp_path).why) == ("TF108", "both claim rank 1")


def test_programs_of_several_processes_keep_apart_where_they_differ(tmp_path: Path) -> None:
    for at, name in enumerate(("add", "dot", "add")):
        space(tmp_path / f"{at}.xplane.pb", program=program(name))
    evidence = read(tmp_path)
    trace = evidence.trace
    rank = trace.lanes.rank[trace.events.lane[trace.hlo.event]]
    named = {int(r): evidence.programs[int(p)].name for r, p in zip(rank, trace.hlo.program, strict=True)}
    assert named == {0: "add", 1: "dot", 2: "add"}
    assert len(evidence.programs) == len(np.unique(trace.hlo.program)) == 2


def test_two_recordings_in_one_log_directory_are_not_mixed(tmp_path: Path) -> None:
    for run in ("first", "second"):
        space(tmp_path / "plugins" / "profile" / run / "host.xplane.pb")
    error = refusal(tmp_path)
    assert error.code == "TF108"
    assert "first" in error.what
    assert "second" in error.what
    assert names(tmp_path / "plugins" / "profile" / "second") == ["f", "x"]


def test_kineto_files_are_merged_in_order_of_rank(tmp_path: Path) -> None:
    kineto(tmp_path / "a.json", rank=1)
    kineto(tmp_path / "b.json", rank=0)
    trace = read(tmp_path / "*.json").trace
    assert [(rank.rank, rank.source) for rank in trace.ranks] == [(0, "b.json"), (1, "a.json")]
    assert len(trace.events) == 2


def test_two_files_of_one_rank_are_refused_by_name(tmp_path: Path) -> None:
    one, two = kineto(tmp_path / "a.json", rank=1), kineto(tmp_path / "b.json", rank=1)
    error = refusal(tmp_path)
    assert (error.code, error.why) == ("TF108", "both claim rank 1")
    assert str(one) in error.what
    assert str(two) in error.what


def test_a_damaged_trace_in_a_folder_is_not_passed_over(tmp_path: Path) -> None:
    whole = space(tmp_path / "a.xplane.pb").read_bytes()
    (tmp_path / "b.xplane.pb").write_bytes(whole[:-9])
    assert refusal(tmp_path).code == "TF103"


@pytest.mark.parametrize(("content", "code"), [(b"", "TF102"), (b"\x1f\x8b\x08garbage", "TF105")])
def test_an_empty_or_unreadable_rank_does_not_vanish(tmp_path: Path, content: bytes, code: str) -> None:
    space(tmp_path / "a.xplane.pb")
    (tmp_path / "rank1.json.gz").write_bytes(content)
    error = refusal(tmp_path)
    assert error.code == code
    assert "rank1.json.gz" in error.what


def test_a_file_that_may_not_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = space(tmp_path / "a.xplane.pb")

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "open", refuse)
    error = refusal(path)
    assert (error.code, error.why) == ("TF101", "Permission denied")
    assert str(path) in error.what


def test_an_empty_name_is_not_this_folder() -> None:
    error = refusal("")
    assert (error.code, error.why) == ("TF101", "its name is empty")


@pytest.mark.parametrize(
    ("given", "code", "why"),
    [
        ("missing", "TF101", "no such file or folder"),
        ("missing/*.json", "TF106", "nothing matches the pattern"),
        ("empty", "TF106", "the folder is empty"),
        ("texts", "TF106", "none of its 2 files is a trace"),
        ("texts/a*", "TF106", "a.txt is no trace"),
    ],
)
def test_nothing_to_read(tmp_path: Path, given: str, code: str, why: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "texts").mkdir()
    for name in ("a.txt", "b.txt"):
        (tmp_path / "texts" / name).write_text("hello")
    error = refusal(tmp_path / given)
    assert (error.code, error.why) == (code, why)
