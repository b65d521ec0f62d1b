"""How rows of a profile of Nsight Systems relate: what launched what, in which range, and which record a wait is for."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cache

import numpy as np

from traceflow.trace._nsight_ranges import range_named
from traceflow.trace._nsight_rows import LARGEST, Annotations, Calls, Records, Work, process_of
from traceflow.trace.model import ABSENT, Bool, Int64, SyncKind, Syncs, Text

_NO_STREAM = 2**32 - 1
_KINDS = {1: SyncKind.EVENT, 2: SyncKind.STREAM_WAIT, 3: SyncKind.STREAM, 4: SyncKind.CONTEXT}  # as CUPTI numbers them
_COLLECTIVE = re.compile(r"NCCL:nccl(?!Group|Comm)")


def call_of_work(work: Work, calls: Calls) -> Int64:
    """Per piece of work, the row of the call that launched it, ABSENT where it is not in the profile."""
    if not len(calls.start_ns):
        return np.full(len(work.start_ns), ABSENT, np.int64)
    called = np.concatenate((process_of(calls.thread), work.process))
    process = np.unique(called, return_inverse=True)[1]
    correlation = np.concatenate((calls.correlation, work.correlation))
    key = np.where(correlation >= 0, process * LARGEST + correlation, ABSENT)
    theirs, wanted = key[: len(calls.start_ns)], key[len(calls.start_ns) :]
    order = np.lexsort((calls.start_ns, theirs))
    at = np.minimum(np.searchsorted(theirs[order], wanted), len(order) - 1)
    return np.where((wanted >= 0) & (theirs[order[at]] == wanted), order[at], ABSENT)


def around(annotations: Annotations, kept: Bool, thread: Int64, at_ns: Int64) -> Int64:
    """For each moment on a thread, the row of the innermost of the kept ranges there, ABSENT where there is none."""
    from traceflow.trace._nesting import innermost

    a, rows = annotations, np.flatnonzero(kept)
    rows = rows[np.lexsort((-a.end_ns[rows], a.start_ns[rows], a.thread[rows]))]
    order = np.lexsort((at_ns, thread))
    found = np.full(len(at_ns), ABSENT, np.int64)
    at = innermost(a.thread[rows], a.start_ns[rows], a.end_ns[rows], thread[order], at_ns[order])
    found[order] = np.append(rows, ABSENT)[at]
    return found


@dataclass(frozen=True, slots=True)
class Executed:
    """Work that executes an HLO instruction, one row each."""

    row: Int64  # of `Work`
    program: Int64
    module: Text  # name of the program
    run: Int64
    instruction: Text
    call: Int64  # row of `Calls`


def executed_of(work: Work, calls: Calls, call: Int64, annotations: Annotations, texts: Text) -> Executed:
    """What XLA launched within the ranges that it puts around programs and instructions.

    The k-th run of a program on a device is the same on all devices. Programs without a number are trials of the
    autotuner.

    Args:
        work: Of devices, numbered within the job.
        calls: Calls into the runtime.
        call: As of `call_of_work`.
        annotations: All ranges.
        texts: What their names are codes of.
    """
    said = [range_named(text) for text in texts]
    row = np.flatnonzero(call >= 0)
    thread, at_ns = calls.thread[call[row]], calls.start_ns[call[row]]
    thunk, module = (
        around(annotations, np.array([one.what == what for one in said], bool)[annotations.name], thread, at_ns)
        for what in ("Thunk", "XlaModule")
    )
    row, thunk, module = (part[(thunk >= 0) & (module >= 0)] for part in (row, thunk, module))
    of_thunk, of_module = annotations.name[thunk], annotations.name[module]
    program = np.array([one.program for one in said], np.int64)[of_module]
    instruction = np.array([one.instruction for one in said], object)[of_thunk]
    known = (program >= 0) & (instruction != "")
    row, module, program = row[known], module[known], program[known]
    return Executed(
        row,
        program,
        np.array([one.module for one in said], object)[of_module[known]],
        _runs(np.column_stack((work.process[row], work.device[row], program)), module, annotations.start_ns),
        instruction[known],
        call[row],
    )


def _runs(of: Int64, module: Int64, start_ns: Int64) -> Int64:
    """Per row, how many ranges of the same program began before its own on the same device."""
    if not len(module):
        return module
    distinct, inverse = np.unique(np.column_stack((of, start_ns[module], module)), axis=0, return_inverse=True)
    which = np.unique(distinct[:, :3], axis=0, return_inverse=True)[1].ravel()
    return (np.arange(len(distinct)) - np.searchsorted(which, which))[inverse.ravel()]


@dataclass(frozen=True, slots=True)
class Stated:
    """What NCCL's own annotation says of a call."""

    communicator: int
    ranks: int = ABSENT
    size_bytes: int = ABSENT
    root: int = ABSENT


def stated_of(
    calls: Calls, call: Int64, annotations: Annotations, texts: Text
) -> tuple[list[Stated | None], dict[int, int]]:
    """Per call, what NCCL says of the one collective that it launches; and how many ranks each communicator has.

    Collectives of a group are launched when the group ends, so that nothing is said of one of them alone.
    """
    nccl = np.array([text.startswith("NCCL:") for text in texts], bool)[annotations.name]
    told = {row: one for row in np.flatnonzero(nccl).tolist() if (one := _stated(annotations.payload[row]))}
    sizes = {one.communicator: one.ranks for one in told.values() if one.ranks > 0}
    alone = np.array([bool(_COLLECTIVE.match(text)) for text in texts], bool)[annotations.name]
    inner = around(annotations, nccl, calls.thread[call], calls.start_ns[call])
    return [told.get(at) if at >= 0 and alone[at] else None for at in inner.tolist()], sizes


@cache
def _stated(payload: str | None) -> Stated | None:
    """Read the payload of an annotation of NCCL, whose fields have names for people.

    Example:
        >>> _stated('{"NCCL communicator ID": "0x2a", "Message size [bytes]": 4096}')
        Stated(communicator=42, ranks=-1, size_bytes=4096, root=-1)
    """
    try:
        fields = json.loads(payload or "null")
    except (ValueError, RecursionError):
        return None
    if not isinstance(fields, dict):
        return None
    said = {"".join(re.findall("[a-z]+", key.lower())): _number(value) for key, value in fields.items()}
    communicator = said.get("ncclcommunicatorid", said.get("communicatorid", ABSENT))
    if communicator == ABSENT:
        return None
    sizes = said.get("messagesizebytes", ABSENT)
    return Stated(communicator, said.get("noofranks", ABSENT), sizes, said.get("root", ABSENT))


def _number(value: object) -> int:
    """A whole number within 63 bits, ABSENT for anything else."""
    if isinstance(value, str):  # exports separate thousands
        digits = value.replace(",", "")
        base = 16 if digits.startswith("0x") else 10
        value = int(digits, base) if re.fullmatch(r"0x[0-9a-fA-F]{1,16}|[0-9]{1,20}", digits) else None
    return value % 2**63 if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else ABSENT


def syncs_of(waits: Records, records: Records, rank: Int64, device: Int64) -> Syncs:
    """Waits whose kind is known, each with the record that it is for.

    The record is told by the number that both share, else it is the last one of the event before the wait.

    Args:
        waits: All of them.
        records: Recorded events.
        rank: Of each wait; ABSENT where its process is not part of the trace.
        device: Of each wait, numbered within the job.
    """
    kind = np.array([_KINDS.get(kind, ABSENT) for kind in waits.kind.tolist()], np.int8)
    found = _record_of(waits, records)
    stream, correlation = np.append(records.stream, ABSENT)[found], np.append(records.correlation, ABSENT)[found]
    kept = (kind >= 0) & (rank >= 0)
    return Syncs(
        kind[kept],
        rank[kept].astype(np.int32),
        device[kept].astype(np.int32),
        np.where(waits.stream >= _NO_STREAM, ABSENT, waits.stream)[kept],
        stream[kept],
        waits.correlation[kept],
        correlation[kept],
    )


def _record_of(waits: Records, records: Records) -> Int64:
    """Row of the record that each wait is for, ABSENT where there is none."""
    number = {
        (p, r): row for row, (p, r) in enumerate(zip(records.process.tolist(), records.record.tolist(), strict=True))
    }
    shared = [
        number.get((p, r), ABSENT) if r > 0 else ABSENT
        for p, r in zip(waits.process.tolist(), waits.record.tolist(), strict=True)
    ]
    both = np.concatenate(
        (np.column_stack((records.process, records.event)), np.column_stack((waits.process, waits.event)))
    )
    event = np.unique(both, axis=0, return_inverse=True)[1].ravel()
    correlation = np.maximum(np.concatenate((records.correlation, waits.correlation)), 0)
    key, known = event * LARGEST + correlation, len(records.event)
    order = np.argsort(key[:known], kind="stable")
    at = np.searchsorted(key[:known][order], key[known:], side="left") - 1
    last = np.append(order, ABSENT)[at]
    same = (at >= 0) & (waits.event >= 0) & (np.append(event[:known], ABSENT)[last] == event[known:])
    told = np.array(shared, np.int64)
    return np.where(told >= 0, told, np.where(same, last, ABSENT))
