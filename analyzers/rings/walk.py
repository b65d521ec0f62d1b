"""Walk through a program on all devices at once, and note which blocks are multiplied and sent, in which order.

Nothing is computed but whole numbers: where slices begin, and how often loops run. Of arrays it is followed what they
are made of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar, TypeAlias, TypeVar

import numpy as np

from traceflow.analyzers.rings.values import NOBODY, Assembled, Block, Known, Origin, Part, Parts, Sum, Term, Value
from traceflow.program.arithmetic import arrays
from traceflow.program.indices import numbers_of
from traceflow.program.module import HloModule, base_opcode
from traceflow.program.sharding import Sharding, ShardingKind, parse_sharding
from traceflow.trace.model import Int64

_LONGEST = 400_000  # instructions that are looked at, loops as often as they run
_Cut = TypeVar("_Cut", bound=Part)
_SAME = frozenset({
    "async-done", "async-update", "bitcast", "bitcast-convert", "collective-permute-done", "convert", "copy",
    "copy-done", "copy-start", "optimization-barrier", "reduce-precision",
})  # fmt: skip
_ELEMENTWISE = frozenset({
    "add", "divide", "exponential", "logistic", "maximum", "minimum", "multiply", "negate", "power", "rsqrt", "sqrt",
    "subtract", "tanh",
})  # fmt: skip
_REDUCTIONS = frozenset({"all-reduce", "reduce-scatter"})


@dataclass(frozen=True, slots=True, eq=False)
class Product:
    """One execution of a matrix product."""

    rows: tuple[int, ...]  # the instruction, and what runs it: fusions, calls
    after: int
    term: Term


@dataclass(frozen=True, slots=True, eq=False)
class Permute:
    """One execution of a permute."""

    rows: tuple[int, ...]
    after: int
    moved: Block | Sum | None
    senders: Int64  # [device]


class TooLongError(Exception):
    """A program that takes too many steps to walk through."""


Outer: TypeAlias = tuple[int, ...]
"""The instructions that run a computation, the outermost first."""


@dataclass
class Walk:
    """What a program does, in the order of its instructions."""

    module: HloModule
    events: list[Product | Permute] = field(default_factory=list)
    together: list[tuple[int, int]] = field(default_factory=list)  # events whose results are added up
    reduced: list[tuple[int, Sum]] = field(default_factory=list)  # collectives that sum over devices, and what
    sums: list[Sum] = field(default_factory=list)
    arrays: list[Assembled] = field(default_factory=list)
    result: Known | None = None
    steps: int = 0

    @cached_property
    def devices(self) -> int:
        """How many devices run the program."""
        module = self.module
        pairs = [device for found in module.source_target_pairs.values() for pair in found for device in pair]
        groups = [device for found in module.replica_groups.values() for group in found for device in group]
        return len(module.devices) or max([*pairs, *groups], default=0) + 1

    @cached_property
    def _order(self) -> dict[int, list[int]]:
        """Rows of each computation, operands before their users."""
        rows: dict[int, list[int]] = {}
        done: set[int] = set()
        for row in range(len(self.module)):
            waiting = [row]
            while waiting:
                at = waiting[-1]
                missing = [o for o in self.module.operands_of(at).tolist() if o not in done] if at not in done else []
                if missing and len(waiting) <= len(self.module):
                    waiting += missing
                    continue
                waiting.pop()
                if at not in done:
                    done.add(at)
                    rows.setdefault(int(self.module.computation[at]), []).append(at)
        return rows

    @cached_property
    def _rings(self) -> set[int]:
        """Computations that hold a permute, or call one that does."""
        module = self.module
        found = {int(module.computation[row]) for row in _permutes(module)}
        while True:
            callers = {
                int(module.computation[row])
                for row in range(len(module))
                if not found.isdisjoint(module.called_by(row).tolist())
            }
            if callers <= found:
                return found
            found |= callers

    def run(self) -> Walk:
        """Walk through the entry computation.

        Raises:
            TooLongError: Where loops run too often for that.
        """
        self.result = self._computation(self.module.entry, None, (), 0)
        return self

    def _computation(self, computation: int, given: Sequence[Known] | None, outer: Outer, after: int) -> Known:
        """Walk through a computation for its parameters, within the instructions `outer` that run it."""
        values: dict[int, Known] = {}
        module = self.module
        for row in self._order[computation]:
            self.steps += 1
            if self.steps > _LONGEST:
                raise TooLongError
            operands = [values[o] for o in module.operands_of(row).tolist()]
            before = [values[c] for c in module.controls[slice(*module.control_offsets[row : row + 2])] if c in values]
            bits = after
            for one in (*operands, *before):
                bits |= one.after
            if module.opcode[row] == "parameter" and given is not None:
                values[row] = given[int(module.parameter_number[row])]
            else:
                values[row] = self._instruction(row, operands, outer, bits)
        return values[int(module.computation_root[computation])]

    def _instruction(self, row: int, operands: list[Known], outer: Outer, after: int) -> Known:
        handle = self._HANDLED.get(self.module.opcode[row])
        if handle is not None:
            return handle(self, row, operands, outer, after)
        multiplies = row in self.module.dots and len(operands) > 1
        return (self._product if multiplies else self._plain)(row, operands, outer, after)

    def _plain(self, row: int, operands: list[Known], _outer: Outer, after: int) -> Known:
        """An array; or a tuple that only passes."""
        opcode = self.module.opcode[row]
        if opcode in _SAME and operands and isinstance(whole := operands[0].value, Parts):
            barrier = _everything(operands[0]) if opcode == "optimization-barrier" else 0
            return Known(Parts(tuple(replace(part, after=part.after | barrier) for part in whole.parts)), after)
        return self._seen(row, Known(self._value(row, [one.value for one in operands]), after))

    def _tuple(self, _row: int, operands: list[Known], _outer: Outer, after: int) -> Known:
        return Known(Parts(tuple(operands)), after)

    def _part(self, row: int, operands: list[Known], _outer: Outer, _after: int) -> Known:
        (whole,), index = operands, int(self.module.tuple_index[row])
        if isinstance(whole.value, Parts) and index < len(whole.value.parts):
            return self._seen(row, whole.value.parts[index])
        return self._seen(row, Known(None, whole.after))

    def _called(self, row: int, operands: list[Known], outer: Outer, after: int) -> Known:
        """What a fusion or a call gives; a fusion runs as one, so that all of it comes after all operands."""
        called = self.module.called_by(row)
        if not len(called):
            return self._seen(row, Known(None, after))
        before = after if self.module.opcode[row] == "fusion" else 0
        return self._seen(row, self._computation(int(called[0]), operands, (*outer, row), before))

    def _seen(self, row: int, known: Known) -> Known:
        """An array of which nothing is known begins here; of a tuple, with its parts."""
        if known.value is not None or self.module.shape[row].startswith("("):
            return known
        found = arrays(self.module.shape[row])
        if len(found) != 1:
            return known
        origin = Origin(row, found[0][1], self._offsets(row, found[0][1]))
        return replace(known, value=Block.whole(origin, self.devices))

    def _offsets(self, row: int, shape: tuple[int, ...]) -> tuple[Int64, ...] | None:
        """Where the part of an argument of the program begins that each device has."""
        module = self.module
        if module.opcode[row] != "parameter" or module.computation[row] != module.entry:
            return None
        number = int(module.parameter_number[row])
        stated = module.parameter_shardings
        text = stated[number] if 0 <= number < len(stated) else module.sharding.get(row, "")
        return offsets(parse_sharding(text), shape, self.devices) if text else None

    def _loop(self, row: int, operands: list[Known], outer: Outer, _after: int) -> Known:
        """What is there after a loop; one without permutes is walked through once, for what is in it."""
        (carried,) = operands
        body, condition = self.module.called_by(row).tolist()
        known, turns = self.module.trip_count.get(row), 0
        if not {body, condition} & self._rings or not isinstance(carried.value, Parts):
            return self._once(row, body, carried, outer)
        while True:
            goes_on = self._computation(condition, [carried], (*outer, row), 0).value
            if isinstance(goes_on, np.ndarray) and goes_on.all() == goes_on.any():
                if not goes_on.any():
                    return carried
            elif known is None:
                return self._once(row, body, carried, outer)
            elif turns == known:
                return carried
            carried = self._computation(body, [carried], (*outer, row), 0)
            turns += 1

    def _once(self, row: int, computation: int, carried: Known, outer: Outer) -> Known:
        """A computation of which it is not known how often it runs, and so nothing of what it gives."""
        after = _everything(carried)
        found = self._computation(computation, [Known(None, after)], (*outer, row), 0)
        return Known(None, after | _everything(found))

    def _branch(self, row: int, operands: list[Known], outer: Outer, _after: int) -> Known:
        """What a conditional gives, where all devices run the same of its computations; else all are walked through."""
        chosen, called = operands[0].value, self.module.called_by(row).tolist()
        if isinstance(chosen, np.ndarray) and (chosen == chosen.flat[0]).all():
            first = chosen.flat[0]
            index = int(not first) if chosen.dtype == np.bool_ else min(max(int(first), 0), len(called) - 1)
            found = self._computation(called[index], [operands[index + 1]], (*outer, row), operands[0].after)
            return self._seen(row, found)
        taken = [self._once(row, at, one, outer) for at, one in zip(called, operands[1:], strict=True)]
        return self._seen(row, Known(None, operands[0].after | _everything(Known(Parts(tuple(taken))))))

    def _product(self, row: int, operands: list[Known], outer: Outer, after: int) -> Known:
        left, right = (
            self._block(o, one) for o, one in zip(self.module.operands_of(row)[:2].tolist(), operands[:2], strict=True)
        )
        produced = arrays(self.module.shape[row])
        if left is None or right is None or not produced:
            return self._seen(row, Known(None, after))
        number = len(self.events)
        term = Term(number, self.module.dots[row], left, right)
        self.events.append(Product((row, *reversed(outer)), after, term))
        found = Sum.of(term, produced[0][1], self.devices)
        if len(operands) > 2 and isinstance(start := operands[2].value, Sum):
            found = self._added(found, start)  # a library's product that adds to what is there
        after |= 1 << number
        known = Known(found, after)
        return (
            known if len(produced) == 1 else Known(Parts((known, *(Known(None, after) for _ in produced[1:]))), after)
        )

    def _block(self, row: int, known: Known) -> Block | None:
        """An operand as a block; a sum that is multiplied is a new array."""
        if isinstance(known.value, Block):
            return known.value
        return value if isinstance(value := self._seen(row, Known(None)).value, Block) else None

    def _permute(self, row: int, operands: list[Known], outer: Outer, after: int) -> Known:
        """What is there after a permute; of one that is started, what its end will give."""
        senders = self._senders(row)
        arrived = [self._sent(row, one, senders, outer, after) for one in operands[: self._moved(row)]]
        return arrived[0] if len(arrived) == 1 else Known(Parts(tuple(arrived)), after)

    def _moved(self, row: int) -> int:
        """How many of a permute's operands are sent."""
        return max(len(arrays(self.module.shape[row])), 1) if self.module.opcode[row] == "collective-permute" else 1

    def _sent(self, row: int, one: Known, senders: Int64, outer: Outer, after: int) -> Known:
        number, value = len(self.events), one.value
        moved = value if isinstance(value, Block | Sum) else None
        self.events.append(Permute((row, *reversed(outer)), after, moved, senders))
        after |= 1 << number
        if isinstance(value, Block | Sum | Assembled):
            return Known(value.sent(senders, number), after)
        if isinstance(value, np.ndarray):
            nothing = (senders == NOBODY).reshape(-1, *(1 for _ in value.shape[1:]))
            return Known(np.where(nothing, np.zeros_like(value), value[senders]), after)
        return self._seen(row, Known(None, after))

    def _senders(self, row: int) -> Int64:
        """[device]: who sends to each, by number of partition."""
        senders = np.full(self.devices, NOBODY)
        number = {device: at for at, device in enumerate(self.module.devices)}
        for source, target in self.module.source_target_pairs.get(row, ()):
            senders[number.get(target, target)] = number.get(source, source)
        return senders

    def _value(self, row: int, operands: list[Value]) -> Value:
        module, opcode = self.module, self.module.opcode[row]
        numbers = [one for one in operands if isinstance(one, np.ndarray)]
        if len(numbers) == len(operands) and (found := numbers_of(module, row, numbers, self.devices)) is not None:
            return found
        if base_opcode(opcode) in _REDUCTIONS and not opcode.endswith("-done"):
            self.reduced += [(row, one) for one in operands if isinstance(one, Sum) and one.terms]
        produced = arrays(module.shape[row])
        return self._array(row, operands, produced[0][1]) if len(produced) == 1 else None

    def _array(self, row: int, operands: list[Value], sizes: tuple[int, ...]) -> Value:
        opcode = self.module.opcode[row]
        if opcode == "constant" or (opcode == "broadcast" and _is_plain(operands[0])):  # whatever number that is
            return Sum(sizes, (-1,) * len(sizes), (np.zeros(1, np.int64),) * len(sizes), ())
        if opcode == "concatenate":
            return self._concatenated(row, operands, sizes)
        if opcode == "dynamic-update-slice":
            return self._updated(operands, sizes)
        if opcode == "select" and isinstance(operands[0], np.ndarray):
            return _selected(operands[0], operands[1], operands[2])
        if opcode in _ELEMENTWISE:
            return self._elementwise(opcode, operands)
        return _rearranged(self.module, row, operands, sizes)

    def _elementwise(self, opcode: str, operands: list[Value]) -> Value:
        """The sum of two sums; a block that is changed in place by numbers or by itself stays that block."""
        sums = [one for one in operands if isinstance(one, Sum)]
        if len(sums) == len(operands) and opcode == "add":
            return self._added(*sums)
        others = [one for one in operands if not _is_plain(one)]
        if len(others) == 1 and opcode in {"add", "multiply", "divide", "subtract", "negate"}:
            return others[0] if isinstance(others[0], Block | Sum) else None
        blocks = [one for one in others if isinstance(one, Block)]
        if blocks and len(blocks) == len(others) and all(_same(blocks[0], other) for other in blocks):
            return blocks[0]
        return None

    def _added(self, one: Sum, other: Sum) -> Sum:
        found = one + other
        self.sums.append(found)
        numbers = [*(term.product for term in found.terms), *found.hops]
        if found.hops:
            self.together += [(numbers[0], number) for number in numbers[1:]]
        return found

    def _concatenated(self, row: int, operands: list[Value], sizes: tuple[int, ...]) -> Value:
        """Sums one behind the other."""
        parts = [one for one in operands if isinstance(one, Sum)]
        if len(parts) != len(operands):
            return None
        (along,) = self.module.dimensions.get(row, (0,))
        begins = np.cumsum([0, *(part.sizes[along] for part in parts)])[:-1].tolist()
        zero = np.zeros(self.devices, np.int64)
        places = (tuple(zero + begin if at == along else zero for at in range(len(sizes))) for begin in begins)
        return self._assembled(tuple(zip(places, parts, strict=True)), sizes)

    def _updated(self, operands: list[Value], sizes: tuple[int, ...]) -> Value:
        """An array with a sum put into it; it may begin as anything."""
        base, part, *starts = operands
        if not isinstance(part, Sum) or not part.terms or not all(isinstance(at, np.ndarray) for at in starts):
            return None
        own = base.parts if isinstance(base, Assembled) else ()
        begins = tuple(np.asarray(at).reshape(-1).astype(np.int64) for at in starts)
        return self._assembled((*own, (begins, part)), sizes)

    def _assembled(self, parts: tuple[tuple[tuple[Int64, ...], Sum], ...], sizes: tuple[int, ...]) -> Assembled:
        self.arrays.append(found := Assembled(parts, sizes))
        return found

    _HANDLED: ClassVar[Mapping[str, Callable[[Walk, int, list[Known], Outer, int], Known]]] = {
        "async-start": _called,
        "call": _called,
        "collective-permute": _permute,
        "collective-permute-start": _permute,
        "conditional": _branch,
        "fusion": _called,
        "get-tuple-element": _part,
        "tuple": _tuple,
        "while": _loop,
    }


def _permutes(module: HloModule) -> Iterator[int]:
    return (row for row, opcode in enumerate(module.opcode) if opcode.startswith("collective-permute"))


def _everything(known: Known) -> int:
    """All that a value and its parts come after."""
    after = known.after
    for part in known.value.parts if isinstance(known.value, Parts) else ():
        after |= _everything(part)
    return after


def _is_plain(value: Value) -> bool:
    """Single numbers, or what they are spread to: it makes nothing else of a block."""
    if isinstance(value, Part):
        return not value.sizes or (isinstance(value, Sum) and not value.terms and not value.hops)
    return isinstance(value, np.ndarray)


def _same(one: Block, other: Block) -> bool:
    return (
        one.origin is other.origin
        and one.axes == other.axes
        and one.sizes == other.sizes
        and bool((one.owner == other.owner).all())
        and all((a == b).all() for a, b in zip(one.starts, other.starts, strict=True))
    )


def _selected(condition: Value, one: Value, other: Value) -> Value:
    """What a choice gives: on each device one of the two, where they are numbers or parts of one array."""
    if not isinstance(condition, np.ndarray) or condition.ndim > 1:
        return None
    if condition.all():
        return one
    if not condition.any():
        return other
    if isinstance(one, Block) and isinstance(other, Block) and one.origin is other.origin and one.axes == other.axes:
        starts = tuple(np.where(condition, a, b) for a, b in zip(one.starts, other.starts, strict=True))
        hops = tuple(dict.fromkeys(one.hops + other.hops))
        return replace(one, starts=starts, owner=np.where(condition, one.owner, other.owner), hops=hops)
    return None


def _rearranged(module: HloModule, row: int, operands: list[Value], sizes: tuple[int, ...]) -> Value:
    """A part of a value, or the same in another order or shape."""
    opcode, value = module.opcode[row], operands[0] if operands else None
    if not isinstance(value, Part):
        return value if opcode in _SAME else None
    if opcode == "transpose":
        return value.turned(module.dimensions[row])
    if opcode in _SAME or opcode == "reshape":
        return value if value.sizes == sizes else value.shaped(sizes)
    if opcode == "slice" and all(stride == 1 for _, _, stride in module.slices.get(row, ((0, 0, 0),))):
        return _cut(value, [np.full(1, start) for start, _, _ in module.slices.get(row, ())], sizes)
    if opcode == "dynamic-slice" and all(isinstance(at, np.ndarray) for at in operands[1:]):
        return _cut(value, [np.asarray(at).reshape(-1).astype(np.int64) for at in operands[1:]], sizes)
    return None


def _cut(value: _Cut, starts: list[Int64], sizes: tuple[int, ...]) -> _Cut | None:
    """A part of a value; None where a damaged program cuts it in other dimensions than it has."""
    return value.cut(starts, sizes) if len(starts) == len(sizes) == len(value.sizes) else None


def offsets(sharding: Sharding, shape: tuple[int, ...], devices: int) -> tuple[Int64, ...] | None:
    """Where each device's part of an array begins in the whole, per dimension.

    Args:
        sharding: Of the whole array.
        shape: What one device has.
        devices: How many there are.

    Example:
        >>> offsets(parse_sharding("{devices=[1,4]<=[4]}"), (64, 16), 4)[1].tolist()
        [0, 16, 32, 48]
    """
    if sharding.kind is ShardingKind.REPLICATED:
        return tuple(np.zeros(devices, np.int64) for _ in shape)
    tiled = sharding.kind is ShardingKind.TILED and len(sharding.tiles) == len(shape) and not sharding.manual > 1
    if not tiled or sorted(sharding.devices) != list(range(devices)):
        return None
    places = np.array(sharding.devices).reshape(*sharding.tiles, sharding.copies)
    position = np.empty((len(shape), devices), np.int64)
    position[:, places.ravel()] = np.stack(np.unravel_index(np.arange(devices), places.shape)[:-1])
    return tuple(row * size for row, size in zip(position, shape, strict=True))
