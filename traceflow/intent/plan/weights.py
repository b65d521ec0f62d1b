"""Parameters, gradients and optimiser states that a rank keeps, and their bytes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from traceflow.intent.plan.model import ITEM_BYTES, Model, Training
from traceflow.intent.plan.parallel import ParallelPlan
from traceflow.intent.plan.payload import held_parameters

if TYPE_CHECKING:
    from traceflow.result import Json

_MOMENTS = {"replicated": 2, "distributed": 2, "muon": 1}  # of Adam, and of Muon
_F32_BYTES = 4


@dataclass(frozen=True, slots=True)
class Weight:
    """What one rank keeps; `of` tells of how much of the model."""

    name: str
    of: str
    parameters: int
    bytes: int

    def to_dict(self) -> dict[str, Json]:
        """A row of `weights`."""
        return {"name": self.name, "of": self.of, "parameters": self.parameters, "bytes": self.bytes}


def weights(parallel: ParallelPlan, model: Model, training: Training) -> tuple[Weight, ...]:
    """Weights of one rank, by layer and by stage; attention and norms are not part of it.

    A stage counts as the fullest one if layers are dealt out as evenly as they can be: ceil(layers / PP) of them.
    Layers that predict further tokens (MTP) stand apart, since no rule says where they are.

    Args:
        parallel: A plan whose sizes divide those of the model.
        model: Sizes of the model.
        training: What is kept of gradients and of the optimiser's state.

    Example:
        >>> model = Model(hidden=7168, experts=384, topk=6, expert_hidden=3072, layers=61)
        >>> rows = weights(ParallelPlan(world=1024, pp=8, cp=2, ep=64), model, Training())
        >>> [row.bytes for row in rows if row.name == "routed_experts" and row.of == "a layer"]
        [792723456]
    """
    held = held_parameters(parallel, model)
    return (
        Weight("routed_expert", "one, whole", model.expert_parameters, model.expert_parameters * model.item_bytes),
        *_layer(parallel, model, held),
        *_stage(parallel, model, training, held),
    )


def layers_of_a_stage(parallel: ParallelPlan, model: Model) -> int:
    """Layers of the fullest stage, if they are dealt out as evenly as they can be."""
    return -(-model.layers // parallel.pp)


def _layer(parallel: ParallelPlan, model: Model, held: int) -> Iterator[Weight]:
    sizes = {
        "routed_experts": held,
        "shared_experts": model.shared_parameters // (parallel.tp * parallel.gtp),
        "router": model.hidden * model.experts,
        "latent_projections": 2 * model.hidden * (model.latent or 0),
    }
    for name, parameters in sizes.items():
        if parameters:
            yield Weight(name, "a layer", parameters, parameters * model.item_bytes)


def _stage(parallel: ParallelPlan, model: Model, training: Training, held: int) -> Iterator[Weight]:
    """Routed experts of all layers of a stage.

    The state of Adam or Muon is kept in f32, with a copy of the weights if they are of another type; an optimiser that
    updates a part keeps the state of that part alone.
    """
    count = layers_of_a_stage(parallel, model)
    of, parameters = f"a stage of {count} layers" if count > 1 else "a stage of 1 layer", held * count
    own = parameters if training.optimizer == "replicated" else -(-parameters // parallel.expert_data_parallel)
    yield Weight("routed_experts", of, parameters, parameters * model.item_bytes)
    yield Weight("routed_experts_gradients", of, parameters, parameters * ITEM_BYTES[training.gradient_dtype])
    copies = _MOMENTS[training.optimizer] + (model.dtype != "f32")
    yield Weight("routed_experts_optimizer", of, own, own * copies * _F32_BYTES)
    if model.mtp_layers:
        extra = held * model.mtp_layers
        yield Weight("routed_experts", f"{model.mtp_layers} MTP layers", extra, extra * model.item_bytes)
    if training.virtual_experts:
        copies = training.virtual_experts * model.expert_parameters
        yield Weight("virtual_experts", "a layer", copies, copies * model.item_bytes)
