"""`traceflow open`: viewers are really started, on loopback alone, and end with Ctrl-C."""

from __future__ import annotations

import gzip
import json
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from urllib.error import URLError
from urllib.parse import urlsplit
from urllib.request import ProxyHandler, build_opener

import pytest

from traceflow.cli import main
from traceflow.errors import TraceflowError
from traceflow.viewers import files_served, viewer_started

pytestmark = pytest.mark.xdist_group("viewers")
OPEN = [sys.executable, "-c", "import sys; from traceflow.cli import main; sys.exit(main())", "open"]


@contextmanager
def opened(source: Path, viewer: str, *options: str) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """The command as a process, and what it says until the viewer answers."""
    command = [*OPEN, str(source), "--in", viewer, "--no-browser", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        try:
            lines = []
            for line in process.stdout:
                lines.append(line.strip())
                if line.startswith("Ctrl-C"):
                    break
            yield process, lines
        finally:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(30)
            process.kill()


def get(url: str) -> tuple[bytes, dict[str, str]]:
    """What is at a URL, and the headers with it."""
    with build_opener(ProxyHandler({})).open(url, timeout=60) as response:
        body = response.read()
        return gzip.decompress(body) if body.startswith(b"\x1f\x8b") else body, dict(response.headers)


def end(process: subprocess.Popen[str], url: str, by: signal.Signals = signal.SIGINT) -> None:
    """Interrupt the command; nothing listens any more."""
    process.send_signal(by)
    assert process.wait(30) == 0
    with pytest.raises(OSError, match="refused"):
        socket.create_connection((urlsplit(url).hostname, urlsplit(url).port), timeout=5)


def test_the_report_is_shown(corpus: Callable[[str], Path]) -> None:
    with opened(corpus("kineto/a100_event_sync.json.gz"), "report") as (process, lines):
        assert lines[0].startswith("http://127.0.0.1:")
        page, _ = get(lines[0])
        assert b"a100_event_sync" in page
        end(process, lines[0])


def test_perfetto_gets_the_trace_and_its_page_is_only_named(corpus: Callable[[str], Path]) -> None:
    pytest.importorskip("perfetto", reason="its protobuf classes read what is served")
    from perfetto_reader import read

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with opened(corpus("kineto/a100_event_sync.json.gz"), "perfetto", "--port", str(port)) as (process, lines):
        url = f"http://127.0.0.1:{port}/capture.pftrace"
        assert lines[:2] == [url, f"To look at it, open https://ui.perfetto.dev/#!/?url={url}"]
        content, headers = get(url)
        assert headers["Access-Control-Allow-Origin"] == "https://ui.perfetto.dev"
        assert read(content).on("critical path")
        end(process, url, signal.SIGTERM)


@pytest.mark.parametrize("viewer", ["xprof", "tensorboard"])
def test_other_viewers_have_the_capture_loaded(viewer: str, corpus: Callable[[str], Path]) -> None:
    for module in {"xprof", viewer}:
        if find_spec(module) is None:
            pytest.skip(f"{module} is not installed")
    capture = corpus("xplane/mi300_gemm.xplane.pb")
    before = sorted(capture.parent.iterdir())
    with opened(capture, viewer) as (process, lines):
        base = lines[0].partition("#")[0]
        runs = json.loads(get(f"{base}data/plugin/profile/runs")[0])
        assert runs == ["xplane"]
        tools = json.loads(get(f"{base}data/plugin/profile/run_tools?run={runs[0]}")[0])
        assert "trace_viewer@" in tools
        end(process, lines[0])
    assert sorted(capture.parent.iterdir()) == before


def test_a_capture_without_xspace_is_refused(
    corpus: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("traceflow.viewers.find_spec", lambda _: True)
    with pytest.raises(TraceflowError, match="TF124"), viewer_started("xprof", corpus("kineto"), tmp_path):
        pytest.fail("nothing to show")
    with pytest.raises(TraceflowError, match="TF101"), viewer_started("xprof", tmp_path / "none", tmp_path):
        pytest.fail("nothing to show")
    monkeypatch.setattr("traceflow.viewers.find_spec", lambda _: None)
    with (
        pytest.raises(TraceflowError, match=r"TF123.*traceflow-ml\[xprof\]"),
        viewer_started("tensorboard", corpus("xplane"), tmp_path),
    ):
        pytest.fail("not installed")
    assert main(["open", str(tmp_path / "none")]) == 1
    assert "TF101" in capsys.readouterr().err


def test_a_viewer_that_ends_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.xplane.pb").touch()
    monkeypatch.setattr("traceflow.viewers.find_spec", lambda _: True)
    monkeypatch.setattr("traceflow.viewers._COMMANDS", {"xprof": lambda *_: ["-c", "import sys; sys.exit('no luck')"]})
    with pytest.raises(TraceflowError, match="TF125: cannot open xprof: no luck"):  # noqa: SIM117
        with viewer_started("xprof", tmp_path / "a.xplane.pb", tmp_path):
            pytest.fail("nothing runs")


def test_files_are_served_on_loopback_until_the_block_ends(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    with files_served(tmp_path) as url:
        assert url.startswith("http://127.0.0.1:")
        body, headers = get(f"{url}a.txt")
        assert body == b"a"
        assert "Access-Control-Allow-Origin" not in headers
        port = urlsplit(url).port or 0
        with pytest.raises(TraceflowError, match="TF125"), files_served(tmp_path, port=port):
            pytest.fail("the port is taken")
    with pytest.raises(URLError):
        get(url)
