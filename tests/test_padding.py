"""Padding in layouts, at the peak, in traffic and in shards."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from handmade import Builder
from hypothesis import given
from hypothesis import strategies as st
from test_live_ranges import ALLOCATE, FREE, buffers, heap, places

from traceflow.analyzers.padding import padding
from traceflow.cli import main
from traceflow.evidence import read
from traceflow.program.hlo_text import Line, read_hlo_lines
from traceflow.program.module import HloModule
from traceflow.program.stated import Stated, StatedArray, read_stated
from traceflow.run import open_run
from traceflow.trace.model import HloEvents, Kind, Trace

LINES = (
    "%a = f32[3,5]{1,0:T(2,2)} exp(f32[3,5]{1,0:T(2,2)} %p)",
    "%b = (f32[8]{0:T(8)}, s32[]{:T(128)S(6)}) custom-call(f32[3,5]{1,0:T(2,2)} %a)",
)


def program(*lines: str) -> HloModule:
    return read_hlo_lines([Line(line, "", "model.py:1") for line in lines], "jit_step", 7)


def executing(*instructions: int) -> Trace:
    """A trace of one device that executes these instructions in one run each."""
    build = Builder()
    lane = build.lane(0, "XLA Ops", 0)
    for i in range(len(instructions)):
        build.event(lane, 100 * i, 100 * i + 50, "op", Kind.COMPUTE)
    rows = np.arange(len(instructions), dtype=np.int32)
    hlo = HloEvents(rows, np.full(len(rows), 7), np.array(instructions, np.int32), rows.astype(np.int64))
    return replace(build.trace(), hlo=hlo)


def test_each_value_counts_once_in_total_and_as_often_as_it_is_executed_in_traffic() -> None:
    found = padding(executing(0, 0, 1), {7: program(*LINES)})
    layout = [(row.name, row.logical_bytes, row.physical_bytes, row.space) for row in found.layout]
    assert layout == [("b{1}", 4, 512, 6), ("a", 60, 96, 0), ("p", 60, 96, 0)]
    assert found.total_padding_bytes == 508 + 36 + 36
    assert found.traffic_padding_bytes == 2 * (36 + 36) + 36  # what is not in main memory does not move there
    assert [(one.module, one.values, one.at_peak_bytes) for one in found.programs] == [("jit_step", 4, None)]
    assert [finding.code for finding in found.findings] == ["TF213"]


def test_padding_at_the_peak_is_that_of_what_is_alive_then() -> None:
    module = program("%a = f32[3,5]{1,0:T(2,2)} exp()", "%b = f32[4]{0} exp()", "%c = f32[3,5]{1,0:T(2,2)} exp()")
    events = heap((0, ALLOCATE, 0), (0, FREE, 0), (1, ALLOCATE, 1), (2, ALLOCATE, 2), (1, FREE, 1), (2, FREE, 2))
    held = buffers(places((300, "temporary")), [96, 16, 96], [0, 0, 0], events)
    held = replace(held, values=replace(held.values, instruction=np.arange(3, dtype=np.int32)))
    found = padding(executing(0), {7: replace(module, buffers=held)})
    assert [row.name for row in found.layout] == ["a", "c"]
    assert found.total_padding_bytes == 72
    assert found.programs[0].at_peak_bytes == 36


def test_dense_layouts_have_no_padding_and_missing_ones_are_not_taken_for_dense() -> None:
    dense = padding(executing(0), {7: program("%a = f32[3,5]{1,0} exp(f32[3,5]{1,0} %p)")})
    assert (dense.total_padding_bytes, dense.traffic_padding_bytes, dense.layout, dense.findings) == (0, 0, (), ())
    bare = padding(executing(0), {7: program("%a = f32[3,5] exp(f32[3,5] %p)")})
    assert (bare.total_padding_bytes, bare.traffic_padding_bytes) == (None, None)
    assert "/result/total_padding_bytes" in {gap.what for gap in bare.skipped}


def stated(shape: tuple[int, ...], pieces: tuple[int, ...] | None, dtype: str = "float32", copies: int = 1) -> Stated:
    return Stated("step", "jit_step", None, (StatedArray("x", shape, dtype, pieces, copies),), ())


@pytest.mark.parametrize(
    ("shape", "pieces", "dtype", "copies", "local", "size_bytes"),
    [
        ((512, 1003), (1, 4), "float32", 1, (512, 251), 512 * 4),  # 4 * 251 = 1004 columns
        ((512, 1003), (1, 4), "bfloat16", 2, (512, 251), 512 * 2 * 2),
        ((5,), (4,), "bool", 1, (2,), 3),
        ((5,), (4,), "key<fry>", 1, (2,), None),
    ],
)
def test_shards_of_unequal_size(
    shape: tuple[int, ...],
    pieces: tuple[int, ...],
    dtype: str,
    copies: int,
    local: tuple[int, ...],
    size_bytes: int | None,
) -> None:
    (row,) = padding(executing(0), {}, stated=[stated(shape, pieces, dtype, copies)]).shards or ()
    assert (row.local_shape, row.padding_bytes) == (local, size_bytes)


def test_equal_shards_have_no_padding_and_unknown_placements_are_told() -> None:
    for array in (stated((512, 1004), (1, 4)), stated((5,), None)):
        assert padding(executing(0), {}, stated=[array]).shards == ()
    found = padding(executing(0), {})
    assert found.shards is None
    assert "/result/shards" in {gap.what for gap in found.skipped}


@given(st.lists(st.tuples(st.integers(1, 40), st.integers(1, 8)), min_size=1, max_size=3))
def test_shards_hold_the_array_and_its_padding(dimensions: list[tuple[int, int]]) -> None:
    shape, pieces = (tuple(column) for column in zip(*dimensions, strict=True))
    rows = padding(executing(0), {}, stated=[stated(shape, pieces, "int8")]).shards or ()
    stored = math.prod(-(-size // count) * count for size, count in dimensions)
    assert sum(row.padding_bytes or 0 for row in rows) == stored - math.prod(shape)


def test_what_jax_says_of_a_function_is_read_from_a_capture(tmp_path: Path) -> None:
    mesh = {"data": 2, "model": 4}
    placed = {"mesh": mesh, "spec": [["data"], None], "local_shape": [4, 3], "text": "P('data')"}
    array = {"path": "w", "shape": [7, 3], "dtype": "float32", "intended": placed, "compiled": None, "donated": False}
    free = {**array, "path": "b", "intended": None}
    said: dict[str, Any] = {
        "name": "step", "problem": None, "inputs": [array, free], "outputs": [], "memory": {"peak_bytes": 12},
    }  # fmt: skip
    (tmp_path / "step.json").write_text(json.dumps(said))
    (tmp_path / "step.hlo.txt").write_text("HloModule jit_step, is_scheduled=true\n")
    (tmp_path / "other.json").write_text("{}")
    (tmp_path / "other.hlo.txt").write_text("HloModule jit_other\n")
    (found,) = read_stated(tmp_path)
    assert (found.function, found.module, found.peak_bytes) == ("step", "jit_step", 12)
    assert [(a.path, a.pieces, a.copies) for a in found.arguments] == [("w", (2, 1), 4), ("b", None, 1)]


def test_a_recorded_tpu_program_is_padded_where_its_layouts_say(corpus: Callable[[str], Path]) -> None:
    evidence = read(corpus("xplane/tpu_2chips_a.trace.json.gz"))
    found = padding(evidence.trace, evidence.programs)
    sizes = {(row.shape, row.logical_bytes, row.physical_bytes) for row in found.layout}
    assert ("bf16[1024,64]{1,0:T(8,128)(2,1)}", 131_072, 262_144) in sizes
    assert found.total_padding_bytes == sum(row.padding_bytes for row in found.layout)
    assert found.traffic_padding_bytes is not None
    assert found.traffic_padding_bytes > 0


def test_ten_thousand_values_stay_readable(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [f"  %v.{i} = f32[3,{i + 1}]{{1,0:T(8,128)}} exp(%p)" for i in range(10_000)]
    header = "HloModule jit_step, is_scheduled=true\n\nENTRY %main (p: f32[2]) -> f32[2] {\n"
    text = header + "  %p = f32[2]{0:T(128)} parameter(0)\n" + "\n".join(lines)
    (tmp_path / "step.hlo.txt").write_text(f"{text}\n  ROOT %r = f32[2]{{0:T(128)}} exp(%p)\n}}\n")
    assert len(open_run(tmp_path / "step.hlo.txt").padding().layout) == 10_002
    assert main(["show", "padding", str(tmp_path / "step.hlo.txt"), "--top", "10"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert max(map(len, shown)) <= 80
    assert len(shown) < 60
    assert any("9,991 other shapes" in line for line in shown)
