"""Tables of what a run computed rather than when: memory, operations, routing of experts, and sharding."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from traceflow.export.schema import TABLES
from traceflow.export.subject import Answers

Rows: TypeAlias = Mapping[str, Sequence[Any]]
"""Columns with None for what is not known."""


def attributes(name: str, rows: Sequence[object]) -> dict[str, Sequence[Any]]:
    """Columns of rows that call what they hold as the table does.

    Args:
        name: The table.
        rows: Its rows.
    """
    return {column.name: [getattr(row, column.name) for row in rows] for column in TABLES[name].columns}


def _allocators(of: Answers) -> Rows:
    rows = of.memory.allocator
    same = ("rank", "device", "source", "events", "peak_bytes", "reserved_peak_bytes")
    return {**{name: [getattr(row, name) for row in rows] for name in same}, "peak_time_ns": [r.peak_ns for r in rows]}


def _traffic(of: Answers) -> Rows:
    rows = of.memory.traffic
    same = ("rank", "device", "interface", "size_bytes", "window_ns")
    told = {name: [getattr(row, name) for row in rows] for name in same}
    return {**told, "evidence": [row.provenance.value for row in rows]}


def _operations(of: Answers) -> Rows:
    rows = of.budget.operations
    works, bounds, totals = [row.work for row in rows], [row.bounds for row in rows], [row.work.total for row in rows]
    same = ("name", "detail", "program", "source", "executions", "measured_ns", "waits", "recomputed")
    return {
        **{name: [getattr(work, name) for work in works] for name in same},
        "kind": [work.kind.value for work in works],
        "flops": [total.total_flops for total in totals],
        "memory_bytes": [total.total_bytes for total in totals],
        "payload_bytes": [total.payload_bytes for total in totals],
        **{f"{what}_bound_ns": [getattr(b, f"{what}_ns") for b in bounds] for what in ("compute", "memory", "link")},
    }


def _moe_layers(of: Answers) -> Rows:
    return attributes("moe_layers", of.moe.layers)


def _moe_experts(of: Answers) -> Rows:
    every = [(layer, expert) for layer in of.moe.layers for expert in range(layer.experts)]
    return {
        "layer": [layer.layer for layer, _ in every],
        "expert": [expert for _, expert in every],
        "assignments": [layer.tokens_per_expert[expert] for layer, expert in every],
        "executed_rows": [layer.rows_per_expert[expert] for layer, expert in every],
    }


def _moe_stages(of: Answers) -> Rows:
    return attributes("moe_stages", of.moe.stages)


def _arrays(of: Answers) -> Rows:
    rows = of.sharding.arrays
    return {
        **{name: [getattr(row, name) for row in rows] for name in ("program", "name", "role", "dtype", "matches")},
        "global_shape": [str([*row.global_shape]) for row in rows],
        "local_shape": [None if row.local_shape is None else str([*row.local_shape]) for row in rows],
        "intended": [None if row.intended is None else str(row.intended) for row in rows],
        "compiled": [None if row.compiled is None else str(row.compiled) for row in rows],
        "source": [row.source or None for row in rows],
    }


def _program_collectives(of: Answers) -> Rows:
    rows = of.sharding.collectives
    return {
        **{name: [getattr(row, name) for row in rows] for name in ("program", "name", "expected")},
        "op": [row.operation for row in rows],
        "mesh_axes": [None if row.mesh_axes is None else ", ".join(row.mesh_axes) for row in rows],
        "payload_bytes": [row.bytes for row in rows],
        "executions": [row.occurrences for row in rows],
        "total_ns": [row.time_ns for row in rows],
        "scope": [row.scope or None for row in rows],
        "source": [row.source or None for row in rows],
    }


WORKLOAD: Mapping[str, Callable[[Answers], Rows]] = {
    "allocators": _allocators,
    "traffic": _traffic,
    "operations": _operations,
    "moe_layers": _moe_layers,
    "moe_experts": _moe_experts,
    "moe_stages": _moe_stages,
    "arrays": _arrays,
    "program_collectives": _program_collectives,
}
"""What makes each of these tables."""
