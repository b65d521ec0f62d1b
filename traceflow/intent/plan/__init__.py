"""Parallel plans, and what follows from them by arithmetic: groups, shapes, payloads, weights, scaling.

Example:
    >>> from traceflow.intent.plan import PRESETS, ParallelPlan, plan_step
    >>> known = PRESETS["deepseek-v4-pro"]
    >>> plan = plan_step(ParallelPlan(world=1024, pp=8, cp=2, ep=64), known.model, known.batch)
    >>> [(row.bytes, row.remote_bytes) for row in plan.payload if row.operation == "dispatch"]
    [(352321536, 346816512), (352321536, 346816512)]
"""

from traceflow.intent.plan.capacity import capacity
from traceflow.intent.plan.dispatchers import Dispatcher, dispatchers
from traceflow.intent.plan.experts import Place, experts_held, moves, place
from traceflow.intent.plan.gradients import GradientScaling, gradient_scaling
from traceflow.intent.plan.model import Batch, Model, Training
from traceflow.intent.plan.parallel import ParallelPlan
from traceflow.intent.plan.payload import Payload, mirrored, payloads
from traceflow.intent.plan.presets import PRESETS, Preset
from traceflow.intent.plan.problems import Problem, problems
from traceflow.intent.plan.result import Plan, plan_step
from traceflow.intent.plan.shapes import Shape, local_shapes
from traceflow.intent.plan.tokens import Tokens, count_tokens
from traceflow.intent.plan.weights import Weight, weights

__all__ = [
    "PRESETS",
    "Batch",
    "Dispatcher",
    "GradientScaling",
    "Model",
    "ParallelPlan",
    "Payload",
    "Place",
    "Plan",
    "Preset",
    "Problem",
    "Shape",
    "Tokens",
    "Training",
    "Weight",
    "capacity",
    "count_tokens",
    "dispatchers",
    "experts_held",
    "gradient_scaling",
    "local_shapes",
    "mirrored",
    "moves",
    "payloads",
    "place",
    "plan_step",
    "problems",
    "weights",
]
