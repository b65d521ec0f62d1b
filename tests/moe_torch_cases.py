"""Batches for the PyTorch mixture of experts, how their tokens go, and what the reference makes of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch_programs import Case

from traceflow.collectors.workloads import moe_torch
from traceflow.collectors.workloads.moe_torch_layers import Layout, Size
from traceflow.collectors.workloads.moe_torch_reference import Result, Rule, evaluate

Arrays = dict[str, NDArray[Any]]
Batch = tuple[NDArray[Any], NDArray[Any], NDArray[np.int64] | None]

SMALL = Size(tokens=16, model=16, hidden=4, experts=8, choices=2)
REAL = Size(tokens=64, model=16, hidden=8, experts=8, choices=2)


def doubles(arrays: Arrays) -> Arrays:
    return {name: array.astype(np.float64) for name, array in arrays.items()}


def chosen(case: Case) -> list[list[int]]:
    """The experts of each token."""
    if case.table is not None:
        return [list(row) for row in case.table]
    logits = (case.x.astype(np.float64) @ case.weights["stem"] @ case.weights["router"]).tolist()
    return [sorted(range(case.size.experts), key=lambda e: -row[e])[: case.size.choices] for row in logits]


def counted(case: Case) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Assignments of each process's tokens to each expert: all, and those that come after the room is taken."""
    assigned, dropped = np.zeros((2, case.layout.processes, case.size.experts), np.int64)
    room = case.size.capacity(case.layout.processes)
    for token, choices in enumerate(chosen(case)):
        process = token * case.layout.processes // case.size.tokens
        for expert in choices:
            assigned[process, expert] += 1
            dropped[process, expert] += room is not None and assigned[process, expert] > room
    return assigned, dropped


def first_batch(size: Size) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]:
    """The first batch of the workload in double precision, and the names of its tokens."""
    x, y, names = moe_torch.batch(size, 0)
    return x.astype(np.float64), y.astype(np.float64), names


def expected(case: Case) -> Result:
    rule = Rule(case.size.choices, case.table, case.layout.processes, case.size.capacity(case.layout.processes))
    return evaluate(doubles(case.weights), case.x.astype(np.float64), case.y.astype(np.float64), rule)


def whole_numbers() -> tuple[Arrays, Batch]:
    """Weights and a batch of `SMALL` for which every quantity but the loss is exact in single precision.

    The first half of a token names two experts, whose logits are 1, those of the others 0; the table names two of the
    others. Either way both gates are one half. What enters a silu is 40 or more, where it is the identity.
    """
    draw, half = np.random.default_rng(7), SMALL.model // 2

    def inner(*shape: int) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        gate = draw.integers(-1, 2, (*shape, SMALL.model, SMALL.hidden)).astype(np.float64)
        gate[..., :half, :] = draw.integers(24, 28, (*shape, half, SMALL.hidden))
        down = draw.choice([0, 0, 0, 1, -1], (*shape, SMALL.hidden, SMALL.model))
        return gate, draw.choice([0, 0, 0, 1, -1], gate.shape), down

    stem, router = np.zeros((SMALL.model, SMALL.model)), np.zeros((SMALL.model, SMALL.experts))
    stem[:half, :half], router[:half] = np.eye(half)[draw.permutation(half)], np.eye(half)[draw.permutation(half)]
    stem[half:, half:] = np.eye(half)[draw.permutation(half)] * draw.choice([-1, 1], half)
    names = ("stem", "router", "gate", "up", "down", "shared_gate", "shared_up", "shared_down", "head")
    head = np.eye(SMALL.model)[draw.permutation(SMALL.model)] * draw.choice([-1, 1], SMALL.model)
    weights = dict(zip(names, (stem, router, *inner(SMALL.experts), *inner(), head), strict=True))
    x = draw.integers(-1, 2, (SMALL.tokens, SMALL.model)).astype(np.float64)
    x[:, :half] = 0
    for token in x:
        token[draw.choice(half, 2, replace=False)] = 1
    logits = x @ stem @ router
    table = np.array([draw.choice(np.flatnonzero(row == 0), 2, replace=False) for row in logits])
    return weights, (x, draw.integers(-2, 3, x.shape).astype(np.float64), table)


def whole_case(layout: Layout, routing: str) -> Case:
    weights, (x, y, table) = whole_numbers()
    size = replace(SMALL, capacity_factor=1.0 if routing == "capacity" else None)
    arrays = {name: array.astype(np.float32) for name, array in weights.items()}
    return Case(layout, size, arrays, x.astype(np.float32), y.astype(np.float32), table if routing == "hash" else None)


def real_case(layout: Layout, routing: str, capacity_factor: float | None) -> Case:
    x, y, names = moe_torch.batch(REAL, 0)
    tables = {"hash": moe_torch.hashed(names, 2, REAL.experts), "lonely": np.tile([0, 1], (REAL.tokens, 1))}
    size = replace(REAL, capacity_factor=capacity_factor)
    return Case(layout, size, dict(moe_torch.initial_weights(REAL)), x, y, tables.get(routing))
