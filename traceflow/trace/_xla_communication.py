"""Collectives of XLA programs: who takes part in each execution of one, and with how many bytes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from traceflow.program.module import HloModule, Programs, operation_of, operation_of_name
from traceflow.trace._xla_lines import named_key
from traceflow.trace.model import ABSENT, Communications, Group, Int32, Int64

_FROM_FIRST = frozenset({"collective-broadcast"})  # the first of the group is the root


@dataclass(frozen=True, slots=True)
class Executed:
    """Communication events that execute an HLO instruction, one row each."""

    event: Int32
    start_ns: Int64
    device: Int64
    program: Int64
    run: Int64
    instruction: Int32  # ABSENT where the program is not known
    name: list[str]
    everyone: dict[int, tuple[int, ...]]  # devices that ran each program


@dataclass(frozen=True, slots=True)
class _Description:
    """What an instruction is on one device."""

    operation: str
    members: tuple[int, ...]  # empty where unknown
    payload_bytes: int
    source: int
    destination: int


def communications(
    executed: Executed, programs: Programs, strings: dict[str, int]
) -> tuple[Communications, tuple[Group, ...]]:
    """One row per event of a collective that the device takes part in.

    The key is made of the program, the run and the instruction, so that it is the same on all devices and wherever
    the same programs run; the sequence counts the executions of the instruction within the run, as in a loop. The two
    halves of an asynchronous operation share both. The payload is what goes in, counted at the event that issues the
    operation: a done has none of its own.

    Args:
        executed: The events.
        programs: Modules by key.
        strings: Codes of texts; those of the operations are added.
    """
    groups: dict[tuple[int, ...], int] = {}
    described: dict[tuple[int, str, int], _Description | None] = {}
    kept: list[int] = []
    rows: list[_Description] = []
    for at, (program, name, device) in enumerate(zip(executed.program, executed.name, executed.device, strict=True)):
        key = int(program), name, int(device)
        if key not in described:
            module, row = programs.get(key[0]), int(executed.instruction[at])
            if module is None or row == ABSENT:
                described[key] = _named(name)
            else:
                described[key] = _described(module, row, key[2], executed.everyone[key[0]])
        if description := described[key]:
            kept.append(at)
            rows.append(description)
    absent = np.full(len(rows), ABSENT, np.int32)
    table = Communications(
        executed.event[kept],
        np.array([strings.setdefault(row.operation, len(strings)) for row in rows], np.int32),
        np.array([groups.setdefault(row.members, len(groups)) if row.members else ABSENT for row in rows], np.int32),
        _keys(executed, programs)[kept],
        _sequence(executed)[kept],
        executed.device[kept],
        np.array([row.payload_bytes for row in rows], np.int64),
        np.array([row.source for row in rows], np.int64),
        np.array([row.destination for row in rows], np.int64),
        absent,
        absent,
    )
    return table, tuple(Group(group_name(members), members, len(members)) for members in groups)


def group_name(members: tuple[int, ...]) -> str:
    """Members in their order, runs of them as ranges.

    Example:
        >>> group_name((0, 1, 2, 3, 8)), group_name((5, 7))
        ('devices 0-3,8', 'devices 5,7')
    """
    parts: list[list[int]] = []
    for member in members:
        if parts and member == parts[-1][-1] + 1:
            parts[-1] = [parts[-1][0], member]
        else:
            parts.append([member])
    return "devices " + ",".join("-".join(map(str, part)) for part in parts)


def _named(name: str) -> _Description:
    """All that is known without the program."""
    return _Description(operation_of_name(name), (), ABSENT, ABSENT, ABSENT)


def _described(module: HloModule, row: int, device: int, everyone: tuple[int, ...]) -> _Description | None:
    """What an instruction does on a device; None where a permute leaves the device out."""
    operation, start = operation_of(module, row), module.start_of(row)
    work = module.wrapped_by(start)
    payload_bytes = _payload(module, start) if start == row else ABSENT
    pairs = module.source_target_pairs.get(work)
    if pairs:
        members = tuple(sorted({end for pair in pairs for end in pair}))
        source = next((one for one, other in pairs if other == device), ABSENT)
        destination = next((other for one, other in pairs if one == device), ABSENT)
        return _Description(operation, members, payload_bytes, source, destination) if device in members else None
    listed = module.replica_groups.get(work)
    choices = () if listed is None else listed or (everyone,)
    members = next((group for group in choices if device in group), ())
    source = members[0] if members and operation in _FROM_FIRST else ABSENT
    return _Description(operation, members, payload_bytes, source, ABSENT)


def _payload(module: HloModule, row: int) -> int:
    """Bytes of the operands, ABSENT where one has no known size."""
    sizes = module.output_bytes[module.operands_of(row)]
    return int(sizes.sum()) if len(sizes) and (sizes >= 0).all() else ABSENT


def _keys(executed: Executed, programs: Programs) -> Int64:
    known: dict[tuple[int, int, str], int] = {}
    keys = []
    issued = _issued(executed, programs)
    for program, run, name in zip(executed.program, executed.run, issued, strict=True):
        point = int(program), int(run), name
        if point not in known:
            known[point] = max(named_key(f"{program}/{run}/{name}"), 1)
        keys.append(known[point])
    return np.array(keys, np.int64)


def _issued(executed: Executed, programs: Programs) -> list[str]:
    """The name of the instruction that issued each: of a done, its start's."""
    names = []
    for program, row, name in zip(executed.program, executed.instruction, executed.name, strict=True):
        module = programs.get(int(program))
        names.append(name if module is None or row == ABSENT else module.instruction_name[module.start_of(int(row))])
    return names


def _sequence(executed: Executed) -> Int64:
    """How many times the device had executed the instruction in the run before."""
    codes = {name: code for code, name in enumerate(dict.fromkeys(executed.name))}
    names = np.array([codes[name] for name in executed.name], np.int64)
    which = np.column_stack((executed.program, executed.run, executed.device, names))
    inverse = np.unique(which, axis=0, return_inverse=True)[1].ravel()
    order = np.lexsort((executed.start_ns, inverse))
    first = np.searchsorted(inverse[order], inverse[order])
    sequence = np.empty(len(order), np.int64)
    sequence[order] = np.arange(len(order)) - first
    return sequence
