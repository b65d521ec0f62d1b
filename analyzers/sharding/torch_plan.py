"""Parameters and the plan of a PyTorch program, as they are against what was meant."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from fnmatch import fnmatch
from math import prod

from traceflow.analyzers.sharding.torch_layout import mesh_of, spec_of
from traceflow.intent.intent import Intent
from traceflow.intent.spec import Spec, pieces, uneven
from traceflow.program.torch_audit import Parameter, TorchAudit
from traceflow.result import Finding, Provenance, Severity

_WRAPPERS = frozenset({"_checkpoint_wrapped_module", "_fsdp_wrapped_module", "_orig_mod", "module"})
_BITS = re.compile(r"[a-z]+(\d+)")


def laid(parameter: Parameter) -> Spec:
    """How a parameter lies: a plain tensor is whole on every rank."""
    if parameter.mesh is None or parameter.placements is None:
        return Spec(())
    return spec_of(parameter.placements, parameter.mesh, len(parameter.shape))


def stated(parameter: Parameter, intent: Intent) -> Spec | None:
    """How the author states that a parameter lies; None where nothing is stated."""
    return next((spec for pattern, spec in intent.params.items() if fnmatch(parameter.name, pattern)), None)


def matches(parameter: Parameter, wanted: Spec | None) -> bool | None:
    """Whether a parameter lies as stated; None where nothing is."""
    if wanted is None:
        return None
    rank = len(parameter.shape)
    return laid(parameter).padded(rank).dimensions == wanted.padded(rank).dimensions


def misplaced_parameters(audit: TorchAudit, intent: Intent) -> Iterator[Finding]:
    """Parameters that lie otherwise than their author states."""
    for one in audit.parameters:
        wanted = stated(one, intent)
        if matches(one, wanted) is False:
            how = f"as {laid(one)}" if one.mesh else "whole on every rank, as a plain tensor"
            yield Finding(
                code="TF245",
                severity=Severity.WARNING,
                title=f"{one.name} lies {how}, not as {wanted}",
                provenance=Provenance.DERIVED,
                suggestion="See whether the plan names its module, and with the style that was meant.",
                evidence={"array": one.name, "source": "", "spec": str(wanted), "local_shape": list(one.local_shape)},
            )


def uneven_parameters(audit: TorchAudit) -> Iterator[Finding]:
    """Parameters whose pieces do not divide a dimension: ranks hold different amounts, some nothing."""
    for one in audit.parameters:
        if one.mesh is None:
            continue
        mesh, spec = mesh_of(one.mesh), laid(one)
        if not (dimensions := uneven(one.shape, spec, mesh)):
            continue
        split = pieces(spec.padded(len(one.shape)), mesh)
        told = ", ".join(f"{one.shape[d]} over {split[d]}" for d in dimensions)
        whole = prod(-(-size // n) * n for size, n in zip(one.shape, split, strict=True))
        yield Finding(
            code="TF236",
            severity=Severity.WARNING,
            title=f"the pieces of {one.name} do not divide it: {told}",
            provenance=Provenance.DERIVED,
            suggestion="Pad it to a multiple of the pieces, or split a dimension that divides.",
            evidence={
                "array": one.name,
                "source": "",
                "shape": list(one.shape),
                "local_shape": list(one.local_shape),
                "bytes": (whole - prod(one.shape)) * int(bits[1]) // 8 if (bits := _BITS.match(one.dtype)) else None,
            },
        )


def unmatched_keys(audit: TorchAudit) -> Iterator[Finding]:
    """Keys of the plan that name no module: what they were to split is whole on every rank."""
    names = [_bare(name) for name in audit.modules]
    split = [_bare(one.name.rpartition(".")[0]) for one in audit.parameters if one.mesh is not None]
    for key in audit.plan or ():
        if not key or any(_named(key, name) for name in names) or _in_parts(key, split):
            continue
        shown = [re.sub(r"\b\d+\b", "*", name) for name in names] if "*" in key else names
        nearest = get_close_matches(key, dict.fromkeys(shown), n=3)
        yield Finding(
            code="TF247",
            severity=Severity.ERROR,
            title=f"plan key {key!r} matches no module",
            provenance=Provenance.DERIVED,
            suggestion=f"Did you mean {' or '.join(map(repr, nearest))}?" if nearest else "Name a module of the model.",
            evidence={"key": key, "source": "", "nearest": [*nearest]},
        )


def _bare(name: str) -> str:
    """The name of a module without those of wrappers."""
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


def _named(key: str, name: str) -> bool:
    """Whether a key names a module as `parallelize_module` reads it: one pattern for each part of the name."""
    patterns, parts = key.split("."), name.split(".")
    return len(patterns) == len(parts) and all(map(fnmatch, parts, patterns))


def _in_parts(key: str, split: Sequence[str]) -> bool:
    """Whether a key names modules within parts of the model that have been split: the plan was given for each part."""
    length = key.count(".") + 1
    return any(_named(key, ".".join(name.split(".")[-length:])) for name in split)
