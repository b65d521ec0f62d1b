"""Arrays that are laid out anew on the way from one instruction to the next."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from traceflow.analyzers.sharding.expectations import expected
from traceflow.analyzers.sharding.found import Found
from traceflow.analyzers.sharding.partitioning import MOVING, Collective, Partitioning
from traceflow.program.compilation import Compilation

_REMATERIALISED = re.compile(
    r"Involuntary full rematerialization.*?from sharding (\{.*?\}) to (\{.*?\}) .*?HLO operation %?([\w.\-]+) = "
)

_JOINING = frozenset({"concatenate", "dynamic-update-slice"})


def rematerialisations(p: Partitioning) -> Iterator[Found]:
    """Arrays that every device assembles in full in order to cut them another way.

    Only the partitioner says so, in a warning on standard error that names an instruction.
    """
    for name, before, after in _warned(p.compilation):
        module = p.compilation.propagated
        row = module.instruction_name.index(name) if module and name in module.instruction_name else None
        yield Found(
            code="TF235",
            title=f"every device assembles all of {name} to cut it another way, from {before} to {after}",
            rows=_rows_after(p, row),
            whole_row=row,
            suggestion=(
                "Go there in steps that a collective can do: put a constraint between the two that keeps one dimension"
                " as it was, or let both lie alike."
            ),
            evidence={"from": before, "to": after},
        )


def _warned(compilation: Compilation) -> list[tuple[str, str, str]]:
    found = [(m[3], m[1], m[2]) for line in compilation.warnings if (m := _REMATERIALISED.search(line))]
    return list(dict.fromkeys(found))


def _rows_after(p: Partitioning, row: int | None) -> tuple[int, ...]:
    """The collectives that begin with an instruction of the whole program."""
    module, divided = p.compilation.propagated, p.divided
    if row is None or module is None or divided is None:
        return ()
    place = module.operation_name[row], module.source[row]
    moves = [c.row for c in p.collectives if c.operation in MOVING and not c.written]
    return tuple(
        move
        for move in moves
        if any((divided.operation_name[at], divided.source[at]) == place for at in p.flow.before(move, p.flow.moves))
    )


def unasked_reshards(p: Partitioning, known: frozenset[int]) -> Iterator[Found]:
    """Moves that nothing calls for, and moves that were called for but take several collectives.

    Args:
        p: The program.
        known: Collectives that another finding explains.
    """
    for chain in _chains(p, known):
        bytes_ = sum(c.bytes or 0 for c in chain)
        verdicts = {expected(p, c) for c in chain}
        if bytes_ < p.worth_bytes:
            continue
        names = " and ".join(dict.fromkeys(f"{c.operation}" for c in chain))
        if False in verdicts:
            yield Found(
                code="TF234",
                title=f"an array is laid out anew by {names}, which nobody asked for",
                rows=tuple(c.row for c in chain),
                suggestion="Let the operands lie alike, or state with a constraint where the array is to change.",
                bytes=bytes_,
            )
        elif len(chain) > 1 and None not in verdicts:
            yield Found(
                code="TF234",
                title=f"one change of layout takes {len(chain)} collectives: {names}",
                rows=tuple(c.row for c in chain),
                suggestion="Change one axis at a time, or keep the axes in the same order on both sides.",
                bytes=bytes_,
            )


def _chains(p: Partitioning, known: frozenset[int]) -> Iterator[list[Collective]]:
    """Moves of one array that follow one another, with nothing computed in between."""
    moves = {c.row: c for c in p.collectives if c.operation in MOVING and not c.written and c.row not in known}
    linked: set[int] = set()
    for row in sorted(moves, reverse=True):
        if row in linked:
            continue
        between = [at for at in p.flow.before(row, _keeps_apart(p)) if at in moves]
        linked.update(between)
        yield [moves[at] for at in reversed(between)]


def _keeps_apart(p: Partitioning) -> Callable[[int], bool]:
    """What moves one array, and joins it with no other."""
    return lambda row: p.flow.moves(row) and p.flow.module.opcode[row] not in _JOINING
