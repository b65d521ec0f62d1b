"""Tensors of a PyTorch program that are laid out anew, though nobody asked for it."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence

from traceflow.program.torch_audit import Placements, Redistribution, Return, TorchAudit
from traceflow.result import Finding, Json, Provenance, Severity

_PRODUCT = re.compile(r"aten\.(?:mm|bmm|addmm|addbmm|baddbmm|matmul|linear|einsum|dot|mv|convolution\w*)\.")


def called_for(move: Redistribution) -> bool:
    """Whether an implicit redistribution follows from what is computed.

    Partial sums must be added up. A product of a parameter with a batch that lies over the same axes needs all of the
    parameter, which is what full sharding means.
    """
    changed = [i for i, (lay, lie) in enumerate(zip(move.before, move.after, strict=True)) if lay != lie]
    if all("S(" not in move.before[i] for i in changed):
        return True
    return (
        move.parameter is not None
        and _PRODUCT.match(move.place.operator) is not None
        and all(move.after[i] == "R" and _split_beside(move, i) for i in changed)
    )


def _split_beside(move: Redistribution, axis: int) -> bool:
    """Whether another operand is split along an axis of the mesh, too."""
    others = list(move.beside)
    if move.before in others:
        others.remove(move.before)
    return any("S(" in one[axis] for one in others)


def implicit_moves(audit: TorchAudit) -> Iterator[Finding]:
    """Operands that an operator has to have laid out anew, by collectives, because they lie differently."""
    for number, move in enumerate(audit.redistributions):
        sent = _sent(audit, [number])
        if move.implicit and sent and not called_for(move):
            yield Finding(
                code="TF248",
                severity=Severity.WARNING,
                title=f"{move.place.operator} lays an operand out anew, from {_text(move.before)} to {_text(move.after)}",
                provenance=Provenance.DERIVED,
                suggestion="Let the operands lie alike, or redistribute where you want it: x.redistribute(placements=...).",
                evidence=_evidence(audit, [number], move) | {"operands": [_text(one) for one in move.beside]},
            )


def returning_moves(audit: TorchAudit) -> Iterator[Finding]:
    """Tensors that are made whole only to be cut again: no module between needs more than its own part.

    The backward pass does the same in reverse; that is counted with it.
    """
    vain: dict[tuple[str, str, str], list[Return]] = defaultdict(list)
    backward: dict[tuple[str, str], list[Return]] = defaultdict(list)
    for one in audit.returns:
        whole, cut = audit.redistributions[one.whole], audit.redistributions[one.cut]
        if whole.place.backward and cut.place.backward:
            backward[cut.place.module, whole.place.module].append(one)
        elif not whole.implicit and not whole.place.backward and not cut.place.backward:
            vain[whole.place.module, cut.place.module, whole.place.source].append(one)
    for (module, next_module, _), returns in vain.items():
        yield _returning(audit, returns, backward.get((module, next_module), []))


def _returning(audit: TorchAudit, returns: Sequence[Return], backward: Sequence[Return]) -> Finding:
    whole, cut = audit.redistributions[returns[0].whole], audit.redistributions[returns[0].cut]
    numbers = [*dict.fromkeys(one.whole for one in [*returns, *backward])]
    between = f"{whole.place.module or 'the program'} and {cut.place.module or 'the program'}"
    evidence = _evidence(audit, numbers, whole) | {"cut_in": cut.place.module, "then": _text(cut.after)}
    summed = any(lay.startswith("P(") for lay in whole.before)
    if summed:
        title = f"between {between}, all sums go to every rank, which keeps a part of them"
        suggestion = f"Reduce and scatter at once: output_layouts={_text(cut.after)}."
    else:
        title = f"between {between}, a tensor is gathered and cut again, which nobody asked for"
        same = whole.before == cut.after
        suggestion = (
            "Leave it split: output_layouts and input_layouts as they are by default."
            if same
            else (f"Go from {_text(whole.before)} to {_text(cut.after)} at once, by one all-to-all.")
        )
    return Finding(
        code="TF232" if summed else "TF234",
        severity=Severity.WARNING,
        title=title,
        provenance=Provenance.DERIVED,
        suggestion=suggestion,
        evidence=evidence,
    )


def in_vain(audit: TorchAudit) -> frozenset[int]:
    """The redistributions that a finding of this module is about."""
    implicit = {n for n, move in enumerate(audit.redistributions) if move.implicit and not called_for(move)}
    explicit = {one.whole for one in audit.returns if not audit.redistributions[one.whole].implicit}
    return frozenset(implicit | explicit)


def _sent(audit: TorchAudit, numbers: Sequence[int]) -> int:
    calls = [call for call in audit.collectives if call.redistribution in numbers]
    return sum((call.sent_bytes or 0) * call.count for call in calls)


def _evidence(audit: TorchAudit, numbers: Sequence[int], move: Redistribution) -> dict[str, Json]:
    calls = [call for call in audit.collectives if call.redistribution in numbers]
    return {
        "module": move.place.module,
        "source": move.place.source,
        "backward": move.place.backward,
        "from": _text(move.before),
        "to": _text(move.after),
        "shape": list(move.shape),
        "array": move.parameter,
        "collectives": [*dict.fromkeys(call.operation for call in calls)],
        "occurrences": sum(call.count for call in calls),
        "bytes": _sent(audit, numbers) or None,
    }


def _text(placements: Placements) -> str:
    return placements[0] if len(placements) == 1 else f"({', '.join(placements)})"
