"""FLOPs and bytes of programs: against XLA's own analysis of what it compiled, against hand counts, and by laws."""

from __future__ import annotations

import lzma
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traceflow.program.arithmetic import arrays, own_flops, valid_positions
from traceflow.program.cost import Cost, ProgramCost
from traceflow.program.hlo_proto import read_hlo_proto
from traceflow.program.hlo_text import Line, read_hlo_lines
from traceflow.program.module import HloModule, WindowDimension
from traceflow.program.recompute import recomputed
from traceflow.program.schema import message

jax = pytest.importorskip("jax", reason="programs are compiled by JAX")
jnp = pytest.importorskip("jax.numpy")
lax = jax.lax

Program = Callable[..., Any]


def compiled(program: Program, *arguments: Any, **options: Any) -> Any:
    return jax.jit(program, **options).lower(*arguments).compile()


def module_of(executable: Any) -> HloModule:
    proto = message("HloProto")()
    (module,) = executable.runtime_executable().hlo_modules()
    proto.hlo_module.ParseFromString(module.as_serialized_hlo_module_proto())
    return read_hlo_proto(proto.SerializeToString())


def as_xla_counts(module: HloModule) -> Cost:
    """Loops once."""
    once = {row: 1 for row, opcode in enumerate(module.opcode) if opcode == "while"}
    return ProgramCost(replace(module, trip_count=once)).total()


def ones(*shape: int, kind: Any = "float32") -> Any:
    return jnp.ones(shape, kind)


def ring_sum(x: Any, w: Any) -> Any:
    return lax.scan(lambda carried, one: (jnp.tanh(carried @ one), None), x, w)[0]


PROGRAMS: dict[str, tuple[Program, Sequence[Any]]] = {
    "matmul": (lambda x, y: x @ y, (ones(64, 32), ones(32, 16))),
    "batched": (lambda x, y: jnp.einsum("bij,bjk->bik", x, y), (ones(3, 64, 32), ones(3, 32, 16))),
    "outer": (jnp.outer, (ones(64), ones(33))),
    "mlp": (lambda x, y: jnp.tanh(x @ y).sum(), (ones(64, 32), ones(32, 16))),
    "gradient": (jax.grad(lambda w, x: (jnp.tanh(x @ w) ** 2).sum()), (ones(32, 16), ones(64, 32))),
    "gelu": (jax.nn.gelu, (ones(64, 33),)),
    "softmax": (jax.nn.softmax, (ones(64, 33),)),
    "attention": (jax.nn.dot_product_attention, (ones(2, 16, 4, 8),) * 3),
    "convolution": (
        lambda x, k: lax.conv_general_dilated(x, k, (2, 1), "SAME"),
        (ones(2, 3, 17, 19), ones(8, 3, 3, 5)),
    ),
    "dilated": (
        lambda x, k: lax.conv_general_dilated(x, k, (1, 1), ((1, 2), (0, 3)), lhs_dilation=(2, 3), rhs_dilation=(2, 1)),
        (ones(2, 4, 9, 7), ones(8, 4, 3, 2)),
    ),
    "grouped": (
        lambda x, k: lax.conv_general_dilated(x, k, (1, 2), "VALID", feature_group_count=4),
        (ones(2, 8, 9, 7), ones(16, 2, 3, 2)),
    ),
    "depthwise": (
        lambda x, k: lax.conv_general_dilated(x, k, (1,), "SAME", feature_group_count=8),
        (ones(2, 8, 9), ones(8, 1, 3)),
    ),
    "convolution gradient": (
        jax.grad(lambda k, x: (lax.conv_general_dilated(x, k, (2, 2), "SAME") ** 2).sum()),
        (ones(8, 3, 3, 3), ones(2, 3, 16, 16)),
    ),
    "sort": (jnp.sort, (ones(100),)),
    "cumulative sum": (jnp.cumsum, (ones(100),)),
    "pooling": (
        lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2), (1, 2, 2), "VALID"),
        (ones(4, 8, 8),),
    ),
    "gather": (lambda x, i: x[i], (ones(100, 7), np.array([1, 2, 3]))),
    "scatter": (lambda x, i, u: x.at[i].add(u), (ones(100, 7), np.array([1, 2, 3]), ones(3, 7))),
    "update": (lambda x, u, i: lax.dynamic_update_slice(x, u, (i, 0)), (ones(100, 7), ones(3, 7), 3)),
    "slice": (lambda x, i: lax.dynamic_slice(x, (i, 0), (3, 7)), (ones(100, 7), 3)),
    "scan": (ring_sum, (ones(32, 32), ones(5, 32, 32))),
    "conditional": (lambda x, p: lax.cond(p, lambda y: y @ y, lambda y: y + 1, x), (ones(32, 32), True)),
    "ragged": (lax.ragged_dot, (ones(64, 16), ones(4, 16, 8), np.array([16, 16, 16, 16]))),
    "random": (lambda key: jax.random.normal(key, (50,)), (np.zeros(2, np.uint32),)),
    "integers": (lambda x: (x * 3 + 1) // 2, (np.arange(1000, dtype=np.int32),)),
    "half precision": (lambda x, y: x @ y, (ones(64, 32, kind="bfloat16"), ones(32, 16, kind="bfloat16"))),
    "normalisation": (lambda x: (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True)), (ones(64, 32),)),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_flops_are_those_of_xla(name: str) -> None:
    program, arguments = PROGRAMS[name]
    executable = compiled(program, *arguments)
    counted, stated = as_xla_counts(module_of(executable)), executable.cost_analysis()
    assert counted.total_flops == stated.get("flops", 0)
    assert counted.transcendentals == stated.get("transcendentals", 0)


@pytest.mark.parametrize(
    "name", ["matmul", "batched", "mlp", "gelu", "softmax", "convolution", "attention", "gradient"]
)
def test_bytes_are_those_of_xla_where_no_operand_is_read_twice(name: str) -> None:
    program, arguments = PROGRAMS[name]
    executable = compiled(program, *arguments)
    assert as_xla_counts(module_of(executable)).total_bytes == executable.cost_analysis()["bytes accessed"]


def test_bytes_of_a_gather_are_those_of_the_rows_that_it_takes() -> None:
    program, arguments = PROGRAMS["gather"]
    moved = as_xla_counts(module_of(compiled(program, *arguments))).total_bytes
    assert moved is not None
    assert moved < 100 * 7 * 4  # less than the table


def test_a_loop_counts_as_often_as_it_runs() -> None:
    executable = compiled(*_with(PROGRAMS["scan"]))
    module = module_of(executable)
    once, full = executable.cost_analysis()["flops"], ProgramCost(module).total().total_flops or 0
    assert full == 5 * once
    unrolled = compiled(lambda x, w: [x := jnp.tanh(x @ w[i]) for i in range(5)][-1], *PROGRAMS["scan"][1])
    dots = 5 * 2 * 32**3
    assert full - dots == pytest.approx(0, abs=100)  # beside the products only the counter
    assert unrolled.cost_analysis()["flops"] == pytest.approx(dots, abs=100)


def _with(pair: tuple[Program, Sequence[Any]]) -> tuple[Any, ...]:
    return pair[0], *pair[1]


def test_nested_loops_multiply() -> None:
    def nested(x: Any) -> Any:
        return lax.fori_loop(0, 3, lambda _, c: lax.fori_loop(0, 4, lambda _, d: d @ d, c), x)

    cost = ProgramCost(module_of(compiled(nested, ones(32, 32)))).total()
    assert cost.flops["f32"] == 3 * 4 * 2 * 32**3
    assert not cost.missing


def test_a_loop_without_known_trips_makes_its_figures_unknown() -> None:
    program = compiled(
        lambda x, n: lax.while_loop(lambda c: c[0] < n, lambda c: (c[0] + 1, c[1] @ c[1]), (0, x)), ones(8, 8), 5
    )
    cost = ProgramCost(module_of(program)).total()
    assert cost.total_flops is None
    assert cost.total_bytes is None
    assert "loop" in cost.missing["flops"]
    assert cost.flops["f32"] == 2 * 8**3  # once: what could be counted


def test_what_a_library_does_is_not_known() -> None:
    cost = ProgramCost(module_of(compiled(lambda x: lax.top_k(x, 3), ones(10, 100)))).total()
    assert cost.total_flops is None
    assert "not visible" in cost.missing["flops"]


@pytest.mark.parametrize(("form", "sums"), [("gather", 0), ("ring", 7)])
def test_the_collective_matmul_needs_an_eighth_on_each_device(form: str, sums: int) -> None:
    from traceflow.collectors.workloads.collective_matmul import AXIS, LAYOUTS, matrices, place
    from traceflow.collectors.workloads.line_mesh import line_mesh

    layout = next(layout for layout in LAYOUTS.values() if form in layout.forms)
    mesh = line_mesh(8, AXIS)
    operands = place(mesh, layout, *matrices((1024, 512, 1024)))
    module = module_of(layout.forms[form](mesh).lower(*operands).compile())  # type: ignore[attr-defined]
    cost = ProgramCost(module, 8).total()
    assert 2 * 1024 * 512 * 1024 // 8 == 134_217_728
    assert cost.flops["f32"] == 134_217_728 + sums * 1024 * 128  # terms that are added up on the device
    assert cost.payload_bytes == 7 * 1024 * 64 * 4  # each block of A goes to seven others


class TestOneInstruction:
    def of(self, text: str, **more: Any) -> Cost:
        module = read_hlo_lines([Line(text, **more)], "m", 1)
        return ProgramCost(module, 4).of(0)

    @pytest.mark.parametrize(
        ("text", "moved", "sent"),
        [
            ("%a = f32[8]{0} all-gather(f32[2]{0} %p), replica_groups=[1,4]<=[4], dimensions={0}", 40, 24),
            ("%a = f32[2]{0} reduce-scatter(f32[8]{0} %p), replica_groups=[1,4]<=[4], to_apply=%s", 40, 24),
            ("%a = f32[8]{0} all-reduce(f32[8]{0} %p), replica_groups=[2,2]<=[4], to_apply=%s", 64, 32),
            ("%a = f32[8]{0} all-to-all(f32[8]{0} %p), replica_groups=[1,4]<=[4], dimensions={0}", 64, 24),
            ("%a = f32[8]{0} collective-permute(f32[8]{0} %p), source_target_pairs={{0,1},{1,0}}", 64, 32),
            ("%a = f32[8]{0} collective-permute(f32[8]{0} %p), source_target_pairs={{0,0},{1,1}}", 64, 0),
            ("%c = bf16[64]{0} copy(bf16[64]{0} %p)", 256, 0),
            ("%n = f32[8]{0} negate(f32[8]{0} %p)", 64, 0),
            ("%m = f32[8]{0} multiply(f32[8]{0} %p, f32[8]{0} %p)", 64, 0),
            ("%s = f32[2]{0} slice(f32[800]{0} %p), slice={[0:2]}", 16, 0),
            ("%t = (f32[8]{0}, f32[8]{0}) tuple(f32[8]{0} %p, f32[8]{0} %q)", 0, 0),
        ],
    )
    def test_moves_and_sends(self, text: str, moved: int, sent: int) -> None:
        cost = self.of(text)
        assert (cost.total_bytes, cost.payload_bytes) == (moved, sent)

    def test_what_lies_on_the_chip_is_no_traffic_of_main_memory(self) -> None:
        cost = self.of("%n = f32[8,128]{1,0:T(8,128)S(1)} negate(f32[8,128]{1,0:T(8,128)} %p)")
        assert cost.total_bytes == 8 * 128 * 4

    def test_the_compiler_tells_what_the_program_does_not_show(self) -> None:
        text = "%f = bf16[8,128]{1,0} fusion(bf16[8,64]{1,0} %p, bf16[64,128]{1,0} %w), kind=kOutput, calls=%c"
        hidden, told = self.of(text), self.of(text, flops=131_072, bytes_accessed=19_456)
        assert hidden.total_flops is None
        assert told.flops == {"bf16": 131_072}
        assert told.total_bytes == 19_456
        assert self.of(text, bytes_accessed=100).total_bytes == 100  # it reads only a part

    def test_an_asynchronous_pair_counts_once(self) -> None:
        start = "%s = (f32[2]{0}, f32[8]{0}) all-gather-start(f32[2]{0} %p), replica_groups=[1,4]<=[4], dimensions={0}"
        done = "%d = f32[8]{0} all-gather-done((f32[2]{0}, f32[8]{0}) %s)"
        costs = ProgramCost(read_hlo_lines([Line(start), Line(done)], "m", 1))
        assert costs.of(0).payload_bytes == 24
        assert costs.of(1) == Cost()

    def test_a_ragged_exchange_depends_on_the_data(self) -> None:
        cost = self.of("%a = f32[8]{0} ragged-all-to-all(f32[8]{0} %p), replica_groups=[1,4]<=[4]")
        assert cost.payload_bytes is None


def naive_positions(window: WindowDimension, data: int, out: int) -> int:
    holes = {place * window.base_dilation for place in range(data)}
    return sum(
        o * window.stride + k * window.window_dilation - window.padding_low in holes
        for o in range(out)
        for k in range(window.size)
    )


@given(
    st.builds(
        WindowDimension,
        st.integers(1, 5),
        st.integers(1, 3),
        st.integers(-2, 4),
        st.integers(0, 4),
        st.integers(1, 3),
        st.integers(1, 3),
    ),
    st.integers(1, 12),
    st.integers(0, 12),
)
def test_valid_positions_are_those_that_meet_an_element(window: WindowDimension, data: int, out: int) -> None:
    assert valid_positions(window, data, out) == naive_positions(window, data, out)


COSTS = st.builds(
    Cost,
    st.dictionaries(st.sampled_from(["f32", "bf16", "s32"]), st.integers(0, 10**12)),
    st.integers(0, 10**9),
    st.integers(0, 10**12),
    st.integers(0, 10**12),
    st.dictionaries(st.sampled_from(["flops", "bytes", "sent_bytes"]), st.just("unknown")),
)


@given(COSTS, COSTS, st.integers(1, 50))
def test_costs_add_up_whatever_the_order(one: Cost, other: Cost, times: int) -> None:
    both = one + other
    assert both.bytes == one.bytes + other.bytes
    assert sum(both.flops.values()) == sum(one.flops.values()) + sum(other.flops.values())
    assert (both * times).sent_bytes == (other * times + one * times).sent_bytes
    assert set(both.missing) == {*one.missing, *other.missing}
    assert (both.total_flops is None) == ("flops" in {*one.missing, *other.missing})


@settings(max_examples=12)
@given(st.tuples(*[st.integers(1, 40)] * 4), st.sampled_from(["float32", "bfloat16"]))
def test_a_product_of_any_shape(sizes: tuple[int, int, int, int], kind: str) -> None:
    batch, rows, inner, columns = sizes
    executable = compiled(jnp.matmul, ones(batch, rows, inner, kind=kind), ones(batch, inner, columns, kind=kind))
    assert as_xla_counts(module_of(executable)).total_flops == executable.cost_analysis().get("flops", 0)


class TestRecomputation:
    def step(self, *, checkpoint: bool) -> HloModule:
        def layer(x: Any, w: Any) -> Any:
            return jnp.tanh(x @ w)

        def loss(weights: Any, x: Any) -> Any:
            for w in weights:
                x = (jax.checkpoint(layer) if checkpoint else layer)(x, w)
            return (x**2).sum()

        return module_of(compiled(jax.grad(loss), [ones(64, 64)] * 2, ones(32, 64)))

    def again(self, module: HloModule) -> int:
        costs, again = ProgramCost(module), recomputed(module)
        rows = [row for row in np.flatnonzero(again) if module.computation[row] == module.entry]
        return sum(sum(costs.of(int(row)).flops.values()) for row in rows)

    def test_checkpointed_products_are_computed_again(self) -> None:
        assert self.again(self.step(checkpoint=True)) >= 2 * 32 * 64 * 64

    def test_without_checkpoints_nothing_is(self) -> None:
        assert self.again(self.step(checkpoint=False)) == 0

    @pytest.mark.parametrize("name", ["mlp", "gradient", "attention", "convolution gradient", "scan", "softmax"])
    def test_no_common_program_repeats_itself(self, name: str) -> None:
        module = module_of(compiled(*_with(PROGRAMS[name])))
        assert not recomputed(module).any()

    def test_the_same_value_twice_is_a_repetition_whatever_it_is_called(self) -> None:
        def program(x: Any, w: Any) -> Any:
            first = x @ w
            kept, x_again = lax.optimization_barrier((first, x))
            return kept, x_again

        module = module_of(compiled(program, ones(64, 64), ones(64, 64)))
        assert not recomputed(module).any()
        rows = np.flatnonzero(module.computation == module.entry).tolist()
        row = next(row for row in rows if module.opcode[row] in {"dot", "fusion"})
        assert recomputed(_twice(module, row)).sum() == 1


def _twice(module: HloModule, row: int) -> HloModule:
    """A module in which an instruction of the last computation stands once more, under another name, at the end."""
    last = int(module.computation[-1])
    assert module.computation[row] == last
    operands = module.operands_of(row)
    more: dict[str, Any] = {
        name: (*getattr(module, name), getattr(module, name)[row])
        for name in ("opcode", "shape", "full_shape", "operation_name", "source")
    }
    for name in ("computation", "parameter_number", "tuple_index", "output_bytes"):
        column = getattr(module, name)
        more[name] = np.append(column, column[row]).astype(column.dtype)
    more["schedule"] = np.append(module.schedule, module.schedule.max() + 1).astype(np.int32)
    more["instruction_name"] = (*module.instruction_name, "another")
    more["operands"] = np.append(module.operands, operands).astype(np.int32)
    more["operand_offsets"] = np.append(module.operand_offsets, len(more["operands"]))
    more["called"] = np.append(module.called, module.called_by(row)).astype(np.int32)
    more["called_offsets"] = np.append(module.called_offsets, len(more["called"]))
    more["control_offsets"] = np.append(module.control_offsets, module.control_offsets[-1])
    dots = {**module.dots, **({len(module): module.dots[row]} if row in module.dots else {})}
    return replace(module, **more, dots=dots)


def test_the_training_step_of_a_real_job(corpus: Callable[[str], Path]) -> None:
    """Four A100s, fully sharded: the products are calls of cuBLAS."""
    (file,) = corpus("hlo/fsdp4_a100").glob("**/*wrapped_step*after_optimizations.hlo.pb.xz")
    module = read_hlo_proto(lzma.decompress(file.read_bytes()))
    calls = [row for row, target in module.custom_call_target.items() if target == "__cublas$gemm"]
    assert len(calls) > 100
    for call in calls:
        left, right = (arrays(module.shape[operand])[0][1] for operand in module.operands_of(call)[:2])
        dot = module.dots[call]
        shared = [left[dimension] for dimension in (*dot.left_contracting, *dot.left_batch)]
        assert own_flops(module, call) == 2 * np.prod(left) * np.prod(right) // np.prod(shared)
    total = ProgramCost(module).total()
    assert not total.missing
    assert total.payload_bytes
    assert sum(own_flops(module, call) or 0 for call in calls) > 0.8 * (total.total_flops or 0)
