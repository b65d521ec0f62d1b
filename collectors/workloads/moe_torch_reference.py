"""What the PyTorch mixture of experts has to agree with: the plain one, with a shared expert and routing by a table.

Both reduce to `moe_reference`. A shared expert, which every token meets, adds (F_s(h)) H to the predictions, so that
the others see a target that is less by this much. A table is a router that is told: beside its numbers a token
carries a mark for each expert of its row, and the logits of marked experts are raised by `RAISE`. The softmax over the
chosen does not notice a constant.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from traceflow.collectors.workloads import moe_reference
from traceflow.collectors.workloads.moe_reference import Numbers, Whole

Named: TypeAlias = Mapping[str, Numbers]

RAISE = 2.0**20  # above any difference of logits, and a power of two so that it rounds nothing whole


class Result(NamedTuple):
    """What one batch gives."""

    predictions: Numbers  # [S, D]
    loss: float
    gradients: dict[str, Numbers]


class Rule(NamedTuple):
    """How tokens are routed."""

    choices: int  # experts per token, k
    table: Whole | None = None  # the experts of each token, [S, k]; None takes the highest logits
    sources: int = 1  # processes that the tokens are spread over
    capacity: int | None = None  # rows that each source reserves for each expert; None drops nothing


def evaluate(weights: Named, x: Numbers, y: Numbers, rule: Rule) -> Result:
    """Predictions, loss and gradients of one batch.

    Args:
        weights: Those of `moe_reference.Weights`, and `shared_gate`, `shared_up`, `shared_down`.
        x: Tokens, [S, D].
        y: Targets, [S, D].
        rule: How tokens are routed.
    """
    hidden = x @ weights["stem"]
    gated, up = hidden @ weights["shared_gate"], hidden @ weights["shared_up"]
    share = 1 / (1 + np.exp(-gated))
    inner = gated * share * up
    added = inner @ weights["shared_down"]
    routed = _routed(weights, x, y - added @ weights["head"], rule)
    slope = 2 * (routed.predictions + added @ weights["head"] - y) / y.size
    sum_slope = slope @ weights["head"].T
    inner_slope = sum_slope @ weights["shared_down"].T
    up_slope, gated_slope = inner_slope * gated * share, inner_slope * up * share * (1 + gated * (1 - share))
    hidden_slope = up_slope @ weights["shared_up"].T + gated_slope @ weights["shared_gate"].T
    gradients = routed.gradients | {
        "stem": routed.gradients["stem"] + x.T @ hidden_slope,
        "head": routed.gradients["head"] + added.T @ slope,
        "shared_gate": hidden.T @ gated_slope,
        "shared_up": hidden.T @ up_slope,
        "shared_down": inner.T @ sum_slope,
    }
    return Result(routed.predictions + added @ weights["head"], routed.loss, gradients)


def _routed(weights: Named, x: Numbers, y: Numbers, rule: Rule) -> Result:
    """Without the shared expert."""
    whole = moe_reference.Weights(*(weights[name] for name in moe_reference.Weights._fields))
    width, parts = x.shape[1], 1
    if rule.table is not None:
        parts = 1 + -(-whole.router.shape[1] // width)
        whole, x, y = (
            _told(whole, parts * width),
            _marked(x, rule.table, parts),
            np.pad(y, _beside(parts * width - width)),
        )
    experts, _ = moe_reference.choose(x @ whole.stem @ whole.router, rule.choices)
    room = None if rule.capacity is None else moe_reference.kept(experts, rule.sources, rule.capacity)
    found = moe_reference.evaluate(whole, x, y, rule.choices, room)
    # The mean was taken over `parts` times as many numbers.
    gradients = {name: parts * _cut(slope, weights[name].shape) for name, slope in found.gradients._asdict().items()}
    return Result(found.predictions[:, :width], parts * found.loss, gradients)


def _beside(columns: int) -> tuple[tuple[int, int], ...]:
    return (0, 0), (0, columns)


def _marked(x: Numbers, table: Whole, parts: int) -> Numbers:
    marked = np.pad(x, _beside((parts - 1) * x.shape[1]))
    np.put_along_axis(marked, x.shape[1] + table, 1.0, axis=1)
    return marked


def _told(weights: moe_reference.Weights[Numbers], width: int) -> moe_reference.Weights[Numbers]:
    """The weights for tokens of `width` numbers, of which only the router sees those that are new."""
    model, experts = weights.router.shape
    more = width - model
    stem = np.pad(weights.stem, (0, more))
    stem[model:, model:] = np.eye(more)
    router = np.pad(weights.router, ((0, more), (0, 0)))
    router[model : model + experts] = RAISE * np.eye(experts)
    gate, up = (np.pad(inner, ((0, 0), (0, more), (0, 0))) for inner in (weights.gate, weights.up))
    down = np.pad(weights.down, ((0, 0), (0, 0), (0, more)))
    return moe_reference.Weights(stem, router, gate, up, down, np.pad(weights.head, (0, more)))


def _cut(slope: Numbers, shape: tuple[int, ...]) -> NDArray[np.float64]:
    return slope[tuple(map(slice, shape))]
