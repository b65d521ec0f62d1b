"""What a page says of sharding: mismatches, arrays, collectives, and which device holds which piece of an array."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any, TypeAlias

from traceflow.intent.mesh import Mesh
from traceflow.report.definitions import DEFINITIONS
from traceflow.report.grid import Column, Grid, briefly, names, prose, sizes, times, words
from traceflow.report.joined import written_at
from traceflow.report.mesh_picture import MeshPicture, mesh_pictures
from traceflow.report.sections import left_out
from traceflow.result import Finding, Provenance

Row: TypeAlias = Mapping[str, Any]

_MOST_ROWS = 25
_ORDER = (False, True, None)
_EXPECTED = {True: "yes", False: "no", None: "cannot be told"}
_NOT_RUN = "the trace has no execution of them"
_NO_SIZE = "the program does not say it"


@dataclass(frozen=True, slots=True)
class ShardingSection:
    """Everything that a page says of sharding."""

    mesh: str
    redundancy: str | None
    reason: str
    grids: tuple[Grid, ...]
    pictures: tuple[MeshPicture, ...]


def sharding_section(result: Row, findings: Sequence[Finding], mesh: Mesh | None) -> ShardingSection | None:
    """The section on sharding; None where no program runs on several devices.

    Args:
        result: The `result` of `traceflow show sharding`.
        findings: Its findings.
        mesh: The mesh, with its devices.
    """
    if mesh is None or len(mesh) == 1:
        return None
    ratio = result["redundancy_ratio"]
    return ShardingSection(
        mesh=" x ".join(f"{axis} {size}" for axis, size in mesh.axes.items()),
        redundancy=None if ratio is None else f"{ratio:.2f}",
        reason=result["redundancy_reason"],
        grids=(*_mismatches(findings), *_arrays(result["arrays"]), *_collectives(result["collectives"])),
        pictures=mesh_pictures(result["arrays"], mesh, [_text(f.evidence.get("array")) for f in findings]),
    )


def _mismatches(findings: Sequence[Finding]) -> Iterator[Grid]:
    """Where each finding comes from, and what it costs."""
    if not findings:
        return
    told = [finding.evidence for finding in findings]
    yield Grid(
        "Not as meant",
        (
            words("code", [finding.code for finding in findings]),
            names("source line", [_text(evidence.get("source")) for evidence in told]),
            names("instructions", [_text(evidence.get("instructions")) for evidence in told]),
            _derived(sizes("sends", [_number(evidence.get("bytes")) for evidence in told], absent=_NO_SIZE)),
            *_executed([{**evidence} for evidence in told]),
            times("time on the path", [finding.cost_ns for finding in findings], absent=_NOT_RUN),
        ),
    )


def _arrays(arrays: Sequence[Row]) -> Iterator[Grid]:
    """Arrays that differ first, of the others the largest of which it can be told."""
    if not arrays:
        return
    ordered = sorted(arrays, key=lambda a: (_ORDER.index(a["matches"]), -math.prod(a["global_shape"])))
    shown = ordered[:_MOST_ROWS]
    yield Grid(
        "Arrays, those that lie otherwise than intended first",
        (
            names("array", [a["name"] for a in shown]),
            words("role", [a["role"] for a in shown]),
            words("whole", [f"{a['dtype']}{a['global_shape']}" for a in shown]),
            words("intended", [a["intended"] or "not stated" for a in shown]),
            words("compiled", [a["compiled"] or "not known" for a in shown]),
            words("each", ["not known" if a["local_shape"] is None else str(a["local_shape"]) for a in shown]),
            words("verdict", [_verdict(a) for a in shown]),
            names("source line", [a["source"] for a in shown]),
        ),
        left_out(len(ordered), len(shown), "arrays"),
    )


def _verdict(array: Row) -> str:
    if array["matches"] is None:
        return "not stated" if array["intended"] is None else "cannot be told"
    return "as meant" if array["matches"] else "differs"


def _collectives(collectives: Sequence[Row]) -> Iterator[Grid]:
    """Collectives that are not expected first, then those that send most."""
    if not collectives:
        return
    ordered = sorted(collectives, key=lambda c: (c["expected"] is not False, -(c["bytes"] or 0)))
    shown = ordered[:_MOST_ROWS]
    axes = ["no name fits" if c["mesh_axes"] is None else ", ".join(c["mesh_axes"]) or "none" for c in shown]
    yield Grid(
        "Collectives, those that are not expected first",
        (
            words("operation", [c["op"] for c in shown]),
            words("axes", axes),
            words("expected", [_EXPECTED[c["expected"]] for c in shown]),
            _derived(sizes("sends", [c["bytes"] for c in shown], absent=_NO_SIZE)),
            *_executed(shown),
            briefly("assembles", [_text(c["assembles"]) for c in shown]),
            briefly("written as", [written_at({"scope": c["scope"]}) for c in shown]),
            prose("source line", ["/".join(PurePosixPath(c["source"] or "").parts[-2:]) for c in shown]),
        ),
        left_out(len(ordered), len(shown), "collectives"),
    )


def _executed(rows: Sequence[Row]) -> tuple[Column, Column]:
    """How often something ran, and for how long."""
    often = [row.get("occurrences") for row in rows]
    cells = tuple(None if count is None else f"{count:,}" for count in often)
    count = Column("executions", cells, DEFINITIONS["executions"], "number", "count", Provenance.MEASURED, _NOT_RUN)
    return count, times("time in all", [row.get("time_ns") for row in rows], absent=_NOT_RUN)


def _derived(column: Column) -> Column:
    return replace(column, provenance=Provenance.DERIVED)


def _number(value: object) -> int | None:
    return value if isinstance(value, int) else None


def _text(value: object) -> str:
    """Text of evidence; of a list, its first three."""
    if not isinstance(value, list | tuple):
        return str(value or "")
    more = f" and {len(value) - 3} more" if len(value) > 3 else ""
    return ", ".join(map(str, value[:3])) + more
