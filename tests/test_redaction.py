"""What --redact leaves out: of texts, of evidence, and of everything that is made of it."""

from __future__ import annotations

import base64
import getpass
import gzip
import json
import re
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq
import pytest

import traceflow as tf
from traceflow.capture import Process
from traceflow.cli import main
from traceflow.redaction import Redaction
from traceflow.trace.model import Group, Kind

Capture = pytest.CaptureFixture[str]

USER, HOST, MACHINE, FOLDER = "zqvxw", "gpu-node-1719", "qhostz9", "unannounced"
HOME = f"/home/{USER}/{FOLDER}"
VERBS = (
    "all",
    "summary",
    "critical-path",
    "communication",
    "clocks",
    "stragglers",
    "savings",
    "budget",
    "memory",
    "padding",
    "moe",
    "sharding",
    "collective-matmul",
)


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        ("/srv/ada/model/train.py:12", "…/train.py:12"),
        ("file:///srv/ada/model/train.py", "…/train.py"),
        ("~/model/train.py(12): step", "…/train.py(12): step"),
        ("C:\\Users\\ada\\train.py:3", "…/train.py:3"),
        ("src/secret/train.py:3", "…/train.py:3"),
        ("--out=/data/ada/out", "--out=…/out"),
        ("{source_file='/srv/x/y.py'}", "{source_file='…/y.py'}"),
        ("/v/lib/python3.11/site-packages/jax/_src/pjit.py:250", "…/site-packages/jax/_src/pjit.py:250"),
        ("node17.example.org:29500", "host0.example.org:29500"),
        ("node17_4711.16.pt.trace.json", "host0_4711.16.pt.trace.json"),
        ("10.1.2.3:29500", "address:29500"),
        ("ada and adamw", "user0 and adamw"),
        ("vm.xplane.pb", "host1.xplane.pb"),
        ("the vm", "the vm"),
        ("jit(step)/transformer/mlp/dot_general", "jit(step)/transformer/mlp/dot_general"),
        ("/device:TPU:0", "/device:TPU:0"),
        ("ncclDevKernel_AllReduce<float, a/b>", "ncclDevKernel_AllReduce<float, a/b>"),
        ("train.py(3): <module>", "train.py(3): <module>"),
        ("cuda 12.4.1", "cuda 12.4.1"),
    ],
)
def test_a_text(text: str, redacted: str) -> None:
    hide = Redaction(["node17"], ["ada", "root", "1000"], ["vm"])
    assert hide.text(text) == redacted
    assert hide.text(redacted) == redacted


def test_a_value_keeps_its_shape() -> None:
    hide = Redaction(["node17"], ["ada"])
    assert hide.of({"/srv/ada/x": [1, None, ("node17",)], "kind": Kind.COMPUTE}) == {
        "…/x": [1, None, ("host0",)],
        "kind": Kind.COMPUTE,
    }
    assert hide.of(Group("node17", (0, 1), 2)) == Group("host0", (0, 1), 2)
    assert hide.of(Process("node17", 4711)) == Process("host0", 4711)


def test_equal_names_stay_equal_and_others_different() -> None:
    hide = Redaction(["node1", "node2", "node2.example.org"], [])
    assert hide.text("node1") != hide.text("node2")
    assert hide.text("node2").split(".")[0] == hide.text("node2.example.org").split(".")[0]


def kineto() -> dict[str, Any]:
    """One rank whose names tell who ran it, where, and from which folder."""

    def event(category: str, name: str, tid: int, ts: int, dur: int, **args: Any) -> dict[str, Any]:
        return {"ph": "X", "cat": category, "name": name, "pid": 40, "tid": tid, "ts": ts, "dur": dur, "args": args}

    rows = [
        event("user_annotation", "ProfilerStep#0", 40, 1_000, 150),
        event("python_function", f"{HOME}/train.py(12): step_of_{USER}", 40, 1_000, 140),
        event("user_annotation", f"forward on {HOST}.example.org of {HOME}/model.py", 40, 1_001, 120),
        event("cpu_op", "aten::mm", 40, 1_001, 20, **{"External id": 1}),
        event("cuda_runtime", "cudaLaunchKernel", 40, 1_002, 3, correlation=1),
        {**event("kernel", f"gemm_{USER}_{MACHINE}", 7, 1_007, 100, correlation=1, device=0, stream=7), "pid": 0},
        event("cpu_op", f"load {HOME}/data", 40, 1_110, 40),
    ]
    about = {"rank": 0, "world_size": 1, "backend": "nccl", "pg_config": [{"pg_name": f"{HOME}/store", "ranks": [0]}]}
    return {"schemaVersion": 1, "hostname": f"{HOST}.example.org", "distributedInfo": about, "traceEvents": rows}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A capture below somebody's home."""
    monkeypatch.setattr(socket, "gethostname", lambda: MACHINE)
    monkeypatch.setattr(socket, "getfqdn", lambda: f"{MACHINE}.example.org")
    monkeypatch.setattr(getpass, "getuser", lambda: USER)
    folder = tmp_path / "home" / USER / FOLDER
    folder.mkdir(parents=True)
    (folder / f"{HOST}_4711.1796040000.pt.trace.json").write_text(json.dumps(kineto()))
    return folder


def secrets(told: str, *others: str) -> list[str]:
    """What of all that is not to be told is told."""
    paths = re.findall(r"(?<![\w<])/(?:home|Users|root|tmp|scratch)/[\w.]+", told)
    return [*paths, *(secret for secret in (USER, HOST, MACHINE, *others) if secret in told)]


def test_the_evidence_holds_what_is_to_be_left_out(folder: Path, capsys: Capture) -> None:
    source = str(next(folder.iterdir()))
    assert main(["export", "parquet", source, "-o", str(folder / "tables"), "-q"]) == 0
    capsys.readouterr()
    told = "".join(f"{pq.read_table(file).to_pylist()}" for file in (folder / "tables").glob("*.parquet"))
    assert {USER, HOST, MACHINE} <= set(secrets(told))
    assert main(["show", "critical-path", source, "--format", "json"]) == 0
    assert {USER, HOST, FOLDER} <= set(secrets(capsys.readouterr().out, FOLDER))


@pytest.mark.parametrize("form", ["json", "text"])
@pytest.mark.parametrize("verb", VERBS)
def test_no_answer_tells(verb: str, form: str, folder: Path, capsys: Capture) -> None:
    source = str(next(folder.iterdir()))
    assert main(["show", verb, source, "--redact", "--format", form]) == 0
    assert secrets(capsys.readouterr().out, FOLDER) == []


def test_what_was_asked_does_not_tell(folder: Path, capsys: Capture) -> None:
    source = str(next(folder.iterdir()))
    asked = ["what-if", source, "--scale", f"gemm_{USER}.*=0.5", "--redact", "--format", "json"]
    assert main(asked) == 0
    assert secrets(capsys.readouterr().out, FOLDER) == []
    both = ["diff", source, source, "--redact", "--format", "json"]
    assert main(both) == 0
    assert secrets(capsys.readouterr().out, FOLDER) == []


def test_a_report_does_not_tell(folder: Path, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    source = str(next(folder.iterdir()))
    assert main(["report", source, "--redact", "-o", str(page), "-q"]) == 0
    text = page.read_text(encoding="utf-8")
    packed = max(re.findall(r"[A-Za-z0-9+/=]{1000,}", text), key=len)
    answers = gzip.decompress(base64.b64decode(packed)).decode()
    assert '"critical-path"' in answers
    assert secrets(answers, FOLDER) == []
    assert secrets(text.replace(packed, ""), FOLDER) == []


def test_exports_do_not_tell(folder: Path, tmp_path: Path, capsys: Capture) -> None:
    source, trace, tables = str(next(folder.iterdir())), tmp_path / "a.pftrace", tmp_path / "tables"
    assert main(["export", "perfetto", source, "--redact", "-o", str(trace), "-q"]) == 0
    assert secrets(trace.read_bytes().decode("latin-1"), FOLDER) == []
    assert main(["export", "parquet", source, "--redact", "-o", str(tables), "-q"]) == 0
    capsys.readouterr()
    for file in tables.glob("*.parquet"):
        table = pq.read_table(file)
        told = f"{table.to_pylist()} {table.schema.metadata}"
        assert secrets(told, FOLDER) == []
    assert len([*tables.glob("*.parquet")]) > 3


def test_figures_are_what_they_were(folder: Path) -> None:
    run = tf.open(folder)
    hidden = run.redacted()
    assert hidden.critical_path().by_kind_ns == run.critical_path().by_kind_ns
    assert [*hidden.critical_path().segments.duration_ns] == [*run.critical_path().segments.duration_ns]
    assert hidden.summary().to_dict() == run.summary().to_dict()


@pytest.mark.parametrize("name", ["xplane/mi300_gemm.xplane.pb", "hlo/conv3d_gpu.hlo.pb"])
def test_recorded_programs_keep_their_figures_and_lose_their_folders(name: str, corpus: Callable[[str], Path]) -> None:
    run = tf.open(corpus(name))
    hidden = run.redacted()
    assert secrets(msgspec.json.encode(hidden.digest().to_dict()).decode(), str(corpus(name).parent)) == []
    assert hidden.memory().to_dict().keys() == run.memory().to_dict().keys()
    assert len(hidden.programs) == len(run.programs)
    known = [[(p["module"], p["live_peak_bytes"]) for p in of.memory().to_dict()["programs"]] for of in (run, hidden)]  # type: ignore[union-attr,index,call-overload]
    assert known[0] == known[1]


def test_other_viewers_cannot_be_told(folder: Path, capsys: Capture) -> None:
    assert main(["open", str(folder), "--in", "xprof", "--redact"]) == 2
    assert "shows the files as they are" in " ".join(capsys.readouterr().err.split())
