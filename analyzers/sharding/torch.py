"""Intended against actual sharding of a PyTorch program: its plan, its placements, and what a step did with them.

Rules, in order: what the program or its plan redistributes is asked for, unless the result is cut again before
anything needs it whole. What an operator redistributes by itself is not, unless it follows from what is computed.
Where the author lists the collectives that may happen, that list decides instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from traceflow.analyzers.sharding.declared import read_entry
from traceflow.analyzers.sharding.result import ArrayRow, CollectiveRow, Sharding
from traceflow.analyzers.sharding.torch_layout import axes_of, mesh_of, meshes_of
from traceflow.analyzers.sharding.torch_moves import implicit_moves, in_vain, returning_moves
from traceflow.analyzers.sharding.torch_plan import (
    laid,
    matches,
    misplaced_parameters,
    stated,
    uneven_parameters,
    unmatched_keys,
)
from traceflow.analyzers.sharding.torch_values import differing_values
from traceflow.analyzers.sharding.unmatched import unmatched_patterns
from traceflow.intent.intent import Intent
from traceflow.program.torch_audit import CollectiveCall, TorchAudit, TorchMesh
from traceflow.result import Finding, Provenance, Severity, Skipped

_PROGRAM = "step"
_UNKNOWN_WORK = "an audit of PyTorch counts no FLOPs"


def torch_sharding(audits: TorchAudit | Sequence[TorchAudit], intent: Intent | None = None) -> Sharding:
    """Compare how a PyTorch program is meant to be sharded with what one step of it did.

    Args:
        audits: Of one rank or of several; whether values are alike is only known of ranks that are there.
        intent: What the program does not say by itself: `params` by names of parameters, `expect`.

    Returns:
        Parameters, collectives and findings; a collective or a finding of several ranks once.

    Example:
        >>> one = TorchAudit(rank=0, world_size=1, modules=("up",), plan={"upp": "Colwise"}, parameters=())
        >>> [finding.title for finding in torch_sharding(one).findings]
        ["plan key 'upp' matches no module"]
    """
    several = [audits] if isinstance(audits, TorchAudit) else sorted(audits, key=lambda audit: audit.rank)
    said, meshes = intent or Intent(), meshes_of(several)
    collectives = _merged(row for audit in several for row in _collectives(audit, said, meshes))
    names = [parameter.name for audit in several for parameter in audit.parameters]
    found = [
        *unmatched_patterns(said, names),
        *(one for audit in several for one in _found(audit, said)),
        *_undeclared(collectives, said),
    ]
    return Sharding(
        mesh=said.mesh or (mesh_of(meshes[0]) if meshes else None),
        arrays=_arrays(several, said),
        collectives=collectives,
        redundancy_ratio=None,
        redundancy_reason=_UNKNOWN_WORK,
        findings=(*_once(found), *differing_values(several)),
        skipped=(Skipped("/result/redundancy_ratio", _UNKNOWN_WORK), *_missing(several)),
    )


def _found(audit: TorchAudit, intent: Intent) -> Iterator[Finding]:
    yield from unmatched_keys(audit)
    yield from misplaced_parameters(audit, intent)
    yield from uneven_parameters(audit)
    if intent.expected is None:
        yield from returning_moves(audit)
        yield from implicit_moves(audit)


def _once(findings: Sequence[Finding]) -> Iterator[Finding]:
    """Findings of several ranks, those that say the same of the same place once."""
    seen = set()
    for one in findings:
        key = one.code, one.title, one.evidence.get("source"), one.evidence.get("module")
        if key not in seen:
            seen.add(key)
            yield one


def _missing(audits: Sequence[TorchAudit]) -> Iterator[Skipped]:
    for why in dict.fromkeys(why for audit in audits for why in audit.missing):
        yield Skipped("/result/collectives", why)
    there, all_ranks = {audit.rank for audit in audits}, max((audit.world_size for audit in audits), default=0)
    if len(there) < all_ranks:
        yield Skipped("/findings", f"{len(there)} of {all_ranks} ranks were audited, so not all values were compared")


def _arrays(audits: Sequence[TorchAudit], intent: Intent) -> tuple[ArrayRow, ...]:
    """Each parameter once, as its first rank holds it."""
    parameters = {one.name: one for audit in reversed(audits) for one in reversed(audit.parameters)}
    return tuple(
        ArrayRow(
            program=_PROGRAM,
            name=one.name,
            role="parameter",
            dtype=one.dtype,
            global_shape=one.shape,
            intended=stated(one, intent),
            compiled=laid(one),
            local_shape=one.local_shape,
            matches=matches(one, stated(one, intent)),
            source="",
        )
        for one in reversed(parameters.values())
    )


def _collectives(audit: TorchAudit, intent: Intent, meshes: Sequence[TorchMesh]) -> Iterator[CollectiveRow]:
    wrong = in_vain(audit)
    listed = None if intent.expected is None else [read_entry(entry) for entry in intent.expected]
    for call in audit.collectives:
        axes, groups = axes_of(call.group, meshes)
        expected = call.redistribution not in wrong
        if listed is not None:
            expected = (call.operation, frozenset(axes or ())) in listed
        yield CollectiveRow(
            program=_PROGRAM,
            name=call.place.operator or call.operation,
            operation=call.operation,
            mesh_axes=axes,
            groups=groups,
            bytes=call.sent_bytes,
            expected=expected,
            written=not _implicit(audit, call),
            assembles=_assembled(audit, call),
            scope=" ".join(filter(None, [call.place.module, "backward" if call.place.backward else ""])),
            source=call.place.source,
            occurrences=call.count,
            time_ns=None,
        )


def _implicit(audit: TorchAudit, call: CollectiveCall) -> bool:
    return call.redistribution is not None and audit.redistributions[call.redistribution].implicit


def _assembled(audit: TorchAudit, call: CollectiveCall) -> tuple[str, ...]:
    """The parameter that a collective makes whole."""
    if call.redistribution is None:
        return ()
    move = audit.redistributions[call.redistribution]
    return (move.parameter,) if move.parameter and set(move.after) == {"R"} else ()


def _merged(rows: Iterator[CollectiveRow]) -> tuple[CollectiveRow, ...]:
    """Rows of several ranks, those of one collective as one."""
    merged: dict[CollectiveRow, int] = {}
    for row in rows:
        key = replace(row, occurrences=None)
        merged[key] = merged.get(key, 0) + (row.occurrences or 0)
    return tuple(replace(row, occurrences=count) for row, count in merged.items())


def _undeclared(collectives: Sequence[CollectiveRow], intent: Intent) -> Iterator[Finding]:
    """Collectives that are not in the author's list, those of one kind together, and entries that do not happen."""
    kinds: dict[tuple[str, frozenset[str]], list[CollectiveRow]] = {}
    for row in collectives:
        kinds.setdefault((row.operation, frozenset(row.mesh_axes or ())), []).append(row)
    for (operation, _), rows in kinds.items():
        if intent.expected is not None and not rows[0].expected:
            over = ", ".join(rows[0].mesh_axes) if rows[0].mesh_axes else "ranks that no axis joins"
            yield _not_as_stated(
                f"{operation} over {over} is not among the collectives that may happen", rows, rows[0].source
            )
    for entry in intent.expected or ():
        if read_entry(entry) not in kinds:
            yield _not_as_stated(f"{entry} does not happen, though it is expected", [], "")


def _not_as_stated(title: str, rows: Sequence[CollectiveRow], source: str) -> Finding:
    return Finding(
        code="TF246",
        severity=Severity.WARNING,
        title=title,
        provenance=Provenance.DERIVED,
        suggestion="See what lies differently from what was meant, or correct the list.",
        evidence={
            "source": source,
            "modules": [*dict.fromkeys(row.scope for row in rows)],
            "occurrences": sum(row.occurrences or 0 for row in rows),
            "bytes": max((row.bytes or 0 for row in rows), default=0) or None,
        },
    )
