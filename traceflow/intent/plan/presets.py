"""Plans that are known by name: a published model, and the workloads that come with traceflow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from traceflow.intent.plan.model import Batch, Model, Training
from traceflow.intent.plan.parallel import ParallelPlan


@dataclass(frozen=True, slots=True)
class Preset:
    """Sizes of a model and its batch, and where it belongs to them, the plan."""

    model: Model
    batch: Batch
    parallel: ParallelPlan | None = None
    training: Training = field(default_factory=Training)


_V4_PRO = Model(
    hidden=7168,
    experts=384,
    topk=6,
    expert_hidden=3072,
    layers=61,
    shared_experts=1,
    hash_layers=3,
    residual_streams=4,
    attention_tp=1,
)
_STEM_AND_HEAD = 2 * 64 * 64 + 1  # the loss goes with their gradients
_TORCH = Model(
    hidden=64, experts=8, topk=2, expert_hidden=128, shared_experts=1, dense_parameters=_STEM_AND_HEAD, dtype="f32"
)
_JAX = Model(
    hidden=64,
    experts=16,
    topk=2,
    expert_hidden=128,
    capacity_factor=1.25,
    dense_parameters=_STEM_AND_HEAD,
    dtype="f32",
)
_TORCH_BATCH = Batch(sequence=256, global_batch=4)  # 1024 tokens on four processes
_TORCH_TRAINING = Training(balancing="global", balancing_vectors=2)

PRESETS: Mapping[str, Preset] = {
    "deepseek-v4-pro": Preset(_V4_PRO, Batch(sequence=8192, global_batch=4096)),
    "moe-torch-ep2-edp2": Preset(_TORCH, _TORCH_BATCH, ParallelPlan(world=4, ep=2), _TORCH_TRAINING),
    "moe-torch-ep4": Preset(_TORCH, _TORCH_BATCH, ParallelPlan(world=4, ep=4), _TORCH_TRAINING),
    "moe-torch-etp2-ep2": Preset(_TORCH, _TORCH_BATCH, ParallelPlan(world=4, etp=2, ep=2), _TORCH_TRAINING),
    "moe-jax": Preset(_JAX, Batch(sequence=128, global_batch=8), ParallelPlan(world=8, ep=8)),
}
"""By name. The batch of a published model is an example: 8192 tokens at a time, 4096 sequences a step."""
