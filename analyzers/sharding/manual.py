"""What a program does by hand, as in `shard_map`: sums of copies, and copies that are claimed but not made.

Along which axes a value differs from device to device follows from where it comes from: an input differs along the
axes that split it, and a sum or a gather over an axis makes it alike along that axis. What passed a permute or a loop
may differ or not. Two sets are kept for each value: the axes along which it is known to differ, and those along which
it may.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from traceflow.analyzers.sharding.found import Found
from traceflow.analyzers.sharding.partitioning import Partitioning, shape_of
from traceflow.intent.mesh import Mesh
from traceflow.intent.shardy import Stated, manual_axes, stated
from traceflow.program.module import HloModule
from traceflow.result import Severity

_ENTER, _LEAVE = "xla.sdy.GlobalToLocalShape", "xla.sdy.LocalToGlobalShape"
_ALIKE = frozenset({"all-reduce", "all-gather", "collective-broadcast"})
_MIXED = frozenset({"collective-permute", "all-to-all", "while", "conditional", "call", "partition-id", "rng"})


class _Differs(NamedTuple):
    surely: frozenset[str]
    perhaps: frozenset[str]


_CONSTANT = _Differs(frozenset(), frozenset())


class _Body(NamedTuple):
    """A computation that the program runs on each device by hand."""

    call: int
    inputs: tuple[Stated, ...]
    axes: tuple[str, ...]
    computation: int


def needless_sums(p: Partitioning) -> Iterator[Found]:
    """Sums over devices that all have the same: their number times the value, or work for nothing."""
    module, mesh = p.compilation.written, p.mesh
    for body in _bodies(module) if module and mesh else ():
        assert module is not None and mesh is not None  # noqa: S101, PT018  # there are no bodies without them
        differs = _differences(module, mesh, body)
        for row, groups in module.replica_groups.items():
            if row not in differs or module.opcode[row] not in {"all-reduce", "reduce-scatter"}:
                continue
            summed = _over(mesh, body, groups)
            operand = differs[int(module.operands_of(row)[0])]
            alike = [axis for axis in summed if axis not in operand.perhaps]
            if alike and shape_of(module, row) and operand.perhaps:
                yield _needless(module, row, alike)


def _needless(module: HloModule, row: int, axes: list[str]) -> Found:
    over = ", ".join(axes)
    return Found(
        code="TF238",
        title=f"a sum over {over} adds up copies: what is summed does not depend on {over}",
        source=module.source[row],
        suggestion="Leave the axis out of the sum, or split the input over it. A sum of n copies is n times too large.",
        severity=Severity.ERROR,
        evidence={"instruction": module.instruction_name[row], "axes": [*axes]},
    )


def unfounded_claims(p: Partitioning) -> Iterator[Found]:
    """Results that `out_specs` claim to be alike along an axis along which they differ."""
    module, mesh = p.compilation.written, p.mesh
    for body in _bodies(module) if module and mesh else ():
        assert module is not None and mesh is not None  # noqa: S101, PT018  # there are no bodies without them
        differs = _differences(module, mesh, body)
        for row, said in _results(module, body):
            missing = sorted((differs[row].surely & set(body.axes)) - set(said.spec.axes) - set(said.spec.unreduced))
            if missing:
                yield _claim(module, row, said, missing)


def _claim(module: HloModule, row: int, said: Stated, axes: list[str]) -> Found:
    over = ", ".join(axes)
    return Found(
        code="TF239",
        title=f"out_specs {said.spec} claims that results are alike along {over}, and nothing makes them so",
        source=module.source[row],
        suggestion=f"Reduce over {over} (psum), or name the axis in out_specs. A claim reduces nothing.",
        severity=Severity.ERROR,
        evidence={"instruction": module.instruction_name[row], "axes": [*axes]},
    )


def _bodies(module: HloModule) -> Iterator[_Body]:
    for row, target in module.custom_call_target.items():
        if target != _LEAVE:
            continue
        call = next((r for r in _before(module, row) if module.opcode[r] == "call"), None)
        enter = (
            None
            if call is None
            else next((r for r in _before(module, call) if module.custom_call_target.get(r) == _ENTER), None)
        )
        if call is None or enter is None:
            continue
        attributes = module.attributes.get(enter, {})
        inputs = stated(attributes.get("xla.sdy.in_shardings", ""))
        yield _Body(call, inputs, manual_axes(attributes), int(module.called_by(call)[0]))


def _before(module: HloModule, row: int) -> Iterator[int]:
    """Operands, through tuples that only hold them together."""
    for operand in module.operands_of(row).tolist():
        yield operand
        if module.opcode[operand] in {"get-tuple-element", "tuple"}:
            yield from _before(module, operand)


def _results(module: HloModule, body: _Body) -> list[tuple[int, Stated]]:
    """What the body returns, with what is claimed of it."""
    leaving = [
        row
        for row, target in module.custom_call_target.items()
        if target == _LEAVE and body.call in _before(module, row)
    ]
    said = [one for row in leaving for one in stated(module.attributes[row].get("xla.sdy.out_shardings", ""))]
    root = int(module.computation_root[body.computation])
    rows = module.operands_of(root).tolist() if module.opcode[root] == "tuple" else [root]
    return list(zip(rows, said, strict=False)) if len(rows) == len(said) else []


def _differences(module: HloModule, mesh: Mesh, body: _Body) -> dict[int, _Differs]:
    """Along which axes each value of a body differs from device to device."""
    found: dict[int, _Differs] = {}
    every = frozenset(body.axes)
    for row in _in_order(module, body.computation):
        opcode = module.opcode[row]
        operands = [found.get(operand, _CONSTANT) for operand in module.operands_of(row).tolist()]
        surely = frozenset[str]().union(*(one.surely for one in operands))
        perhaps = frozenset[str]().union(*(one.perhaps for one in operands))
        if opcode == "parameter":
            number = int(module.parameter_number[row])
            axes = (
                frozenset(a.partition(":")[0] for a in body.inputs[number].spec.axes)
                if number < len(body.inputs)
                else every
            )
            found[row] = _Differs(axes & every, axes & every)
        elif opcode in _ALIKE or opcode == "reduce-scatter":
            over = frozenset(_over(mesh, body, module.replica_groups.get(row, ())))
            scattered = over if opcode == "reduce-scatter" else frozenset[str]()
            found[row] = _Differs((surely - over) | scattered, (perhaps - over) | scattered)
        elif opcode in _MIXED:
            found[row] = _Differs(frozenset(), every)
        else:
            found[row] = _Differs(surely, perhaps)
    return found


def _over(mesh: Mesh, body: _Body, groups: tuple[tuple[int, ...], ...]) -> tuple[str, ...]:
    axes = mesh.axes_of(groups) if groups else tuple(mesh.axes)
    return tuple(
        dict.fromkeys(a.partition(":")[0] for a in axes or () if a.partition(":")[0] in body.axes and ":" not in a)
    )


def _in_order(module: HloModule, computation: int) -> list[int]:
    """Instructions of a computation, operands before those that use them."""
    rows = [row for row in range(len(module)) if int(module.computation[row]) == computation]
    order: list[int] = []
    placed: set[int] = set()
    waiting = list(reversed(rows))
    while waiting:
        row = waiting.pop()
        if row in placed:
            continue
        missing = [o for o in module.operands_of(row).tolist() if o not in placed]
        if missing:
            waiting += [row, *missing]
        else:
            placed.add(row)
            order.append(row)
    return order
