"""Every check of the sharding of compiled programs, and what each mismatch costs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from traceflow.analyzers.sharding.arrays import array_rows
from traceflow.analyzers.sharding.declared import undeclared_collectives
from traceflow.analyzers.sharding.executed import Measured
from traceflow.analyzers.sharding.expectations import expected
from traceflow.analyzers.sharding.experts import masked_experts
from traceflow.analyzers.sharding.manual import needless_sums, unfounded_claims
from traceflow.analyzers.sharding.parameters import (
    assembled_arrays,
    fully_sharded,
    gathered_parameters,
    returned_gradients,
)
from traceflow.analyzers.sharding.partitioning import Partitioning
from traceflow.analyzers.sharding.products import one_sided_products
from traceflow.analyzers.sharding.reductions import cut_reductions
from traceflow.analyzers.sharding.replication import redundancy, replicated_work
from traceflow.analyzers.sharding.reshards import rematerialisations, unasked_reshards
from traceflow.analyzers.sharding.result import CollectiveRow, Sharding
from traceflow.analyzers.sharding.shards import misplaced_arrays, uneven_shards
from traceflow.analyzers.sharding.unmatched import unmatched_patterns
from traceflow.errors import TraceflowError
from traceflow.result import Finding, Json, Provenance, Skipped
from traceflow.trace.model import Trace

if TYPE_CHECKING:
    from traceflow.analyzers.critical_path import CriticalPath
    from traceflow.analyzers.sharding.found import Found
    from traceflow.intent.intent import Intent
    from traceflow.program.compilation import Compilation
    from traceflow.program.module import HloModule


def audit(
    programs: Sequence[Compilation],
    intent: Intent,
    *,
    trace: Trace | None = None,
    path: CriticalPath | None = None,
) -> Sharding:
    """As :func:`traceflow.analyzers.sharding.sharding`, of at least one program."""
    parts = _parts(programs, intent)
    _refuse_unknown_axes(parts, intent)
    told = [tuple(_together(p, _found(p))) for p in parts]
    measured = Measured(trace, path)
    ranked = sorted(((redundancy(p), p) for p in parts), key=lambda pair: -pair[0].flops)
    ratio, reason = ranked[0][0].ratio, ranked[0][0].reason
    collectives = tuple(row for p, found in zip(parts, told, strict=True) for row in _rows(p, found, measured))
    return Sharding(
        mesh=next((p.mesh for _, p in ranked if p.mesh is not None), None),
        arrays=tuple(row for p in parts for row in array_rows(p)),
        collectives=collectives,
        redundancy_ratio=ratio,
        redundancy_reason=reason,
        findings=(
            *unmatched_patterns(intent, [array.name for p in parts for array in p.arguments.values()]),
            *(_finding(p, one, measured) for p, found in zip(parts, told, strict=True) for one in found),
        ),
        skipped=(
            *((Skipped("/result/redundancy_ratio", reason),) if ratio is None else ()),
            *_unjudged(parts, collectives),
        ),
    )


def _parts(programs: Sequence[Compilation], intent: Intent) -> list[Partitioning]:
    """Programs with their intent. Of several, those that only prepare something, such as a random key, have no batch.

    They are told by the mesh: they name none, where others do; and by their work: they multiply nothing, where others do.
    """
    parts = [Partitioning(program, intent) for program in programs]
    on_mesh = [p for p in parts if p.names_mesh]
    batched = [p for p in on_mesh if p.multiplies] or on_mesh or parts
    unbatched = replace(intent, batch=None)
    return [p if p in batched else Partitioning(p.compilation, unbatched) for p in parts]


def _refuse_unknown_axes(parts: Sequence[Partitioning], intent: Intent) -> None:
    """A misspelt axis would be a mismatch everywhere, and none that can be mended."""
    meshes = [p.mesh for p in parts if p.mesh is not None]
    known = {axis for mesh in meshes for axis in mesh.axes}
    specs = (*intent.params.values(), *intent.activations.values())
    for axis in (*(intent.batch or ()), *(axis for spec in specs for axis in spec.axes)):
        if meshes and axis.partition(":")[0] not in known:
            told = ", ".join(dict.fromkeys(axis for mesh in meshes for axis in mesh.axes)) or "none"
            raise TraceflowError(
                "TF142", f"no axis {axis!r}", f"the mesh has {told}", "name one of these, or state the mesh"
            )


def _unjudged(parts: Sequence[Partitioning], collectives: Sequence[CollectiveRow]) -> Iterator[Skipped]:
    """Why nothing is said of whether collectives are expected."""
    without = {p.compilation.name for p in parts if p.compilation.propagated is None}
    unknown = sum(row.expected is None and row.program in without for row in collectives)
    if unknown:
        yield Skipped(
            "/result/collectives/*/expected",
            f"of {unknown} of {len(collectives)}: how the compiler laid arrays out was not kept; record with "
            "xla_dump=True or --xla-dump, or audit with compile_only",
        )


def _rows(p: Partitioning, found: Sequence[Found], measured: Measured) -> Iterator[CollectiveRow]:
    module = p.divided
    if module is None:
        return
    wrong = {row for one in found for row in one.rows}
    sharded = fully_sharded(p)
    assembled = assembled_arrays(p)
    for collective in p.collectives:
        row = collective.row
        executed = measured.of(p, [row])
        meant = len(sharded.get(row, ())) == len(module.operands_of(row)) or None
        yield CollectiveRow(
            p.compilation.name,
            module.instruction_name[row],
            collective.operation,
            collective.axes,
            collective.groups,
            collective.bytes,
            False if row in wrong else expected(p, collective) or meant,
            collective.written,
            assembled.get(row, ()),
            module.operation_name[row],
            module.source[row],
            executed.occurrences if executed else None,
            executed.time_ns if executed else None,
        )


def _found(p: Partitioning) -> Iterator[Found]:
    """Every mismatch once: a collective that one finding explains is not told again by the general one."""
    first = [*rematerialisations(p), *gathered_parameters(p), *cut_reductions(p, returned_gradients(p))]
    known = frozenset(row for found in first for row in found.rows)
    yield from first
    if p.intent.expected is None:
        yield from unasked_reshards(p, known)
    else:
        yield from undeclared_collectives(p)
    yield from one_sided_products(p)
    yield from needless_sums(p)
    yield from unfounded_claims(p)
    yield from uneven_shards(p)
    yield from misplaced_arrays(p)
    yield from replicated_work(p)
    yield from masked_experts(p)


def _together(p: Partitioning, found: Iterable[Found]) -> Iterator[Found]:
    """What one line of the source does alike, as in each of several layers, is one mismatch: it is mended once."""
    same: dict[tuple[str, ...], list[Found]] = {}
    for number, one in enumerate(found):
        line = _source(p, one)
        same.setdefault((one.code, one.title, one.suggestion, line, "" if line else str(number)), []).append(one)
    for first, *others in same.values():
        yield _repeated(p, first, others) if others else first


def _repeated(p: Partitioning, first: Found, others: Sequence[Found]) -> Found:
    everyone = (first, *others)
    known_bytes = [one.bytes for one in everyone if one.bytes is not None]
    return replace(
        first,
        title=f"{first.title}, {len(everyone)} times",
        rows=tuple(dict.fromkeys(row for one in everyone for row in one.rows)),
        bytes=sum(known_bytes) if len(known_bytes) == len(everyone) else None,
        evidence={**first.evidence, "instructions": [name for one in everyone for name in _instructions(p, one)]},
    )


def _source(p: Partitioning, found: Found) -> str:
    module, row = _shown(p, found)
    return found.source or (module.source[row] if module is not None and row is not None else "")


def _instructions(p: Partitioning, found: Found) -> list[str]:
    """Those of the divided program that show a mismatch, or the one before it is divided."""
    module, row = _shown(p, found)
    named = [p.divided.instruction_name[r] for r in found.rows] if p.divided else []
    return named or ([module.instruction_name[row]] if module is not None and row is not None else [])


def _finding(p: Partitioning, found: Found, measured: Measured) -> Finding:
    by_row = {c.row: c for c in p.collectives}
    sent = sum(by_row[r].bytes or 0 for r in found.rows if r in by_row) if found.bytes is None else found.bytes
    evidence: dict[str, Json] = {
        "program": p.compilation.name,
        "instructions": [*_instructions(p, found)],
        "source": _source(p, found),
        "bytes": sent or None,
        **({"spec": found.spec} if found.spec else {}),
        **found.evidence,
    }
    executed = measured.of(p, found.rows) if found.rows else None
    if executed is not None:
        evidence |= {"occurrences": executed.occurrences, "time_ns": executed.time_ns, "path_ns": executed.path_ns}
    return Finding(
        code=found.code,
        severity=found.severity,
        title=found.title,
        provenance=Provenance.COMPILER,
        suggestion=found.suggestion,
        cost_ns=executed.path_ns if executed else None,
        evidence=evidence,
    )


def _shown(p: Partitioning, found: Found) -> tuple[HloModule | None, int | None]:
    """The instruction to show for a mismatch."""
    if found.rows:
        return p.divided, found.rows[-1]
    return p.compilation.propagated, found.whole_row
