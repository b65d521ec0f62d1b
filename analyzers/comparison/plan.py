"""What a run executes and in which layout, in a form that can be compared: its plan.

A plan holds nothing that differs between two runs of one program: no names of instructions, no numbers, no times.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add

import numpy as np

from traceflow.analyzers.communication import Communication
from traceflow.analyzers.dependencies import Dependencies
from traceflow.analyzers.window import step_of_events
from traceflow.program.module import COLLECTIVES, HloModule, Programs, operation_of
from traceflow.result import Json, Provenance
from traceflow.trace.model import ABSENT, Kind, Trace

ASPECTS = ("shapes", "layouts", "collectives", "dependencies", "instructions")
"""What a plan is compared by. A trace tells collectives and instructions alone."""

_PRODUCTS = frozenset({"dot", "convolution"})
_HEAVY = frozenset({"while", "conditional", "custom-call", "call"})
_WORK = (Kind.COMPUTE, Kind.COPY)


@dataclass(frozen=True, slots=True)
class ExecutedPlan:
    """How often each thing is in a plan, by aspect; an aspect that the evidence does not tell is left out."""

    counts: Mapping[str, Mapping[str, int]]
    provenance: Provenance


@dataclass(frozen=True, slots=True)
class PlanChange:
    """One thing of which two plans hold a different number."""

    aspect: str
    what: str
    a: int
    b: int
    provenance: Provenance

    def to_dict(self) -> dict[str, Json]:
        """A row of `plan_changes`."""
        return {
            "aspect": self.aspect,
            "what": self.what,
            "a": self.a,
            "b": self.b,
            "provenance": self.provenance.value,
        }


def plan_of_programs(trace: Trace, programs: Programs) -> ExecutedPlan | None:
    """The plan that compiled programs hold, all programs that were executed together; None without programs.

    - shapes: local shapes of arguments and results of each program
    - layouts: the same with layouts, tiles and memory spaces
    - collectives: operation, local shape of the result, and groups of devices or pairs of sender and receiver
    - dependencies: which collective, product, loop or call needs which other one, with what is between left out
    - instructions: opcodes, those inside fusions included

    Args:
        trace: Which of them were executed; all count where it does not tell.
        programs: The programs.
    """
    executed = {int(key) for key in np.unique(trace.hlo.program)} & programs.keys()
    modules = [programs[key] for key in (executed or programs)]
    if not modules:
        return None
    counts = {aspect: dict(reduce(add, (_COUNTED[aspect](module) for module in modules))) for aspect in ASPECTS}
    return ExecutedPlan(counts, Provenance.COMPILER)


def plan_of_trace(
    trace: Trace, found: Dependencies, steps: Sequence[int], communications: Sequence[Communication]
) -> ExecutedPlan:
    """What devices executed in a step, by name, and its collectives with their groups and payloads.

    Args:
        trace: The evidence.
        found: Its dependencies.
        steps: The steps to look at; none for the whole capture. Of what varies between them the median counts.
        communications: Of each of these steps.
    """
    collectives = [
        Counter(f"{one.op} of {one.payload_bytes} B over {one.group}" for one in each.collectives)
        for each in communications
    ]
    of_events = step_of_events(trace, found)
    masks = [of_events == step for step in steps] or [np.ones(len(trace.events), bool)]
    events, on_device = trace.events, trace.lanes.device[trace.events.lane] != ABSENT
    works = on_device & np.isin(events.kind, _WORK)
    names = [Counter(trace.strings[code] for code in events.name[works & mask].tolist()) for mask in masks]
    return ExecutedPlan({"collectives": _median(collectives), "instructions": _median(names)}, Provenance.MEASURED)


def plan_changes(a: ExecutedPlan, b: ExecutedPlan) -> tuple[PlanChange, ...]:
    """What two plans of the same provenance hold in different numbers, in the order of `ASPECTS`.

    Args:
        a: Of the first run.
        b: Of the second.
    """
    rows = []
    for aspect in ASPECTS:
        if aspect in a.counts and aspect in b.counts:
            ours, theirs = a.counts[aspect], b.counts[aspect]
            differ = sorted(what for what in {*ours, *theirs} if ours.get(what, 0) != theirs.get(what, 0))
            rows += [PlanChange(aspect, w, ours.get(w, 0), theirs.get(w, 0), a.provenance) for w in differ]
    return tuple(rows)


def _median(counts: Sequence[Counter[str]]) -> dict[str, int]:
    everything = dict.fromkeys(what for each in counts for what in each)
    middle = {what: sorted(each[what] for each in counts)[len(counts) // 2] for what in everything}
    return {what: count for what, count in middle.items() if count}


def _interface(module: HloModule) -> Iterator[tuple[str, int]]:
    """Arguments and the result of a program, by their row."""
    inside = np.flatnonzero(module.computation == module.entry)
    yield from (("argument", int(row)) for row in inside if module.parameter_number[row] >= 0)
    if (root := int(module.computation_root[module.entry])) >= 0:
        yield "result", root


def _shapes(module: HloModule) -> Counter[str]:
    return Counter(f"{role} {module.shape[row]}" for role, row in _interface(module))


def _layouts(module: HloModule) -> Counter[str]:
    return Counter(f"{role} {module.full_shape[row]}" for role, row in _interface(module))


def _issued(module: HloModule) -> Iterator[tuple[int, str]]:
    """Collectives, each once: of an asynchronous one its start."""
    for row in range(len(module)):
        if module.start_of(row) == row and (operation := operation_of(module, row)) in COLLECTIVES:
            yield row, operation


def _collectives(module: HloModule) -> Counter[str]:
    return Counter(
        f"{operation} to {module.shape[row]} over {_members(module, row)}" for row, operation in _issued(module)
    )


def _members(module: HloModule, row: int) -> str:
    work = module.wrapped_by(row)
    if pairs := module.source_target_pairs.get(work):
        return ",".join(f"{sender}>{receiver}" for sender, receiver in pairs)
    groups = module.replica_groups.get(work)
    return ",".join(f"{{{','.join(map(str, group))}}}" for group in groups) if groups else "all devices"


def _instructions(module: HloModule) -> Counter[str]:
    return Counter(module.opcode)


def _dependencies(module: HloModule) -> Counter[str]:
    """Edges between pieces of work, through whatever is between them."""
    fused = _fused(module)
    label = dict(_issued(module))
    inside = _contents(module)
    label |= {row: name for row in range(len(module)) if row not in label and (name := _work(module, row, inside))}
    latest: dict[int, frozenset[int]] = {}
    edges: Counter[str] = Counter()
    for row in _in_order(module):
        if int(module.computation[row]) in fused:
            continue
        needs = frozenset().union(*(latest.get(int(of), frozenset()) for of in module.operands_of(row)))
        if row in label:
            edges.update(f"{label[of]} -> {label[row]}" for of in needs)
        latest[row] = frozenset({row}) if row in label else needs
    return edges


def _in_order(module: HloModule) -> Iterator[int]:
    """Rows with operands before those that use them."""
    done = np.zeros(len(module), bool)
    for first in range(len(module)):
        left = [first]
        while left:
            row = left[-1]
            waits = [int(of) for of in module.operands_of(row) if not done[of] and int(of) not in left]
            left += waits
            if not waits:
                left.pop()
                if not done[row]:
                    done[row] = True
                    yield row


def _fused(module: HloModule) -> set[int]:
    """Computations that are not executed instruction by instruction: of fusions, reductions and the like."""
    calling = [row for row in range(len(module)) if module.opcode[row] not in _HEAVY]
    return {int(computation) for row in calling for computation in module.called_by(row)}


def _contents(module: HloModule) -> Mapping[int, set[str]]:
    """The opcodes in each computation."""
    contents: dict[int, set[str]] = defaultdict(set)
    for computation, opcode in zip(module.computation.tolist(), module.opcode, strict=True):
        contents[computation].add(opcode)
    return contents


def _work(module: HloModule, row: int, contents: Mapping[int, set[str]]) -> str | None:
    """A product, a loop or a call, by what it is; None for anything lighter."""
    opcode = module.opcode[row]
    if opcode in _PRODUCTS:
        return opcode
    if opcode == "custom-call":
        return f"custom-call {module.custom_call_target.get(row, '')}".strip()
    if opcode in _HEAVY:
        return opcode
    if opcode == "fusion":
        inside = set().union(*(contents[computation] for computation in module.called_by(row).tolist()))
        return next((product for product in sorted(_PRODUCTS) if product in inside), None)
    return None


_COUNTED = {
    "shapes": _shapes,
    "layouts": _layouts,
    "collectives": _collectives,
    "dependencies": _dependencies,
    "instructions": _instructions,
}
