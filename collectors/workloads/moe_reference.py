"""A mixture of experts computed plainly: what every variant and framework has to agree with.

Token t goes to the k experts with the highest logits. The gates are the softmax of these k logits, which are the
probabilities of the chosen experts made to sum to one:

    h      = x A                                A: [D, D], the stem
    logits = h R                                R: [D, E], the router
    out_t  = sum over chosen e of g_e F_e(h_t)
    F_e(h) = (silu(h G_e) * (h U_e)) V_e        G_e, U_e: [D, F], V_e: [F, D]
    loss   = mean of ((h + out) H - y)**2       H: [D, D], the head

Everything is numpy in double precision and goes expert by expert, with the derivatives written out.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Generic, NamedTuple, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

Numbers: TypeAlias = NDArray[np.float64]
Whole: TypeAlias = NDArray[np.int64]
Mask: TypeAlias = NDArray[np.bool_]
Route: TypeAlias = tuple[Whole, Numbers, Mask]  # experts, gates and room of each token, all [S, k]
Array = TypeVar("Array")


class Weights(NamedTuple, Generic[Array]):
    """The parameters, as arrays of any framework; their gradients and shapes have the same fields."""

    stem: Array  # [D, D]
    router: Array  # [D, E]
    gate: Array  # [E, D, F]
    up: Array  # [E, D, F]
    down: Array  # [E, F, D]
    head: Array  # [D, D]


class Result(NamedTuple):
    """What one batch gives."""

    predictions: Numbers  # [S, D]
    loss: float
    gradients: Weights[Numbers]


def capacity(tokens: int, choices: int, experts: int, factor: float) -> int:
    """Rows that one source reserves for each expert: `ceil(factor * tokens * choices / experts)`.

    Args:
        tokens: Tokens of the source: one device's, not those of all.
        choices: Experts per token.
        experts: All experts, on whichever device.
        factor: Room relative to an even load; taken as the decimal that it is written as.

    Example:
        >>> capacity(tokens=4096, choices=6, experts=384, factor=1.25)
        80
        >>> capacity(tokens=100, choices=1, experts=11, factor=1.1)  # in binary, 1.1 * 100 / 11 exceeds 10
        10
    """
    return math.ceil(Fraction(str(factor)) * tokens * choices / experts)


def choose(logits: Numbers, choices: int) -> tuple[Whole, Numbers]:
    """The experts of each token and their gates, both [S, k], highest first; of equals the lower number.

    Example:
        >>> experts, gates = choose(np.array([[0.0, 5.0, -1.0, 5.0]]), 2)
        >>> experts.tolist(), gates.tolist()
        ([[1, 3]], [[0.5, 0.5]])
    """
    experts = np.argsort(-logits, axis=1, kind="stable")[:, :choices]
    chosen = np.take_along_axis(logits, experts, axis=1)
    scores = np.exp(chosen - chosen[:, :1])
    return experts, scores / scores.sum(axis=1, keepdims=True)


def kept(experts: Whole, sources: int, rows: int) -> Mask:
    """Which assignments find room, [S, k]: each source holds `rows` for each expert, filled in order of tokens.

    Args:
        experts: The experts of each token, [S, k]; a source has S / `sources` consecutive tokens.
        sources: How many devices the tokens are spread over.
        rows: What `capacity` gives for one source.

    Example:
        >>> kept(np.array([[0], [0], [1], [0]]), sources=1, rows=2).ravel().tolist()
        [True, True, True, False]
    """
    room = np.zeros(experts.shape, np.bool_)
    for source in np.array_split(np.arange(len(experts)), sources):
        taken: dict[int, int] = {}
        for token in source:
            for choice, expert in enumerate(experts[token].tolist()):
                taken[expert] = taken.get(expert, 0) + 1
                room[token, choice] = taken[expert] <= rows
    return room


def evaluate(weights: Weights[Numbers], x: Numbers, y: Numbers, choices: int, room: Mask | None = None) -> Result:
    """Predictions, loss and gradients of one batch.

    Args:
        weights: The parameters.
        x: Tokens, [S, D].
        y: Targets, [S, D].
        choices: Experts per token, k.
        room: Which assignments are computed, [S, k]; a token loses the others, and its gates stay as they were.
            None keeps all.
    """
    hidden = x @ weights.stem
    experts, gates = choose(hidden @ weights.router, choices)
    route = experts, gates, np.ones(experts.shape, np.bool_) if room is None else room
    joined = hidden + _mixture(weights, hidden, route)
    error = joined @ weights.head - y
    slope = 2 * error / error.size
    gradients = _backward(weights, hidden, slope @ weights.head.T, route)
    gradients = gradients._replace(stem=x.T @ gradients.stem, head=joined.T @ slope)
    return Result(error + y, float(np.mean(error**2)), gradients)


def _sigmoid(x: Numbers) -> Numbers:
    return 1 / (1 + np.exp(-x))


def _mixture(weights: Weights[Numbers], x: Numbers, route: Route) -> Numbers:
    experts, gates, room = route
    mixed = np.zeros_like(x)
    for expert in range(len(weights.gate)):
        token, choice = np.nonzero((experts == expert) & room)
        gated = x[token] @ weights.gate[expert]
        inner = gated * _sigmoid(gated) * (x[token] @ weights.up[expert])
        mixed[token] += gates[token, choice, None] * (inner @ weights.down[expert])
    return mixed


def _backward(weights: Weights[Numbers], x: Numbers, slope: Numbers, route: Route) -> Weights[Numbers]:
    """Gradients of experts and router, and in place of the stem's that of `x`; `slope` is that of the sum."""
    experts, gates, room = route
    gradients, gate_slopes = Weights(*map(np.zeros_like, weights))._replace(stem=slope.copy()), np.zeros_like(gates)
    for expert in range(len(weights.gate)):
        token, choice = np.nonzero((experts == expert) & room)
        rows, result_slope = x[token], gates[token, choice, None] * slope[token]
        gated, up = rows @ weights.gate[expert], rows @ weights.up[expert]
        share = _sigmoid(gated)
        inner, inner_slope = gated * share * up, result_slope @ weights.down[expert].T
        up_slope = inner_slope * gated * share
        gated_slope = inner_slope * up * share * (1 + gated * (1 - share))
        gate_slopes[token, choice] = np.sum(slope[token] * (inner @ weights.down[expert]), axis=1)
        gradients.down[expert] = inner.T @ result_slope
        gradients.up[expert], gradients.gate[expert] = rows.T @ up_slope, rows.T @ gated_slope
        gradients.stem[token] += up_slope @ weights.up[expert].T + gated_slope @ weights.gate[expert].T
    logits = _logit_slopes(experts, gates, gate_slopes, len(weights.gate))
    return gradients._replace(stem=gradients.stem + logits @ weights.router.T, router=x.T @ logits)


def _logit_slopes(experts: Whole, gates: Numbers, gate_slopes: Numbers, count: int) -> Numbers:
    """Through the softmax over the chosen logits; the choice itself has no slope."""
    logits = np.zeros((len(experts), count))
    chosen = gates * (gate_slopes - np.sum(gates * gate_slopes, axis=1, keepdims=True))
    np.put_along_axis(logits, experts, chosen, axis=1)
    return logits
