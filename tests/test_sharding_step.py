"""The audit of a whole training step: layers that are wrong alike, what it returns, and programs that prepare it."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("jax")

import jax
from sharding_programs import array, grid

from traceflow.analyzers.sharding import sharding
from traceflow.collectors.jax import compile_only
from traceflow.intent.intent import intent
from traceflow.intent.mesh import Mesh
from traceflow.program.compilation import Compilation
from traceflow.result import Finding

LAYERS = 3


@pytest.fixture(scope="module")
def step() -> Compilation:
    """A step whose batch, the last argument by name, lies whole on every device."""
    mesh = grid(2, 4)

    def loss(params: Any, tokens: Any) -> Any:
        return jax.numpy.tanh(params["embedding"][tokens] @ params["weight"]).sum()

    def train_step(params: Any, tokens: Any) -> Any:
        return jax.tree.map(jax.numpy.subtract, params, jax.grad(loss)(params, tokens))

    params = {"embedding": array(mesh, (64, 256)), "weight": array(mesh, (256, 256), None, "model")}
    return compile_only(jax.jit(train_step), params, array(mesh, (512,), dtype=jax.numpy.int32))


@pytest.fixture(scope="module")
def layers() -> Compilation:
    """Each layer adds two arrays that lie differently."""
    mesh = grid(2, 4)

    def layer(x: Any, w: Any) -> Any:
        return jax.numpy.sin(w) + jax.numpy.cos(w.T) + x

    def forward(weights: Any) -> Any:
        x = 0.0
        for w in weights:
            x = layer(x, w)
        return x

    return compile_only(jax.jit(forward), [array(mesh, (256, 256), None, "model")] * LAYERS)


@pytest.fixture(scope="module")
def noise() -> Compilation:
    """A program on the same mesh that multiplies nothing, such as one that draws random numbers."""
    return compile_only(jax.jit(jax.numpy.tanh), array(grid(2, 4), (512, 512)))


def findings_of(programs: list[Compilation], code: str, batch: str | None = None) -> list[Finding]:
    return [found for found in sharding(programs, intent(batch=batch)).findings if found.code == code]


def test_what_a_line_does_in_every_layer_is_one_finding(layers: Compilation) -> None:
    [found] = findings_of([layers], "TF234")
    names = found.evidence["instructions"]
    assert isinstance(names, list)
    moved = [row for row in sharding(layers).collectives if row.name in names]
    assert found.title.endswith(f", {LAYERS} times")
    assert len({row.name for row in moved}) == len(names) == LAYERS
    assert found.evidence["bytes"] == sum(row.bytes or 0 for row in moved)
    assert all(row.expected is False for row in moved)


def test_the_batch_is_no_array_that_the_step_returns(step: Compilation) -> None:
    [found] = findings_of([step], "TF233", "data")
    assert found.title == "every device holds all of tokens, though data is to split the batch"


def test_a_program_without_a_product_has_no_batch_beside_one_with_products(
    step: Compilation, noise: Compilation
) -> None:
    assert [found.evidence["program"] for found in findings_of([noise], "TF233", "data")] == [noise.name]
    assert [found.evidence["program"] for found in findings_of([noise, step], "TF233", "data")] == [step.name]


@pytest.mark.parametrize("mesh", [None, Mesh.of({"data": 2, "model": 4})])
def test_what_is_wanted_of_a_program_that_was_kept_compiled_alone_is_told(step: Compilation, mesh: Mesh | None) -> None:
    reason = sharding(Compilation(step.name, compiled=step.compiled), intent(mesh=mesh)).redundancy_reason
    assert reason.startswith("the program was not kept as it was written: decorate the jitted step with tf.instrument")
