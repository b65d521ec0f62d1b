"""What traceflow never does: use a network, run text of a user in a shell, leave files for others, tell secrets."""

from __future__ import annotations

import ast
import base64
import gzip
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kineto_builder import KinetoTrace
from sources import ROOT

from traceflow.cli import main
from traceflow.redaction import Redaction

# A hook that cannot be removed: whatever Python asks of a network beyond this machine ends the process.
GUARD = """
import os, sys
def guard(event, arguments):
    if event in ("socket.connect", "socket.sendto", "socket.bind"):
        address = arguments[1]
        if isinstance(address, tuple) and address[0] not in ("127.0.0.1", "::1", "localhost"):
            sys.__stderr__.write(f"NETWORK {event} {address}\\n"); sys.__stderr__.flush(); os._exit(77)
    elif event in ("socket.getaddrinfo", "socket.gethostbyname", "urllib.Request"):
        if arguments[0] not in ("127.0.0.1", "::1", "localhost", None):
            sys.__stderr__.write(f"NETWORK {event} {arguments}\\n"); sys.__stderr__.flush(); os._exit(77)
sys.addaudithook(guard)
"""
COMMANDS = """
import sys
from traceflow.cli import main
source, out = sys.argv[1:]
for words in (
    ["show", "all", source], ["show", "critical-path", source, "--format", "json"], ["what-if", source, "--scale", "@transfer=0"],
    ["report", source, "-o", f"{out}/report.html"], ["export", "perfetto", source, "-o", f"{out}/a.pftrace"],
    ["export", "parquet", source, "-o", f"{out}/tables"], ["diff", source, source], ["explain", "TF101"],
    ["query", source, "SELECT count(*) FROM events"], ["show", "all", source, "--redact"],
):
    code = main(words)
    assert code == 0, (words, code)
"""
RECORDED = "import kills; from pathlib import Path\nkills.PROGRAMS[sys.argv.pop()](Path(sys.argv[1]))\n"


def guarded(script: str, *arguments: str, offline: bool = False) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "tests"), "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", GUARD + script, *arguments]
    if offline:
        command = ["unshare", "--net", *command]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=300)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    trace = KinetoTrace(rank=0, world_size=1)
    trace.step(0, 0, 9_000)
    trace.kernel("gemm", 1_000, 4_000, call=(100, 200))
    return trace.write(tmp_path / "rank0.pt.trace.json")


def test_the_guard_sees_a_network() -> None:
    for asks in ("socket.create_connection(('192.0.2.1', 80), 1)", "socket.getaddrinfo('example.org', 80)"):
        assert guarded(f"import socket\n{asks}\n").returncode == 77


def test_no_answer_uses_a_network(source: Path, tmp_path: Path) -> None:
    done = guarded(COMMANDS, str(source), str(tmp_path))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_no_recording_uses_a_network(framework: str, tmp_path: Path) -> None:
    pytest.importorskip(framework)
    done = guarded(RECORDED + COMMANDS, str(tmp_path / "a"), str(tmp_path), framework)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "a" / "manifest.json").exists()


def test_everything_works_where_there_is_no_network_at_all(source: Path, tmp_path: Path) -> None:
    if not shutil.which("unshare") or subprocess.call(["unshare", "--net", "true"], stderr=subprocess.DEVNULL):
        pytest.skip("no network namespace can be made here, which needs rights")
    done = guarded(COMMANDS, str(source), str(tmp_path), offline=True)
    assert done.returncode == 0, done.stderr


def test_what_is_served_is_served_on_loopback_alone(source: Path) -> None:
    script = (
        "import http.client, sys\n"
        "from pathlib import Path\n"
        "from urllib.parse import urlsplit\n"
        "from traceflow.viewers import files_served\n"
        "with files_served(Path(sys.argv[1])) as url:\n"
        "    asked = http.client.HTTPConnection(urlsplit(url).netloc)\n"
        "    asked.request('GET', '/')\n"
        "    print(url, asked.getresponse().status)\n"
    )
    done = guarded(script, str(source.parent))
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/ 200\n", done.stdout)


def calls() -> Iterator[tuple[Path, ast.Call]]:
    """Every call in the sources of the package."""
    for file in (
        file for folder in ("traceflow", "collectors", "analyzers", "scripts") for file in (ROOT / folder).rglob("*.py")
    ):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                yield file, node


def test_no_text_is_run_by_a_shell() -> None:
    found = []
    for file, call in calls():
        name = ast.unparse(call.func)
        shell = [word for word in call.keywords if word.arg == "shell"]
        if shell or name in {"os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput"}:
            found.append(f"{file.name}:{call.lineno} {name}")
    assert found == []


def test_no_pickle_is_loaded_that_could_run_anything() -> None:
    names = {"pickle.load", "pickle.loads", "marshal.loads", "torch.load", "yaml.load", "joblib.load"}
    found = [f"{file.name}:{call.lineno}" for file, call in calls() if ast.unparse(call.func) in names]
    allowed = [word for _, call in calls() for word in call.keywords if word.arg == "allow_pickle"]
    assert found == []
    assert {ast.unparse(word.value) for word in allowed} <= {"False"}


def test_no_temporary_file_has_a_name_that_others_can_foresee() -> None:
    predictable = {"tempfile.mktemp", "mktemp", "os.tempnam", "os.tmpnam"}
    assert not [f"{file.name}:{call.lineno}" for file, call in calls() if ast.unparse(call.func) in predictable]


SECRETS = st.text("abcdefghijkmnopqrstuvwxyzABCDEFGHJKLMNPQRSTUVWXYZ23456789", min_size=12, max_size=40)
PLACES = ("annotation", "kernel", "host operator", "header", "group")


def planted(place: str, secret: str) -> dict[str, Any]:
    """A trace that holds a secret."""

    def event(category: str, name: str, tid: int, ts: int, **arguments: Any) -> dict[str, Any]:
        return {"ph": "X", "cat": category, "name": name, "pid": 40, "tid": tid, "ts": ts, "dur": 50, "args": arguments}

    said = {where: f"upload {secret}" if where == place else "plain" for where in PLACES}
    rows = [
        event("user_annotation", "ProfilerStep#0", 40, 1_000),
        event("user_annotation", said["annotation"], 40, 1_001),
        event("cpu_op", said["host operator"], 40, 1_002),
        event("cuda_runtime", "cudaLaunchKernel", 40, 1_002, correlation=1),
        {**event("kernel", said["kernel"], 7, 1_007, correlation=1, device=0, stream=7), "pid": 0},
    ]
    groups = [{"pg_name": said["group"], "ranks": [0]}]
    return {
        "schemaVersion": 1,
        "WANDB_API_KEY": secret,
        "note": said["header"],
        "distributedInfo": {"rank": 0, "world_size": 1, "pg_config": groups},
        "traceEvents": rows,
    }


def everything_told(source: Path, out: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """All that is made of a trace with --redact."""
    out.mkdir()
    told = []
    for words in (["show", "all"], ["show", "all", "--format", "json"], ["show", "critical-path", "--format", "json"]):
        assert main([*words[:2], str(source), *words[2:], "--redact"]) == 0
        told.append(capsys.readouterr().out)
    assert main(["report", str(source), "--redact", "-o", str(out / "report.html"), "-q"]) == 0
    page = (out / "report.html").read_text(encoding="utf-8")
    told += [page, *(unpacked(text) for text in re.findall(r"[A-Za-z0-9+/=]{1000,}", page))]
    assert main(["export", "perfetto", str(source), "--redact", "-o", str(out / "a.pftrace"), "-q"]) == 0
    told.append((out / "a.pftrace").read_bytes().decode("latin-1"))
    assert main(["export", "parquet", str(source), "--redact", "-o", str(out / "tables"), "-q"]) == 0
    for file in (out / "tables").glob("*.parquet"):
        table = pq.read_table(file)
        told.append(f"{table.to_pylist()} {table.schema.metadata}")
    capsys.readouterr()
    return "\n".join(told)


def unpacked(text: str) -> str:
    """What is packed in a page."""
    try:
        return gzip.decompress(base64.b64decode(text)).decode()
    except (OSError, ValueError):
        return ""


@settings(max_examples=5, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(secret=SECRETS, place=st.sampled_from(PLACES))
def test_secrets_of_the_environment_are_never_told(
    secret: str, place: str, tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path_factory.mktemp("planted")
    source = folder / "rank0.pt.trace.json"
    source.write_text(json.dumps(planted(place, secret)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DEPLOY_TOKEN", secret)
        assert secret not in everything_told(source, folder / "out", capsys)


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        ("train.py --api-key=abcdef0123", "train.py --api-key=…"),
        ("Authorization: Bearer abc.def", "Authorization: Bearer …"),
        ("s3://me:hunter2@bucket/x", "s3://…@bucket/x"),
        ("sk-abcdefghijklmnop1234", "…"),
        ("tokens_per_expert=[3, 4]", "tokens_per_expert=[3, 4]"),
        ("token dispatch", "token dispatch"),
        ("key_projection = f32[4]", "key_projection = f32[4]"),
    ],
)
def test_what_looks_like_a_secret_is_hidden_and_what_models_say_is_not(text: str, redacted: str) -> None:
    assert Redaction([], []).text(text) == redacted
