"""The capture on disk: its manifest, and that it takes its name only once it is complete."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import msgspec
import pytest

from traceflow.capture import (
    MANIFEST,
    Capture,
    Clock,
    Devices,
    Manifest,
    Options,
    Process,
    StepRecord,
    join,
    publish,
    publish_complete,
    read_manifest,
    reserve,
    wait_until_published,
    write_manifest,
)
from traceflow.errors import TraceflowError

STEP = StepRecord(
    step=1, start_ns=100, returned_ns=110, ready_ns=250, fetched_ns=None, compilations=2, compile_ns=9_000_000_000
)


def manifest_of(*, complete: bool) -> Manifest:
    return Manifest(
        traceflow_version="0.1.0",
        created="2026-11-29T12:00:00+00:00",
        complete=complete,
        problem=None if complete else "killed",
        process=Process("node7", 71, rank=0, world_size=1),
        clock=Clock(time_ns=1_795_953_600_000_000_001, perf_counter_ns=12),
        frameworks={"jax": "0.10.2"},
        devices=Devices("cpu", "cpu", 8, 8),
        options=Options(warmup=1, steps=None, hlo=True),
        warmup=(),
        steps=(STEP,),
    )


def complete_capture(path: Path, mark: str, *, force: bool = False) -> None:
    folder = reserve(path, force=force)
    (folder / "mark").write_text(mark)
    write_manifest(folder, manifest_of(complete=True))
    publish(folder, path, force=force)


def names_in(folder: Path) -> set[str]:
    return {entry.name for entry in folder.iterdir()}


def test_the_manifest_is_plain_json_and_keeps_every_nanosecond(tmp_path: Path) -> None:
    write_manifest(tmp_path, manifest_of(complete=True))
    written = json.loads((tmp_path / MANIFEST).read_text(encoding="utf-8"))
    assert written["schema_version"] == 1
    assert written["complete"] is True
    assert written["clock"] == {"time_ns": 1_795_953_600_000_000_001, "perf_counter_ns": 12}
    assert written["steps"] == [
        {
            "step": 1,
            "start_ns": 100,
            "returned_ns": 110,
            "ready_ns": 250,
            "fetched_ns": None,
            "compilations": 2,
            "compile_ns": 9_000_000_000,
        }
    ]
    assert Capture.open(tmp_path).manifest == manifest_of(complete=True)


def test_writing_the_manifest_again_leaves_no_draft(tmp_path: Path) -> None:
    write_manifest(tmp_path, manifest_of(complete=False))
    write_manifest(tmp_path, manifest_of(complete=True))
    assert names_in(tmp_path) == {MANIFEST}
    manifest = read_manifest(tmp_path)
    assert manifest is not None
    assert manifest.complete


def test_any_folder_of_traces_is_a_capture(tmp_path: Path) -> None:
    assert Capture.open(str(tmp_path)).manifest is None


def test_a_field_from_a_later_release_is_ignored(tmp_path: Path) -> None:
    content = msgspec.to_builtins(manifest_of(complete=True)) | {"colour": "blue"}
    (tmp_path / MANIFEST).write_bytes(msgspec.json.encode(content))
    assert Capture.open(tmp_path).manifest == manifest_of(complete=True)


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"", "TF103"),
        (b'{"schema_version": 1, "trace', "TF103"),
        (b'{"schema_version": "one"}', "TF103"),
        (b'{"schema_version": 1}', "TF103"),
        (b'\xff\xfe{"schema_version": 1}', "TF103"),
        (b'{"schema_version": 2, "steps": "elsewhere"}', "TF107"),
        (b"[" * 5000, "TF103"),
    ],
    ids=["empty", "truncated", "mistyped", "fields-missing", "not-utf8", "later-schema", "nested"],
)
def test_a_manifest_that_cannot_be_read_is_refused_when_asked_for(tmp_path: Path, content: bytes, code: str) -> None:
    (tmp_path / MANIFEST).write_bytes(content)
    capture = Capture.open(tmp_path)
    with pytest.raises(TraceflowError) as refusal:
        _ = capture.manifest
    assert refusal.value.code == code
    assert MANIFEST in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_only_a_folder_opens(tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    file.write_text("{}")
    for path, why in ((tmp_path / "nothing", "no such folder"), (file, "it is a file")):
        with pytest.raises(TraceflowError, match=f"TF101.*{why}"):
            Capture.open(path)


def test_a_capture_has_its_name_only_when_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "a"
    folder = reserve(path, force=False)
    assert names_in(path.parent) == {f"a.incomplete-{os.getpid()}"}
    publish(folder, path, force=False)
    assert names_in(path.parent) == {"a"}


def test_what_an_earlier_failure_left_is_kept_apart(tmp_path: Path) -> None:
    first, second, third = (reserve(tmp_path / "a", force=False) for _ in range(3))
    assert names_in(tmp_path) == {first.name, second.name, third.name}
    assert {first.name, second.name} == {f"a.incomplete-{os.getpid()}", f"a.incomplete-{os.getpid()}-1"}


def test_an_existing_capture_is_refused_and_untouched(tmp_path: Path) -> None:
    path = tmp_path / "a"
    complete_capture(path, "old")
    with pytest.raises(TraceflowError, match=r"TF110.*exists already"):
        reserve(path, force=False)
    assert (path / "mark").read_text() == "old"
    assert names_in(tmp_path) == {"a"}


def test_a_capture_that_appeared_meanwhile_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "a"
    slow = reserve(path, force=False)
    (slow / "mark").write_text("slow")
    complete_capture(path, "quick")
    with pytest.raises(TraceflowError, match="TF110"):
        publish(slow, path, force=False)
    assert (path / "mark").read_text() == "quick"
    assert (slow / "mark").read_text() == "slow"


def test_force_replaces_a_capture(tmp_path: Path) -> None:
    path = tmp_path / "a"
    complete_capture(path, "old")
    complete_capture(path, "new", force=True)
    assert (path / "mark").read_text() == "new"
    assert names_in(tmp_path) == {"a"}


def test_the_old_capture_stays_until_the_new_one_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "a"
    complete_capture(path, "old")
    reserve(path, force=True)
    assert (path / "mark").read_text() == "old"


def test_a_failed_replacement_puts_the_old_capture_back(tmp_path: Path) -> None:
    path = tmp_path / "a"
    complete_capture(path, "old")
    with pytest.raises(FileNotFoundError):
        publish(tmp_path / "never-reserved", path, force=True)
    assert (path / "mark").read_text() == "old"
    assert names_in(tmp_path) == {"a"}


def test_force_replaces_what_xprof_recorded_and_an_empty_folder(tmp_path: Path) -> None:
    (tmp_path / "xprof" / "plugins" / "profile" / "run").mkdir(parents=True)
    (tmp_path / "empty").mkdir()
    for name in ("xprof", "empty"):
        complete_capture(tmp_path / name, "new", force=True)
        assert names_in(tmp_path / name) == {"mark", MANIFEST}


def test_force_does_not_replace_what_is_no_capture(tmp_path: Path) -> None:
    thesis = tmp_path / "thesis" / "chapter1.tex"
    thesis.parent.mkdir()
    thesis.write_text("years of work")
    for path in (thesis.parent, thesis):
        with pytest.raises(TraceflowError, match=r"TF110.*not a capture"):
            reserve(path, force=True)
    assert thesis.read_text() == "years of work"


def test_a_place_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TraceflowError, match="TF114"):
        reserve(tmp_path / "file" / "a", force=False)


def of_rank(rank: int, *, complete: bool, problem: str | None = None) -> Manifest:
    """What one of several processes says."""
    process = Process("node7", 70 + rank, rank, world_size=4)
    return msgspec.structs.replace(manifest_of(complete=complete), process=process, problem=problem)


def test_the_last_of_several_processes_publishes(tmp_path: Path) -> None:
    path = tmp_path / "a"
    shared, own = reserve(path, force=False), reserve(path, force=False)
    for folder in (shared, own):
        write_manifest(folder, manifest_of(complete=False))
    assert join(shared, shared) == join(own, shared) == shared
    for rank in (3, 2):
        write_manifest(shared, of_rank(rank, complete=False))
    for rank in (3, 2):
        assert names_in(tmp_path) == {shared.name}
        write_manifest(shared, of_rank(rank, complete=True))
        publish_complete(shared, path, force=False)
    assert names_in(tmp_path) == {"a"}
    assert names_in(path) == {MANIFEST}
    manifest = read_manifest(path)
    assert manifest is not None
    assert manifest.complete
    assert [one.process.rank for one in (manifest, *manifest.peers)] == [2, 3]


def test_processes_that_end_at_once_publish_once(tmp_path: Path) -> None:
    path, everybody = tmp_path / "a", 8
    folder, together = reserve(path, force=False), Barrier(everybody)
    for rank in range(everybody):
        write_manifest(folder, of_rank(rank, complete=False))

    def end(rank: int) -> None:
        together.wait()
        write_manifest(folder, of_rank(rank, complete=True))
        publish_complete(folder, path, force=False)

    with ThreadPoolExecutor(everybody) as pool:
        list(pool.map(end, range(everybody)))
    assert names_in(tmp_path) == {"a"}
    assert names_in(path) == {MANIFEST}
    manifest = read_manifest(path)
    assert manifest is not None
    assert len(manifest.peers) == everybody - 1


def test_the_problem_of_one_process_is_that_of_the_capture(tmp_path: Path) -> None:
    path = tmp_path / "a"
    folder = reserve(path, force=False)
    write_manifest(folder, of_rank(0, complete=True))
    write_manifest(folder, of_rank(1, complete=False, problem="out of paper"))
    publish_complete(folder, path, force=False)
    manifest = read_manifest(folder)
    assert manifest is not None
    assert (manifest.complete, manifest.problem) == (False, "rank 1: out of paper")
    assert wait_until_published(folder, patience_s=60) == "rank 1: out of paper"


def test_waiting_for_others_ends(tmp_path: Path) -> None:
    path = tmp_path / "a"
    folder = reserve(path, force=False)
    write_manifest(folder, of_rank(0, complete=True))
    write_manifest(folder, of_rank(1, complete=False))
    assert wait_until_published(folder, patience_s=0) == "not every process has ended its recording within 0 s"
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(wait_until_published, folder, patience_s=60)
        write_manifest(folder, of_rank(1, complete=True))
        publish_complete(folder, path, force=False)
        assert waiting.result() is None


def test_a_common_capture_whose_name_is_taken_says_so(tmp_path: Path) -> None:
    path = tmp_path / "a"
    folder = reserve(path, force=False)
    path.mkdir()
    write_manifest(folder, of_rank(0, complete=True))
    with pytest.raises(TraceflowError, match="TF110"):
        publish_complete(folder, path, force=False)
    write_manifest(folder, of_rank(0, complete=False, problem="taken"))
    manifest = read_manifest(folder)
    assert manifest is not None
    assert not manifest.complete


def test_a_name_that_others_may_still_wait_for_is_not_used_again(tmp_path: Path) -> None:
    first = reserve(tmp_path / "a", force=False)
    first.rmdir()
    assert reserve(tmp_path / "a", force=False) != first
