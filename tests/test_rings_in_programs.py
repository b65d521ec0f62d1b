"""Rings within larger programs: several of them, in scans and gradients, on meshes with other axes, and what is no ring."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

jax = pytest.importorskip("jax", reason="the programs are JAX's")

import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from jax.sharding import AxisType, NamedSharding, PartitionSpec  # noqa: E402

from traceflow.analyzers.collective_matmul import CollectiveMatmul, collective_matmul  # noqa: E402
from traceflow.collectors.jax import compile_only  # noqa: E402
from traceflow.program.hlo_module_text import read_hlo_text  # noqa: E402

N = 4
BACK = [(sender, (sender - 1) % N) for sender in range(N)]
A, W = PartitionSpec("X", "Y"), PartitionSpec(None, "Y")


def ring(a: Any, w: Any, ahead: int = 0) -> Any:
    """The product on the axis Y, with rows that are so many blocks ahead of the right ones."""
    index, width, result = jax.lax.axis_index("Y"), a.shape[-1], 0
    for step in range(N):
        result = result + a @ jax.lax.dynamic_slice_in_dim(w, (index + step + ahead) % N * width, width)
        if step < N - 1:
            a = jax.lax.ppermute(a, "Y", BACK)
    return result


def mesh() -> Any:
    return jax.make_mesh((2, N), ("X", "Y"), axis_types=(AxisType.Auto,) * 2)


def found(function: Any, *arguments: tuple[tuple[int, ...], PartitionSpec], mapped: bool = True) -> CollectiveMatmul:
    """What is told of a program of each device, or of all together, that is compiled for a mesh of 2 x 4."""
    over, (a, *_) = mesh(), arguments
    if mapped:
        specs = tuple(spec for _, spec in arguments)
        function = jax.shard_map(function, mesh=over, in_specs=specs, out_specs=a[1], check_vma=False)
    shapes = [jax.ShapeDtypeStruct(s, np.float32, sharding=NamedSharding(over, spec)) for s, spec in arguments]
    module = compile_only(jax.jit(function), *shapes).compiled
    assert module is not None
    return collective_matmul({0: module})


def matched(result: CollectiveMatmul) -> list[list[bool | None]]:
    return [[one.matches for one in loop.per_round] for loop in result.loops]


def test_a_ring_runs_along_one_of_two_axes() -> None:
    result = found(ring, ((8, 16), A), ((16, 32), W))
    (loop,) = result.loops
    assert loop.devices == 4
    assert [one.block[5] for one in loop.per_round] == [5, 6, 7, 4]
    assert (matched(result), result.findings) == ([[True] * 4], ())
    (wrong,) = found(partial(ring, ahead=1), ((8, 16), A), ((16, 32), W)).findings
    assert wrong.code == "TF260"


def test_what_is_made_of_an_argument_must_meet_the_same_rows_everywhere() -> None:
    def made(a: Any, w: Any) -> Any:
        return ring(jnp.tanh(a) * a, w)

    assert matched(found(made, ((8, 16), A), ((16, 32), W))) == [[True] * 4]


def test_arrays_of_three_dimensions_and_other_types_are_followed() -> None:
    def converted(a: Any, w: Any) -> Any:
        return ring(a.astype(jnp.bfloat16), w.astype(jnp.bfloat16))

    arguments = ((8, 4, 16), PartitionSpec("X", None, "Y")), ((16, 32), W)
    assert matched(found(converted, *arguments)) == [[True] * 4]


def test_two_rings_one_after_the_other_are_two() -> None:
    def layers(a: Any, w: Any, v: Any) -> Any:
        return ring(jnp.maximum(ring(a, w), 0), v)

    result = found(layers, ((8, 16), A), ((16, 32), W), ((32, 16), W))
    assert (matched(result), result.findings) == ([[True] * 4] * 2, ())


def test_one_block_may_meet_two_operands_in_a_round() -> None:
    def gated(a: Any, w: Any, v: Any) -> Any:
        return ring(a, w) * ring(a, v)

    result = found(gated, ((8, 16), A), ((16, 32), W), ((16, 32), W))
    (loop,) = result.loops
    assert [one.number for one in loop.per_round] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert (loop.rounds, loop.permutes, result.findings) == (4, 3, ())


def test_a_ring_in_a_scan_over_layers_is_told_once() -> None:
    def layers(a: Any, w: Any) -> Any:
        return jax.lax.scan(lambda x, one: (jnp.tanh(ring(x, one)), None), a, w)[0]

    result = found(layers, ((8, 16), A), ((6, 16, 16), PartitionSpec(None, None, "Y")))
    assert (len(result.loops), result.loops[0].permutes, result.findings) == (1, 3, ())


def test_the_gradient_of_a_ring_has_blocks_and_sums_that_travel() -> None:
    def loss(a: Any, w: Any) -> Any:
        product = jax.shard_map(ring, mesh=mesh(), in_specs=(A, W), out_specs=A, check_vma=False)(a, w)
        return (product**2).sum()

    result = found(jax.grad(loss, argnums=(0, 1)), ((8, 16), A), ((16, 32), W), mapped=False)
    assert {loop.travels for loop in result.loops} == {"blocks", "sums"}
    assert result.findings == ()


def test_a_pipeline_is_no_ring() -> None:
    def stages(x: Any, w: Any) -> Any:
        for _ in range(N):
            x = jax.lax.ppermute(jnp.tanh(x @ w[0]), "Y", BACK)
        return x

    rows = PartitionSpec("X", None)
    assert found(stages, ((8, 16), rows), ((4, 16, 16), PartitionSpec("Y", None, None))).loops == ()


def test_a_neighbour_that_is_multiplied_with_another_operand_is_no_ring() -> None:
    def shifted(x: Any, w: Any, v: Any) -> Any:
        return x @ w + jax.lax.ppermute(x, "Y", BACK) @ v

    rows, everywhere = PartitionSpec("Y", None), PartitionSpec()
    assert found(shifted, ((8, 16), rows), ((16, 16), everywhere), ((16, 16), everywhere)).loops == ()


def test_attention_on_a_ring_is_followed() -> None:
    def attention(q: Any, k: Any, v: Any) -> Any:
        total: Any = 0
        weight: Any = 0
        for step in range(N):
            scores = jnp.exp(q @ k.T)
            total, weight = total + scores @ v, weight + scores.sum(1, keepdims=True)
            if step < N - 1:
                k, v = (jax.lax.ppermute(one, "Y", BACK) for one in (k, v))
        return total / weight

    rows = PartitionSpec("Y", None)
    result = found(attention, *[((16, 8), rows)] * 3)
    assert [[one.block[1] for one in loop.per_round] for loop in result.loops] == [[1, 2, 3, 0]] * 2
    assert result.findings == ()


def test_the_sum_after_a_product_that_is_split_is_a_candidate() -> None:
    def layer(x: Any, w: Any, v: Any) -> Any:
        return jnp.maximum(x @ w, 0) @ v

    arguments = ((8, 16), PartitionSpec("X", None)), ((16, 32), W), ((32, 16), PartitionSpec("Y", None))
    result = found(layer, *arguments, mapped=False)
    assert [(one.operation, one.members) for one in result.candidates] == [("all-reduce", 4)]
    assert result.candidates[0].bytes == 4 * 16 * 4


WINDOWED = """HloModule windowed, is_scheduled=true, num_partitions=4

%send (sent: f32[8,4]) -> f32[8,4] {
  %sent = f32[8,4]{1,0} parameter(0)
  ROOT %next = f32[8,4]{1,0} collective-permute(%sent), source_target_pairs={{0,3},{1,0},{2,1},{3,2}}
}

%keep (kept: f32[8,4]) -> f32[8,4] {
  ROOT %kept = f32[8,4]{1,0} parameter(0)
}

%body (carried: (f32[8,4], f32[16,8], f32[8,8], u32[])) -> (f32[8,4], f32[16,8], f32[8,8], u32[]) {
  %carried = (f32[8,4]{1,0}, f32[16,8]{1,0}, f32[8,8]{1,0}, u32[]) parameter(0)
  %block = f32[8,4]{1,0} get-tuple-element(%carried), index=0
  %w = f32[16,8]{1,0} get-tuple-element(%carried), index=1
  %result = f32[8,8]{1,0} get-tuple-element(%carried), index=2
  %i = u32[] get-tuple-element(%carried), index=3
  %zero = u32[] constant(0)
  %one = u32[] constant(1)
  %last = u32[] constant(3)
  %devices = u32[] constant(4)
  %table = u32[16]{0} constant({0, 4, 8, 12, 4, 8, 12, 0, 8, 12, 0, 4, 12, 0, 4, 8})
  %device = u32[] partition-id()
  %before = u32[] multiply(%device, %devices)
  %at = u32[] add(%before, %i)
  %cut = u32[1]{0} dynamic-slice(%table, %at), dynamic_slice_sizes={1}
  %start = u32[] reshape(%cut)
  %rows = f32[4,8]{1,0} dynamic-slice(%w, %start, %zero), dynamic_slice_sizes={4,8}
  %dot = f32[8,8]{1,0} dot(%block, %rows), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  %sum = f32[8,8]{1,0} add(%result, %dot)
  %more = pred[] compare(%i, %last), direction=LT
  %next_block = f32[8,4]{1,0} conditional(%more, %block, %block), true_computation=%send, false_computation=%keep
  %next_i = u32[] add(%i, %one)
  ROOT %out = (f32[8,4]{1,0}, f32[16,8]{1,0}, f32[8,8]{1,0}, u32[]) tuple(%next_block, %w, %sum, %next_i)
}

%condition (c: (f32[8,4], f32[16,8], f32[8,8], u32[])) -> pred[] {
  %c = (f32[8,4]{1,0}, f32[16,8]{1,0}, f32[8,8]{1,0}, u32[]) parameter(0)
  %ci = u32[] get-tuple-element(%c), index=3
  %n = u32[] constant(4)
  ROOT %less = pred[] compare(%ci, %n), direction=LT
}

ENTRY %e (a: f32[8,4], v: f32[16,8]) -> f32[8,8] {
  %a = f32[8,4]{1,0} parameter(0), sharding={devices=[1,4]<=[4]}
  %v = f32[16,8]{1,0} parameter(1), sharding={devices=[1,4]<=[4]}
  %nothing = f32[] constant(0)
  %empty = f32[8,8]{1,0} broadcast(%nothing), dimensions={}
  %first = u32[] constant(0)
  %into = (f32[8,4]{1,0}, f32[16,8]{1,0}, f32[8,8]{1,0}, u32[]) tuple(%a, %v, %empty, %first)
  %loop = (f32[8,4]{1,0}, f32[16,8]{1,0}, f32[8,8]{1,0}, u32[]) while(%into), condition=%condition, body=%body
  ROOT %c_out = f32[8,8]{1,0} get-tuple-element(%loop), index=2
}
"""


def test_a_windowed_einsum_looks_its_rows_up_and_sends_no_more_in_its_last_round() -> None:
    result = collective_matmul({0: read_hlo_text(WINDOWED, 0)})
    (loop,) = result.loops
    assert (loop.form, loop.rounds, loop.permutes, result.findings) == ("loop", 4, 3, ())
    assert [(one.block[1], one.begins and one.begins[1]) for one in loop.per_round] == [(1, 4), (2, 8), (3, 12), (0, 0)]
    wrong = read_hlo_text(WINDOWED.replace("{0, 4, 8, 12, 4,", "{0, 4, 12, 8, 4,"), 0)
    (finding,) = collective_matmul({0: wrong}).findings
    assert (finding.code, finding.evidence["rounds"], finding.evidence["device"]) == ("TF260", [2, 3], 0)
