"""What an instruction computes, moves and sends: FLOPs and bytes from shapes, loops times their trips.

FLOPs follow XLA's `HloCostAnalysis`, so that both can be compared: a multiplication with an addition is two, an
element of an elementwise result is one, whatever its type, and exponentials, roots and the like are counted apart, as
`transcendentals`. Two things differ on purpose. The body of a loop counts as often as it runs, where XLA counts it
once; and a library call that multiplies matrices or convolves is counted like the instruction that it stands for.

Shapes are those of one device, so FLOPs and bytes are local.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from traceflow.budgets import sent_bytes
from traceflow.program.arithmetic import (
    TRANSCENDENTAL,
    WITHOUT_ARITHMETIC,
    applied,
    arrays,
    element_type,
    elements,
    own_flops,
)
from traceflow.program.module import COLLECTIVES, HloModule, base_opcode
from traceflow.program.traffic import FREE, accessed_bytes, value_bytes

_EXECUTES_OTHERS = frozenset({"while", "call", "async-start", "conditional"})
_LOOP = "how often a loop runs is not known"
_CONTENT = "what is computed is not visible in the program"
_SIZE = "the size of a value is not known"
_DATA = "how much is sent depends on the data"
_GROUP = "the size of a group is not known"


@dataclass(frozen=True, slots=True)
class Cost:
    """What one execution on one device takes; `missing` says why a figure holds only what could be counted."""

    flops: Mapping[str, int] = field(default_factory=dict)  # by element type of what is computed with
    transcendentals: int = 0
    bytes: int = 0  # read and written
    sent_bytes: int = 0  # by each end of its collectives
    missing: Mapping[str, str] = field(default_factory=dict)  # flops, bytes or sent_bytes -> the reason

    def __add__(self, other: Cost) -> Cost:
        return _sum((self, other))

    def __mul__(self, times: int) -> Cost:
        return Cost(
            {kind: flops * times for kind, flops in self.flops.items()},
            self.transcendentals * times,
            self.bytes * times,
            self.sent_bytes * times,
            self.missing,
        )

    @property
    def total_flops(self) -> int | None:
        """FLOPs of all element types, None where they are not known."""
        return None if "flops" in self.missing else sum(self.flops.values())

    @property
    def total_bytes(self) -> int | None:
        """Bytes read and written, None where they are not known."""
        return None if "bytes" in self.missing else self.bytes

    @property
    def payload_bytes(self) -> int | None:
        """Bytes sent, None where they are not known."""
        return None if "sent_bytes" in self.missing else self.sent_bytes


_NOTHING = Cost()


class ProgramCost:
    """Costs of the instructions of a module, found when first asked for.

    Args:
        module: The program, as one device executes it.
        devices: How many devices execute it, for collectives among all of them; None where that is not known.
        moved: Whether to find also what single instructions read and write, which takes as long as all the rest.
    """

    def __init__(self, module: HloModule, devices: int | None = None, *, moved: bool = True) -> None:
        self._module, self._devices = module, devices
        self._moved = moved or "conditional" in module.opcode  # of which one branch may be costlier for what it moves
        self._known: dict[int, Cost] = {}
        self._computed: dict[int, Cost] = {}
        self._members: dict[int, list[int]] = {}
        for row, computation in enumerate(module.computation.tolist()):
            self._members.setdefault(computation, []).append(row)

    def total(self) -> Cost:
        """One execution of the whole program."""
        return self.of_computation(self._module.entry)

    def of_computation(self, computation: int) -> Cost:
        """One execution of a computation."""
        return _sum(self.of(row) for row in self._members.get(computation, ()))

    def of(self, row: int) -> Cost:
        """One execution of an instruction, with everything that it calls.

        A loop counts its body and its condition as often as the body runs. A conditional counts as its costliest
        branch. Of an asynchronous pair the start has the whole cost.
        """
        found = self._known.get(row)
        if found is None:
            found = self._known[row] = self._cost(row)
        return found

    def _cost(self, row: int) -> Cost:
        module, opcode = self._module, self._module.opcode[row]
        if opcode in FREE or opcode.endswith(("-done", "-update")):
            return _NOTHING
        if base_opcode(opcode) in COLLECTIVES:
            return self._collective(row, base_opcode(opcode))
        if opcode not in _EXECUTES_OTHERS:
            return self._stated(row, self._plain(row))
        called = [self.of_computation(one) for one in module.called_by(row).tolist()]
        if opcode == "conditional":
            return max(called, key=lambda cost: (sum(cost.flops.values()), cost.bytes), default=_NOTHING)
        return self._loop(row, _sum(called)) if opcode == "while" else _sum(called)

    def _loop(self, row: int, inside: Cost) -> Cost:
        trips = self._module.trip_count.get(row)
        if trips is not None:
            return inside * trips
        amounts = {"flops": any(inside.flops.values()), "bytes": inside.bytes, "sent_bytes": inside.sent_bytes}
        return replace(
            inside, missing={**inside.missing, **{name: _LOOP for name, amount in amounts.items() if amount}}
        )

    def _plain(self, row: int) -> Cost:
        """An instruction that executes as one piece, whatever it applies or holds."""
        arithmetic = self._arithmetic(row)
        moved = accessed_bytes(self._module, row) if self._moved else None
        missing = arithmetic.missing if moved is not None else {**arithmetic.missing, "bytes": _SIZE}
        return Cost(arithmetic.flops, arithmetic.transcendentals, moved or 0, 0, missing)

    def _arithmetic(self, row: int) -> Cost:
        """What an instruction computes, without what it moves."""
        module, opcode = self._module, self._module.opcode[row]
        if opcode in TRANSCENDENTAL:
            return Cost(transcendentals=elements(module.shape[row]))
        flops = own_flops(module, row)
        if flops is None:
            return Cost(missing={"flops": _CONTENT})
        own = Cost({element_type(module, row): flops}) if flops else _NOTHING
        inside = [self._inside(one) * times for one, times in applied(module, row)]
        return _sum((own, *inside)) if inside else own

    def _inside(self, computation: int) -> Cost:
        """What a computation computes that an instruction applies: its values touch no memory."""
        found = self._computed.get(computation)
        if found is None:
            rows = self._members.get(computation, ())
            visible = (row for row in rows if self._module.opcode[row] not in WITHOUT_ARITHMETIC)
            found = self._computed[computation] = _sum(map(self._arithmetic, visible))
        return found

    def _stated(self, row: int, cost: Cost) -> Cost:
        """What the compiler states, where the program does not show it, or where it knows of less traffic."""
        flops, moved = self._module.stated_flops.get(row), self._module.stated_bytes.get(row)
        if flops is not None and "flops" in cost.missing:
            cost = replace(cost, flops={element_type(self._module, row): flops}, missing=_but(cost.missing, "flops"))
        if moved is not None and ("bytes" in cost.missing or moved < cost.bytes):
            cost = replace(cost, bytes=moved, missing=_but(cost.missing, "bytes"))
        return cost

    def _collective(self, row: int, operation: str) -> Cost:
        module = self._module
        operands = module.operands_of(row).tolist()
        sizes = [value_bytes(module, operand) for operand in operands if arrays(module.shape[operand])]
        members = self._members_of_group(row)
        if not sizes or min(sizes) < 0:
            return Cost(missing={"bytes": _SIZE, "sent_bytes": _SIZE})
        put_in = sum(sizes)
        flops = sum(elements(module.shape[operand]) for operand in operands) if operation == "all-reduce" else 0
        own = {element_type(module, row): flops} if flops else {}
        if members is None:
            return Cost(own, bytes=2 * put_in, missing={"sent_bytes": _GROUP})
        gets = {"all-gather": put_in * members, "reduce-scatter": put_in // members}.get(operation, put_in)
        sent = sent_bytes(operation, put_in, members)
        return Cost(own, 0, put_in + gets, sent or 0, {"sent_bytes": _DATA} if sent is None else {})

    def _members_of_group(self, row: int) -> int | None:
        """How many take part with a device; of a permute, two where anything crosses."""
        pairs, groups = self._module.source_target_pairs.get(row), self._module.replica_groups.get(row)
        if pairs:
            return 2 if any(source != target for source, target in pairs) else 1
        if groups:
            return max(map(len, groups))
        return 2 if base_opcode(self._module.opcode[row]) in {"send", "recv"} else self._devices


def _sum(costs: Iterable[Cost]) -> Cost:
    flops: dict[str, int] = {}
    missing: dict[str, str] = {}
    special = moved = sent = 0
    for cost in costs:
        for kind, number in cost.flops.items():
            flops[kind] = flops.get(kind, 0) + number
        missing.update(cost.missing)
        special += cost.transcendentals
        moved += cost.bytes
        sent += cost.sent_bytes
    return Cost(flops, special, moved, sent, missing)


def _but(missing: Mapping[str, str], name: str) -> dict[str, str]:
    return {what: why for what, why in missing.items() if what != name}
