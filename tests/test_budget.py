"""Budgets of operations: what they need at least beside what they took."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from kineto_builder import NCCL, KinetoTrace, opened
from xla_files import Event, Kinds, Line, write, xspace

import traceflow
from traceflow.analyzers.budget import Bounds, Budget, Operation
from traceflow.analyzers.work import WorkKind
from traceflow.cli import main
from traceflow.errors import TraceflowError
from traceflow.hardware import HARDWARE, Hardware
from traceflow.program.cost import Cost
from traceflow.program.schema import message
from traceflow.report.json import dumps, envelope
from traceflow.report.text import render
from traceflow.run import Run
from traceflow.schemas import schema

US, MS = 1_000, 1_000_000

# One FLOP, one byte and one sent byte take one, two and five ns.
PLAIN = Hardware(
    name="plain",
    unit="one device",
    flops_per_s={"bf16": 1e9, "f32": 1e9},
    memory_bytes=1 << 30,
    memory_bytes_per_s=5e8,
    link_bytes_per_s=2e8,
    link="a wire",
    source="made up",
)


def arguments(*shapes: list[int], kind: str = "float", values: list[str] | None = None) -> dict[str, Any]:
    return {"Input Dims": shapes, "Input type": [kind] * len(shapes), "Concrete Inputs": values or [""] * len(shapes)}


def multiplied(rank: int = 0, world_size: int = 1, *, shapes: bool = True) -> KinetoTrace:
    """A product of [4, 8] and [8, 2] by two kernels, a kernel of something else, and a copy."""
    card = KinetoTrace(rank, world_size)
    told = arguments([4, 8], [8, 2]) if shapes else None
    card.host("aten::matmul", 0, 40 * US)
    card.host("aten::mm", 1 * US, 30 * US, arguments=told)
    card.kernel("split", 50 * US, 51 * US, call=(2 * US, 4 * US))
    card.kernel("join", 51 * US, 53 * US, call=(6 * US, 8 * US))
    card.kernel("relu", 53 * US, 54 * US, call=(32 * US, 34 * US))
    card.copy(54 * US, 55 * US, call=(35 * US, 36 * US))
    return card


def rows_of(budget: Budget) -> dict[str, Operation]:
    return {operation.work.name: operation for operation in budget.operations}


class TestOperators:
    @pytest.fixture
    def budget(self, tmp_path: Path) -> Budget:
        return opened(tmp_path, multiplied()).budget(hardware=PLAIN)

    def test_an_operator_takes_what_its_kernels_take(self, budget: Budget) -> None:
        product = rows_of(budget)["aten::mm"]
        assert product.work.kind is WorkKind.OPERATOR
        assert product.work.detail == "[4, 8] [8, 2]"
        assert (product.work.executions, product.work.measured_ns) == (1, 3 * US)
        assert product.work.total.flops == {"f32": 2 * 4 * 8 * 2}
        assert product.work.total.bytes == 4 * (32 + 16 + 8)
        assert product.bounds == Bounds(128, 448, 0)
        assert product.bounds.binding == "memory"
        assert product.measured_over_bound_ratio == 3000 / 448
        assert product.excess_ns == 3000 - 448

    def test_a_kernel_of_something_else_has_no_bound(self, budget: Budget) -> None:
        other = rows_of(budget)["relu"]
        assert other.work.kind is WorkKind.KERNEL
        assert (other.bounds.compute_ns, other.bounds.memory_ns) == (None, None)
        assert other.measured_over_bound_ratio is None
        (reason,) = {gap.reason for gap in budget.skipped if gap.what.endswith("/flops")}
        assert "1 of 3 operations" in reason

    def test_longest_first_and_all_of_it_adds_up(self, budget: Budget) -> None:
        took = [operation.work.measured_ns for operation in budget.operations]
        assert took == sorted(took, reverse=True)
        assert sum(took) == 5 * US
        assert budget.total.flops == {"f32": 128}

    def test_without_shapes_the_kernels_stand_alone(self, tmp_path: Path) -> None:
        budget = opened(tmp_path, multiplied(shapes=False)).budget(hardware=PLAIN)
        assert set(rows_of(budget)) == {"split", "join", "relu", "Memcpy HtoD (Pinned -> Device)"}
        assert budget.total.flops == {}

    def test_unknown_hardware_leaves_the_measured(self, tmp_path: Path) -> None:
        budget = opened(tmp_path, multiplied()).budget()
        product = rows_of(budget)["aten::mm"]
        assert budget.hardware is None
        assert product.bounds == Bounds(None, None, None)
        assert (product.work.measured_ns, product.work.total.total_flops) == (3 * US, 128)
        pointers = {gap.what for gap in budget.skipped if "--hardware" in gap.reason}
        assert {"/result/hardware", "/result/operations/*/compute_bound_ns"} <= pointers

    def test_calls_of_one_shape_are_one_row(self, tmp_path: Path) -> None:
        card = KinetoTrace()
        for number in range(3):
            at = number * 100 * US
            card.host("aten::mm", at, at + 10 * US, arguments=arguments([4, 8], [8, 2 + number // 2]))
            card.kernel("gemm", at + 20 * US, at + 30 * US, call=(at + US, at + 2 * US))
        budget = opened(tmp_path, card).budget(hardware=PLAIN)
        assert sorted((o.work.detail, o.work.executions) for o in budget.operations) == [
            ("[4, 8] [8, 2]", 2),
            ("[4, 8] [8, 3]", 1),
        ]

    def test_on_a_host_an_operator_takes_its_own_time(self, tmp_path: Path) -> None:
        card = KinetoTrace()
        card.host("aten::linear", 0, 50 * US, arguments=arguments([4, 8], [2, 8]))
        card.host("aten::addmm", 10 * US, 40 * US, arguments=arguments([2], [4, 8], [8, 2]))
        (operation,) = opened(tmp_path, card).budget(hardware=PLAIN).operations
        assert (operation.work.name, operation.work.measured_ns) == ("aten::addmm", 30 * US)
        assert operation.work.total.flops == {"f32": 128}


class TestRecomputation:
    def test_what_a_checkpoint_computes_in_the_backward_pass_is_computed_again(self, tmp_path: Path) -> None:
        card, product = KinetoTrace(), arguments([4, 8], [8, 2])
        card.host("aten::mm", 0, 10 * US, arguments=product)
        card.kernel("gemm", 12 * US, 13 * US, call=(1 * US, 2 * US))
        card.host("autograd::engine::evaluate_function: CheckpointFunctionBackward", 20 * US, 90 * US)
        card.host("aten::mm", 30 * US, 40 * US, arguments=product)
        card.kernel("gemm", 42 * US, 43 * US, call=(31 * US, 32 * US))
        card.host("autograd::engine::evaluate_function: MmBackward0", 50 * US, 80 * US)
        card.host("aten::mm", 55 * US, 65 * US, arguments=product)
        card.kernel("gemm", 67 * US, 68 * US, call=(56 * US, 57 * US))
        budget = opened(tmp_path, card).budget(hardware=PLAIN)
        assert {o.work.recomputed: o.work.executions for o in budget.operations} == {True: 1, False: 2}
        assert budget.recomputed.flops == {"f32": 128}
        assert [finding.code for finding in budget.findings if finding.code == "TF215"] == ["TF215"]

    def test_where_nothing_marks_it_it_is_not_known(self, tmp_path: Path) -> None:
        budget = opened(tmp_path, multiplied()).budget(hardware=PLAIN)
        assert rows_of(budget)["aten::mm"].work.recomputed is None
        assert any(gap.what.endswith("/recomputed") for gap in budget.skipped)


class TestCollectives:
    def two(self, tmp_path: Path) -> Run:
        cards = [KinetoTrace(rank, 2) for rank in (0, 1)]
        for rank, card in enumerate(cards):
            card.kernel("compute", 0, (4 + 5 * rank) * MS)
            card.all_reduce((4 + 5 * rank) * MS, 11 * MS, sequence=0, elements=1 << 20)
        return opened(tmp_path, *cards)

    def test_a_collective_took_its_transfer_and_not_the_wait(self, tmp_path: Path) -> None:
        budget = self.two(tmp_path).budget(hardware=PLAIN)
        (collective,) = [o for o in budget.operations if o.work.kind is WorkKind.COLLECTIVE]
        assert (collective.work.executions, collective.work.measured_ns) == (2, 4 * MS)
        assert collective.work.total.payload_bytes == 2 * (4 << 20)  # each end sends as much as it puts in
        assert collective.bounds.link_ns == 2 * (4 << 20) * 5
        assert collective.bounds.binding == "link"

    def test_without_a_rate_of_the_links_there_is_no_ratio(self, tmp_path: Path) -> None:
        budget = self.two(tmp_path).budget(hardware="v3")
        (collective,) = [o for o in budget.operations if o.work.kind is WorkKind.COLLECTIVE]
        assert collective.bounds.link_ns is None
        assert collective.bounds.memory_ns
        assert collective.measured_over_bound_ratio is None
        assert any("no rate per chip" in gap.reason for gap in budget.skipped)

    def test_with_a_rank_missing_the_wait_is_in_it_and_there_is_no_ratio(self, tmp_path: Path) -> None:
        card = KinetoTrace(0, 2)
        card.all_reduce(4 * MS, 11 * MS, sequence=0)
        budget = opened(tmp_path, card).budget(hardware=PLAIN)
        (collective,) = budget.operations
        assert collective.work.waits
        assert collective.work.measured_ns == 7 * MS
        assert collective.measured_over_bound_ratio is None
        assert any("waiting" in gap.reason for gap in budget.skipped)

    def test_a_reduce_scatter_of_two_ends(self, tmp_path: Path) -> None:
        """128 MiB on each end over 60 GB/s: half is sent, which takes 1.118 ms; 1.13 ms were measured."""
        cards = [KinetoTrace(rank, 2) for rank in (0, 1)]
        for card in cards:
            card.collective("reduce_scatter", 0, 1_130_000, sequence=0, elements=32 << 20, stream=NCCL)
        core = Hardware(
            name="core", unit="one core", flops_per_s={}, memory_bytes=None, memory_bytes_per_s=1e12,
            link_bytes_per_s=60e9, link="one direction", source="known answers",
        )  # fmt: skip
        (collective,) = opened(tmp_path, *cards).budget(hardware=core).operations
        assert collective.work.cost.payload_bytes == 67_108_864
        assert Bounds.of(collective.work.cost, core).link_ns == 1_118_481
        assert collective.measured_over_bound_ratio == pytest.approx(1.13 / 1.118, abs=0.001)


def test_what_chunks_cost_is_no_communication(tmp_path: Path) -> None:
    """A collective matmul went from 311 to 244 us; computing alone needs 224 us: the rest is not communication."""
    card = KinetoTrace()
    flops = 224_000  # at one FLOP per ns
    side = 112_000 // 8
    card.host("aten::mm", 0, 10 * US, arguments=arguments([1, side], [side, 8]))
    card.kernel("chunks", 20 * US, 264 * US, call=(1 * US, 2 * US))
    generous = Hardware(
        name="generous", unit="one device", flops_per_s={"f32": 1e9}, memory_bytes=None, memory_bytes_per_s=1e15,
        link_bytes_per_s=1e9, link="a wire", source="made up",
    )  # fmt: skip
    budget = opened(tmp_path, card).budget(hardware=generous)
    (operation,) = budget.operations
    assert operation.work.cost.total_flops == flops
    assert operation.bounds.compute_ns == 224 * US
    assert operation.work.measured_ns == 244 * US
    assert operation.bounds.link_ns == 0
    assert operation.work.total.payload_bytes == 0
    assert operation.measured_over_bound_ratio == pytest.approx(244 / 224)
    told = json.dumps(budget.to_dict())
    assert "20000" not in told
    assert pytest.approx(1.275, abs=0.001) == 311 / 244


class TestSteps:
    def test_a_step_holds_only_its_own_work(self, tmp_path: Path) -> None:
        card = KinetoTrace()
        for number in (1, 2):
            at = number * 1000 * US
            card.step(number, at, at + 100 * US)
            card.host("aten::mm", at, at + 50 * US, arguments=arguments([4, 8], [8, 2]))
            card.kernel("gemm", at + 60 * US, at + (60 + number) * US, call=(at + US, at + 2 * US))
        run = opened(tmp_path, card)
        assert [o.work.measured_ns for o in run.budget(hardware=PLAIN, step=2).operations] == [2 * US]
        assert [o.work.measured_ns for o in run.budget(hardware=PLAIN).operations] == [3 * US]
        with pytest.raises(TraceflowError, match="TF111"):
            run.budget(step=9)


class TestBounds:
    def test_types_without_a_peak_leave_a_bound(self) -> None:
        cost = Cost({"f32": 1000, "s32": 10**9}, bytes=10)
        assert Bounds.of(cost, PLAIN) == Bounds(1000, 20, 0)

    def test_a_type_that_nobody_multiplies_has_none(self) -> None:
        assert Bounds.of(Cost({"s32": 10}), PLAIN).compute_ns is None

    def test_types_add_up_at_their_own_rates(self) -> None:
        both = Cost({"bf16": 989_400_000, "f8e4m3fn": 1_978_900_000})
        assert Bounds.of(both, HARDWARE["h100"]).compute_ns == 2_000

    @given(
        st.dictionaries(st.sampled_from(["f32", "bf16", "f8e4m3fn"]), st.integers(0, 10**15)),
        st.integers(0, 10**14),
        st.integers(0, 10**14),
        st.integers(1, 8),
        st.sampled_from(sorted(HARDWARE)),
    )
    def test_more_work_never_takes_less(
        self, flops: dict[str, int], moved: int, sent: int, times: int, name: str
    ) -> None:
        cost, hardware = Cost(flops, bytes=moved, sent_bytes=sent), HARDWARE[name]
        once, often = Bounds.of(cost, hardware), Bounds.of(cost * times, hardware)
        for one, many in zip(
            (once.compute_ns, once.memory_ns, once.link_ns),
            (often.compute_ns, often.memory_ns, often.link_ns),
            strict=True,
        ):
            assert (one is None) == (many is None)
            if one is not None and many is not None:
                assert many == pytest.approx(times * one, abs=times)


class TestOutput:
    def test_json_keeps_to_its_schema(self, tmp_path: Path) -> None:
        run = opened(tmp_path, multiplied())
        validator = Draft202012Validator(schema("budget"))
        for budget in (run.budget(), run.budget(hardware=PLAIN), run.budget(hardware="h100")):
            document = json.loads(dumps(envelope(budget, run)))
            assert [error.message for error in validator.iter_errors(document)] == []

    def test_text_and_options(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        opened(tmp_path, multiplied())
        assert main(["show", "budget", str(tmp_path), "--hardware", "H100", "-q"]) == 0
        out = capsys.readouterr().out
        assert "h100, one GPU" in out
        assert "aten::mm" in out
        assert main(["show", "budget", str(tmp_path), "--hardware", "abacus", "-q"]) == 1
        assert "TF120" in capsys.readouterr().err

    def test_a_project_may_describe_its_own_hardware(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        opened(tmp_path, multiplied())
        monkeypatch.chdir(tmp_path)
        settings = "[tool.traceflow.hardware.mine]\nflops_per_s = {f32 = 1e9}\nmemory_bytes_per_s = 5e8\n"
        (tmp_path / "pyproject.toml").write_text(settings)
        ask = ["show", "budget", str(tmp_path), "--hardware", "mine", "--format", "json", "-q"]
        assert main(ask) == 0
        result = json.loads(capsys.readouterr().out)["result"]
        product = next(row for row in result["operations"] if row["name"] == "aten::mm")
        assert (product["compute_bound_ns"], product["memory_bound_ns"]) == (128, 448)
        assert result["hardware"]["name"] == "mine"
        for wrong in ("-1", "inf", "nan", "1e-300", "9" * 5000, "[" * 5000 + "]" * 5000):
            (tmp_path / "pyproject.toml").write_text(settings.replace("5e8", wrong))
            assert main(ask) == 1
            assert "TF112" in capsys.readouterr().err

    def test_text_says_what_is_unknown(self, tmp_path: Path) -> None:
        run = opened(tmp_path, multiplied())
        text = render(json.loads(dumps(envelope(run.budget(), run))), width=100)
        assert "no hardware: what it ran on is not known" in text
        assert "--hardware" in text

    def test_a_report_draws_measured_beside_bound(self, tmp_path: Path) -> None:
        opened(tmp_path / "", multiplied())
        page = traceflow.open(tmp_path).report(tmp_path / "report.html").read_text()
        assert '<h2 id="run0-budget-h">Budget</h2>' in page
        assert "it is no measure of communication" in page

    def test_a_table_for_pandas(self, tmp_path: Path) -> None:
        table = opened(tmp_path, multiplied()).budget(hardware=PLAIN).to_pandas()
        assert table.loc[table["name"] == "aten::mm", "compute_bound_ns"].item() == 128


class TestCorpus:
    def test_products_on_an_mi300(self, corpus: Callable[[str], Path]) -> None:
        """The FLOPs of a call of the library are those of its shapes, counted once per execution."""
        budget = traceflow.open(corpus("xplane/mi300_gemm.xplane.pb")).budget()
        assert budget.hardware is HARDWARE["mi300x"]
        products = [o for o in budget.operations if o.work.cost.flops.get("bf16", 0) > 10**9]
        assert len(products) >= 5
        assert all(o.measured_over_bound_ratio is not None and 1 < o.measured_over_bound_ratio < 10 for o in products)
        assert all(o.bounds.binding == "compute" for o in products)

    def test_a_convolution_on_an_mi300(self, corpus: Callable[[str], Path]) -> None:
        budget = traceflow.open(corpus("xplane/mi300_conv.xplane.pb")).budget()
        convolution = next(o for o in budget.operations if o.work.name.startswith("cudnn-conv"))
        assert convolution.work.executions == 5 * 8  # five runs on eight devices, of two kernels each
        assert convolution.work.cost.flops == {"bf16": 2 * 5120 * 16 * 32 * 60 * 104}  # its windows do not overlap
        assert (convolution.measured_over_bound_ratio or 0) > 1

    def test_a_language_model_on_an_h100(self, corpus: Callable[[str], Path]) -> None:
        budget = traceflow.open(corpus("kineto/h100_qwen_0.5b.json.gz")).budget()
        assert budget.hardware is HARDWARE["h100"]
        products = [o for o in budget.operations if o.work.kind is WorkKind.OPERATOR and o.work.cost.total_flops]
        assert sum(o.work.executions for o in products) >= 150
        assert all((o.measured_over_bound_ratio or 2) > 1 for o in products)
        attention = next(o for o in products if "attention" in o.work.name)
        assert attention.work.cost.flops == {"bf16": 2 * 16 * 16 * (559 * 560 // 2) * 128}  # causal

    def test_checkpointing_on_an_mi300(self, corpus: Callable[[str], Path]) -> None:
        budget = traceflow.open(corpus("kineto/mi300_resnet_rank0of8.json.gz")).budget()
        again, first = (
            sum(
                o.work.executions
                for o in budget.operations
                if o.work.name == "aten::convolution" and o.work.recomputed is b
            )
            for b in (True, False)
        )
        assert again > 0
        assert first >= again

    def test_a_tpu_says_itself_what_operations_cost(self, corpus: Callable[[str], Path]) -> None:
        run = traceflow.open(corpus("xplane/tpu_2chips_a.trace.json.gz"))
        assert run.budget().hardware is None
        budget = run.budget(hardware="v6e")
        ratios = np.array([o.measured_over_bound_ratio for o in budget.operations[:50] if o.measured_over_bound_ratio])
        assert len(ratios) > 40
        assert 1 < np.median(ratios) < 1.5
        assert not any(o.work.recomputed for o in budget.operations)
        assert budget.operations[0].work.provenance == "compiler"


FLOAT_SHAPE = 11  # F32 in xla_data.proto


def product_program() -> bytes:
    """A program whose third instruction, `dot.3`, multiplies [4, 8] by [8, 2]."""
    proto = message("HloProto")()
    proto.hlo_module.name, proto.hlo_module.id, proto.hlo_module.entry_computation_id = "jit_f", 5, 1
    main = proto.hlo_module.computations.add(name="main", id=1, root_id=3)
    for number, sizes in ((1, [4, 8]), (2, [8, 2])):
        shape = {"element_type": FLOAT_SHAPE, "dimensions": sizes}
        main.instructions.add(
            id=number, name=f"p.{number}", opcode="parameter", parameter_number=number - 1, shape=shape
        )
    dot = main.instructions.add(id=3, name="dot.3", opcode="dot", operand_ids=[1, 2])
    dot.shape.element_type = FLOAT_SHAPE
    dot.shape.dimensions.extend([4, 2])
    dot.dot_dimension_numbers.lhs_contracting_dimensions.append(1)
    dot.dot_dimension_numbers.rhs_contracting_dimensions.append(0)
    return bytes(proto.SerializeToString())


def test_several_kernels_of_one_instruction_are_one_execution(tmp_path: Path) -> None:
    """The operands are split by three kernels, then multiplied by one, on each of two devices."""
    stats: dict[str, int | str | bytes] = {"hlo_op": "dot.3", "hlo_module": "jit_f", "program_id": 5, "run_id": 9}
    kernels = [Event(name, at * 1000 * US, 1000 * US, stats) for at, name in enumerate(["split"] * 3 + ["gemm"])]
    planes = {f"/device:GPU:{device}": [Line("Stream #1(Kernel)", kernels)] for device in (0, 1)}
    write(tmp_path / "host.xplane.pb", xspace(planes, programs={5: product_program()}))
    (operation,) = traceflow.open(tmp_path).budget(hardware=PLAIN).operations
    assert (operation.work.name, operation.work.executions) == ("dot.3", 2)
    assert operation.work.measured_ns == 8 * US
    assert operation.work.total.flops == {"f32": 2 * 128}
    assert operation.work.total.bytes == 2 * 4 * (32 + 16 + 8)


def test_what_a_tpu_states_is_read_from_an_xspace_too(tmp_path: Path) -> None:
    text = "%fusion.1 = bf16[8,128]{1,0} fusion(bf16[8,64]{1,0} %p, bf16[64,128]{1,0} %w), kind=kOutput, calls=%c"
    stated = Kinds(display="fusion.1", stats={"model_flops": 131_072, "bytes_accessed": 9_000})
    lines = [
        Line("XLA Modules", [Event("jit_f(5)", 0, 9_000_000, {"run_id": 1})]),
        Line("XLA Ops", [Event(text, 1_000_000, 2_000_000)]),
    ]
    write(tmp_path / "host.xplane.pb", xspace({"/device:TPU:0": lines}, kinds={text: stated}))
    (operation,) = traceflow.open(tmp_path).budget(hardware="v5e").operations
    assert operation.work.cost.flops == {"bf16": 131_072}
    assert operation.work.cost.total_bytes == 9_000
    assert operation.work.provenance == "compiler"


def test_a_program_of_jax_on_this_machine(tmp_path: Path) -> None:
    pytest.importorskip("jax", reason="the workload needs JAX")
    from traceflow.collectors.workloads.collective_matmul import record_collective_matmul

    steps, (rows, inner, columns) = 3, (64, 128, 256)
    folder = record_collective_matmul(tmp_path / "runs", size=(rows, inner, columns), steps=steps)
    run = traceflow.open(folder / "gather")
    budget = run.budget(hardware=PLAIN)
    (collective,) = [o for o in budget.operations if o.work.kind is WorkKind.COLLECTIVE]
    assert collective.work.executions == 8 * steps
    assert not collective.work.waits
    assert collective.work.cost.payload_bytes == 7 * rows * inner * 4 // 8
    assert collective.work.measured_ns <= _length_of(run, "all-gather")
    products = sum(o.work.total.flops.get("f32", 0) for o in budget.operations)
    assert products == steps * 2 * rows * inner * columns  # of all devices together
    assert budget.total.sent_bytes == 8 * steps * (collective.work.cost.payload_bytes or 0)


def _length_of(run: Run, name: str) -> int:
    """Sum of the lengths of events whose names begin so, waiting included."""
    trace = run.trace
    events = trace.hlo.event[[trace.strings[trace.events.name[e]].startswith(name) for e in trace.hlo.event]]
    return int((trace.events.end_ns[events] - trace.events.start_ns[events]).sum())


def test_a_loop_of_jax_counts_what_ran_and_itself_not_at_all(tmp_path: Path) -> None:
    jax = pytest.importorskip("jax", reason="the program is JAX's")
    side, trips = 32, 5
    x, weights = jax.numpy.ones((side, side)), jax.numpy.ones((trips, side, side))
    scan = jax.jit(lambda x, w: jax.lax.scan(lambda carried, one: (jax.numpy.tanh(carried @ one), None), x, w)[0])
    with traceflow.record(tmp_path / "run") as recorder:
        for _ in range(4):
            with recorder.step() as step:
                step.ready(scan(x, weights))
    run = traceflow.open(tmp_path / "run")
    budget, runs = run.budget(hardware=PLAIN), len(np.unique(run.trace.hlo.run))
    assert runs > 1
    assert budget.total.flops["f32"] == runs * trips * 2 * side**3
    assert not any(operation.work.detail.startswith("while") for operation in budget.operations)
    product = max(budget.operations, key=lambda operation: operation.work.total.flops.get("f32", 0))
    assert product.work.executions == runs * trips
