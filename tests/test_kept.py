"""Columns of a trace that are kept for the next time: the same answers, and never an old one."""

from __future__ import annotations

import io
import os
import random
import shutil
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stdout
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kineto_builder import KinetoTrace

from traceflow.cli import main
from traceflow.errors import TraceflowError
from traceflow.trace import kept
from traceflow.trace.kept import FOLDER
from traceflow.trace.kineto import read_kineto
from traceflow.trace.model import Trace

CORPUS = (
    "a100_alexnet",
    "a100_event_sync",
    "a100_event_sync_multi_stream",
    "a100_nccl_rank0of2",
    "a100_simple_add",
    "a100_triton",
    "cpu_only_rank34",
    "h100_bert_small",
    "h100_qwen_0.5b",
    "mi250_minitoy",
    "mi300_sglang_decode_graph",
    "mi300_torch_compile",
    "mtia_inference",
    "rank_not_found",
    "sampled_rank0of128",
    "vllm_piecewise_graph",
)


@pytest.fixture(autouse=True)
def keeps(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Small traces are kept too, and at once."""
    monkeypatch.delenv("TRACEFLOW_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(kept, "_WORTH_PLAIN_BYTES", 0)
    monkeypatch.setattr(kept, "_WORTH_BYTES", {})
    monkeypatch.setattr(kept, "_SETTLED_NS", -(10**18))
    monkeypatch.setattr(kept, "_COARSE_NS", -(10**18))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return written(tmp_path / "run" / "rank0.json", "aten::mm")


def written(path: Path, name: str) -> Path:
    card = KinetoTrace(rank=0, world_size=2)
    card.step(3, 0, 300_000)
    card.host(name, 0, 8_000)
    card.kernel("matmul", 9_000, 109_000, call=(2_000, 5_400))
    card.all_reduce(109_000, 209_000, call=(6_000, 7_000), sequence=1)
    path.parent.mkdir(exist_ok=True)
    return card.write(path)


def same(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    if is_dataclass(one):
        return type(one) is type(other) and all(same(getattr(one, f.name), getattr(other, f.name)) for f in fields(one))
    return bool(one == other)


def unread(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on, nothing can be read from a trace itself."""

    def fail(*_: object) -> Trace:
        raise AssertionError("the trace was read again")

    monkeypatch.setattr("traceflow.trace.kineto._read", fail)


def columns_of(file: Path) -> Path:
    return file.parent / FOLDER / f"{file.name}.npz"


@pytest.mark.parametrize("name", CORPUS)
def test_what_was_kept_is_what_was_read(
    name: str, corpus: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / f"{name}.json.gz"
    file.write_bytes(corpus(f"kineto/{name}.json.gz").read_bytes())
    first = read_kineto(file)
    unread(monkeypatch)
    assert same(first, read_kineto(file))


def test_answers_are_the_same_bytes(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def answer() -> str:
        told = io.StringIO()
        with redirect_stdout(told):
            main(["show", "all", str(file), "--format", "json"])
        return told.getvalue()

    first = answer()
    unread(monkeypatch)
    assert answer() == first != ""


def test_a_folder_holds_no_more_traces_than_before(file: Path) -> None:
    import traceflow

    for _ in range(2):
        assert [rank.source for rank in traceflow.open(str(file.parent)).trace.ranks] == [file.name]
    assert columns_of(file).exists()


def test_a_changed_trace_is_read_even_if_it_looks_the_same(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "_SAMPLE_BYTES", 0)  # as in a large file that changed between the samples
    read_kineto(file)
    before = file.stat()
    written(file, "aten::nm")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert file.stat().st_size == before.st_size
    assert "aten::nm" in read_kineto(file).strings


def test_what_changed_just_now_is_not_kept(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "_SETTLED_NS", 10**18)
    monkeypatch.setattr(kept, "_COARSE_NS", 10**18)
    read_kineto(file)
    assert not columns_of(file).exists()


def test_what_changed_while_it_was_read_is_not_kept(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = iter(["before", "after"])
    monkeypatch.setattr(kept, "_key", lambda *_: next(keys))
    read_kineto(file)
    assert not columns_of(file).exists()


def test_other_patterns_and_another_reader_read_again(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read_kineto(file)
    unread(monkeypatch)
    read_kineto(file)
    with pytest.raises(AssertionError):
        read_kineto(file, communication=("mm",))
    monkeypatch.setattr(kept, "_reader", lambda: "newer")
    with pytest.raises(AssertionError):
        read_kineto(file)


@pytest.mark.parametrize("seed", range(40))
def test_damage_is_noticed_and_mended(seed: int, file: Path) -> None:
    first, chance = read_kineto(file), random.Random(seed)
    content = bytearray(columns_of(file).read_bytes())
    if seed % 4 == 0:
        content = content[: chance.randrange(len(content))]
    else:
        content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    columns_of(file).write_bytes(content)
    assert same(first, read_kineto(file))


@pytest.mark.parametrize("content", [b"", b"PK\x05\x06" + bytes(18), b"\x93NUMPY\x01\x00", b"no columns"])
def test_foreign_files_are_replaced(content: bytes, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    columns_of(file).parent.mkdir()
    columns_of(file).write_bytes(content)
    first = read_kineto(file)
    unread(monkeypatch)
    assert same(first, read_kineto(file))


def test_where_nothing_may_be_written_the_users_folder_serves(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.parent.chmod(0o555)
    first = read_kineto(file)
    unread(monkeypatch)
    assert same(first, read_kineto(file))
    file.parent.chmod(0o755)
    assert not columns_of(file).parent.exists()
    assert len(list((tmp_path / "home" / "traceflow" / "traces").iterdir())) == 1


def test_a_variable_names_the_folder_or_forbids_it(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACEFLOW_CACHE", "off")
    read_kineto(file)
    monkeypatch.setenv("TRACEFLOW_CACHE", str(tmp_path / "mine"))
    read_kineto(file)
    assert not columns_of(file).exists()
    assert not (tmp_path / "home").exists()
    assert len(list((tmp_path / "mine" / "traces").iterdir())) == 1


def test_what_nobody_read_for_a_month_is_forgotten(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACEFLOW_CACHE", str(tmp_path / "mine"))
    traces, now = tmp_path / "mine" / "traces", time.time()
    traces.mkdir(parents=True)
    old, recent, others = f"{'a1' * 16}.npz", f"{'b2' * 16}.npz", "routing_of_march.npz"
    for name, read_days_ago, written_days_ago in ((old, 31, 40), (recent, 1, 40), (others, 90, 90)):
        (traces / name).touch()
        os.utime(traces / name, (now - read_days_ago * 86_400, now - written_days_ago * 86_400))
    read_kineto(file)
    left = {path.name for path in traces.iterdir()}
    assert {recent, others} < left
    assert old not in left
    assert len(left) == 3


def test_a_disk_that_is_full_fails_nothing(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", full)
    assert len(read_kineto(file).events)
    assert [path.name for path in file.parent.iterdir() if path.is_file()] == [file.name]
    assert list(columns_of(file).parent.iterdir()) == []


def test_a_draft_that_a_killed_process_left_is_cleared_away(file: Path, tmp_path: Path) -> None:
    draft = columns_of(file).with_name(f".{columns_of(file).name}.draft")
    draft.parent.mkdir()
    draft.write_bytes(b"half")
    read_kineto(file)
    assert not columns_of(file).exists()  # somebody may be writing it
    shutil.rmtree(tmp_path / "home")
    os.utime(draft, (0, 0))
    read_kineto(file)
    assert columns_of(file).exists()
    assert not draft.exists()


def test_many_may_read_and_keep_at_once(file: Path) -> None:
    with ThreadPoolExecutor(8) as threads:
        traces = list(threads.map(lambda _: read_kineto(file), range(40)))
    assert all(same(traces[0], trace) for trace in traces)
    assert same(traces[0], read_kineto(file))


@pytest.mark.skipif(sys.platform == "win32", reason="files have no mode")
@pytest.mark.parametrize("mode", [0o600, 0o640, 0o644, 0o666])
def test_whoever_may_not_read_a_trace_may_not_read_its_columns(mode: int, file: Path) -> None:
    file.chmod(mode)
    before = os.umask(0)
    try:
        read_kineto(file)
    finally:
        os.umask(before)
    assert columns_of(file).stat().st_mode & 0o777 == mode & 0o644


@pytest.mark.skipif(sys.platform == "win32", reason="files have no mode")
def test_columns_that_others_can_write_are_made_again(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = read_kineto(file)
    columns_of(file).chmod(0o666)
    with monkeypatch.context() as patched:
        unread(patched)
        with pytest.raises(AssertionError):
            read_kineto(file)
    assert same(first, read_kineto(file))
    unread(monkeypatch)
    assert same(first, read_kineto(file))


@pytest.mark.skipif(sys.platform == "win32", reason="files have no owner")
def test_columns_of_another_user_are_left_to_them(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = read_kineto(file)
    if os.getuid() == 0:
        os.chown(columns_of(file), 12345, -1)
    else:
        monkeypatch.setattr(os, "getuid", lambda: 12345)
    theirs = columns_of(file).stat()
    with monkeypatch.context() as patched:
        unread(patched)
        with pytest.raises(AssertionError):
            read_kineto(file)
    assert same(first, read_kineto(file))
    assert columns_of(file).stat() == theirs
    assert len(list((tmp_path / "home" / "traceflow" / "traces").iterdir())) == 1


def test_small_traces_are_not_kept(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "_WORTH_PLAIN_BYTES", file.stat().st_size + 1)
    read_kineto(file)
    assert not columns_of(file).parent.exists()


def test_a_refused_trace_leaves_nothing(tmp_path: Path) -> None:
    file = tmp_path / "rank0.json"
    file.write_text('{"traceEvents": [], "schemaVersion": 1}')
    with pytest.raises(TraceflowError, match="TF104"):
        read_kineto(file)
    assert [path.name for path in tmp_path.iterdir()] == [file.name]
