"""Others open what was recorded, as it lies there: XProf and TensorBoard, really started, on loopback alone."""

from __future__ import annotations

import gzip
import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import ProxyHandler, Request, build_opener

import pytest

import traceflow as tf

jax = pytest.importorskip("jax", reason="a capture to open is recorded with JAX")
pytestmark = pytest.mark.xdist_group("viewers")  # each is started once

PATIENCE_S = 120
PLUGIN = "/data/plugin/profile"

# XProf by itself would listen on all interfaces, and for other machines' work, too.
XPROF = """
import sys
from xprof import server
server._get_wildcard_address = lambda port: "127.0.0.1"
server._pywrap_profiler_plugin.start_grpc_server = lambda *arguments: None
server.start_server(sys.argv[1], int(sys.argv[2]))
"""
VIEWERS: dict[str, Callable[[Path, int], list[str]]] = {
    "xprof": lambda folder, port: ["-c", XPROF, str(folder), str(port)],
    "tensorboard": lambda folder, port: [
        *("-m", "tensorboard.main", "--logdir", str(folder)),
        *("--host", "127.0.0.1", "--port", str(port), "--load_fast", "false"),
    ],
}


@pytest.fixture(scope="module")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two steps of a product with a name to be found."""

    def attention_scores(x: Any) -> Any:
        return x @ x

    scores, x = jax.jit(attention_scores), jax.numpy.eye(64)
    path = tmp_path_factory.mktemp("viewers") / "capture"
    with tf.record(path, warmup=1) as recorder:
        for _ in range(3):
            with recorder.step() as step:
                step.ready(scores(x))
    return path


@pytest.fixture(scope="module")
def run(capture: Path) -> str:
    """The run's name, which is a folder's."""
    (folder,) = (capture / "plugins" / "profile").iterdir()
    return folder.name


@pytest.fixture(scope="module", params=VIEWERS)
def ask(request: pytest.FixtureRequest, capture: Path) -> Iterator[Callable[..., str]]:
    """Ask a viewer that was started on the capture's folder."""
    for module in {"xprof", request.param}:
        if find_spec(module) is None:
            pytest.skip(f"{module} is not installed")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with started(VIEWERS[request.param](capture, port), capture.parent / f"{request.param}.log") as process:
        yield lambda what, **query: answer(process, f"http://127.0.0.1:{port}{PLUGIN}/{what}?{urlencode(query)}")


@contextmanager
def started(arguments: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A viewer as a process of its own, stopped at the end."""
    with log.open("wb") as file, subprocess.Popen([sys.executable, *arguments], stdout=file, stderr=file) as process:
        try:
            yield process
        finally:
            process.kill()


def answer(process: subprocess.Popen[bytes], url: str) -> str:
    """What a viewer returns, as soon as it does."""
    direct, until = build_opener(ProxyHandler({})), time.monotonic() + PATIENCE_S
    while True:
        try:
            with direct.open(Request(url), timeout=PATIENCE_S) as response:  # noqa: S310  # loopback
                body = response.read()
            return (gzip.decompress(body) if body.startswith(b"\x1f\x8b") else body).decode()
        except URLError:
            assert process.poll() is None, "the viewer has ended"
            assert time.monotonic() < until, f"no answer within {PATIENCE_S} s"
            time.sleep(0.2)


def test_the_run_of_a_capture_is_listed_with_its_tools(ask: Callable[..., str], run: str) -> None:
    assert json.loads(ask("runs")) == [run]
    assert {"overview_page", "trace_viewer@", "memory_viewer", "hlo_stats"} <= set(
        json.loads(ask("run_tools", run=run))
    )


@pytest.fixture(scope="module")
def module(ask: Callable[..., str], run: str) -> str:
    """What viewers call the program."""
    (name,) = (name for name in ask("module_list", run=run).split(",") if name.startswith("jit_attention_scores("))
    return name


def test_a_tool_finds_the_program_that_was_recorded(ask: Callable[..., str], run: str, module: str) -> None:
    assert "dot" in ask("data", run=run, tag="graph_viewer", type="short_txt", module_name=module)


def test_a_tool_finds_the_memory_of_the_program(ask: Callable[..., str], run: str, module: str) -> None:
    (host,) = json.loads(ask("hosts", run=run, tag="memory_viewer"))
    where = {"run": run, "host": host["hostname"], "module_name": module, "memory_space": "0"}
    memory = json.loads(ask("data", tag="memory_viewer", **where))
    assert memory["moduleName"] == "jit_attention_scores"
    assert memory["entryComputationParametersMib"] == 64 * 64 * 4 / 2**20
