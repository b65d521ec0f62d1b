"""The ring matmul and the doubly split transformer in PyTorch: their numerics, and what their recordings hold."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from recorded import manifest_of
from torch_programs import Gradients, fail_on, matmul_and_transformer

from traceflow import evidence
from traceflow.analyzers.matching import match
from traceflow.collectors.workloads import fsdp_tp_torch, ring_matmul_torch, torch_processes
from traceflow.collectors.workloads.collective_matmul import matrices
from traceflow.collectors.workloads.torch_stages import backward
from traceflow.errors import TraceflowError

if find_spec("torch") is None:
    pytest.skip("the workloads need PyTorch", allow_module_level=True)

Products = dict[str, NDArray[Any]]

PROCESSES = 4
MATMUL = (16, 24, 20)
SIZE = fsdp_tp_torch.Size(sequences=4, length=6, model=16, heads=4, hidden=24, blocks=2)


@pytest.fixture(scope="module")
def computed() -> list[tuple[Products, Gradients]]:
    """What each of four processes found."""
    return torch_processes.run(matmul_and_transformer, PROCESSES, matrices(MATMUL), SIZE)


@pytest.mark.parametrize("rank", [0, 1])
def test_the_error_of_one_process_is_told_and_ends_the_others(rank: int) -> None:
    with pytest.raises(ZeroDivisionError, match="the cause"):
        torch_processes.run(fail_on, 2, rank)


@pytest.mark.parametrize("layout", ring_matmul_torch.LAYOUTS)
def test_every_form_gives_the_product_exactly(computed: list[tuple[Products, Gradients]], layout: str) -> None:
    a, w = matrices(MATMUL)
    forms = ring_matmul_torch.LAYOUTS[layout].forms
    assert len(forms) == 2
    for form in forms:
        blocks = [products[form] for products, _ in computed]
        np.testing.assert_array_equal(np.concatenate(blocks, axis=1 if layout == "gather" else 0), a @ w)


def test_the_split_transformer_has_the_gradients_of_the_whole_one(computed: list[tuple[Products, Gradients]]) -> None:
    torch = pytest.importorskip("torch")
    whole = fsdp_tp_torch.transformer(SIZE).double()
    loss = fsdp_tp_torch.learn(whole, *(torch.from_numpy(array).double() for array in fsdp_tp_torch.batch(SIZE, 0)))
    losses = [gradients.loss for _, gradients in computed]
    np.testing.assert_allclose(np.mean(losses), float(loss), rtol=1e-6)
    assert losses[0] == losses[1] != losses[2] == losses[3]  # each row of the mesh has sequences of its own
    wanted = {name: parameter.grad.numpy() for name, parameter in whole.named_parameters()}
    for _, gradients in computed:
        assert gradients.whole.keys() == wanted.keys()
        for name, gradient in wanted.items():
            assert np.any(gradient)
            tolerance = 5e-6 * np.abs(gradient).max()
            np.testing.assert_allclose(gradients.whole[name], gradient, rtol=0, atol=tolerance, err_msg=name)


def test_every_process_holds_a_quarter_of_the_matrices(computed: list[tuple[Products, Gradients]]) -> None:
    for _, gradients in computed:
        for block in range(SIZE.blocks):
            held = {name: gradients.held[f"{block}.{name}"] for name in ("query.weight", "up.weight", "down.weight")}
            assert held == {"query.weight": (4, 16), "up.weight": (6, 16), "down.weight": (8, 12)}
            assert gradients.held[f"{block}.mlp_norm.weight"] == (8,)


def test_causal_attention_does_not_look_ahead() -> None:
    torch = pytest.importorskip("torch")
    model = fsdp_tp_torch.transformer(SIZE)
    x = torch.from_numpy(fsdp_tp_torch.batch(SIZE, 0)[0])
    other = x.clone()
    other[:, 4:] += 1
    with torch.no_grad():
        before, after = model(x), model(other)
    torch.testing.assert_close(before[:, :4], after[:, :4])
    assert not torch.allclose(before[:, 4:], after[:, 4:])


def names_of(path: Path, rank: int) -> Counter[str]:
    file = path / "torch" / f"rank{rank:05d}.pt.trace.json.gz"
    events = json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]
    return Counter(event["name"] for event in events if event.get("cat") in {"cpu_op", "user_annotation"})


def check_recorded(path: Path, wanted: dict[str, int]) -> None:
    """Whether four processes recorded two steps, each with these events."""
    manifest = manifest_of(path)
    assert manifest.complete
    everybody = (manifest, *manifest.peers)
    assert [one.process.rank for one in everybody] == list(range(PROCESSES))
    assert {tuple(step.step for step in one.steps) for one in everybody} == {(2, 3)}
    trace = evidence.read(path).trace
    assert (
        trace.communications.group >= 0
    ).all()  # all are joined with the flight recorder, and all ranks with each other
    assert (match(trace).instance >= 0).all()
    for rank in range(PROCESSES):
        found = names_of(path, rank)
        assert {name: found[name] for name in wanted} == {name: 2 * count for name, count in wanted.items()}


ROUNDS = {f"round_{turn}": 1 for turn in range(PROCESSES)}
FORMS = {
    "gather": {
        "gather": {"gather": 1, "multiply": 1, "c10d::_allgather_base_": 1, "aten::mm": 1},
        "ring": {**ROUNDS, "permute": 3, "multiply": 4, "c10d::send": 3, "c10d::recv_": 3, "aten::mm": 4},
    },
    "scatter": {
        "scatter": {"scatter": 1, "multiply": 1, "c10d::_reduce_scatter_base_": 1, "aten::mm": 1},
        "scatter_ring": {**ROUNDS, "permute": 3, "multiply": 4, "accumulate": 3, "c10d::send": 3, "c10d::recv_": 3},
    },
}


@pytest.mark.parametrize("layout", FORMS)
def test_both_forms_of_a_layout_are_recorded(tmp_path: Path, capfd: pytest.CaptureFixture[str], layout: str) -> None:
    ring_matmul_torch.main(["--output", str(tmp_path), "--layout", layout, "--size", "16", "24", "20"])
    told = capfd.readouterr()
    assert told.out.split() == [str(tmp_path / form) for form in FORMS[layout]]
    assert told.err == ""  # of its processes, too
    for form, wanted in FORMS[layout].items():
        check_recorded(tmp_path / form, wanted)


def test_the_transformer_is_recorded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shape = [f"--{name}={value}" for name, value in asdict(SIZE).items()]
    fsdp_tp_torch.main(["--output", str(tmp_path / "a"), *shape])
    assert capsys.readouterr().out.split() == [str(tmp_path / "a")]
    stages = {"attention": 2, "mlp": 2, "loss": 1}
    own = {**stages, **{backward(name): count for name, count in stages.items()}, "loss_reduction": 1, "update": 1}
    of_fsdp = {f"FSDP::{what} ({block})": 1 for what in ("pre_backward", "post_backward_reduce") for block in (0, 1)}
    check_recorded(tmp_path / "a", {**own, **of_fsdp, "c10d::_reduce_scatter_base_": 2})
    rows = json.loads((tmp_path / "a" / "rank00003.placements.json").read_text())
    placed = {row["name"]: (row["placements"], row["mesh"]) for row in rows}
    mesh = {"names": ["data", "tensor"], "ranks": [[0, 1], [2, 3]]}
    assert placed["0.down.weight"] == (["Shard(dim=0)", "Shard(dim=1)"], mesh)


def test_a_wrong_loss_leaves_no_capture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fsdp_tp_torch, "_whole_losses", lambda *_: [0.0, 0.0])
    with pytest.raises(TraceflowError, match=r"TF115.*the reference's 0"):
        fsdp_tp_torch.record_fsdp_tp(tmp_path / "a", data=1, tensor=1, steps=1, size=SIZE)
    assert not (tmp_path / "a").exists()
