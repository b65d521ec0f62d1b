"""Tensors of a PyTorch program that are laid out anew, though nobody asked for it."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence

from msgspec.structs import replace

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
    alike: dict[object, list[int]] = defaultdict(list)
    for number, move in enumerate(audit.redistributions):
        if move.implicit and _sent(audit, [number]) and not called_for(move):
            alike[replace(move.place, module=""), move.before, move.after].append(number)
    for numbers in alike.values():
        move = audit.redistributions[numbers[0]]
        lay, lie = _text(move.before), _text(move.after)
        yield Finding(
            code="TF248",
            severity=Severity.WARNING,
            title=f"{move.place.operator} lays an operand out anew, from {lay} to {lie}",
            provenance=Provenance.DERIVED,
            suggestion="Let the operands lie alike, or redistribute where you want it: x.redistribute(placements=...).",
            evidence=_evidence(audit, numbers) | {"operands": [_text(one) for one in move.beside]},
        )


def returning_moves(audit: TorchAudit) -> Iterator[Finding]:
    """Tensors that are made whole only to be cut again: no module between needs more than its own part.

    The backward pass does the same in reverse; that is counted with it. Layers of a stack are told together.
    """
    vain: dict[object, list[Return]] = defaultdict(list)
    backward: dict[tuple[str, str], list[Return]] = defaultdict(list)
    for one in audit.returns:
        whole, cut = (audit.redistributions[number].place for number in (one.whole, one.cut))
        if whole.backward and cut.backward:
            backward[cut.module, whole.module].append(one)
        elif not (whole.backward or cut.backward or audit.redistributions[one.whole].implicit):
            vain[_layer(whole.module), _layer(cut.module), whole.source].append(one)
    for returns in vain.values():
        pairs = dict.fromkeys(_modules(audit, one) for one in returns)
        yield _returning(audit, returns, [one for pair in pairs for one in backward.get(pair, [])])


def _modules(audit: TorchAudit, one: Return) -> tuple[str, str]:
    return audit.redistributions[one.whole].place.module, audit.redistributions[one.cut].place.module


def _layer(module: str) -> str:
    """The name of a module, whichever layer of a stack it is in."""
    return re.sub(r"\b\d+\b", "*", module)


def _returning(audit: TorchAudit, returns: Sequence[Return], backward: Sequence[Return]) -> Finding:
    whole, cut = audit.redistributions[returns[0].whole], audit.redistributions[returns[0].cut]
    numbers = [*dict.fromkeys(one.whole for one in [*returns, *backward])]
    pairs = [*dict.fromkeys(_modules(audit, one) for one in returns)]
    first, last = map(_layer, pairs[0]) if len(pairs) > 1 else pairs[0]
    place = f"within {first or 'the program'}" if first == last else f"between {first or 'the program'} and {last}"
    summed = any(lay.startswith("P(") for lay in whole.before)
    if summed:
        title = f"{place}, all sums go to every rank, which keeps a part of them"
        suggestion = f"Reduce and scatter at once, from {_text(whole.before)} to {_text(cut.after)}: output_layouts."
    elif whole.before == cut.after:
        title = f"{place}, a tensor is gathered and cut again, which nobody asked for"
        suggestion = "Leave it split: output_layouts and input_layouts as they are by default."
    else:
        title = f"{place}, a tensor is gathered to be cut otherwise, which nobody asked for"
        suggestion = f"Go from {_text(whole.before)} to {_text(cut.after)} at once, by one all-to-all."
    return Finding(
        code="TF232" if summed else "TF234",
        severity=Severity.WARNING,
        title=title,
        provenance=Provenance.DERIVED,
        suggestion=suggestion,
        evidence=_evidence(audit, numbers) | {"cut_in": cut.place.module, "then": _text(cut.after)},
    )


def in_vain(audit: TorchAudit) -> frozenset[int]:
    """The redistributions that a finding of this module is about."""
    implicit = {n for n, move in enumerate(audit.redistributions) if move.implicit and not called_for(move)}
    explicit = {one.whole for one in audit.returns if not audit.redistributions[one.whole].implicit}
    return frozenset(implicit | explicit)


def _sent(audit: TorchAudit, numbers: Sequence[int]) -> int:
    calls = [call for call in audit.collectives if call.redistribution in numbers]
    return sum((call.sent_bytes or 0) * call.count for call in calls)


def _evidence(audit: TorchAudit, numbers: Sequence[int]) -> dict[str, Json]:
    move = audit.redistributions[numbers[0]]
    calls = [call for call in audit.collectives if call.redistribution in numbers]
    return {
        "module": move.place.module,
        "modules": [*dict.fromkeys(audit.redistributions[number].place.module for number in numbers)],
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
