"""Programs of JAX: collectives by their scopes, and on the user's own mesh by its axes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import traceflow
from traceflow.analyzers.attribution.calls import phase_and_scopes
from traceflow.analyzers.attribution.purposes import Phase

jax = pytest.importorskip("jax", reason="the workloads need JAX")

from traceflow.collectors.workloads import moe_jax  # noqa: E402  # it needs JAX

Told = tuple[str, str, str | None, str]
DEVICES = 4

# Of one device in a step, from the description of the variants in `moe_jax_layers`.
DENSE: dict[Told, int] = {("DP", "dense gradient reduction", None, "all-reduce"): 1}
STEP: dict[str, dict[Told, int]] = {
    "capacity": {
        ("EP", "token dispatch", "forward", "all-to-all"): 1,
        ("EP", "combine", "forward", "all-to-all"): 1,
        ("EP", "combine", "backward", "all-to-all"): 1,
        ("EP", "token dispatch", "backward", "all-to-all"): 1,
        **DENSE,
    },
    "ragged": {
        ("EP", "token dispatch", "forward", "all-gather"): 3,  # tokens, gates and experts
        ("EP", "combine", "forward", "reduce-scatter"): 1,
        ("EP", "combine", "backward", "all-gather"): 1,
        ("EP", "token dispatch", "backward", "reduce-scatter"): 2,
        **DENSE,
    },
    "masked": {
        ("DP", "parameter gather", "forward", "all-gather"): 3,
        ("DP", "gradient reduction", "backward", "reduce-scatter"): 3,  # of experts, over those who hold others
        **DENSE,
    },
}


def told(path: Path) -> Counter[Told]:
    return Counter(
        (call.dimension, call.purpose.value, call.phase and call.phase.value, call.call.kind.value)
        for call in traceflow.open(path).attribution().calls
    )


def test_every_collective_of_the_variants_is_told(tmp_path: Path) -> None:
    size = ["--tokens=64", "--model=16", "--hidden=8", "--experts=8", "--choices=2"]
    moe_jax.main(["--output", str(tmp_path / "a"), "--devices", str(DEVICES), "--steps", "1", *size])
    for variant, wanted in STEP.items():
        assert told(tmp_path / "a" / variant) == {key: DEVICES * count for key, count in wanted.items()}


def test_axes_of_the_users_mesh_are_its_dimensions(tmp_path: Path) -> None:
    """Two matrices split along `model`, a batch along `data`, and only the compiler's collectives."""
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    mesh = Mesh(np.array(jax.devices()[:8]).reshape(2, 4), ("data", "model"))

    def placed(rows: int, columns: int, *spec: str | None) -> object:
        ones = np.ones((rows, columns), np.float32)
        return jax.device_put(ones, NamedSharding(mesh, PartitionSpec(*spec)))

    def loss(weights: dict[str, object], x: object, y: object) -> object:
        hidden = jax.numpy.maximum(x @ weights["up"], 0)  # type: ignore[operator]
        return ((hidden @ weights["down"] - y) ** 2).mean()

    def train(weights: dict[str, object], x: object, y: object) -> object:
        slopes = jax.grad(loss)(weights, x, y)
        return jax.tree.map(lambda weight, slope: weight - 0.1 * slope, weights, slopes)

    step = traceflow.instrument(jax.jit(train))
    weights = {"up": placed(64, 128, None, "model"), "down": placed(128, 64, "model", None)}
    batch = placed(32, 64, "data", None), placed(32, 64, "data", None)
    with traceflow.record(tmp_path / "a", framework="jax", warmup=1):
        for _ in range(2):
            step(weights, *batch)
    found = told(tmp_path / "a")
    assert {key[:3] for key in found} == {
        ("model", "activation sum", "forward"),
        ("data", "dense gradient reduction", "backward"),
    }


@pytest.mark.parametrize(
    ("name", "phase", "scopes"),
    [
        ("jit(f)/shard_map/jvp(dispatch)/all_to_all", Phase.FORWARD, ("dispatch", "shard_map", "f")),
        ("jit(f)/transpose(jvp(layer))/mlp/reduce", Phase.BACKWARD, ("mlp", "layer", "f")),
        (
            "jit(f)/transpose(jvp(f))/rematted_computation/dispatch/all_to_all",
            Phase.FORWARD,
            ("dispatch", "rematted_computation", "f", "f"),
        ),
        ("jit(f)/update/mul", None, ("update", "f")),
        ("", None, ()),
    ],
)
def test_what_names_of_operations_say(name: str, phase: Phase | None, scopes: tuple[str, ...]) -> None:
    assert phase_and_scopes(name) == (phase, scopes)
