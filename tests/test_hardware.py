"""Peak rates of hardware, how a trace tells it, and budgets by arithmetic: known answers and laws."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from traceflow.budgets import (
    compute_bound_ns,
    least_time_ns,
    matmul_flops,
    sent_bytes,
    splitting_pays,
    traffic_bytes,
)
from traceflow.errors import TraceflowError
from traceflow.hardware import HARDWARE, known, measured_cpu, recognised

MS, GIB, MIB = 1e6, 1 << 30, 1 << 20


class TestTable:
    def test_every_figure_has_a_source_and_a_unit(self) -> None:
        assert set(HARDWARE) == {
            *("v2", "v3", "v4", "v5e", "v5p", "v6e", "v7"),
            *("a100-40gb", "a100", "h100", "h200", "b200", "mi250", "mi300x", "mi355x"),
        }
        for name, hardware in HARDWARE.items():
            assert hardware.name == name
            assert hardware.source
            assert hardware.unit.startswith("one ")
            assert hardware.link  # of what, or why its rate is not known
            assert hardware.flops_per_s["bf16"] > 1e13
            assert hardware.memory_bytes_per_s is not None

    @pytest.mark.parametrize(
        ("name", "element_type", "tera"),
        [
            ("v2", "bf16", 23.0),  # per core, as the known answers have it
            ("v3", "bf16", 61.5),
            ("v5e", "s8", 393.0),
            ("v5p", "bf16", 459.0),
            ("v7", "f8e4m3fn", 2307.0),
            ("a100", "f32", 156.0),
            ("a100", "f16", 312.0),
            ("h100", "f8e5m2", 1978.9),
            ("h100", "f64", 66.9),
            ("b200", "f4e2m1fn", 9000.0),
            ("mi250", "bf16", 181.05),  # per die
            ("mi300x", "bf16", 1307.4),
            ("mi355x", "f8e4m3fn", 5033.2),
            ("a100", "f8e4m3fn", 312.0),  # no such products: widened
        ],
    )
    def test_rates_by_element_type(self, name: str, element_type: str, tera: float) -> None:
        assert known(name).rate(element_type) == pytest.approx(tera * 1e12)

    @pytest.mark.parametrize("element_type", ["s32", "pred", "u64", ""])
    def test_what_no_matrix_unit_multiplies_has_no_rate(self, element_type: str) -> None:
        assert known("h100").rate(element_type) is None

    def test_an_unknown_name_is_refused_with_the_known_ones(self) -> None:
        with pytest.raises(TraceflowError, match="TF120") as refused:
            known("abacus")
        assert {*HARDWARE, "cpu"} <= set(re.findall(r"[\w-]+", refused.value.hint))

    def test_names_are_forgiving(self) -> None:
        assert known("TPU v5e") is known("V5E") is HARDWARE["v5e"]


class TestRecognition:
    @pytest.mark.parametrize(
        ("said", "name"),
        [
            ("NVIDIA A100-SXM4-80GB", "a100"),
            ("NVIDIA A100-SXM4-40GB", "a100-40gb"),
            ("NVIDIA H100 80GB HBM3", "h100"),
            ("NVIDIA H200", "h200"),
            ("NVIDIA B200", "b200"),
            ("AMD Instinct MI250", "mi250"),
            ("AMD Instinct MI300X", "mi300x"),
            ("AMD Instinct MI355X", "mi355x"),
            ("TPU v4", "v4"),
            ("TPU v5 lite", "v5e"),
            ("TPU v5", "v5p"),
            ("TPU v6 lite", "v6e"),
            ("TPU7x", "v7"),
        ],
    )
    def test_by_name(self, said: str, name: str) -> None:
        found = recognised({"device": said})
        assert found is HARDWARE[name]

    @pytest.mark.parametrize(
        "said",
        ["Tesla V100-SXM2-32GB", "NVIDIA H100 PCIe", "AMD Instinct MI250X", "NVIDIA H200 NVL", "TPU v4 lite", ""],
    )
    def test_what_is_not_in_the_table_is_not_taken_for_something_else(self, said: str) -> None:
        assert recognised({"device": said}) is None

    @pytest.mark.parametrize(
        ("vendor", "units", "memory", "name"),
        [
            ("AMD", 304, 206_141_652_992, "mi300x"),
            ("AMD Radeon Graphics", 104, 68_702_699_520, "mi250"),
            ("NVIDIA A100-PG509-200", 108, 42_297_524_224, "a100-40gb"),
            ("Nvidia", 304, 206_141_652_992, None),
            ("NVIDIA H100 PCIe", 132, 85_018_279_936, None),
            ("", 132, 16_000_000_000, None),
        ],
    )
    def test_by_what_the_driver_reports(self, vendor: str, units: int, memory: int, name: str | None) -> None:
        said = {"device_vendor": vendor, "device_units": str(units), "device_memory": str(memory)}
        found = recognised(said)
        assert (found and found.name) == name


def test_this_machine_can_be_measured() -> None:
    cpu = measured_cpu()
    assert cpu.name == "cpu"
    assert (cpu.rate("f32") or 0) > 1e8
    assert (cpu.rate("f64") or 0) > 1e8
    assert (cpu.memory_bytes_per_s or 0) > 1e8
    assert (cpu.memory_bytes or 0) > GIB // 4
    assert cpu.link_bytes_per_s is None
    assert cpu.rate("bf16") is None


class TestKnownAnswers:
    """The lines of budgets that were worked out by hand."""

    def test_local_matmul(self) -> None:
        flops = matmul_flops(8192, 8192, 16384)
        assert flops == 2_199_023_255_552
        assert compute_bound_ns(flops, known("v2").rate("bf16") or 0) / MS == pytest.approx(95.6, abs=0.05)

    def test_global_over_all_cores_is_the_same_and_the_mix_is_refused(self) -> None:
        flops, rate, cores = matmul_flops(8192, 8192, 16384), 23e12, 8
        together = compute_bound_ns(cores * flops, cores * rate, flops_devices=cores, rate_devices=cores)
        assert together == compute_bound_ns(flops, rate)
        with pytest.raises(TraceflowError, match="TF121"):
            compute_bound_ns(flops, cores * rate, rate_devices=cores)

    def test_reduce_scatter(self) -> None:
        each = sent_bytes("reduce-scatter", 128 * MIB, 2)
        assert each == 67_108_864
        assert least_time_ns(each, 60e9) / MS == pytest.approx(1.118, abs=0.001)

    def test_plan_a_against_plan_b(self) -> None:
        """A: one row each, all weights. B: all rows, weights split by 8."""
        hidden, wide, cores = 8192, 32768, 8
        flops_a = matmul_flops(1, hidden, wide) + matmul_flops(1, wide, hidden)
        flops_b = matmul_flops(cores, hidden, wide // cores) + matmul_flops(cores, wide // cores, hidden)
        assert flops_a == flops_b == 1_073_741_824
        weights_a, weights_b = (2 * 2 * hidden * wide // parts for parts in (1, cores))  # two matrices, two bytes
        assert (weights_a, weights_b) == (GIB, 128 * MIB)
        core = known("v2")
        assert core.memory_bytes_per_s is not None
        local_a, local_b = (least_time_ns(size, core.memory_bytes_per_s) for size in (weights_a, weights_b))
        gather = sent_bytes("all-gather", 2 * hidden, cores)
        scatter = sent_bytes("reduce-scatter", 2 * cores * hidden, cores)
        assert gather == scatter == 2 * (cores - 1) * hidden
        communication = least_time_ns(gather + scatter, 60e9)
        assert splitting_pays(local_a, local_b, communication)
        assert not splitting_pays(local_a, local_b, local_a - local_b)

    def test_traffic_is_the_integral_of_the_rate(self) -> None:
        assert traffic_bytes([0, 2_000_000, 5_000_000], [1e12, 5e11]) == 3_500_000_000


class TestSentBytes:
    @pytest.mark.parametrize(
        ("operation", "sent"),
        [
            ("all-gather", 7 * 800),
            ("reduce-scatter", 700),
            ("all-reduce", 1400),
            ("all-to-all", 700),
            ("collective-broadcast", 700),
            ("collective-permute", 800),
            ("send", 800),
            ("recv", 0),
            ("ragged-all-to-all", None),
        ],
    )
    def test_of_eight_members(self, operation: str, sent: int | None) -> None:
        assert sent_bytes(operation, 800, 8) == sent

    @given(st.sampled_from(["all-gather", "reduce-scatter", "all-reduce", "all-to-all"]), st.integers(0, 1 << 40))
    def test_nobody_sends_to_itself(self, operation: str, size: int) -> None:
        assert sent_bytes(operation, size, 1) == 0

    @given(st.integers(0, 1 << 40), st.integers(1, 4096))
    def test_an_all_reduce_is_a_reduce_scatter_and_an_all_gather(self, pieces: int, members: int) -> None:
        size = pieces * members
        scatter, gather = sent_bytes("reduce-scatter", size, members), sent_bytes("all-gather", pieces, members)
        assert scatter is not None
        assert gather is not None
        assert sent_bytes("all-reduce", size, members) == scatter + gather


@given(st.integers(0, 10**15), st.floats(1e6, 1e18), st.integers(1, 64))
def test_twice_the_work_takes_twice_as_long_and_so_does_half_the_rate(flops: int, rate: float, devices: int) -> None:
    once = compute_bound_ns(flops, rate)
    assert compute_bound_ns(2 * flops, rate) == pytest.approx(2 * once, rel=1e-12, abs=2)
    assert compute_bound_ns(flops, rate / 2) == pytest.approx(2 * once, rel=1e-12, abs=2)
    shared = {"flops_devices": devices, "rate_devices": devices}
    assert compute_bound_ns(devices * flops, devices * rate, **shared) == pytest.approx(once, rel=1e-12, abs=2)
