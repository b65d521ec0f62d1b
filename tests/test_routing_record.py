"""The routing record: what `traceflow.moe` keeps, what a capture holds of it, and how damaged ones are refused."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from damaged import DAMAGED

import traceflow as tf
from traceflow.errors import TraceflowError
from traceflow.intent.routing import LISTS, Routing, packed, read_routing
from traceflow.routed import RoutingLog
from traceflow.trace.model import ABSENT

COLUMNS = {
    "step": 0,
    "layer": 0,
    "occurrence": 0,
    "sources": 1,
    "first_source": 0,
    "all_sources": ABSENT,
    "experts": 4,
    "topk": 2,
    "capacity": ABSENT,
    "padded": 1,
    "align": ABSENT,
    "hidden": 8,
    "itemsize": 2,
    "combine_itemsize": 4,
    "ffn_hidden": 16,
    "matrices": 3,
    "weighted": 1,
    "dispatcher": 0,
}


def call(tokens_per_expert: object, **changes: Any) -> tuple[dict[str, int], dict[str, Any]]:
    """A call of one source, with columns and lists as given."""
    lists = {name: changes.pop(name) for name in LISTS if name in changes}
    return {**COLUMNS, **changes}, {"tokens_per_expert": tokens_per_expert, **lists}


def write(folder: Path, rank: int, *calls: tuple[dict[str, int], dict[str, Any]], overwritten: int = 0) -> Path:
    file = folder / f"rank{rank:05d}.routing.npz"
    np.savez(file, allow_pickle=False, **packed(calls, overwritten=overwritten))
    return file


def stored(file: Path) -> dict[str, Any]:
    with np.load(file) as arrays:
        return {**arrays}


def read(folder: Path) -> Routing:
    found = read_routing(sorted(folder.iterdir()))
    assert found is not None
    return found


# Files.


def test_calls_of_several_ranks_are_one_table(tmp_path: Path) -> None:
    for rank in (1, 0):
        calls = [
            call([rank, 1, 2, 3], step=step, layer=layer, first_source=rank, ep_group=[0, 1])
            for step in (5, 6)
            for layer in (3, 7)
        ]
        write(tmp_path, rank, *calls, overwritten=rank)
    found = read(tmp_path)
    assert [layer.layer for layer in found.layers] == [3, 7]
    assert found.overwritten == 1
    first, second = found.layers
    assert first.step.tolist() == [5, 6]
    assert first.assigned.tolist() == [[[0, 1, 2, 3], [1, 1, 2, 3]]] * 2
    assert (first.order.tolist(), second.order.tolist()) == ([[0, 0]] * 2, [[1, 1]] * 2)
    assert first.ep_groups == ((0, 1), (0, 1))
    assert first.etp_groups == ((0,), (1,))
    assert (first.rank.tolist(), first.device.tolist()) == ([0, 1], [ABSENT, ABSENT])
    assert first.dropped is None


def test_devices_of_one_process_are_sources(tmp_path: Path) -> None:
    write(tmp_path, 0, call(np.arange(8).reshape(2, 4), sources=2))
    (layer,) = read(tmp_path).layers
    assert (layer.rank.tolist(), layer.device.tolist()) == ([0, 0], [0, 1])
    assert layer.assigned.tolist() == [[[0, 1, 2, 3], [4, 5, 6, 7]]]


def test_devices_of_another_process_leave_a_gap(tmp_path: Path) -> None:
    write(tmp_path, 1, call(np.ones((2, 4)), sources=2, first_source=2, all_sources=4))
    (layer,) = read(tmp_path).layers
    assert layer.device.tolist() == [ABSENT, ABSENT, 2, 3]
    assert (layer.assigned[0, :, 0] == [ABSENT, ABSENT, 1, 1]).all()


def test_a_rank_that_did_not_record_leaves_a_gap(tmp_path: Path) -> None:
    write(tmp_path, 0, call([1, 2, 3, 4], ep_group=[0, 1]))
    (layer,) = read(tmp_path).layers
    assert layer.rank.tolist() == [0, 1]
    assert layer.assigned.tolist() == [[[1, 2, 3, 4], [ABSENT] * 4]]
    assert layer.order.tolist() == [[0, ABSENT]]


def test_calls_of_another_shape_are_a_layer_of_their_own(tmp_path: Path) -> None:
    write(tmp_path, 0, call([1, 1, 1, 1]), call([2, 2, 2, 2], step=1, capacity=4))
    assert [layer.shape.capacity for layer in read(tmp_path).layers] == [ABSENT, 4]


def test_a_folder_without_a_record_has_none(tmp_path: Path) -> None:
    (tmp_path / "routing.npz").write_bytes(b"the workload's own")
    assert read_routing(sorted(tmp_path.iterdir())) is None


@pytest.mark.parametrize(
    "damage",
    [
        lambda file: file.write_bytes(file.read_bytes()[:300]),
        lambda file: file.write_bytes(b""),
        lambda file: np.savez(file, version=1, step=np.zeros(1)),
        lambda file: np.savez(file, **{**stored(file), "tokens_per_expert_ends": np.array([3])}),
        lambda file: np.savez(file, **{**stored(file), "layer": np.zeros(2)}),
        lambda file: np.savez(file, **{**stored(file), "all_sources": np.array([1 << 40])}),
        lambda file: np.savez(file, **{**stored(file), "sources": np.array([0]), "experts": np.array([0])}),
        lambda file: np.savez(file, **{**stored(file), "dispatcher": np.array([9])}),
        lambda file: np.savez(file, **{**stored(file), "dropped_ends": np.array([-3])}),
        lambda file: np.savez(file, **{**stored(file), "step": np.array([np.nan])}),
    ],
    ids=["cut", "empty", "columns", "counts", "lengths", "ranks", "no sources", "dispatcher", "backwards", "fractions"],
)
def test_a_damaged_record_is_refused(tmp_path: Path, damage: Callable[[Path], object]) -> None:
    damage(write(tmp_path, 0, call([1, 2, 3, 4])))
    with pytest.raises(TraceflowError, match="TF103"):
        read_routing(sorted(tmp_path.iterdir()))


@pytest.mark.parametrize("content", DAMAGED, ids=["packed", "huge", "single"])
@pytest.mark.parametrize("name", ["rank00000.routing.npz", "rank00000.combine.npz"])
def test_a_record_that_cannot_be_unpacked_or_held_is_refused(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(TraceflowError, match="TF103"):
        read_routing([tmp_path / name])


def test_what_a_program_attached_under_the_name_is_passed_over(tmp_path: Path) -> None:
    np.savez(tmp_path / "rank00000.routing.npz", dropped=[1, 2])
    np.savez(tmp_path / "rank00000.combine.npz", dropped=[1, 2])
    assert read_routing(sorted(tmp_path.iterdir())) is None


def test_a_record_of_a_later_version_is_refused(tmp_path: Path) -> None:
    file = write(tmp_path, 0, call([1, 2, 3, 4]))
    np.savez(file, **{**stored(file), "version": 2})
    with pytest.raises(TraceflowError, match=r"TF107.*later traceflow"):
        read(tmp_path)


def test_values_of_a_combination_are_read(tmp_path: Path) -> None:
    arrays: dict[str, Any] = {
        "layer": 3,
        "returned": np.ones((2, 4), np.float32),
        "token": [0, 0],
        "choice": [0, 1],
        "gates": [[0.5, 0.5]],
        "combined": np.ones((1, 4)),
        "weighted": False,
    }
    np.savez(tmp_path / "rank00002.combine.npz", **arrays)
    (found,) = read(tmp_path).combines
    assert (found.rank, found.layer, found.weighted) == (2, 3, False)
    np.savez(tmp_path / "rank00002.combine.npz", **{**arrays, "token": [0, 1]})
    with pytest.raises(TraceflowError, match=r"TF103.*do not belong together"):
        read(tmp_path)


# What a program tells.


def logged(log: RoutingLog, rank: int = 0) -> list[list[int]]:
    """The counts that a log kept, by call."""
    arrays = log.arrays(rank)
    ends = arrays["tokens_per_expert_ends"]
    return [part.tolist() for part in np.split(arrays["tokens_per_expert"], ends[:-1])] if len(ends) else []


def test_outside_a_recording_nothing_is_looked_at(caplog: pytest.LogCaptureFixture) -> None:
    counts = Mock()
    tf.moe(layer=0, tokens_per_expert=counts, topk="no number")  # type: ignore[arg-type]
    assert counts.mock_calls == []
    assert caplog.records == []


def told() -> dict[str, int]:
    return {name: value for name, value in COLUMNS.items() if name not in {"step", "occurrence", "experts"}}


def test_calls_of_a_layer_are_counted_within_each_step() -> None:
    log = RoutingLog()
    for step, layer in ((0, 0), (0, 1), (0, 0), (1, 0)):
        log.add(step, {**told(), "layer": layer}, {"tokens_per_expert": [1, 2]})
    arrays = log.arrays(3)
    assert arrays["occurrence"].tolist() == [0, 0, 1, 0]
    assert arrays["first_source"].tolist() == [3] * 4
    assert arrays["experts"].tolist() == [2] * 4


def test_the_last_calls_are_kept_and_the_others_counted() -> None:
    torch = pytest.importorskip("torch", reason="a ring lies on a device of PyTorch")
    log = RoutingLog(calls=3)
    counts = torch.zeros(2, dtype=torch.int64)
    for number in range(5):
        counts.fill_(number)  # the program uses its memory again
        log.add(number, told(), {"tokens_per_expert": counts, "dropped": counts})
    assert logged(log) == [[2, 2], [3, 3], [4, 4]]
    assert log.arrays(0)["overwritten"] == 2


def test_a_list_is_kept_as_it_was() -> None:
    log, splits = RoutingLog(), np.array([1, 2])
    log.add(0, told(), {"tokens_per_expert": splits})
    splits[:] = 9
    assert logged(log) == [[1, 2]]


def test_what_jax_traces_cannot_be_kept() -> None:
    jax = pytest.importorskip("jax", reason="needs JAX")

    def traced(x: Any) -> Any:
        RoutingLog().add(0, told(), {"tokens_per_expert": x})
        return x

    with pytest.raises(ValueError, match="return the counts"):
        jax.jit(traced)(jax.numpy.zeros(2))


def test_arrays_of_jax_are_copied_at_the_end() -> None:
    jax = pytest.importorskip("jax", reason="needs JAX")
    log = RoutingLog()
    log.add(0, told(), {"tokens_per_expert": jax.numpy.array([[1, 2], [3, 4]])})
    arrays = log.arrays(7)
    assert arrays["sources"].tolist() == [2]
    assert arrays["first_source"].tolist() == [0]  # rows are those of all devices, whatever the process
    assert arrays["all_sources"].tolist() == [2]
    assert arrays["tokens_per_expert"].tolist() == [1, 2, 3, 4]


# In a recording.


@pytest.fixture
def torch() -> Any:
    return pytest.importorskip("torch", reason="records PyTorch")


def test_a_recording_keeps_the_steps_that_it_traced_and_those_of_the_warm_up(torch: Any, tmp_path: Path) -> None:
    with tf.record(tmp_path / "a", framework="torch", warmup=1) as recorder:
        tf.moe(layer=0, tokens_per_expert=torch.tensor([9, 9]), topk=1)  # before any step
        for number in range(3):
            with recorder.step():
                tf.moe(layer=0, tokens_per_expert=torch.tensor([number, 1]), topk=1, hidden=4, itemsize=2)
    tf.moe(layer=0, tokens_per_expert=torch.tensor([9, 9]), topk=1)  # after it
    (layer,) = read(tmp_path / "a").layers
    assert layer.step.tolist() == [0, 1, 2]
    assert layer.assigned[:, 0].tolist() == [[0, 1], [1, 1], [2, 1]]
    assert (layer.shape.hidden, layer.shape.combine_itemsize) == (4, 2)
    assert tf.open(tmp_path / "a").evidence.routing is not None


def test_a_failure_is_named_once_and_does_not_reach_the_program(
    torch: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with tf.record(tmp_path / "a", framework="torch", warmup=0) as recorder, recorder.step():
        for _ in range(2):
            tf.moe(layer=0, tokens_per_expert=[1, 2], topk=1, dispatcher="pigeon")  # type: ignore[arg-type]
        torch.ones(2).sum()
    assert len([line for line in caplog.messages if "TF119" in line and "routing.npz" in line]) == 1
    assert read_routing(sorted((tmp_path / "a").iterdir())) is None


def test_what_is_computed_again_for_the_backward_pass_is_not_told_twice(torch: Any, tmp_path: Path) -> None:
    from torch.utils.checkpoint import checkpoint

    def layer(x: Any) -> Any:
        tf.moe(layer=0, tokens_per_expert=[1, 1], topk=1)
        return torch.sin(x)

    with tf.record(tmp_path / "a", framework="torch", warmup=0) as recorder, recorder.step():
        checkpoint(layer, torch.ones(2, requires_grad=True), use_reentrant=False).sum().backward()
    (found,) = read(tmp_path / "a").layers
    assert found.occurrence.tolist() == [0]


def test_another_thread_is_in_no_recording(torch: Any, tmp_path: Path) -> None:
    with tf.record(tmp_path / "a", framework="torch", warmup=0) as recorder, recorder.step():
        other = threading.Thread(target=tf.moe, kwargs={"layer": 0, "tokens_per_expert": [1], "topk": 1})
        other.start()
        other.join()
        torch.ones(2).sum()
    assert read_routing(sorted((tmp_path / "a").iterdir())) is None


# Models of Megatron and torchtitan, as far as their attributes go.


def dispatcher_of_megatron(torch: Any, **config: Any) -> Any:
    """What the hook needs of a MoEAlltoAllTokenDispatcher."""

    class Dispatcher:
        def __init__(self) -> None:
            self.config = SimpleNamespace(
                moe_router_topk=2,
                hidden_size=8,
                moe_ffn_hidden_size=16,
                params_dtype=torch.bfloat16,
                gated_linear_unit=True,
                **config,
            )
            self.ep_group = self.tp_group = SimpleNamespace(size=lambda: 1)
            self.seen: list[Any] = []

        def preprocess(self, routing_map: Any) -> Any:
            self.seen.append(routing_map)
            return routing_map.sum(dim=0)

    return Dispatcher()


def layer_of_megatron(torch: Any, **config: Any) -> Any:
    layer = torch.nn.Module()
    layer.layer_number, layer.token_dispatcher = 5, dispatcher_of_megatron(torch, **config)
    return torch.nn.ModuleList([layer])


def test_layers_of_megatron_are_watched(torch: Any, tmp_path: Path) -> None:
    model = tf.watch_moe(tf.watch_moe(layer_of_megatron(torch), align=16))  # watched once
    dispatcher = model[0].token_dispatcher
    routing_map = torch.tensor([[1, 1, 0], [0, 1, 1]], dtype=torch.bool)
    with tf.record(tmp_path / "a", framework="torch", warmup=0) as recorder, recorder.step():
        assert dispatcher.preprocess(routing_map).tolist() == [1, 2, 1]
    assert len(dispatcher.seen) == 1
    (layer,) = read(tmp_path / "a").layers
    assert layer.layer == 5
    assert layer.assigned.tolist() == [[[1, 2, 1]]]
    assert (layer.shape.topk, layer.shape.hidden, layer.shape.itemsize, layer.shape.ffn_hidden) == (2, 8, 2, 16)
    assert (layer.shape.align, layer.shape.matrices) == (16, 3)


def test_layers_of_megatron_with_a_capacity_are_refused(torch: Any) -> None:
    with pytest.raises(ValueError, match="its dispatcher is not told"):
        tf.watch_moe(layer_of_megatron(torch, moe_expert_capacity_factor=1.0))


def test_routers_of_torchtitan_are_watched(torch: Any, tmp_path: Path) -> None:
    class TokenChoiceTopKRouter(torch.nn.Module):  # type: ignore[misc]  # PyTorch is not looked into
        def __init__(self) -> None:
            super().__init__()
            self.gate, self.num_experts, self.top_k = torch.nn.Linear(4, 3, bias=False), 3, 2

        def forward(self, x: Any) -> tuple[Any, Any, Any]:
            scores, chosen = self.gate(x).topk(self.top_k)
            return scores, chosen, torch.histc(chosen.float(), bins=3, min=0, max=3)

    model = torch.nn.ModuleDict({"layers": torch.nn.ModuleDict({"7": TokenChoiceTopKRouter()})})
    tf.watch_moe(tf.watch_moe(model), ep_group=[0])  # watched once
    with tf.record(tmp_path / "a", framework="torch", warmup=0) as recorder, recorder.step():
        *_, counts = model["layers"]["7"](torch.randn(6, 4))
    (layer,) = read(tmp_path / "a").layers
    assert layer.layer == 7
    assert layer.assigned[0, 0].tolist() == counts.int().tolist()
    assert layer.assigned.sum() == 12
    assert (layer.shape.topk, layer.shape.hidden, layer.shape.itemsize) == (2, 4, 4)


def test_a_model_without_experts_is_refused(torch: Any) -> None:
    with pytest.raises(ValueError, match="no layer"):
        tf.watch_moe(torch.nn.Linear(2, 2))
