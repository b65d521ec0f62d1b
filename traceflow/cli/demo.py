"""`traceflow demo`: record computations, explain them, and say what that is worth."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
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
    from traceflow.cli.forms import Computation, Form, Forms, Routed
    from traceflow.report.html import Part
    from traceflow.run import Run

_DEVICES = 8
_REPORT = "report.html"
_FRAMEWORKS = {"jax": "JAX", "torch": "PyTorch"}


def demo(
    options: Options,
    torch: Annotated[bool, typer.Option("--torch", help="Record PyTorch on several processes instead.")] = False,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="DIR", help="Folder to make; demo or demo-torch by default."),
    ] = None,
    force: Force = False,
) -> None:
    """Record a collective matmul and a mixture of experts on simulated devices, and explain them; needs JAX."""
    if torch:
        _demo_torch(output or Path("demo-torch"), options, force=force)
    else:
        _demo_jax(output or Path("demo"), options, force=force)


def _demo_jax(output: Path, options: Options, *, force: bool) -> None:
    """Two computations, each in a good form and in one to learn from.

    For the mixture of experts that is `masked` and not `ragged`: rows that are multiplied for nothing are the same
    mistake on every backend, whereas `ragged` loses time only where XLA lacks a kernel for it, as it does on CPU.
    """
    from traceflow.cli.forms import EXPERTS, PRODUCT, compared
    from traceflow.report.html import Part
    from traceflow.report.subject import Asked

    computations = (PRODUCT, EXPERTS)
    names = [name for computation in computations for name in computation.forms]
    _refuse(output, names, "jax", force=force)
    _record_jax(output, options, force=force)
    runs = {name: opened(str(output / name), options) for name in names}
    recorded = [(computation, _forms(computation, output, runs)) for computation in computations]
    color = place.colored(no_color=options.no_color)
    place.write(compared(recorded, devices=_DEVICES, width=place.width(), color=color))
    parts = [
        Part(name, runs[name], Asked(form.step), what.title) for what, forms in recorded for name, form in forms.items()
    ]
    _report(parts, output, options, force=force)


def _demo_torch(output: Path, options: Options, *, force: bool) -> None:
    from traceflow.analyzers.stragglers import stragglers
    from traceflow.cli.ranks import LAYOUT, Explained, told
    from traceflow.report.html import Part
    from traceflow.report.subject import Asked

    _refuse(output, [LAYOUT], "torch", force=force)
    from traceflow.collectors.workloads.moe_torch import record_moe

    with working("recording the mixture of experts", options):
        record_moe(output / LAYOUT, layout=LAYOUT, force=force)
    run = opened(str(output / LAYOUT), options)
    summary = run.summary()
    step = summary.steps[-1].step  # of the two that the workload records, the one that met warmer caches
    late = stragglers(run.trace, run.dependencies, step=step)
    answers = run.critical_path(step=step), run.communication(step=step), late
    color = place.colored(no_color=options.no_color)
    place.write(told(Explained(step, summary, *answers), width=place.width(), color=color))
    _report([Part(LAYOUT, run, Asked(step))], output, options, force=force)


def _report(parts: Sequence[Part], folder: Path, options: Options, *, force: bool) -> None:
    from traceflow.report.html import write_comparison

    with working("writing the report", options):
        report = write_comparison(parts, folder / _REPORT, force=force)
    place.tell_written(report)


def _refuse(folder: Path, captures: Iterable[str], framework: str, *, force: bool) -> None:
    """Say what is missing or in the way before anything is recorded."""
    if find_spec(framework) is None:
        why, hint = f"{_FRAMEWORKS[framework]} is not installed", f"pip install 'traceflow-ml[{framework}]'"
        raise TraceflowError("TF113", "cannot record the demo", why, hint)
    taken = [path for name in (*captures, _REPORT) if (path := folder / name).exists()]
    if taken and not force:
        raise TraceflowError(
            "TF110", f"cannot write {taken[0]}", "it exists already", "choose a folder with -o, or give -f"
        )


def _record_jax(folder: Path, options: Options, *, force: bool) -> None:
    os.environ.setdefault("JAX_PLATFORMS", "cpu")  # only the host's devices are used: leave an accelerator alone
    from traceflow.cli.forms import EXPERTS
    from traceflow.collectors.workloads.collective_matmul import record_collective_matmul
    from traceflow.collectors.workloads.moe_jax import record_moe

    with working("recording the collective matmul", options):
        record_collective_matmul(folder, devices=_DEVICES, force=force)
    with working("recording the mixture of experts", options):
        record_moe(folder, variants=tuple(EXPERTS.forms), devices=_DEVICES, force=force)


def _forms(computation: Computation, folder: Path, runs: dict[str, Run]) -> Forms:
    return {name: _explained(runs[name], folder / name) for name in computation.forms}


def _explained(run: Run, capture: Path) -> Form:
    """A form with one of its steps explained: the one whose duration is closest to the median."""
    from traceflow.cli.forms import Form, steady_state

    summary = run.summary()
    median_ns = steady_state(summary).median_ns
    step = min(summary.steps, key=lambda step: abs(step.duration_ns - median_ns)).step
    return Form(summary, step, run.critical_path(step=step), run.communication(step=step), _routed(capture, step))


def _routed(capture: Path, step: int) -> Routed | None:
    """How the tokens of a step were routed, where the workload laid it into the capture."""
    from traceflow.cli.forms import Routed

    file = capture / "routing.npz"
    if not file.exists():
        return None
    import numpy as np

    with np.load(file) as counts:
        return Routed(*(int(counts[name][step].sum()) for name in ("rows", "assigned", "dropped")))
