"""The audit of PyTorch as a guest in a step: it leaves no trace there, and keeps its failures to itself."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

if find_spec("torch") is None:
    pytest.skip("PyTorch is not installed", allow_module_level=True)

import torch

from traceflow.analyzers.sharding.torch import torch_sharding
from traceflow.analyzers.sharding.torch_values import differing_values
from traceflow.collectors.torch_modules import Modules
from traceflow.collectors.torch_sharding import audit
from traceflow.collectors.torch_values import digest, fingerprint
from traceflow.collectors.torch_watch import Watch
from traceflow.program.torch_audit import Place, TorchAudit, TorchMesh, Value, read_torch_audit


def model() -> Any:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh())


def hooks_of(module: Any) -> int:
    return sum(len(one._forward_hooks) + len(one._forward_pre_hooks) for one in module.modules())


def test_a_model_of_one_process_has_nothing_to_tell(tmp_path: Path) -> None:
    plain = model()
    with audit(plain, plan={"0": "Colwise", "2": "Rowwise"}) as audited:
        plain(torch.ones(2, 4)).sum().backward()
    file = audited.save(tmp_path / "audit")
    assert file.name == "rank00000.sharding_audit.json"
    kept = read_torch_audit(file)
    assert (kept.rank, kept.world_size, kept.modules, kept.missing) == (0, 1, ("0", "1"), ())
    assert [(one.name, one.local_shape, one.mesh) for one in kept.parameters] == [
        ("0.weight", (4, 4), None),
        ("0.bias", (4,), None),
    ]
    assert [finding.evidence["key"] for finding in torch_sharding(kept).findings] == ["2"]


def test_an_error_of_the_step_comes_through_and_the_hooks_are_gone() -> None:
    plain = model()
    with pytest.raises(RuntimeError, match="mat1 and mat2"), audit(plain) as audited:
        plain(torch.ones(2, 3))
    assert hooks_of(plain) == 0
    assert audited.content.missing == ("the rest of the step: it raised RuntimeError",)


def test_a_failure_of_the_audit_is_told_and_the_step_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("no idea")

    plain, x = model(), torch.ones(2, 4)
    expected = plain(x)
    monkeypatch.setattr(Watch, "executed", fail)
    with audit(plain) as audited:
        found = plain(x)
    assert torch.equal(found, expected)
    assert audited.content.missing == ("a part of the step: RuntimeError: no idea",)
    assert [skipped.reason for skipped in torch_sharding(audited.content).skipped][1:] == [*audited.content.missing]


def test_a_pytorch_without_its_debug_mode_leaves_the_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise ImportError("no such module")

    monkeypatch.setattr("traceflow.collectors.torch_watch.mode_class", fail)
    plain = model()
    with audit(plain) as audited:
        plain(torch.ones(2, 4))
    assert len(audited.content.parameters) == 2
    assert audited.content.missing == ("redistributions: this version of PyTorch does not tell them",)


def test_random_numbers_of_the_program_stay_as_they_are() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    fingerprint(torch.ones(5000))
    assert torch.equal(torch.rand(3), expected)


def test_modules_are_followed_forward_and_backward_without_a_change_of_the_graph() -> None:
    seen: list[tuple[str, bool]] = []

    class Seen(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:  # noqa: ARG004
            seen.append(modules.now())
            return x * 2

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:  # noqa: ARG004
            seen.append(modules.now())
            return gradient * 2

    class Layer(torch.nn.Module):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            return Seen.apply(x)

    layers = torch.nn.Sequential(Layer(), torch.nn.Sequential(Layer()))
    modules = Modules(layers)
    x = torch.ones(2, requires_grad=True)
    y = layers(x)
    assert type(y.grad_fn).__name__ == "SeenBackward"
    y.sum().backward()
    modules.close()
    assert seen == [("0", False), ("1.0", False), ("1.0", True), ("0", True)]
    assert hooks_of(layers) == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64])
@pytest.mark.parametrize("shape", [(), (0, 3), (5,), (3, 4099)])
def test_fingerprints_of_equal_values_are_equal(dtype: Any, shape: tuple[int, ...]) -> None:
    one = (torch.arange(max(1, torch.Size(shape).numel())) % 7).to(dtype)[: torch.Size(shape).numel()].reshape(shape)
    assert fingerprint(one) == fingerprint(one.clone())
    assert digest(one) == fingerprint(one).digest


def test_the_distance_of_projections_is_about_that_of_tensors() -> None:
    generator = torch.Generator().manual_seed(1)
    one = torch.randn(20_000, generator=generator)
    other = one + 0.01
    projections = zip(fingerprint(one).projections, fingerprint(other).projections, strict=True)
    squared = sum((p - q) ** 2 for p, q in projections) / 4
    assert 0.2 < squared / float((one - other).norm() ** 2) < 5  # of four normal numbers squared


def test_nan_has_a_fingerprint_that_json_can_hold() -> None:
    found = fingerprint(torch.tensor([1.0, float("nan"), float("inf")]))
    assert found.projections == (0.0,) * 4
    assert found.norm == 0.0


def value(rank_value: torch.Tensor, placements: tuple[str, ...] = ("R", "S(0)")) -> Value:
    said = fingerprint(rank_value)
    return Value(
        place=Place("layer", "aten.mm.default"),
        argument=0,
        mesh=TorchMesh(("data", "tensor"), (2, 2), (0, 1, 2, 3)),
        placements=placements,
        shape=(4,),
        digest=said.digest,
        projections=said.projections,
        norm=said.norm,
        precision=said.precision,
    )


def audits(*values: Value) -> list[TorchAudit]:
    return [
        TorchAudit(rank=rank, world_size=4, modules=(), plan=None, parameters=(), values=(one,))
        for rank, one in enumerate(values)
    ]


def test_only_ranks_that_claim_the_same_values_are_compared() -> None:
    left, right = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0])
    # Along data, ranks 0 and 2 hold the same, and 1 and 3; along tensor, each has a part.
    assert list(differing_values(audits(value(left), value(right), value(left), value(right)))) == []
    [finding] = differing_values(audits(value(left), value(right), value(left), value(left)))
    assert finding.evidence["ranks"] == [1, 3]


def test_integers_differ_by_any_bit_and_floats_beyond_rounding() -> None:
    whole = ("R", "R")
    ids, others = torch.tensor([1_000_000, 2]), torch.tensor([1_000_000, 3])
    assert len(list(differing_values(audits(value(ids, whole), value(others, whole))))) == 1
    exact = torch.tensor([1.0, 2.0])
    assert list(differing_values(audits(value(exact, whole), value(exact * (1 + 1e-6), whole)))) == []
    assert len(list(differing_values(audits(value(exact, whole), value(exact * 1.01, whole))))) == 1
