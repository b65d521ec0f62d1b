"""One program at its stages, with everything named on its mesh: what the questions about its sharding are asked of."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from traceflow.analyzers.sharding.flow import Flow
from traceflow.intent.hlo_sharding import spec_of
from traceflow.intent.intent import ArrayIntent, Intent, Role, written_intent
from traceflow.intent.mesh import Axes, Mesh
from traceflow.intent.spec import Spec
from traceflow.program.arithmetic import arrays
from traceflow.program.compilation import Compilation
from traceflow.program.cost import Cost, ProgramCost
from traceflow.program.module import COLLECTIVES, HloModule, base_opcode
from traceflow.program.sharding import parse_sharding

MOVING = frozenset({"all-gather", "all-to-all", "collective-permute"})
REDUCING = frozenset({"all-reduce", "reduce-scatter"})
_WORTH_SHARE = 0.01


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective of the divided program."""

    row: int  # in `Partitioning.divided`
    operation: str
    axes: Axes | None  # None where no name fits its groups
    groups: tuple[tuple[int, ...], ...]
    bytes: int | None  # that each device sends
    written: bool  # the program has it itself


class Partitioning:
    """A compilation and its intent, with names for what lies where.

    Args:
        compilation: The stages that are there.
        intent: What its author adds to what the program says.
    """

    def __init__(self, compilation: Compilation, intent: Intent) -> None:
        self.compilation = compilation
        said = written_intent(compilation.written) if compilation.written else Intent()
        self.intent = said | intent
        self.names_mesh = said.mesh is not None
        self._specs: dict[tuple[str | None, int], Spec | None] = {}  # by sharding and rank: few are different

    @property
    def mesh(self) -> Mesh | None:
        """The user's mesh, None where neither the program nor its author names one."""
        return self.intent.mesh

    @property
    def multiplies(self) -> bool:
        """Whether there is a product or a convolution in the program, at the stage that is closest to what was written."""
        stages = (self.compilation.written, self.compilation.propagated, self.divided)
        module = next((module for module in stages if module is not None), None)
        return module is not None and bool(module.dots or module.convolutions)

    @cached_property
    def divided(self) -> HloModule | None:
        """The program of one device, as close to its cause as was kept."""
        return self.compilation.partitioned or self.compilation.compiled

    @cached_property
    def flow(self) -> Flow:
        """Of the divided program."""
        if self.divided is None:
            raise ValueError("the program was not kept")
        return Flow(self.divided)

    @cached_property
    def whole_flow(self) -> Flow | None:
        """Of the program before it is divided, with shardings everywhere."""
        return None if self.compilation.propagated is None else Flow(self.compilation.propagated)

    @cached_property
    def divided_cost(self) -> ProgramCost | None:
        """What the instructions of the divided program compute and send on one device."""
        devices = None if self.mesh is None else len(self.mesh)
        return None if self.divided is None else ProgramCost(self.divided, devices, moved=False)

    @cached_property
    def whole_cost(self) -> Cost | None:
        """What the program computes before it is divided, with whole arrays."""
        whole = self.compilation.propagated or self.compilation.written
        return None if whole is None else ProgramCost(whole, moved=False).total()

    @cached_property
    def collectives(self) -> tuple[Collective, ...]:
        """The collectives of the divided program, asynchronous ones once."""
        module = self.divided
        if module is None:
            return ()
        rows = [
            row
            for row, opcode in enumerate(module.opcode)
            if base_opcode(opcode) in COLLECTIVES and not opcode.endswith(("-done", "-update"))
        ]
        return tuple(self._collective(module, row) for row in rows)

    def _collective(self, module: HloModule, row: int) -> Collective:
        operation = base_opcode(module.opcode[row])
        groups, pairs = module.replica_groups.get(row, ()), module.source_target_pairs.get(row, ())
        axes = None
        if self.mesh is not None and sum(map(len, groups)) in {0, len(self.mesh)}:
            groups = groups or ((tuple(self.mesh.devices),) if not pairs else ())
            axes = self.mesh.axes_between(pairs) if pairs else self.mesh.axes_of(groups)
        sent = None if self.divided_cost is None else self.divided_cost.of(row).payload_bytes
        return Collective(row, operation, axes, groups or pairs, sent, self._is_written(module, row))

    def _is_written(self, module: HloModule, row: int) -> bool:
        return (base_opcode(module.opcode[row]), _end(module.operation_name[row]), module.source[row]) in self._written

    @cached_property
    def _written(self) -> frozenset[tuple[str, str, str]]:
        """The collectives that the program has itself, by the last part of their scopes and their source lines."""
        module = self.compilation.written
        if module is None:
            return frozenset()
        rows = (row for row, opcode in enumerate(module.opcode) if base_opcode(opcode) in COLLECTIVES)
        return frozenset(
            (base_opcode(module.opcode[r]), _end(module.operation_name[r]), module.source[r]) for r in rows
        )

    def spec(self, row: int) -> Spec | None:
        """How a value of the propagated program lies; None where no spec says it, as within `shard_map`."""
        module = self.compilation.propagated
        if module is None or self.mesh is None:
            return None
        key = module.sharding.get(row), len(shape_of(module, row))
        if key not in self._specs:
            text, rank = key
            self._specs[key] = Spec(((),) * rank) if text is None else spec_of(parse_sharding(text), self.mesh, rank)
        return self._specs[key]

    def whole_operands(self, row: int) -> list[int]:
        """The operands of an instruction of the propagated program."""
        module = self.compilation.propagated
        return [] if module is None else module.operands_of(row).tolist()

    def causes(self, row: int, opcodes: frozenset[str] | None = None) -> Iterator[int]:
        """Instructions of the propagated program that became one of the divided program, by scope and source line."""
        divided, propagated = self.divided, self.compilation.propagated
        if divided is None or propagated is None or not divided.operation_name[row]:
            return
        for other in self.at(divided.operation_name[row], divided.source[row]):
            if opcodes is None or propagated.opcode[other] in opcodes:
                yield other

    def at(self, scope: str, source: str) -> list[int]:
        """Instructions of the propagated program with a scope and a source line."""
        return self._by_place.get((scope, source), [])

    @cached_property
    def _by_place(self) -> dict[tuple[str, str], list[int]]:
        module = self.compilation.propagated
        found: dict[tuple[str, str], list[int]] = {}
        places = () if module is None else zip(module.operation_name, module.source, strict=True)
        for row, place in enumerate(places):
            found.setdefault(place, []).append(row)
        return found

    @cached_property
    def arguments(self) -> dict[int, ArrayIntent]:
        """What is known of the program's arguments, by number."""
        return {a.number: a for a in self.intent.arrays if a.role is Role.ARGUMENT and a.number is not None}

    @cached_property
    def parameters(self) -> dict[int, int]:
        """Rows of the divided program's arguments, by number."""
        module = self.divided
        if module is None:
            return {}
        numbers = enumerate(module.parameter_number.tolist())
        return {number: row for row, number in numbers if number >= 0 and module.computation[row] == module.entry}

    @cached_property
    def worth_bytes(self) -> float:
        """What must be sent to be worth a finding: a share of the largest value that one device holds."""
        module = self.divided
        return 0 if module is None else _WORTH_SHARE * max(module.output_bytes.tolist(), default=0)


def shape_of(module: HloModule, row: int) -> tuple[int, ...]:
    """Dimensions of a value; () for a tuple."""
    found = arrays(module.shape[row])
    return found[0][1] if len(found) == 1 else ()


def _end(scope: str) -> str:
    """The last part of a scope: partitioning and inlining change what stands before it."""
    return scope.rpartition("/")[2]
