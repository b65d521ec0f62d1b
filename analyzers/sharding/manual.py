"""What a program does by hand, as in `shard_map`: sums of copies, and copies that are claimed but not made.

Along which axes a value differs from device to device follows from where it comes from (`varying.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from traceflow.analyzers.sharding.found import Found
from traceflow.analyzers.sharding.partitioning import Partitioning, shape_of
from traceflow.analyzers.sharding.varying import Value, Varying, joined, parts
from traceflow.intent.mesh import Mesh
from traceflow.intent.shardy import Stated, manual_axes, stated
from traceflow.program.module import HloModule
from traceflow.result import Severity
from traceflow.trace.model import ABSENT

_ENTER, _LEAVE = "xla.sdy.GlobalToLocalShape", "xla.sdy.LocalToGlobalShape"
_SUMS = frozenset({"all-reduce", "reduce-scatter"})


class _Body(NamedTuple):
    """A computation that the program runs on each device by hand."""

    call: int
    inputs: tuple[Stated, ...]
    axes: tuple[str, ...]
    computation: int


def needless_sums(p: Partitioning) -> Iterator[Found]:
    """Sums over devices that all have the same: their number times the value, or work for nothing.

    Sums of constants count devices, and those of scalars cost nothing. Those that differentiation adds to a sum of
    its author's are not the author's.
    """
    module, mesh = p.compilation.written, p.mesh
    if module is None or mesh is None:
        return
    for body in _bodies(module):
        varying, _ = _followed(module, mesh, body)
        for row in varying.values:
            if module.opcode[row] not in _SUMS or _is_derived(module, body, row):
                continue
            summed = joined(varying.values[operand] for operand in module.operands_of(row).tolist())
            alike = [axis for axis in varying.over(row) if axis not in summed.differs | summed.unknown]
            if alike and summed.given and _is_array(module, row):
                yield _needless(module, row, alike)


def _is_derived(module: HloModule, body: _Body, row: int) -> bool:
    """Whether differentiation made an instruction."""
    return any("transpose(" in module.operation_name[at] for at in (body.call, row))


def _is_array(module: HloModule, row: int) -> bool:
    return any(shape_of(module, operand) for operand in module.operands_of(row).tolist())


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
    if module is None or mesh is None:
        return
    for body in _bodies(module):
        _, results = _followed(module, mesh, body)
        for row, value, said in zip(_roots(module, body), results, _claimed(module, body), strict=False):
            missing = sorted(value.differs - set(said.spec.axes) - set(said.spec.unreduced))
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
    seen: set[int] = set()
    for row, target in module.custom_call_target.items():
        if target != _LEAVE:
            continue
        call = next((r for r in _before(module, row) if module.opcode[r] == "call"), None)
        if call is None or call in seen:
            continue
        seen.add(call)
        entering = (r for r in _before(module, call) if module.custom_call_target.get(r) == _ENTER)
        attributes = module.attributes.get(next(entering, ABSENT), {})
        inputs = stated(attributes.get("xla.sdy.in_shardings", ""))
        axes = manual_axes(attributes) or manual_axes(module.attributes[row])
        yield _Body(call, inputs, axes, int(module.called_by(call)[0]))


def _before(module: HloModule, row: int) -> Iterator[int]:
    """Operands, through tuples that only hold them together."""
    for operand in module.operands_of(row).tolist():
        yield operand
        if module.opcode[operand] in {"get-tuple-element", "tuple"}:
            yield from _before(module, operand)


def _roots(module: HloModule, body: _Body) -> list[int]:
    """What the body returns."""
    root = int(module.computation_root[body.computation])
    return module.operands_of(root).tolist() if module.opcode[root] == "tuple" else [root]


def _claimed(module: HloModule, body: _Body) -> list[Stated]:
    """What is claimed of each result; nothing where that cannot be told apart."""
    leaving = [
        row
        for row, target in module.custom_call_target.items()
        if target == _LEAVE and body.call in _before(module, row)
    ]
    said = [one for row in leaving for one in stated(module.attributes[row].get("xla.sdy.out_shardings", ""))]
    return said if len(said) == len(_roots(module, body)) else []


def _followed(module: HloModule, mesh: Mesh, body: _Body) -> tuple[Varying, tuple[Value, ...]]:
    """The values of a body, and its results."""
    varying = Varying(module, mesh, body.axes)
    every = frozenset(body.axes)
    inputs = [
        Value(every & {axis.partition(":")[0] for axis in one.spec.axes}, frozenset(), given=True)
        for one in body.inputs
    ]
    return varying, parts(varying.follow(body.computation, inputs))
