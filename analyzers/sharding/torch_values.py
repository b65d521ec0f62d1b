"""Tensors that ranks claim to hold alike, and do not."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TypeAlias

from traceflow.analyzers.sharding.torch_layout import alike
from traceflow.program.torch_audit import TorchAudit, Value
from traceflow.result import Finding, Json, Provenance, Severity

_Held: TypeAlias = "dict[tuple[object, ...], dict[int, Value]]"


def differing_values(audits: Sequence[TorchAudit]) -> Iterator[Finding]:
    """Parameters, and the first operand, of which ranks hold other values than they claim.

    Parameters are compared bit by bit. Operands may be computed on each rank, where the order of additions differs:
    they differ where the norm of the difference is more than the square root of their type's precision of their own.
    What is computed from a tensor that differs, differs as well, so that only the first is told.
    """
    yield from _parameters(audits)
    differing = [(values, ranks) for values in _held(audits).values() if (ranks := _apart(values))]
    for values, ranks in differing[:1]:
        value = values[ranks[0]]
        name = f"operand {value.argument} of {value.place.operator or 'redistribute'}"
        evidence: dict[str, Json] = {"shape": list(value.shape), "later": len(differing) - 1}
        yield _finding(name, value.place.module, value.place.source, ranks, evidence)


def _parameters(audits: Sequence[TorchAudit]) -> Iterator[Finding]:
    held: dict[tuple[object, ...], dict[int, str]] = defaultdict(dict)
    for audit in audits:
        for one in audit.parameters:
            if one.mesh and one.placements and one.digest:
                held[one.name, *alike(audit.rank, one.placements, one.mesh)][audit.rank] = one.digest
    told: dict[str, list[int]] = {}
    for (name, *_), digests in held.items():
        if len(set(digests.values())) > 1:
            told.setdefault(str(name), []).extend(digests)
    for name, ranks in told.items():
        yield _finding(name, name.rpartition(".")[0], "", sorted(set(ranks)), {})


def _held(audits: Sequence[TorchAudit]) -> _Held:
    """Values by what they are, and by what of them: those that are claimed alike together, by rank."""
    held: _Held = defaultdict(dict)
    for audit in audits:
        seen: dict[object, int] = defaultdict(int)
        for one in audit.values:
            what = one.place, one.argument, one.placements, one.shape
            seen[what] += 1
            held[*what, seen[what], *alike(audit.rank, one.placements, one.mesh)][audit.rank] = one
    return held


def _apart(values: dict[int, Value]) -> list[int]:
    """The ranks that are compared, where one differs from the first; [] where all are alike."""
    first, *others = values.values()
    return sorted(values) if any(_differ(first, other) for other in others) else []


def _differ(one: Value, other: Value) -> bool:
    if one.digest == other.digest:
        return False
    squares = [(p - q) ** 2 for p, q in zip(one.projections, other.projections, strict=True)]
    distance = math.sqrt(sum(squares) / len(squares))
    return distance > math.sqrt(one.precision) * max(one.norm, other.norm)


def _finding(name: str, module: str, source: str, ranks: Sequence[int], evidence: dict[str, Json]) -> Finding:
    where = f" in {module}" if module and not name.startswith(module) else ""
    return Finding(
        code="TF249",
        severity=Severity.ERROR,
        title=f"{name}{where} is claimed to be replicated, but differs between ranks {', '.join(map(str, ranks))}",
        provenance=Provenance.MEASURED,
        suggestion=(
            "Begin with the same values everywhere: distribute_tensor or a broadcast, one seed, one batch per group of"
            " ranks; from_local(..., run_check=True) refuses them."
        ),
        evidence={"array": name, "module": module, "source": source, "ranks": [*ranks], **evidence},
    )
