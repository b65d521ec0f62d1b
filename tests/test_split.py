"""Two ways to divide a layer, by known answers."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from traceflow.cli import main
from traceflow.errors import TraceflowError
from traceflow.hardware import Hardware
from traceflow.intent.split import Layer, compare_split

LAYER = Layer(rows=8, width=8192, hidden=32768, devices=8)


def hardware(*, link: float | None = 1e9, memory: float | None = 1e12) -> Hardware:
    return Hardware(
        name="mine",
        unit="one device",
        flops_per_s={"bf16": 1e15},
        memory_bytes=None,
        memory_bytes_per_s=memory,
        link_bytes_per_s=link,
        link="a link",
        source="this test",
    )


def test_both_plans_compute_equally_much_and_b_reads_an_eighth_of_the_weights() -> None:
    found = compare_split(LAYER)
    assert found.a.flops == found.b.flops == 1_073_741_824
    assert (found.a.weight_bytes, found.b.weight_bytes) == (1 << 30, 128 << 20)
    assert found.a.payload_bytes == 0
    # One row of 8192 to seven others; seven eighths of [8, 8192] partial sums.
    assert (found.b.all_gather_bytes, found.b.reduce_scatter_bytes) == (7 * 8192 * 2, 7 * 8192 * 2)
    assert dict(found.b.shapes) == {"x": (8, 8192), "w1": (8192, 4096), "w2": (4096, 8192)}
    assert found.b_pays is None
    assert {gap.what for gap in found.skipped} >= {"/result/a/local_ns", "/result/break_even/b_pays"}


def test_b_pays_where_it_saves_more_than_its_collectives_take() -> None:
    fast = compare_split(LAYER, hardware(link=1e9))
    # Memory binds: 2^30 and 2^27 bytes at 1e12 B/s.
    assert (fast.a.local_ns, fast.b.local_ns, fast.saved_ns) == (1_073_742, 134_218, 939_524)
    assert fast.communication_ns == 2 * 114_688
    assert fast.b_pays is True
    slow = compare_split(LAYER, hardware(link=1e8))
    assert (slow.saved_ns, slow.communication_ns, slow.b_pays) == (939_524, 2 * 1_146_880, False)


def test_at_break_even_neither_is_faster() -> None:
    rate = compare_split(LAYER, hardware()).break_even_bytes_per_s
    assert rate == pytest.approx(2 * 114_688 / 939_524e-9)
    even = compare_split(LAYER, hardware(link=rate))
    assert even.communication_ns == pytest.approx(939_524, abs=2)


def test_without_a_rate_nothing_is_said() -> None:
    assert compare_split(LAYER, hardware(link=None)).b_pays is None
    found = compare_split(LAYER, hardware(memory=None))
    assert (found.a.local_ns, found.b_pays) == (None, None)


@pytest.mark.parametrize(
    "sizes", [(9, 8, 8, 8, "bf16"), (8, 8, 9, 8, "bf16"), (0, 8, 8, 1, "bf16"), (8, 8, 8, 8, "half")]
)
def test_what_cannot_be_divided_is_refused(sizes: tuple[int, int, int, int, str]) -> None:
    with pytest.raises(TraceflowError, match="TF151"):
        Layer(*sizes)


@given(st.integers(1, 16), st.integers(1, 64), st.integers(1, 64), st.integers(1, 64))
def test_dividing_changes_no_flops_and_leaves_each_its_part(devices: int, rows: int, width: int, hidden: int) -> None:
    found = compare_split(Layer(rows * devices, width, hidden * devices, devices))
    assert found.a.flops == found.b.flops
    assert found.a.weight_bytes == devices * found.b.weight_bytes
    assert (found.b.payload_bytes == 0) == (devices == 1)


def test_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["--rows", "8", "--width", "8192", "--hidden", "32768", "--devices", "8"]
    assert main(["plan", "compare", *sizes, "--hardware", "h100", "--format", "json"]) == 0
    result = json.loads(capsys.readouterr().out)["result"]
    assert (result["a"]["flops"], result["b"]["weight_bytes"]) == (1_073_741_824, 128 << 20)
    assert result["break_even"]["b_pays"] is True
    assert main(["plan", "compare", *sizes]) == 0
    assert "T_local,A - T_local,B > T_AG + T_RS" in capsys.readouterr().out
    assert main(["plan", "compare", *sizes[:-1], "7"]) == 1
    assert main(["plan", "compare", "--rows", "8"]) == 2
