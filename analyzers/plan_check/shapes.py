"""Whether products have the rows that the plan gives them."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING, TypeAlias

from traceflow.analyzers.plan_check.result import Row, Subject
from traceflow.trace.model import Trace

if TYPE_CHECKING:
    from traceflow.intent.plan import Plan
    from traceflow.result import Json

Matrix: TypeAlias = tuple[int, int]

_PRODUCTS = frozenset({"aten::mm", "aten::addmm"})


def products(trace: Trace, plan: Plan) -> Iterator[Row]:
    """The rows that each matrix meets whose size the plan knows and no other matrix shares."""
    if plan.model is None or plan.tokens is None:
        return
    seen, planned = _seen(trace), _planned(plan)
    experts = plan.model.routed_width, plan.model.expert_hidden // plan.parallel.etp
    for name, (rows, matrix) in planned.items():
        others = [size for other, (_, size) in planned.items() if other != name] + [experts]
        alike = any(size in {matrix, matrix[::-1]} for size in others)
        shape: list[Json] = [rows, *matrix]
        observed: list[Json] = [[count, *matrix] for count in sorted(seen.get(matrix, ()))]
        row = (Subject.SHAPE, name, "forward", None, shape)
        if alike:
            yield Row(*row, observed or None, None, "another matrix of the plan has the same size")
        elif not observed:
            yield Row(*row, None, None, "no product with such a matrix was recorded")
        else:
            yield Row(*row, observed, seen[matrix] == {rows})


def _planned(plan: Plan) -> dict[str, tuple[int, Matrix]]:
    """Rows and matrix of each product that every token meets."""
    model, tokens = plan.model, plan.tokens
    if model is None or tokens is None:
        return {}
    rows = tokens.per_rank
    found = {"router_logits": (rows, (model.hidden, model.experts))}
    if model.shared_experts:
        gathered = rows * (plan.parallel.tp if plan.parallel.sp else 1)
        width = model.shared_width // plan.parallel.tp
        found["shared_fc2"] = (gathered, (width, model.hidden))
    return found


def _seen(trace: Trace) -> dict[Matrix, set[int]]:
    """Rows by the matrix that they are multiplied with."""
    found: dict[Matrix, set[int]] = defaultdict(set)
    o, e = trace.operands, trace.events
    for event, code in zip(o.event.tolist(), o.shapes.tolist(), strict=True):
        if trace.strings[e.name[event]] in _PRODUCTS:
            shapes = [shape for shape in json.loads(trace.strings[code]) if isinstance(shape, list) and len(shape) == 2]
            if len(shapes) >= 2 and all(isinstance(size, int) for shape in shapes[-2:] for size in shape):
                (rows, inner), (other, columns) = shapes[-2:]
                if inner == other:
                    found[inner, columns].add(rows)
    return found
