"""`traceflow plan`: what follows from a parallel plan, before anything runs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from traceflow.cli import output
from traceflow.cli.answer import tell
from traceflow.cli.options import Top, WriteOptions, verb

if TYPE_CHECKING:
    from traceflow.intent.plan import Batch, Model, ParallelPlan, Plan, Preset, Training
    from traceflow.trace.model import Trace

    Given = TypeVar("Given", ParallelPlan, Model, Batch, Training)


def _option(text: str, *names: str, metavar: str | None = "N") -> Any:
    return typer.Option(*names, metavar=metavar, help=text)


@dataclass(frozen=True)
class PlanOptions(WriteOptions):
    """Every size that a plan, its model, its batch and its training have; None leaves it to the preset or its default."""

    preset: Annotated[str | None, _option("A model or workload that is known by name.", metavar="NAME")] = None
    world: Annotated[int | None, _option("All ranks.")] = None
    pp: Annotated[int | None, _option("Stages of the pipeline.")] = None
    vpp: Annotated[int | None, _option("Parts of the model that each stage holds.")] = None
    tp: Annotated[int | None, _option("Ranks that share a dense matrix.")] = None
    sp: Annotated[bool | None, _option("Tokens are split over TP between matrices.", "--sp/--no-sp", metavar=None)] = (
        None
    )
    cp: Annotated[int | None, _option("Ranks that share a sequence.")] = None
    ep: Annotated[int | None, _option("Ranks that hold different experts.")] = None
    etp: Annotated[int | None, _option("Ranks that share an expert's matrices.")] = None
    gtp: Annotated[int | None, _option("Ranks that gather a dense matrix before use.")] = None
    egtp: Annotated[int | None, _option("Ranks that gather an expert's matrices before use.")] = None
    gtp_sequence_shards: Annotated[int | None, _option("Of GTP, how many ranks share a sequence.")] = None
    order: Annotated[str | None, _option("Order of ranks, the fastest first.", metavar="NAMES")] = None
    next_ep: Annotated[int | None, _option("Another EP, for where each expert goes.")] = None
    hidden: Annotated[int | None, _option("Width of a token.")] = None
    experts: Annotated[int | None, _option("Routed experts of a layer.")] = None
    topk: Annotated[int | None, _option("Routed experts per token.")] = None
    expert_hidden: Annotated[int | None, _option("Width inside an expert.")] = None
    layers: Annotated[int | None, _option("Layers with experts.")] = None
    shared_experts: Annotated[int | None, _option("Experts of a layer that meet every token.")] = None
    shared_hidden: Annotated[int | None, _option("Width inside a shared expert.")] = None
    mtp_layers: Annotated[int | None, _option("Layers that predict further tokens.")] = None
    hash_layers: Annotated[int | None, _option("Layers that route by the token's number.")] = None
    latent: Annotated[int | None, _option("Width of what is sent to experts.")] = None
    capacity_factor: Annotated[float | None, _option("Room per expert and source, relative to an even load.")] = None
    residual_streams: Annotated[int | None, _option("Widening of what stages hand on (mHC).")] = None
    dense_parameters: Annotated[int | None, _option("What a rank holds of a layer's attention and norms.")] = None
    attention_tp: Annotated[int | None, _option("The largest TP that attention allows.")] = None
    dtype: Annotated[str | None, _option("Of activations and weights.", metavar="TYPE")] = None
    router_dtype: Annotated[str | None, _option("Of probabilities.", metavar="TYPE")] = None
    sequence: Annotated[int | None, _option("Tokens of a sequence.")] = None
    micro_batch: Annotated[int | None, _option("Sequences at a time.")] = None
    global_batch: Annotated[int | None, _option("Sequences of a step.")] = None
    dispatcher: Annotated[str | None, _option("alltoall, allgather or flex.", metavar="NAME")] = None
    optimizer: Annotated[str | None, _option("replicated, distributed or muon.", metavar="NAME")] = None
    gradient_dtype: Annotated[str | None, _option("Of gradients that are reduced.", metavar="TYPE")] = None
    balancing: Annotated[str | None, _option("Sum up counts of experts: none, local, global.", metavar="NAME")] = None
    balancing_vectors: Annotated[int | None, _option("Numbers per expert that are summed up.")] = None
    virtual_experts: Annotated[int | None, _option("Copies of hot experts that a rank has room for.")] = None
    overlap_shared_expert: Annotated[
        bool | None, _option("Shared expert during exchange.", "--overlap-shared-expert", metavar=None)
    ] = None
    overlap_batches: Annotated[
        bool | None, _option("Exchange during other micro-batches.", "--overlap-batches", metavar=None)
    ] = None

    def given(self) -> dict[str, Any]:
        """What was said of the plan, in words of the command line's own order."""
        own = {field.name for field in fields(PlanOptions)} - {field.name for field in fields(WriteOptions)}
        values = {field.name: getattr(self, field.name) for field in fields(self) if field.name in own}
        return {name: value for name, value in values.items() if value is not None}


@dataclass(frozen=True)
class _Stated:
    """A plan stands in no trace: it is what was said."""

    inputs: tuple[str, ...]
    trace: Trace


def plan_verb(options: PlanOptions, context: typer.Context, top: Top = 40) -> None:
    """Groups, shapes, payloads and weights of a parallel plan, and what does not fit together."""
    if context.invoked_subcommand is not None:
        return
    from traceflow.report.json import envelope
    from traceflow.trace.untraced import untraced

    output.refuse_existing(options.output or output.STDOUT, force=options.force)
    given = options.given()
    result = planned(given, options.preset)
    stated = _Stated(tuple(f"{name.replace('_', ' ')} {value}" for name, value in given.items()), untraced())
    tell(envelope(result, stated, given), options, top=top)


def planned(given: dict[str, Any], preset: str | None) -> Plan:
    """The plan of a preset, with what was given in place of its own."""
    from traceflow.intent.plan import plan_step

    return plan_step(*_parts(given, _preset(preset)), next_ep=given.get("next_ep"))


def plan_named(text: str) -> Plan:
    """A plan by the name of a preset, or by sizes such as `world=8,ep=4`."""
    from traceflow.intent.plan import PRESETS

    if "=" not in text:
        if text not in PRESETS:
            there = ", ".join(name for name, preset in PRESETS.items() if preset.parallel)
            raise typer.BadParameter(f"no plan {text!r}; there are {there}, or say world=N,ep=N", param_hint="--plan")
        return planned({}, text)
    pairs = [part.partition("=") for part in text.split(",")]
    sizes = {field.name for field in fields(PlanOptions) if str(field.type).startswith("Annotated[int")}
    if wrong := [name for name, _, value in pairs if name not in sizes or not re.fullmatch(r"\d{1,18}", value)]:
        raise typer.BadParameter(f"no size {wrong[0]!r}; say world=N,ep=N and the like", param_hint="--plan")
    return planned({name: int(value) for name, _, value in pairs}, None)


def _preset(name: str | None) -> Preset | None:
    from traceflow.intent.plan import PRESETS

    if name is None:
        return None
    if name not in PRESETS:
        raise typer.BadParameter(f"no preset {name!r}; there are {', '.join(PRESETS)}", param_hint="--preset")
    return PRESETS[name]


def _parts(given: dict[str, Any], preset: Preset | None) -> tuple[ParallelPlan, Model | None, Batch | None, Training]:
    """The parts of a plan: those of the preset, with what was given in place of its own."""
    from traceflow.intent.plan import Batch, Model, ParallelPlan, Training

    parallel = _part(ParallelPlan, given, preset.parallel if preset else None, ("world",))
    if parallel is None:
        raise typer.BadParameter("say how many ranks there are, or name a preset that says it", param_hint="--world")
    sizes = ("hidden", "experts", "topk", "expert_hidden")
    return (
        parallel,
        _part(Model, given, preset.model if preset else None, sizes),
        _part(Batch, given, preset.batch if preset else None, ("sequence",)),
        _part(Training, given, preset.training if preset else Training()) or Training(),
    )


def _part(made: type[Given], given: dict[str, Any], known: Given | None, needed: Iterable[str] = ()) -> Given | None:
    own = {field.name: given[field.name] for field in fields(made) if field.name in given}
    if known is not None:
        return replace(known, **own)
    if missing := [f"--{name.replace('_', '-')}" for name in needed if name not in own] if own else []:
        raise typer.BadParameter("what else is said needs it", param_hint=missing[0])
    return made(**own) if own else None


def plan_verbs(line: Sequence[str]) -> typer.Typer:
    """The verb `plan`, and those below it."""
    from traceflow.cli.plan_check import plan_check
    from traceflow.cli.plan_compare import plan_compare

    del line  # `plan` itself, with its many options, is needed for all of them
    group = typer.Typer(invoke_without_command=True, rich_markup_mode=None, subcommand_metavar="[COMMAND]")
    group.callback()(verb(plan_verb))
    group.command("compare")(verb(plan_compare))
    group.command("check")(verb(plan_check))
    return group
