"""`traceflow run -- PROGRAM`: record a program as it is."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from traceflow.cli.options import Force, Options

if TYPE_CHECKING:
    from traceflow.capture import Manifest
    from traceflow.launch import Launched


def run(
    options: Options,
    command: Annotated[list[str], typer.Argument(metavar="-- PROGRAM [ARGUMENTS]", help="What to run.")],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="DIR", help="Capture to make; else named after the program."),
    ] = None,
    force: Force = False,
    steps: Annotated[int, typer.Option(metavar="N", min=1, help="Steps to record.")] = 5,
    warmup: Annotated[int, typer.Option(metavar="N", min=1, help="Steps before them.")] = 2,
    after: Annotated[
        float,
        typer.Option(metavar="SECONDS", min=0, help="JAX without annotated steps: wait after the first compilation."),
    ] = 0,
    seconds: Annotated[
        float, typer.Option(metavar="SECONDS", min=0, help="JAX without annotated steps: record so long.")
    ] = 10,
    hlo: Annotated[bool, typer.Option(help="JAX: keep the compiled programs.")] = True,
    xla_dump: Annotated[bool, typer.Option("--xla-dump", help="JAX: keep what XLA dumps of each program.")] = False,
    memory: Annotated[bool, typer.Option("--memory", help="PyTorch: record every allocation.")] = False,
    memory_categories: Annotated[
        bool, typer.Option("--memory-categories", help="PyTorch: tell what memory is used for. Slows the host.")
    ] = False,
    execution_trace: Annotated[
        bool, typer.Option("--execution-trace", help="PyTorch: keep the execution trace of one more step.")
    ] = False,
) -> None:
    """Run a program, unchanged, and record some of its steps; exits as the program does.

    Steps are those that JAX's StepTraceAnnotation marks, or that a PyTorch optimizer takes.
    """
    from traceflow.capture import Options as Wanted
    from traceflow.launch import launch

    path = output or Path(capture_name(command))
    wanted = Wanted(
        warmup=warmup,
        steps=steps,
        hlo=hlo,
        memory=memory,
        xla_dump=xla_dump,
        memory_categories=memory_categories,
        execution_trace=execution_trace,
    )
    launched = launch(command, path, wanted, after_s=after, seconds=seconds, force=force)
    for line in _told(launched, path, quiet=options.quiet):
        sys.stderr.write(f"{line}\n")
    raise SystemExit(launched.exit_code)


def _told(launched: Launched, path: Path, *, quiet: bool) -> Iterator[str]:
    """What is said at the end."""
    from traceflow.recording import lacks

    if launched.problem is not None:
        yield f"warning: {launched.problem}"
    if launched.manifest is not None:
        everybody = (launched.manifest, *launched.manifest.peers)
        lacking = dict.fromkeys(what for manifest in everybody for what in manifest.missing)
        yield from (f"warning: {lacks(path, what)}" for what in lacking)
    if launched.manifest is not None and not quiet:
        yield f"traceflow: {_recorded(launched.manifest)} in {path}"
    if launched.own is not None and not quiet:
        yield f"traceflow: the program records itself, in {launched.own}"


def _recorded(manifest: Manifest) -> str:
    """What a capture holds, in a few words."""
    steps, processes = len(manifest.steps), 1 + len(manifest.peers)
    window = manifest.launch is not None and manifest.launch.steps_are is None
    recorded = "a window" if window else f"{steps} step{'s' * (steps > 1)}"
    return f"recorded {recorded} of {processes} process{'es' * (processes > 1)}"


def capture_name(command: Sequence[str]) -> str:
    """The name of a capture, after the program: its script or module, where one is given.

    Example:
        >>> capture_name(["python", "-u", "src/train.py", "--lr", "1"]), capture_name(["python", "-m", "my.train"])
        ('traceflow-run-train', 'traceflow-run-my.train')
        >>> capture_name(["./launch.sh", "a"])
        'traceflow-run-launch'
    """
    scripts = [word for word in command if word.endswith(".py")]
    modules = [word for flag, word in pairwise(command) if flag == "-m"]
    return f"traceflow-run-{Path(scripts[0]).stem if scripts else modules[0] if modules else Path(command[0]).stem}"
