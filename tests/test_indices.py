"""Whole numbers that programs compute on every device: against what XLA computes, and by hand."""

from __future__ import annotations

import numpy as np
import pytest

from traceflow.program.hlo_module_text import read_hlo_text
from traceflow.program.indices import Numbers, numbers_of
from traceflow.program.module import HloModule


def evaluated(module: HloModule, devices: int) -> Numbers:
    """The root of an entry computation, on each device."""
    values: dict[int, Numbers] = {}
    for row in range(len(module)):
        operands = [values[at] for at in module.operands_of(row).tolist()]
        found = numbers_of(module, row, operands, devices)
        assert found is not None, module.instruction_name[row]
        values[row] = found
    return values[int(module.computation_root[module.entry])]


def program(*lines: str) -> HloModule:
    body = "\n".join(f"  {line}" for line in lines)
    return read_hlo_text(f"HloModule m\nENTRY %e () -> s32[] {{\n{body}\n}}", 0)


DEVICE = ("%p = u32[] partition-id()", "%d = s32[] convert(%p)")


def test_a_device_computes_where_its_block_comes_from() -> None:
    module = program(
        *DEVICE,
        "%step = s32[] constant(3)",
        "%n = s32[] constant(4)",
        "%width = s32[] constant(16)",
        "%sum = s32[] add(%d, %step)",
        "%turned = s32[] remainder(%sum, %n)",
        "ROOT %start = s32[] multiply(%turned, %width)",
    )
    assert evaluated(module, 4).tolist() == [48, 0, 16, 32]


def test_a_table_is_looked_up_by_device_and_never_beyond_its_end() -> None:
    module = program(
        *DEVICE,
        "%table = s32[4]{0} constant({30, 0, 10, 20})",
        "%one = s32[] constant(1)",
        "%next = s32[] add(%d, %one)",
        "%cut = s32[1]{0} dynamic-slice(%table, %next), dynamic_slice_sizes={1}",
        "ROOT %start = s32[] reshape(%cut)",
    )
    assert evaluated(module, 4).tolist() == [0, 10, 20, 20]


@pytest.mark.parametrize(
    ("opcode", "one", "other", "expected"),
    [
        ("divide", -7, 2, -3),
        ("divide", 7, 0, -1),
        ("remainder", -7, 4, -3),
        ("remainder", 7, 0, 7),
        ("add", 2**31 - 1, 1, -(2**31)),
        ("shift-right-logical", -1, 28, 15),
        ("shift-right-arithmetic", -16, 2, -4),
    ],
)
def test_numbers_are_computed_as_xla_does(opcode: str, one: int, other: int, expected: int) -> None:
    module = program(
        f"%a = s32[] constant({one})", f"%b = s32[] constant({other})", f"ROOT %c = s32[] {opcode}(%a, %b)"
    )
    assert evaluated(module, 2).tolist() == [expected, expected]


def test_choices_follow_comparisons() -> None:
    module = program(
        *DEVICE,
        "%two = s32[] constant(2)",
        "%far = pred[] compare(%d, %two), direction=GE",
        "ROOT %c = s32[] select(%far, %two, %d)",
    )
    found = evaluated(module, 4)
    assert found.dtype == np.int32
    assert found.tolist() == [0, 1, 2, 2]


def test_what_is_no_whole_number_is_not_computed() -> None:
    module = program("ROOT %x = f32[] constant(1)")
    assert numbers_of(module, 0, [], 2) is None
