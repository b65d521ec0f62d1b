"""`traceflow show WHAT INPUT`: one result in the terminal, or as JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from traceflow.cli.answer import answer, opened
from traceflow.cli.options import AnswerOptions, Source, StatedPlan, Step, Top, Window, group
from traceflow.cli.project import hardware_named

if TYPE_CHECKING:
    from traceflow.result import Json


def everything(options: AnswerOptions, source: Source, step: Step = None, top: Top = 12) -> None:
    """Every question at once, abridged: findings first, then figures, at most 50 kB as JSON."""
    answer(options, source, lambda run: run.digest(step=step), request={"step": step}, top=top)


def summary(options: AnswerOptions, source: Source, top: Top = 40) -> None:
    """Ranks, devices, steps and the quality of the evidence."""
    answer(options, source, lambda run: run.summary(), top=top)


def critical_path(
    options: AnswerOptions,
    source: Source,
    step: Step = None,
    window: Window = None,
    slack: Annotated[bool, typer.Option("--slack", help="Also how much later each slice could have ended.")] = False,
    top: Top = 12,
) -> None:
    """The chain of work and waiting that decided how long the window took."""
    request: dict[str, Json] = {"step": step, "window": window}
    answer(
        options, source, lambda run: run.critical_path(step=step, window=window, slack=slack), request=request, top=top
    )


def communication(
    options: AnswerOptions,
    source: Source,
    step: Step = None,
    window: Window = None,
    plan: StatedPlan = None,
    top: Top = 12,
) -> None:
    """Busy, exposed and removable communication, what it is for, and every collective split into wait and transfer."""
    request: dict[str, Json] = {"step": step, "window": window, "plan": plan}
    stated = None
    if plan is not None:
        from traceflow.cli.plan import plan_named

        stated = plan_named(plan)
    answer(
        options,
        source,
        lambda run: run.communication(step=step, window=window, plan=stated),
        request=request,
        top=top,
    )


def clocks(options: AnswerOptions, source: Source, top: Top = 40) -> None:
    """What to subtract from each rank's timestamps, and how sure that is."""
    answer(options, source, lambda run: run.clocks(), top=top)


def stragglers(options: AnswerOptions, source: Source, step: Step = None, window: Window = None, top: Top = 12) -> None:
    """Who was late by their own doing, and what that cost."""
    request: dict[str, Json] = {"step": step, "window": window}
    answer(options, source, lambda run: run.stragglers(step=step, window=window), request=request, top=top)


def savings(options: AnswerOptions, source: Source, step: Step = None, window: Window = None, top: Top = 12) -> None:
    """What would shorten the window most, and how short it would be at best."""
    request: dict[str, Json] = {"step": step, "window": window}
    answer(options, source, lambda run: run.savings(step=step, window=window, top=top), request=request, top=top)


def memory(
    options: AnswerOptions,
    source: Source,
    without: Annotated[
        list[str] | None, typer.Option(metavar="PATTERN", help="What the peak would be without these buffers.")
    ] = None,
    donate: Annotated[
        list[str] | None, typer.Option(metavar="PATTERN", help="What it would be with these arguments donated.")
    ] = None,
    top: Top = 12,
) -> None:
    """What is in memory at the peak and why, what allocators handed out, and what was moved."""
    answer(
        options,
        source,
        lambda run: run.memory(without=without or (), donate=donate or ()),
        request={"without": [*(without or ())], "donate": [*(donate or ())]},
        top=top,
    )


def moe(options: AnswerOptions, source: Source, step: Step = None, top: Top = 12) -> None:
    """How tokens went to experts, what the exchange moved, and what perfect balance would save."""
    answer(options, source, lambda run: run.moe(step=step), request={"step": step}, top=top)


def padding(options: AnswerOptions, source: Source, top: Top = 12) -> None:
    """What layouts and shards take beyond the values themselves."""
    answer(options, source, lambda run: run.padding(), top=top)


def budget(
    options: AnswerOptions,
    source: Source,
    hardware: Annotated[
        str | None, typer.Option(metavar="NAME", help="What it ran on, such as h100; cpu measures this machine.")
    ] = None,
    step: Step = None,
    window: Window = None,
    top: Top = 12,
) -> None:
    """What each operation computes, moves and sends, how long that takes at least, and how long it took."""
    request: dict[str, Json] = {"step": step, "window": window, "hardware": hardware}
    chosen = None if hardware is None else hardware_named(hardware)
    answer(
        options,
        source,
        lambda run: run.budget(hardware=chosen, step=step, window=window),
        request=request,
        top=top,
    )


def collective_matmul(
    options: AnswerOptions,
    source: Source,
    undivided: Annotated[
        Path | None, typer.Option(metavar="INPUT", help="A run of the same product in one piece, to compare with.")
    ] = None,
    step: Step = None,
    window: Window = None,
    top: Top = 12,
) -> None:
    """Products that are cut into rounds, whether that hides what is sent, and those that could be cut."""
    compared = None if undivided is None else str(undivided)
    request: dict[str, Json] = {"undivided": compared, "step": step, "window": window}
    whole = None if compared is None else opened(compared, options)
    answer(
        options,
        source,
        lambda run: run.collective_matmul(step=step, window=window, undivided=whole),
        request=request,
        top=top,
    )


def sharding(
    options: AnswerOptions,
    source: Source,
    intent: Annotated[
        Path | None, typer.Option("--intent", metavar="FILE", help="What the program does not say itself, in TOML.")
    ] = None,
    step: Step = None,
    top: Top = 12,
) -> None:
    """How arrays were meant to lie on the mesh, how they do, and the collectives that nobody asked for."""
    from traceflow.intent.file import read_intent

    stated = None if intent is None else read_intent(intent)
    request: dict[str, Json] = {"intent": None if intent is None else str(intent), "step": step}
    answer(options, source, lambda run: run.sharding(stated, step=step), request=request, top=top)


QUESTIONS: Mapping[str, Callable[..., None]] = {
    "all": everything,
    "summary": summary,
    "critical-path": critical_path,
    "communication": communication,
    "clocks": clocks,
    "stragglers": stragglers,
    "savings": savings,
    "memory": memory,
    "moe": moe,
    "padding": padding,
    "sharding": sharding,
    "collective-matmul": collective_matmul,
    "budget": budget,
}


def show_verbs(line: Sequence[str]) -> typer.Typer:
    """The verbs below `show`; where one is asked for, that one alone."""
    return group("Show one result: a table, or JSON with --format json.", QUESTIONS, line)
