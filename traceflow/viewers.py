"""Viewers on loopback: those of this package's files, and XProf and TensorBoard as processes of their own.

Nothing listens on any other interface, nothing is fetched, and what is shown is not written to: other viewers get a
folder of links.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path

from traceflow.errors import TraceflowError

LOOPBACK = "127.0.0.1"
_PATIENCE_S = 120
_GRACE_S = 5

# XProf by itself would listen on all interfaces, and for other machines' work, too.
_XPROF = f"""
import sys
from xprof import server
server._get_wildcard_address = lambda port: "{LOOPBACK}"
server._pywrap_profiler_plugin.start_grpc_server = lambda *arguments: None
server.start_server(sys.argv[1], int(sys.argv[2]))
"""
_COMMANDS: Mapping[str, Callable[[Path, int], list[str]]] = {
    "xprof": lambda folder, port: ["-c", _XPROF, str(folder), str(port)],
    "tensorboard": lambda folder, port: [
        *("-m", "tensorboard.main", "--logdir", str(folder), "--host", LOOPBACK, "--port", str(port)),
        *("--load_fast", "false"),
    ],
}
_PAGES = {"xprof": "", "tensorboard": "#profile"}


@contextmanager
def files_served(folder: Path, *, port: int = 0, reader: str = "") -> Iterator[str]:
    """Serve the files of a folder on loopback until the block ends, and give its URL.

    Args:
        folder: What to serve.
        port: Where; any free port where 0.
        reader: The origin of a page elsewhere that may read them, such as ``"https://ui.perfetto.dev"``.

    Raises:
        TraceflowError: TF125 when the port is taken.
    """
    from threading import Thread

    try:
        server = ThreadingHTTPServer((LOOPBACK, port), partial(_Files, reader, directory=str(folder)))
    except OSError as error:
        raise _not_started(f"port {port}", error.strerror or "it is taken", "choose another with --port") from error
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://{LOOPBACK}:{server.server_port}/"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Files(SimpleHTTPRequestHandler):
    """Hands out files, in silence."""

    def __init__(self, reader: str, *given: object, directory: str) -> None:
        self._reader = reader
        super().__init__(*given, directory=directory)  # type: ignore[arg-type]

    def end_headers(self) -> None:
        """Say who may read, and that nothing is to be kept."""
        if self._reader:
            self.send_header("Access-Control-Allow-Origin", self._reader)
        self.send_header("Cache-Control", "no-store")
        super().end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def viewer_started(viewer: str, capture: Path, scratch: Path, *, port: int = 0) -> Iterator[str]:
    """Start XProf or TensorBoard on a capture until the block ends, and give its URL once it answers.

    Args:
        viewer: ``"xprof"`` or ``"tensorboard"``.
        capture: A capture, a TensorBoard log directory or an XSpace file.
        scratch: An empty folder, for links and for what the viewer has to say.
        port: Where it listens; any free port where 0.

    Raises:
        TraceflowError: TF123 when it is not installed, TF124 when there is nothing that it reads, TF125 when it does
            not start.
    """
    _check_installed(viewer)
    folder = _linked(viewer, capture, scratch / "logdir")
    port, log = port or _free_port(), scratch / "log"
    command = [sys.executable, *_COMMANDS[viewer](folder, port)]
    with log.open("wb") as file, subprocess.Popen(command, stdout=file, stderr=file, cwd=scratch) as process:
        try:
            _await(viewer, process, port, log)
            yield f"http://{LOOPBACK}:{port}/{_PAGES[viewer]}"
        finally:
            _end(process)


def _linked(viewer: str, capture: Path, folder: Path) -> Path:
    """A log directory of links to the profiles of a capture: viewers write what they work out beside those."""
    if not capture.exists():
        raise TraceflowError("TF101", f"cannot open {capture}", "no such file or folder", "check the path")
    found = [capture] if capture.is_file() else sorted(capture.rglob("*.xplane.pb"))
    profiles = [file for file in found if file.name.endswith(".xplane.pb")]
    if not profiles:
        what, why = f"cannot open {capture} in {viewer}", "it holds no XSpace (.xplane.pb), which is all that it reads"
        raise TraceflowError("TF124", what, why, "open it in report or perfetto")
    for file in profiles:
        link = folder / "plugins" / "profile" / file.parent.name / file.name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(file.resolve())
    return folder


def _check_installed(viewer: str) -> None:
    for module in ("xprof", viewer):
        if find_spec(module) is None:
            hint = "pip install 'traceflow-ml[xprof]'"
            raise TraceflowError("TF123", f"cannot open {viewer}", f"{module} is not installed", hint)


def _free_port() -> int:
    with socket.socket() as free:
        free.bind((LOOPBACK, 0))
        port: int = free.getsockname()[1]
        return port


def _await(viewer: str, process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    """Return as soon as something listens."""
    until = time.monotonic() + _PATIENCE_S
    while True:
        with suppress(OSError), socket.create_connection((LOOPBACK, port), timeout=1):
            return
        if process.poll() is not None or time.monotonic() > until:
            lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
            last = next((line.strip() for line in reversed(lines) if line.strip()), "it says nothing")
            raise _not_started(viewer, last, "start it by hand on the folder of the capture to see more")
        time.sleep(0.1)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(_GRACE_S)
    process.kill()


def _not_started(what: str, why: str, hint: str) -> TraceflowError:
    return TraceflowError("TF125", f"cannot open {what}", why, hint)
