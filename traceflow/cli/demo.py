"""`traceflow demo`: record one product in two forms, explain both, and say what that is worth."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from traceflow.cli import output as place
from traceflow.cli.answer import opened
from traceflow.cli.options import Force, Options
from traceflow.cli.progress import working
from traceflow.errors import TraceflowError

if TYPE_CHECKING:
    from traceflow.cli.forms import Form
    from traceflow.run import Run

_DEVICES = 8
_FORMS = ("gather", "ring")
_REPORT = "report.html"


def demo(
    options: Options,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="DIR", help="Folder to make.")] = Path("demo"),
    force: Force = False,
) -> None:
    """Record a collective matmul on simulated devices and explain it; needs JAX."""
    from traceflow.cli.forms import compared
    from traceflow.report.html import Part, write_comparison

    _refuse(output, force=force)
    _record(output, options, force=force)
    runs = {name: opened(str(output / name), options) for name in _FORMS}
    forms = {name: _explained(run) for name, run in runs.items()}
    color = place.colored(no_color=options.no_color)
    place.write(compared(forms, devices=_DEVICES, width=place.width(), color=color))
    with working("writing the report", options):
        parts = [Part(name, runs[name], form.step) for name, form in forms.items()]
        report = write_comparison(parts, output / _REPORT, force=force)
    place.write(f"Wrote {report}\n")


def _refuse(folder: Path, *, force: bool) -> None:
    """Say what is missing or in the way before anything is recorded."""
    if find_spec("jax") is None:
        hint = "pip install 'traceflow-ml[jax]'"
        raise TraceflowError("TF113", "cannot record the demo", "JAX is not installed", hint)
    taken = [path for name in (*_FORMS, _REPORT) if (path := folder / name).exists()]
    if taken and not force:
        raise TraceflowError(
            "TF110", f"cannot write {taken[0]}", "it exists already", "choose a folder with -o, or give -f"
        )


def _record(folder: Path, options: Options, *, force: bool) -> None:
    os.environ.setdefault("JAX_PLATFORMS", "cpu")  # only the host's devices are used: leave an accelerator alone
    from traceflow.collectors.workloads.collective_matmul import record_collective_matmul

    with working("recording the collective matmul", options):
        record_collective_matmul(folder, devices=_DEVICES, force=force)


def _explained(run: Run) -> Form:
    """A form with one of its steps explained: the one whose duration is closest to the median."""
    from traceflow.cli.forms import Form, steady_state

    summary = run.summary()
    median_ns = steady_state(summary).median_ns
    step = min(summary.steps, key=lambda step: abs(step.duration_ns - median_ns)).step
    return Form(summary, step, run.critical_path(step=step), run.communication(step=step))
