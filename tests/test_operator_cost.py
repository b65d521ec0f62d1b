"""FLOPs of PyTorch's operators: against its own counter where both count the same, else by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from traceflow.program.operators import COUNTED, operator_cost, shapes_text

torch = pytest.importorskip("torch", reason="the operators are PyTorch's")
functional = pytest.importorskip("torch.nn.functional")


def recorded(work: Callable[[], Any], folder: Path) -> tuple[int, int]:
    """FLOPs by PyTorch's counter, and by the shapes that its profiler records; of nested operators the innermost."""
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        work()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as profiler:
        work()
    profiler.export_chrome_trace(str(folder / "trace.json"))
    events = [e for e in json.loads((folder / "trace.json").read_text())["traceEvents"] if e.get("name") in COUNTED]
    leaves = [e for e in events if not any(_within(other, e) for other in events)]
    return counter.get_total_flops(), sum(_flops(event) for event in leaves)


def _within(inner: Any, outer: Any) -> bool:
    ends = outer["ts"] + outer["dur"] >= inner["ts"] + inner["dur"]
    return inner is not outer and inner["tid"] == outer["tid"] and outer["ts"] <= inner["ts"] and bool(ends)


def _flops(event: Any) -> int:
    told = event["args"]
    texts = (json.dumps(told.get(name, [])) for name in ("Input Dims", "Input type", "Concrete Inputs"))
    cost = operator_cost(event["name"], *texts)
    assert cost is not None
    return sum(cost.flops.values())


def r(*shape: int) -> Any:
    return torch.randn(shape)


def trained(forward: Callable[..., Any], *shapes: tuple[int, ...]) -> None:
    forward(*(torch.randn(shape, requires_grad=True) for shape in shapes)).sum().backward()


WORK: dict[str, Callable[[], Any]] = {
    "mm": lambda: r(8, 4) @ r(4, 2),
    "bmm": lambda: torch.bmm(r(3, 8, 4), r(3, 4, 2)),
    "baddbmm": lambda: torch.baddbmm(r(3, 8, 2), r(3, 8, 4), r(3, 4, 2)),
    "linear": lambda: functional.linear(r(5, 8, 4), r(6, 4), r(6)),
    "einsum": lambda: torch.einsum("bij,bjk->bik", r(3, 8, 4), r(3, 4, 2)),
    "conv1d": lambda: functional.conv1d(r(2, 4, 9), r(8, 4, 3)),
    "conv2d": lambda: functional.conv2d(r(2, 4, 9, 9), r(8, 2, 3, 3), stride=2, groups=2),
    "conv3d": lambda: functional.conv3d(r(1, 2, 5, 6, 7), r(3, 2, 2, 2, 2)),
    "transposed": lambda: functional.conv_transpose2d(r(2, 4, 5, 5), r(4, 8, 3, 3), stride=2),
    "linear trained": lambda: trained(functional.linear, (5, 4), (6, 4)),
    "conv trained": lambda: trained(functional.conv2d, (2, 4, 9, 9), (8, 4, 3, 3)),
}


@pytest.mark.parametrize("name", WORK)
def test_flops_are_those_of_pytorchs_counter(name: str, tmp_path: Path) -> None:
    theirs, ours = recorded(WORK[name], tmp_path)
    assert ours == theirs > 0


def test_padding_is_not_multiplied(tmp_path: Path) -> None:
    theirs, ours = recorded(lambda: functional.conv2d(r(2, 4, 9, 9), r(8, 4, 3, 3), padding=1), tmp_path)
    assert theirs == 2 * 2 * 8 * 4 * (9 * 9) * (3 * 3)
    assert ours == 2 * 2 * 8 * 4 * (9 + 8 + 8) ** 2  # of three rows of the window, two lose one place each


FLOAT = json.dumps(["float"] * 3)
ATTENTION = "aten::_scaled_dot_product_flash_attention"


def attention(causal: bool, rows: int = 16, columns: int = 16) -> tuple[str, str, str]:  # noqa: FBT001
    shapes = [[2, 3, rows, 8], [2, 3, columns, 8], [2, 3, columns, 4]]
    return json.dumps(shapes), FLOAT, json.dumps(["", "", "", "0.", str(causal), "False", ""])


class TestByHand:
    @pytest.mark.parametrize(
        ("causal", "rows", "columns", "pairs"),
        [(False, 16, 16, 256), (True, 16, 16, 136), (True, 2, 16, 3), (True, 16, 2, 31), (False, 1, 559, 559)],
    )
    def test_attention_counts_the_pairs_that_see_each_other(
        self,
        causal: bool,  # noqa: FBT001
        rows: int,
        columns: int,
        pairs: int,
    ) -> None:
        cost = operator_cost(ATTENTION, *attention(causal, rows, columns))
        assert cost is not None
        assert cost.flops == {"f32": 2 * 2 * 3 * pairs * (8 + 4)}

    def test_the_backward_of_attention_forms_the_scores_anew(self) -> None:
        shapes = json.dumps([[2, 3, 16, 4], [2, 3, 16, 8], [2, 3, 16, 8], [2, 3, 16, 4]])
        values = json.dumps([""] * 11 + ["False"])
        cost = operator_cost(f"{ATTENTION}_backward", shapes, json.dumps(["float"] * 4), values)
        assert cost is not None
        assert cost.flops == {"f32": 2 * 2 * 3 * 256 * (3 * 8 + 2 * 4)}

    def test_bytes_of_a_product(self) -> None:
        cost = operator_cost("aten::mm", "[[8, 4], [4, 2]]", '["c10::Half", "c10::Half"]', "[]")
        assert cost is not None
        assert (cost.flops, cost.bytes) == ({"f16": 128}, 2 * (32 + 8 + 16))

    @pytest.mark.parametrize(
        ("name", "shapes", "types", "values"),
        [
            ("aten::mm", "[[8, 4], [5, 2]]", '["float", "float"]', "[]"),  # they do not fit
            ("aten::mm", "30 of 100 shapes", '["float", "float"]', "[]"),
            ("aten::mm", "[[8, 4], [4, 2]]", '["", ""]', "[]"),
            ("aten::mm", "[[8, 4]]", '["float"]', "[]"),
            ("aten::mm", "[]", "[]", ""),
            ("aten::convolution", "[[2, 4, 9, 9], [8, 4, 3, 3]]", '["float", "float"]', ""),  # without its stride
            (ATTENTION, "[[2, 3, 16, 8], [2, 3, 16, 8]]", '["float", "float"]', '["", "", "", "0.", "False"]'),
        ],
    )
    def test_what_does_not_fit_is_not_known(self, name: str, shapes: str, types: str, values: str) -> None:
        assert operator_cost(name, shapes, types, values) is None

    def test_shapes_for_people(self) -> None:
        assert shapes_text("[[8, 4], [], [4, 2]]") == "[8, 4] [4, 2]"
        assert shapes_text("30 of 100 shapes") == "30 of 100 shapes"
