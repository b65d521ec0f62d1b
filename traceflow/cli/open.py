"""`traceflow open CAPTURE --in VIEWER`: look at a capture, on loopback, until Ctrl-C."""

from __future__ import annotations

import signal
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event
from typing import Annotated

import typer

from traceflow.cli import output as place
from traceflow.cli.answer import opened
from traceflow.cli.options import ReadOptions, Source, Step
from traceflow.cli.progress import working

_PERFETTO = "https://ui.perfetto.dev"
_PERFETTO_PORT = 9001  # the only one that Perfetto's page may read from


class Viewer(StrEnum):
    """What a capture can be opened in."""

    REPORT = "report"
    XPROF = "xprof"
    TENSORBOARD = "tensorboard"
    PERFETTO = "perfetto"


def open_in(
    options: ReadOptions,
    source: Source,
    viewer: Annotated[Viewer, typer.Option("--in", help="What to look at it with.")] = Viewer.REPORT,
    step: Step = None,
    port: Annotated[
        int | None, typer.Option(metavar="N", min=1, max=65535, help="Where to listen; without it, where it is free.")
    ] = None,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Show the page in a browser.")] = True,
) -> None:
    """Start a viewer on loopback with a capture loaded; Ctrl-C ends it."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # who asks it to end gets an end as with Ctrl-C
    with (
        TemporaryDirectory(prefix="traceflow-") as scratch,
        _started(viewer, options, source, step=step, port=port, scratch=Path(scratch)) as url,
        suppress(KeyboardInterrupt),
    ):
        if viewer is Viewer.PERFETTO:
            place.write(f"{url}\nTo look at it, open {_PERFETTO}/#!/?url={url}\n")
        else:
            place.write(f"{url}\n")
            if browser:
                webbrowser.open(url)
        place.write("Ctrl-C ends it.\n")
        Event().wait()


@contextmanager
def _started(
    viewer: Viewer, options: ReadOptions, source: str, *, step: int | None, port: int | None, scratch: Path
) -> Iterator[str]:
    """A viewer as long as the block runs, and the URL of its page; of Perfetto's, which is elsewhere, of the trace."""
    from traceflow.viewers import files_served, viewer_started

    if viewer in {Viewer.XPROF, Viewer.TENSORBOARD}:
        if options.redact:
            raise typer.BadParameter(f"{viewer} shows the files as they are", param_hint="--redact")
        with viewer_started(viewer, Path(source), scratch, port=port or 0) as url:
            yield url
        return
    run = opened(source, options)
    with working("writing what is shown", options):
        if viewer is Viewer.REPORT:
            page, reader = run.report(scratch / "index.html", step=step), ""
        else:
            page, reader = run.to_perfetto(scratch / "capture.pftrace", step=step), _PERFETTO
    free = _PERFETTO_PORT if viewer is Viewer.PERFETTO else 0
    with files_served(scratch, port=port or free, reader=reader) as url:
        yield f"{url}{page.name}"
